"""One timeline of snapshots and the log: clocks, holders at lines, the state of the engine, sums."""

import random
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from memory_builder import MIB, Allocator, frame, pickled, snapshot, stack

from tracekit.analyses.memory.card_holders import list_timeline
from tracekit.job.memory.card_timeline import list_bar_parts, list_engine_states
from tracekit.job.memory.log_clock import TimedStep, add_missing_years, find_clock_offset
from tracekit.model.inputs.memory_pieces import HOLDERS
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

S, HOUR = 10**9, 3600 * 10**9
GIB = 2**30
VLLM = "/opt/vllm/v1/worker/gpu_worker.py"
WEIGHTS = [frame("create_weights", "/opt/vllm/linear.py"), frame("load_model", VLLM)]
KV = [frame("zeros", "x.cpp"), frame("initialize_from_config", VLLM)]
EIGHT = 1_788_249_600
"""2026-09-01 08:00:00 UTC, in seconds."""


def at(text):
    """The ns of a date on a clock without a zone."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * S


# the clock of the log


@pytest.mark.parametrize(
    ("first", "offset"),
    [
        ("2026-09-01T10:00:00", 2 * HOUR),
        ("2026-09-01T08:00:00", 0),
        ("2026-09-01T00:00:00", -8 * HOUR),
        ("2026-09-01T13:45:00", 5 * HOUR + 45 * 60 * S),
        ("2000-09-01T10:00:00", 2 * HOUR - (at("2026-09-01") - at("2000-09-01"))),
    ],
)
def test_the_zone_is_the_one_that_puts_the_snapshots_into_the_log(first, offset):
    """Lines of five minutes, a snapshot in their middle; a log without a year starts in 2000."""
    lines = [TimedStep(at(first) + second * S, None) for second in (0, 100, 300)]
    assert find_clock_offset(lines, [TimedStep((EIGHT + 150) * S, 1)]) == offset


def test_a_log_of_last_year_without_a_year():
    """The log is of 31 December, the snapshot of 1 January in UTC: the zone is 8 hours behind."""
    lines = [TimedStep(at("2000-12-31T20:00:00"), None), TimedStep(at("2000-12-31T20:05:00"), None)]
    offset = find_clock_offset(lines, [TimedStep(at("2027-01-01T04:01:00"), None)])
    assert at("2027-01-01T04:01:00") + offset == at("2000-12-31T20:01:00")


def test_lines_without_a_year_have_that_of_the_others():
    """vLLM prints none, the trainer does: the run begins on 31 December 2025."""
    times = [at("2000-12-31T23:59:00"), None, at("2026-01-01T00:01:00"), at("2000-01-01T00:02:00")]
    assert add_missing_years(times) == [at("2025-12-31T23:59:00"), None, times[2], at("2026-01-01T00:02:00")]
    assert add_missing_years(times[:2]) == times[:2]


def test_no_offset_without_a_zone_that_fits():
    """20 minutes from any zone."""
    lines = [TimedStep(at("2026-09-01T10:20:00"), None), TimedStep(at("2026-09-01T10:21:00"), None)]
    assert find_clock_offset(lines, [TimedStep(EIGHT * S, 1)]) is None
    assert find_clock_offset([], [TimedStep(EIGHT * S, 1)]) is None
    assert find_clock_offset(lines, []) is None


def test_steps_choose_among_zones_that_fit_a_long_log():
    """Ten hours of lines: many zones put the snapshot into them, but only one between the steps before and after."""
    begin = at("2026-09-01T06:00:00")
    untold = [TimedStep(begin + minute * 60 * S, None) for minute in range(0, 600, 5)]
    by_step = [TimedStep(ns, place) for place, (ns, _) in enumerate(untold)]
    snapshots = [TimedStep((EIGHT + 30) * S, 24 + 24)]  # step 48 begins at 10:00
    assert find_clock_offset(untold, snapshots) is None
    assert find_clock_offset(by_step, snapshots) == 2 * HOUR


# one timeline


def analyzed(folder):
    return analyze_uncached(folder, Options(jobs=1, questions=("memory-peak", "card-holders")))


def rows_of(folder):
    """The rows of the timeline, and the section."""
    report = analyzed(folder).report
    (section,) = [section for section in report.sections if section.id == "card-holders"]
    (sheet,) = section.sheets
    names = [heading.name for heading in sheet.headings]
    return [defaultdict(lambda: None, zip(names, row, strict=True)) for row in sheet.rows], section


def line_of(point, allocated, reserved, used, time=None, total=80 * GIB):
    """A line of verl; sizes in bytes."""
    sizes = [f"{size / GIB:.2f}" for size in (allocated, reserved, used, total)]
    prefix = "(WorkerDict pid=7) " + (f"INFO:2026-09-01 {time},000:" if time else "")
    return (
        f"{prefix}{point}, memory allocated (GB): {sizes[0]}, memory reserved (GB): {sizes[1]}, "
        f"device memory used/total (GB): {sizes[2]}/{sizes[3]}"
    )


def written_run(folder, lines, steps=2):
    """A trainer of 4 GiB with an engine of 6 GiB and, in each step, activations of 10 GiB for 20 seconds."""
    device = Allocator()
    device.now_us = (EIGHT - 60) * 10**6
    device.alloc(4 * GIB, stack("build"), metadata="parameter")
    device.alloc(2 * GIB, WEIGHTS, pool=(0, 1))
    device.alloc(4 * GIB, KV, pool=(0, 2))
    for step in range(1, steps + 1):
        device.clear_history()
        device.now_us = (EIGHT + 100 * step) * 10**6
        activation = device.alloc(10 * GIB, stack("forward"), metadata="activation")
        device.now_us += 20 * 10**6
        device.free(activation)
        device.empty_cache()
        where = folder / f"step{step}"
        where.mkdir(parents=True)
        (where / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(device)))
    (folder / "train.log").write_text("".join(f"{line}\n" for line in lines))
    return folder


LINES = [
    "INFO 09-01 10:01:30 [cumem.py:205] CuMemAllocator: sleep freed 6.00 GiB memory in total",
    line_of("After rollout offload", 10 * GIB, 10 * GIB, 5 * GIB, "10:01:35"),
    line_of("Before optimizer step", 20 * GIB, 20 * GIB, 15 * GIB, "10:01:50"),
    line_of("After update_actor", 10 * GIB, 10 * GIB, 5 * GIB, "10:02:05"),
    line_of("After resume kv_cache", 10 * GIB, 10 * GIB, 11 * GIB, "10:02:30"),
    "(TaskRunner pid=1) step:1 - timing_s/gen:3.0 - timing_s/step:10.0 - perf/cpu_memory_used_gb:100.0",
    line_of("Before optimizer step", 20 * GIB, 20 * GIB, 15 * GIB, "10:03:25"),
    "(TaskRunner pid=1) step:2 - timing_s/gen:3.0 - timing_s/step:10.0 - perf/cpu_memory_used_gb:103.0",
]


def test_one_timeline_of_two_snapshots_and_a_log_worked_by_hand(tmp_path):
    """The log's clock is UTC+2. Histories last from 10:01:40 to 10:02:00 and from 10:03:20 to 10:03:40."""
    rows, section = rows_of(written_run(tmp_path, LINES))
    assert [(row["time"], row["step"], row["moment"], row["mark"], row["engine"]) for row in rows] == [
        ("10:01:30", 1, "vLLM sleeps", "sleep", "asleep"),
        ("10:01:35", 1, "After rollout offload", "sleep", "asleep"),
        ("10:01:40", 1, "peak", None, "asleep"),
        ("10:01:50", 1, "Before optimizer step", None, "asleep"),
        ("10:02:00", 1, "end", None, "asleep"),
        ("10:02:05", 1, "After update_actor", None, "asleep"),
        ("10:02:30", 1, "After resume kv_cache", "wake", "awake"),
        (None, 1, "perf/cpu_memory_used_gb", None, None),
        ("10:03:20", 2, "peak", None, "awake"),
        ("10:03:25", 2, "Before optimizer step", None, "awake"),
        ("10:03:40", 2, "end", None, "awake"),
        (None, 2, "perf/cpu_memory_used_gb", None, None),
    ]
    before, in_step, between = rows[1], rows[3], rows[5]
    at_rest = {"trainer_state": 4 * GIB, "weights": 2 * GIB, "kv_cache": 4 * GIB}
    assert {name: before[name] for name in HOLDERS if before[name]} == at_rest
    assert {name: in_step[name] for name in HOLDERS if in_step[name]} == {**at_rest, "activations": 10 * GIB}
    assert {name: between[name] for name in HOLDERS if between[name]} == at_rest
    assert (in_step["counted"], in_step["unmapped"], in_step["outside"], in_step["free"]) == (
        20 * GIB, -5 * GIB, 0, 65 * GIB,
    )  # fmt: skip
    assert [row["host_used"] for row in rows if row["who"] == "host"] == [100 * GIB, 103 * GIB]
    assert rows[-1]["host_change"] == 3 * GIB
    (chart,) = section.charts
    assert chart.rows[2] == "10:01:50 Before optimizer step (asleep)"


