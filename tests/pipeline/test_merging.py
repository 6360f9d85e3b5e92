"""Measurements saved, loaded and put together: the same answers as measuring it all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from chrome_builder import annotation, launched, step, write

from tracekit.model.errors import TracekitError
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached, judge
from tracekit.pipeline.run_grouping.merge import merge

QUESTIONS = ("communication", "data-quality", "gpu-time", "operators", "steps", "stragglers")

ROOT = Path(__file__).parents[2]
PROFILES = [ROOT / "examples" / name / "outputs" / "profile" for name in ("verl_cpu", "simulated_gpu")]


def rank_rows(rank, steps):
    """Steps of 100 µs with one stage that launches one kernel."""
    rows = []
    for at, number in enumerate(steps):
        rows += [step(number, 100 * at, 100), annotation("gen", 100 * at + 5, 40)]
        rows += launched("gemm", 100 * at + 8, 100 * at + 20, 10 + rank, at + 1)
    return rows


def names(result):
    return [source.name for source in result.measurements.sources]


@pytest.mark.parametrize(
    "path", [pytest.param(PROFILES[0], marks=pytest.mark.slow), PROFILES[1]], ids=lambda p: p.parts[-3]
)
def test_saved_measurements_give_the_report_they_were_saved_with(path, tmp_path):
    result = analyze_uncached(path, Options(questions=QUESTIONS))
    saved_measurements.save(result.measurements, tmp_path / "run.tkm")
    assert judge(saved_measurements.load(tmp_path / "run.tkm")) == result.report
    assert analyze_uncached(tmp_path / "run.tkm", Options(questions=QUESTIONS)).report == result.report


def comparable(measured, name, without=("run", "source")):
    """The rows of a table as text, without the columns named."""
    frame = measured[name]
    return frame[[c for c in frame if c not in without]].astype("str").values.tolist()


def make_runs(folder):
    for run, steps in (("base", (1, 2)), ("new", (1, 2, 3))):
        for rank in (0, 1):
            path = folder / run / "profile" / f"rank{rank}.json"
            write(path, rank_rows(rank, steps), rank=rank, world_size=2)
        saved_measurements.save(
            analyze_uncached(path.parent, Options(questions=QUESTIONS)).measurements, folder / f"{run}.tkm"
        )
    return folder


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Two runs and what was saved of them, for looking at only."""
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_saved_measurements_and_a_directory_together_are_as_if_both_were_measured(two_runs):
    base, new = two_runs / "base.tkm", two_runs / "new" / "profile"
    whole = analyze_uncached([two_runs / "base" / "profile", new], Options(questions=QUESTIONS))
    for mixed in (
        analyze_uncached([base, new], Options(questions=QUESTIONS)),
        analyze_uncached([base, two_runs / "new.tkm"], Options(questions=QUESTIONS)),
    ):
        assert set(mixed.measurements.tables) == set(whole.measurements.tables)
        for name in whole.measurements.tables:
            assert comparable(mixed.measurements, name) == comparable(whole.measurements, name)
        assert mixed.report.headline == whole.report.headline
        assert len(set(names(mixed))) == 4
        assert mixed.measurements["captures"]["run"].nunique() == 2
        assert [s.status for s in mixed.report.sections] == [s.status for s in whole.report.sections]


def test_runs_that_were_saved_under_one_name_stay_apart_by_the_names_of_their_files(two_runs):
    result = analyze_uncached([two_runs / "base.tkm", two_runs / "new.tkm"], Options(questions=QUESTIONS))
    captures = result.measurements["captures"]
    assert captures["run"].tolist() == ["base", "base", "new", "new"]
    assert [f"{s.run}/rank{s.rank}.json" for s in result.measurements.sources] == names(result)
    assert captures["source"].tolist() == names(result)


def test_saved_measurements_take_a_label(two_runs):
    result = analyze_uncached([f"a={two_runs / 'base.tkm'}", f"b={two_runs / 'new.tkm'}"], Options(questions=QUESTIONS))
    assert result.measurements["captures"]["run"].tolist() == ["a", "a", "b", "b"]
    alone = analyze_uncached(f"a={two_runs / 'base.tkm'}", Options(questions=QUESTIONS)).measurements
    assert set(alone["steps"]["run"]) == {"a"} == {source.run for source in alone.sources}


