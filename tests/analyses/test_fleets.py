"""Roles on GPUs of their own: how busy each is while all are captured, and how far they overlap."""

import numpy as np
import pytest
from analyses.rl_report import result, rows, section
from chrome_builder import kernel, op, write
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.analyses.ranks import fleets
from tracekit.model.intervals import merge_intervals

QUESTIONS = ("fleets", "rollout")


def fleet(folder, role, work, rank=0, first=0, last=1000, **meta):
    """One process of a role, captured from `first` to `last`; `work` are (start, length) of its kernels."""
    ends = [op("a", first, 1), op("b", last - 1, 1)]
    name = f"{role}_train_step1_rank{rank}-of-2_pid{100 + rank}_20260101000000000.json"
    return write(folder / name, [*ends, *(kernel("k", at, dur) for at, dur in work)], **meta)


def test_shares_and_overlap_are_of_the_time_that_both_were_captured(tmp_path):
    """Rollout 0-600 (captured 0-1000), training 400-900 and, on its second GPU, 500-700 (captured 200-1200).

    Both captured: 200-1000. Rollout works 400 of 800; training 500 and 200 of 800, some GPU of it 500. Both: 400-600.
    """
    fleet(tmp_path, "rollout", [(0, 600)])
    fleet(tmp_path, "actor", [(400, 500)], 0, 200, 1200)
    fleet(tmp_path, "actor", [(500, 200)], 1, 200, 1200)
    report = result(tmp_path).report
    table = {row["role"]: row for row in rows(report, "fleets", "fleets")}
    assert (table["rollout"]["busy"], table["rollout"]["GPUs"]) == (0.5, 1)
    assert (table["actor"]["busy"], table["actor"]["GPUs"]) == (pytest.approx(0.4375), 2)
    assert table["actor"]["all idle"] == pytest.approx(0.375)
    assert (table["actor"]["first work after"], table["rollout"]["first work after"]) == (200_000, 0)
    assert table["actor"]["captured"] == 800_000
    (overlap,) = section(report, "fleets").metrics
    assert overlap.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("roles", "meta", "reason"),
    [(("actor",), {}, "single role"), (("actor", "rollout"), {"base_ns": None}, "single role")],
)
def test_without_both_on_one_clock_there_is_a_reason_instead(tmp_path, roles, meta, reason):
    for role in roles:
        fleet(tmp_path, role, [(0, 600)], **meta)
    found = section(result(tmp_path).report, "fleets")
    assert found.status == "skipped"
    assert reason in found.reason or "no GPU" in found.reason


def test_roles_captured_one_after_the_other_are_not_compared(tmp_path):
    fleet(tmp_path, "rollout", [(0, 600)])
    fleet(tmp_path, "actor", [(5_000, 600)], 0, 5_000, 6_000)
    found = section(result(tmp_path).report, "fleets")
    assert (found.status, found.reason) == ("skipped", "the roles were not captured at the same time")


def test_without_a_gpu_it_says_so(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 9)])
    assert section(result(tmp_path).report, "fleets").reason == "no GPU activity was recorded"


def test_spans_past_the_cap_close_the_shortest_gaps_and_lose_no_busy_time(tmp_path):
    """1500 kernels of 1 with gaps of 1, one of them of 50."""
    starts = [2 * i + 50 * (i >= 700) for i in range(1500)]
    trace = tracekit.load(write(tmp_path / "rank0.json", [kernel("k", at, 1) for at in starts]))
    found = fleets.measure(trace)["busy_spans"]
    dur, closed = np.asarray(found["dur_ns"]), np.asarray(found["closed_ns"])
    assert len(dur) == fleets.MAX_SPANS
    assert int((dur - closed).sum()) == 1_500_000
    assert int(closed.sum()) == 500 * 1_000


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 30)), min_size=1, max_size=40), st.integers(1, 8))
def test_at_most_so_many_spans_hold_all_that_is_busy(pieces, most):
    start = np.array([at for at, _ in pieces], np.int64)
    spans = merge_intervals(start, start + np.array([dur for _, dur in pieces], np.int64))
    kept = fleets.MAX_SPANS
    try:
        fleets.MAX_SPANS = most
        joined, closed = fleets._limit_busy_spans(spans)
    finally:
        fleets.MAX_SPANS = kept
    assert len(joined.start) == min(most, len(spans.start))
    assert joined.total - int(closed.sum()) == spans.total
