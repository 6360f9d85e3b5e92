"""Where the change of a step came from: it adds up at every level, whatever the sides hold."""

import os
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from chrome_builder import annotation, op, step, write
from compare.made import made_side, step_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import GPU

from tracekit.compare.changes import STEP, ComparisonChoices
from tracekit.compare.judge import compare_sides
from tracekit.compare.reports import attribution_tables as attribution_sheets
from tracekit.compare.wall_time.attribution import attribute_sides, attribute_slot_table
from tracekit.compare.wall_time.slot_table import SLOT_KEYS, SlotHalf, SlotTable
from tracekit.model.report import Report
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline.comparing import compare_paths, read_side
from tracekit.pipeline.run import Options

ALONE = Options(jobs=1)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def folder(path, *ranks):
    """A folder with a file a rank, each of these rows."""
    for rank, rows in enumerate(ranks):
        write(path / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks))
    return path


def attribution(base, opt, drop_first=0):
    chosen = ComparisonChoices(drop_first=drop_first)
    sides = [read_side(p.name, [p], ALONE, chosen) for p in (base, opt)]
    return attribute_sides(*sides, 0.95)


def by_what(rows):
    return {(row.stage, row.what): (row.base, row.opt, row.difference) for row in rows}


def gen_step(number, at, dur, gen, *ops):
    """A step whose stage `gen` begins with it; ops are (name, length), one after the other from 1 µs on."""
    rows, ts = [step(number, at, dur), annotation("gen", at, gen)], at + 1
    for name, length in ops:
        rows.append(op(name, ts, length))
        ts += length
    return rows


def test_rows_are_means_over_ranks_and_close_on_the_longest_rank(tmp_path):
    """Before: steps of 100 and 120 with 40 and 60 in mm; after: 70 and 90 with 10 and 30."""
    base = folder(
        tmp_path / "a", gen_step(1, 0, 100, 60, ("aten::mm", 40)), gen_step(1, 0, 120, 80, ("aten::mm", 60))
    )  # fmt: skip
    opt = folder(
        tmp_path / "b", gen_step(1, 0, 70, 30, ("aten::mm", 10)), gen_step(1, 0, 90, 50, ("aten::mm", 30))
    )  # fmt: skip
    found = attribution(base, opt)
    assert (found.base, found.opt) == (120_000, 90_000)
    assert by_what(found.ops) == {
        ("gen", "aten::mm"): (50_000, 20_000, -30_000),
        ("gen", "no op (Python)"): (20_000, 20_000, 0),
        ("(outside any stage)", "no op (Python)"): (40_000, 40_000, 0),
        ("", "wait at step end"): (10_000, 10_000, 0),
    }
    assert found.ops[0].by_duration == -30_000
    assert found.ops[0].by_count == 0


def test_fewer_and_longer_calls_are_told_apart(tmp_path):
    """Three of 10 become one of 20: (1 − 3)(20 + 10)/2 = −30 and (20 − 10)(1 + 3)/2 = +20."""
    base = folder(tmp_path / "a", gen_step(1, 0, 100, 60, *[("aten::mm", 10)] * 3))
    opt = folder(tmp_path / "b", gen_step(1, 0, 90, 50, ("aten::mm", 20)))
    (row,) = (r for r in attribution(base, opt).leaves if r.what == "aten::mm")
    assert (row.base_count, row.opt_count) == (3, 1)
    assert (row.by_count, row.by_duration, row.difference) == (-30_000, 20_000, -10_000)


def test_the_split_of_the_method_is_reproduced():
    """96 × 110 → 48 × 190: −7200 + 5760 = −1440."""
    keys = from_rows(SLOT_KEYS, [["", "compute", "", "aten::mm", "gemm"]])
    halves = [
        SlotHalf(np.array([[n * d]], float), np.array([[float(n)]]), np.array([0]), np.array([n * d], float))
        for n, d in ((96, 110), (48, 190))
    ]  # fmt: skip
    (row,) = attribute_slot_table(SlotTable(keys, *halves), 0.95).leaves
    assert (row.by_count, row.by_duration, row.difference) == (-7_200, 5_760, -1_440)


def test_ops_of_one_side_stand_for_one_another_and_carry_their_full_time(tmp_path):
    base = folder(tmp_path / "a", gen_step(1, 0, 100, 60, ("aten::mul_", 20), ("aten::sqrt", 10), ("aten::mm", 5)))
    opt = folder(tmp_path / "b", gen_step(1, 0, 84, 44, ("aten::_fused_adamw_", 14), ("aten::mm", 5)))
    found = attribution(base, opt)
    title = "replaced: aten::mul_, aten::sqrt → aten::_fused_adamw_"
    assert by_what(found.ops)["gen", title] == (30_000, 14_000, -16_000)
    assert {r.presence for r in found.ops if r.what == title} == {"replaced"}
    assert by_what(found.replaced) == {("gen", title): (30_000, 14_000, -16_000)}
    leaves = {row.what: row for row in found.leaves}
    gone, new = leaves["aten::sqrt"], leaves["aten::_fused_adamw_"]
    assert (gone.presence, gone.difference, gone.by_count) == ("gone", -10_000, -10_000)
    assert (new.presence, new.difference, new.by_count) == ("new", 14_000, 14_000)


