"""What held a device back: the deepest thing recorded of the thread that launched the next work, worked out by hand."""

from collections import Counter

import nsys_builder as nsys
import numpy as np
import pandas as pd
import pytest
from chrome_builder import BACKWARD, BASE_NS, annotation, kernel, launch, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from process.blame_traces import TABLES, held, kinds, paths, python, tables, traced
from process.idle_traces import LIMITS, between, stream_wait, sync

import tracekit
from tracekit.model import sweeps
from tracekit.model.intervals import merge_intervals
from tracekit.process.calls.segments import ThreadSegments
from tracekit.process.host.tree import build_host_tree
from tracekit.process.idle_time.attribution import MAX_NODES, MAX_ROWS, shorten_frame_name
from tracekit.process.idle_time.tables import WINDOWS, sum_idle_time_by_window

WAIT = {"start": 150, "at": 150}
"""Idle from 100 to 150, all of it before the launch."""

LAUNCH = "cudaLaunchKernel"
LOCK = "<built-in method acquire of _thread.lock object at 0x7f01>"


def test_it_is_the_innermost_python_function_until_the_launch_has_returned(tmp_path):
    """Idle 100 to 160: 40 in prep, 10 in main alone, 2 in the launch, 8 of start-up."""
    frames = [python("train.py(3): main", 0, 300), python("data.py(9): prep", 100, 40)]
    trace = traced(tmp_path, between(*frames, start=150, at=160))
    assert held(trace) == {
        "train.py(3): main > data.py(9): prep": 40, "train.py(3): main": 10,
        f"train.py(3): main > {LAUNCH}": 2, "(starting up)": 8,
    }  # fmt: skip
    assert kinds(trace) == {"python": 50, "call": 2, "device": 8}


@pytest.fixture
def far_rows_stay(monkeypatch):
    """As where a reader has no way to tell that times are impossible."""
    none = np.zeros(1, np.bool_)
    monkeypatch.setattr("tracekit.readers.chrome.times.find_stranded_rows", lambda *_: none)


@pytest.mark.usefixtures("far_rows_stay")
@pytest.mark.parametrize("base_ns", [None, BASE_NS])
@pytest.mark.parametrize("far", [400, 5 * 10**14], ids=["near", "years apart"])
def test_what_has_not_begun_yet_does_not_run(tmp_path, base_ns, far):
    """Prep begins at 104: at 100 main runs; also where the times of all threads on one axis are too many for 64 bits."""
    frames = [python("train.py(3): main", 0, 300), python("data.py(9): prep", 104, 36)]
    strays = [op("stray", far, 10, tid=tid) for tid in range(70, 90)]
    rows = between(*frames, *strays, **WAIT)
    path = write(tmp_path / "rank0.json", rows, base_ns=base_ns)
    host = tracekit.load(path, tables=TABLES).derived(build_host_tree)
    running = [-1, *(host.name.texts[code] for code in host.name.codes)]
    at = np.array([-5, 100, 103.999, 104, 139.999, 140, 200, 300]) * 1_000
    rows = host.find_running(np.zeros(len(at), np.int64), (base_ns or 0) + at.astype(np.int64))
    main, prep = frames[0]["name"], frames[1]["name"]
    assert [running[row + 1] for row in rows] == [-1, main, main, prep, prep, main, main, -1]


@pytest.mark.usefixtures("far_rows_stay")
@pytest.mark.parametrize("far", [400, 5 * 10**14], ids=["near", "years apart"])
@pytest.mark.parametrize("depth", [3, 150])
@pytest.mark.parametrize("at_once", [2**17, 7])
def test_pieces_are_those_of_each_row_also_where_only_some_time_is_asked_about(
    tmp_path, monkeypatch, far, depth, at_once
):
    """Calls in calls, each 10 longer at both ends; the segments of three threads and of none in them."""
    monkeypatch.setattr("tracekit.process.host.tree.EDGES_AT_ONCE", at_once)
    deep = [python(f"f{n}", 2_000 - 10 * n, 20 * n + 5) for n in range(depth, 0, -1)]
    strays = [op("stray", far, 10, tid=tid) for tid in range(70, 90)]
    trace = traced(tmp_path, [*deep, op("aten::x", 2_002, 2, tid=BACKWARD), *strays])
    host = trace.derived(build_host_tree)
    start = host.axis.times(host.thread, host.begin).min() + np.array(
        [-5_000, 0, 7_000, 20_000, 25_000, 40_000, 60_000]
    )
    end = start + np.array([2_000, 7_000, 13_000, 3_000, 9_000, 20_000, 9_000_000])
    whole = ThreadSegments(start, end, np.array([0, 0, 0, 1, -1, 0, 0]), np.arange(len(start)))
    within = build_host_tree(trace, merge_intervals(start, end))
    assert len(within.edges) <= len(host.edges)
    part = host.cut(whole)
    for rows in (host, within):
        for found, expected in zip(rows.cut(whole), part, strict=True):
            np.testing.assert_array_equal(found, expected)
        *pieces, first = rows.cut_and_found(whole)
        expected = part.start, part.end, host.find_running(part.thread, part.start)
        np.testing.assert_array_equal(pieces, expected)
        np.testing.assert_array_equal(part.origin[first], np.arange(len(start)))


