"""Idle gaps and their causes, stalls after synchronizing calls, stage edges and queues, worked out by hand."""

from random import Random

import numpy as np
import pytest
from chrome_builder import BACKWARD, annotation, kernel, launch, launched, memcpy, op, step
from columns import columns_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from process.idle_traces import LIMITS, between, causes, frame_of, load, only, stream_wait, sync

from tracekit.model.tables.slots import CAUSES
from tracekit.model.trace import Trace
from tracekit.process.device.busy import break_down_device_windows, compute_busy_intervals
from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.idle_time.causes import IdleTime, _find_latest_time_before
from tracekit.process.idle_time.launch_queues import measure_launch_delays, measure_launch_queues
from tracekit.process.idle_time.stalls import find_sync_stalls, measure_stage_edges
from tracekit.process.idle_time.tables import (
    find_main_causes,
    list_longest_gaps,
    make_gap_histogram,
    sum_idle_time_by_window,
)

# Causes


def test_a_gap_is_the_hosts_until_the_launch_and_start_up_from_then_on(tmp_path):
    """Idle 100 to 150; launched at 130: 30 for the host (in an op for 20 of them), 20 of start-up."""
    _, idle = only(tmp_path, between(op("aten::add", 105, 20), start=130))
    assert causes(idle) == {"host_op": 20, "host_none": 10, "kernel_wait": 20}
    assert (idle.before.tolist(), idle.after.tolist()) == ([0], [1])


def test_what_the_host_did_counts_once_the_loader_first(tmp_path):
    """Idle 100 to 200, launched at 200; the loader holds 100–130, a synchronisation 120–150, an op 100–170."""
    host = [
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 30),
        sync(120, 9, 30), op("aten::item", 100, 70),
    ]  # fmt: skip
    _, idle = only(tmp_path, between(*host, start=200, at=200))
    assert causes(idle) == {"host_loader": 30, "host_sync": 20, "host_op": 20, "host_none": 30}


def test_an_op_without_length_begins_and_ends_no_gap(tmp_path):
    """Where the gap begins stands one of a name that comes last, where it ends one of a name that comes first."""
    rows = [*between(start=130), kernel("z", 100, 0), kernel("a", 150, 0)]
    trace, idle = only(tmp_path, rows)
    names = trace["device_ops"]["name"]
    assert (names.iloc[idle.before].tolist(), names.iloc[idle.after].tolist()) == (["a"], ["b"])
    assert causes(idle) == {"host_none": 30, "kernel_wait": 20}


def test_devices_come_in_order_of_their_number_those_of_unknown_number_last(tmp_path):
    rows = [
        row for at, device in enumerate((2, 0, 1)) for row in launched("k", at, 10 * at + 5, 5, at + 1, device=device)
    ]
    trace = load(tmp_path, rows)
    device = trace["device_ops"]["device"].mask(trace["device_ops"]["device"] == 2)
    unknown = Trace(trace.source, {**trace.tables, "device_ops": trace["device_ops"].assign(device=device)})
    assert [idle.device for idle in unknown.derived(LIMITS)] == [0, 1, None]
    assert [idle.device for idle in trace.derived(LIMITS)] == [0, 1, 2]


def test_garbage_collection_and_profiler_overhead_have_their_own_cause(tmp_path):
    overhead = op("Buffer Flush", 140, 20) | {"cat": "overhead"}
    _, idle = only(tmp_path, between(annotation("gc", 100, 30), overhead, start=170, at=170))
    assert causes(idle) == {"host_gc": 30, "host_overhead": 20, "host_none": 20}


@pytest.mark.parametrize("name", ["gc", "Python GC", "gc.collect", "full garbage collection", "my gc step"])
def test_names_of_garbage_collection(tmp_path, name):
    _, idle = only(tmp_path, between(annotation(name, 100, 50), start=150))
    assert causes(idle) == {"host_gc": 50}