def test_an_op_that_is_only_new_replaces_nothing(tmp_path):
    base = folder(tmp_path / "a", gen_step(1, 0, 80, 40, ("aten::mm", 5)))
    opt = folder(tmp_path / "b", gen_step(1, 0, 94, 54, ("aten::cat", 14), ("aten::mm", 5)))
    found = attribution(base, opt)
    assert found.replaced == ()
    (row,) = (r for r in found.ops if r.what == "aten::cat")
    assert (row.presence, row.difference) == ("new", 14_000)


def test_runs_weigh_alike_however_many_steps_they_hold(tmp_path):
    """Runs of means 100 and (50 + 70)/2 = 60: the step is 80 and mm is (40 + (10 + 20)/2)/2 = 27.5."""
    folder(tmp_path / "a" / "r1", gen_step(1, 0, 100, 60, ("aten::mm", 40)))
    both = gen_step(1, 0, 50, 30, ("aten::mm", 10)) + gen_step(2, 50, 70, 30, ("aten::mm", 20))
    folder(tmp_path / "a" / "r2", both)
    opt = folder(tmp_path / "b", gen_step(1, 0, 50, 30, ("aten::mm", 10)))
    found = attribution(tmp_path / "a", opt)
    assert found.base == 80_000
    assert by_what(found.ops)["gen", "aten::mm"][0] == 27_500


def test_steps_that_are_dropped_do_not_count(tmp_path):
    first = gen_step(1, 0, 500, 400, ("aten::mm", 300))
    base = folder(tmp_path / "a", first + gen_step(2, 500, 50, 30, ("aten::mm", 10)))
    opt = folder(tmp_path / "b", first + gen_step(2, 500, 60, 40, ("aten::mm", 20)))
    found = attribution(base, opt, drop_first=1)
    assert (found.base, found.opt) == (50_000, 60_000)
    assert by_what(found.ops)["gen", "aten::mm"] == (10_000, 20_000, 10_000)


def test_a_step_that_one_rank_lacks_is_told_by_the_others(tmp_path):
    """Step 1: mm (10 + 30)/2; step 2 on rank 0 alone: 20. Mean 20; waits at the end (10 + 0)/2."""
    one = gen_step(1, 0, 50, 50, ("aten::mm", 10)) + gen_step(2, 70, 50, 50, ("aten::mm", 20))
    base = folder(tmp_path / "a", one, gen_step(1, 0, 70, 70, ("aten::mm", 30)))
    found = attribution(base, base)
    told = by_what(found.ops)
    assert told["gen", "aten::mm"] == (20_000, 20_000, 0)
    assert told["", "wait at step end"] == (5_000, 5_000, 0)
    assert found.base == 60_000


def verl(path, *roles):
    """A folder of files as verl names them, one step of one rank each: (role, start, length of its op)."""
    for pid, (role, start, length) in enumerate(roles, 1):
        name = f"{role}_train_step2_rank0-of-1_pid{pid}_20261120082159373.json"
        write(path / name, [op("aten::mm", start, length)])
    return path


def test_roles_that_take_turns_make_up_the_step_together(tmp_path):
    """The actor works from 0 to 60, the critic from 60 to 100: the step is 100."""
    base = verl(tmp_path / "a", ("actor-rollout-ref", 0, 60), ("critic", 60, 40))
    found = attribution(base, base)
    assert found.base == 100_000
    assert found.notes == ()
    assert by_what(found.ops) == {("", "aten::mm"): (100_000, 100_000, 0)}


def test_of_roles_at_the_same_time_one_tells_the_step(tmp_path):
    """The critic works from 10 to 40 beside the actor: 30 of its own cannot count as well."""
    base = verl(tmp_path / "a", ("actor-rollout-ref", 0, 60), ("critic", 10, 30))
    found = attribution(base, base)
    assert found.base == 60_000
    assert by_what(found.ops) == {("", "aten::mm"): (60_000, 60_000, 0)}
    (note,) = found.notes
    assert note.startswith("roles run concurrently: the attribution covers actor-rollout-ref")