@pytest.mark.parametrize("beside", [[], [python("train.py(3): main", 0, 300)]], ids=["ops", "python"])
@pytest.mark.parametrize("instant", [True, False])
def test_rows_are_those_that_last_with_or_without_python(tmp_path, beside, instant):
    """By thread, start, longest first; in a tree of all rows, and where other rows lie beside it."""
    ops = [op("aten::a", 10, 5), op("aten::b", 10, 20), op("aten::c", 5, 0.5 * (not instant))]
    host = build_host_tree(traced(tmp_path, [*beside, *ops, op("aten::d", 1, 4, tid=BACKWARD)]))
    names = [host.name.texts[code] for code in host.name.codes]
    lasting = ["aten::b", "aten::a", "aten::d"] if instant else ["aten::c", "aten::b", "aten::a", "aten::d"]  # fmt: skip
    assert [name for name in names if name.startswith("aten::")] == lasting
    assert len(names) == len(lasting) + len(beside)


def test_ops_and_calls_within_python_are_below_it(tmp_path):
    """An op whose end jitters past that of its caller is in it all the same."""
    rows = [
        python("train.py(3): main", 0, 300), python("a.py(1): f", 100, 40),
        op("aten::to", 101, 39.5), launch(105, 8, 20, name="cudaMalloc"),
    ]  # fmt: skip
    found = held(traced(tmp_path, between(*rows, start=140.5, at=142.5)))
    assert found["train.py(3): main > a.py(1): f > aten::to > cudaMalloc"] == 20
    assert found["train.py(3): main > a.py(1): f > aten::to"] == 19.5
    assert found["train.py(3): main > a.py(1): f"] == 1


def test_a_range_is_not_within_the_call_that_opened_it(tmp_path):
    """As Python's profiler records it: the step's range begins inside the function that opens it, and outlives it."""
    rows = [python("train.py(3): main", 0, 300), python("p.py(7): enter", 95, 10), step(6, 100, 150)]
    found = held(traced(tmp_path, between(*rows, python("data.py(9): prep", 110, 40), **WAIT)))
    assert found["train.py(3): main > ProfilerStep#6 > data.py(9): prep"] == 40


def test_a_silent_backward_thread_is_followed_to_the_one_that_calls_it(tmp_path):
    """The kernel is launched by the thread of backward, of which nothing is recorded before 130."""
    rows = [op("aten::prepare", 100, 30), op("MulBackward0", 130, 30, tid=BACKWARD)]
    trace = traced(tmp_path, [*launched("a", 0, 0, 100, 1), *rows, *launched("b", 150, 152, 50, 2, tid=BACKWARD)])
    assert held(trace) == {
        "aten::prepare": 30, "MulBackward0": 20, f"MulBackward0 > {LAUNCH}": 2,
    }  # fmt: skip


def test_a_thread_that_waits_is_followed_to_the_one_that_works(tmp_path):
    """Main waits for backward from 100 to 140; it works from 105 to 135, and then launches the kernel itself."""
    rows = [
        python("train.py(3): main", 0, 300),
        python("<built-in method run_backward of torch._C._EngineBase object at 0x7>", 100, 40),
        op("MulBackward0", 105, 30, tid=BACKWARD),
    ]
    found = held(traced(tmp_path, between(*rows, start=140, at=142)))
    assert found["MulBackward0"] == 30
    waiting = "train.py(3): main > <built-in method run_backward of torch._C._EngineBase object>"
    assert found[waiting] == 10


