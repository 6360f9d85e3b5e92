"""What R05, R06 and R07 say of communication, and where they say nothing."""

import json

import pytest
from analyses.communication_sections import QUESTION, answers, evidence, late, measured, rules, section
from chrome_builder import BASE_NS, annotation, launched, op, step, write
from rules.traces import exposed_in_update
from rules.traces_communication import FIRES, LARGE, NEAR_MISSES, hardly_overlapped, nccl, small_ones

from tracekit.analyses import load_default_thresholds

QUESTIONS = ("communication",)

# R05


def test_waiting_for_a_slower_rank_is_not_exposed_communication(tmp_path):
    """Exposed: 70 and 20 of 1000 each, 4.5 %; without the wait 20 and 20 of 400 each: 5 % of 800, not 11 %."""
    assert rules(section(tmp_path / "a", late(rank1_at=90, whole=1000))) == []
    (found,) = section(tmp_path / "b", late(rank1_at=90, whole=400)).findings
    assert found.claim == "5.0 % of update_actor is exposed communication without waiting"
    assert found.cost_ns == 20_000
    told = evidence(found)
    assert (told["exposed_comm_ratio"], told["wait_ns"]) == (0.05, 25_000)
    assert told["size_bytes"] == 2**21
    assert found.caveats == ()


def test_where_only_waiting_is_exposed_the_rule_says_so(tmp_path):
    found = section(tmp_path, late(rank1_at=90, whole=800))
    assert rules(found) == []
    ((answer, reason),) = answers(found, "exposed-communication")
    assert answer == "clear"
    assert reason.startswith("5.6 % of update_actor is exposed communication: waiting")


def test_one_rank_alone_cannot_tell_waiting_apart(tmp_path):
    (found,) = section(tmp_path, exposed_in_update(5)).findings
    assert found.claim == "5.0 % of update_actor is exposed communication"
    assert found.caveats == ("includes an unknown amount of waiting for slower ranks",)
    assert evidence(found) == {"exposed_comm_ratio": 0.05, "overlap_ratio": 0.5}
    assert rules(section(tmp_path / "near", exposed_in_update(4))) == []


def test_ranks_that_were_not_recorded_may_be_waited_for(tmp_path):
    files = late(rank1_at=90, whole=400)
    for rank, rows in files.items():
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=8)
    (found,) = QUESTION.judge(measured(tmp_path), load_default_thresholds()).findings
    assert found.caveats == ("2 of 8 ranks were recorded: waiting for the others counts as communication",)


def test_the_finding_names_the_operation_and_where_it_is_longest(tmp_path):
    rows = [
        step(1, 0, 200), annotation("actor_update", 0, 200), *launched("gemm", 0, 0, 100, 1),
        *nccl("_allgather_base", 1, 100, 10, 2, 2**20), *nccl("allreduce", 2, 110, 40, 3, 2**20),
        *nccl("allreduce", 3, 150, 50, 4, 2**20),
    ]  # fmt: skip
    (found,) = section(tmp_path, rows).findings
    assert found.places[0].stage == "update_actor"
    assert [place.name for place in found.places] == ["all_reduce", "all_reduce"]
    assert (found.places[1].start_ns, found.places[1].end_ns) == (BASE_NS + 150_000, BASE_NS + 200_000)
    assert "no_sync" in found.advice
    assert evidence(found)["busbw"] == pytest.approx(2**21 / 90_000)


# R06


def test_the_rules_fire_with_the_numbers_worked_out_by_hand(tmp_path):
    for rule, expected in FIRES.items():
        (found,) = section(tmp_path / rule, expected.rows).findings
        assert (found.rule, found.claim, found.severity) == (rule, expected.claim, expected.severity)
        assert found.cost_ns == expected.cost_ns
        assert found.cost_ratio == pytest.approx(expected.cost_ratio)
        assert evidence(found) == pytest.approx(expected.evidence)


@pytest.mark.parametrize("rule", NEAR_MISSES)
def test_near_misses(tmp_path, rule):
    assert section(tmp_path, NEAR_MISSES[rule]).findings == ()


@pytest.mark.parametrize(
    ("trace", "fires"),
    [
        (hardly_overlapped(compute=954), True),  # 14 of 50 hidden: 28 %
        (hardly_overlapped(compute=940, each=24), False),  # 48 of 1000
        (hardly_overlapped(each=50, count=1), False),  # one that stands alone
    ],
)
def test_overlap_size_and_number_decide(tmp_path, trace, fires):
    assert rules(section(tmp_path, trace)) == ["no-comm-overlap"] * fires


@pytest.mark.parametrize(("whole", "severity"), [(1_333, "medium"), (1_334, "info"), (10_000, "info")])
def test_below_three_per_cent_of_the_step_it_is_information(tmp_path, whole, severity):
    """40 exposed in an update of 1000 that is not all of the step."""
    rows = [row for row in hardly_overlapped() if not row["name"].startswith("ProfilerStep")]
    rows += [step(1, 0, whole)]
    (found,) = section(tmp_path, rows).findings
    assert (found.rule, found.severity, found.cost_ns) == ("no-comm-overlap", severity, 40_000)


def test_a_stage_that_only_communicates_is_meant_to(tmp_path):
    rows = hardly_overlapped()
    for row in rows:
        if row["name"] == "actor_update":
            row["name"] = "update_weights"
    assert rules(section(tmp_path, rows)) == []


