"""Communication: rates and sizes (M12), ranks (M14), parts that add up, and real files."""

import os
from pathlib import Path

import pandas as pd
import pytest
from analyses.communication_sections import QUESTION, late, measured, rows_of, rules, section
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.firing import write_sources
from rules.traces_communication import LARGE, nccl, small_ones

from tracekit.analyses import load_default_thresholds
from tracekit.job.collectives.traffic import (
    compute_collective_rates,
    compute_wire_factor,
    list_rated_collectives,
    list_wait_intervals,
    measure_exposed_coverage,
    sum_traffic_by_rank,
)
from tracekit.job.stages.windows import list_rows_of_windows
from tracekit.model.tables.frame import sum_of

QUESTIONS = ("communication",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")


# Rates and sizes (M12)


@pytest.mark.parametrize(
    ("op_name", "ranks", "factor"),
    [
        ("all_reduce", 2, 1), ("all_reduce", 4, 1.5), ("all_reduce", 8, 1.75), ("reduce_scatter", 4, 0.75),
        ("all_gather", 4, 0.75), ("all_to_all", 8, 0.875), ("broadcast", 8, 1), ("send", 2, 1), ("reduce", None, 1),
        ("all_reduce", None, None), ("all_reduce", 1, None), ("broadcast", 1, None),
    ],
)  # fmt: skip
def test_what_crosses_the_wire_of_a_rank(op_name, ranks, factor):
    assert compute_wire_factor(op_name, ranks) == factor


def test_rates_are_all_bytes_over_all_time(tmp_path):
    """Four ranks, 6 MB in 2 µs and 2 MB in 6 µs: 8 MB / 8 µs = 1000 GB/s, times 1.5; the fastest 3000 times 1.5."""
    four = (0, 1, 2, 3)
    rows = [
        *nccl("allreduce", 0, 10, 2, 1, 6_000_000, ranks=four),
        *nccl("allreduce", 1, 20, 6, 2, 2_000_000, ranks=four),
    ]
    (row,) = rows_of(section(tmp_path, rows), "collectives")
    assert [row[n] for n in ("op", "group_size", "dtype", "size", "count", "size_bytes", "dur_ns")] == [
        "all_reduce", 4, "uint8", "1 – 16 MiB", 2, 8_000_000, 8_000,
    ]  # fmt: skip
    assert (row["algbw"], row["busbw"], row["max_busbw"]) == (1000, 1500, 4500)
    assert (row["exposed_ns"], row["hidden_ratio"]) == (8_000, 0)


def test_what_has_no_bytes_or_time_is_in_no_rate_but_counted(tmp_path):
    rows = [
        *nccl("allreduce", 0, 10, 2, 1, 6_000_000),
        *nccl("allreduce", 1, 20, 0, 2, 6_000_000),
        *nccl("allreduce", 2, 30, 5, 3, 6_000_000, "Mine"),
    ]
    known, unknown = sorted(rows_of(section(tmp_path, rows), "collectives"), key=lambda r: r["dtype"] == "Mine")
    assert (known["count"], known["algbw"], unknown["count"]) == (2, 3000, 1)
    assert unknown["algbw"] is unknown["size_bytes"] is unknown["size"] is None


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "< 64 KiB"), (2**16 - 1, "< 64 KiB"), (2**16, "64 KiB – 1 MiB"), (2**20, "1 – 16 MiB"),
        (2**24, "16 – 256 MiB"), (2**28 - 1, "16 – 256 MiB"), (2**28, "≥ 256 MiB"), (2**50, "≥ 256 MiB"),
    ],
)  # fmt: skip
def test_size_classes(tmp_path, size, label):
    (row,) = rows_of(section(tmp_path, nccl("broadcast", 0, 20, 5, 1, size)), "collectives")
    assert row["size"] == label


def test_the_histogram_goes_from_power_to_power(tmp_path):
    """0; 1; 1023 in [512, 1024); 1024 in [1024, 2048); a barrier and an unknown size not at all."""
    sizes = [("broadcast", 0), ("broadcast", 1), ("allreduce", 1023), ("allreduce", 1024), ("barrier", 0)]
    rows = [op("a", 0, 900)]
    for at, (name, size) in enumerate(sizes, start=1):
        rows += nccl(name, at, 20 * at, 5, at, size)
    rows += nccl("broadcast", 9, 400, 5, 99, 7, "Mine")
    (chart,) = [c for c in section(tmp_path, rows).charts if c.kind == "histogram"]
    found = {(chart.series[s], low, high, count) for s, low, high, count in chart.marks}
    assert found == {
        ("broadcast", 0, 1, 1), ("broadcast", 1, 2, 1), ("all_reduce", 512, 1024, 1), ("all_reduce", 1024, 2048, 1),
    }  # fmt: skip
    assert chart.caption == "1 without a known size are not shown."


