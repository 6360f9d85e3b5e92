"""Idle time on the first screen has a finding or a reason beside it, and windows that do not fit their work are told."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, launch, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.firing import write_sources
from rules.traces import FIRES, NEAR_MISSES

from tracekit.pipeline.run import Options, analyze
from tracekit.pipeline.unexplained import OF_IDLE_TIME, WORTH_SAYING, _questions

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def assert_told(report):
    """Idle time that is worth it has a finding about time, or a sentence of its own."""
    idle = headline(report).get("idle_ratio")
    if idle is None or idle <= WORTH_SAYING:
        return
    has_finding = any(
        finding.recoverable_ns
        for section in report.sections
        if section.id in _questions(OF_IDLE_TIME)
        for finding in section.findings
    )
    assert has_finding or any("in which GPUs idle" in text for text in report.cautions)


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
    report = analyze(write(folder / "rank0.json", rows), Options(cache=False)).report
    assert not [section for section in report.sections if section.status == "failed"]
    assert_told(report)


@pytest.mark.parametrize("rule", sorted(NEAR_MISSES))
def test_idle_time_of_near_misses_has_a_reason(tmp_path, rule):
    assert_told(analyze(write_sources(tmp_path, NEAR_MISSES[rule]), Options()).report)


def test_a_reason_says_what_the_devices_waited_for(tmp_path):
    """1,000 µs of which a kernel runs for 100: it was launched at once, and began 700 µs later."""
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 700, 100, 1)]
    (reason,) = [
        text
        for text in analyze(write(tmp_path / "rank0.json", rows), Options()).report.cautions
        if "in which GPUs idle" in text
    ]
    assert reason.startswith(
        "no finding is about the 90 % of the capture in which GPUs idle: 69 % other ("
    )


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("cudaGetDevice", "between calls (the host was in no call, but not for long; its ops were not recorded)"),
        ("aten::mm", "between ops (the host was in no op and no call, but not for long: Python between ops)"),
    ],
)  # fmt: skip
def test_where_no_ops_are_recorded_nothing_is_said_to_lie_between_them(tmp_path, first, said):
    """Kernels of 92 µs, each launched 8 µs after the one before has ended: 7 % of the time."""
    call = op(first, 0, 3) if first.startswith("aten") else launch(0, 99, 3, name=first)
    rows = [row for k in range(10) for row in launched("gemm", 100 * k + 7, 100 * k + 8, 92, k + 1)]
    report = analyze(write(tmp_path / "rank0.json", [call, *rows]), Options()).report
    (reason,) = [text for text in report.cautions if "in which GPUs idle" in text]
    assert said in reason


def test_a_finding_about_it_is_reason_enough(tmp_path):
    rows = FIRES["low-gpu-utilization"].rows
    report = analyze(write_sources(tmp_path, rows), Options()).report
    assert not any("in which GPUs idle" in text for text in report.cautions)


def test_work_that_takes_much_less_than_its_window_is_told(tmp_path):
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 700, 100, 1)]
    report = analyze(write(tmp_path / "rank0.json", rows), Options()).report
    assert report.cautions[0] == (
        "device work takes 100 µs of the capture of 1.00 ms, from 700 µs on, and GPUs are busy 100 % of that"
    )


def test_work_that_fits_its_window_needs_no_word(tmp_path):
    rows = [op("aten::loop", 0, 1000), *launched("gemm", 10, 20, 980, 1)]
    assert analyze(write(tmp_path / "rank0.json", rows), Options()).report.cautions == ()


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
@pytest.mark.parametrize("file", [
    "more/chrome/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "more/chrome/tracelens/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "data/chrome/tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "data/chrome/tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "data/nsys/GindaChen_nsys-ai/mfu_2gpu_after.sqlite",
    "data/nsys/GindaChen_nsys-ai/mock.sqlite",
    "data/chrome/tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
])  # fmt: skip
def test_idle_time_of_real_profiles_has_a_finding_or_a_reason(file):
    assert_told(analyze(Path(str(REAL)).parent / file, Options()).report)


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
def test_a_device_that_was_busy_with_earlier_work_is_not_idle(tmp_path):
    """156.466 ms with 156.086 ms of work, launched within 26 ms, 151 ms before the device came to it."""
    file = "more/chrome/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz"
    report = analyze(Path(str(REAL)).parent / file, Options()).report
    values = {metric.name: metric.value for metric in report.headline}
    assert values["step_wall"] == 156_466_417
    assert values["idle_ratio"] == pytest.approx(380_624 / 156_466_417)
    assert report.cautions == ()
