"""Copies by direction and memory, and their rates: Σ bytes / Σ time in 1e9 bytes per second."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import recorded
from chrome_builder import annotation, kernel, launched, memcpy, memset, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from process.idle_traces import frame_of
from recorded import name_of
from rules.traces import MIB, pageable

import tracekit
from tracekit.analyses.ops.copies import measure, parse_copy_name
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("copies",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
HTOD = "Memcpy HtoD (Pinned -> Device)"


def load(tmp_path, rows):
    return tracekit.load(write(tmp_path / "rank0.json", rows))


def copies(tmp_path, rows):
    return frame_of(measure(load(tmp_path, rows))["copies"])


def sheet(tmp_path, files):
    for name, rows in files.items():
        write(tmp_path / name, rows)
    section = next(
        s for s in analyze_uncached(tmp_path, Options(jobs=1, questions=QUESTIONS)).report.sections if s.id == "copies"
    )
    columns = [heading.name for heading in section.sheets[0].headings]
    return [dict(zip(columns, cells, strict=True)) for cells in section.sheets[0].rows]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "Pageable -> Device")),
        ("Memcpy HtoD (Pinned -> Device)", ("HtoD", "Pinned -> Device")),
        ("Memcpy DtoH (Device -> Pageable)", ("DtoH", "Device -> Pageable")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", "Device -> Device")),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", "Device -> Device")),
        ("Memcpy HtoH (Pageable -> Pinned)", ("HtoH", "Pageable -> Pinned")),
        # ROCm: as Kineto writes it, as roctracer names the work, as HIP names the call.
        ("Memcpy HtoD (Host -> Device)", ("HtoD", "Host -> Device")),
        ("CopyHostToDevice", ("HtoD", "")),
        ("CopyDeviceToHost", ("DtoH", "")),
        ("CopyDeviceToDevice", ("DtoD", "")),
        ("hipMemcpyDtoH", ("DtoH", "")),
        ("Memset (Device)", ("memset", "Device")),
        ("Memset (Unknown)", ("memset", "Unknown")),
        ("Memset", ("memset", "")),
        # What says nothing stays as it is.
        ("Memcpy", ("Memcpy", "")),
        ("FillBuffer", ("FillBuffer", "")),
        ("", ("", "")),
    ],
)
def test_the_name_tells_the_direction_and_the_memory(name, expected):
    assert parse_copy_name(name) == expected


def test_rates_are_all_bytes_over_all_time(tmp_path):
    """3 MB in 1 µs + 1 MB in 3 µs = 4 MB in 4 µs: 1000 GB/s, not the mean of 3000 and 333."""
    row = copies(tmp_path, [memcpy(HTOD, 0, 1, 3_000_000), memcpy(HTOD, 5, 3, 1_000_000)]).iloc[0]
    assert row[["count", "dur_ns", "size_bytes"]].tolist() == [2, 4_000, 4_000_000]
    assert row["gb_per_s"] == 1000
    assert row["max_gb_per_s"] == 3000
    assert row["excluded_count"] == 0


def without_bytes(row):
    return row | {"args": {key: value for key, value in row["args"].items() if key != "bytes"}}


def test_copies_without_time_or_bytes_are_counted_and_left_out_of_the_rate(tmp_path):
    """Rated: 2000 bytes in 2 µs = 1 GB/s. Not rated: no time, no bytes recorded, nothing copied."""
    rows = [
        memcpy(HTOD, 0, 2, 2_000),
        memcpy(HTOD, 5, 0, 700),
        without_bytes(memcpy(HTOD, 10, 9, 0)),
        memcpy(HTOD, 20, 4, 0),
    ]
    row = copies(tmp_path, rows).iloc[0]
    assert row["gb_per_s"] == 1
    assert row[["count", "excluded_count"]].tolist() == [4, 3]
    assert row[["size_bytes", "rated_bytes"]].tolist() == [2_700, 2_000]
    assert row[["dur_ns", "rated_ns"]].tolist() == [15_000, 2_000]


def test_copies_of_which_no_size_is_known_have_no_rate(tmp_path):
    row = copies(tmp_path, [without_bytes(memcpy(HTOD, 0, 2, 0))]).iloc[0]
    assert row[["size_bytes", "gb_per_s", "max_gb_per_s"]].isna().all()
    assert row["excluded_count"] == 1


def test_bytes_written_as_text_are_numbers(tmp_path):
    row = copies(tmp_path, [memcpy(HTOD, 0, 2, "2000"), memcpy(HTOD, 5, 2, "6000")]).iloc[0]
    assert (row["size_bytes"], row["gb_per_s"]) == (8_000, 2)


def test_devices_directions_and_memories_are_rows_of_their_own(tmp_path):
    rows = [
        memcpy(HTOD, 0, 1, 1), memcpy(HTOD, 0, 1, 1, device=1), memcpy("Memcpy HtoD (Pageable -> Device)", 2, 1, 1),
        memcpy("Memcpy DtoH (Device -> Pinned)", 4, 1, 1), memset(6, 1, 1), kernel("k", 8, 1),
    ]  # fmt: skip
    found = copies(tmp_path, rows)
    assert len(found) == 5
    assert found["count"].tolist() == [1] * 5


def test_over_processes_bytes_and_times_are_added_before_they_are_divided(tmp_path):
    """Rank 0: 1 MB in 1 µs; rank 1: 1 MB in 3 µs. Together 2 MB in 4 µs."""
    files = {f"rank{r}.json": [memcpy(HTOD, 0, dur, 10**6)] for r, dur in ((0, 1), (1, 3))}
    (row,) = sheet(tmp_path, files)
    assert (row["count"], row["size_bytes"], row["dur_ns"]) == (2, 2 * 10**6, 4_000)
    assert (row["gb_per_s"], row["max_gb_per_s"]) == (500, 1000)


def test_rows_come_by_time(tmp_path):
    rows = [memcpy(HTOD, 0, 1, 9), memset(5, 8, 1), memcpy("Memcpy DtoD (Device -> Device)", 20, 3, 1)]
    assert [row["direction"] for row in sheet(tmp_path, {"rank0.json": rows})] == [
        "memset", "DtoD", "HtoD",
    ]  # fmt: skip


drawn_copies = st.lists(
    st.tuples(st.sampled_from(["HtoD", "DtoH"]), st.integers(0, 50), st.integers(0, 10**6)), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(drawn_copies)
def test_no_copy_is_lost_or_counted_twice(tmp_path_factory, drawn):
    rows = [memcpy(f"Memcpy {way} (x)", 60 * i, dur, size) for i, (way, dur, size) in enumerate(drawn)]
    found = copies(tmp_path_factory.mktemp("t"), rows)
    assert found["count"].sum() == len(drawn)
    assert found["dur_ns"].sum() == 1000 * sum(dur for _, dur, _ in drawn)
    assert found["size_bytes"].sum() == sum(size for _, _, size in drawn)
    assert found["excluded_count"].sum() == sum(not dur or not size for _, dur, size in drawn)
    for row in found.to_dict("records"):
        rated = [(d, s) for way, d, s in drawn if way == row["direction"] and d and s]
        if not rated:
            assert pd.isna(row["gb_per_s"])
            continue
        seconds = sum(d for d, _ in rated) / 1e6
        assert row["gb_per_s"] == pytest.approx(sum(s for _, s in rated) / 1e9 / seconds)
        assert row["max_gb_per_s"] == pytest.approx(max(s / d / 1000 for d, s in rated))


def test_a_gpu_without_copies_and_a_trace_without_a_gpu_are_told_apart(tmp_path):
    reasons = []
    for name, rows in {"gpu": [kernel("k", 0, 1)], "cpu": [op("a", 0, 1)]}.items():
        report = analyze_uncached(write(tmp_path / name / "r.json", rows), Options(jobs=1, questions=QUESTIONS)).report
        reasons += [(s.status, s.reason) for s in report.sections if s.id == "copies"]
    assert reasons == [
        ("skipped", "no copy was recorded"), ("skipped", "no GPU activity was recorded"),
    ]  # fmt: skip


REAL_WITH_BANDWIDTH = (
    "tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "tracelens/b200/eager_trace.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
)


WITH_BANDWIDTH = [Path(REAL) / "chrome" / name for name in REAL_WITH_BANDWIDTH] if REAL else recorded.TRACES


@pytest.mark.parametrize("path", WITH_BANDWIDTH, ids=name_of)
def test_the_rate_is_the_recorded_one_within_a_per_cent(path):
    """The profiler's own rate of each copy, weighted by time. Of files in nanoseconds: whole µs are too coarse."""
    trace = tracekit.load(path)
    ops = trace["device_ops"]
    recorded = trace.arg("memory bandwidth (GB/s)", "device_ops").astype("Float64")
    ops = ops[recorded.notna() & (ops["dur_ns"] > 0) & (ops["size_bytes"] > 0)]
    assert len(ops)
    recorded = recorded[ops.index].to_numpy(float)
    dur = ops["dur_ns"].to_numpy(float)
    told = np.array([parse_copy_name(str(name)) for name in ops["name"]])
    found = frame_of(measure(trace)["copies"])
    checked = 0
    for row in found[found["gb_per_s"].notna()].to_dict("records"):
        mine = (told == [row["direction"], row["memory"]]).all(axis=1)
        expected = (recorded[mine] * dur[mine]).sum() / dur[mine].sum()
        assert row["gb_per_s"] == pytest.approx(expected, rel=0.01)
        checked += int(mine.sum())
    assert checked == len(ops)


