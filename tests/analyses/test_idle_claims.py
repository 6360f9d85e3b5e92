"""Idle time that has a finding of its own is not counted again: R01 beside R02, R03, R04, R15 and R29."""

import pytest
from chrome_builder import annotation, launch, launched, memcpy, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from process.idle_traces import load
from rules.idle_report import evidence, result, rows_of
from rules.traces_host import LOADER, one_by_one
from rules.traces_idle import silent, synchronised

from tracekit.analyses import load_default_thresholds
from tracekit.job.idle_time.claims import claim_idle_time
from tracekit.job.stages.windows import list_stage_windows, list_undamaged_rows
from tracekit.model.tables.frame import sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.process.idle_time.launch_gaps import find_launch_gaps

R01 = "low-gpu-utilization"


def report(tmp_path, rows):
    return result(write(tmp_path / "rank0.json", rows), None).report


def answers(found):
    """What R01 says: (answer, run, reason), one a line of the sheet of rules."""
    shown = next(s for s in found.sections if s.id == "rules")
    rows = [r for r in rows_of(shown, "rules") if r["rule"] == R01]
    return [(r["answer"], r.get("run"), r["reason"]) for r in rows]


def stepped(*rows, whole=1000):
    """A first step of full work, and one with these rows: a first step says nothing about loaders."""
    return [step(1, -whole, whole), *launched("gemm", -whole, -whole, whole, 99), step(2, 0, whole), *rows]  # fmt: skip


