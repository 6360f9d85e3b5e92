"""First screens of the small cases: unexplained time, one finding per rule, and always a table."""

from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "data" / "cases"
NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())

MS = 1_000_000


def values(report):
    return {metric.name: metric.value for metric in report.headline}


def findings(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


WITHOUT_TIME = {"verl_async_log"}
"""A driver's log alone: its numbers are not step times of a trace."""


@pytest.mark.parametrize("name", NAMES)
def test_every_first_screen_with_a_step_or_a_capture_has_a_table(case, name):
    report = case(name).report
    if report.headline and name not in WITHOUT_TIME:
        assert report.overview is not None
        assert report.overview.rows


@pytest.mark.parametrize("name", NAMES)
def test_unexplained_time_is_a_share_and_has_a_sentence_from_3_percent(case, name):
    report = case(name).report
    share = values(report).get("unexplained_ratio")
    if share is None:
        return
    assert 0 <= share <= 1
    parts = [text for text in report.cautions if "is unexplained" in text]
    if share > 0.06:  # of idle and waiting time one is above 3 %
        assert parts


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_has_one_finding_for_the_stages_of_a_run_and_role(case, name):
    seen = set()
    for finding in case(name).report.findings:
        places = finding.places
        stages = {place.stage for place in places if place.stage}
        if not stages or finding.rule == "straggler" or not finding.recoverable_ns:
            continue
        scope = (
            finding.rule,
            finding.is_catch_all,
            *(frozenset(getattr(place, name) for place in places) for name in ("run", "role")),
        )
        assert scope not in seen
        seen.add(scope)


def test_idle_stages_are_one_catch_all(case):
    """Four stages of 4.40 ms, idle 1.576 ms each, of 19.9 ms: 6.30 ms without a known cause; 2 ms outside them are R29's."""
    report = case("workflow_commands").report
    (finding,) = findings(report, "low-gpu-utilization")
    assert finding.is_catch_all
    assert finding.recoverable_ns == pytest.approx(6.30 * MS, rel=0.01)
    assert len(finding.parts) == 4
    (pause,) = findings(report, "host-silence")
    unexplained = values(report)["idle_ratio"] - pause.recoverable_ratio
    assert values(report)["unexplained_ratio"] == pytest.approx(unexplained)
    assert any("33 % idle time is unexplained" in text for text in report.cautions)


def test_exposed_communication_of_five_stages_is_one_finding(case):
    """0.782 + 0.319 ms of 28.0 count; 0.145, 0.144 and a smaller one are below 1 % of the step each."""
    (finding,) = findings(case("host_clocks_10ms_apart_clean").report, "exposed-communication")
    assert len(finding.parts) == 5
    assert finding.recoverable_ns == sum(part.recoverable_ns for part in finding.parts[:2])
    assert finding.recoverable_ns == pytest.approx(1.10 * MS, rel=0.01)


def test_garbage_collection_is_named(case):
    """858 `Python GC` rows take 1,757 of 2,214 ms."""
    report = case("python_gc").report
    first = report.findings[0]
    assert first.rule == "garbage-collection"
    assert "garbage collection" in first.claim
    assert [f.rule for f in report.findings if f.recoverable_ns] == ["garbage-collection"]
    assert first.recoverable_ns == pytest.approx(1_757 * MS, rel=0.01)
    assert first.recoverable_ratio == pytest.approx(1_757 / 2_214, rel=0.01)
    assert values(report)["unexplained_ratio"] < 0.01


def test_the_op_that_took_the_time_is_in_the_table(case):
    """addmm takes 98 % of the time of a model that ran on the CPU."""
    table = case("25_ran_on_cpu_gpu_present").report.overview
    names = [heading.name for heading in table.headings]
    row = dict(zip(names, table.rows[0], strict=True))
    assert row["name"] == "aten::addmm"
    assert row["self_ns"] == pytest.approx(1_200 * MS, rel=0.01)


@pytest.mark.parametrize("name", ["24_launches_no_kernels", "21_mtia", "unknown_category"])
def test_a_trace_without_gpu_rows_shows_its_operators(case, name):
    assert "Operators by their own host time" in case(name).screen
