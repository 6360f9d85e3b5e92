"""Requests one by one: shares of a simulated server against what it spent, the tail's cause, and the picture."""

import pytest
from analyses.rl_report import rows, section
from engine_requests import simulate, write_spans

from tracekit.pipeline import analyze

TITLES = {
    "queue": "waiting in the engine's queue", "prefill": "prefill", "decode": "decode", "preempted": "preempted", "tool": "tools",
}  # fmt: skip


def report(path):
    out = analyze(path, questions=("requests", "engine-log", "data-quality"))
    assert section(out, "requests").status == "ok"
    return out


@pytest.mark.parametrize(("seed", "options"), [(0, {}), (1, {"rate": 8.0}), (2, {"preempted": 0.4, "tools": 0.2})])
def test_the_shares_of_2000_simulated_requests_are_those_that_the_server_spent(tmp_path, seed, options):
    spans, truth = simulate(seed=seed, **options)
    assert truth.requests == 2000
    found = report(write_spans(tmp_path / "traces.jsonl", spans))
    shares = {row["part"]: row["share"] for row in rows(found, "requests", "request_parts")}
    for part, seconds in truth.parts.items():
        assert shares[TITLES[part]] == pytest.approx(seconds / truth.total, rel=0.05), part
    assert "2,000 recorded requests" in found.identity


def test_the_cause_of_the_tail_is_the_planted_one(tmp_path):
    # 1 in 20 tools takes 30 to 60 s: the slowest runs wait for these.
    spans, _ = simulate(seed=0)
    (finding,) = report(write_spans(tmp_path / "traces.jsonl", spans)).findings
    assert finding.rule == "request-tail"
    assert "of the difference is tools" in finding.claim
    assert "max_parallel_calls" in finding.advice


def test_the_picture_counts_every_run_once(tmp_path):
    spans, _ = simulate(requests=500, seed=3)
    (chart,) = section(report(write_spans(tmp_path / "traces.jsonl", spans)), "requests").charts
    assert chart.kind == "histogram"
    runs = len({span["traceId"] for span in spans})
    assert sum(count for *_, count in chart.marks) == runs
    assert all(low < high for _, low, high, _ in chart.marks)


def test_a_server_with_room_and_no_tools_has_no_tail_finding(tmp_path):
    spans, _ = simulate(seed=4, rate=2.0, preempted=0.0, tools=0.0)
    found = report(write_spans(tmp_path / "traces.jsonl", spans))
    parts = {row["part"]: row["share"] for row in rows(found, "requests", "request_parts")}
    assert parts[TITLES["decode"]] > 0.9
    assert TITLES["tool"] not in parts
