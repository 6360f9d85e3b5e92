"""Could something else than the change explain the difference? What recorded times and hosts tell."""

from dataclasses import replace

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, made_side, report, step_rows

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.differences import list_confounder_warnings
from tracekit.compare.judge import compare_sides
from tracekit.compare.reports.comparison_report import describe_comparison
from tracekit.compare.sides import ComparedInput, build_side
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

DAY = 86_400 * 10**9
SAMPLED = made_side("base", step_rows(*BASE_RUNS)), made_side("opt", step_rows(*OPT_RUNS))


def made(name, *captures):
    """A side with these captures: (run, first instant, length, host, whether the clock has an epoch)."""
    columns = {
        "run": [c[0] for c in captures], "ts_ns": [c[1] for c in captures], "dur_ns": [c[2] for c in captures],
        "host": [c[3] for c in captures], "absolute_time": [c[4] for c in captures],
    }  # fmt: skip
    table = TABLES["captures"]
    columns |= {
        key: ["x" if column.dtype == "category" else 0] * len(captures)
        for key, column in table.columns.items()
        if key not in columns and column.dtype not in ("Int64", "Float64")
    }
    measured = Measurements({"captures": table.cast(columns, len(captures))}, (), (), (), {})
    return build_side(name, [ComparedInput(name, report(step_rows([1, 1])), measured)], 0)


def runs(*starts, host="node1", absolute=True, label="run"):
    return [(f"{label}{n}", start * DAY, 1000, host, absolute) for n, start in enumerate(starts)]


def warnings(base, opt):
    return list(list_confounder_warnings(made("base", *base), made("opt", *opt)))


def test_all_base_runs_before_all_opt_runs_is_said():
    assert warnings(runs(1, 2), runs(3, 4)) == [
        "all base runs ran before all opt runs: drift between them cannot be separated from the change (alternate the runs)"
    ]
    assert warnings(runs(3, 4), runs(1, 2))[0].startswith("all base runs ran after all opt runs:")


def test_a_verdict_between_sessions_is_not_plain():
    sides = [made("base", *runs(1, 2)), made("opt", *runs(3, 4))]
    faster = [replace(one, samples=side.samples) for one, side in zip(sides, SAMPLED, strict=True)]
    found = compare_sides(*faster, ComparisonChoices())
    assert found.verdict == "improvement"
    assert found.sessions_apart
    assert describe_comparison(found).endswith(" · if nothing else changed in between")
    alternating = [made("base", *runs(1, 3)), made("opt", *runs(2, 4))]
    plain = [replace(one, samples=side.samples) for one, side in zip(alternating, SAMPLED, strict=True)]
    assert "nothing else" not in describe_comparison(compare_sides(*plain, ComparisonChoices()))


def test_on_other_hosts_as_well_is_one_warning():
    (line,) = warnings(runs(1, 2), runs(3, 4, host="node2"))
    assert line.startswith("all base runs ran before all opt runs, on other hosts:")


def test_runs_that_alternate_are_no_concern():
    assert warnings(runs(1, 3), runs(2, 4)) == []


def test_runs_that_follow_at_once_are_one_after_the_other():
    """The last base run ends in the instant in which the first opt run starts."""
    base = [("a", 0, 10, "n", True), ("b", 10, 10, "n", True)]
    assert len(warnings(base, [("c", 20, 5, "n", True), ("d", 25, 5, "n", True)])) == 1
    assert warnings(base, [("c", 19, 5, "n", True), ("d", 25, 5, "n", True)]) == []


def test_one_run_a_side_is_one_after_the_other_in_any_case():
    assert warnings(runs(1), runs(2)) == []


def test_clocks_without_an_epoch_say_nothing_of_the_order():
    assert warnings(runs(1, 2, absolute=False), runs(3, 4)) == []


def test_sides_on_other_hosts_are_told():
    assert warnings(runs(1), runs(2, host="node2")) == [
        "the sides ran on different hosts: a difference between hosts cannot be separated from the change"
    ]


@pytest.mark.parametrize("host", [None, "node1"])
def test_hosts_that_are_unknown_or_shared_are_no_other_hosts(host):
    assert warnings(runs(1), runs(2, host=host)) == []


def test_a_run_lasts_from_its_first_rank_to_its_last():
    base = [("a", 0, 10, "n", True), ("a", 40, 10, "n", True), ("b", 5, 1, "n", True)]
    assert warnings(base, [("c", 30, 5, "n", True), ("d", 60, 5, "n", True)]) == []


def test_saved_reports_say_nothing_of_the_design():
    saved = build_side("base", [ComparedInput("base", report(step_rows([1, 1])), None)], 0)
    assert list(list_confounder_warnings(saved, made("opt", *runs(1, 2)))) == []
    assert saved.measured == ()