@pytest.mark.parametrize("name", ["gcn_layer", "aggcount", "actor_update", "ProfilerStep#3"])
def test_names_that_only_look_like_it(tmp_path, name):
    _, idle = only(tmp_path, between(annotation(name, 100, 50), start=150))
    assert causes(idle) == {"host_none": 50}


def test_a_thread_that_launches_nothing_cannot_hold_the_device_up(tmp_path):
    """A watchdog in `cudaEventSynchronize` all the time is host activity, but not what the device waits for."""
    watchdog = sync(0, 9, 200, name="cudaEventSynchronize", tid=BACKWARD)
    _, idle = only(tmp_path, between(watchdog, start=150))
    assert causes(idle) == {"host_op": 50}


@pytest.mark.parametrize(("rest", "cause"), [(29, "kernel_wait"), (30, "other")])
def test_a_late_start_of_thirty_microseconds_is_not_start_up(tmp_path, rest, cause):
    _, idle = only(tmp_path, between(start=100, at=100 + rest))
    assert causes(idle) == {cause: rest}


def test_a_launch_before_the_gap_leaves_nothing_to_the_host(tmp_path):
    """Launched at 50, in the queue while the first kernel ran."""
    _, idle = only(tmp_path, between(start=50, at=120))
    assert causes(idle) == {"kernel_wait": 20}


def test_a_stream_that_was_told_to_wait_is_waiting(tmp_path):
    """Wait issued after the last launch on the stream and before the op's own."""
    _, idle = only(tmp_path, between(stream_wait(60, 7), start=70, at=180))
    assert causes(idle) == {"sync": 80}


@pytest.mark.parametrize(
    "row",
    [
        stream_wait(60, 8),  # of another stream
        stream_wait(60, 7, device=1),  # of another device
        stream_wait(60, 7, name="Stream Sync"),  # the host waits, not the stream
        stream_wait(160, 7),  # issued when the op had begun
    ],
)
def test_other_synchronisation_records_hold_nothing_back(tmp_path, row):
    _, idle = only(tmp_path, between(row, start=70, at=150))
    assert causes(idle) == {"other": 50}


def test_a_wait_that_an_earlier_op_of_the_stream_has_served_is_over(tmp_path):
    """The wait at 0 came before the first op's launch at 1."""
    rows = [stream_wait(0, 7), *launched("a", 1, 1, 99, 1), *launched("b", 70, 150, 50, 2)]
    assert causes(only(tmp_path, rows)[1]) == {"other": 50}


def test_an_op_without_a_launch_leaves_the_gap_unknown(tmp_path):
    rows = [*launched("a", 0, 0, 100, 1), op("aten::add", 100, 50), kernel("b", 150, 10)]
    assert causes(only(tmp_path, rows)[1]) == {"unknown": 50}


def test_after_the_last_op_nothing_is_waited_for(tmp_path):
    """The step goes on for 60 after the kernel, whatever the host does then."""
    rows = [step(1, 0, 160), *launched("a", 0, 0, 100, 1), op("aten::add", 100, 60)]
    _, idle = only(tmp_path, rows)
    assert causes(idle) == {"after_last": 60}
    assert idle.after.tolist() == [-1]


def test_before_the_first_op_the_device_waits_for_its_launch(tmp_path):
    """The step begins at 0, the launch at 40, the kernel at 50."""
    rows = [step(1, 0, 100), *launched("a", 40, 50, 50, 1)]
    _, idle = only(tmp_path, rows)
    assert causes(idle) == {"host_none": 40, "kernel_wait": 10}
    assert idle.before.tolist() == [-1]


def test_of_ops_that_begin_at_once_the_first_launched_ends_the_wait(tmp_path):
    """The gap 100–150 ends with two kernels; one was launched at 120, the other at 140."""
    late = [*launched("b", 140, 150, 50, 3, stream=8), *launched("c", 120, 150, 50, 2, stream=9)]
    _, idle = only(tmp_path, [*launched("a", 0, 0, 100, 1), *late])
    assert causes(idle) == {"host_none": 20, "other": 30}


