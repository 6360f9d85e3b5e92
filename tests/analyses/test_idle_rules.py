"""Rules R02, R15 and R29: when they fire, when they do not, and what belongs to which of them."""

import json

import pytest
from chrome_builder import annotation, kernel, launch, launched, op, step, write
from jobsim.job import Fault, Job
from jobsim.truth import make
from process.blame_traces import python
from rules import traces_idle
from rules.firing import write_sources
from rules.idle_report import RULES, answers, evidence, findings, result, rows_of, section
from rules.traces_idle import between_stages, silent, synchronised

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.rules import find_rule
from tracekit.job.idle_time.causes import find_host_pauses, find_pausing_steps

QUESTIONS = ("idle", "launch-queues", "stage-edges", "syncs")


# The rules on their traces


@pytest.mark.parametrize("name", RULES)
def test_it_fires_with_the_numbers_worked_out_by_hand(tmp_path, name):
    """And no other rule of any question does."""
    expected = traces_idle.FIRES[name]
    (found,) = result(write_sources(tmp_path, expected.rows), None).report.findings
    assert (found.rule, found.claim) == (name, expected.claim)
    assert load_default_thresholds().severity(found.cost_ratio) == expected.severity
    assert found.cost_ns == expected.cost_ns
    assert found.saving.alone_ns == pytest.approx(found.cost_ns, rel=0.4)
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert evidence(found) == pytest.approx(expected.evidence)
    assert found.advice
    assert found.places
    assert find_rule(name).id == name


@pytest.mark.parametrize("name", RULES)
def test_a_near_miss_does_not_fire(tmp_path, name):
    assert findings(tmp_path, traces_idle.NEAR_MISSES[name]) == []


# R02


def test_nineteen_calls_are_few(tmp_path):
    """4 of idle time after each of 19: 76 of 2000, but too few calls."""
    assert findings(tmp_path, synchronised(idle=4, calls=19)) == []
    assert findings(tmp_path / "b", synchronised(idle=4, calls=20)) != []


def test_one_long_wait_at_the_end_of_a_stage_is_normal(tmp_path):
    """The GPU works through 2000; 20 events are waited for meanwhile, and the last call waits for all of it."""
    rows = [step(1, 0, 2000), annotation("update_actor", 0, 2000), *launched("gemm", 0, 0, 1900, 1)]
    rows += [launch(50 * i, 100 + i, 40, name="cudaEventSynchronize") for i in range(1, 21)]
    rows += [launch(1100, 99, 800, name="cudaStreamSynchronize"), *launched("gemm", 1990, 1995, 5, 2)]
    assert findings(tmp_path, rows, "host-sync-stalls") == []


def test_the_finding_names_the_op_to_change(tmp_path):
    (found,) = findings(tmp_path, synchronised(), "host-sync-stalls")
    assert "aten::item" in found.advice
    assert found.places[0].name == "aten::item (cudaStreamSynchronize)"
    assert found.places[0].stage == "update_actor"


MAIN, MASK = python("train.py(3): main", 0, 2000), "loss.py(9): mask"


@pytest.mark.parametrize(
    ("around", "place"),
    [
        # The innermost function of the program, not one of torch in it.
        ([MAIN, python(MASK, 5, 1990), python("torch/_tensor.py(4): item", 6, 1980)], "mask, loss.py:9"),
        # 11 of 20 calls are in it, then 10: no function has most.
        ([python(MASK, 5, 1100)], "mask, loss.py:9"), ([python(MASK, 5, 1000)], None),
        # Functions before ranges, and ranges but those of stages and steps; of their own thread.
        ([MAIN, annotation("clip", 5, 1990)], "main, train.py:3"), ([annotation("clip", 5, 1990)], "clip"),
        ([python(MASK, 5, 1990, tid=777), annotation("clip", 5, 1990, tid=778)], None),
        # What has ended or not begun is around none.
        ([MAIN, python(MASK, 5, 4), python("loss.py(8): late", 1998, 1)], "main, train.py:3"),
    ],
)  # fmt: skip
def test_the_claim_names_the_place_of_most_calls(tmp_path, around, place):
    (found,) = findings(tmp_path, [*synchronised(), *around], "host-sync-stalls")
    said = f", most in {place}" if place else ""
    assert found.claim == f"20 synchronizing calls per step leave GPUs idle for 3.0 % of update_actor{said}"