def test_what_two_nodes_saved_of_one_run_is_one_run_under_one_label(tmp_path):
    whole, halves = tmp_path / "whole", []
    for rank in range(4):
        rows = rank_rows(rank, (1, 2))
        write(whole / f"rank{rank}.json", rows, rank=rank, world_size=4)
        write(tmp_path / f"node{rank // 2}" / f"rank{rank}.json", rows, rank=rank, world_size=4)
    for node in ("node0", "node1"):
        saved_measurements.save(
            analyze_uncached(tmp_path / node, Options(questions=QUESTIONS)).measurements, tmp_path / f"{node}.tkm"
        )
        halves.append(f"job={tmp_path / node}.tkm")
    saved_measurements.save(analyze_uncached(whole, Options(questions=QUESTIONS)).measurements, tmp_path / "whole.tkm")
    one = analyze_uncached(f"job={tmp_path / 'whole.tkm'}", Options(questions=QUESTIONS))
    put_together = analyze_uncached(halves, Options(questions=QUESTIONS))
    assert names(put_together) == names(one)
    title = one.report.title
    assert replace(put_together.report, title=title, identity=one.report.identity) == one.report
    assert put_together.report.identity[1:] == one.report.identity[1:]


def test_one_file_of_measurements_twice_is_two_runs(two_runs):
    twice = [two_runs / "base.tkm"] * 2
    result = analyze_uncached(twice, Options(questions=QUESTIONS))
    assert len(set(names(result))) == 4
    assert result.measurements["captures"]["run"].nunique() == 2
    assert "failed" not in {section.status for section in result.report.sections}


@pytest.mark.slow
def test_failures_and_notes_of_merged_parts_name_their_own_sources(tmp_path):
    two_runs = make_runs(tmp_path)
    for run in ("base", "new"):
        folder = two_runs / run / "profile"
        (folder / "rank1.json").write_bytes(b'{"traceEvents": [{"ph": "X", "ts"')
        path = folder / "rank0.json"
        path.write_bytes(path.read_bytes()[:-40])
        saved_measurements.save(
            analyze_uncached(folder, Options(questions=QUESTIONS)).measurements, two_runs / f"{run}.tkm"
        )
    measured = analyze_uncached(
        [two_runs / "base.tkm", two_runs / "new.tkm"], Options(questions=QUESTIONS)
    ).measurements
    assert [f.source for f in measured.failures] == ["base/rank1.json", "new/rank1.json"]
    cut = [note.source for note in measured.notes if note.code == "truncated"]
    assert cut == ["base/rank0.json", "new/rank0.json"]


@pytest.mark.slow
def test_a_part_limited_to_some_stages_is_still_known_as_such(two_runs):
    folders = [two_runs / run / "profile" for run in ("base", "new")]
    whole = analyze_uncached(folders[0], Options(questions=QUESTIONS)).measurements
    limited = [
        analyze_uncached(folder, Options(stages=("gen",), questions=QUESTIONS)).measurements for folder in folders
    ]
    alike, unlike = merge(limited), merge([whole, limited[1]])
    assert "only gen" in judge(alike).identity
    assert [note.message for note in alike.notes] == []
    assert [note.message for note in unlike.notes] == ["some of these measurements contain only the stages gen"]


def test_merging_changes_none_of_its_parts(two_runs):
    parts = [saved_measurements.load(two_runs / f"{run}.tkm") for run in ("base", "new")]
    before = [comparable(part, "steps", ()) for part in parts]
    merge(parts, ["x", "y"])
    assert [comparable(part, "steps", ()) for part in parts] == before
    assert merge(parts[:1]) is parts[0]


@pytest.mark.parametrize("options", [{"ranks": "0"}, {"steps": "1"}, {"stages": ("gen",)}])
def test_what_was_saved_is_not_cut_and_that_is_said(two_runs, options):
    with pytest.raises(TracekitError, match="saved results cannot be limited"):
        analyze_uncached(two_runs / "base.tkm", Options(**options, questions=QUESTIONS))
    assert analyze_uncached(two_runs / "base.tkm", Options(exclude=("*.bak",), questions=QUESTIONS)).report