def test_ops_without_length_fill_no_gap(tmp_path):
    _, idle = only(tmp_path, between(*launched("zero", 110, 120, 0, 3), start=150))
    assert causes(idle) == {"host_none": 48, "host_op": 2}


@pytest.mark.parametrize(("pause", "cause"), [(20_000, "host_silent"), (19_999, "host_none")])
def test_silence_lasts_twenty_milliseconds(tmp_path, pause, cause):
    _, idle = only(tmp_path, between(op("x", 100, 2), start=102 + pause, at=102 + pause))
    assert causes(idle) == {"host_op": 2, cause: pause}


def test_silence_that_crosses_the_end_of_a_stage_is_two_pauses(tmp_path):
    """30 ms in all, 15 ms on either side of the stage's end: neither is long."""
    rows = [
        annotation("gen", 0, 16_000), *launched("a", 0, 0, 1000, 1), *launched("b", 31_000, 31_000, 10, 2),
    ]  # fmt: skip
    _, idle = only(tmp_path, rows)
    assert causes(idle) == {"host_none": 30_000}
    _, whole = only(tmp_path, rows[1:])
    assert causes(whole) == {"host_silent": 30_000}


def test_two_devices_wait_each_for_themselves(tmp_path):
    rows = [
        step(1, 0, 180), *launched("a", 0, 0, 100, 1, device=0), *launched("b", 0, 50, 100, 2, device=1),
        *launched("c", 120, 120, 30, 3, device=0), kernel("d", 170, 10, device=1),
    ]  # fmt: skip
    zero, one = load(tmp_path, rows).derived(LIMITS)
    assert (zero.device, causes(zero)) == (0, {"host_none": 20, "after_last": 30})
    assert (one.device, causes(one)) == (1, {"other": 50, "unknown": 20})


def test_no_device_gives_nothing(tmp_path):
    assert load(tmp_path, [op("aten::add", 0, 10)]).derived(LIMITS) == ()


# Windows, gaps, histogram


def test_windows_clip_gaps_and_parts_add_up(tmp_path):
    """Idle 100–150, launched at 130; the steps part at 120. The stage `gen` is the second step."""
    rows = [step(1, 0, 120), step(2, 120, 80), annotation("gen", 120, 80), *between(start=130)]
    trace, idle = only(tmp_path, rows)
    frame = frame_of(sum_idle_time_by_window(trace, idle))
    found = {
        (r["window"], None if r["step"] is None or r["step"] != r["step"] else int(r["step"]), r["cause"]): (r["gap_count"], r["idle_ns"])
        for r in frame.astype({"step": object}).where(frame["step"].notna() | True).to_dict("records")
    }  # fmt: skip
    by = {(w, c): sum(v[1] for (a, _, b), v in found.items() if (a, b) == (w, c)) for w, _, c in found}
    assert by == {
        ("capture", "host_none"): 30_000, ("capture", "kernel_wait"): 20_000,
        ("step", "host_none"): 30_000, ("step", "kernel_wait"): 20_000,
        ("stage", "host_none"): 10_000, ("stage", "kernel_wait"): 20_000,
    }  # fmt: skip
    assert set(frame["gap_count"]) == {1}


def test_the_longest_gaps_say_what_was_before_after_and_on_the_host(tmp_path):
    """The wait for the launch is 100–180, halfway the host is in `aten::sort`."""
    rows = [step(4, 0, 300), annotation("gen", 0, 300), *between(op("aten::sort", 110, 60), start=180, at=190)]  # fmt: skip
    trace, idle = only(tmp_path, rows)
    first = frame_of(list_longest_gaps(trace, [idle], [find_main_causes(idle)])).iloc[0]
    assert (first["dur_ns"], first["cause"], first["cause_ns"]) == (90_000, "host_op", 60_000)
    assert (first["before"], first["after"], first["host"]) == ("a", "b", "aten::sort")
    assert (first["step"], first["stage"]) == (4, "gen")