def test_a_stage_is_told_per_step_and_rank(tmp_path):
    """Two ranks, two steps, two collectives of 1 MiB and 10 µs in each."""
    rows = []
    for number in (0, 1):
        rows += [step(number, 200 * number, 200), annotation("actor_update", 200 * number, 200)]
        for k in (1, 2):
            at = 200 * number + 20 * k
            rows += nccl("allreduce", at, at + 5, 10, 10 * number + k, 2**20)
    (row,) = rows_of(section(tmp_path, {0: rows, 1: rows}), "collectives_by_stage")
    assert [row[n] for n in ("stage", "op", "count", "size_bytes", "dur_ns", "wait_ns")] == [
        "update_actor", "all_reduce", 2, 2**21, 20_000, 0,
    ]  # fmt: skip


# Ranks (M14)


def test_a_rank_s_communication_is_a_union_and_so_is_the_time_of_its_bytes(tmp_path):
    """Collectives 10-30 and 20-40: 30; compute 0-15 and 35-50: 20 exposed of 50; 2 × 30 KB in 30 µs: 2 GB/s."""
    rows = [
        *launched("gemm", 0, 0, 15, 1), *launched("gemm", 1, 35, 15, 2),
        *nccl("broadcast", 2, 10, 20, 3, 30_000), *nccl("broadcast", 3, 20, 20, 4, 30_000),
    ]  # fmt: skip
    found = section(tmp_path, rows)
    (row,) = rows_of(found, "communication_by_rank")
    assert [row[n] for n in ("window_ns", "comm_ns", "exposed_ns", "count")] == [50_000, 30_000, 20_000, 2]
    assert (row["comm_ratio"], row["exposed_ratio"], row["wire_gb_per_s"]) == (0.6, 0.4, 2)
    metrics = {metric.name: metric.value for metric in found.metrics}
    assert metrics == {"comm_ratio": 0.6, "exposed_comm_ratio": 0.4, "wire_gb_per_s": 2}
    (chart,) = [c for c in found.charts if c.kind == "bars"]
    assert chart.series == ("overlapped with compute", "exposed")
    assert chart.marks == ((0, 0, 10_000), (0, 1, 20_000))


def test_what_waits_for_another_rank_is_told_apart(tmp_path):
    """Rank 0 comes at 40, rank 1 at 90, both leave at 100: rank 0 waits 50 of its 60."""
    found = section(tmp_path, late(rank1_at=90))
    rows = rows_of(found, "communication_by_rank")
    assert [(r["rank"], r["comm_ns"], r["wait_ns"]) for r in rows] == [(0, 70_000, 50_000), (1, 20_000, 0)]
    (row,) = rows_of(found, "collectives")
    # Each moves 1 MiB four times; over 10 µs each where nobody waits, over 90 µs in all.
    assert row["busbw"] == pytest.approx(4 * 2**20 / 90_000)
    assert row["transfer_busbw"] == pytest.approx(4 * 2**20 / 40_000)
    (chart,) = [c for c in found.charts if c.kind == "bars"]
    assert chart.series == ("overlapped with compute", "exposed", "waiting")
    assert chart.marks == ((0, 1, 20_000), (0, 2, 50_000), (1, 1, 20_000))


# Whatever there is


@pytest.mark.parametrize("rows", [[op("a", 0, 5)], [*launched("gemm", 0, 5, 5, 1)]])
def test_without_collectives_the_section_is_skipped(tmp_path, rows):
    found = section(tmp_path, rows)
    assert (found.status, found.reason) == ("skipped", "no collective was recorded")


def test_runs_and_roles_are_judged_by_themselves(tmp_path):
    for run, size in (("a", 4), ("b", LARGE)):
        write(tmp_path / run / "rank0.json", small_ones(size))
    found = QUESTION.judge(measured([str(tmp_path / "a"), str(tmp_path / "b")]), load_default_thresholds())
    assert [f.claim for f in found.findings] == ["2 of 10 collectives move less than 64.0 KiB each (run a)"]


def test_sums_per_step_and_stage_for_compare(tmp_path):
    """Two that overlap by 5 run for 15; the step holds both, the stage one."""
    rows = [step(1, 0, 100), annotation("gen", 0, 15), *nccl("allreduce", 5, 30, 10, 1, 8), *nccl("allreduce", 20, 35, 10, 2, 8)]  # fmt: skip
    frame = measured(write_sources(tmp_path, rows))["metrics"]
    frame = frame[frame["name"].isin(("comm", "comm_count", "comm_bytes"))]
    told = {(row["name"], None if pd.isna(row["stage"]) else row["stage"]): row["value"] for row in frame.to_dict("records")}  # fmt: skip
    assert told == {
        ("comm", None): 15_000, ("comm_count", None): 2, ("comm_bytes", None): 16,
        ("comm", "gen"): 10_000, ("comm_count", "gen"): 1, ("comm_bytes", "gen"): 8,
    }  # fmt: skip
    assert set(frame["step"]) == {1}


def test_what_was_cut_is_said(tmp_path, monkeypatch):
    from tracekit.process.collectives import table as module

    monkeypatch.setattr(module, "MAX_ROWS", 4)
    found = section(tmp_path, small_ones(4))
    assert "6 collectives exceed the limit per source: the earliest are shown" in found.caveats


