"""What held GPUs back in real profiles, against a reading of their raw rows that knows nothing of ours."""

import gzip
import json
import os
from pathlib import Path

import pytest
from rules.idle_report import result

from tracekit.job.idle_time.call_tree import blame_idle_time, sum_idle_subtrees
from tracekit.model.tables.keys import sum_by_group
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

QUESTIONS = ("steps", "gpu-time", "idle", "start-up", "syncs", "stage-edges", "host", "data-quality")
TIMESFORMER = "more/chrome/tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz"
ALEXNET = "more/chrome/hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz"
CLAIMS = {
    TIMESFORMER: (
        "host-silence",
        "GPUs wait 216 ms of 383 ms per step while the host is in preprocess, video_classification.py:129",
    ),
    ALEXNET: (
        "start-up",
        "the first 43.3 s of 43.4 s are start-up; first calls take 41.1 s: context creation 29.9 s (cudaDeviceGetStreamPriorityRange)",
    ),
    "more/chrome/hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": (
        "start-up", "GPUs wait 6.54 ms of 9.29 ms per step for first calls: module loading 6.54 ms (hipLaunchKernel)",
    ),
    "more/chrome/hta/df_index_resolver/df_index_resolver.json.gz": (
        "launch-bound", "the step launches 3,470 kernels of 35.8 µs on average one by one, most in CompiledFunctionBackward",
    ),
    "data/chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz": (
        "launch-bound", "one by one, most in __call__, pipeline_stable_diffusion_3.py:772",
    ),
}  # fmt: skip


def path_of(name):
    return Path(REAL).parent / name


@pytest.mark.parametrize("name", CLAIMS)
def test_the_first_claim_names_what_the_raw_rows_show(name):
    rule, text = CLAIMS[name]
    first = result(path_of(name), QUESTIONS).report.findings[0]
    assert (first.rule, text in first.claim) == (rule, True), first.claim


def idle_us(events, start, end):
    """How long no device op runs in [start, end), one op after the other."""
    idle, at = 0.0, start
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    ops = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in kinds)
    for begin, stop in ops:
        idle += max(min(begin, end) - at, 0)
        at = max(at, min(stop, end))
    return idle + max(end - at, 0)


WHOLE_STEPS = (
    *CLAIMS,
    "more/chrome/tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "data/chrome/hta/nccl_parser_config/nccl_data.json.gz",
    "data/chrome/hta/negative_queue_length_values_check/rank0.json.gz",
    "data/chrome/hta/trace_diff/control/control.json.gz",
    "data/chrome/tracelens/b200/eager_trace.json.gz",
)


@pytest.mark.parametrize("name", WHOLE_STEPS)
def test_all_that_is_recoverable_is_less_than_the_step(name):
    """Of owlv2 findings gave back 1,299 of 1,211 ms: products of unfused attention counted twice."""
    report = analyze_uncached(Path(REAL).parent / name, Options(jobs=1, cache=False)).report
    # Start-up before a capture is a share of the recording, all others are shares of what follows.
    start_up = [f for f in report.findings if f.rule == "start-up" and "the first" in f.claim]
    others = [f for f in report.findings if f not in start_up]
    for findings in (start_up, others):
        assert sum(finding.cost_ratio or 0 for finding in findings) <= 1
    assert any(finding.cost_ratio for finding in report.findings)


def test_the_time_below_a_function_is_the_idle_time_while_it_ran():
    """Video preprocessing in Python: nothing else launches meanwhile."""
    name = "transformers/pipelines/video_classification.py(129): preprocess"
    with gzip.open(path_of(TIMESFORMER)) as file:
        events = json.load(file)["traceEvents"]
    (row,) = [event for event in events if event.get("name") == name]
    expected_us = idle_us(events, row["ts"], row["ts"] + row["dur"])
    of = blame_idle_time(result(path_of(TIMESFORMER), QUESTIONS).measurements)
    own = sum_by_group(of.node, of.idle_ns, len(of.tree.parent))
    (place,) = [n for n, frame in enumerate(of.tree.frame) if frame == name]
    # From the last launch before it on a few microseconds are the launch's and the kernel's.
    assert sum_idle_subtrees(of.tree, own)[place] / 1_000 == pytest.approx(expected_us, rel=0.001)