@pytest.mark.parametrize("staged", [True, False])
def test_what_pageable_copies_cost_is_that_of_the_steps_that_count(tmp_path, staged):
    """10 ms a step of 100, and 1.6 ms from pinned memory; the first of four steps does not count: the profiler began in it."""
    rows = pageable(16 * MIB, 10_000, steps=4)
    if staged:
        rows += [annotation("actor_update", number * 100_000, 100_000) for number in range(4)]
    write(tmp_path / "rank0.json", rows)
    report = analyze_uncached(tmp_path, Options(jobs=1, questions=("copies", "transfers"))).report
    (found,) = [finding for finding in report.findings if finding.rule == "pageable-copies"]
    assert found.cost_ns == 8_400_000
    assert found.cost_ratio == pytest.approx(0.084)


@pytest.mark.parametrize(
    ("pageable_ms", "named"),
    [([10, 0, 0, 0], [0]), ([10, 9, 0, 0], [0, 1]), ([10, 10, 10, 0], []), ([10, 0.5, 0.5, 0.5], [0])],
)  # fmt: skip
def test_the_ranks_are_named_where_at_most_half_have_nearly_all_pageable_copies(tmp_path, pageable_ms, named):
    """Every rank has pinned copies, too; 0.5 ms of 10 is next to none."""
    for rank, ms in enumerate(pageable_ms):
        rows = pageable(16 * MIB, round(1_000 * ms) + rank)
        rows = [row for row in rows if ms or "Pageable" not in row["name"]]
        write(tmp_path / f"rank{rank}.json", rows)
    report = analyze_uncached(tmp_path, Options(jobs=1, questions=("copies", "transfers"))).report
    (found,) = [finding for finding in report.findings if finding.rule == "pageable-copies"]
    assert [place.rank for place in found.places if place.rank is not None] == named


