"""What a cause counts, its symptoms do not count again."""

import pytest
from chrome_builder import kernel, launch, launched, write

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.model.report import Finding, Place, Section
from tracekit.pipeline.claims import deduct_causes_from_symptoms


def finding(rule, recoverable_ns, *places, severity="high"):
    ratio = None if recoverable_ns is None else recoverable_ns / 1000
    return Finding(rule, severity, rule, "", (), places, recoverable_ns, ratio)


def left(*findings):
    """What each of the findings, each in a section of its own, counts at the end."""
    sections = [Section(str(number), "", findings=(one,)) for number, one in enumerate(findings)]
    return [one.findings[0] for one in deduct_causes_from_symptoms(sections, load_default_thresholds())]


RANK = Place(run="a", role="actor", rank=2, stage="gen")


def test_a_late_rank_whose_loader_is_told_counts_what_the_loader_does_not():
    late, loader = left(finding("straggler", 200, RANK), finding("data-loader-wait", 150, RANK))
    assert (late.recoverable_ns, late.recoverable_ratio) == (50, pytest.approx(0.05))
    assert (late.severity, loader.recoverable_ns) == ("medium", 150)
    assert late.caveats == ("excludes 150 ns counted by data-loader-wait",)


def test_what_is_counted_whole_elsewhere_is_left_as_information():
    tail, late = left(finding("rollout-tail", 300, RANK), finding("straggler", 200, RANK))
    assert (tail.recoverable_ns, late.recoverable_ns, late.severity) == (300, 0, "info")


@pytest.mark.parametrize("other", [
    Place(run="a", role="actor", rank=3), Place(run="b", role="actor", rank=2), Place(run="a", role="critic", rank=2),
])  # fmt: skip
def test_other_ranks_roles_and_runs_count_for_themselves(other):
    late = left(finding("straggler", 200, RANK), finding("data-loader-wait", 150, other))[0]
    assert (late.recoverable_ns, late.severity) == (200, "high")


def test_copies_of_a_late_rank_count_as_its_lateness_and_those_of_all_for_themselves():
    late, copies = finding("straggler", 200, RANK), ("pageable-copies", 50)
    own = finding(*copies, Place(role="actor", rank=2, name="HtoD (Pageable -> Device)"))
    of_all = finding(*copies, Place(name="HtoD (Pageable -> Device)"))
    assert [one.recoverable_ns for one in left(late, own, of_all)] == [200, 0, 50]


def test_pauses_of_more_ranks_than_the_late_one_count():
    pauses = finding("host-silence", 100, RANK, Place(run="a", role="actor", rank=5))
    assert left(pauses, finding("straggler", 200, RANK))[0].recoverable_ns == 100


def test_parts_of_a_stage_that_is_told_as_a_whole_do_not_count_again():
    stage, gen = Place(role="actor", stage="update_weights"), Place(role="actor", stage="gen")
    syncs = [finding("host-sync-stalls", 80, place) for place in (stage, gen)]
    inside, outside, _ = left(*syncs, finding("weight-sync", 100, stage))
    assert (inside.recoverable_ns, outside.recoverable_ns) == (0, 80)


def test_what_has_no_time_to_give_back_stays_as_it_is():
    unknown = finding("straggler", None, RANK)
    assert left(unknown, finding("rollout-tail", 300, RANK))[0] is unknown


def test_what_is_counted_over_all_ranks_and_stages_has_its_causes_anywhere():
    gen = Place(role="actor", stage="gen")
    uneven, unlike, *_ = left(
        finding("rank-imbalance", 250, Place(role="actor", step=3, stage="update_actor")),
        finding("step-variance", 70, Place(step=4)),
        finding("straggler", 200, RANK), finding("recompilation", 60, gen),
    )  # fmt: skip
    assert (uneven.recoverable_ns, uneven.caveats) == (50, ("excludes 200 ns counted by straggler",))
    assert (unlike.recoverable_ns, unlike.severity) == (10, "low")


def test_imbalance_of_another_role_and_variance_without_what_only_some_steps_hold_count():
    uneven, unlike, _ = left(
        finding("rank-imbalance", 250, Place(role="critic")), finding("step-variance", 70, Place(step=4)),
        finding("straggler", 200, RANK),
    )  # fmt: skip
    assert (uneven.recoverable_ns, unlike.recoverable_ns) == (250, 70)


def after_start_up(tmp_path, cold_us):
    """(start-up, what follows): a launch that loads code for so long, then 40 kernels of 10 µs, one every 100 µs."""
    rows = [launch(0, 1, cold_us), kernel("first", cold_us + 5, 5, 1)]
    for number in range(40):
        at = cold_us + 50 + 100 * number
        rows += launched("a", at, at + 5, 10, 100 + number)
    findings = tracekit.analyze(write(tmp_path / "trace.json", rows)).findings
    first, *others = findings
    assert first.rule == "start-up"
    return first, others


def test_what_follows_start_up_is_rated_by_the_capture_where_little_does(tmp_path):
    """400 ms of 404: 3.5 ms that GPUs idle afterwards are 0.9 % of the capture."""
    first, others = after_start_up(tmp_path, 400_000)
    assert (first.severity, first.recoverable_ns) == ("high", 400_000_000)
    assert others
    whole_ns = next(m.value for m in first.evidence if m.name == "start_up_ns") + 3_960_000
    for other in others:
        assert other.severity == "info"
        assert other.recoverable_ratio == pytest.approx(other.recoverable_ns / whole_ns, rel=0.01)


def test_what_follows_less_start_up_is_rated_by_itself(tmp_path):
    """30 ms of 34, 88 %: of the 4 ms that follow, GPUs idle most."""
    _, others = after_start_up(tmp_path, 30_000)
    assert others
    assert max(other.recoverable_ratio for other in others) > 0.5
