"""What the report says of device work without a launch, and where it belongs in real files."""

import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from chrome_builder import annotation, kernel, launched, op, projected, write
from recorded import PAIRS

import tracekit
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.process.calls.launches import find_launches
from tracekit.process.device.placement import PLACED, place_device_ops
from tracekit.process.ops.work_classes import find_work_stages

QUESTIONS = ("attribution", "data-quality")

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def section(path):
    return next(
        s for s in analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report.sections if s.id == "attribution"
    )


def test_the_report_says_where_work_without_a_launch_counts(tmp_path):
    """Of 100: 40 launched, 30 by range in gen, 20 by time in ref, 10 launched before the recording."""
    rows = [
        annotation("gen", 0, 40), annotation("ref", 50, 300), op("late", 0, 400),
        kernel("early", 2, 10, 1), *launched("k", 5, 60, 40, 8), projected("gen", 100, 40),
        kernel("a", 105, 30), kernel("b", 200, 15), kernel("b", 220, 5),
    ]  # fmt: skip
    found = section(write(tmp_path / "rank0.json", rows))
    assert found.caveats == (
        (
            "GPU work without a recorded launch is placed in steps and stages by GPU annotation: 30.0 µs "
            "(1 device op); by time: 20.0 µs (2 device ops)"
        ),
        "launched before the recording began, outside any step or stage: 10.0 µs (1 device op)",
    )
    sheet = next(s for s in found.sheets if s.name == "placed")
    names = [heading.name for heading in sheet.headings]
    cells = [dict(zip(names, row, strict=True)) for row in sheet.rows]
    assert [(c["stage"], c["by"], c["dur_ns"], c["share_ratio"], c["count"]) for c in cells] == [
        ("gen", "GPU annotation", 30_000, 0.3, 1), ("ref", "time", 20_000, 0.2, 2),
        ("(before the recording)", "launched earlier", 10_000, 0.1, 1),
    ]  # fmt: skip
    assert [word in sheet.caption for word in ("GPU annotation:", "Time:", "Launched earlier:")] == [True] * 3


def test_a_trace_whose_work_is_all_linked_says_nothing_of_it(tmp_path):
    found = section(write(tmp_path / "rank0.json", [annotation("gen", 0, 40), *launched("k", 5, 60, 40, 8)]))
    assert found.caveats == ()
    assert "placed" not in {sheet.name for sheet in found.sheets}


def test_work_of_before_the_recording_is_not_of_the_stage_that_the_file_names(tmp_path):
    name = "actor-rollout-ref_actor-update_step1_rank0-of-1_pid5_20260101000000000.json"
    rows = [op("a", 0, 90), kernel("early", 2, 10, 1), *launched("k", 5, 60, 40, 8)]
    sheet = next(s for s in section(write(tmp_path / name, rows)).sheets if s.name == "placed")
    assert [row[[h.name for h in sheet.headings].index("stage")] for row in sheet.rows] == ["(before the recording)"]
    # The caption explains only what the table has.
    assert sheet.caption == "Launched earlier: its launch id is below those of all recorded calls."


KNOWN = {
    # (ops, ns) without a recorded launch. All were launched before the first recorded call, a synchronisation that
    # the profiler itself makes, or waits for events: they are the end of the step before.
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (509, 13_741_827),
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (463, 13_318_864),
    "hta/negative_queue_length_values_check/rank0.json.gz": (872, 59_526_000),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_backlog_of_real_files_is_in_no_step(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    trace = tracekit.load(Path(REAL) / "chrome" / name)
    found, links = place_device_ops(trace), find_launches(trace)
    before = found.how == PLACED.index("before")
    dur = trace["device_ops"]["dur_ns"].to_numpy()
    assert (int(before.sum()), int(dur[before].sum())) == KNOWN[name]
    assert (before == ~links.linked).all()


WITH_ANNOTATIONS = (
    [
        "hta/nccl_parser_config/nccl_data.json.gz",
        "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
        "tracelens/b200/eager_trace.json.gz",
    ]
    if REAL
    else ["base", "fp32", "wait_side_sync_events", "unfused_attention"]
)


@pytest.mark.parametrize("name", WITH_ANNOTATIONS)
def test_annotations_put_work_of_real_files_where_its_forgotten_launch_was(name):
    """Every other launch is forgotten; where a range holds the op, it tells the stage that the launch told."""
    trace = tracekit.load(Path(REAL) / "chrome" / name if REAL else PAIRS / f"{name}.pt.trace.json.xz")
    truth = find_work_stages(trace)
    ops = trace["device_ops"].copy()
    ops.loc[ops.index[::2], ["correlation", "external_id"]] = pd.NA
    part = replace(trace, tables={**trace.tables, "device_ops": ops})
    told = place_device_ops(part).how == PLACED.index("annotation")
    assert told.sum() > 100
    assert (find_work_stages(part)[told] == truth[told]).all()
