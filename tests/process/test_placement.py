"""Which step and stage device work without a launch belongs to, on hand-made traces."""

import random

import numpy as np
import pandas as pd
import pytest
from chrome_builder import (
    BACKWARD,
    BASE_NS,
    annotation,
    kernel,
    launch,
    launched,
    op,
    projected,
    step,
    write,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.analyses.time.attribution import measure
from tracekit.process.calls.launches import find_launches
from tracekit.process.collectives.table import list_collectives
from tracekit.process.device.placement import PLACED, place_device_ops
from tracekit.process.device.work_per_window import measure_work_per_window
from tracekit.process.idle_time.causes import IdleTime
from tracekit.process.idle_time.launch_gaps import find_launch_gaps
from tracekit.process.idle_time.launch_queues import measure_launch_queues
from tracekit.process.ops.work_classes import find_work_stages
from tracekit.process.slice_trace import slice_trace
from tracekit.process.steps.windows import find_steps_and_stages


def load(tmp_path, rows, **meta):
    return tracekit.load(write(tmp_path / "rank0.json", rows, **meta))


def named_range(name, ts, dur, external, tid=100):
    return annotation(name, ts, dur, tid) | {"args": {"External id": external}}


def places(trace):
    """Of every device op by name: how it is placed, and the instant in µs (None: in no step or stage)."""
    found = place_device_ops(trace)
    at = (found.ts_ns - BASE_NS) / 1000
    return {
        name: (PLACED[how], None if PLACED[how] == "before" else when)
        for name, how, when in zip(trace["device_ops"]["name"], found.how, at, strict=True)
    }


def stages(trace):
    """The stage of every device op by name, None outside all."""
    names = [*find_steps_and_stages(trace).stages["stage"].cat.categories, None]
    codes = find_work_stages(trace)
    return {name: names[code] for name, code in zip(trace["device_ops"]["name"], codes, strict=True)}


TWO = [annotation("gen", 0, 40), annotation("ref", 50, 40), op("late", 0, 300)]
"""gen 0-40 and ref 50-90, on a host that is there until 300."""


def test_a_launch_decides_whatever_annotation_or_time_say(tmp_path):
    rows = [*TWO, *launched("k", 10, 60, 5, 1), projected("ref", 55, 20)]
    trace = load(tmp_path, rows)
    assert places(trace) == {"k": ("launch", 10)}
    assert stages(trace) == {"k": "gen"}


def test_annotation_beats_time(tmp_path):
    """It runs at 60, in ref, inside what the profiler drew for gen."""
    trace = load(tmp_path, [*TWO, kernel("k", 60, 5), projected("gen", 55, 20)])
    assert places(trace) == {"k": ("annotation", 0)}
    assert stages(trace) == {"k": "gen"}


def test_without_annotation_the_time_at_which_it_ran_decides(tmp_path):
    rows = [*TWO, kernel("in ref", 60, 100), kernel("between", 45, 2), kernel("before all", -5, 30)]
    trace = load(tmp_path, rows)
    assert {how for how, _ in places(trace).values()} == {"time"}
    assert stages(trace) == {"in ref": "ref", "between": None, "before all": None}


def test_an_op_that_the_range_holds_only_in_part_is_not_of_it(tmp_path):
    """The range is of 55-75; ops fill it exactly, leave it, and begin before it."""
    rows = [*TWO, projected("gen", 55, 20), kernel("fills", 55, 20), kernel("leaves", 60, 16), kernel("early", 54, 5)]
    found = places(load(tmp_path, rows))
    assert found == {"fills": ("annotation", 0), "leaves": ("time", 60), "early": ("time", 54)}


def test_of_nested_ranges_the_innermost_counts(tmp_path):
    """gen 100-200 holds mini_batch0 110-150; the last op is in gen alone. All run when the host is in ref."""
    rows = [
        annotation("gen", 0, 40), annotation("mini_batch0", 5, 20), annotation("ref", 50, 250),
        projected("gen", 100, 100), projected("mini_batch0", 110, 40),
        kernel("inner", 120, 5), kernel("outer", 160, 5),
    ]  # fmt: skip
    trace = load(tmp_path, rows)
    assert places(trace) == {"inner": ("annotation", 5), "outer": ("annotation", 0)}
    found = find_steps_and_stages(trace).stages
    start = found["ts_ns"].to_numpy()
    work = measure_work_per_window(trace, start, start + found["dur_ns"].to_numpy())
    assert dict(zip(found["stage"], work["work_ns"], strict=True)) == {
        "gen": 10_000, "mini_batch0": 5_000, "ref": 0,
    }  # fmt: skip


def test_of_equal_ranges_that_of_the_inner_host_range_counts(tmp_path):
    rows = [
        annotation("gen", 0, 40), annotation("mini_batch0", 5, 20), op("late", 0, 300),
        projected("mini_batch0", 100, 50), projected("gen", 100, 50), kernel("k", 110, 5),
    ]  # fmt: skip
    assert places(load(tmp_path, rows)) == {"k": ("annotation", 5)}


def test_ranges_that_overlap_without_nesting_give_the_one_that_began_last(tmp_path):
    rows = [*TWO, projected("gen", 100, 50), projected("ref", 120, 80), kernel("k", 130, 5), kernel("j", 105, 5)]
    assert places(load(tmp_path, rows)) == {"k": ("annotation", 50), "j": ("annotation", 0)}


def test_a_range_counts_on_its_own_device_and_stream_only(tmp_path):
    rows = [
        *TWO, projected("gen", 55, 20), projected("gen", 100, 20, device=1, stream=8),
        kernel("same", 60, 5), kernel("other stream", 60, 5, stream=8),
        kernel("other device", 60, 5, device=1), kernel("on 1", 105, 5, device=1, stream=8),
    ]  # fmt: skip
    assert places(load(tmp_path, rows)) == {
        "same": ("annotation", 0), "other stream": ("time", 60),
        "other device": ("time", 60), "on 1": ("annotation", 0),
    }  # fmt: skip


def test_of_host_ranges_with_one_name_the_last_that_began_before_the_range_counts(tmp_path):
    """gen at 0, 100 and 200; ranges drawn at 150 and 120 belong to the second, one at 200 to the third."""
    rows = [annotation("gen", at, 30) for at in (0, 100, 200)] + [op("late", 0, 500)]
    rows += [projected("gen", 120, 10), projected("gen", 150, 10), projected("gen", 200, 10)]
    rows += [kernel("a", 121, 2), kernel("b", 155, 2), kernel("c", 200, 2)]
    trace = load(tmp_path, rows)
    assert places(trace) == {name: ("annotation", at) for name, at in zip("abc", (100, 100, 200), strict=True)}


def test_an_id_names_the_host_range_better_than_time(tmp_path):
    """The work of the first gen is still running when the second one begins."""
    rows = [named_range("gen", 0, 30, 5), named_range("gen", 100, 30, 9), op("late", 0, 500)]
    rows += [projected("gen", 150, 20, external=5), kernel("first", 155, 2)]
    rows += [projected("gen", 180, 20, external=9), kernel("second", 185, 2)]
    rows += [projected("gen", 210, 20, external=77), kernel("unknown id", 215, 2)]
    assert places(load(tmp_path, rows)) == {
        "first": ("annotation", 0), "second": ("annotation", 100), "unknown id": ("annotation", 100),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["nowhere", "nccl:all_reduce", "on another thread"])
def test_a_range_without_a_host_range_on_the_step_thread_says_nothing(tmp_path, name):
    rows = [
        *TWO, annotation("nccl:all_reduce", 5, 2), annotation("on another thread", 5, 2, tid=BACKWARD),
        projected(name, 55, 20), kernel("k", 60, 5),
    ]  # fmt: skip
    assert places(load(tmp_path, rows)) == {"k": ("time", 60)}


def test_a_range_that_begins_before_every_host_range_of_its_name_says_nothing(tmp_path):
    rows = [annotation("gen", 100, 30), op("late", 0, 300), projected("gen", 55, 20), kernel("k", 60, 5)]
    assert places(load(tmp_path, rows)) == {"k": ("time", 60)}


def test_a_step_is_told_by_its_range_too(tmp_path):
    rows = [step(1, 0, 100), step(2, 100, 100), projected("ProfilerStep#1", 90, 60), kernel("k", 120, 5)]
    trace = load(tmp_path, rows)
    steps = find_steps_and_stages(trace).steps
    start = steps["ts_ns"].to_numpy()
    assert measure_work_per_window(trace, start, start + 100_000)["work_ns"].tolist() == [5_000, 0]


def test_what_was_launched_before_the_first_recorded_call_is_in_no_step(tmp_path):
    """Ids rise: 41 and 49 were given before the first recorded call, 50. 99 is lost, 0 is no id."""
    rows = [
        step(1, 0, 300), launch(1, 50, name="cudaDeviceSynchronize", dur=80),
        kernel("queued", 5, 20, 41), kernel("other stream", 30, 5, 49, stream=8), *launched("k", 90, 100, 5, 51),
        kernel("lost", 120, 5, 99), kernel("no id", 20, 5, 0), kernel("out of order", 110, 5, 42),
    ]  # fmt: skip
    trace = load(tmp_path, rows)
    assert places(trace) == {
        "queued": ("before", None), "other stream": ("before", None), "k": ("launch", 90),
        "lost": ("time", 120), "no id": ("time", 20), "out of order": ("time", 110),
    }  # fmt: skip
    start = find_steps_and_stages(trace).steps["ts_ns"].to_numpy()
    # k, lost, no id and out of order.
    assert measure_work_per_window(trace, start, start + 300_000)["work_ns"].tolist() == [20_000]


def test_annotation_beats_the_order_of_ids(tmp_path):
    rows = [*TWO, launch(1, 50), kernel("k", 60, 5, 3), projected("gen", 55, 20)]
    assert places(load(tmp_path, rows)) == {"k": ("annotation", 0)}


def test_without_recorded_calls_ids_say_nothing(tmp_path):
    assert places(load(tmp_path, [*TWO, kernel("k", 60, 5, 3)])) == {"k": ("time", 60)}


def test_devices_alone_are_placed_by_time(tmp_path):
    trace = load(tmp_path, [kernel("a", 0, 5, 1), kernel("b", 10, 5, 2), projected("gen", 0, 20)])
    assert places(trace) == {"a": ("time", 0), "b": ("time", 10)}
    steps = find_steps_and_stages(trace).steps
    start = steps["ts_ns"].to_numpy()
    assert measure_work_per_window(trace, start, start + steps["dur_ns"].to_numpy())["work_ns"].tolist() == [10_000]


def test_a_trace_without_devices_has_nothing_to_place(tmp_path):
    trace = load(tmp_path, TWO)
    assert len(place_device_ops(trace).how) == 0
    assert measure(trace) == {}
    found = measure_work_per_window(trace, np.array([BASE_NS]), np.array([BASE_NS + 9]))
    assert all(found[name].missing.all() for name in found)


def test_a_range_or_op_longer_than_everything_is_not_believed(tmp_path):
    rows = [
        *TWO,
        projected("gen", 55, 10**9),
        kernel("k", 60, 5),
        projected("gen", 100, 20),
        kernel("corrupt", 105, 10**9),
    ]
    assert places(load(tmp_path, rows)) == {"k": ("time", 60)}


def test_a_cut_keeps_the_places_that_the_whole_trace_told(tmp_path):
    """Cut to step 2, neither the range of step 1 nor the first call is left to tell of what ran in it."""
    rows = [
        step(1, 0, 100), step(2, 100, 100), launch(1, 50), *launched("k", 110, 150, 5, 52),
        projected("ProfilerStep#1", 90, 30), kernel("of 1", 105, 5), kernel("of 2", 130, 5), kernel("earlier", 115, 5, 3),
    ]  # fmt: skip
    part = slice_trace(load(tmp_path, rows), frozenset({2}), None)
    assert set(part["device_ops"]["name"]) == {"k", "of 2"}
    assert [PLACED[how] for how in part.derived(place_device_ops).how] == ["launch", "time"]


def test_questions_about_launches_take_no_place_for_a_launch(tmp_path):
    """Between 20 and 60 the device idles until an op that nobody is known to have launched."""
    rows = [*TWO, *launched("k", 1, 10, 10, 1), kernel("lost", 60, 5), projected("gen", 5, 100)]
    rows += [kernel("ncclDevKernel_AllReduce", 70, 5)]
    trace = load(tmp_path, rows)
    assert [PLACED[how] for how in place_device_ops(trace).how] == ["launch", "annotation", "annotation"]
    assert find_launches(trace).linked.tolist() == [True, False, False]
    (idle,) = trace.derived(IdleTime(kernel_wait_ns=3_000, silence_ns=1_000_000))
    gap = {name: part.total for name, part in idle.causes.items() if part.total}
    # 20-60 and 65-70.
    assert gap["unknown"] == 45_000
    assert measure_launch_queues(trace, idle)["count"].tolist() == [1]
    assert sum(found.total for found in find_launch_gaps(trace)) == 0
    one = list_collectives(trace).rows.frame().iloc[0]
    assert one["stage"] == "gen"
    assert pd.isna(one["issue_ns"])


drawn = st.lists(
    st.tuples(
        st.integers(0, 190), st.integers(0, 40), st.sampled_from(["launch", "none", "low id", "high id"]),
        st.integers(0, 1), st.integers(7, 8),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip
drawn_ranges = st.lists(
    st.tuples(
        st.sampled_from(["gen", "ref", "mini_batch0", "x"]), st.integers(0, 190), st.integers(0, 90),
        st.integers(0, 1), st.integers(7, 8),
    ),
    max_size=6,
)  # fmt: skip


def made(ops, ranges, shift=0):
    """A trace of two steps with gen, a mini-batch in it and ref; every op has a name of its own."""
    rows = [
        step(1, 0, 100), step(2, 100, 100), annotation("gen", 5, 40), annotation("mini_batch0", 10, 20),
        annotation("ref", 50, 40), annotation("gen", 105, 80), launch(1, 50),
    ]  # fmt: skip
    for number, (at, dur, how, device, stream) in enumerate(ops):
        where = {"device": device, "stream": stream}
        if how == "launch":
            rows += [launch(at, 100 + number), kernel(f"k{number}", at + 3, dur, 100 + number, **where)]
        else:
            ids = {"none": None, "low id": 1 + number, "high id": 500 + number}
            rows.append(kernel(f"k{number}", at, dur, ids[how], **where))
    rows += [projected(*one) for one in ranges]
    return [row | {"ts": row["ts"] + shift} for row in rows]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(drawn, drawn_ranges, st.integers(-(10**6), 10**6), st.randoms(use_true_random=False))
def test_neither_clock_nor_order_matter_and_nothing_is_lost(tmp_path_factory, ops, ranges, shift, order):
    folder = tmp_path_factory.mktemp("t")
    first = load(folder, made(ops, ranges))
    moved = made(ops, ranges, shift)
    random.Random(order.random()).shuffle(moved)
    second = load(folder, moved)
    one, other = places(first), places(second)
    assert {n: (how, None if at is None else at + shift) for n, (how, at) in one.items()} == other
    assert stages(first) == stages(second)
    # What has a launch stays where it was launched.
    links = find_launches(first)
    place = place_device_ops(first)
    assert ((place.how == PLACED.index("launch")) == links.linked).all()
    assert (place.ts_ns[links.linked] == links.ts_ns[links.linked]).all()
    # Every op is in one step, or outside both, or known to be in none.
    steps = find_steps_and_stages(first).steps
    start = steps["ts_ns"].to_numpy()
    end = start + steps["dur_ns"].to_numpy()
    inside = place.is_placed & (place.ts_ns >= start[0]) & (place.ts_ns < end[-1])
    dur = first["device_ops"]["dur_ns"].to_numpy()
    work = measure_work_per_window(first, start, end)
    assert int(sum(work["work_ns"])) == int(dur[inside].sum())
    assert int(sum(work["launch_count"])) == int(inside.sum())
    table = measure(first)["launches"]
    assert sum(table["dur_ns"]) == int(dur.sum())
