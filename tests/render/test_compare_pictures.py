"""The pictures of a comparison as data, and its first screen."""

from collections import Counter
from math import fsum

import pytest
from compared import MS, STEP, change, comparison
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.compare.comparison import StepValue
from tracekit.compare.reports.charts import (
    build_comparison_charts,
    build_ratio_chart,
    build_steps_chart,
    build_waterfall_chart,
)
from tracekit.compare.reports.comparison_report import (
    add_change_bars,
    build_comparison_report,
    describe_comparison_basis,
)
from tracekit.compare.wall_time.attribution_rows import Attribution, AttributionRow
from tracekit.model.report import Heading, Sheet
from tracekit.render import render

GEN, ACTOR = change("gen", 60, 30, "improvement", low=1.8, high=2.2), change("actor", 30, 40)
FOUND = comparison(GEN, ACTOR)


# From a comparison to charts


def test_the_waterfall_leads_from_one_step_to_the_other():
    # -30 ms of gen, +10 of actor and nothing of the rest is -20: 100 to 80 ms, the largest first.
    chart = build_waterfall_chart(FOUND)
    assert chart.rows == ("step, before", "gen", "actor", "rest of the step", "step, after")
    assert [(m[2] / MS, m[3] / MS) for m in chart.marks] == [
        (0, 100), (100, 70), (70, 80), (80, 80), (0, 80),
    ]  # fmt: skip
    assert [chart.series[m[1]] for m in chart.marks][:3] == [
        "whole step", "takes less", "takes more",
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_the_parts_of_the_waterfall_add_up_to_the_change(times):
    chart = build_waterfall_chart(comparison(*(change(f"s{at}", *pair) for at, pair in enumerate(times) if all(pair))))
    if chart is None:
        assert all(before == after for before, after in times if before and after)
        return
    parts = chart.marks[1:-1]
    assert fsum(m[3] - m[2] for m in parts) == pytest.approx(-20 * MS, abs=1)
    assert [m[2] for m in parts[1:]] == [m[3] for m in parts[:-1]]
    assert (parts[0][2], parts[-1][3]) == (100 * MS, 80 * MS)
    assert len(chart.rows) == len(chart.marks) <= 16


def test_the_waterfall_takes_its_parts_from_the_attribution_where_there_is_one():
    # 15 parts of -1 ms: twelve by name, and one bar for the last three.
    ops = tuple(AttributionRow("gen", f"op {at}", 2 * MS, 1 * MS, -1 * MS) for at in range(15))
    chart = build_waterfall_chart(comparison(GEN, origin=Attribution(100 * MS, 85 * MS, ops=ops)))
    assert chart.rows[:2] == ("step, before", "gen · op 0")
    assert len(chart.rows) == 1 + 12 + 1 + 1
    assert chart.marks[-2][2:] == (88 * MS, 85 * MS)
    assert chart.marks[-1][2:] == (0, 85 * MS)


def test_an_attribution_that_says_nothing_gives_way_to_the_stages():
    assert build_waterfall_chart(comparison(GEN, origin=Attribution(missing="no slots"))).rows[1] == "gen"


def test_a_stage_of_one_side_is_a_part_of_its_own_size():
    rows = dict(zip((c := build_waterfall_chart(comparison(change("new", None, 7)))).rows, c.marks, strict=True))
    assert rows["new"][3] - rows["new"][2] == 7 * MS


def test_without_stages_there_is_no_waterfall():
    assert build_waterfall_chart(comparison()) is None
    assert [chart.id for chart in build_comparison_charts(comparison())] == ["ratios", "steps"]


def test_ratios_stand_with_their_intervals_and_verdicts():
    chart = build_ratio_chart(FOUND)
    assert chart.rows == ("step", "gen", "actor")
    assert chart.marks == ((0, 0, 1.2, 1.25, 1.3), (1, 0, 1.8, 2.0, 2.2), (2, 2, None, 0.75, None))
    assert chart.series == ("faster", "slower", "inconclusive", "no change")
    assert chart.within == 0.03


def test_a_role_is_named_beside_its_stage():
    assert build_ratio_chart(comparison(change("log_prob", 2, 1, role="ref"))).rows[1] == "ref log_prob"


def test_every_step_is_a_dot_in_the_row_of_its_run_and_a_dropped_one_is_hollow():
    chart = build_steps_chart(FOUND)
    assert chart.rows == ("before_run1", "before_run2", "after_run1", "after_run2")
    # before_run1: 97 + 1 + number ms, and its first step does not count.
    assert chart.marks[:3] == (
        (0, 0, 99 * MS, 1, 0), (0, 0, 100 * MS, 2, 1), (0, 0, 101 * MS, 3, 1),
    )  # fmt: skip
    assert {m[1] for m in chart.marks[6:]} == {1}
    assert "Hollow" in chart.caption


def test_of_sides_that_are_not_comparable_only_the_steps_are_drawn():
    assert [c.id for c in build_comparison_charts(comparison(GEN, verdict="not comparable"))] == ["steps"]


def test_more_steps_than_can_be_seen_are_counted():
    many = [StepValue("before", "r", at, float(at + 1), True) for at in range(2_400)]
    many += [StepValue("after", "r", at, float(at + 1), True) for at in range(100)]
    chart = build_steps_chart(comparison(steps=tuple(many)))
    assert (len(chart.marks), chart.omitted) == (2_000, 500)
    assert Counter(mark[1] for mark in chart.marks) == {0: 1_920, 1: 80}


# From charts to pictures


# The first screen


def test_the_answer_says_what_it_rests_on():
    assert describe_comparison_basis(FOUND) == (
        "run-to-run, 2 v 2 runs × 2 steps · could have detected a change of ≥ 3.1 %",
    )
    plan = comparison(needed="Record 9 runs per side to resolve 3 %")
    assert describe_comparison_basis(plan)[1] == "Record 9 runs per side to resolve 3 %"


def test_of_sides_that_are_not_comparable_no_effect_and_no_ratio_is_told():
    page = render(build_comparison_report(comparison(GEN, verdict="not comparable")), "text")
    assert "not comparable" in page
    assert "could have detected" not in page
    assert "ratio of means" not in page


def test_runs_of_different_lengths_are_told_by_their_steps():
    from dataclasses import replace

    uneven = replace(STEP, base_steps=5)
    assert "2 v 2 runs, 5 v 4 steps" in describe_comparison_basis(comparison(step=uneven))[0]


def test_a_bar_is_as_long_as_the_change_beside_the_largest():
    # -40 is full, 8; -20 is half of it; +10 a quarter, hatched; 0 and an unknown one have none.
    sheet = Sheet("s", "S", (Heading("difference", "change", "ns"),), ((-40,), (-20,), (10,), (0,), (None,)))
    assert [row[-1] for row in add_change_bars(sheet).rows] == ["█" * 8, "█" * 4, "▒" * 2, "", ""]


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_the_first_screen_says_what_to_be_careful_of(form):
    warnings = tuple(f"warning {at}" for at in range(8))
    page = render(build_comparison_report(comparison(GEN, ACTOR, warnings=warnings)), form)
    assert "No findings" not in page
    assert "No rule found" not in page
    first = page.split({"md": "<details", "html": '<section id="strip"'}.get(form, "\0"))[0]
    assert [f"warning {at}" in first for at in range(8)] == [True] * 6 + [False] * 2
    assert "could have detected a change of ≥ 3.1 %" in first
    assert "…" not in first.split("Note:")[0].split("<body>")[-1]


def test_further_warnings_are_in_the_details():
    warnings = tuple(f"warning {at}" for at in range(8))
    page = render(build_comparison_report(comparison(GEN, warnings=warnings)), "md")
    assert "warning 7" in page.split("<details", 1)[1]


def test_the_sign_of_a_factor_stands_once():
    page = render(build_comparison_report(FOUND), "text")
    assert "ratio ×" not in page
    assert "1.250×" in page