def test_one_mechanism_gives_one_finding(tmp_path):
    """Nothing overlaps, and 10 % is exposed: R05 says it, R06 does not repeat it."""
    found = section(tmp_path, hardly_overlapped(compute=900, each=50))
    assert rules(found) == ["exposed-communication"]
    assert [answer for answer, _ in answers(found, "no-comm-overlap")] == ["clear"]


@pytest.mark.parametrize(
    ("name", "verbs"),
    [
        ("ncclDevKernel_AllReduce", ["hide", "accumulate"]),
        ("ncclDevKernel_AllGather", ["prefetch"]),
        ("ncclKernel_AllToAll", []),  # the next op needs its result
    ],
)
def test_changes_are_named_for_what_can_overlap(tmp_path, name, verbs):
    """Two all-to-alls of 20 beside an all-reduce of 10: hiding that one alone is no prediction of the fix."""
    names = [name, name, "ncclDevKernel_AllReduce"] if not verbs else [name, name, name]
    rows = [step(1, 0, 200), annotation("actor_update", 0, 200), *launched("gemm", 0, 0, 100, 1)]
    for number, (each, at, dur) in enumerate(zip(names, (100, 120, 140), (20, 20, 10), strict=True), 2):
        rows += launched(each, at, at, dur, number, stream=9)
    (found,) = section(tmp_path, rows).findings
    assert [json.loads(change)["do"] for change in found.changes] == verbs


# R07


@pytest.mark.parametrize(
    ("trace", "fires"),
    [
        (small_ones(4), True),
        (small_ones(4, large=9), False),  # 2 of 11
        (small_ones(4, each=4), False),  # 8 of 1000
        (small_ones(4, count=1, large=4, each=10), False),  # nothing to put it together with
        (small_ones(0, name="barrier"), False),
    ],
)
def test_number_time_and_company_decide(tmp_path, trace, fires):
    assert rules(section(tmp_path, trace)) == ["small-collectives"] * fires


def test_what_small_ones_expose_is_not_told_twice(tmp_path):
    """Eighteen of 5 after compute: 9 % of the step is exposed, and small."""
    rows = [step(1, 0, 1000), *launched("gemm", 0, 0, 910, 1)]
    for number in range(18):
        rows += nccl("allreduce", 1 + number, 910 + 5 * number, 5, 10 + number, 4)
    found = section(tmp_path, rows)
    (one,) = found.findings
    assert (one.rule, one.cost_ns, one.severity) == ("small-collectives", 90_000, "medium")
    assert answers(found, "exposed-communication")[0][0] == "clear"


def test_unknown_sizes_that_could_decide_are_insufficient(tmp_path):
    """Of ten, one is small and one has no known size."""
    rows = small_ones(4, count=1, large=8)
    rows += nccl("allreduce", 40, 995, 5, 200, 4, "Mine")
    found = section(tmp_path, rows)
    assert rules(found) == []
    assert answers(found, "small-collectives") == [("insufficient data", "1 of 10 collectives have no recorded size")]
    # With twenty large ones they could not be a fifth.
    rows += [row for n in range(12) for row in nccl("allreduce", 41, 10 + 60 * n, 50, 300 + n, LARGE)]
    assert answers(section(tmp_path / "b", rows), "small-collectives") == []


def on_host(rank, each=10, count=20):
    """Twenty gloo collectives of four bytes in a step of 1000, rank 1 a little longer in each."""
    rows = [step(1, 0, 1000), annotation("actor_update", 0, 1000), op("aten::mm", 0, 900)]
    for number in range(count):
        row = annotation("gloo:all_reduce", 20 + 40 * number, each + 5 * rank, tid=777)
        rows += [row | {"args": {"Input Dims": [[1]], "Input type": ["float"]}}]
    return rows


def test_without_a_gpu_nothing_is_said_of_hiding(tmp_path):
    """20 × 10 of 1000 where nobody waits."""
    found = section(tmp_path, {0: on_host(0), 1: on_host(1)})
    (one,) = found.findings
    assert (one.rule, one.cost_ns, one.severity) == ("small-collectives", 200_000, "high")
    assert one.places[0].stage == "update_actor"
    for rule in ("exposed-communication", "no-comm-overlap"):
        assert answers(found, rule) == [("not applicable", "no GPU activity was recorded")]
    headings = {heading.name for sheet in found.sheets for heading in sheet.headings}
    assert not headings & {"exposed_ns", "hidden_ratio", "exposed_ratio", "device"}
    assert {metric.name for metric in found.metrics} == {"comm_ratio", "wait_ratio"}
    (chart,) = [c for c in found.charts if c.kind == "bars"]
    assert chart.series == ("running", "waiting")
    assert any("no GPU activity was recorded" in caveat for caveat in found.caveats)


def test_one_long_wait_of_a_rank_alone_is_not_its_small_collectives(tmp_path):
    """Four of 2, 2, 2 and 200: 8 of 1000 if the long one is as the others, which is below 1 %; with 3 it is 12."""
    for each, fires in ((2, False), (3, True)):
        rows = [step(1, 0, 1000), *launched("gemm", 0, 0, 700, 1)]
        for number, dur in enumerate((each, each, each, 200)):
            rows += nccl("broadcast", 1 + number, 720 + 10 * number, dur, 10 + number, 4)
        small = [f for f in section(tmp_path / str(each), rows).findings if f.rule == "small-collectives"]
        assert [f.cost_ns for f in small] == [4_000 * each] * fires
