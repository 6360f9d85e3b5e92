"""One finding per rule with its stages inside; findings by cost without predictions, catch-alls last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyses import load_default_thresholds
from tracekit.model.report import Finding, Place, Report, Section
from tracekit.pipeline.summary.finding_parts import merge_stage_findings

LIMITS = load_default_thresholds()


def found(rule, ns, *stages, step_ns=1_000, **more):
    """A finding of a step of 1,000 ns in these stages."""
    where = {name: more.pop(name) for name in ("run", "role", "rank") if name in more}
    places = tuple(Place(stage=stage, **where) for stage in stages)
    ratio = None if ns is None else ns / step_ns
    severity = more.pop("severity", LIMITS.severity(ratio))
    claim = f"{rule} in {', '.join(map(str, stages))}"
    return Finding(rule, severity, claim, f"fix {rule}", (), places, ns, ratio, **more)


def merged(*findings):
    (section,) = merge_stage_findings([Section("idle", "", findings=findings)], LIMITS)
    return section.findings


def test_the_stages_of_a_rule_are_one_finding_whose_amounts_add_up():
    """16 + 9 + 8 of 1,000: each low or info alone, 3.3 % together are medium."""
    small = [found("exposed-communication", 9, "gen"), found("exposed-communication", 8, "ref")]
    large = found("exposed-communication", 16, "update_actor", caveats=("a bound",))
    (one,) = merged(small[0], large, small[1])
    assert (one.cost_ns, one.severity) == (33, "medium")
    assert one.cost_ratio == pytest.approx(0.033)
    assert one.claim == ("exposed-communication in update_actor; 17 ns more in 2 other stages: gen 9 ns, ref 8 ns")
    assert [place.stage for place in one.places] == ["update_actor", "gen", "ref"]
    assert one.parts == (large, *small)
    assert one.caveats == ("a bound",)


def test_a_part_too_small_to_report_is_listed_and_not_counted():
    """40 of 1,000 beside 20, which count, and 9 and 8: below 1 % of the step and below half of 40."""
    parts = [found("exposed-communication", ns, f"stage{ns}") for ns in (9, 40, 8, 20)]
    (one,) = merged(*parts)
    assert (one.cost_ns, one.severity) == (60, "medium")
    assert one.claim == (
        "exposed-communication in stage40; 20 ns more in stage20; below the threshold in 2 more stages"
    )
    assert [part.cost_ns for part in one.parts] == [40, 20, 9, 8]


@pytest.mark.parametrize("other", [
    found("launch-bound", 5, "gen"),
    found("exposed-communication", 5, "gen", run="b"),
    found("exposed-communication", 5, "gen", role="critic"),
    found("exposed-communication", 5, "gen", is_catch_all=True),
    found("exposed-communication", None, "gen"),
    found("exposed-communication", 5, None),
])  # fmt: skip
def test_other_rules_runs_roles_and_what_has_no_stage_stay_apart(other):
    first = found("exposed-communication", 9, "ref")
    assert merged(first, other) == (first, other)


def test_late_ranks_with_causes_of_their_own_stay_apart():
    late = found("straggler", 9, "gen", rank=1), found("straggler", 8, "ref", rank=2)
    assert merged(*late) == late


def test_a_rule_that_rates_itself_lower_stays_there():
    parts = [found("no-comm-overlap", 20, s, severity="info") for s in ("gen", "ref")]
    assert merged(*parts)[0].severity == "info"


def test_more_stages_than_fit_are_counted():
    parts = [found("launch-bound", 10 - n, f"stage{n}") for n in range(6)]
    claim = merged(*parts)[0].claim
    assert claim.endswith("in 5 other stages: stage1 9 ns, stage2 8 ns, stage3 7 ns, …")


amounts = st.lists(
    st.tuples(
        st.sampled_from(["launch-bound", "straggler", "offload"]),
        st.one_of(st.none(), st.integers(0, 10**12)),
        st.sampled_from(["gen", "ref", None]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=9,
)


@given(amounts)
def test_merging_loses_no_part_and_claims_no_more_than_the_parts(parts):
    findings = [found(rule, ns, stage, run=run) for rule, ns, stage, run in parts]
    after = merged(*findings)
    for rule in ("launch-bound", "straggler", "offload"):
        before = [f.cost_ns or 0 for f in findings if f.rule == rule]
        of_rule = [f for f in after if f.rule == rule]
        inside = [p.cost_ns or 0 for f in of_rule for p in f.parts or (f,)]
        assert sorted(inside) == sorted(before)
        assert sum(f.cost_ns or 0 for f in of_rule) <= sum(before)


def order(*findings):
    return [f.claim for f in Report("", "", sections=(Section("s", "", findings=findings),)).findings]


def test_findings_without_a_prediction_rank_by_cost():
    less, more = found("less", 70, "a", severity="high"), found("more", 100, "b", severity="low")
    assert order(less, more) == [more.claim, less.claim]


def test_catch_alls_come_after_causes_and_before_what_saves_no_time():
    rest, cause = found("rest", 900, "a", is_catch_all=True), found("cause", 1, "b")
    timeless = found("timeless", None, "c", severity="high")
    assert order(timeless, rest, cause) == [cause.claim, rest.claim, timeless.claim]
