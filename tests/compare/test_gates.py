"""What each rule of a gate says, against intervals worked by hand.

Of OPT_RUNS (means 9.2, 9.2, 9.2 and 9.3 s) to BASE_RUNS the step takes 11.2979 % longer, [9.6578 %, 12.9627 %].
"""

import itertools
import os
from datetime import date
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, compared, made_side, row, step_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.gate_rules import GateException, GateRules, make_gate_rule, parse_rule_text
from tracekit.compare.gates import outcomes
from tracekit.compare.gates.gate_sheet import describe_gate_result
from tracekit.compare.gates.outcomes import apply_gate_rules, summarize_gates
from tracekit.compare.gates.self_test import run_gate_self_test
from tracekit.job.steps.metric_samples import MetricSamples
from tracekit.model.errors import TracekitError
from tracekit.pipeline.comparing import read_side
from tracekit.pipeline.run import Options

SLOWER = step_rows(*OPT_RUNS), step_rows(*BASE_RUNS)
FASTER = step_rows(*BASE_RUNS), step_rows(*OPT_RUNS)
MIB = 1 << 20


def held(sides, *texts, accepts=(), today=None, **choices):
    """The gates of these rules on two lists of rows."""
    rules = GateRules(tuple(map(parse_rule_text, texts)), accepts, today=today)
    return compared(*sides, gate=rules, **choices).gates


def outcome(sides, text, **choices):
    (gate,) = held(sides, text, **choices)
    return gate.outcome


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step_time>9%", "fail"),
        ("step_time>9.66%", "inconclusive"),  # the interval begins at 9.6578 %
        ("step_time>12.9%", "inconclusive"),  # and ends at 12.9627 %
        ("step_time>13%", "pass"),
        ("step_time>point:11.2%", "fail"),
        ("step_time>point:11.3%", "pass"),
        ("step_time>860ms", "fail"),  # 9.3 % of 9.225 s
        ("step_time>900ms", "inconclusive"),  # 9.8 %
        ("step_time>1.3 s", "pass"),  # 14.1 %
        ("step_time>point:1040ms", "fail"),  # 0.112979 × 9.225 s = 1,042.2 ms
        ("step_time>point:1050ms", "pass"),
    ],
)
def test_a_rule_fails_only_where_the_whole_interval_or_the_point_is_beyond_it(text, expected):
    assert outcome(SLOWER, text) == expected


def test_the_numbers_of_a_gate_are_those_of_the_change():
    (gate,) = held(SLOWER, "step_time>9%")
    assert gate.value == pytest.approx(0.112979, abs=1e-6)
    assert (gate.low, gate.high) == pytest.approx((0.096578, 0.129627), abs=1e-6)
    assert gate.base == pytest.approx(9.225e9)
    assert gate.rule == "step_time: at most +9 %"


def test_what_became_faster_passes_every_rule_on_it():
    assert outcome(FASTER, "step_time>0%") == "pass"


def test_one_run_a_side_decides_nothing_unless_its_steps_stand_for_runs():
    one = step_rows(OPT_RUNS[0]), step_rows(BASE_RUNS[0])
    (gate,) = held(one, "step_time>3%")
    assert gate.outcome == "inconclusive"
    assert "one run per side" in gate.caveats[0]
    assert outcome(one, "step_time>3%", assume_independent_steps=True) == "fail"
    assert outcome(one, "step_time>50%") == "inconclusive"  # nor is it fine
    assert outcome(one, "step_time>50%", assume_independent_steps=True) == "pass"
    assert outcome(one, "step_time>point:3%") == "fail"


def test_among_many_rules_what_may_be_chance_is_inconclusive():
    # Alone p is 0.016 at 9 %: t = (ln 1.112979 − ln 1.09) / 0.00564 = 3.70 on 4.64 degrees; ten times that is no 5 %.
    assert [gate.outcome for gate in held(SLOWER, "step_time>9%")] == ["fail"]
    found = held(SLOWER, *["step_time>9%"] * 10)
    assert {gate.outcome for gate in found} == {"inconclusive"}
    assert all("chance" in gate.caveats[-1] for gate in found)
    assert {gate.outcome for gate in held(SLOWER, *["step_time>2%"] * 10)} == {"fail"}