def test_states_of_the_engine_are_known_for_each_snapshot_of_the_process(tmp_path):
    """The lines of the log are of the process of both snapshots. Seconds since 08:00 in UTC."""
    timeline = list_timeline(analyzed(written_run(tmp_path, LINES)).measurements)
    states = [(state.source[:5], round(state.ts_ns / S - EIGHT), state.state) for state in list_engine_states(timeline)]
    of_first = [(90, "asleep"), (100, "asleep"), (150, "awake")]
    assert states == [(step, *state) for state in of_first for step in ("step1", "step2")]


def test_a_line_with_other_memory_than_the_snapshot_is_not_split(tmp_path):
    """At 10:01:50 the snapshot counts 20 GiB: a line with 21 is of another time, or of another process."""
    lines = [*LINES[:2], line_of("Before optimizer step", 20 * GIB, 21 * GIB, 15 * GIB, "10:01:50"), *LINES[3:]]
    rows, _ = rows_of(written_run(tmp_path, lines))
    (row,) = [row for row in rows if row["time"] == "10:01:50"]
    assert (row["in_use"], row["cache"], row["trainer_state"]) == (20 * GIB, GIB, None)


def test_without_a_common_clock_rows_keep_their_step(tmp_path):
    """All lines are 20 minutes late: no zone fits, snapshots follow the lines of their step, with their own time."""
    lines = [line.replace(" 10:0", " 10:2") for line in LINES]
    rows, section = rows_of(written_run(tmp_path, lines))
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 4
    assert [row["time"] for row in rows if row["source"]][:2] == ["08:01:40 UTC", "08:02:00 UTC"]
    assert all(row["engine"] is None and row["unmapped"] is None for row in rows if row["source"])
    assert any("order of steps" in caveat for caveat in section.caveats)