def of_pageable(tmp_path, rows):
    """What R08 reports: (claim, saving in ns, evidence) by direction."""
    report = analyze_uncached(
        write(tmp_path / "rank0.json", rows), Options(jobs=1, questions=("copies", "transfers"))
    ).report
    found = [finding for finding in report.findings if finding.rule == "pageable-copies"]
    return {
        finding.places[0].name.split()[0]: (
            finding.claim,
            finding.cost_ns,
            {metric.name: metric.value for metric in finding.evidence},
        )
        for finding in found
    }


@pytest.mark.parametrize(
    ("size", "dur", "fires"),
    [(MIB, 500, True), (MIB - 1, 999, False), (MIB - 1, 1_000, True), (MIB + 1, 999, True)],
)  # fmt: skip
def test_a_mebibyte_or_a_hundredth_of_the_step_is_worth_a_finding(tmp_path, size, dur, fires):
    assert bool(of_pageable(tmp_path, pageable(size, dur))) is fires


def test_the_time_of_small_copies_to_the_device_is_not_worth_a_finding(tmp_path):
    """500 µs of large ones are half a hundredth of 100 ms; from the device, the 600 µs of small ones would count too."""
    rows = pageable(MIB - 1, 500)
    rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at + 60_000, 600, 64_000) for at in (0, 100_000)]
    assert of_pageable(tmp_path / "to", rows) == {}
    from_device = [
        row | {"name": "Memcpy DtoH (Device -> Pageable)"} if "Pageable" in row["name"] else row for row in rows
    ]
    assert list(of_pageable(tmp_path / "from", from_device)) == ["DtoH"]


