"""Time that no finding covers is on the first screen with its largest part, and windows that do not fit their work are named."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, launch, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import TRACES, name_of
from rules.firing import write_sources
from rules.traces import FIRES, NEAR_MISSES

from tracekit.model.report import Finding, Metric, Place, Section
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.summary.coverage import MIN_UNEXPLAINED_RATIO
from tracekit.pipeline.summary.unexplained_time import (
    list_covering_findings,
    measure_covered_ns,
    measure_unexplained_time,
)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def assert_told(report):
    """Idle and waiting time that exceeds all that findings cover by 3 % of the step has a sentence, and a share."""
    values = headline(report)
    idle, exposed = values.get("idle_ratio"), values.get("exposed_comm_ratio")
    if idle is None:
        return
    unexplained = values["unexplained_ratio"]
    covered = sum(
        measure_covered_ns(finding) / finding.recoverable_ns * (finding.recoverable_ratio or 0)
        for finding in list_covering_findings(report.sections)
        if finding.rule != "start-up" or "start_up" not in values
    )
    # What comes before the work of a capture is explained.
    covered += values.get("start_up", 0) / values["step_wall"]
    assert -1e-9 <= unexplained <= idle + exposed + 1e-9
    assert unexplained >= idle + exposed - covered - 1e-6
    if idle - covered > MIN_UNEXPLAINED_RATIO:
        assert any("idle time is unexplained" in text for text in report.cautions)


gaps = st.sampled_from([0, 1, 7, 40, 300, 5_000, 90_000])
pieces = st.lists(st.tuples(gaps, gaps, st.sampled_from([1, 9, 60, 800, 20_000])), max_size=8)


@settings(max_examples=25, deadline=None)
@given(pieces, st.sampled_from(["none", "steps", "range", "iterations", "stage"]), gaps)
def test_idle_time_beside_no_findings_has_a_reason(tmp_path_factory, parts, marks, tail):
    """Whatever is launched whenever, with whatever marks around it."""
    rows, at, free = [op("aten::begin", 0, 3)], 5, 0
    for number, (before, delay, lasting) in enumerate(parts, 1):
        at += before + 4
        free = max(free, at + delay + 1)
        rows += [op("aten::mm", at - 1, 4), *launched("gemm", at, free, lasting, number)]
        free += lasting
        end = at + 5
        if marks == "steps":
            rows.append(step(number, at - 2, 7))
        elif marks in ("range", "iterations"):
            name = "batch {}" if marks == "range" else "execute_context_0(0)_generation_{}(8)"
            rows.append(annotation(name.format(number), at - 2, 7))
        at = end
    rows.append(op("aten::end", at + tail, 3))
    if marks == "stage":
        rows.append(annotation("update_actor", 0, at + tail + 3))
    folder = tmp_path_factory.mktemp("gaps")
    report = analyze_uncached(write(folder / "rank0.json", rows), Options(cache=False)).report
    assert not [section for section in report.sections if section.status == "failed"]
    assert_told(report)


@pytest.mark.parametrize("rule", sorted(NEAR_MISSES))
def test_idle_time_of_near_misses_has_a_reason(tmp_path, rule):
    assert_told(analyze_uncached(write_sources(tmp_path, NEAR_MISSES[rule]), Options()).report)


def test_a_sentence_names_the_largest_cause(tmp_path):
    """1,000 µs of which a kernel runs for 100: it was launched at once, and began 700 µs later."""
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 700, 100, 1)]
    report = analyze_uncached(write(tmp_path / "rank0.json", rows), Options()).report
    assert report.cautions[1:] == (
        "90 % idle time is unexplained: largest part 69 % launched but not started (cause unknown)",
    )
    assert headline(report)["unexplained_ratio"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("first", "said"), [("cudaGetDevice", "between calls (ops were not recorded)"), ("aten::mm", "between ops")]
)
def test_where_no_ops_are_recorded_nothing_is_said_to_lie_between_them(tmp_path, first, said):
    """Kernels of 92 µs, each launched 8 µs after the one before has ended: 7 % of the time."""
    call = op(first, 0, 3) if first.startswith("aten") else launch(0, 99, 3, name=first)
    rows = [row for k in range(10) for row in launched("gemm", 100 * k + 7, 100 * k + 8, 92, k + 1)]
    report = analyze_uncached(write(tmp_path / "rank0.json", [call, *rows]), Options()).report
    (reason,) = [text for text in report.cautions if "is unexplained" in text]
    assert reason.endswith(f" {said}")


def test_a_catch_all_explains_nothing(tmp_path):
    rows = FIRES["low-gpu-utilization"].rows
    report = analyze_uncached(write_sources(tmp_path, rows), Options()).report
    values = headline(report)
    (finding,) = [f for f in report.findings if f.rule == "low-gpu-utilization"]
    assert finding.is_catch_all
    assert values["unexplained_ratio"] == pytest.approx(values["idle_ratio"])
    assert any("idle time is unexplained" in text for text in report.cautions)


def two_ranks(rank, gap):
    """100 µs steps of a stage: a kernel of 40 µs, launched at once on rank 0, after a gap on rank 1."""
    begin = gap if rank else 0
    return [
        *(step(n, 1_000 * n, 100) for n in (1, 2, 3)),
        *(annotation("update_actor", 1_000 * n, 100) for n in (1, 2, 3)),
        *(op("aten::mm", 1_000 * n + begin, 10) for n in (1, 2, 3)),
        *(row for n in (1, 2, 3) for row in launched("gemm", 1_000 * n + begin + 2, 1_000 * n + begin + 10, 40, n)),
    ]


def test_the_largest_part_has_its_rank_and_stage(tmp_path):
    """Both ranks idle 60 of 100 µs; on rank 1, 30 more of them are before the first op than on rank 0."""
    sources = {rank: two_ranks(rank, 30) for rank in (0, 1)}
    report = analyze_uncached(write_sources(tmp_path, sources), Options()).report
    (sentence,) = [text for text in report.cautions if "idle time is unexplained" in text]
    assert sentence == ("60 % idle time is unexplained: largest part 33 % between ops, rank 1, update_actor")


def finding(rule, ns, *places, **more):
    return Finding(rule, "high", rule, "", places=places, recoverable_ns=ns, **more)


def covered_by(tmp_path, *findings, section="idle"):
    """The unexplained idle ns of two ranks × three steps, with these findings: 60 µs each without any."""
    sources = {rank: two_ranks(rank, 30) for rank in (0, 1)}
    measured = analyze_uncached(write_sources(tmp_path, sources), Options()).measurements
    idle, _ = measure_unexplained_time(measured, [Section(section, "", findings=findings)])
    assert (idle.cells["time_ns"] >= 0).all()
    return round(idle.time_ns)


US = 1_000


def test_a_small_finding_does_not_silence_the_rest(tmp_path):
    """6 steps of single ranks idle 60 µs: 360 µs less 6 × 1 µs."""
    place = Place(stage="update_actor")
    assert covered_by(tmp_path, finding("host-sync-stalls", US, place)) == 354 * US


def test_a_finding_covers_no_more_than_there_is_where_it_is(tmp_path):
    everything = finding("host-sync-stalls", 500 * US, Place(stage="update_actor"))
    elsewhere = finding("host-sync-stalls", 500 * US, Place(stage="gen"))
    assert covered_by(tmp_path / "a", everything) == 0
    assert covered_by(tmp_path / "b", elsewhere) == 360 * US


def test_communication_catch_alls_and_other_subjects_cover_no_idle_time(tmp_path):
    place = Place(stage="update_actor")
    comm = finding("exposed-communication", 20 * US, place)
    assert covered_by(tmp_path / "a", comm, section="communication") == 360 * US
    catch_all = finding("low-gpu-utilization", 20 * US, place, is_catch_all=True)
    assert covered_by(tmp_path / "b", catch_all) == 360 * US
    assert covered_by(tmp_path / "c", finding("own", 20 * US, place), section="kernels") == 360 * US


def test_only_the_part_with_a_known_cause_is_covered(tmp_path):
    """20 µs a step may come back, of which the cause of 5 is known: 360 − 6 × 5."""
    known = Metric("named_ns", 5 * US, "ns")
    named = finding("low-gpu-utilization", 20 * US, Place(stage="update_actor"), evidence=(known,))
    assert covered_by(tmp_path, named, section="gpu-time") == 330 * US


def test_a_merged_finding_covers_by_its_parts(tmp_path):
    parts = (
        finding("host-sync-stalls", 2 * US, Place(stage="update_actor")),
        finding("host-sync-stalls", 30 * US, Place(stage="gen")),
    )
    merged = finding("host-sync-stalls", 32 * US, *parts[0].places, *parts[1].places, parts=parts)
    assert covered_by(tmp_path, merged) == 348 * US


def test_steps_that_differ_are_unexplained(tmp_path):
    """Steps of 100, 100 and 160 µs on the CPU: the mean exceeds the median by 20 of 120 µs, 17 %."""
    rows = []
    for n, length in ((1, 100), (2, 100), (3, 160)):
        at = 1_000 * n
        rows += [step(n, at, length), annotation("update_actor", at, length), op("aten::mm", at, length)]
    report = analyze_uncached(write(tmp_path / "rank0.json", rows, rank=0, world_size=1), Options()).report
    (sentence,) = [text for text in report.cautions if "step-to-step" in text]
    assert sentence == (
        "17 % step-to-step time is unexplained: step 3 takes 160 µs, the median 100 µs,"
        " largest part 60.0 µs in update_actor, rank 0"
    )


def test_waits_and_silence_of_hosts_are_unexplained(tmp_path):
    """Two ops of 1 ms around 8 ms without any record: 80 % of the step."""
    rows = [
        *(step(n, 20_000 * n, 10_000) for n in (1, 2, 3)),
        *(op("aten::mm", 20_000 * n + at, 1_000) for n in (1, 2, 3) for at in (0, 9_000)),
    ]
    report = analyze_uncached(write(tmp_path / "rank0.json", rows), Options()).report
    assert headline(report)["unexplained_ratio"] == pytest.approx(0.8)
    assert report.cautions == ("80 % idle time is unexplained: largest part 80 % no host activity",)


def test_work_that_takes_much_less_than_its_window_is_told(tmp_path):
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 700, 100, 1)]
    report = analyze_uncached(write(tmp_path / "rank0.json", rows), Options()).report
    assert report.cautions[0] == (
        "GPU work covers 100 µs of the capture (1.00 ms), starting 700 µs into it; GPUs are busy 100 % of that span"
    )


def test_work_that_fits_its_window_needs_no_word(tmp_path):
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 20, 980, 1)]
    assert analyze_uncached(write(tmp_path / "rank0.json", rows), Options()).report.cautions == ()


REAL_FILES = [
    "more/chrome/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "more/chrome/tracelens/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "data/chrome/tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "data/chrome/tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "data/nsys/GindaChen_nsys-ai/mfu_2gpu_after.sqlite",
    "data/nsys/GindaChen_nsys-ai/mock.sqlite",
    "data/chrome/tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
]


@pytest.mark.parametrize("path", [Path(REAL).parent / file for file in REAL_FILES] if REAL else TRACES, ids=name_of)
def test_idle_time_of_real_profiles_has_a_finding_or_a_reason(path):
    assert_told(analyze_uncached(path, Options()).report)


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
def test_a_device_that_was_busy_with_earlier_work_is_not_idle(tmp_path):
    """156.466 ms with 156.086 ms of work, launched within 26 ms, 151 ms before the device came to it."""
    file = "more/chrome/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz"
    report = analyze_uncached(Path(str(REAL)).parent / file, Options()).report
    values = {metric.name: metric.value for metric in report.headline}
    assert values["step_wall"] == 156_466_417
    assert values["idle_ratio"] == pytest.approx(380_624 / 156_466_417)
    assert report.cautions == ()
