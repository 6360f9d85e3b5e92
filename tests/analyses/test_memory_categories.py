"""What the tensors are for that fill memory: shares of the peak, levels over time and by stage; what is made up."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, op, write
from memory_builder import MIB, pickled
from snapshot_traces import report, rows, section, table
from timeline_files import CHANGES, OURS, T, put, read

from tracekit.analyses.memory import fragmentation, memory_categories, memory_peak
from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.model.trace import Source, Want
from tracekit.process.memory.categories import compute_category_moments, find_peak_per_bin
from tracekit.readers import torch_memory

QUESTIONS = ("memory-categories",)
PARAMETER, ACTIVATION, GRADIENT = 0, 4, 5

STEP = [
    [-1, 1, 600, PARAMETER],
    [T, 2, 300, ACTIVATION], [T + 1_000_000, 2, 500, ACTIVATION],
    [T + 2_000_000, 2, 600, GRADIENT], [T + 2_000_000, 4, -500, ACTIVATION],
    [T + 3_000_000, 4, -300, ACTIVATION], [T + 9_000_000, 4, -600, GRADIENT],
]  # fmt: skip
"""Held: 600, 900, 1,400 (the peak), of one time 1,500, 1,200, 600."""


def measured(tmp_path, made):
    return memory_categories.measure(read(put(tmp_path, made)))


def levels(found):
    made = table(found, "category_levels").set_index("category")
    return {name: tuple(row) for name, row in made.T.to_dict("list").items() if any(row)}


def test_categories_at_the_peak_by_hand(tmp_path):
    found = measured(tmp_path, STEP)
    (peak,) = table(found, "category_peaks").to_dict("records")
    assert peak == {
        "change_count": 7, "begin_ns": T, "end_ns": T + 9_000_000, "peak_bytes": 1500, "peak_ts_ns": T + 2_000_000,
    }  # fmt: skip
    assert levels(found) == {  # before, at the peak, at the end, its own most and least
        "parameter": (600, 600, 600, 600, 600),
        "activation": (0, 300, 0, 800, 0),
        "gradient": (0, 600, 0, 600, 0),
    }


def test_a_peak_before_the_recording_has_no_time(tmp_path):
    found = measured(tmp_path, [[-1, 1, 5, PARAMETER], [T, 4, -5, PARAMETER], [T + 1, 2, 3, ACTIVATION]])  # fmt: skip
    (peak,) = table(found, "category_peaks").to_dict("records")
    assert peak["peak_bytes"] == 5
    assert table(found, "category_peaks")["peak_ts_ns"].isna().all()
    assert levels(found)["parameter"] == (5, 5, 0, 5, 0)


def test_a_timeline_without_times_has_levels_and_no_curve(tmp_path):
    found = measured(tmp_path, [[-1, 1, 5, PARAMETER]])
    assert levels(found) == {"parameter": (5, 5, 5, 5, 5)}
    assert not len(table(found, "category_curve"))
    assert table(found, "category_peaks")["begin_ns"].isna().all()


def test_stretches_keep_the_highest_moment_and_what_was_held_when_they_began(tmp_path):
    of = compute_category_moments(read(put(tmp_path, STEP)))
    assert of.total.tolist() == [600, 900, 1400, 1500, 1200, 600]
    begin, length, chosen = find_peak_per_bin(of, 3)
    # 9,000,001 ns in three: up to 3 ms 900, 1,400, 1,500; then 1,200 only, which also the last begins with.
    assert (begin - T).tolist() == [0, 3_000_001, 6_000_002]
    assert set(length.tolist()) == {3_000_001}
    assert of.total[chosen].tolist() == [1500, 1200, 1200]


@pytest.mark.parametrize("name", ["tl.raw.json.gz", "tl.json.gz"])
def test_a_real_profile_is_the_same_in_both_forms(name):
    found = memory_categories.measure(read(OURS / name))
    (peak,) = table(found, "category_peaks").to_dict("records")
    assert peak["peak_bytes"] == 29_599_912
    assert {key: row[1] for key, row in levels(found).items()} == {
        "parameter": 5_283_872, "optimizer_state": 10_567_768, "input": 65_544, "temporary": 4, "activation": 6_148,
        "gradient": 5_283_872, "autograd_detail": 0, "unknown": 8_392_704,
    }  # fmt: skip
    curve = table(found, "category_curve")
    assert curve.groupby("ts_ns")["level_bytes"].sum().max() == 29_599_912
    assert len(curve) <= 400 * len(CATEGORIES)


def test_the_report_gives_shares_that_sum_to_all_and_the_stage_of_another_profile(tmp_path):
    base = T - 500_000
    write(
        tmp_path / "rank0.json",
        [annotation("update_actor", 0, 4_000), op("aten::mm", 10, 100), annotation("compute_log_prob", 5_000, 9_000)],
        base_ns=base, rank=0, world_size=1,
    )  # fmt: skip
    put(tmp_path, STEP, "rank0_memory.raw.json.gz")
    put(tmp_path, STEP[:3], "rank1_memory.raw.json.gz")
    made = section(report(tmp_path), "memory-categories")
    assert made.status == "ok"
    top, other = rows(made, "category_peaks")
    assert (top["who"], top["peak_bytes"], top["stage"]) == ("rank 0", 1500, "update_actor")
    assert other["stage"] is None
    shares = [r for r in rows(made, "category_levels") if r["source"] == top["source"]]
    assert [(r["category"], r["peak_bytes"]) for r in shares] == [
        ("parameter", 600), ("gradient", 600), ("activation", 300)
    ]  # fmt: skip
    assert sum(r["share_ratio"] for r in shares) == pytest.approx(1)
    stages = {r["stage"]: (r["total_bytes"], r["gradient"]) for r in rows(made, "category_stages")}
    assert stages["update_actor"] == (1500, 600)
    assert memory_categories.GUESSED in made.caveats
    (chart,) = made.charts
    assert chart.kind == "histogram"
    assert chart.series == ("parameter", "activation", "gradient")
    heights = {}
    for _, low, _, value in chart.marks:
        heights[low] = heights.get(low, 0) + value
    assert max(heights.values()) == 1500


def test_a_category_below_nothing_is_told(tmp_path):
    put(tmp_path, [*CHANGES, [T + 9_001, 4, -90, GRADIENT]], "rank0.raw.json.gz")
    made = section(report(tmp_path), "memory-categories")
    assert any("a category below 0" in caveat for caveat in made.caveats)


def test_without_a_timeline_the_question_does_not_arise(tmp_path):
    write(tmp_path / "rank0.json", [op("aten::mm", 0, 10)])
    assert section(report(tmp_path), "memory-categories") is None


# snapshots that torch makes of a profile


def profiled(tmp_path):
    """As `_profile_to_snapshot` writes it: one segment of all addresses, the gaps in it as free blocks."""
    frames = [{"name": "train.py(3): step", "filename": "none", "line": 0}]
    entry = {"action": "alloc", "addr": 1 << 40, "size": 700, "stream": 0, "frames": frames, "category": "activation"}  # fmt: skip
    blocks = [
        {"size": 100, "state": "active_allocated", "requested_size": 100, "frames": []},
        {"size": (1 << 40) - 4096 - 100, "state": "inactive"},
        {"size": 700, "state": "active_allocated", "requested_size": 700, "frames": frames},
    ]
    segment = {"device": 0, "address": 4096, "total_size": (1 << 40) + 700 - 4096, "stream": 0, "blocks": blocks}  # fmt: skip
    path = tmp_path / "profiled.pickle"
    path.write_bytes(pickled({"device_traces": [[entry]], "segments": [segment]}))
    return path


def test_segments_made_up_for_a_profile_are_neither_reserved_nor_fragmented(tmp_path):
    path = profiled(tmp_path)
    trace = torch_memory.read(Source(path, path.name, "torch_memory", "torch_memory"), Want())[0]
    assert [note.code for note in trace.notes] == ["from-profile"]
    assert fragmentation.measure(trace) == {}
    (level,) = table(memory_peak.measure(trace), "snapshot_levels").to_dict("records")
    assert (level["peak_bytes"], level["end_requested_bytes"]) == (800, 800)
    made = table(memory_peak.measure(trace), "snapshot_levels")
    for name in ("peak_reserved_bytes", "reserved_peak_bytes", "end_reserved_bytes", "end_allocated_bytes", "peak_allocated_bytes"):  # fmt: skip
        assert made[name].isna().all(), name
    told = table(memory_peak.measure(trace), "live_sites")
    assert set(told[told["moment"] == "peak"]["category"].dropna()) == {"activation"}


@pytest.mark.skipif("TRACEKIT_REAL_DATA" not in os.environ, reason="real profiles are not here")
def test_a_real_snapshot_of_a_profile_and_its_timeline_hold_the_same_by_category():
    path = Path(os.environ["TRACEKIT_REAL_DATA"], "memory", "CPU_torch2.13", "cpu_profile_snapshot.pickle")  # fmt: skip
    trace = torch_memory.read(Source(path, path.name, "torch_memory", "torch_memory"), Want())[0]
    sites = table(memory_peak.measure(trace), "live_sites")
    at_peak = sites[sites["moment"] == "peak"]
    by_snapshot = at_peak[at_peak["basis"] == "recorded"].groupby("category")["size_bytes"].sum()
    by_stack = at_peak[at_peak["basis"] == "stack"].groupby("category")["size_bytes"].sum()
    by_timeline = {key: row[1] for key, row in levels(memory_categories.measure(read(OURS / "tl.json.gz"))).items()}  # fmt: skip
    # Call stacks place what the profiler could not: square roots and quotients within Adam's step.
    assert by_stack.to_dict() == {"temporary": by_timeline.pop("unknown")}
    assert by_snapshot.to_dict() == {key: size for key, size in by_timeline.items() if size}
    assert MIB < by_snapshot.sum() + by_stack.sum() == 29_599_912