def test_ranks_and_steps_do_not_add_up(tmp_path):
    """Two ranks with the same step: 60 µs per step each, not 120."""
    (found,) = findings(tmp_path, {0: synchronised(), 1: synchronised()}, "host-sync-stalls")
    assert (found.cost_ns, evidence(found)["sync_count"]) == (60_000, 20)


def test_without_stages_the_step_is_judged(tmp_path):
    rows = [row for row in synchronised() if row["name"] != "update_actor"]
    (found,) = findings(tmp_path, rows, "host-sync-stalls")
    assert found.claim.endswith("3.0 % of the step")
    assert found.places[0].stage is None


def in_stages(*stages):
    """A step of these stages (name, rows of `synchronised`), 100 apart."""
    rows, begin = [], 0
    for name, stage in stages:
        for row in stage[1:]:
            args = row.get("args", {})
            if "correlation" in args:
                args = args | {"correlation": args["correlation"] + begin}
            title = name if row["name"] == "update_actor" else row["name"]
            rows.append(row | {"name": title, "ts": row["ts"] + begin, "args": args})
        begin += stage[1]["dur"] + 100
    return [step(1, 0, begin), *rows]


TWO_STAGES = [
    ("old_log_prob", synchronised(idle=4, calls=10, stage=1000)),
    ("update_actor", synchronised(calls=10, stage=1000)),
]


def test_calls_of_all_stages_of_a_step_are_counted(tmp_path):
    """10 calls with 4 of idle time after each, and 10 with 3: 70 of 2000. With one call less, too few."""
    (found,) = findings(tmp_path, in_stages(*TWO_STAGES), "host-sync-stalls")
    assert found.claim == "20 synchronizing calls per step leave GPUs idle for 3.5 % of old_log_prob and update_actor"
    assert (found.cost_ns, evidence(found)["stall_count"], evidence(found)["idle_ratio"]) == (70_000, 20, 0.035)
    assert [json.loads(change)["stage"] for change in found.changes] == ["old_log_prob", "update_actor"]
    fewer = [TWO_STAGES[0], ("update_actor", synchronised(idle=4, calls=9, stage=1000))]
    assert findings(tmp_path / "fewer", in_stages(*fewer), "host-sync-stalls") == []


def test_a_stage_that_loses_little_does_not_add_calls(tmp_path):
    """15 of 2000 is less than 3 %: its 5 calls do not make 20 of 15."""
    few = ("gen", synchronised(calls=5, stage=2000))
    others = [("values", synchronised(calls=15, stage=1500)), few]
    assert findings(tmp_path, in_stages(*others), "host-sync-stalls") == []


@pytest.mark.parametrize(
    ("item", "idle", "calls", "share"),
    [("aten::item", 4, 25, "2.2"), ("aten::nonzero", 4, 20, "3.5"), ("aten::item", 3, 20, "3.5")],
)
def test_the_fix_reaches_calls_of_the_same_op_in_other_stages(tmp_path, item, idle, calls, share):
    """5 calls with 4 of idle time each in a stage of 2000, 1 %: with the others 90 of 4000, 2.25 %. Not of another op, nor with 3."""
    third = [
        row | {"name": item} if row["name"] == "aten::item" else row
        for row in synchronised(idle=idle, calls=5, stage=2000)
    ]
    (found,) = findings(tmp_path, in_stages(*TWO_STAGES, ("gen", third)), "host-sync-stalls")
    named = "2 other stages" if calls == 25 else "update_actor"
    claim = f"{calls} synchronizing calls per step leave GPUs idle for {share} % of old_log_prob and {named}"
    assert found.claim == claim
    stages = ["old_log_prob", "update_actor", *["gen"] * (calls == 25)]
    assert [json.loads(change)["stage"] for change in found.changes] == stages