@pytest.mark.parametrize(
    "wait", [LOCK, "queue.py(154): get", "threading.py(655): wait", "multiprocessing/connection.py(200): poll"]
)
def test_waits_of_python_lead_to_the_thread_that_works(tmp_path, wait):
    worker = [python("data.py(5): load", 90, 100, tid=77), python("data.py(8): decode", 110, 20, tid=77)]
    rows = [python("train.py(3): main", 0, 300), python(wait, 100, 40), *worker]
    found = held(traced(tmp_path, between(*rows, start=140, at=142)))
    assert found["data.py(5): load > data.py(8): decode"] == 20
    assert found["data.py(5): load"] == 20


def test_a_function_that_has_wait_in_its_name_is_not_a_wait(tmp_path):
    rows = [python("sim.py(3): waiting_room", 100, 40), python("data.py(5): load", 90, 100, tid=77)]
    assert held(traced(tmp_path, between(*rows, start=140, at=140)))["sim.py(3): waiting_room"] == 40


def test_another_thread_that_works_meanwhile_is_not_blamed(tmp_path):
    """Main runs Python of its own all along."""
    rows = [python("train.py(3): main", 0, 300), op("aten::other", 100, 50, tid=77)]
    assert held(traced(tmp_path, between(*rows, **WAIT))) == {"train.py(3): main": 50}


def test_calls_that_synchronise_and_recorded_collection_have_kinds_of_their_own(tmp_path):
    rows = [
        sync(100, 9, 10), python("<built-in function collect>", 110, 10), annotation("gc", 120, 10),
        annotation("load_state", 130, 10),
    ]  # fmt: skip
    trace = traced(tmp_path, between(*rows, start=140, at=140))
    assert kinds(trace) == {"sync": 10, "gc": 20, "range": 10}


def test_a_function_of_a_name_like_gc_is_no_collection(tmp_path):
    trace = traced(tmp_path, between(python("gcn.py(3): collect_all", 100, 50), **WAIT))
    assert kinds(trace) == {"python": 50}


def test_where_nothing_is_recorded_its_neighbours_are_named_and_nothing_is_guessed(tmp_path):
    rows = [op("aten::first", 80, 20), op("aten::second", 140, 10)]
    trace = traced(tmp_path, between(*rows, start=150, at=150))
    assert held(trace) == {"(nothing recorded, after aten::first, before aten::second)": 40, "aten::second": 10}
    assert kinds(trace) == {"nothing": 40, "op": 10}


@pytest.mark.parametrize("far", [[], [op("aten::far", 1_300_000_000_000_000, 1, tid=tid) for tid in (77, 78)]])
def test_a_row_holds_no_instant_before_it_begins_however_far_apart_rows_are(tmp_path, far):
    """Also where times of 1970 and many years later, on as many threads, do not fit on one axis of nanoseconds."""
    rows = [op("aten::first", 80, 20), op("aten::second", 140, 10), *far]
    host = build_host_tree(traced(tmp_path, rows, base_ns=0))
    instants = np.array([79, 80, 99, 100, 139, 140, 149, 150]) * 1000
    place = host.find_running(np.zeros(len(instants), np.int64), instants)
    names = [host.name.texts[host.name.codes[row]] if row >= 0 else None for row in place]
    first, second = ["aten::first"] * 2, ["aten::second"] * 2
    assert names == [None, *first, None, None, *second, None]


def test_only_a_step_or_stage_around_it_is_nothing(tmp_path):
    rows = [step(1, 0, 200), annotation("update_actor", 0, 200), op("aten::mm", 60, 30)]
    trace = traced(tmp_path, between(*rows, **WAIT))
    assert kinds(trace, "stage")["nothing"] == 50
    (path,) = [path for path in held(trace, "stage") if "nothing" in path]
    assert path.startswith("ProfilerStep#1 > update_actor > (nothing recorded, after ")


def test_no_host_at_all(tmp_path):
    trace = traced(tmp_path, [kernel("a", 0, 10), kernel("b", 30, 10)])
    assert held(trace) == {"(nothing recorded)": 20}


