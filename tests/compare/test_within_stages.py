"""Stages that some steps lack, stages op by op, pairs of steps, and attributions beside un-profiled answers."""

from dataclasses import replace

import pytest
from chrome_builder import annotation, op, step, write
from compare.made import change_of
from compare.test_attribution import tables
from hypothesis import given, settings
from scipy import stats

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.reports.comparison_report import describe_comparison_basis
from tracekit.compare.wall_time.attribution import attribute_slot_table
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.run import Options


def profile(path, *steps, name="run"):
    """Steps of these stages, each (name, op, length) and 1 µs longer than its op, and 5 µs of no stage at the end."""
    rows, at = [], 0
    for number, stages in enumerate(steps, 1):
        begin = at
        for stage, called, length in stages:
            rows += [annotation(stage, at, length + 1), op(called, at, length)]
            at += length + 1
        at += 5
        rows.append(step(number, begin, at - begin))
    path.mkdir(parents=True, exist_ok=True)
    write(path / f"{name}_rank0.json", rows, rank=0, world_size=1)
    return path


def compared(base, opt, logs=((), ()), **choices):
    chosen = ComparisonChoices(drop_first=0, **choices)
    return compare_paths([base], [opt], Options(jobs=1), chosen, *logs).comparison


def sheet_of(found, name):
    (sheet,) = (s for part in found.report().sections for s in part.sheets if s.name == name)
    return sheet


def shown(sheet):
    """The rows by their first cell, as {name of column: cell}."""
    names = [heading.name for heading in sheet.headings]
    return {row[0]: dict(zip(names, row, strict=True)) for row in sheet.rows}


GEN, TEST = ("gen", "aten::mm", 49), ("validation", "aten::add", 29)


@pytest.fixture
def some_steps(tmp_path):
    """Before: 30 µs of validation in 3 of 6 steps of 55 or 85; after: 60 in 2 of 4 of 55 or 115."""
    base = profile(tmp_path / "a", *[[GEN, TEST], [GEN]] * 3)
    opt = profile(tmp_path / "b", *[[GEN, ("validation", "aten::add", 59)], [GEN]] * 2)
    return compared(base, opt)


def test_a_stage_of_some_steps_is_nothing_in_the_others_of_the_mean_step(some_steps):
    """Mean steps of 70 and 85: validation makes 30 × 3/6 = 15 and 60 × 2/4 = 30 of them, gen 50 of either."""
    origin = some_steps.origin
    assert (origin.base, origin.opt) == (70_000, 85_000)
    by_stage = {(t.stage): (t.base, t.opt) for t in origin.stage_times}
    validation = next(name for name in by_stage if name != "gen")
    assert by_stage["gen"] == pytest.approx((50_000, 50_000))
    assert by_stage[validation] == pytest.approx((15_000, 30_000))
    for rows in (origin.stages, origin.ops, origin.leaves):
        assert abs(sum(r.difference for r in rows) - 15_000) < 1
    (row,) = (r for r in origin.leaves if r.what == "aten::add")
    assert (row.base, row.opt, row.base_count, row.opt_count) == (14_500, 29_500, 0.5, 0.5)


def test_its_own_change_is_of_the_steps_that_hold_it_and_says_so(some_steps):
    """30 → 60 each time it comes: half as fast, in 3 of 6 and 2 of 4 steps. p = 15/70: the step alone 70/85."""
    (own,) = (c for c in some_steps.changes if c.name == "stage_time" and c.stage != "gen")
    assert (own.base, own.opt, own.ratio) == (30_000, 60_000, 0.5)
    assert own.step_ratio == pytest.approx(70 / 85)
    sheet = sheet_of(some_steps, "stages")
    rows = shown(sheet)
    assert rows[own.title]["steps"] == "3 of 6 before, 2 of 4 after"
    assert rows["gen"]["steps"] == rows["step"]["steps"] == ""
    assert "Times of a stage are means over the steps that contain it." in sheet.caption


def test_without_an_attribution_the_picture_gives_it_its_part_of_the_mean_step(some_steps):
    bare = replace(some_steps, origin=None)
    charts = [c for part in bare.report().sections for c in part.charts if c.kind == "waterfall"]
    ends = [mark[3] - mark[2] for mark in charts[0].marks[1:-1]]
    assert ends == pytest.approx([15_000, 0])


def test_stages_that_are_in_all_steps_have_no_such_column(tmp_path):
    base, opt = (profile(tmp_path / n, [("gen", "aten::mm", 40 + d)]) for n, d in (("a", 9), ("b", 0)))
    names = [heading.name for heading in sheet_of(compared(base, opt), "stages").headings]
    assert "steps" not in names
    assert "step_ratio" in names


# Op by op