@pytest.mark.parametrize(("reads", "freed"), [(1, "^(?:aten::item)$"), (2, "^(?:aten::item|aten::nonzero)$")])
def test_a_result_that_is_read_once_per_step_still_waits(tmp_path, reads, freed):
    """One or two of the 20 calls are in another op."""
    rows = synchronised()
    for row in [row for row in rows if row["name"] == "aten::item"][:reads]:
        row["name"] = "aten::nonzero"
    (found,) = findings(tmp_path, rows, "host-sync-stalls")
    assert evidence(found)["stall_count"] == 20
    assert [json.loads(change)["by"] for change in found.changes] == [freed]


def test_calls_by_op_are_shown_per_step(tmp_path):
    shown = section(write(tmp_path / "rank0.json", synchronised()), "syncs")
    (row,) = rows_of(shown, "sync_calls")
    assert (row["op"], row["call"]) == ("aten::item", "cudaStreamSynchronize")
    assert (row["count"], row["idle_ns"], row["call_ns"]) == (20, 60_000, 20 * 88_000)


# R15


def test_idle_time_at_an_edge_that_has_a_cause_of_its_own_is_not_claimed(tmp_path):
    """30 between the stages, 20 of them in the data loader."""
    loader = annotation("enumerate(DataLoader)#X.__next__", 402, 20)
    assert findings(tmp_path, [*between_stages(), loader], "stage-edge-idle") == []


def test_a_synchronised_stage_keeps_its_idle_time_to_itself(tmp_path):
    """The second stage idles 3 after each of 20 calls, the first of them before its first kernel: R02's, not R15's.

    Stages of 400 and 2000 from 0 and 400 on; the edge holds 80 of idle time, all of it after a call in the
    second stage, so that nothing is left for the edge where R02 is reported.
    """
    later = [
        row | {"ts": row["ts"] + 480} for row in synchronised()[2:] if "gemm" not in row["name"] or row["ts"] >= 97
    ]
    later = [r for r in later if r.get("args", {}).get("correlation") != 1]
    rows = [
        step(1, 0, 2480), annotation("old_log_prob", 0, 400), annotation("update_actor", 400, 2080),
        *launched("gemm", 0, 0, 400, 5001), launch(400, 5002, 0, name="cudaStreamSynchronize"),
        *launched("gemm", 480, 480, 97, 5003), *later,
    ]  # fmt: skip
    found = findings(tmp_path, rows)
    assert {f.rule for f in found} == {"host-sync-stalls"}
    (bound,) = found
    assert bound.cost_ns == 80_000 + 60_000


def test_where_few_calls_synchronise_the_edge_keeps_what_follows_one(tmp_path):
    """One call returns within the second stage, 10 after its begin; its kernel begins 20 later."""
    rows = [
        step(1, 0, 1000), annotation("old_log_prob", 0, 400), annotation("update_actor", 400, 600),
        launch(405, 9, 5, name="cudaDeviceSynchronize"),
        *launched("gemm", 0, 0, 400, 1), *launched("gemm", 430, 430, 570, 2),
    ]  # fmt: skip
    (found,) = findings(tmp_path, rows)
    assert (found.rule, found.cost_ns) == ("stage-edge-idle", 30_000)


def test_edges_are_named_and_what_the_host_did_in_them(tmp_path):
    """30 between the stages, the host in an op for 12 of them."""
    rows = [*between_stages(), op("aten::cat", 405, 12)]
    shown = section(write(tmp_path / "rank0.json", rows), "stage-edges")
    (row,) = rows_of(shown, "stage_edges")
    assert (row["canonical"], row["next_canonical"]) == ("old_log_prob", "update_actor")
    assert (row["idle_ns"], row["host_ns"], row["unseen_ns"]) == (30_000, 12_000, 18_000)