def test_roles_that_would_fit_but_overlap_are_not_added(tmp_path):
    """0–60 and 30–70: 100 in a step of 70 in any case; 0–30 and 10–20 of 0–60: 40 would fit."""
    base = verl(tmp_path / "a", ("actor-rollout-ref", 0, 30), ("critic", 10, 10), ("value-model", 50, 10))
    found = attribution(base, base)
    told = by_what(found.ops)
    assert found.base == 60_000
    assert told["", "aten::mm"][0] == 40_000
    assert told["", "rest of the step (not recorded)"][0] == 20_000
    assert found.notes


def test_a_saved_report_has_no_attribution_and_that_is_said(tmp_path):
    base = folder(tmp_path / "a", gen_step(1, 0, 100, 60, ("aten::mm", 40)))
    other = made_side("saved", step_rows([1.0, 1.1]))
    found = compare_sides(read_side("a", [base], ALONE, ComparisonChoices(drop_first=0)), other, ComparisonChoices())
    assert found.origin.missing.startswith("saved: saved reports do not contain exclusive times")
    assert found.origin.ops == ()
    assert attribution_sheets.make_attribution_overview(found.origin, found.headline) is None


def test_the_first_screen_adds_up_and_stages_go_below(tmp_path):
    names = [f"aten::op{n}" for n in range(12)]
    base = folder(tmp_path / "a", gen_step(1, 0, 200, 150, *[(n, 2 + k) for k, n in enumerate(names)]))
    opt = folder(tmp_path / "b", gen_step(1, 0, 180, 130, *[(n, 1 + k % 3) for k, n in enumerate(names)]))
    found = compare_paths([base], [opt], ALONE, ComparisonChoices(drop_first=0)).comparison
    report: Report = found.report()
    assert report.overview.title == "Where the change came from (adds up to −20.0 µs)"
    column = [h.name for h in report.overview.headings].index("difference")
    assert len(report.overview.rows) == attribution_sheets.FIRST_SCREEN_PARTS + 1
    assert sum(row[column] for row in report.overview.rows) == pytest.approx(-20_000)
    assert "stages" in [section.id for section in report.sections]


def test_what_is_not_comparable_is_not_attributed(tmp_path):
    rows = gen_step(1, 0, 100, 60, ("aten::mm", 40))
    for name, size in (("a", 1), ("b", 2)):
        for rank in range(size):
            write(tmp_path / name / f"rank{rank}.json", rows, rank=rank, world_size=size)
    paths = [tmp_path / "a"], [tmp_path / "b"]
    found = compare_paths(*paths, ALONE, ComparisonChoices(drop_first=0)).comparison
    assert found.verdict == "not comparable"
    assert found.origin is None
    forced = compare_paths(*paths, ALONE, ComparisonChoices(drop_first=0, force=True)).comparison
    assert forced.origin.ops


# Any slots


@st.composite
def tables(draw):
    """Slots of both sides with small whole numbers, runs of different lengths; their walls are the sums."""
    size = draw(st.integers(1, 8))
    texts = st.tuples(
        st.sampled_from(["", "gen", "update_actor"]),
        st.sampled_from(["compute", "host", "idle", "collective", "no_op"]),
        st.sampled_from(["", "sync"]),
        st.sampled_from(["", "(no op)", "a", "a > b", "a > c", "d > b", "(unlinked)"]),
        st.sampled_from(["", "k_1", "k_2", "other_3"]),
    )
    rows = sorted(draw(st.lists(texts, min_size=size, max_size=size, unique=True)))
    halves = []
    for _ in range(2):
        lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        run = np.repeat(np.arange(len(lengths)), lengths)
        shape = (size, len(run))
        numbers = st.lists(st.integers(0, 4), min_size=size * len(run), max_size=size * len(run))
        ns = np.array(draw(numbers), float).reshape(shape) * 1_000_003
        count = np.array(draw(numbers), float).reshape(shape)
        halves.append(SlotHalf(ns, count, run, ns.sum(axis=0)))
    return SlotTable(from_rows(SLOT_KEYS, rows), *halves)


def exact_mean(half, row):
    """The mean over runs of the means over their steps, in fractions."""
    runs = {}
    for number, value in zip(half.run.tolist(), half.ns[row].tolist(), strict=True):
        runs.setdefault(number, []).append(Fraction(value))
    return sum(sum(values) / len(values) for values in runs.values()) / len(runs)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_every_level_adds_up_to_the_change_and_to_the_level_above(table):
    found = attribute_slot_table(table, 0.95)
    total = [sum(exact_mean(half, row) for row in range(len(table.keys))) for half in (table.base, table.opt)]
    for rows in (found.stages, found.ops, found.leaves):
        assert abs(sum(r.base for r in rows) - total[0]) < 1
        assert abs(sum(r.opt for r in rows) - total[1]) < 1
        assert abs(sum(r.difference for r in rows) - (total[1] - total[0])) < 1
        assert abs(sum(r.by_count + r.by_duration - r.difference for r in rows)) < 1
        for low, high, difference in ((r.low, r.high, r.difference) for r in rows):
            assert (low is None) == (high is None)
            assert low is None or low <= difference <= high
    for stage in {r.stage for r in found.stages}:
        sums = [sum(r.difference for r in rows if r.stage == stage) for rows in (found.stages, found.ops, found.leaves)]
        assert sums == pytest.approx([sums[0]] * 3, abs=1)


