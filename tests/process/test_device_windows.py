"""Windows of a host that runs ahead, moved to its device work: numbers worked by hand."""

from chrome_builder import annotation, launched, step
from process.idle_traces import load

from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.steps.windows import find_steps_and_stages


def bounds(spans):
    """Start and end of windows in µs after the first row of the trace."""
    begin = spans.ts_ns - spans.ts_ns[0]
    return list(zip((begin // 1000).tolist(), ((begin + spans.dur_ns) // 1000).tolist(), strict=True))


def queued_steps(host_ends, works):
    """Steps of two stages that follow one another on the host; `fwd` launches half of the work at 1, `bwd` the rest in the middle."""
    rows, begin, free = [], 0, 0
    for number, (end, work) in enumerate(zip(host_ends, works, strict=True), 1):
        middle = begin + 4
        rows += [step(number, begin, end - begin)]
        rows += [annotation("fwd", begin, 4), annotation("bwd", middle, end - middle)]
        for place, at in enumerate((begin + 1, middle + 1)):
            start = max(free, at + 1)
            rows += launched("gemm", at, start, work // 2, 10 * number + place)
            free = start + work // 2
        begin = end
    return rows


def test_a_window_of_a_host_that_runs_ahead_lasts_until_its_own_work_is_done(tmp_path):
    """Four steps are launched in 30 µs, 100 µs of work each from 2 on; the host waits in the fourth, until 410.

    Work is done at 52, 102 | 152, 202 | 252, 302 | 352, 402.
    """
    trace = load(tmp_path, queued_steps([10, 20, 30, 410], [100] * 4))
    on_device = trace.derived(align_windows_to_device)
    assert bounds(on_device.step_rows) == [(0, 102), (102, 202), (202, 302), (302, 410)]
    assert bounds(on_device.outer_ranges) == [
        (0, 52), (52, 102), (102, 152), (152, 202), (202, 252), (252, 302), (302, 352), (352, 410),
    ]  # fmt: skip
    assert on_device.step_rows.step.values.tolist() == [1, 2, 3, 4]


def test_windows_stay_with_a_host_that_waits_in_most_steps(tmp_path):
    """The first of five steps ends before its work, which is done at 102 in the second; the others wait for theirs."""
    ends = [10, 210, 320, 430, 540]
    trace = load(tmp_path, queued_steps(ends, [100] * 5))
    on_device, on_host = (trace.derived(align_windows_to_device), trace.derived(find_steps_and_stages))
    expected = list(zip([0, *ends[:-1]], ends, strict=True))
    assert bounds(on_device.step_rows) == bounds(on_host.step_rows) == expected
    assert bounds(on_device.stage_rows) == bounds(on_host.stage_rows)


def test_a_stage_without_work_that_the_device_has_yet_to_reach_takes_no_time(tmp_path):
    """`log` launches nothing from 9 to 10, while work is left until 102: the device is never in it."""
    rows = queued_steps([10, 20, 30, 410], [100] * 4)
    stages = load(tmp_path, [*rows, annotation("log", 9, 1)]).derived(align_windows_to_device).stage_rows
    names = [stages.stage.texts[code] for code in stages.stage.codes.tolist()]
    assert bounds(stages)[names.index("log")] == (102, 102)