PARTS = st.lists(
    st.tuples(
        st.sampled_from(("allreduce", "broadcast", "barrier", "gemm")), st.integers(0, 150),
        st.integers(0, 60), st.integers(0, 3), st.sampled_from((0, 4, 2**20)),
    ), max_size=10,
)  # fmt: skip


@settings(max_examples=5, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3), st.booleans())
def test_parts_add_up_on_any_ranks(tmp_path_factory, ranks, staged):
    folder = tmp_path_factory.mktemp("any")
    for rank, parts in enumerate(ranks):
        rows = [step(1, 0, 250)] + [annotation("actor_update", 0, 200)] * staged
        for number, (name, start, dur, device, size) in enumerate(parts, start=1):
            if name == "gemm":
                rows += launched(name, 0, start, dur, number, device=device)
            else:
                rows += nccl(name, 0, start, dur, number, size, device=device)
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks))
    found = measured(folder)
    judged = QUESTION.judge(found, load_default_thresholds())
    rows = list_rated_collectives(found)
    windows = list_rows_of_windows(found, "gpu_time")
    wait = measure_exposed_coverage(list_wait_intervals(rows), windows)
    assert (wait.values <= windows["exposed_comm_ns"]).all()
    per_kind = compute_collective_rates(rows, ["op", "group"])
    assert per_kind["count"].sum() == len(rows)
    assert per_kind["dur_ns"].sum() == rows["dur_ns"].sum()
    if len(rows):
        per_rank = sum_traffic_by_rank(found)
        assert per_rank.integers("count").sum() == len(rows)
        assert (per_rank.integers("exposed_ns") <= per_rank.integers("comm_ns")).all()
        assert (per_rank.integers("comm_ns") <= per_rank.integers("window_ns")).all()
    for one in judged.findings:
        assert one.cost_ns >= 0


def test_the_order_of_files_and_rows_changes_nothing(tmp_path):
    files = late(rank1_at=90, whole=400)
    one = section(tmp_path / "a" / "run", files)
    other = section(tmp_path / "b" / "run", {rank: files[rank][::-1] for rank in (1, 0)})
    assert one == other


# Real files


@needs_data
def test_every_mini_batch_of_the_toy_reduces_all_its_parameters():
    """4,445,184 bytes of parameters, two mini-batches a step, four ranks; six steps."""
    found = measured(Path(REAL) / "chrome/gloo_cpu/base_run1")
    rows = list_rated_collectives(found)
    reduced = rows.filter(rows.equals("canonical", "update_actor") & rows.equals("op", "all_reduce"))
    sent = rows.filter(rows.equals("canonical", "update_weights"))
    of_reduced, of_sent = (
        part.group_by("rank", "step").agg(total=sum_of("size_bytes")).values("total") for part in (reduced, sent)
    )
    assert len(of_reduced) == 24
    assert set(of_reduced) == {2 * 4_445_184}
    assert set(of_sent) == {4_445_184}
    assert not rows.is_missing("issue_ns").any()
    assert not rows.is_missing("wait_ns")[rows["synchronising"]].any()
    assert rules(QUESTION.judge(found, load_default_thresholds())) == []


@needs_data
def test_the_straggler_of_the_toy_is_waited_for_and_waits_least():
    ranks = sum_traffic_by_rank(measured(Path(REAL) / "chrome/gloo_cpu/straggler")).sort("wait_ns")
    assert ranks.values("rank")[0] == 2
    least, second = ranks.values("wait_ns")[:2]
    assert least < second / 5


@needs_data
def test_rates_of_a_real_nccl_trace():
    """Two A100s; the collectives' sums are those of the breakdown by time, since they do not overlap.

    all_reduce: 306,684,384 bytes in 46,762,159 ns = 6.558 GB/s, times 2(n−1)/n = 1.
    """
    found = measured(Path(REAL) / "chrome/hta/nccl_parser_config/nccl_data.json.gz")
    (row,) = sum_traffic_by_rank(found).rows()
    assert (row["comm_ns"], row["exposed_ns"], row["count"]) == (46_876_493, 39_559_468, 21)
    per = {row["op"]: row for row in compute_collective_rates(list_rated_collectives(found), ["op"]).rows()}
    assert (per["all_reduce"]["size_bytes"], per["all_reduce"]["dur_ns"]) == (306_684_384, 46_762_159)
    assert per["all_reduce"]["busbw"] == pytest.approx(306_684_384 / 46_762_159)
    (one,) = QUESTION.judge(found, load_default_thresholds()).findings
    assert (one.rule, one.places[0].name) == ("exposed-communication", "all_reduce")


@needs_data
@pytest.mark.parametrize(
    ("path", "op_name", "count"),
    [
        ("hta/negative_queue_length_values_check/rank0.json.gz", "all_to_all", 45),
        ("hta/trace_diff/control/control.json.gz", "all_to_all", 42),
        ("tracelens/b200/eager_trace.json.gz", "all_reduce", 73),
        ("hta/cpu_only", "all_reduce", 10),
    ],
)
def test_operations_are_known_without_metadata(path, op_name, count):
    rows = list_rated_collectives(measured(Path(REAL) / "chrome" / path))
    assert rows.equals("op", op_name).sum() == count