def test_most_of_it_unknown_is_said(tmp_path):
    (found,) = findings(tmp_path, between_stages(), "stage-edge-idle")
    assert any("unknown host time" in caveat for caveat in found.caveats)
    rows = [*between_stages(), op("aten::cat", 402, 28)]
    (found,) = findings(tmp_path / "b", rows, "stage-edge-idle")
    assert not any("unknown host time" in caveat for caveat in found.caveats)


def test_a_capture_of_one_stage_has_no_edges(tmp_path):
    path = write(tmp_path / "rank0.json", silent())
    assert answers(path, "stage-edge-idle") == [("not applicable", "no step of one process contains two stages")]


# R29


def test_silence_is_measured_against_the_step(tmp_path):
    """20 ms of 2 s is one per cent; of a microsecond more it is less."""
    assert findings(tmp_path, silent(whole=2_000_001)) == []


def test_an_op_on_any_thread_is_no_silence(tmp_path):
    assert findings(tmp_path, [*silent(), op("aten::add", 1_010_000, 1, tid=7)]) == []


def test_silence_outside_of_stages_belongs_to_their_edge(tmp_path):
    """The stage is two stages, and the pause of 60 ms lies between them."""
    rows = [
        step(1, 0, 2_000_000), annotation("ref", 0, 1_000_000), annotation("update_actor", 1_060_000, 940_000),
        *launched("gemm", 0, 0, 1_000_000, 1), *launched("gemm", 1_060_000, 1_060_000, 940_000, 2),
    ]  # fmt: skip
    assert [f.rule for f in findings(tmp_path, rows)] == ["stage-edge-idle"]


def test_silence_at_the_head_of_a_stage_is_not_claimed_by_the_edge(tmp_path):
    """The same pause, within the second stage."""
    rows = [
        step(1, 0, 2_000_000), annotation("ref", 0, 1_000_000), annotation("update_actor", 1_000_000, 1_000_000),
        *launched("gemm", 0, 0, 1_000_000, 1), *launched("gemm", 1_060_000, 1_060_000, 940_000, 2),
    ]  # fmt: skip
    (found,) = findings(tmp_path, rows)
    assert (found.rule, found.cost_ns) == ("host-silence", 60_000_000)
    assert [json.loads(change)["stage"] for change in found.changes] == ["update_actor"]


def test_a_stage_that_leaves_the_gpu_alone_may_be_silent(tmp_path):
    rows = [
        step(1, 0, 2_000_000), annotation("reward", 0, 100_000), annotation("update_actor", 100_000, 1_900_000),
        *launched("gemm", 100_000, 100_000, 1_900_000, 1),
    ]  # fmt: skip
    assert findings(tmp_path, rows) == []


def test_recorded_garbage_collection_counts_however_short(tmp_path):
    """A pause of 10 ms within the stage, wrapped in a range, in a step of 1 s: one per cent."""
    rows = [
        step(1, 0, 1_000_000), annotation("update_actor", 0, 1_000_000), annotation("gc", 500_000, 10_000),
        *launched("gemm", 0, 0, 500_000, 1), *launched("gemm", 510_000, 510_000, 490_000, 2),
    ]  # fmt: skip
    assert findings(tmp_path, rows) == []
    path = write(tmp_path / "again" / "rank0.json", rows)
    (found,) = result(path, ("steps", "gpu-time", "idle", "garbage-collection")).report.findings
    assert (found.rule, found.claim) == (
        "garbage-collection",
        "GPUs wait 10.0 ms of 1,000 ms per step while Python collects garbage (1 collection)",
    )
    assert evidence(found) == {"collection_ns": 10_000_000, "collections": 1, "longest_ns": 10_000_000}
    assert found.places[0].stage == "update_actor"


def test_the_end_of_a_recording_is_no_pause(tmp_path):
    """The step goes on for 100 ms after the last kernel, as a profiler that stops makes it."""
    rows = [step(1, 0, 1_100_000), annotation("update_actor", 0, 1_100_000), *launched("gemm", 0, 0, 1_000_000, 1)]  # fmt: skip
    assert findings(tmp_path, rows) == []


