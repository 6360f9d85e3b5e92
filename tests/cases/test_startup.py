"""Start-up, what was in progress when a recording began, and garbage collection: small cases, numbers from their raw rows."""

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import invoke

import tracekit
from tracekit.pipeline.comparing import compare_paths

needs_real_data = pytest.mark.skipif("TRACEKIT_REAL_DATA" not in os.environ, reason="TRACEKIT_REAL_DATA is not set")


def real_profile(path):
    """A real profile by its path below the folder that holds `data` and `more`."""
    return Path(os.environ["TRACEKIT_REAL_DATA"]).parent / path


def raw(path):
    """The complete rows of a Chrome trace."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [row for row in json.loads(text)["traceEvents"] if row.get("ph") == "X"]


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def of_rule(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


# 34: the first launch loads code for 300.004 ms; 305.047 ms from the first row of the host to the last of the device


def test_a_first_launch_that_loads_code_is_start_up(case):
    """Capture 305 ms, GPU 1.6 % busy, 300 ms in a first call."""
    found = case("34_lazy_load_in_first_launch")
    rows = raw(found.path / "trace.json")
    begin, end = min(r["ts"] for r in rows), max(r["ts"] + r["dur"] for r in rows)
    busy = sum(r["dur"] for r in rows if r["cat"] == "kernel")
    numbers = headline(found.report)
    assert numbers["step_wall"] == pytest.approx((end - begin) * 1_000, rel=1e-6)
    assert numbers["step_wall"] == pytest.approx(305e6, rel=0.01)
    assert numbers["compute_ratio"] == pytest.approx(busy / (end - begin), abs=1e-4)
    assert numbers["compute_ratio"] == pytest.approx(0.016, abs=0.001)
    first = found.report.findings[0]
    assert (first.rule, first.cost_ns) == ("start-up", 300_004_000)
    assert (
        first.claim
        == "the first 300 ms of 305 ms are start-up; first calls take 300 ms: module loading 300 ms (cudaLaunchKernel)"
    )
    assert first.advice.startswith("record later: torch.profiler.schedule(wait=")
    # Nothing else counts it.
    assert all(other.cost_ns < 5_100_000 for other in found.report.findings[1:])


def test_the_first_screen_says_how_long_start_up_is(case):
    screen = case("34_lazy_load_in_first_launch").screen
    assert "\ncapture 305 ms" in screen
    assert "start-up 300 ms" in screen
    assert "compute 1.6 %" in screen


def test_a_comparison_is_of_what_follows_start_up(case, tmp_path):
    """The same capture with 100 ms less of start-up: nothing of its work changed."""
    source = case("34_lazy_load_in_first_launch").path / "trace.json"
    document = json.loads(source.read_text())
    for row in document["traceEvents"]:
        if row.get("ts", 0) > 5_000_000_030:
            row["ts"] -= 100_000
        elif row.get("dur", 0) > 300_000:
            row["dur"] -= 100_000
    sides = []
    for name, text in (("base", source.read_text()), ("opt", json.dumps(document))):
        sides.append(tmp_path / name / "trace.json")
        sides[-1].parent.mkdir()
        sides[-1].write_text(text)
    comparison = compare_paths([sides[0].parent], [sides[1].parent]).comparison
    # The kernel `add` is launched every 250 µs; with the first launch the mean would be 16 ms, or 10.
    assert comparison.headline.base == pytest.approx(250_000, rel=0.01)
    for change in (comparison.headline, *comparison.changes):
        assert change.base == change.opt, change.name
    printed = invoke("compare", sides[0].parent, sides[1].parent).stdout
    assert "base: 300 ms of start-up are excluded" in printed
    assert "opt: 200 ms of start-up are excluded" in printed


# 04: custom all-reduce; ranks 0–2 wait 8.0 s in their first one, the others take 14 µs


@pytest.mark.parametrize("name", ["04_custom_allreduce_start_skew", "04b_no_steps"])
def test_a_collective_that_waits_for_a_recording_is_start_skew(case, name):
    found = case(name)
    for rank in range(4):
        rows = raw(found.path / f"trace-TP-{rank}.trace.json.gz")
        reduces = sorted(r["dur"] for r in rows if "cross_device_reduce" in r["name"])
        assert (reduces[-1] > 8e6) == (rank != 3)
        assert reduces[-2] == pytest.approx(14, abs=1)
    (skew,) = of_rule(found.report, "start-up")
    assert skew.claim == (
        "one call of cross_device_reduce_2stage takes 8,000 ms on ranks 0–2, the others 14.0 µs:"
        " start skew of rank 3, not communication"
    )
    assert skew.cost_ns is None
    assert [place.rank for place in skew.places] == [3]
    assert not of_rule(found.report, "exposed-communication")
    assert headline(found.report)["exposed_comm_ratio"] < 0.02


def test_the_capture_is_what_follows_the_wait(case):
    """Rank 3 works for 20.3 ms; what the others record before its first all-reduce is a wait."""
    found = case("04b_no_steps")
    rows = raw(found.path / "trace-TP-3.trace.json.gz")
    length = max(r["ts"] + r["dur"] for r in rows) - min(r["ts"] for r in rows)
    assert headline(found.report)["step_wall"] == pytest.approx(length * 1_000, rel=0.01)
    assert "8,020" not in found.screen


def test_marked_steps_idle_behind_each_reduce(case):
    """18 %: behind each of 5 all-reduces a step the next kernel, launched long before, begins 186 µs late: 930 of 5,070 µs."""
    rows = raw(case("04_custom_allreduce_start_skew").path / "trace-TP-0.trace.json.gz")
    kernels = sorted((r for r in rows if r["cat"] == "kernel"), key=lambda r: r["ts"])
    gaps = [
        after["ts"] - before["ts"] - before["dur"]
        for before, after in pairwise(kernels)
        if "cross_device" in before["name"]
    ]
    assert gaps == [pytest.approx(186, abs=1)] * 20
    assert sum(gaps[5:10]) / 5_070 == pytest.approx(0.18, abs=0.005)
    assert "18 % launched but not started" in case("04_custom_allreduce_start_skew").screen


# Garbage collection


def test_garbage_collection_is_named_of_a_host_alone(case):
    """858 rows, 1,757 of 2,214 ms."""
    found = case("python_gc")
    rows = [r for r in raw(found.path / "gc_trace.json.gz") if r["name"] == "Python GC"]
    assert len(rows) == 858
    first = found.report.findings[0]
    assert first.rule == "garbage-collection"
    assert first.claim == "the host spends 1,757 ms of 2,214 ms per step on garbage collection (858 collections)"
    assert first.cost_ns == pytest.approx(sum(r["dur"] for r in rows) * 1_000, rel=0.001)


# Near misses


@pytest.mark.parametrize(
    "name",
    ["25_ran_on_cpu_gpu_present", "nostage_silence", "pdl", "24_launches_no_kernels", "01c_clean_host_bound", "12_no_distributed_info"],
)  # fmt: skip
def test_nothing_of_these_is_start_up_or_garbage_collection(case, name):
    report = case(name).report
    assert not of_rule(report, "start-up")
    assert not of_rule(report, "garbage-collection")


# Real profiles that hold almost nothing but start-up


@needs_real_data
def test_a_capture_of_nothing_but_start_up_says_so():
    """236 ms: 194 without any row, two launches of 17.4 and 17.8, one allocation of 3.6; device work of 6 µs."""
    path = real_profile("data/nsys/GindaChen_nsys-ai/mock.sqlite")
    first = tracekit.analyze(path).findings[0]
    assert first.rule == "start-up"
    assert first.cost_ns == pytest.approx(233e6, rel=0.01)
    assert "start of the program 194 ms (no calls), module loading 35.2 ms" in first.claim
    assert first.advice.startswith("record later: nsys profile --capture-range")


@needs_real_data
def test_a_first_op_that_waits_for_the_context_is_start_up():
    """2,187 of 3,154 µs in the first `aten::empty`, without a call below it; its launch follows after 3 µs."""
    path = real_profile("more/chrome/hta/critical_path/cuda_event_sync")
    first = tracekit.analyze(path).findings[0]
    assert (first.rule, first.cost_ns) == ("start-up", 2_187_000)
    assert "first allocations 2.19 ms (aten::empty)" in first.claim
    assert first.advice.startswith("record later: torch.profiler.schedule")


@needs_real_data
@pytest.mark.parametrize("name", ["more/chrome/hta/critical_path/alexnet", "data/chrome/hta/critical_path/simple_add"])  # fmt: skip
def test_little_work_after_long_start_up_ranks_low(name):
    """41 of 43 s and 37 of 42 s of start-up: nothing else is worth 1 % of the capture."""
    first, *others = tracekit.analyze(real_profile(name)).findings
    assert (first.rule, first.severity) == ("start-up", "high")
    assert others
    assert {other.severity for other in others} == {"info"}


# Among profiles that do not belong together


@needs_real_data
def test_a_capture_is_as_long_among_others_as_alone():
    """`mock` lasts 236 ms, all but 0.65 of it start-up, whether it is looked at alone or beside others."""
    folder = real_profile("data/nsys/GindaChen_nsys-ai")
    walls = {m.label: m.value for m in tracekit.analyze(folder).headline if m.name == "step_wall"}
    alone = headline(tracekit.analyze(folder / "mock.sqlite"))
    assert walls["capture of mock"] == alone["step_wall"]