def test_a_blocking_copy_that_keeps_a_launched_kernel_waiting_is_blamed(tmp_path):
    """Launched at 110, begun at 500; the thread copies from 120 to 490."""
    copy = launch(120, 8, 370, name="hipMemcpyWithStream")
    trace = traced(tmp_path, between(op("aten::copy_", 115, 380), copy, start=110, at=500))
    found = held(trace)
    assert found["aten::copy_ > hipMemcpyWithStream"] == 370
    assert found["(launched but not started, cause unknown)"] == 18


def test_a_call_that_waits_for_the_device_is_not_why_it_waits(tmp_path):
    trace = traced(tmp_path, between(sync(115, 8, 385), start=110, at=500))
    assert kinds(trace)["device"] == 388


def test_a_stream_that_waits_for_another_is_told(tmp_path):
    rows = between(stream_wait(100, 7), start=90, at=150)
    assert held(traced(tmp_path, rows)) == {"(waiting for another stream)": 50}


def test_the_first_launch_of_a_kernel_that_takes_long_is_a_first_call(tmp_path):
    """6 ms where others take 10 µs; a call as long that is not the first of its kernel is none."""
    rows = []
    for n in range(5):
        rows += [launch(100 * n, n + 1, 10), kernel("a", 100 * n + 10, 50, n + 1)]
    rows += [launch(600, 20, 6_000), kernel("late", 6_600, 10, 20)]
    rows += [launch(7_000, 21, 6_000), kernel("a", 13_000, 10, 21)]
    assert kinds(traced(tmp_path, rows))["first_call"] == 6_000
    again = [row | {"name": "a"} if row["name"] == "late" else row for row in rows]
    assert "first_call" not in kinds(traced(tmp_path, again, "again.json"))


def test_devices_are_told_apart_and_share_one_tree(tmp_path):
    rows = [python("train.py(3): main", 0, 900)]
    for device in (0, 1):
        rows += launched("a", 1, 10, 90, 10 + device, device=device)
        rows += launched("b", 200, 202, 50, 20 + device, device=device)
    found, frames = tables(traced(tmp_path, rows))
    found = found[found["window"] == "capture"]
    assert found.groupby("device")["idle_ns"].sum().tolist() == [102_000] * 2
    assert frames["frame"].tolist().count("train.py(3): main") == 1


def test_instances_addresses_and_numbers_make_one_place():
    assert (
        shorten_frame_name("nn.Module: Linear_12") == shorten_frame_name("nn.Module: Linear_3") == "nn.Module: Linear"
    )
    assert (
        shorten_frame_name("<built-in method mm of type object at 0x7f1abc>") == "<built-in method mm of type object>"
    )
    assert len(shorten_frame_name("x" * 5_000)) == 160


def test_numbered_ranges_add_up_and_one_alone_keeps_its_name(tmp_path):
    rows = [annotation("decode 1", 100, 20), annotation("decode 2", 120, 20), annotation("top 3", 140, 10)]
    assert held(traced(tmp_path, between(*rows, **WAIT))) == {"decode #": 40, "top 3": 10}


def test_the_sums_stay_exact_where_there_are_too_many_places(tmp_path):
    """2,000 functions of 10 each, in 60 steps."""
    rows = []
    for n in range(2_000):
        rows += [python(f"f.py({n}): f{n}", 20 * n, 10), *launched("k", 20 * n + 10, 20 * n + 12, 8, n + 1)]
    rows += [step(n, 600 * n, 600) for n in range(60)]
    found, frames = tables(traced(tmp_path, rows))
    assert len(frames) <= MAX_NODES + 24
    assert len(found) <= MAX_ROWS + 62 * 12
    capture = found[found["window"] == "capture"]
    assert int(capture["idle_ns"].sum()) == 1_999 * 12_000
    assert any("(other)" in path for path in paths(frames))


def test_what_nsys_records_of_the_system_and_of_ranges_counts_alike(tmp_path):
    """Idle 1,000 to 9,000: a range holds 5,000 of it, a call of the system in it 2,000; the kernel is launched at 8,900."""
    path = nsys.write(
        tmp_path / "a.sqlite",
        [
            *nsys.launched("a", 0, 100, 1_000, 1), nsys.nvtx("Nvrtc::CompileProgram", 2_000, 7_000),
            nsys.os_call("ioctl", 4_000, 6_000), *nsys.launched("b", 8_900, 9_000, 9_500, 2),
        ],
    )  # fmt: skip
    found = held(tracekit.load(path))
    assert found["Nvrtc::CompileProgram"] == 3
    assert found["Nvrtc::CompileProgram > ioctl"] == 2
    assert sum(found.values()) == 8