EXPLAINED = {
    # 20 calls with 30 of idle time after each: 600 of 2000.
    "host-sync-stalls": (
        synchronised(idle=30),
        600_000,
        "GPUs are busy 70 % of update_actor: explained by host-sync-stalls (30 %); 0 % are left",
    ),
    # Ten kernels of 5, nine gaps of 5 between them: 45 of 95.
    "launch-bound": (
        one_by_one(5, 5, last=5),
        45_000,
        "GPUs are busy 53 % of gen: explained by launch-bound (47 %); 0 % are left",
    ),
    # 440 of the second step of 1000; the mean wait leaves the first step out.
    "data-loader-wait": (
        stepped(annotation(LOADER, 0, 440), *launched("gemm", 440, 440, 560, 1)),
        440_000,
        "GPUs are busy 78 % of the step: explained by data-loader-wait (22 %); 0 % are left",
    ),
    # The update of 600 begins at 400 and its first kernel at 550, all in the update.
    "stage-edge-idle": (
        [
            step(1, 0, 1000), annotation("old_log_prob", 0, 400), annotation("update_actor", 400, 600),
            *launched("gemm", 0, 0, 400, 1), *launched("gemm", 550, 550, 450, 2),
        ],
        150_000,
        "GPUs are busy 75 % of update_actor: explained by stage-edge-idle (25 %); 0 % are left",
    ),
    # 500 ms of 2 s.
    "host-silence": (
        silent(500_000),
        500_000_000,
        "GPUs are busy 75 % of update_actor: explained by host-silence (25 %); 0 % are left",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", EXPLAINED)
def test_the_rule_that_knows_the_cause_stands_alone_and_the_other_says_why(tmp_path, rule):
    rows, recoverable_ns, reason = EXPLAINED[rule]
    found = report(tmp_path, rows)
    assert [(f.rule, f.recoverable_ns) for f in found.findings] == [(rule, recoverable_ns)]
    assert answers(found) == [("clear", None, reason)]


@pytest.mark.parametrize(("stage", "fires"), [(2587, False), (2588, True)])
def test_what_no_other_finding_tells_has_to_reach_the_threshold_by_itself(tmp_path, stage, fires):
    """600 after the calls; the last kernel ends at 2070: the rest of the stage is a fifth of it from 2587.5 on."""
    found = report(tmp_path, synchronised(idle=30, stage=stage))
    mine = [f for f in found.findings if f.rule == R01]
    assert {f.rule for f in found.findings} == {"host-sync-stalls", *([R01] if fires else [])}
    assert (len(mine) == 1) == fires
    assert [answer for answer, _, _ in answers(found)] == ["fired" if fires else "clear"]
    for one in mine:
        left = stage - 2070
        assert one.claim == (
            "GPUs are busy 57 % of update_actor, and idle 20 % of it beyond other findings: 519 µs of 2.59 ms idle with nothing recorded"
        )
        assert one.recoverable_ns == left * 1000
        assert one.recoverable_ratio == pytest.approx(left / stage)
        told = evidence(one)
        assert (told["idle_ns"], told["unexplained_ns"]) == ((left + 600) * 1000, left * 1000)
        assert "host-sync-stalls (600 µs)" in one.caveats[-1]


def test_a_rule_that_does_not_fire_claims_nothing(tmp_path):
    """19 calls are too few: 570 of 1900 idle have no finding but this."""
    (found,) = report(tmp_path, synchronised(idle=30, calls=19, stage=1900)).findings
    assert (found.rule, found.claim) == (
        R01,
        "GPUs are busy 70 % of update_actor: 513 µs of 1.90 ms idle, starting up",
    )
    assert found.recoverable_ns == 570_000
    assert "unexplained_ns" not in evidence(found)


def test_only_the_run_and_stage_that_a_finding_is_about_yields(tmp_path):
    """Run a waits after calls; run b is idle 11 of each 50 without a call."""
    write(tmp_path / "a/rank0.json", synchronised(idle=30))
    rows = [step(1, 0, 100), annotation("gen", 0, 50), *launched("k", 1, 2, 39, 1)]
    write(tmp_path / "b/rank0.json", rows)
    found = result(tmp_path, None).report
    assert [(f.rule, f.recoverable_ns) for f in found.findings if f.rule == R01] == [(R01, 11_000)]
    assert [(answer, run) for answer, run, _ in answers(found)] == [("fired", None), ("clear", "a")]


# R02 and R03


def copied(cycles=25):
    """Short kernels, each followed by a pageable copy that the host waits for and then by 10 of Python.

    In 20 a kernel of 5, a copy of 4, 1 until the call returns, 10 until the next launch.
    """
    rows = [step(1, 0, 20 * cycles), annotation("gen", 0, 20 * cycles)]
    for number in range(cycles):
        at = 20 * number
        rows += launched("small", at, at, 5, 2 * number + 1)
        rows += [
            launch(at + 2, 2 * number + 2, 8, name="cudaMemcpyAsync"),
            memcpy("Memcpy HtoD (Pageable -> Device)", at + 5, 4, 1000, 2 * number + 2),
        ]
    return rows


def test_what_follows_a_copy_that_the_host_waited_for_is_no_wait_for_a_launch(tmp_path):
    """24 times 10 of 500 after the calls; of the 275 idle the other 35 are 7 %."""
    found = report(tmp_path, copied())
    assert [(f.rule, f.recoverable_ns) for f in found.findings] == [("host-sync-stalls", 240_000)]
    ((answer, _, reason),) = answers(found)
    assert (answer, reason) == (
        "clear",
        "GPUs are busy 45 % of gen: explained by host-sync-stalls (48 %); 7.0 % are left",
    )


def test_two_causes_in_one_stage_share_nothing_and_are_taken_off_together(tmp_path):
    """After the copies 25 kernels of 5, the first one 10 after the last copy, the others every 10.

    In 745: 25 times 10 after calls, 24 gaps of 5, and 25 times 1 while a call returns.
    """
    rows = [r for r in copied() if r["cat"] != "user_annotation"]
    rows += [step(1, 0, 745), annotation("gen", 0, 745)]
    for number in range(25):
        rows += launched("small", 500 + 10 * number, 500 + 10 * number, 5, 900 + number)
    found = report(tmp_path, rows)
    assert [(f.rule, f.recoverable_ns) for f in found.findings] == [
        ("host-sync-stalls", 250_000),
        ("launch-bound", 120_000),
    ]
    assert answers(found)[0][2] == (
        "GPUs are busy 47 % of gen: explained by host-sync-stalls (34 %), launch-bound (16 %); 3.4 % are left"
    )


def gaps_ns(tmp_path, rows):
    return sum(found.total for found in find_launch_gaps(load(tmp_path, rows)))


@pytest.mark.parametrize(
    ("begins", "dur", "gap"),
    [(94, 5, 10), (95, 5, 5), (100, 5, 5), (105, 5, 5), (90, 10, 0), (40, 60, 0), (95, 8, 2)],
    ids=["before", "as it begins", "begun with it", "in it", "as long", "longer", "until 103"],
)
def test_a_call_explains_as_much_of_a_gap_as_the_host_lost_in_it(tmp_path, begins, dur, gap):
    """Idle 100 to 110; without a call that returned at 100 after 5 the next op would have begun 5 earlier."""
    rows = [*launched("a", 0, 0, 100, 1), *launched("b", 110, 110, 10, 2)]
    rows += [launch(begins, 9, dur, name="cudaStreamSynchronize")]
    assert gaps_ns(tmp_path, rows) == gap * 1000


def test_what_the_device_takes_between_queued_ops_is_no_launch_gap(tmp_path):
    """`b` and `c` are queued and begin 2 and 3 after the op before; `d` is launched 10 after `c`: its gap is 14, less 2.5."""
    rows = [
        *launched("a", 0, 1, 100, 1), *launched("b", 5, 103, 10, 2), *launched("c", 12, 116, 10, 3),
        *launched("d", 136, 140, 10, 4),
    ]  # fmt: skip
    assert gaps_ns(tmp_path, rows) == 11_500


def test_a_gap_before_a_copy_is_a_launch_gap(tmp_path):
    """Idle 100 to 110, where the copy is launched at 108."""
    rows = [*launched("a", 0, 0, 100, 1), launch(108, 2, 3, name="cudaMemcpyAsync")]
    rows += [memcpy("Memcpy HtoD (Pinned -> Device)", 110, 5, 8, 2)]
    assert gaps_ns(tmp_path, rows) == 10_000


def test_a_gap_before_the_first_op_of_a_following_stage_is_an_edge(tmp_path):
    """Idle 100 to 110 at the start of `ref`, 115 to 120 within it."""
    rows = [
        step(1, 0, 200), *launched("a", 0, 0, 100, 1), *launched("b", 110, 110, 5, 2), *launched("c", 120, 120, 80, 3),
    ]  # fmt: skip
    staged = [annotation("gen", 0, 100), annotation("ref", 100, 100)]
    assert gaps_ns(tmp_path / "staged", [*rows, *staged]) == 5_000
    assert gaps_ns(tmp_path / "plain", rows) == 15_000


# Any trace


def any_stage(number, name, work):
    """A stage of 100 in its own step part, with a few ops, calls and kernels at odd times."""
    rows = [annotation(name, 100 * number, 100)]
    for at, (kind, start, dur) in enumerate(work):
        begin, link = 100 * number + start, 50 * number + at + 1
        if kind == "kernel":
            rows += launched("k", begin, begin + 1, dur, link)
        elif kind == "sync":
            rows += [launch(begin, 1000 + link, dur, name="cudaStreamSynchronize")]
        elif kind == "copy":
            rows += [launch(begin, link, dur + 2, name="cudaMemcpyAsync")]
            rows += [memcpy("Memcpy DtoH (Device -> Pageable)", begin + 1, dur, 8, link)]
        else:
            rows += [annotation(kind, begin, dur) if kind != "op" else op("aten::x", begin, dur)]
    return rows


KINDS = st.sampled_from(("kernel", "kernel", "sync", "copy", "gc", LOADER, "op"))
WORK = st.lists(st.tuples(KINDS, st.integers(0, 90), st.integers(1, 15)), max_size=12)


def eager():
    """Limits at which every rule fires as soon as there is anything to tell."""
    values = {name: dict(block) for name, block in load_default_thresholds().values.items()}
    values["host-sync-stalls"] |= {"stage_ratio": 0.0, "syncs_per_step": 0}
    values["launch-bound"] |= {"gap_ratio": 0.0, "median_kernel_ns": 10**9}
    values["data-loader-wait"] |= {"wait_ratio": 0.0}
    values["stage-edge-idle"] |= {"step_ratio": 0.0}
    values["host-silence"] |= {"step_ratio": 0.0}
    return Thresholds(values)


@settings(max_examples=20, deadline=None)
@given(st.lists(WORK, min_size=1, max_size=3))
def test_no_idle_time_is_claimed_twice(tmp_path_factory, works):
    """Whatever every rule claims of a stage is together no more than its idle time."""
    names = ("gen", "ref", "update_actor")
    rows = [step(1, 0, 100 * len(works))]
    for number, work in enumerate(works):
        rows += any_stage(number, names[number], work)
    folder = tmp_path_factory.mktemp("t")
    measured = result(write(folder / "rank0.json", rows), None).measurements
    if not len(measured["gpu_time"]):
        return
    told = claim_idle_time(measured, eager())
    stages = list_undamaged_rows(measured, "gpu_time")
    stages = stages.filter(stages.equals("window", "stage")).group_by("stage").agg(idle_ns=sum_of("idle_ns"))
    idle = dict(zip(stages.values("stage"), stages.values("idle_ns"), strict=True))
    assert {key[2] for key in told} <= set(idle)
    assert len(list_stage_windows(measured)) == len(idle)
    for key, parts in told.items():
        assert sum(parts.values()) <= idle[key[2]]
        assert all(part > 0 for part in parts.values())


def test_gaps_of_a_launch_bound_stage_are_no_pauses_of_the_host(tmp_path):
    """Kernels of 17, nine gaps of 3; the host is in no op for 2 of each. That is 9 % of a busy stage, and R03 counts it."""
    rows = [step(1, 0, 197), annotation("gen", 0, 197)]
    for number in range(10):
        rows += launched("small", max(20 * number - 1, 0), 20 * number, 17, number + 1)
    found = report(tmp_path, rows)
    assert [(f.rule, f.recoverable_ns) for f in found.findings] == [("launch-bound", 27_000)]


@pytest.mark.parametrize(("stage", "fires"), [(2620, False), (2621, True)])
def test_a_stage_is_explained_from_the_share_on_that_makes_it_busy(tmp_path, stage, fires):
    """21 kernels of 96 and 20 claimed gaps of 4: 2096 are 80 % of 2620. The rest is idle after the last kernel."""
    found = report(tmp_path, synchronised(idle=4, stage=stage))
    assert (R01 in {finding.rule for finding in found.findings}) is fires
    reason = "GPUs are busy 77 % of update_actor: explained by host-sync-stalls (3.1 %); 20 % are left"
    assert (answers(found)[0] == ("clear", None, reason)) is not fires
