"""Hand-made runs, each predicted right by one rule about who waits for whom, and what switches that rule off.

A case gives predicted times in µs. `launch latency` is 3 µs in all of them, and a gap of a stream 1 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from chrome_builder import annotation, kernel, launch, memcpy, op, step
from process.collective_traces import RUNLOOP, gloo
from replay.graphs import collective_name, issue, meet, replay_rows, runtime, shorten

from tracekit.replay import edges, job_graph, process_graph, same_place_waits
from tracekit.replay.edges import KINDS
from tracekit.replay.process_parts import call_waits, device_ops, hand_overs, host_threads
from tracekit.replay.process_parts.recorded_waits import RecordedWaits

TO_HOST = "Memcpy DtoH (Device -> Pinned)"
NCCL = collective_name()


class RuleCase(NamedTuple):
    """A case: predicted times, those expected, and functions that each switch the rule off."""

    predict: Callable[[Any], Any]
    expected: Any
    switches: tuple[Callable[[Any], None], ...]


CASES: dict[str, RuleCase] = {}


def rule_case(name, expected, *switches):
    """Register a case under the name of its rule."""

    def register(predict):
        CASES[name] = RuleCase(predict, expected, switches)
        return predict

    return register


def replaced(module, name, value):
    """A switch that puts something else in the place of a function or limit."""
    return lambda patch: patch.setattr(module, name, value)


def without_edges(kind):
    """A switch that leaves out all edges of a kind."""

    def switch(patch):
        add = edges.EdgeList.add

        def filtered(self, source, target, weight, kinds, owner=-1, *, inferred=False):
            if np.ndim(kinds) or kinds != KINDS.index(kind):
                add(self, source, target, weight, kinds, owner, inferred=inferred)

        patch.setattr(edges.EdgeList, "add", filtered)

    return switch


def nobody(*arguments, **named):
    """Find nothing, and change nothing."""


def no_op(ops, *arguments):
    return np.full(len(ops), -1, np.int64)


def ignore_launches(ops, ready, asked):
    """Find awaited ops without asking which was launched first."""
    return _find_awaited_ops(replace(ops, call_begin=np.full(len(ops), -1, np.int32)), ready, asked)


_find_awaited_ops = device_ops._find_awaited_ops


def never_refute(places, ops, place, target):
    """Pretend that each op starts after the collective at its place."""
    return np.maximum(_measure_lags(places, ops, place, target), 0)


_measure_lags = same_place_waits._measure_lags


def record_latency(threads, ops):
    """Take the recorded time from launch to start for the latency."""
    launching = _measure_launching(threads, ops)
    launching.typical_ns = np.where(ops.is_launched, ops.start - launching.from_ns, 0)
    return launching


_measure_launching = device_ops._measure_launching


def record_gap(ops, before, launching, overlaps):
    """Take the recorded gap for the usual one."""
    return np.where(ops.previous >= 0, ops.start - before, 0)


def aten(name, ts, dur, tid=100):
    """An op of the host without rows inside."""
    return op(name, ts, dur, tid=tid)


def faster_host(name, factor=0.0):
    """The change that shortens a row of the host."""
    return {"do": "scale", "on": "host", "row": f"^{name}$", "factor": factor}


# Launches and streams


@rule_case(
    "the latency of a launch is the usual one", (17, 27), replaced(device_ops, "_measure_launching", record_latency)
)
def latency(folder):
    """`a` lasts 5 and not 50 µs and ends at 12; `b`, launched until 14, starts at 17: recorded were 44 µs of latency."""
    rows = [
        *issue("a", 0, 7, 50, 1),
        *issue("b", 10, 58, 10, 2),
        *issue("c", 200, 207, 5, 3),
        *issue("d", 300, 307, 5, 4),
    ]
    after = replay_rows(folder, rows).after(shorten("a", 0.1))
    return after.start("b"), after.end("b")


@rule_case(
    "a launch that returns after the start counts from its begin",
    28,
    replaced(device_ops, "_measure_launching", record_latency),
)
def latency_inside(folder):
    """Work of graph launches starts 8 µs after their begin. `a` ends at 9 instead of 57, and `b`, launched at 20, starts at 28."""
    call = "cudaGraphLaunch"
    rows = [runtime(call, 0, 20, 1), kernel("a", 8, 49, 1), runtime(call, 20, 60, 2), kernel("b", 58, 30, 2)]
    rows += [runtime(call, 100, 20, 3), kernel("c", 108, 20, 3), runtime(call, 200, 20, 4), kernel("d", 208, 20, 4)]
    return replay_rows(folder, rows).after(shorten("a", 1 / 49)).start("b")


@rule_case("work of a stream follows with the usual gap", 69, replaced(device_ops, "_measure_typical_gaps", record_gap))
def stream_gap(folder):
    """The host sleeps 186 µs less and launches `c` until 18; `b` ends at 68, and the usual gap is 1, not 139 µs."""
    rows = [*issue("a", 0, 7, 50, 1), *issue("b", 10, 58, 10, 2), aten("sleep", 14, 186), *issue("c", 200, 207, 5, 3)]
    return replay_rows(folder, rows).after(faster_host("sleep")).start("c")


@rule_case(
    "an op waits for work of another stream that ends just before it",
    59,
    replaced(device_ops, "_find_awaited_ops", no_op),
)
def stream_wait(folder):
    """`x` starts 2 µs after `a`, which ends at 57 instead of 107."""
    rows = [*issue("a", 0, 7, 100, 1), *issue("x", 10, 109, 10, 2, stream=9)]
    return replay_rows(folder, rows).after(shorten("a")).start("x")


@rule_case(
    "an op does not wait for work that was launched after it",
    (109, 0),
    replaced(device_ops, "_find_awaited_ops", ignore_launches),
)
def later_launch(folder):
    """`a` was launched at 20, `x` at 10: the end of `a` has nothing to do with the start of `x` at 109."""
    rows = [*issue("x", 10, 109, 10, 2, stream=9), *issue("a", 20, 27, 80, 1)]
    job = replay_rows(folder, rows)
    return job.after(shorten("a")).start("x"), job.count_edges("stream wait")


@rule_case("overlapping work of a stream keeps the distance of its starts", (55.5, 98.5), without_edges("overlap"))
def overlap(folder):
    """`a` waits for `x`, which ends at 53.5 instead of 100; `b` starts 43 µs after `a` and before its end."""
    rows = [*issue("x", 0, 7, 93, 1, stream=9), *issue("a", 8, 102, 50, 2), *issue("b", 16, 145, 30, 3)]
    after = replay_rows(folder, rows).after(shorten("x"))
    return after.start("a"), after.start("b")


# Waits at the same place


def steps_with_collectives(*steps):
    """Steps of 1 ms: `k` of a length, a collective at a time of a length, and `z` launched at a time that starts then."""
    rows = []
    for number, (k_us, (at, start, dur), (z_at, z_start)) in enumerate(steps):
        base, link = 1_000 * number, 10 * number + 1
        rows += [step(number + 1, base, 990), annotation("update", base + 5, 900)]
        rows += issue("k", base + 10, base + 17, k_us, link)
        rows += meet(base + at, base + start, dur, link + 1, number + 1, ranks=(0,))
        rows += issue("z", base + z_at, base + z_start, 20, link + 2)
    return rows


WAITS = (20, (20, 40, 200), (30, 243))
"""The collective starts 3 µs after `k`, and `z` 3 µs after the collective: both waited."""


def longer_collective(factor, number):
    return {"do": "scale", "on": "collective", "step": number, "factor": factor}


@rule_case(
    "what waited for a collective in one step waits for it in the others", 1441,
    replaced(same_place_waits, "_add_waits_for_collectives", lambda *_: None),
)  # fmt: skip
def same_place(folder):
    """In step 2 the collective ended at 1140, long before `z` at 1307. Four times as long it ends at 1440, and `z` waits."""
    rows = steps_with_collectives(WAITS, (20, (20, 40, 100), (300, 307)))
    return replay_rows(folder, rows).after(longer_collective(4, 2)).start("z", nth=1)


@rule_case(
    "a step that did not wait refutes the wait at its place", 1307,
    replaced(same_place_waits, "_measure_lags", never_refute),
)  # fmt: skip
def same_place_refuted(folder):
    """In step 3 `z` ran beside the collective: nothing waits for it at this place, and `z` of step 2 stays."""
    rows = steps_with_collectives(WAITS, (20, (20, 40, 100), (300, 307)), (20, (20, 40, 400), (30, 38)))
    return replay_rows(folder, rows).after(longer_collective(4, 2)).start("z", nth=1)


SLOW_LAUNCH = (10, (200, 207, 50), (400, 407))
"""`k` ended at 27, long before the collective was launched: whether that waits for it is not to be seen."""
BESIDE = (100, (20, 27, 50), (400, 407))
"""The collective ran beside `k`, which was launched before it."""


def longer_kernel(factor, number):
    return {"do": "scale", "on": "device", "op": "^k$", "step": number, "factor": factor}


@rule_case(
    "a collective waits for the compute launched before it", 1318.5,
    replaced(same_place_waits, "_add_waits_for_compute", lambda *_: None),
)  # fmt: skip
def input_wait(folder):
    """`k` of step 2 lasts 300 µs and ends at 1317; the collective, launched until 1204, starts 1.5 µs later."""
    rows = steps_with_collectives(WAITS, SLOW_LAUNCH)
    return replay_rows(folder, rows).after(longer_kernel(30, 2)).start(NCCL, nth=1)


@rule_case(
    "one collective beside compute refutes the wait of its class", 1207,
    replaced(same_place_waits, "_classify", lambda graph, rows, kinds: np.arange(len(rows))),
)  # fmt: skip
def input_wait_refuted(folder):
    """In step 3 the same collective ran beside `k`: it waits for compute in no step."""
    rows = steps_with_collectives(WAITS, SLOW_LAUNCH, BESIDE)
    return replay_rows(folder, rows).after(longer_kernel(30, 2)).start(NCCL, nth=1)


# Calls that wait


def copy_call(ts, dur, correlation):
    return runtime("cudaMemcpyAsync", ts, dur, correlation)


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


@rule_case("a copy that blocks returns after its op", (65, 82), replaced(call_waits, "_find_blocking_copies", nobody))
def blocking_copy(folder):
    """The copy ends at 60 instead of 105; the call returns 5 µs after it, and `k` follows 17 µs after the return."""
    rows = [copy_call(10, 100, 1), memcpy(PAGEABLE, 15, 90, 4096, 1), *issue("k", 120, 127, 5, 2)]
    after = replay_rows(folder, rows).after(shorten(r"Memcpy.*"))
    return after.host(110), after.start("k")


def block_on_own_op(calls, ops, awaited):
    """Let every long call wait for what it launched."""
    own = np.flatnonzero(calls.op >= 0)
    awaited[own] = calls.op[own]


@rule_case(
    "a call whose copy starts after it does not block", (40, 57, 0),
    replaced(call_waits, "_find_blocking_copies", block_on_own_op),
)  # fmt: skip
def copy_after_call(folder):
    """The call lasts 30 µs, its copy runs from 41 to 45. Ten times as long, the copy holds up nobody, and the time of the call is its own."""
    rows = [copy_call(10, 30, 1), memcpy(PAGEABLE, 41, 4, 4096, 1), *issue("k", 50, 57, 5, 2)]
    job = replay_rows(folder, rows)
    after = job.after(shorten(r"Memcpy.*", 10))
    return after.host(40), after.start("k"), job.unexplained()


OTHERS = [*issue("o", 200, 207, 20, 21), *issue("p", 210, 228, 20, 22), *issue("q", 220, 249, 20, 23)]


@rule_case("a launch does not wait for its kernel", 60, replaced(call_waits, "_blocks_launches", lambda _: True))
def slow_launch(folder):
    """One launch takes 50 µs, and its kernel ran within them; the others return before their kernels start."""
    rows = [launch(10, 1, dur=50), kernel("k", 15, 35, 1), *OTHERS]
    return replay_rows(folder, rows).after(shorten("k", 3)).host(60)


@rule_case(
    "launches wait for their kernels where most return after them", (40, 80),
    replaced(call_waits, "_blocks_launches", lambda _: False),
)  # fmt: skip
def blocking_launches(folder):
    """As with CUDA_LAUNCH_BLOCKING: kernels end at 35 and 75 instead of 55 and 115; each launch returns 5 µs later."""
    rows = [launch(10, 1, dur=50), kernel("k", 15, 40, 1), launch(70, 2, dur=50), kernel("k", 75, 40, 2)]
    after = replay_rows(folder, rows).after(shorten("k"))
    return after.host(60), after.host(120)


@rule_case(
    "a stream synchronization after a copy waits for the copy", 65,
    replaced(call_waits, "AT_ONCE_NS", 0), replaced(call_waits, "_find_streams", nobody),
)  # fmt: skip
def synchronize_copy(folder):
    """`k` ends at 57, the copy at 60, and the call returns 5 µs later. `y` of another stream, until 112, is not awaited."""
    rows = [*issue("k", 0, 7, 100, 1), *issue("y", 5, 12, 100, 2, stream=9), copy_call(10, 4, 3)]
    rows += [memcpy(TO_HOST, 108, 2, 4, 3, stream=7), runtime("cudaStreamSynchronize", 16, 99, 4)]
    return replay_rows(folder, rows).after(shorten("k")).host(115)


@rule_case(
    "a stream synchronization waits for the last work that ends before its return",
    60,
    replaced(call_waits, "_find_streams", nobody),
)
def synchronize_stream(folder):
    """`k` ends at 57 instead of 107, and the call returns 3 µs later."""
    rows = [*issue("k", 0, 7, 100, 1), *issue("y", 5, 12, 8, 2, stream=9), runtime("cudaStreamSynchronize", 20, 90, 3)]
    return replay_rows(folder, rows).after(shorten("k")).host(110)


def recorded_wait(ts, dur, correlation, stream, name="Stream Sync", **event):
    return {
        "ph": "X", "cat": "cuda_sync", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": stream, "correlation": correlation, **event},
    }  # fmt: skip


def recorded_event(on_stream, record):
    """The arguments of a record about an event, which a call recorded on a stream."""
    return {"wait_on_stream": on_stream, "wait_on_cuda_event_record_corr_id": record}


def without_records(patch):
    """A switch that ignores what the profiler recorded of waits."""
    none = np.empty(0, np.int64)
    no_waits = RecordedWaits(none, none, none, none, is_complete=False)
    patch.setattr(process_graph, "read_recorded_waits", lambda *_: no_waits)
    patch.setattr(call_waits, "_look_up_streams", lambda trace, rows, ops: np.full(len(rows), -1, np.int64))


@rule_case(
    "a synchronization waits for the stream that its record names", (109, 64), without_records,
)  # fmt: skip
def synchronize_recorded(folder):
    """The record names stream 9: the call returns 5 µs after `y`, whether `k` of stream 7 ends at 107 or at 57."""
    rows = [*issue("k", 0, 7, 100, 1), *issue("y", 5, 14, 90, 2, stream=9)]
    rows += [runtime("cudaStreamSynchronize", 20, 89, 3), recorded_wait(20, 89, 3, 9)]
    job = replay_rows(folder, rows)
    return job.after(shorten("k")).host(109), job.after(shorten("y")).host(109)


@rule_case("a call waits for the event that its record names", (110, 60), without_records)
def synchronize_recorded_event(folder):
    """The event of the call was recorded after `k`; the copy to the host ends nearer to the return, 2 µs before it.

    With half of the copy the call still returns 3 µs after `k`, and with half of `k` 3 µs after that.
    """
    rows = [*issue("k", 0, 7, 100, 1), runtime("cudaEventRecord", 6, 2, 2)]
    rows += [copy_call(10, 4, 3), memcpy(TO_HOST, 88, 20, 4, 3, stream=9)]
    rows += [
        runtime("cudaEventSynchronize", 20, 90, 4),
        recorded_wait(20, 90, 4, -1, "Event Sync", **recorded_event(7, 2)),
    ]
    job = replay_rows(folder, rows)
    return job.after(shorten("Memcpy.*")).host(110), job.after(shorten("k")).host(110)


@rule_case("a recorded wait between streams holds where it did not decide", 208, without_records)
def recorded_stream_wait(folder):
    """`y` of stream 9 begins at 117, after its launch at 110; it waits for `k`, which ended at 107 and ends at 207 once it is longer."""
    rows = [*issue("k", 0, 7, 100, 1), runtime("cudaEventRecord", 6, 2, 2), runtime("cudaStreamWaitEvent", 9, 2, 3)]
    rows += [
        recorded_wait(9, 2, 3, 9, "Stream Wait Event", **recorded_event(7, 2)),
        *issue("y", 110, 117, 20, 4, stream=9),
    ]
    return replay_rows(folder, rows).after({"do": "scale", "on": "device", "op": "^k$", "factor": 2}).start("y")


@rule_case(
    "a long synchronization may return late", (5_107, 10_147),
    replaced(call_waits, "LATE_SHARE", 0.0), replaced(call_waits, "LATE_SHARE", 1e9),
)  # fmt: skip
def synchronize_late(folder):
    """`k` ends at 10,007 or 5,007, and the call of 10 ms returns 100 µs later.

    A call of 127 µs that returns 40 µs after `k` did something else, too: it takes as long with half of `k`.
    """
    long = [*issue("k", 0, 7, 10_000, 1), runtime("cudaStreamSynchronize", 20, 10_087, 2)]
    late = replay_rows(folder, long).after(shorten("k")).host(10_107)
    short = [*issue("k", 10_000, 10_007, 100, 1), runtime("cudaStreamSynchronize", 10_020, 127, 2)]
    return late, replay_rows(folder, short).after(shorten("k")).host(10_147)


def launched_only(self, op, ts_ns):
    """Mark only ops whose launch is recorded."""
    return self.is_launched[op] & (self.launch_ns[op] < ts_ns)


@rule_case(
    "work of a recorded stream may seem to end after the wait for it",
    (102, 202),
    replaced(call_waits, "SKEW_SHARE", 0.0),
)
def synchronize_skewed(folder):
    """`k` ends at 207 or 107 on a clock that is 5 µs ahead. Without a record of the stream nothing relates the two."""
    rows = [*issue("k", 0, 7, 200, 1), runtime("cudaStreamSynchronize", 20, 182, 2)]
    named = replay_rows(folder, [*rows, recorded_wait(20, 182, 2, 7)]).after(shorten("k")).host(202)
    return named, replay_rows(folder, rows).after(shorten("k")).host(202)


@rule_case(
    "a device synchronization waits for work without a launch", (60, 110),
    replaced(call_waits._Launched, "mark_launched_before", launched_only),
    replaced(call_waits._Launched, "mark_launched_before", lambda self, op, ts_ns: np.ones(len(op), np.bool_)),
)  # fmt: skip
def synchronize_unlaunched(folder):
    """`k`, launched before the recording, ends at 107 or 57: the call returns 3 µs later.

    A `late`, launched by another thread during the call, is not awaited, though it ends with it.
    """
    rows = [kernel("k", 7, 100), *issue("y", 5, 12, 8, 2, stream=9), runtime("cudaDeviceSynchronize", 20, 90, 3)]
    alone = replay_rows(folder, rows).after(shorten("k")).host(110)
    late = [*issue("k", 0, 7, 8, 1), *issue("late", 30, 37, 70, 2, tid=101, stream=9)]
    job = replay_rows(folder, [*late, runtime("cudaDeviceSynchronize", 20, 90, 3)])
    return alone, job.after(shorten("late")).host(110)


@rule_case(
    "a device synchronization waits for all work launched before", 60, replaced(call_waits, "_find_device", nobody)
)
def synchronize_device(folder):
    rows = [*issue("k", 0, 7, 100, 1), *issue("y", 5, 12, 8, 2, stream=9), runtime("cudaDeviceSynchronize", 20, 90, 3)]
    return replay_rows(folder, rows).after(shorten("k")).host(110)


@rule_case("a free of memory takes its own time after the work", 260, replaced(call_waits, "_find_device", nobody))
def free_memory(folder):
    """`k` ends at 57 instead of 107; cudaFree takes 203 µs after that."""
    rows = [*issue("k", 0, 7, 100, 1), runtime("cudaFree", 20, 290, 2)]
    return replay_rows(folder, rows).after(shorten("k")).host(310)


@rule_case(
    "an event wait ends with a copy to the host", 62,
    replaced(call_waits, "mark_copies_to_host", lambda ops: np.zeros(len(ops), np.bool_)),
    replaced(call_waits, "_find_events", nobody),
)  # fmt: skip
def wait_for_event(folder):
    """The copy ends at 57 instead of 107, and the call returns 5 µs later; `z`, which ended at 109, is not awaited."""
    rows = [copy_call(0, 4, 1), memcpy(TO_HOST, 7, 100, 4, 1), *issue("z", 8, 15, 94, 2)]
    rows += [runtime("cudaEventSynchronize", 20, 92, 3)]
    return replay_rows(folder, rows).after(shorten(r"Memcpy.*")).host(112)


LAST_BUT_ONE = "Memcpy DtoH (Device -> Pageable)"


@rule_case(
    "an event that had happened is that of the same copy as in the calls that waited",
    372,
    replaced(call_waits, "_find_events", nobody),
)
def event_of_past(folder):
    """Calls waited for the last copy but one. In the last iteration that had ended at 168; until 368, it is awaited."""
    rows = []
    for number, (at, start, call) in enumerate(
        ((0, 7, None), (20, 61, (32, 31)), (70, 115, (82, 35)), (300, 307, (312, 2)))
    ):
        link = 3 * number + 1
        rows += [*issue("k", at, start, 50, link), copy_call(at + 6, 4, link + 1)]
        rows += [memcpy(LAST_BUT_ONE if number == 2 else TO_HOST, start + 51, 2, 4, link + 1, stream=7)]
        rows += [runtime("cudaEventSynchronize", *call, link + 2)] if call else []
    return replay_rows(folder, [*rows, aten("mul", 120, 180)]).after(shorten(r".*Pageable.*", 101)).host(314)


@rule_case(
    "an event wait is not for a copy that still ran when others like it returned",
    153,
    replaced(call_waits, "CHANCE", 1.0),
)
def event_not_of_own_copy(folder):
    """Copies end at 52 and 152, in calls that last 3 µs, but at 252 after the return at 243: each call waits for the copy before.

    With kernels of 120 µs the first copy ends at about 132, and the second call, from 150 on, still does not wait.
    """
    rows = []
    for number, at in enumerate((50, 150, 240)):
        base, link = 100 * number, 3 * number + 1
        rows += [*issue("k", base, base + 7, 40, link), copy_call(base + 30, 4, link + 1)]
        rows += [memcpy(TO_HOST, base + 48, 4, 4, link + 1, stream=7), runtime("cudaEventSynchronize", at, 3, link + 2)]
    return replay_rows(folder, rows).after(shorten("k", 3)).host(153)


@rule_case(
    "a launch waits while 1,024 others are under way", 2_504.5, replaced(call_waits, "_add_launch_queue", nobody)
)
def launch_queue(folder):
    """The first kernel lasts until 5,000. The 1,025th launch returned 1 µs later; the kernel now ends at 2,503.5."""
    rows = [*issue("long", 0, 7, 4_993, 1)]
    for number in range(1, 1_024):
        rows += [launch(3 + 2 * number, number + 1, dur=1), kernel("short", 4_999 + 2 * number, 1, number + 1)]
    rows += [launch(2_051, 1_025, dur=2_950), kernel("last", 7_050, 1, 1_025)]
    return replay_rows(folder, rows).after(shorten("long")).host(5_001)


@rule_case(
    "the length of the launch queue is measured where launches wait for it", (600, True),
    replaced(call_waits, "_measure_queue", lambda *_: np.empty(0, np.int64)),
)  # fmt: skip
def measured_queue(folder):
    """Kernels end every 11 µs. From launch 733 on each returns 1 µs after the end of the kernel 600 launches before."""
    rows, at = [], 0
    for number in range(900):
        until = at + 1 if number < 733 else 17 + 11 * (number - 600) + 1
        rows += [launch(at, number + 1, dur=until - at), kernel("k", 7 + 11 * number, 10, number + 1)]
        at = 2 * number + 2 if number < 732 else until
    waits = replay_rows(folder, rows).job.processes[0].waits
    return waits.queue, waits.queue_is_measured


# Threads


@rule_case(
    "a thread goes on when the one that it waits for falls silent",
    (205, 210, 230),
    replaced(process_graph, "add_hand_overs", lambda *_: 0),
)
def hand_over(folder):
    """The backward thread works until 205 instead of 305, and the main thread goes on 5 µs later."""
    rows = [aten("forward", 0, 100), aten("backward", 105, 200, tid=101), aten("optimizer", 310, 20)]
    after = replay_rows(folder, rows).after(faster_host("backward", 0.5))
    return after.host(305, thread=1), after.host(310), after.host(330)


@rule_case(
    "a range around a silence does not make it work", (205, 210),
    replaced(host_threads, "_mark_quiet_paths", lambda rows, running: np.zeros(len(running), np.bool_)),
)  # fmt: skip
def hand_over_in_range(folder):
    """The main thread is in `update_actor` all the time; it goes on 5 µs after the backward thread, as without the range."""
    rows = [annotation("update_actor", 0, 400), aten("forward", 0, 100), aten("backward", 105, 200, tid=101)]
    after = replay_rows(folder, [*rows, aten("optimizer", 310, 20)]).after(faster_host("backward", 0.5))
    return after.host(305, thread=1), after.host(310)


@rule_case(
    "a loader works, though nothing inside it says so", (205, 310), replaced(host_threads, "NAMES_OF_WORK", ("gloo:",))
)
def loader_works(folder):
    """The range of the loader ends at 310, 5 µs after another thread fell silent: that is by chance."""
    rows = [aten("forward", 0, 100), annotation("enumerate(DataLoader)#x", 100, 210), aten("pin", 105, 200, tid=101)]
    after = replay_rows(folder, [*rows, aten("optimizer", 310, 20)]).after(faster_host("pin", 0.5))
    return after.host(305, thread=1), after.host(310)


@rule_case(
    "a silence that lasts long after another thread fell silent is not handed over", (205, 500),
    replaced(hand_overs, "LEFT_SHARE", 1.0),
)  # fmt: skip
def long_silence(folder):
    """The main thread is silent from 100 to 500, and the other one from 305 on: 195 of 400 µs are too much to explain."""
    rows = [aten("forward", 0, 100), aten("backward", 105, 200, tid=101), aten("optimizer", 500, 20)]
    after = replay_rows(folder, rows).after(faster_host("backward", 0.5))
    return after.host(305, thread=1), after.host(500)


# Ranks


def exchange(compute_us, number=1, base=0, end=None):
    """`k` of a length, a collective that waits for it, and `z` that waits for the collective."""
    start = base + 7 + compute_us + 3
    end = start + 10 if end is None else end
    rows = [
        *issue("k", base, base + 7, compute_us, 10 * number),
        *meet(base + 10, start, end - start, 10 * number + 1, number),
    ]
    return rows + issue("z", base + 20, end + 2, 5, 10 * number + 2)


@rule_case("a collective ends on all ranks when the last one has come", (80, 80, 82), without_edges("arrival"))
def late_rank(folder):
    """Rank 1 computes 60 instead of 120 µs and comes at 70; 10 µs later both ranks go on."""
    after = replay_rows(folder, exchange(20, end=140), exchange(120)).after(shorten("k", rank=1))
    return after.end(NCCL, 0), after.end(NCCL, 1), after.start("z", 0)


@rule_case("a rank that is faster than the last one brings nothing", (140, 142), without_edges("transfer"))
def early_rank(folder):
    after = replay_rows(folder, exchange(20, end=140), exchange(120)).after(shorten("k", rank=0))
    return after.end(NCCL, 0), after.start("z", 1)


def several(clock=0, *, late):
    """Three collectives in which a rank is the last or waits."""
    rows = []
    for number in (1, 2, 3):
        base = 1_000 * (number - 1)
        rows += exchange(120 if late else 20, number, base + clock, end=base + 140 + clock)
    return rows


@rule_case(
    "clocks of ranks are compared by the ends of collectives",
    (0, 80),
    replaced(job_graph, "_find_offsets", lambda _, sources: [0] * len(sources)),
)
def clocks_apart(folder):
    """The clock of rank 1 is 5 ms ahead; 60 µs less of its first kernel end the first collective at 80 on rank 0."""
    job = replay_rows(folder, several(late=False), several(5_000, late=True))
    return job.job.unmatched, job.after(shorten("k", rank=1)).end(NCCL, 0)


@rule_case(
    "ranks that do not meet do not wait for each other",
    (2, 3_035),
    replaced(job_graph, "_add_lone_collectives", lambda *_: 0),
)
def not_simultaneous(folder):
    """Rank 0 left the fourth collective before rank 1 came: it takes 10 µs there, or 5 where it is twice as fast."""
    first = [*several(late=False), *exchange(20, 4, 3_000)]
    second = [*several(late=True), *exchange(420, 4, 3_000)]
    job = replay_rows(folder, first, second)
    after = job.after({"do": "scale", "on": "collective", "rank": 0, "factor": 0.5})
    return job.job.unmatched, after.end(NCCL, 0, nth=3)


def message(kind, at, start, dur, correlation, number):
    """A message between ranks 0 and 1 and its launch."""
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    about = {
        "Collective name": kind, "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "dtype": "Float",
        "Process Group Name": "10", "Process Group Description": "pp", "Process Group Ranks": "[0, 1]", "Seq": number,
    }  # fmt: skip
    return [launch(at, correlation, dur=4), kernel(name, start, dur, correlation, stream=32, **about)]


@rule_case(
    "what one rank sends is what the other receives", (82, 252, 0),
    replaced(job_graph, "_pair_messages", lambda op, group, process, match: match),
)  # fmt: skip
def messages(folder):
    """Rank 0 sends 60 µs earlier, until 80; `m` of 90 µs, before the answer of rank 1, ends at 252 instead of 297."""
    first = [*issue("k", 0, 7, 120, 1), *message("send", 10, 130, 10, 2, 1), *message("recv", 200, 207, 103, 3, 1)]
    first += issue("y", 210, 312, 5, 4)
    second = [*message("recv", 0, 7, 133, 1, 1), *issue("z", 10, 142, 5, 2), *issue("m", 200, 207, 90, 3)]
    second += message("send", 205, 300, 10, 4, 1)
    job = replay_rows(folder, first, second)
    after = job.after(shorten("k"), shorten("m"))
    return after.start("z", 1), after.end("m", 1), job.job.unmatched


def gloo_rank(compute_us, end):
    """The main thread computes, issues a reduction, works on, waits, and optimizes; a thread of the library reduces."""
    rows = [aten("compute", 0, compute_us), aten("c10d::allreduce_", compute_us, 10), aten("log", compute_us + 10, 20)]
    rows += [gloo("all_reduce", compute_us + 15, end - compute_us - 15), aten("optimizer", end + 5, 20)]
    return rows


@rule_case(
    "the library's thread reduces once all ranks have issued", (255, 260),
    replaced(process_graph, "_add_issues", nobody), without_edges("arrival"),
    replaced(job_graph, "_free_host_meetings", lambda edges, meeting: edges),
)  # fmt: skip
def host_collective(folder):
    """Rank 1 computes 200 instead of 400 µs and comes at 215; 40 µs later the reduction ends on both."""
    job = replay_rows(folder, gloo_rank(100, 455), gloo_rank(400, 455))
    after = job.after({"do": "scale", "on": "host", "rank": 1, "row": "^compute$", "factor": 0.5})
    return after.host(455, 0, thread=1), after.host(460, 0)


@rule_case(
    "a wait ends although the library records its end later", (2_570,),
    replaced(hand_overs, "_find_late_falls", lambda threads, falls, asked: (asked[:0], asked[:0])),
)  # fmt: skip
def late_end(folder, late=60):
    """Rank 1 computes 2450 instead of 4900 µs. Rank 0 goes on `late` µs before the end of its reduction is recorded."""
    first = [aten("compute", 0, 1_000), aten("c10d::allreduce_", 1_000, 10), gloo("all_reduce", 1_015, 3_985 + late)]
    second = [aten("compute", 0, 4_900), aten("c10d::allreduce_", 4_900, 10), gloo("all_reduce", 4_915, 20)]
    first.append(aten("optimizer", 5_000, 20))
    second.append(aten("optimizer", 4_940, 20))
    job = replay_rows(folder, first, second)
    after = job.after({"do": "scale", "on": "host", "rank": 1, "row": "^compute$", "factor": 0.5})
    return (after.host(5_020, 0),)


@rule_case(
    "a wait ends although its thread recorded the end a time slice later", (2_570,),
    replaced(hand_overs, "compute_late_end_slack", lambda gap, since: ((0.05 * gap).astype(int), (0.05 * gap).astype(int))),
)  # fmt: skip
def late_slice(folder):
    """As above, 800 µs late: 20 % of the wait, which begins with the reduction."""
    return late_end(folder, late=800)


@rule_case(
    "ranks wait for each other before gloo copies what it gathered", (255, 260),
    replaced(process_graph, "_narrow_to_exchange", nobody),
)  # fmt: skip
def host_collective_with_copies(folder):
    """Views of 5 µs before the exchange and copies of 10 µs after it, on both ranks."""
    ranks = []
    for compute_us in (100, 400):
        begin = compute_us + 15
        inside = [aten("aten::view", begin + 3, 5, tid=RUNLOOP), aten("aten::copy_", 440, 10, tid=RUNLOOP)]
        ranks.append([*gloo_rank(compute_us, 455), *inside])
    job = replay_rows(folder, *ranks)
    after = job.after({"do": "scale", "on": "host", "rank": 1, "row": "^compute$", "factor": 0.5})
    return after.host(455, 0, thread=1), after.host(460, 0)