def test_a_capture_that_nobody_divided_is_not_judged(tmp_path):
    rows = [row for row in silent() if row["cat"] != "user_annotation"]
    path = write_sources(tmp_path, rows)
    assert findings(tmp_path, rows) == []
    ((answer, reason),) = answers(path, "host-silence")
    assert (answer, reason.split(":")[0]) == ("insufficient data", "no stage and no counted step is annotated")


def test_without_the_host_two_rules_abstain(tmp_path):
    path = write(tmp_path / "rank0.json", [kernel("a", 0, 10), kernel("b", 30, 10)])
    for name in ("host-sync-stalls", "host-silence"):
        assert answers(path, name) == [("insufficient data", "no host activity was recorded")]


def test_a_process_without_a_device_beside_one_with_it(tmp_path):
    """Rank 1 recorded no device: its stage is nobody's idle time."""
    driver = [step(1, 0, 2_000_000), annotation("adv", 0, 2_000_000), op("aten::add", 0, 10)]
    (found,) = findings(tmp_path, {0: silent(), 1: driver})
    assert (found.rule, found.cost_ns) == ("host-silence", 20_000_000)


def test_pauses_of_ranks_at_different_times_cost_what_the_others_wait_too(tmp_path):
    """Each of two SIMULATED ranks pauses for 8 ms where the other does not: 8 ms of its own, 8 of the other, every step."""
    at = (("update_actor",), ("ref",))
    faults = tuple(Fault("pause", {"gc_at": where, "gc_ns": 8_000_000}, ranks=(rank,)) for rank, where in enumerate(at))
    quiet = {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0}
    job = Job("pauses", ranks=2, steps=3, faults=faults, **quiet)
    truth = make(job, tmp_path)
    (found,) = [
        finding for finding in result(tmp_path / "profile", None).report.findings if finding.rule == "host-silence"
    ]
    waited = next(metric.value for metric in found.evidence if metric.name == "waited_ns")
    assert waited == pytest.approx(8_000_000, rel=0.01)
    assert found.cost_ns == pytest.approx(truth["all_faults_ns"], rel=0.02)
    assert {place.stage for place in found.places} == {"update_actor", "old_log_prob"}  # where the gaps begin


@pytest.mark.parametrize(
    ("pauses_ms", "steps"),
    [
        ([500, 0, 0, 0, 0], {1}),
        # Those of at least half the longest: two of five are few, two of four are not.
        ([0, 500, 0, 250, 0], {2, 4}), ([0, 500, 249, 0, 0], set()),
        ([500, 400, 0, 0], set()), ([400, 500, 300, 0, 0], set()),
        # 500 of 550 are nearly all, of 560 they are not.
        ([0, 0, 500, 30, 20], {3}), ([0, 0, 500, 40, 20], set()),
    ],
)  # fmt: skip
def test_steps_that_pause_are_few_and_have_nearly_all_of_the_pauses(tmp_path, pauses_ms, steps):
    """Steps of 2 s, each with one pause in its middle and 100 ms of idle time after a call at its end."""
    rows, whole = [], 2_000_000
    for index, pause in enumerate(pauses_ms):
        half, rest = index * whole + 1_000_000, 900_000 - pause * 1000
        rows += [step(index + 1, index * whole, whole), annotation("update_actor", index * whole, whole)]
        rows += launched("gemm", index * whole, index * whole, 1_000_000, 2 * index + 1)
        rows += launched("gemm", half + pause * 1000, half + pause * 1000, rest, 2 * index + 2)
        rows += [op("aten::add", (index + 1) * whole - 100_000, 100_000)]
    measured = result(write(tmp_path / "rank0.json", rows)).measurements
    ((owner, pauses),) = find_host_pauses(measured, load_default_thresholds()).items()
    assert pauses.total_ns == sum(pauses_ms) * 1_000_000
    assert find_pausing_steps(measured, owner, pauses) == steps