def throughput(*runs):
    return step_rows(*runs, name="throughput")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("5%", "fail"), ("8.6%", "fail"), ("8.7%", "inconclusive"), ("11.3%", "inconclusive"), ("11.4%", "pass")],
)  # fmt: skip
def test_a_falling_metric_is_held_by_its_whole_interval_as_well(limit, expected):
    """Log means 4.605145 and 4.499779, Σu² = 2.00016e-4 and 2.46938e-4: se = √(4.46954e-4 / 12) = .0061030.

    3 · 4.46954² / (2.00016² + 2.46938²) = 5.934594 degrees, t = 2.453464. It falls by 1 − e^−.105366 = 10.0005 %,
    [1 − e^−.090393, 1 − e^−.120340] = [8.643 %, 11.338 %].
    """
    falls = throughput([100.0], [101.0], [99.0], [100.0]), throughput([90.0], [91.0], [89.0], [90.0])
    (gate,) = held((SLOWER[0] + falls[0], SLOWER[1] + falls[1]), f"throughput>{limit}")
    assert gate.outcome == expected
    assert gate.value == pytest.approx(-0.100005, abs=1e-6)
    assert (gate.low, gate.high) == pytest.approx((-0.11338, -0.08643), abs=1e-5)


def test_directions_come_from_the_registry():
    high = [[100.0, 101, 99]] * 2, [[100.0, 100, 101]] * 2
    low = [[80.0, 81, 80]] * 2, [[80.0, 79, 80]] * 2
    falls = SLOWER[0] + throughput(*high[0]), SLOWER[1] + throughput(*low[0])
    rises = SLOWER[0] + throughput(*low[0]), SLOWER[1] + throughput(*high[0])
    assert outcome(falls, "throughput>point:5%") == "fail"
    assert outcome(rises, "throughput>point:5%") == "pass"
    with pytest.raises(TracekitError, match="is an improvement"):
        make_gate_rule("throughput", "5%", "change", rise=True)
    with pytest.raises(TracekitError, match="is an improvement"):
        make_gate_rule("step_time", "5%", "change", rise=False)


def peaks(*values, role=None, name="device_peak_allocated"):
    return [row(name, value, run=f"run{at}", step=1, rank=0, role=role) for at, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("grown", "text", "expected"),
    [
        (256 * MIB, "memory.peak_allocated>256MiB", "pass"),
        (256 * MIB + 1, "memory.peak_allocated>256MiB", "fail"),
        (-1, "memory.peak_allocated>0MiB", "pass"),
        (100 * MIB, "memory.peak_allocated>10%", "pass"),  # of 1,000 MiB exactly
        (101 * MIB, "device_peak_allocated>10%", "fail"),
    ],
)
def test_exact_numbers_need_no_interval(grown, text, expected):
    before, after = peaks(1000 * MIB), peaks(1000 * MIB + grown)
    assert outcome((SLOWER[0] + before, SLOWER[1] + after), text) == expected


def test_from_zero_every_share_is_exceeded_and_no_amount_is_invented():
    sides = SLOWER[0] + peaks(0), SLOWER[1] + peaks(5)
    (gate,) = held(sides, "memory.peak_allocated>500%")
    assert (gate.outcome, gate.value) == ("fail", None)
    assert "from zero" in gate.claim
    assert outcome(sides, "memory.peak_allocated>5") == "pass"