def test_the_stages_that_changed_most_are_told_op_by_op(tmp_path):
    """gen 91 → 46 (mm 40 → 10, add 49 → 34), update 100 → 99: under a twentieth of all change, not told."""
    sides = []
    for name, (mm, add, fast) in (("a", (40, 49, 99)), ("b", (10, 34, 98))):
        stages = [("gen", "aten::mm", mm), ("gen", "aten::add", add), ("update_actor", "aten::pow", fast)]
        sides.append(profile(tmp_path / name, stages))
    found = compared(*sides)
    (one,) = found.origin.within
    assert (one.stage, one.base, one.opt) == ("gen", 91_000, 46_000)
    told = {row.what: (row.base, row.opt, row.difference) for row in one.rows}
    assert told == {
        "aten::mm": (40_000, 10_000, -30_000), "aten::add": (49_000, 34_000, -15_000),
        "no op (Python)": (2_000, 2_000, 0),
    }  # fmt: skip
    sheet = sheet_of(found, "within-1")
    assert sheet.title == "Within gen (adds up to −45.0 µs)"
    changes = [row["difference"] for row in shown(sheet).values()]
    assert changes[0] == sum(changes[1:]) == -45_000
    charts = {c.id: c for part in found.report().sections for c in part.charts}
    assert charts["waterfall-1"].rows == ("gen, a", "aten::mm", "aten::add", "gen, b")
    assert charts["waterfall-1"].marks[1:3] == ((1, 0, 91_000, 61_000), (2, 0, 61_000, 46_000))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_the_ops_of_a_stage_are_all_of_it_and_few(table):
    found = attribute_slot_table(table, 0.95)
    whole = {}
    for row in found.stages:
        whole[row.stage] = whole.get(row.stage, 0) + row.difference
    assert len(found.within) <= 3
    for one in found.within:
        assert abs(one.opt - one.base - whole[one.stage]) < 1
        assert abs(sum(row.difference for row in one.rows) - (one.opt - one.base)) < 1
        assert abs(sum(row.base for row in one.rows) - one.base) < 1
        assert len(one.rows) <= 9
    whole.pop("", None)
    if len(whole) < 2:
        assert found.within == ()
        return
    ops = [row.stage for row in found.ops]
    told = {one.stage: one for one in found.within}
    for stage in {name for name in whole if ops.count(name) > 1} - told.keys():
        larger = [ns for ns in map(abs, whole.values()) if ns >= abs(whole[stage]) - 1]
        assert len(larger) > 3 or abs(whole[stage]) <= 0.05 * sum(map(abs, whole.values())) + 1


# Pairs


def test_rows_of_paired_steps_have_the_interval_of_pairs(tmp_path):
    """mm takes 100, 200, 150 and 300, after it 10, 12, 9 and 11 less: the pairs hardly vary, the steps do."""
    before = [100, 200, 150, 300]
    after = [t - less for t, less in zip(before, (10, 12, 9, 11), strict=True)]
    base, opt = (
        profile(tmp_path / name, *[[("gen", "aten::mm", t)] for t in times])
        for name, times in (("a", before), ("b", after))
    )
    found = compared(base, opt, paired="step")
    assert found.headline.label == "within-run, paired"
    assert found.origin.paired == "step"
    (row,) = (r for r in found.origin.ops if r.what == "aten::mm")
    known = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (row.low / 1000, row.high / 1000) == pytest.approx((known.low, known.high))
    assert "Confidence intervals use pairs of steps." in found.report().overview.caption
    apart = compared(base, opt)
    (wide,) = (r for r in apart.origin.ops if r.what == "aten::mm")
    assert wide.high > 0 > row.high
    assert "pairs" not in apart.report().overview.caption


def test_rows_are_not_paired_where_the_steps_are_not(tmp_path):
    base = profile(tmp_path / "a", *[[("gen", "aten::mm", t)] for t in (100, 200, 150)])
    opt = profile(tmp_path / "b", *[[("gen", "aten::mm", t)] for t in (90, 190)])
    found = compared(base, opt, paired="step")
    assert (found.headline.label, found.origin.paired) == ("within-run", None)


# Beside an un-profiled answer


def test_an_attribution_of_profiled_steps_says_so_beside_an_un_profiled_answer(tmp_path):
    """Profiled 55 → 45 µs; logged 30 → 24 µs: the parts add up to −10, the answer is −6."""
    base, opt = (profile(tmp_path / n, [("gen", "aten::mm", d)]) for n, d in (("a", 49), ("b", 39)))
    logs = []
    for name, seconds in (("a", 30e-6), ("b", 24e-6)):
        path = tmp_path / f"{name}.csv"
        path.write_text("step,seconds\n" + "".join(f"{n},{seconds}\n" for n in (1, 2, 3)))
        logs.append([path])
    found = compared(base, opt, logs)
    assert found.headline.name == "unprofiled_step_time"
    report = found.report()
    assert report.overview.title == "Where the change of profiled steps came from (adds up to −10.0 µs)"
    said = (
        "The table splits the profiled step, 55.0 µs → 45.0 µs (−10.0 µs). The verdict is about the un-profiled step, "
        "30.0 µs → 24.0 µs (−6.00 µs), whose parts were not recorded."
    )
    assert report.overview.caption.startswith(said)
    (section,) = (s for s in report.sections if s.id == "attribution")
    assert section.title == "Where the change of profiled steps came from, in detail"
    assert said in section.caveats
    charts = {c.id: c for part in report.sections for c in part.charts}
    assert charts["waterfall"].title == "Where the change of profiled steps came from"
    assert charts["waterfall"].caption.startswith(said)
    plain = compared(base, opt).report()
    assert plain.overview.title == "Where the change came from (adds up to −10.0 µs)"
    assert "un-profiled" not in plain.overview.caption


def test_the_answer_says_which_stage_alone_changes_the_step_most(tmp_path):
    """gen takes 101.2 of 136.2 µs, then 50.8: 1.992 times faster; the step 136.2 / (136.2 − 50.4) = 1.587 times."""
    base = profile(tmp_path / "a", *[[("gen", "aten::mm", 99 + n), ("adv", "aten::add", 29)] for n in (0, 2, 1, 3, 0)])  # fmt: skip
    opt = profile(tmp_path / "b", *[[("gen", "aten::mm", 49 + n), ("adv", "aten::add", 29)] for n in (1, 0, 2, 0, 1)])  # fmt: skip
    found = compared(base, opt)
    gen = change_of(found, "stage_time", "gen")
    assert gen.step_low < gen.step_ratio < gen.step_high
    (line,) = (line for line in describe_comparison_basis(found) if "from this alone" in line)
    # The interval of steps of one run per side says nothing of other runs, and is not shown.
    assert line == "inconclusive: gen 1.99× faster → step 1.59× faster from this alone"
