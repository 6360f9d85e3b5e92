"""Abstentions that matter have a price, and are on the first screen with what would prove them."""

from dataclasses import replace

import pytest
from chrome_builder import launched
from rules.firing import write_sources
from rules.traces_stragglers import rank_group

from tracekit.model.report import Finding, Report, Section, Verdict
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.summary.unproven import drop_repeated_estimates
from tracekit.render import phrases, render
from tracekit.render.json import read_report_json, write_report_json


def report_on(folder, steps):
    """Two ranks, ten collectives a step: rank 1 works 70 µs before each, rank 0 only 50."""
    rows = rank_group([[[50, 70]] * 10] * steps)
    return analyze_uncached(write_sources(folder, rows), Options()).report


def test_a_late_rank_in_too_few_steps_has_a_price(tmp_path):
    """Of two ranks six steps prove it; in three, rank 1 works 200 µs a step longer, which rank 0 waits for.

    A segment lasts 100 µs; rank 0 waits 20 of it, the transfer takes 5: its own work is 750 µs, and 200 are 27 % of that.
    """
    report = report_on(tmp_path, 3)
    (verdict,) = [v for v in report.unproven if v.rule == "straggler"]
    assert verdict.price_ns == 200_000
    assert verdict.claim == "rank 1 is 27 % busier in 3 of 3 steps"
    assert verdict.needs == "6 steps would prove it"
    assert phrases.list_unproven_claims(report, report.findings)[0] == (
        "rank 1 is 27 % busier in 3 of 3 steps (200 µs of 1.00 ms); 6 steps would prove it"
    )


def test_what_is_proven_is_a_finding_and_has_no_price(tmp_path):
    report = report_on(tmp_path, 6)
    assert [f.rule for f in report.findings if f.rule == "straggler"]
    assert [v.rule for v in report.unproven if v.rule in ("straggler", "rank-imbalance")] == []


def abstention(rule="straggler", price=50, ratio=0.05, run=None, claim="rank 1 is late"):
    return Verdict(rule, "insufficient data", "", run, price, ratio, claim, "more steps prove it")


def report(*verdicts, findings=()):
    return Report("t", "", sections=(Section("s", "", findings=findings, verdicts=verdicts),))


def finding(ns, rule="launch-bound"):
    return Finding(rule, "low", "claim", "", cost_ns=ns, cost_ratio=ns / 1000)


def test_the_most_expensive_comes_first_and_three_are_shown():
    prices = [20, 50, 30, 40]
    shown = phrases.list_unproven_claims(report(*(abstention(price=p, ratio=p / 1000) for p in prices)), [])
    assert [text.split("(")[1].split(" of")[0] for text in shown] == ["50 ns", "40 ns", "30 ns"]


@pytest.mark.parametrize(
    ("price", "others", "shown"), [(10, [], 1), (9, [], 0), (9, [8], 1), (9, [9], 0), (9, [200, 8], 1), (9, [None], 0)]
)
def test_it_is_worth_a_line_from_1_percent_of_the_step_or_more_than_the_last_finding(price, others, shown):
    findings = tuple(finding(ns) if ns else replace(finding(1), cost_ns=None) for ns in others)
    of = report(abstention(price=price, ratio=price / 1000), findings=findings)
    assert len(phrases.list_unproven_claims(of, findings)) == shown


def test_what_has_no_claim_or_no_price_is_no_line():
    silent = (abstention(claim=""), abstention(price=None), Verdict("drift", "clear", "", None, 9, 1.0))
    assert phrases.list_unproven_claims(report(*silent), []) == []


def test_a_run_is_named():
    (text,) = phrases.list_unproven_claims(report(abstention(run="base")), [])
    assert text == "run base: rank 1 is late (50 ns of 1.00 µs); more steps prove it"


def test_idle_time_without_host_activity_says_its_amount_once_and_no_run(tmp_path):
    """One capture without a mark: two kernels of 10 µs, the second launched 50 ms after the first."""
    rows = [*launched("a", 0, 5, 10, 1), *launched("b", 50_000, 50_005, 10, 2)]
    of = analyze_uncached(write_sources(tmp_path, {"rank0.json": rows}), Options()).report
    (text,) = [text for text in phrases.list_unproven_claims(of, []) if "host" in text]
    assert text == ("no host activity while GPUs wait (50.0 ms of 50.0 ms); a range around each stage would prove it")


def test_of_one_subject_only_the_largest_has_an_estimate_and_none_beside_a_finding():
    late, uneven = abstention(), abstention("rank-imbalance")
    (section,) = drop_repeated_estimates([Section("s", "", verdicts=(late, uneven))])
    assert [v.claim for v in section.verdicts] == ["rank 1 is late", ""]
    (section,) = drop_repeated_estimates([Section("s", "", verdicts=(uneven,))])
    assert section.verdicts[0].claim
    named = Section("s", "", findings=(finding(5, "straggler"),), verdicts=(late, uneven))
    assert [v.claim for v in drop_repeated_estimates([named])[0].verdicts] == ["", ""]


HOSTILE = "rank 1 <script>alert(1)</script> ::error::x"


@pytest.mark.parametrize("form", ["text", "md", "html"])
@pytest.mark.parametrize("has_finding", [True, False])
def test_every_screen_has_the_line_and_no_markup_of_a_trace(form, has_finding):
    rules = Section("rules", "Rules")
    of = report(abstention(claim=HOSTILE), findings=(finding(500),) if has_finding else ())
    text = str(render(replace(of, sections=(*of.sections, rules)), form, width=120))
    assert "unproven" in text
    assert "more steps prove it" in text
    assert ("<script>alert" in text) == (form == "text")


def test_it_survives_json_and_older_files_load():
    of = report(abstention(), findings=(replace(finding(5), parts=(finding(3), finding(2))),))
    assert read_report_json(write_report_json(of)) == of
    plain = report(Verdict("drift", "clear"), findings=(finding(5),))
    text = write_report_json(plain)
    for name in ("price_ns", "price_ratio", "needs", "is_catch_all", "parts"):
        text = "\n".join(line for line in text.splitlines() if f'"{name}":' not in line)
    for comma in (",\n    }", ",\n   }"):
        text = text.replace(comma, comma[1:])
    assert read_report_json(text) == plain