def test_counts_that_differ_between_steps_are_exact_where_all_runs_have_one_mean():
    """400 and 600 launches, and 600 and 400: 500 a step in every run; after, 530."""

    def launches(*runs):
        return [
            row("host_launches", value, run=f"run{number}", step=at, rank=0)
            for number, values in enumerate(runs, 1)
            for at, value in enumerate(values, 1)
        ]

    sides = launches((400, 600), (600, 400)), launches((430, 630), (630, 430))
    (gate,) = held((SLOWER[0] + sides[0], SLOWER[1] + sides[1]), "host.launches>5%")
    assert (gate.outcome, gate.base, gate.opt, gate.value) == ("fail", 500, 530, 0.06)
    assert outcome((SLOWER[0] + sides[0], SLOWER[1] + sides[1]), "host.launches>6%") == "pass"


def test_every_role_is_tested_and_named():
    before = peaks(10, role="actor") + peaks(10, role="critic")
    after = peaks(10, role="actor") + peaks(30, role="critic")
    found = held((SLOWER[0] + before, SLOWER[1] + after), "memory.peak_allocated>1")
    assert [(gate.metric, gate.outcome) for gate in found] == [
        ("memory.peak_allocated (actor)", "pass"),
        ("memory.peak_allocated (critic)", "fail"),
    ]


def test_what_was_not_recorded_is_never_a_pass():
    (gate,) = held(SLOWER, "memory.peak_allocated>1")
    assert gate.outcome == "not tested"
    assert summarize_gates([gate]) == "not tested"
    one_side = SLOWER[0] + peaks(10), SLOWER[1]
    assert outcome(one_side, "memory.peak_allocated>1") == "not tested"


def test_a_stage_may_be_named_as_it_is_known():
    def stage(name, value):
        return [row("stage_time", value, run=f"run{at}", step=1, stage=name) for at in (1, 2)]

    sides = SLOWER[0] + stage("update_actor", 10), SLOWER[1] + stage("update_actor", 20)
    assert outcome(sides, "stage.update_actor.time>point:50%") == "fail"
    assert outcome(sides, "stage.actor_update.time>point:50%") == "fail"
    assert outcome(sides, "stage.update_critic.time>point:50%") == "not tested"


def budget(side_rows, metric, limit, *, rise=True):
    rules = GateRules((make_gate_rule(metric, limit, "budget", rise=rise),))
    (gate,) = apply_gate_rules(rules, None, made_side("after", side_rows), ComparisonChoices())
    return gate.outcome


def test_a_budget_needs_no_baseline():
    # BASE_RUNS have means 10.32, 10.3667, 10.1333, 10.25 s: 10.2675 s, sd 0.10148, ± 3.182446 × 0.05074 = 0.1615.
    assert budget(SLOWER[1], "step_time", "10.1 s") == "fail"
    assert budget(SLOWER[1], "step_time", "10.2 s") == "inconclusive"
    assert budget(SLOWER[1], "step_time", "10.4 s") == "inconclusive"
    assert budget(SLOWER[1], "step_time", "10.5 s") == "pass"
    assert budget(SLOWER[1], "step_time", "point:10.26 s") == "fail"
    assert budget(SLOWER[1], "memory.peak_allocated", 5) == "not tested"
    assert budget(SLOWER[1] + peaks(3, 7), "memory.peak_allocated", 5) == "fail"  # the worst of them
    assert budget(SLOWER[1] + peaks(3, 5), "memory.peak_allocated", 5) == "pass"
    assert budget(throughput([90.0, 90]), "throughput", 95 * 10**9, rise=False) == "fail"
    assert budget(throughput([90.0, 90]), "throughput", 85 * 10**9, rise=False) == "pass"


def test_the_idle_share_is_of_busy_and_idle_in_each_step():
    rows = [
        row(name, value, step=at)
        for at, (busy, idle) in enumerate([(80, 20), (70, 30)], 1)
        for name, value in (("gpu_busy", busy), ("gpu_idle", idle))
    ]
    assert budget(rows, "gpu.idle_share", "point:24%") == "fail"  # 25 %
    assert budget(rows, "gpu.idle_share", "point:25%") == "pass"