CPU = (*TABLES, "cpu_samples", "thread_states")


def on_cpu(tmp_path, *rows, schema="3.25", **options):
    """Kernels of 0.9 µs that begin at 100 ns and at 9 µs, the second launched from 8.9 µs on, and what else is recorded."""
    both = [
        *nsys.launched("a", 0, 100, 1_000, 1), *nsys.launched("b", 8_900, 9_000, 9_500, 2),
        *(row for of_row in rows for row in ([of_row] if isinstance(of_row, tuple) else of_row)),
    ]  # fmt: skip
    path = nsys.write(tmp_path / "a.sqlite", both, schema=schema, **options)
    return tracekit.load(path, tables=CPU)


def test_a_sample_of_the_cpu_stands_below_the_range_until_the_next_or_for_their_median_distance(tmp_path):
    """Idle 1 to 9 µs, samples at 3, 4 and 7: 1 and 3 apart, so that each stands for at most 2, the last to 8.9.

    The range ends at 5, and the sample at 4 with it; the call of the system from 7.5 to 8 is no sample's.
    """
    trace = on_cpu(
        tmp_path, nsys.nvtx("prepare", 1_500, 5_000), nsys.os_call("ioctl", 7_500, 8_000),
        nsys.sampled(1, 3_000, "tokenize", "main"), nsys.sampled(2, 4_000, "sort", "main"),
        nsys.sampled(3, 7_000, "sort", "main"),
    )  # fmt: skip
    found = held(trace)
    assert {path: us for path, us in found.items() if not path.startswith(("(nothing", LAUNCH))} == {
        "prepare": 1.5, "prepare > tokenize": 1, "prepare > sort": 1, "sort": 1.4, "ioctl": 0.5,
    }  # fmt: skip
    assert sum(found.values()) == pytest.approx(8)
    assert kinds(trace)["sample"] == pytest.approx(3.4)


def test_a_thread_off_the_cpu_is_said_to_be_so_with_the_state_that_is_recorded(tmp_path):
    """2.2 to 3 waiting, 3.1 to 4.1 ready, 5 to 6 unknown; 7 to 8 in a call of the system, whose time it stays."""
    trace = on_cpu(
        tmp_path, nsys.off_cpu(2_200, 3_000, state=7), nsys.off_cpu(3_100, 4_100, state=1),
        nsys.off_cpu(5_000, 6_000, state=0), nsys.os_call("read", 7_000, 8_000),
        nsys.off_cpu(7_000, 8_000, state=2),
    )  # fmt: skip
    found = held(trace)
    assert {path: us for path, us in found.items() if "off" in path} == {
        "(off the CPU: waiting)": 0.8, "(off the CPU: wants to run)": 1, "(off the CPU)": 1,
        "read > (off the CPU: waiting)": 1,
    }  # fmt: skip
    assert sum(found.values()) == pytest.approx(8)
    assert kinds(trace)["off_cpu"] == pytest.approx(2.8)
    assert kinds(trace)["system"] == 1


def test_a_thread_that_waits_off_the_cpu_is_followed_to_one_that_runs(tmp_path):
    """The launching thread is off the CPU from 2 to 6; another one is sampled at 3 and at 4, which stand for 1 each."""
    trace = on_cpu(
        tmp_path, nsys.off_cpu(2_000, 6_000, state=7), nsys.sampled(1, 3_000, "decode", tid=101),
        nsys.sampled(2, 4_000, "decode", tid=101),
    )  # fmt: skip
    found = held(trace)
    assert found["decode"] == 2
    assert found["(off the CPU: waiting)"] == 2
    assert sum(found.values()) == pytest.approx(8)


def test_what_a_thread_was_off_the_cpu_for_is_not_its_sample_s(tmp_path):
    """Samples at 2 and 6, for 4 µs each: of the first 3 to 4 are off the CPU, of the second 6.5 to 7."""
    trace = on_cpu(
        tmp_path, nsys.sampled(1, 2_000, None), nsys.sampled(2, 6_000, None, "main"),
        nsys.off_cpu(3_000, 4_000, state=1), nsys.off_cpu(6_500, 7_000, state=1),
    )  # fmt: skip
    found = held(trace)
    assert found["(libx.so, name unknown)"] == pytest.approx(3 + 2.4)
    assert found["(off the CPU: wants to run)"] == 1.5


