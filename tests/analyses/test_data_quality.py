"""What a source holds, what is odd about it, and that what was not recorded is said to be unknown."""

import os
from pathlib import Path

import pandas as pd
import pytest
from chrome_builder import (
    BASE_NS,
    annotation,
    kernel,
    launch,
    launched,
    memcpy,
    op,
    step,
    write,
)  # fmt: skip

import tracekit
from tracekit.analyses.trust.data_quality import measure
from tracekit.model.tables import TABLES
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("data-quality", "gpu-time")

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def checks(tmp_path, rows, **meta):
    """(count, ns) of every check by name."""
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows, **meta)))["quality"]
    found = TABLES["quality"].frame(found)
    return {
        name: tuple(None if pd.isna(value) else int(value) for value in pair)
        for name, *pair in zip(found["name"], found["count"], found["dur_ns"], strict=True)
    }


def capture(tmp_path, rows, **meta):
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows, **meta)))["captures"]
    row = TABLES["captures"].frame(found).astype(object).iloc[0].to_dict()
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def sources(path):
    report = analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report
    section = next(s for s in report.sections if s.id == "data-quality")
    columns = [heading.name for heading in section.sheets[0].headings]
    return [dict(zip(columns, cells, strict=True)) for cells in section.sheets[0].rows]


def test_a_capture_spans_from_the_first_start_to_the_last_end_of_anything(tmp_path):
    """Host 10-75, device 30-90."""
    rows = [op("a", 10, 65), *launched("k", 12, 30, 60, 1)]
    found = capture(tmp_path, rows, rank=3, world_size=8, deviceProperties=[{"name": "H100"}] * 2)
    assert found["ts_ns"] == BASE_NS + 10_000
    assert found["dur_ns"] == 80_000
    assert (found["host_op_count"], found["device_op_count"]) == (2, 1)
    assert (found["world_size"], found["backend"], found["device_name"]) == (8, "nccl", "H100")
    assert found["absolute_time"]


def test_an_op_that_cannot_be_true_does_not_stretch_the_capture(tmp_path):
    rows = [op("a", 0, 100), *launched("k", 1, 10, 5, 1), kernel("corrupt", 20, 2_500_000)]
    assert capture(tmp_path, rows)["dur_ns"] == 100_000
    assert checks(tmp_path, rows)["device_ops"] == (1, 5_000)


def test_what_is_not_recorded_is_unknown(tmp_path):
    found = capture(tmp_path, [op("a", 0, 1)], base_ns=None)
    assert [found[name] for name in ("device_name", "backend")] == [None, None]
    assert pd.isna(found["world_size"])
    assert not found["absolute_time"]


def test_gpus_of_two_models_have_no_common_name(tmp_path):
    properties = [{"name": "H100"}, {"name": "A100"}]
    assert capture(tmp_path, [kernel("k", 0, 1)], deviceProperties=properties)["device_name"] is None


def test_every_check_counts_what_it_says(tmp_path):
    """Of six ops: one without launch (7), one of no duration, one that begins before its launch at 60."""
    rows = [
        op("a", 0, 100), op("b", 3, 0), *launched("k", 1, 10, 20, 1), kernel("orphan", 40, 7, 404),
        *launched("empty", 2, 50, 0, 2), launch(60, 3), kernel("early", 59, 2, 3),
        *launched("ncclDevKernel", 5, 70, 10, 4, stream=9),
        *launched("ncclDevKernel", 6, 80, 11, 5, stream=9, **{"Collective name": "allreduce", "In msg nelems": 4}),
    ]  # fmt: skip
    assert checks(tmp_path, rows) == {
        "host_zero_duration": (1, None),
        "device_ops": (6, 50_000),
        "device_zero_duration": (1, None),
        "unlinked": (1, 7_000),
        "starts_before_launch": (1, None),
        "collectives_without_metadata": (1, 10_000),
        "ranges_beyond_cap": (0, None),
    }


def test_without_a_gpu_only_checks_of_the_host_are_made(tmp_path):
    assert set(checks(tmp_path, [op("a", 0, 1)])) == {"host_zero_duration", "ranges_beyond_cap"}


def test_the_sheet_has_shares_per_source(tmp_path):
    """rank 0: 25 of 100 without launch; rank 1: none."""
    write(tmp_path / "rank0.json", [op("a", 0, 200), *launched("k", 1, 5, 75, 1), kernel("x", 90, 25)])
    rows = [op("a", 0, 200), *launched("k", 1, 5, 30, 1), *launched("k", 2, 25, 30, 2)]
    write(tmp_path / "rank1.json", rows)
    found = sources(tmp_path)
    assert [row["unlinked_ratio"] for row in found] == [0.25, 0]
    assert [row["device_op_count"] for row in found] == [2, 2]
    assert [row["source"] for row in found] == ["rank0.json", "rank1.json"]


def test_a_source_without_gpu_among_others_has_no_shares_rather_than_none(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 99), *launched("k", 1, 5, 9, 1)])
    write(tmp_path / "rank1.json", [op("a", 0, 99)])
    assert [row["unlinked_ratio"] for row in sources(tmp_path)] == [0, None]


def test_without_a_gpu_the_sheet_speaks_of_none(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 99)])
    (row,) = sources(tmp_path)
    assert not {"device_op_count", "unlinked_ratio"} & set(row)


def test_damage_is_counted_beside_its_source(tmp_path):
    body = write(tmp_path / "rank0.json", [op("a", 0, 9), op("b", 9, 9)]).read_bytes()
    (tmp_path / "rank0.json").write_bytes(body[:-10])
    write(tmp_path / "rank1.json", [op("a", 0, 9)])
    assert [row["notes"] > 0 for row in sources(tmp_path)] == [True, False]


def test_sizes_of_copies_do_not_matter_here(tmp_path):
    rows = [op("a", 0, 99), memcpy("Memcpy HtoD (Pinned -> Device)", 5, 9, 10**12, 1), launch(1, 1)]
    assert checks(tmp_path, rows)["unlinked"] == (0, 0)


KNOWN = {
    # (unlinked, collectives known by their name alone); None: not known.
    "tracelens/b200/eager_trace.json.gz": (None, 73),
    "hta/negative_queue_length_values_check/rank0.json.gz": (872, 80),
    "hta/nccl_parser_config/nccl_data.json.gz": (None, 0),
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (509, 0),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_real_files_have_the_known_oddities(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    trace = tracekit.load(Path(REAL) / "chrome" / name)
    assert trace.notes == ()
    found = TABLES["quality"].frame(measure(trace)["quality"])
    counts = dict(zip(found["name"], found["count"], strict=True))
    unlinked, bare = KNOWN[name]
    assert unlinked is None or counts["unlinked"] == unlinked
    assert counts["collectives_without_metadata"] == bare


def test_what_a_cut_file_lacks_does_not_count_as_idle_gpu_time(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 100), *launched("k", 1, 2, 3, 1)]
    whole = write(tmp_path / "whole" / "rank0.json", rows).read_bytes()
    cut = tmp_path / "cut" / "rank0.json"
    cut.parent.mkdir()
    cut.write_bytes(whole.removesuffix(b"]}"))
    report = analyze_uncached(cut.parent, Options(questions=QUESTIONS)).report
    assert not [f for f in report.findings if f.rule == "low-gpu-utilization"]
    assert "idle_ratio" not in {metric.name for metric in report.headline}
    section = next(s for s in report.sections if s.id == "gpu-time")
    assert (section.status, "damaged" in section.reason) == ("skipped", True)
