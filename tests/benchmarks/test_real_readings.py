"""What a person reads from the raw rows of real profiles is what the report says."""

import json
import os
import pickle
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import real_readings
from benchmarks.readings import gpu, host, memory
from benchmarks.readings.own_profiles import OWN_READINGS
from benchmarks.readings.reading import Reading, first_line_misses
from benchmarks.readings.rows import Rows
from benchmarks.readings.said import Said, analyze

REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.slow
@pytest.mark.parametrize("reading", real_readings.READINGS, ids=lambda reading: reading.path)
def test_the_report_says_what_a_person_reads(reading):
    path = Path(REAL).parent / reading.path
    _, differences = real_readings.compare(reading, path, analyze(path))
    assert [each for each in differences if not reading.reason_for(each)] == []


@pytest.mark.slow
@pytest.mark.parametrize("reading", OWN_READINGS, ids=lambda reading: reading.path)
def test_the_report_says_what_a_person_reads_of_our_recordings(reading):
    path = Path(__file__).parents[2] / reading.path
    _, differences = real_readings.compare(reading, path, analyze(path))
    assert [each for each in differences if not reading.reason_for(each)] == []


def test_at_least_45_profiles_are_held_each_once():
    paths = [reading.path for reading in real_readings.READINGS]
    assert len(paths) == len(set(paths)) >= 45


SCREEN = """profile · rank 0

Top issues
  1  drift   steps are longer   1 ms
"""


def a_table(name, headings, *rows):
    return {"name": name, "headings": [{"name": each} for each in headings], "rows": list(rows)}


def said_of(headline, *tables, screen=SCREEN, findings=(), recordings=(), overview=None):
    """A report with these figures, tables and findings."""
    metrics = [{"name": name, "value": value} for name, value in headline.items()]
    sections = [{"sheets": list(tables), "findings": list(findings)}]
    report = {"headline": metrics, "sections": sections, "recordings": list(recordings), "overview": overview}
    return Said(report, screen)


FINDING = {"rule": "drift", "claim": "longer", "cost_ns": 5, "severity": "low"}
GPU_KIND = {"kind": "gpu", "command": ""}
ANY_TABLE = a_table("overview", ["name"], ["sgemm"])


def test_a_difference_is_seen():
    """A kernel of 60 in a window of 100, of which the report has 55, and another first cause."""
    rows = Rows()
    rows.ops = [(0, 60, "sgemm", "kernel", 0, None), (90, 100, "ncclAllReduce", "kernel", 0, None)]
    reading = gpu.GpuReading(path="", rules=("launch-bound",), place="forward", why="")
    ratios = {"compute_ratio": 0.55, "exposed_comm_ratio": 0.1, "copy_ratio": 0.0, "idle_ratio": 0.3}
    kernels = a_table("kernels", ["name", "total_ns"], ["sgemm", 60])
    gaps = a_table("idle_gaps", ["why", "dur_ns"], ["other", 30])
    said = said_of(
        {"step_wall": 102, **ratios}, kernels, gaps, findings=[FINDING], recordings=[GPU_KIND], overview=ANY_TABLE
    )
    assert gpu.gpu_misses(reading, rows, said) == [
        "window 0.00 ms, not 0.00",
        "compute 55.0%, not 60.0%",
        "first is drift (longer), not launch-bound (forward)",
    ]


def test_idle_time_and_kernels_are_compared_after_the_start_up():
    """A copy of 3 ms at 6 ms, a product of 1 ms at 9 ms: of 10 ms 8.5 are start-up, then 0.5 of 1.5 ms are idle."""
    rows = Rows()
    ms = 1_000_000
    rows.ops = [(6 * ms, 9 * ms - 500_000, "Memcpy", "copy", 0, 1), (9 * ms, 10 * ms, "sgemm", "kernel", 0, 2)]
    rows.launches = {1: (5 * ms, 6 * ms, 7), 2: (8 * ms, 8 * ms + 1, 7)}
    rows.host = [(0, 6 * ms, "cudaFree", 7, "cuda_runtime")]
    reading = gpu.GpuReading(path="", rules=("start-up", ""), why="", start_up=(8, 9))
    gaps = a_table("idle_gaps", ["why", "dur_ns"], ["other", 500_000])
    kernels = a_table("kernels", ["name", "total_ns"], ["sgemm", ms])
    headline = {"step_wall": 10 * ms, "compute_ratio": 0.1, "copy_ratio": 0.25, "exposed_comm_ratio": 0}
    tables = gaps, kernels
    recordings = [GPU_KIND]
    told = said_of(
        {**headline, "idle_ratio": 0.65, "start_up": 8_500_000},
        *tables,
        screen="",
        recordings=recordings,
        overview=ANY_TABLE,
    )
    assert gpu.gpu_misses(reading, rows, told) == []
    untold = said_of({**headline, "idle_ratio": 0.65}, *tables, screen="", recordings=recordings, overview=ANY_TABLE)
    assert gpu.gpu_misses(reading, rows, untold)[0] == "start-up 0.0 ms, not 8 to 9"