def test_a_change_needs_a_baseline():
    found = apply_gate_rules(
        GateRules((parse_rule_text("step_time>3%"),)), None, made_side("a", SLOWER[0]), ComparisonChoices()
    )
    assert [gate.outcome for gate in found] == ["not tested"]


def test_sides_that_must_not_be_compared_break_budgets_alone():
    rules = GateRules((parse_rule_text("step_time>3%"), make_gate_rule("step_time", "9 s", "budget", rise=True)))
    sides = made_side("a", SLOWER[0], world_size="8"), made_side("b", SLOWER[1], world_size="16")
    found = compared(*sides, gate=rules)
    assert [gate.outcome for gate in found.gates] == ["not comparable", "fail"]
    forced = compared(*sides, gate=rules, force=True)
    assert [gate.outcome for gate in forced.gates] == ["fail", "fail"]


ACCEPT = GateException("step_time", date(2026, 12, 31), "larger vocabulary")


def test_an_exception_holds_through_its_last_day():
    (gate,) = held(SLOWER, "step_time>3%", accepts=(ACCEPT,), today=date(2026, 12, 31))
    assert gate.outcome == "accepted"
    assert "larger vocabulary" in gate.caveats[-1]
    assert summarize_gates([gate]) == "pass"
    assert describe_gate_result([gate]) == "gate: pass (1 accepted)"


def test_an_exception_that_ran_out_excuses_nothing_and_is_an_error_of_its_own():
    over = {"accepts": (ACCEPT,), "today": date(2027, 1, 1)}
    broken = held(SLOWER, "step_time>3%", **over)
    assert [gate.outcome for gate in broken] == ["fail", "expired"]
    assert summarize_gates(broken) == "fail"
    fine = held(FASTER, "step_time>3%", **over)
    assert [gate.outcome for gate in fine] == ["pass", "expired"]
    assert summarize_gates(fine) == "expired"
    assert "2026-12-31" in fine[-1].claim


def test_a_rule_that_only_warns_decides_nothing():
    rules = GateRules((make_gate_rule("step_time", "3%", "change", rise=True, severity="warn"),))
    found = compared(*SLOWER, gate=rules).gates
    assert [gate.outcome for gate in found] == ["fail"]
    assert summarize_gates(found) == "pass"
    assert describe_gate_result(found) == "gate: pass (1 beyond a limit that only warns)"


def test_without_rules_there_is_no_word():
    found = compared(*SLOWER)
    assert found.gates == ()
    assert "gate" not in found.report().answer
    assert compared(*SLOWER, gate=GateRules((parse_rule_text("step_time>3%"),))).report().answer.endswith("gate: fail")


def tried(rows, *texts, rules=None, **choices):
    rules = rules or GateRules(tuple(map(parse_rule_text, texts)))
    return run_gate_self_test(rules, made_side("base", rows), ComparisonChoices(**choices))


def test_a_gate_is_shown_to_fail_on_steps_20_percent_longer():
    found = tried(SLOWER[1], "step_time>3%")
    assert found.fails
    assert [one.can_fail for one in found.rules] == [True]


def test_a_gate_that_would_not_notice_is_told():
    assert not tried(SLOWER[1], "step_time>25%").fails
    assert tried(SLOWER[1], "step_time>25%").rules[0].can_fail  # but a thousand times longer
    alone = tried(step_rows(BASE_RUNS[0]), "step_time>3%")
    assert not alone.fails
    assert "one run per side" in alone.rules[0].reason
    assert tried(step_rows(BASE_RUNS[0]), "step_time>3%", assume_independent_steps=True).fails


def test_rules_that_can_never_fail_are_named():
    found = tried(SLOWER[1] + peaks(0), "step_time>3%", "host.ops>5%", "memory.peak_allocated>1MiB")
    assert found.fails
    assert [one.can_fail for one in found.rules] == [True, False, True]
    assert "not recorded" in found.rules[1].reason
    warns = GateRules((make_gate_rule("step_time", "3%", "change", rise=True, severity="warn"),))
    only_warns = tried(SLOWER[1], rules=warns)
    assert not only_warns.fails
    assert (only_warns.rules[0].can_fail, only_warns.rules[0].only_warns) == (True, True)