def test_one_sample_alone_stands_for_no_time(tmp_path):
    assert kinds(on_cpu(tmp_path, nsys.sampled(1, 2_000, "f"))).keys() == {"nothing", "call"}


HOSTILE = ("|`<b>\u202e", "x" * 5_000, "", "(nothing recorded)")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_idle_nanosecond_is_blamed_once_whatever_is_known_of_the_cpu(tmp_path_factory, data):
    draw = data.draw
    times, tids = st.integers(-500, 12_000), st.sampled_from((100, 101, 102))
    rows = []
    for number in range(draw(st.integers(0, 12))):
        names = draw(st.lists(st.sampled_from((*HOSTILE, None, "f")), max_size=3))
        rows.append(nsys.sampled(number, draw(times), *names, tid=draw(tids)))
    for _ in range(draw(st.integers(0, 12))):
        state = draw(st.sampled_from((None, 0, 1, 2, 5, 6, 7, 99)))
        rows.append(nsys.switch(draw(times), draw(st.booleans()), state=state, tid=draw(tids)))
    for _ in range(draw(st.integers(0, 8))):
        at, dur = draw(times), draw(st.integers(0, 4_000))
        name = draw(st.sampled_from(("futex", "ioctl")))
        make = draw(st.sampled_from((nsys.os_call, nsys.nvtx)))
        rows.append(make(name, at, at + dur, tid=draw(tids)))
    end = draw(st.sampled_from((None, 10_000)))
    trace = on_cpu(tmp_path_factory.mktemp("blame"), *rows, duration_ns=end)
    rows_of, frames = tables(trace)
    assert rows_of[rows_of["window"] == "capture"]["idle_ns"].sum() == 8_000
    assert (np.asarray(frames["parent"], np.int64) < np.arange(len(frames))).all()
    assert all(len(frame) <= 160 for frame in frames["frame"] if frame is not None)


NAMES = ("aten::mm", LOCK, "a.py(1): f", "gc", "", "ProfilerStep#3", "|`<b>\u202e", "cudaStreamSynchronize", "x" * 400)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_idle_nanosecond_of_every_window_is_blamed_once(tmp_path_factory, data):
    """Whatever overlaps whatever, on any threads, with launches known or not."""
    draw = data.draw
    rows = [step(1, 0, draw(st.integers(0, 400))), annotation("gen", draw(st.integers(0, 200)), 150)]
    spans = st.tuples(st.integers(0, 500), st.integers(0, 200))
    for _ in range(draw(st.integers(0, 25))):
        at, dur = draw(spans)
        make = draw(st.sampled_from((op, annotation, python)))
        rows.append(make(draw(st.sampled_from(NAMES)), at, dur, tid=draw(st.sampled_from((100, 101, 102)))))
    for n in range(draw(st.integers(1, 12))):
        at, dur = draw(spans)
        start = at + draw(st.integers(0, 60))
        link = draw(st.booleans())
        rows.append(kernel("k", start, dur, n + 1 if link else None, device=draw(st.integers(0, 1))))
        rows.append(launch(at, n + 1, draw(st.integers(0, 40)), tid=draw(st.sampled_from((100, 101)))))
    folder = tmp_path_factory.mktemp("blame")
    trace = traced(folder, rows)
    found, frames = tables(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "native", None)
        for with_c, without in zip((found, frames), tables(traced(folder, rows)), strict=True):
            pd.testing.assert_frame_equal(with_c, without)
    for idle in trace.derived(LIMITS):
        by_cause = sum_idle_time_by_window(trace, idle)
        expected = _by_window(by_cause["window"].codes, by_cause["idle_ns"])
        blamed = {}
        if len(found):
            of_device = found[found["device"] == idle.device]
            blamed = _by_window(map(WINDOWS.index, of_device["window"]), of_device["idle_ns"])
        assert blamed == expected
    assert (np.asarray(frames["parent"], np.int64) < np.arange(len(frames))).all()


def _by_window(codes, idle_ns):
    """Window → ns, where there is any."""
    sums = Counter()
    for code, ns in zip(codes, idle_ns, strict=True):
        sums[int(code)] += int(ns)
    return {code: ns for code, ns in sums.items() if ns}