@settings(max_examples=10, deadline=None)
@given(tables())
def test_swapping_the_sides_turns_every_difference_round(table):
    there = attribute_slot_table(table, 0.95)
    back = attribute_slot_table(SlotTable(table.keys, table.opt, table.base), 0.95)
    assert sorted(round(r.difference) for r in there.leaves) == sorted(round(-r.difference) for r in back.leaves)


# Real profiles


def real_pairs():
    """The public profiles where they are at hand, else those of this project."""
    if REAL is None:
        sides = {side: [GPU / "compare" / side] for side in ("base", "opt", "again")}
        graphs = [[GPU / f"no_marks/graph_{name}.pt.trace.json.xz"] for name in ("gelu", "silu")]
        plain = [[GPU / f"no_marks/plain_{name}.pt.trace.json.xz"] for name in ("unfused", "fused")]
        return {
            "gpu": (sides["base"], sides["opt"]),
            "equal": (sides["base"], sides["again"]),
            "graphs": graphs,
            "plain": plain,
        }
    chrome = Path(REAL or ".") / "chrome"
    gloo, kineto, lens = (chrome / "gloo_cpu", chrome / "kineto_tb_plugin/samples", chrome / "tracelens")
    verl_cpu = chrome / "verl_cpu"
    return {
        "gloo": ([gloo / f"base_run{n}" for n in (1, 2, 3)], [gloo / f"opt_run{n}" for n in (1, 2, 3)]),
        "straggler": ([gloo / "base_run1"], [gloo / "straggler"]),
        "tiny ops": ([gloo / "base_run1"], [gloo / "fault_tiny_ops"]),
        "per step": ([gloo / "verl_like_perstep"], [gloo / "verl_like_perstep"]),
        "workers": ([kineto / "resnet50_num_workers_0"], [kineto / "resnet50_num_workers_4"]),
        "devices": (sorted((lens / "h100").glob("Qwen*")), sorted((lens / "mi300").glob("Qwen*"))),
        "straggler, verl": ([verl_cpu / "v091_e2e_all_ranks"], [verl_cpu / "v091_straggler"]),
        "discrete": ([verl_cpu / "v090_discrete"], [verl_cpu / "v091_discrete"]),
        "files": ([verl_cpu / "v080_e2e"], [verl_cpu / "v090_e2e"]),
    }  # fmt: skip


@cache
def real_comparison(name):
    return compare_paths(*real_pairs()[name], choices=ComparisonChoices(force=True)).comparison


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if REAL is None or n in ("files", "workers") else pytest.mark.slow)
        for n in real_pairs()
    ],
)
def test_real_pairs_add_up_within_a_microsecond(name):
    found = real_comparison(name)
    origin = found.origin
    assert not origin.missing
    change = next(c for c in found.changes if (c.name, c.role, c.stage) == STEP)
    for rows in (origin.stages, origin.ops, origin.leaves):
        assert abs(sum(r.base for r in rows) - change.base) < 1_000
        assert abs(sum(r.opt for r in rows) - change.opt) < 1_000
        assert abs(sum(r.difference for r in rows) - change.difference) < 1_000


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_generation_and_the_fused_optimizer_are_named():
    """What was changed: a key-value cache in generation, and one fused optimizer kernel."""
    found = real_comparison("gloo").origin
    first = found.ops[0]
    assert (first.stage, first.what) == ("gen", "aten::linear")
    assert first.high < 0
    gen = sum(row.difference for row in found.stages if row.stage == "gen")
    assert gen < 0.75 * (found.opt - found.base)
    (fused,) = (row for row in found.replaced if row.stage == "update_actor")
    assert "aten::_fused_adamw_" in fused.what.partition("→")[2]
    assert "aten::sqrt" in fused.what.partition("→")[0]
    assert fused.high < 0


def test_the_order_of_files_changes_nothing(tmp_path):
    paths = [folder(tmp_path / name, gen_step(1, 0, 100 + n, 60, ("aten::mm", 40 + n))) for n, name in enumerate("abc")]
    first, second = (
        attribute_sides(*[read_side("x", given, ALONE, ComparisonChoices(drop_first=0))] * 2, 0.95)
        for given in (paths, paths[::-1])
    )
    assert first == second