def mixed(steps):
    """Steps of 100 ms, compute from 4 to 90: pageable copies from 0 to 10 and from 92 to 97, the others beside them."""
    rows = []
    for number in range(steps):
        at = number * 100_000
        rows += [step(number, at, 100_000), *launched("gemm", at, at + 4_000, 86_000, number + 1)]
        rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at, 10_000, 16 * MIB)]
        rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at + 11_000, 2_000, 64_000)]
        rows += [memcpy("Memcpy DtoH (Device -> Pageable)", at + 92_000, 5_000, 8 * MIB)]
        rows += [memcpy("Memcpy DtoH (Device -> Pageable)", at + 97_000, 1_000, 64_000)]
        rows += [memcpy(HTOD, at + 98_000, 125, MIB), memcpy("Memcpy HtoD (Pinned -> Array)", at + 99_000, 900, MIB)]
    return rows


def test_only_the_exposed_time_of_large_pageable_copies_can_be_saved(tmp_path):
    """To the device, 4 of 10 ms are exposed, and pinned copies of these bytes take 2 ms; from it, all 5 are.

    No pinned copy from the device is recorded: 8 MiB at 25 GB/s take 335,544 ns.
    """
    found = of_pageable(tmp_path, mixed(3))
    claim, saving, evidence = found["HtoD"]
    assert (claim, saving) == ("3 H2D copies use pageable host memory", 2_000_000)
    assert (evidence["pageable_bytes"], evidence["pinned_gb_per_s"]) == (16 * MIB, MIB / 125_000)
    assert evidence["gb_per_s"] == pytest.approx((16 * MIB + 64_000) / 12_000_000)
    claim, saving, evidence = found["DtoH"]
    assert (claim, saving) == ("6 D2H copies use pageable host memory", 4_664_456)
    assert (evidence["pageable_bytes"], evidence["pinned_gb_per_s"]) == (8 * MIB + 64_000, None)


def changes_of(tmp_path, rows):
    """The changes of the one finding of R08."""
    path = write(tmp_path / "rank0.json", rows)
    report = analyze_uncached(path, Options(jobs=1, questions=("copies", "transfers"))).report
    (found,) = [finding for finding in report.findings if finding.rule == "pageable-copies"]
    return [json.loads(change) for change in found.changes]


def test_scalars_that_are_read_still_block(tmp_path):
    """16 MB in 10 ms: 64,000 bytes take 40 µs at this rate. A copy of 4 bytes in 2 µs is shorter."""
    rows = pageable(16_000_000, 10_000, pinned=False)
    rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at + 60_000, 2, 4) for at in (0, 100_000)]
    rows = [
        row | {"name": row["name"].replace("HtoD (Pageable -> Device)", "DtoH (Device -> Pageable)")} for row in rows
    ]
    changes = changes_of(tmp_path, rows)
    assert [change["do"] for change in changes] == ["unblock", "scale"]
    assert [change["longer_than_us"] for change in changes] == [40, 40]


@pytest.mark.parametrize(
    ("pinned", "factor"),
    [
        (None, 5 / 25),  # assumed
        ((2_000_000, 50), 5 / 40),  # 2 MB in 50 µs: 40 GB/s, measured
        ((1_000_000, 25), 5 / 25),  # below 1 MiB: not measured
        ((2_000_000, 500), None),  # 4 GB/s: pinned copies are not faster here
    ],
)  # fmt: skip
def test_pinned_copies_keep_their_bytes_at_the_rate_of_pinned_memory(tmp_path, pinned, factor):
    """16 MB in 3.2 ms from pageable memory are 5 GB/s."""
    rows = pageable(16_000_000, 3_200, pinned=False)
    if pinned:
        rows += [memcpy(HTOD, 60_000, pinned[1], pinned[0])]
    path = write(tmp_path / "rank0.json", rows)
    report = analyze_uncached(path, Options(jobs=1, questions=("copies", "transfers"))).report
    (found,) = [finding for finding in report.findings if finding.rule == "pageable-copies"]
    changes = [json.loads(change) for change in found.changes]
    assert changes[0]["do"] == "unblock"
    assert [change["factor"] for change in changes[1:]] == ([] if factor is None else [pytest.approx(factor, abs=1e-4)])
    assert bool(found.caveats) is (pinned is None or pinned[0] < MIB)