def test_a_budget_that_is_broken_already_shows_nothing():
    rules = GateRules((make_gate_rule("step_time", "9 s", "budget", rise=True),))
    found = tried(SLOWER[1], rules=rules)
    assert not found.fails
    assert found.rules[0].already
    both = GateRules((*rules.rules, parse_rule_text("step_time>3%")))
    assert tried(SLOWER[1], rules=both).fails


def test_an_exception_does_not_hide_from_the_test_of_the_gate():
    rules = GateRules((parse_rule_text("step_time>3%"),), (ACCEPT,), today=date(2026, 1, 1))
    assert tried(SLOWER[1], rules=rules).fails


RUNS = st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=5), min_size=1, max_size=4)
LIMITS = st.sampled_from(["0%", "3%", "point:0%", "50%", "5 s"])


@settings(max_examples=20, deadline=None)
@given(RUNS, LIMITS, st.booleans())
def test_what_did_not_change_breaks_no_rule(runs, limit, independent):
    rows = step_rows(*runs)
    text = f"step_time>{limit}"
    assert outcome((rows, rows), text, assume_independent_steps=independent) != "fail"


@settings(max_examples=20, deadline=None)
@given(RUNS, RUNS, st.sampled_from(["0%", "3%", "50%", "point:10%"]), st.randoms())
def test_neither_the_clock_rate_nor_the_order_of_rows_changes_an_outcome(base, opt, limit, random):
    text = f"step_time>{limit}"
    sides = step_rows(*base), step_rows(*opt)
    said = outcome(sides, text)
    twice = [step_rows(*[[2 * value for value in run] for run in runs]) for runs in (base, opt)]
    assert outcome(twice, text) == said
    mixed = [random.sample(rows, len(rows)) for rows in sides]
    assert outcome(mixed, text) == said


REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_three_runs_that_were_made_slower_break_a_gate_of_the_estimate_and_equal_ones_do_not():
    folder = Path(REAL or "") / "chrome" / "gloo_cpu"
    sides = {
        name: read_side(name, [folder / f"{name}_run{n}" for n in (1, 2, 3)], Options(jobs=1))
        for name in ("base", "opt")
    }
    said = {}
    for text in ("step_time>3%", "step_time>point:3%"):
        rules = GateRules((parse_rule_text(text),))
        for (one, base), (two, opt) in itertools.product(sides.items(), repeat=2):
            said[text, one, two] = summarize_gates(apply_gate_rules(rules, base, opt, ComparisonChoices()))
    # 1.615 times as long by the clock; three runs per side may not call it a change.
    assert said["step_time>3%", "opt", "base"] == "inconclusive"
    assert said["step_time>point:3%", "opt", "base"] == "fail"
    assert {said[text, "base", "opt"] for text in ("step_time>3%", "step_time>point:3%")} == {"pass"}
    assert "fail" not in [said["step_time>3%", name, name] for name in sides]


def test_where_nothing_tells_that_memory_ran_out_the_rule_never_passes():
    """Histories of memory snapshots tell it: `test_memory_compare.py`."""
    rules = GateRules((make_gate_rule("new-oom", "0", "change", rise=True),), inconclusive_fails=True)
    found = compared(*FASTER, gate=rules).gates
    (gate,) = found
    assert gate.outcome == "not tested"
    assert gate.claim == ("new-oom was not tested: no profile records whether an OOM occurred")
    assert summarize_gates(found) == "not tested"
    tested = run_gate_self_test(rules, made_side("base", SLOWER[0]), ComparisonChoices())
    assert not tested.rules[0].can_fail