def test_kind_command_table_and_mentions_are_held():
    reading = Reading(path="", kinds=("cpu-only",), rules=("drift",), why="", mentions=("rank 0", "rank 1"))
    bare = said_of({}, findings=[FINDING])
    assert first_line_misses(reading, bare) == [
        "kind is not said, not cpu-only",
        "the first screen has no table",
        "the screen does not mention rank 1",
    ]
    silent = said_of({}, findings=[FINDING], recordings=[{"kind": "cpu-only", "command": ""}], overview=ANY_TABLE)
    assert first_line_misses(reading, silent)[0] == "no command goes with that kind"


def a_cpu_trace(path, rank, wait):
    """Two steps of 1 ms and 2 ms with an op of 500 µs in one of 900 µs, a collective, and 3 MiB that the second keeps."""
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    events = [
        mark | {"name": "ProfilerStep#1", "ts": 0, "dur": 1000},
        mark | {"name": "ProfilerStep#2", "ts": 1000, "dur": 2000},
        mark | {"name": "gen", "ts": 1000, "dur": 900},
        mark | {"name": "gloo:all_reduce", "ts": 2000, "dur": wait},
        op | {"name": "aten::linear", "ts": 1000, "dur": 900},
        op | {"name": "aten::addmm", "ts": 1200, "dur": 500},
        {"ph": "i", "name": "[memory]", "ts": 1100, "args": {"Bytes": 4 << 20}},
        {"ph": "i", "name": "[memory]", "ts": 2900, "args": {"Bytes": -(1 << 20)}},
    ]
    file = path / f"rank{rank}.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_rows_of_the_cpu_are_read_by_hand(tmp_path):
    paths = [a_cpu_trace(tmp_path, 0, wait=100), a_cpu_trace(tmp_path, 1, wait=20)]
    files = [(path, file[0][1]) for path in paths for file in [host.read_files(path)]]
    steps = host.steps_of(files, "marks")
    assert host.step_wall(steps, "marks") == 1.5e6
    assert host.stage_wall(steps, "gen") == 0.45e6
    assert host.self_times(files) == {"aten::linear": 800_000, "aten::addmm": 1_000_000}
    assert host.waits_by_rank(files) == {0: 100_000, 1: 20_000}
    assert host.kept_per_step(files) == 3 << 20


def test_a_late_rank_and_growth_that_the_screen_leaves_out_are_seen(tmp_path):
    paths = [a_cpu_trace(tmp_path, 0, wait=100), a_cpu_trace(tmp_path, 1, wait=20)]
    files = [(path, file[0][1]) for path in paths for file in [host.read_files(path)]]
    reading = host.HostReading(path="", rules=("drift",), why="", late=1, grows=True, layout="")
    recordings = [{"kind": "cpu-only", "command": "nsys"}]
    said = said_of({}, findings=[FINDING], recordings=recordings, overview=ANY_TABLE)
    assert host.host_misses(reading, files, said) == [
        "the screen does not name rank 1 as late",
        "the screen does not say that memory grows by 3.0 MiB per step",
    ]
    other = host.HostReading(path="", rules=("drift",), why="", late=0, layout="")
    assert host.host_misses(other, files, said)[0].startswith("misread: rank 0")


def a_snapshot(path, entries, blocks, reserved):
    frames = [{"filename": "/x/site-packages/torch/a.py", "line": 1, "name": "f"}]
    frames += [{"filename": "/x/train.py", "line": 7, "name": "step"}]
    of_blocks = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
        for address, size in blocks
    ]
    segment = {"device": 0, "total_size": reserved, "blocks": of_blocks}
    trace = [{"action": action, "addr": address, "size": size, "frames": frames} for action, address, size in entries]
    file = path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    return memory.load_snapshot(file)


def test_the_peak_of_a_snapshot_is_replayed(tmp_path):
    """5 are there before and stay, 7 are freed first; then 30 and 20 at once: 55 at the peak, 50 of them by train.py."""
    entries = [
        ("free_completed", 1, 7),
        ("alloc", 2, 30),
        ("segment_alloc", 90, 40),
        ("alloc", 3, 20),
        ("free_completed", 2, 30),
        ("segment_free", 90, 40),
    ]
    peak = memory.peak_of(a_snapshot(tmp_path, entries, [(3, 20), (9, 5)], reserved=60))
    assert (peak.requested, peak.reserved) == (55, 100)
    assert peak.sites["train.py:7"] == 50


def test_a_category_that_the_report_has_otherwise_is_seen():
    """A person reads 60 + 30 + 10; the report has 50 as parameters, 30 by other means and 20 without a use."""
    peak = memory.Peak(100, 100, Counter())
    rows = ["parameter", "a profiler", 50], ["activation", "call stacks", 30], ["not told", None, 20]
    said = said_of({}, a_table("live_categories", ["category", "how", "size_bytes"], *rows))
    read = ("parameter", 60), ("activation", 30), ("other", 10)
    reading = memory.MemoryReading(path="", why="", categories=read)
    assert memory.category_misses(reading, peak, said) == ["parameter 50 bytes, not 60"]
    fewer = memory.MemoryReading(path="", why="", categories=read[:2])
    assert memory.category_misses(fewer, peak, said)[0] == "misread: the categories sum to 90, not 100"


def test_a_snapshot_that_holds_more_than_plain_containers_is_refused(tmp_path):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": Path("/tmp")}))
    with pytest.raises(pickle.UnpicklingError, match="refused: pathlib"):
        memory.load_snapshot(file)