def test_a_late_start_shows_the_call_that_the_host_was_in_meanwhile(tmp_path):
    """Launched at 100 by a copy call that takes until 900; the copy begins at 890."""
    rows = [*launched("a", 0, 0, 100, 1), launch(100, 2, 800, name="hipMemcpyWithStream")]
    rows += [memcpy("CopyHostToDevice", 890, 10, 8, 2)]
    trace, idle = only(tmp_path, rows)
    first = frame_of(list_longest_gaps(trace, [idle], [find_main_causes(idle)])).iloc[0]
    assert (first["cause"], first["host"]) == ("other", "hipMemcpyWithStream")


def test_gaps_are_counted_by_powers_of_two(tmp_path):
    """Gaps of 1024 ns are 1.024 µs: of 1, 2 and 2 µs, the last two in [1024, 2048) ns; 1 µs is below."""
    rows = [kernel("k", 0, 10), kernel("k", 11, 9), kernel("k", 22, 8), kernel("k", 32, 8)]
    _, idle = only(tmp_path, rows)
    found = frame_of(make_gap_histogram(idle, find_main_causes(idle)[0]))
    assert found[["cause", "low_ns", "gap_count", "idle_ns"]].to_numpy().tolist() == [
        ["unknown", 512, 1, 1000],
        ["unknown", 1024, 2, 4000],
    ]


# Any trace

TIMES, LENGTHS = st.integers(0, 60), st.integers(0, 25)
ROWS = st.lists(
    st.one_of(
        st.builds(step, st.integers(0, 2), TIMES, LENGTHS),
        st.builds(annotation, st.sampled_from(("gen", "ref", "gc", "enumerate(DataLoader)#a")), TIMES, LENGTHS),
        st.builds(op, st.sampled_from(("a", "b")), TIMES, LENGTHS),
        st.builds(launch, TIMES, st.integers(1, 4), LENGTHS),
        st.builds(sync, TIMES, st.integers(5, 9), LENGTHS),
        st.builds(stream_wait, TIMES, st.sampled_from((7, 9))),
        st.builds(kernel, st.sampled_from(("k", "l")), TIMES, LENGTHS, st.sampled_from((None, 1, 2, 3, 4)),
                  st.integers(0, 1), st.sampled_from((7, 9))),
    ),
    min_size=1, max_size=16,
)  # fmt: skip


def tables(trace, limits):
    """Everything that is told of a trace, times counted from its first one."""
    devices = trace.derived(limits)
    starts = [frame["ts_ns"].min() for frame in trace.tables.values() if "ts_ns" in frame and len(frame)]
    zero = min(map(int, starts), default=0)
    found = []
    for idle in devices:
        gaps = frame_of(list_longest_gaps(trace, [idle], [find_main_causes(idle)]))
        if len(gaps):
            gaps["ts_ns"] -= zero
            gaps = gaps.drop(columns="host")  # of two that begin and end together either may be inside
        frames = (
            frame_of(sum_idle_time_by_window(trace, idle)), frame_of(make_gap_histogram(idle, find_main_causes(idle)[0])), gaps, frame_of(measure_launch_delays(trace, idle)),
            frame_of(measure_launch_queues(trace, idle)), frame_of(measure_stage_edges(trace, idle, find_sync_stalls(trace, idle).after)),
        )  # fmt: skip
        sums = find_sync_stalls(trace, idle)
        told = [sorted(map(str, frame.to_dict("records"))) for frame in frames]
        found.append((idle.device, int(sums.idle_ns.sum()), len(sums.row), *told))
    return found


