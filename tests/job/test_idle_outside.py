"""Hosts that pause outside all stages, such as one that logs at the end of every step: numbers worked by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from chrome_builder import annotation, launched, op, step, write

from tracekit.job.idle_time.causes import (
    AFTER_LAST,
    PAUSE_CAUSES,
    _choose_unit_columns_of_ranks,
    _has_many_short_pauses,
    _sum_with_last_step,
    sum_idle_outside_stages,
)
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000


def logging_steps(count, pause, *, mark=step, inside=None, around=None):
    """So many steps of 90 ms of `update_actor` that a kernel fills, and a pause in which nothing is launched.

    The pause is outside stages, or inside a stage called `inside`; `around` is an op that lasts as long.
    """
    rows, at = [], 0
    for number in range(1, count + 1):
        rows += [mark(number, at, 90 * MS + pause), annotation("update_actor", at, 90 * MS)]
        rows += launched("gemm", at + 1, at + 2, 90 * MS - 2, number)
        if inside:
            rows.append(annotation(inside, at + 90 * MS, pause))
        if around:
            rows.append(op(around, at + 90 * MS, pause))
        at += 90 * MS + pause
    return rows


def report_of(folder, rows, **options):
    return analyze_uncached(write(folder / "rank0.json", rows), Options(jobs=1, **options))


def silence(report):
    return [f for f in report.findings if f.rule == "host-silence"]


def test_a_host_that_logs_after_every_step_is_silent_outside_any_stage(tmp_path):
    """4 steps, the first does not count. 10 ms in steps 2 and 3; the 10 behind the last kernel count as the others do."""
    result = report_of(tmp_path, logging_steps(4, 10 * MS))
    (found,) = silence(result.report)
    assert found.cost_ns == pytest.approx(10_000_000, abs=10_000)
    assert "outside any stage" in found.claim
    assert {place.stage for place in found.places} == {None}
    assert {m.name: m.value for m in found.evidence}["outside_ns"] == found.cost_ns
    assert [json.loads(change)["stage"] for change in found.changes] == [""], "what is outside, not all"
    assert found.saving.alone_ns == pytest.approx(10_000_000, rel=0.01)


def test_behind_the_last_kernel_no_more_counts_than_in_the_other_steps(tmp_path):
    """10 ms in steps 1 to 3, 60 in the last, whose recording goes on: 4 · 10 in all, not 90."""
    rows = logging_steps(4, 10 * MS)
    rows = [row for row in rows if row["name"] != "ProfilerStep#4"] + [step(4, 300 * MS, 150 * MS)]
    (outside,) = sum_idle_outside_stages(report_of(tmp_path, rows).measurements).values()
    assert outside.silent_ns == pytest.approx(40_000_000, abs=40_000)
    assert outside.code_ns == 0


def test_an_op_outside_stages_is_no_pause(tmp_path):
    """The host is in an op for as long: other rules name what it does."""
    assert not silence(report_of(tmp_path, logging_steps(4, 10 * MS, around="aten::sort")).report)


def test_a_pause_in_a_stage_is_of_that_stage(tmp_path):
    """`reward` launches nothing, and what idles in it is by design; none of it is outside."""
    result = report_of(tmp_path, logging_steps(4, 10 * MS, inside="reward"))
    (outside,) = sum_idle_outside_stages(result.measurements).values()
    assert sum(outside) < 100_000


def test_without_marks_of_steps_the_time_between_stages_is_not_the_hosts(tmp_path):
    """Another process may have worked meanwhile: stages alone do not tell."""
    rows = [row for row in logging_steps(4, 10 * MS) if not row["name"].startswith("ProfilerStep")]
    assert not sum_idle_outside_stages(report_of(tmp_path, rows).measurements)


def test_the_place_of_pauses_outside_stages_is_none_of_a_stage(tmp_path):
    """4 steps: 10 ms a step in the range `mini_batch log` outside stages, 6 ms in `micro_batch wait` inside `gen`."""
    rows = []
    for number in range(1, 5):
        at = (number - 1) * 100 * MS
        rows += [step(number, at, 100 * MS), annotation("gen", at, 90 * MS)]
        rows += launched("gemm", at + 1, at + 2, 40 * MS, 10 * number)
        rows.append(annotation("micro_batch wait", at + 40 * MS + 3, 6 * MS))
        rows += launched("gemm", at + 46 * MS + 4, at + 46 * MS + 5, 44 * MS - 6, 10 * number + 1)
        rows.append(annotation("mini_batch log", at + 90 * MS, 10 * MS - 1))
    (found,) = silence(report_of(tmp_path, rows).report)
    assert found.cost_ns == pytest.approx(16_000_000, abs=50_000)
    assert "the host is in mini_batch log" in found.claim
    assert found.saving.alone_ns == pytest.approx(16_000_000, rel=0.02)
    assert "outside any stage" in found.claim


def test_where_only_some_stages_are_asked_for_nothing_is_outside(tmp_path):
    """The time of the stages that were left out is not the host's."""
    assert not silence(report_of(tmp_path, logging_steps(4, 10 * MS), stages=("update*",)).report)


@pytest.mark.parametrize(
    ("silent", "code", "after", "sums"),
    [
        # The others pause 11 and 20, 15 in the middle: the last step has 10 less than that, if 10 are left in it.
        ([10, 20, 5], [1, 0, 0], [0, 0, 30], (45, 1)), ([10, 20, 5], [1, 0, 0], [0, 0, 4], (39, 1)),
        # To whichever kind has more, and to silence of equal ones.
        ([1, 1, 0], [10, 20, 5], [0, 0, 30], (2, 46)), ([5, 0], [5, 0], [0, 100], (15, 5)),
        # Without other steps nothing is usual; a last step that pauses longer has no more.
        ([3, 4], [0, 0], [9, 9], (7, 0)), ([3, 4], [0, 0], [0, 9], (7, 0)),
    ],
)  # fmt: skip
def test_the_last_step_counts_what_the_others_pause(silent, code, after, sums):
    columns = dict(zip((*PAUSE_CAUSES, AFTER_LAST), map(np.array, (silent, code, after)), strict=True))
    assert _sum_with_last_step(Frame.from_columns(columns)) == sums


def test_with_stages_that_were_asked_for_nothing_is_outside_of_them():
    measured = SimpleNamespace(facts=SimpleNamespace(stages=("gen",)), derived=lambda _: "sums")
    assert sum_idle_outside_stages(measured) == {}
    measured.facts.stages = ()
    assert sum_idle_outside_stages(measured) == "sums"


@pytest.mark.parametrize(
    ("busy", "short_ns", "is_much"), [(0.8, 30, True), (0.8, 29, False), (0.79, 30, False), (None, 30, False)]
)
def test_short_pauses_count_from_their_share_on_in_a_stage_that_is_busy(busy, short_ns, is_much):
    window = SimpleNamespace(gpu_time={"busy_ratio": busy}, per_step=lambda ns: (ns, ns / 1000))
    assert _has_many_short_pauses(window, short_ns, 0.03, 0.8) is is_much


def test_the_role_tells_ranks_apart_where_two_roles_have_one_number():
    rows = [("actor", 0), ("actor", 1), ("ref", 2)]
    assert "role" not in _choose_unit_columns_of_ranks(from_rows(("role", "rank"), rows))
    assert "role" in _choose_unit_columns_of_ranks(from_rows(("role", "rank"), [*rows, ("ref", 0)]))