def test_without_a_log_snapshots_are_in_order_of_time(tmp_path):
    written_run(tmp_path, [])
    (tmp_path / "train.log").unlink()
    rows, section = rows_of(tmp_path)
    assert [row["time"] for row in rows] == ["08:01:40 UTC", "08:02:00 UTC", "08:03:20 UTC", "08:03:40 UTC"]
    assert not any("order of steps" in caveat for caveat in section.caveats)


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_each_row_sum_to_the_gpu_or_to_the_counted_bytes(tmp_path, seed):
    """Random sizes, and lines at random times: with the right memory, with other memory, asleep and awake."""
    draw = random.Random(seed)
    device, live, lines = Allocator(), [], []
    for place in range(40):
        device.now_us = (EIGHT + 10 * place) * 10**6
        if live and draw.random() < 0.4:
            device.free(live.pop(draw.randrange(len(live))))
        else:
            pool, frames = draw.choice((((0, 0), stack("x")), ((0, 1), WEIGHTS), ((0, 2), KV)))
            live.append(device.alloc(draw.randrange(1, 900 * MIB), frames, pool=pool))
        if draw.random() < 0.5:
            more = draw.choice((0, 0, GIB))
            used = draw.randrange(device.reserved // 2, device.reserved + 3 * GIB)
            second = 10 * place + 5
            time = f"10:{second // 60:02}:{second % 60:02}"
            lines.append(
                line_of(draw.choice(("After x", "After wake")), device.allocated, device.reserved + more, used, time)
            )
    where = tmp_path / "step1"
    where.mkdir()
    (where / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(device)))
    (tmp_path / "train.log").write_text("\n".join(lines))
    timeline = list_timeline(analyzed(tmp_path).measurements)
    split = [moment for moment in timeline if moment.line is not None and moment.holders is not None]
    assert len(split) > len(lines) / 3
    for moment in timeline:
        bar = sum(size for _, size in list_bar_parts(moment))
        assert all(size >= 0 for _, size in list_bar_parts(moment))
        if moment.line is not None:
            assert bar == moment.line.total_bytes
            parts = moment.get_split()
            counted = sum(moment.holders.values()) if moment.holders else parts["allocated"] + parts["cached"]
            assert counted + parts["unmapped"] + parts["outside"] + parts["free"] == moment.line.total_bytes
        else:
            assert bar == moment.counted == sum(moment.holders.values())