def _shares_are_parts_of_their_gaps(idle):
    lengths = (idle.gaps.end - idle.gaps.start).tolist()
    share_of = {name: [0] * len(lengths) for name in CAUSES}
    for name, shares in idle.shares.items():
        assert (shares.ns > 0).all()
        assert (np.diff(shares.gap) > 0).all()
        for gap, ns in zip(shares.gap.tolist(), shares.ns.tolist(), strict=True):
            share_of[name][gap] = ns
    of_gaps = list(zip(*share_of.values(), strict=True))
    assert [sum(parts) for parts in of_gaps] == lengths
    largest = [max(parts) for parts in of_gaps]
    causes_of, longest_ns = find_main_causes(idle)
    assert longest_ns.tolist() == largest
    assert causes_of.tolist() == [parts.index(max(parts)) for parts in of_gaps]


RAN_AHEAD = [step(0, 0, 0), step(0, 0, 1), kernel("k", 0, 0), kernel("k", 0, 2, device=1)]


@settings(max_examples=15, deadline=None)
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 10**6))
@example(RAN_AHEAD, Random(0), 0)
def test_the_parts_add_up_and_neither_order_nor_clock_matter(tmp_path_factory, rows, random, shift):
    folder = tmp_path_factory.mktemp("t")
    trace = load(folder, rows)
    limits = IdleTime(kernel_wait_ns=3_000, silence_ns=8_000)
    devices = trace.derived(limits)
    ops = trace.get_or_empty("device_ops")
    moved_windows = trace.derived(align_windows_to_device)
    windows_of = {"step": moved_windows.step_rows, "stage": moved_windows.outer_ranges}
    for idle in devices:
        assert sum(part.total for part in idle.causes.values()) == idle.gaps.total
        _shares_are_parts_of_their_gaps(idle)
        chosen = ops["device"].isna() if idle.device is None else ops["device"] == idle.device
        mine = ops[chosen.fillna(value=False)]
        state = compute_busy_intervals(*columns_of(mine[["ts_ns", "dur_ns", "kind"]]).arrays.values())
        told = frame_of(sum_idle_time_by_window(trace, idle))
        for window, spans in windows_of.items():
            parts = break_down_device_windows(state, spans.ts_ns, spans.end_ns)
            assert told["idle_ns"][told["window"] == window].sum() == parts["idle_ns"].sum()
        cost = find_sync_stalls(trace, idle)
        assert (cost.idle_ns >= 0).all()
        assert int(cost.idle_ns.sum()) <= cost.after.total <= idle.gaps.total
        assert int(frame_of(make_gap_histogram(idle, find_main_causes(idle)[0]))["idle_ns"].sum()) == int(told["idle_ns"][told["window"] == "capture"].sum())  # fmt: skip
        edge = frame_of(measure_stage_edges(trace, idle, cost.after))
        assert (edge["idle_ns"] <= edge["edge_ns"]).all()
        assert (edge["explained_ns"] + edge["after_sync_ns"] <= edge["idle_ns"]).all()
        assert (edge["explained_ns"] + edge["host_ns"] <= edge["idle_ns"]).all()
        assert set(idle.causes) == set(CAUSES)
        assert np.all(idle.gaps.end > idle.gaps.start)
    moved = [row | {"ts": row["ts"] + shift} for row in rows]
    random.shuffle(moved)
    assert tables(load(folder, moved), limits) == tables(trace, limits)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 9)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=30),
    st.sampled_from([1, 2**58]),
)
def test_the_latest_time_of_a_group_before_a_limit_is_found_however_far_times_lie_apart(times, asked, unit):
    group, ts = np.array(times, np.int64).T
    wanted, limit = np.array(asked, np.int64).T
    found = _find_latest_time_before(group, ts * unit, wanted, limit * unit)
    for number, until, latest in zip(wanted.tolist(), limit.tolist(), found.tolist(), strict=True):
        earlier = [t * unit for g, t in times if g == number and t < until]
        assert latest == max(earlier, default=np.iinfo(np.int64).min)