def test_rollout_means_generation_where_no_stage_is_called_so():
    def stages(name, *seconds):
        return [row("stage_time", s * 1e9, run=f"run{n}", step=1, stage=name) for n, s in enumerate(seconds, 1)]

    base, opt = (step_rows([1.0], [1.0]) + stages("gen", *pair) for pair in ((1.0, 1.01) * 2, (2.0, 2.01) * 2))
    assert outcome((base, opt), "stage.rollout.time>50%") == "fail"
    own = (base + stages("rollout", 1.0, 1.1), opt + stages("rollout", 1.0, 1.1))
    assert outcome(own, "stage.rollout.time>50%") == "pass", "its own name goes first"
    assert outcome((base, opt), "stage.reward.time>50%") == "not tested"


@pytest.mark.parametrize(
    ("sides", "text", "claim"),
    [
        # 11.2979 % and its interval; the other way 1 − 1 / 1.112979 = 10.15 %, 11.48 and 8.81 %.
        (SLOWER, "step_time>9%", "step_time +11.3 % [+9.66 %, +13 %], 9,225 ms → 10.27 s; limit +9 %"),
        (FASTER, "step_time>point:0%", "step_time −10.2 % [−11.5 %, −8.81 %], 10.27 s → 9,225 ms; limit 0 %"),
        (SLOWER, "memory.peak_allocated>1", "memory.peak_allocated was not tested: it was not recorded in either side"),
        ((SLOWER[0] + peaks(10), SLOWER[1]), "memory.peak_allocated>1", "memory.peak_allocated was not tested: it was not recorded in opt"),
        ((SLOWER[0] + peaks(10), SLOWER[1] + peaks(10)), "memory.peak_allocated>1", "memory.peak_allocated 0 B, 10 B → 10 B; limit +1 B"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_change_tells_its_sign_its_interval_and_what_is_missing(sides, text, claim):
    assert [gate.claim for gate in held(sides, text)] == [claim]


@pytest.mark.parametrize(
    ("rows", "metric", "limit", "rise", "claim"),
    [
        # 10.2675 s ± 0.1615.
        (SLOWER[1], "step_time", "9.9 s", True, "step_time is 10.27 s [10.11 s, 10.43 s]; at most 9,900 ms is allowed"),
        (throughput([90.0, 90]), "throughput", 95 * 10**9, False, "throughput is 90,000,000,000; at least 95,000,000,000 is allowed"),
        (SLOWER[1], "memory.peak_allocated", 5, True, "memory.peak_allocated was not tested: it was not recorded in after"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_budget_tells_what_is_allowed(rows, metric, limit, rise, claim):
    rules = GateRules((make_gate_rule(metric, limit, "budget", rise=rise),))
    assert [gate.claim for gate in apply_gate_rules(rules, None, made_side("after", rows), ComparisonChoices())] == [
        claim
    ]


def test_the_run_with_the_highest_sum_stands_for_all():
    key, steps = ("oom", None, None), ((("a", 1, None), ("a", 2, None)), (("b", 1, None), ("b", 2, None)))
    worst = outcomes._select_worst_run(MetricSamples(key, ("a", "b"), steps, ((3.0, 0.0), (2.0, 2.0))))
    assert (worst.key, worst.runs, worst.steps, worst.values) == (key, ("b",), ((("b", 1, None),),), ((4.0,),))


def test_a_stage_that_is_not_there_is_answered_with_those_that_are():
    stages = [f"stage{number:02}" for number in range(outcomes.MOST_STAGES + 2)]
    listed = outcomes._list_stages_by_similarity("xyz", stages)
    assert listed.startswith("there are: stage00, stage01, ")
    assert listed.endswith(f"stage{outcomes.MOST_STAGES - 1:02} and 2 more")
    few = outcomes._list_stages_by_similarity("stge03", stages[: outcomes.MOST_STAGES])
    assert few.startswith("did you mean stage03? there are: ")
    assert "more" not in few
    assert outcomes._list_stages_by_similarity("xyz", []) == "none was recorded"
