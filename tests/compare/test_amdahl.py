"""What one stage's speedup makes of the step: worked by hand, and equal to what happens if only that stage changes."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from chrome_builder import annotation, op, step, write
from compare.made import change_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.compare.amdahl import (
    add_step_speedups,
    apply_amdahls_law,
    describe_largest_stage_effect,
    format_speedup_with_interval,
)
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import Change
from tracekit.compare.wall_time.attribution_rows import Attribution, StageTimeChange
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.run import Options


def profile(path, *steps, gap=0):
    """A file whose steps hold these stages, (name, length) one after the other, and a gap of no stage at the end."""
    rows, at = [], 0
    for number, stages in enumerate(steps, 1):
        begin = at
        for name, length in stages:
            rows += [annotation(name, at, length), op("aten::mm", at, length)]
            at += length
        at += gap
        rows.append(step(number, begin, at - begin))
    path.mkdir(parents=True)
    write(path / "rank0.json", rows, rank=0, world_size=1)
    return path


def compared(base, opt):
    chosen = ComparisonChoices(drop_first=0)
    return compare_paths([base], [opt], Options(jobs=1), chosen).comparison


def stage(name="gen", role=None, **values):
    """A stage twice as fast, as it is compared."""
    whole = {"ratio": 2.0, "low": 1.0, "high": 4.0} | values
    return Change("stage_time", name, role, name, "ns", "lower", "improvement", 40.0, 20.0, **whole)


def test_half_of_the_step_twice_as_fast_with_the_ends_of_its_interval():
    """p = 0.5: 1/(0.5 + 0.5/2) = 4/3; at 1 the step stays, at 4 it is 1/(0.5 + 0.125) = 1.6."""
    origin = Attribution(base=100.0, opt=75.0, stage_times=(StageTimeChange(None, "gen", 50.0, 25.0),))
    (told,) = add_step_speedups([stage()], origin)
    assert (told.step_ratio, told.step_low, told.step_high) == pytest.approx((4 / 3, 1.0, 1.6))
    whole = Attribution(base=100.0, stage_times=(StageTimeChange(None, "gen", 100.0 + 1e-12, 50.0),))
    assert add_step_speedups([stage()], whole)[0].step_ratio == 2.0
    (told,) = add_step_speedups([stage(ratio=0.5, low=None, high=None)], origin)
    assert (told.step_ratio, told.step_low, told.step_high) == (pytest.approx(1 / 1.5), None, None)


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (stage(ratio=None, low=None, high=None), (StageTimeChange(None, "gen", 50.0, 0.0),)),
        (stage(), (StageTimeChange(None, "gen", 0.0, 50.0),)),
        (stage(), (StageTimeChange("critic", "gen", 50.0, 50.0),)),
        (stage(role="critic"), ()),
        (replace(stage(), word="not comparable"), (StageTimeChange(None, "gen", 50.0, 25.0),)),
        (stage(), (StageTimeChange(None, "gen", 101.0, 25.0),)),
        (replace(stage(), name="comm"), (StageTimeChange(None, "gen", 50.0, 25.0),)),
    ],
)
def test_what_has_no_ratio_or_no_part_of_the_step_makes_nothing_of_it(change, times):
    """Absent on a side; of another role; beside the step; not comparable; more than the step; no stage."""
    assert add_step_speedups([change], Attribution(base=100.0, stage_times=times)) == (change,)
    assert add_step_speedups([change], Attribution(missing="saved")) == (change,)
    assert add_step_speedups([change], None) == (change,)


def test_the_stage_that_matters_most_is_told_and_only_if_it_is_clear_of_1():
    gen = stage("gen", ratio=1.4, low=1.31, high=1.5, step_ratio=1.12, step_low=1.09, step_high=1.14)
    update = stage("update", ratio=0.5, low=0.4, high=0.8, step_ratio=0.8, step_low=0.7, step_high=0.9)
    unsure = stage("ref", low=0.9, step_ratio=2.0, step_low=0.9, step_high=3.0)
    assert list(describe_largest_stage_effect([gen, unsure])) == [
        "gen 1.40× faster [1.31×, 1.50×] → step 1.12× faster [1.09×, 1.14×] from this alone"
    ]
    assert list(describe_largest_stage_effect([gen, replace(update, role="actor")])) == [
        "actor update 2.00× slower [1.25×, 2.50×] → step 1.25× slower [1.11×, 1.43×] from this alone"
    ]
    (line,) = describe_largest_stage_effect([replace(gen, word="inconclusive")])
    assert line.startswith("inconclusive: gen 1.40× faster [")
    assert list(describe_largest_stage_effect([unsure, stage("gen", low=None, high=None, step_ratio=1.1)])) == []
    assert list(describe_largest_stage_effect([])) == []
    assert format_speedup_with_interval(None, None, None) == format_speedup_with_interval(0.0, -1.0, 0.0) == ""
    assert list(describe_largest_stage_effect([stage(low=2.0, step_ratio=value) for value in (0.0, -1.0)])) == []


def test_a_stage_alone_of_a_real_step(tmp_path):
    """Steps of 100 with 60 of gen; gen twice as fast is a step of 70: 100/70. The update stays: 1."""
    base = profile(tmp_path / "a", [("gen", 60), ("update_actor", 30)], gap=10)
    opt = profile(tmp_path / "b", [("gen", 30), ("update_actor", 30)], gap=10)
    found = compared(base, opt)
    assert change_of(found, "stage_time", "gen").step_ratio == pytest.approx(100 / 70)
    assert change_of(found, "stage_time", "update_actor").step_ratio == pytest.approx(1.0)
    assert found.headline.step_ratio is None
    (sheet,) = (s for part in found.report().sections for s in part.sheets if s.name == "stages")
    assert [h.title for h in sheet.headings][-3:] == ["step from this alone", "CI low", "CI high"]
    assert "p is taken as known" in sheet.caption


def test_of_ranks_that_wait_for_one_another_the_longest_tells(tmp_path):
    """gen takes 40 and 80 of 100 µs, rank 0 then waits; twice as fast it is 20 and 40 of 60: 100/60."""
    for name, times in (("a", (40, 80)), ("b", (20, 40))):
        whole = max(times) + 20
        for rank, gen in enumerate(times):
            rows = [step(1, 0, whole), annotation("gen", 0, gen), op("aten::mm", 0, gen - 1)]
            rows += [annotation("adv", gen, whole - gen), op("aten::add", gen, whole - gen - 1)]
            write(tmp_path / name / f"rank{rank}.json", rows, rank=rank, world_size=2)
    gen = change_of(compared(tmp_path / "a", tmp_path / "b"), "stage_time", "gen")
    assert (gen.ratio, gen.step_ratio) == pytest.approx((2.0, 100 / 60))


def test_an_absent_stage_has_no_speedup_and_none_of_the_step(tmp_path):
    base = profile(tmp_path / "a", [("gen", 60), ("compute_ref_log_prob", 30)], gap=10)
    opt = profile(tmp_path / "b", [("gen", 60)], gap=10)
    found = compared(base, opt)
    (gone,) = (c for c in found.changes if c.name == "stage_time" and c.stage != "gen")
    assert (gone.word, gone.ratio, gone.step_ratio) == ("only before", None, None)


STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.integers(0, 50)), min_size=1, max_size=5).filter(
    lambda steps: any(gen for gen, _, _ in steps)
)


@settings(max_examples=5, deadline=None)
@given(STEPS, st.integers(1, 4), st.booleans())
def test_if_only_one_stage_changes_the_step_is_what_it_alone_makes_of_it(steps, times, faster):
    """Also where some steps lack the stage: `times` as long or as short on the other side, all else the same."""
    sides = [
        [
            [(n, d) for n, d in (("gen", gen * scale), ("update_actor", own), ("adv", rest + 1)) if d]
            for gen, own, rest in steps
        ]
        for scale in ((times, 1) if faster else (1, times))
    ]
    with TemporaryDirectory() as folder:
        paths = [profile(Path(folder) / name, *side) for name, side in zip("ab", sides, strict=True)]
        found = compared(*paths)
    gen = change_of(found, "stage_time", "gen")
    assert gen.step_ratio == pytest.approx(found.headline.grand_ratio, rel=1e-9)
    assert apply_amdahls_law(1.0, gen.ratio) == pytest.approx(times if faster else 1 / times)
