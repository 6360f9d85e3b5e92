"""Two timelines of Ray: tasks by function, without a verdict where nothing repeats them."""

import json

import pytest
from ray_timelines import task, worker

from tracekit.model.metrics import RAY_FUNCTION_COUNT, RAY_FUNCTION_TIME, RAY_SPAN, RAY_TASK_TIME
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options

FIRST = 1_795_865_732_428_164.0
"""A start as Ray writes it: µs since the Unix epoch."""


def write_timeline(folder, gen=4_000, train=6_000, steps=4, more=()):
    """Two workers that generate and train in turn, 100 µs apart; a task has 10 µs before and 10 µs after its function."""
    rows, at = list(more), FIRST
    for _ in range(steps):
        for name, us in (("Worker.gen", gen), ("Worker.update_actor", train)):
            for number in (1, 2):
                rows += task(name, worker(number), at, arguments=10, execute=us, outputs=10)
            at += us + 120
    folder.mkdir(parents=True)
    (folder / "timeline.json").write_text(json.dumps(rows))
    return folder


def compare(before, after):
    return compare_paths([before], [after], Options(jobs=1)).comparison


def changes_of(found):
    return {(change.name, change.stage): change for change in found.changes}


def test_one_timeline_per_side_is_compared_by_function_without_an_interval(tmp_path):
    """Each of 4 rounds: 4.02 and 6.02 ms with 0.1 ms after each; then generation takes 3.02 ms."""
    found = compare(write_timeline(tmp_path / "base"), write_timeline(tmp_path / "opt", gen=3_000))
    assert (found.verdict, found.headline.name) == ("inconclusive", RAY_SPAN)
    assert found.headline.base == 4 * (4_020_000 + 6_020_000) + 7 * 100_000
    assert found.headline.opt == found.headline.base - 4 * 1_000_000
    changes = changes_of(found)
    gen = changes[RAY_FUNCTION_TIME, "Worker.gen"]
    assert (gen.base, gen.opt, gen.difference) == (16_080_000, 12_080_000, -4_000_000)
    median = changes[RAY_TASK_TIME, "Worker.gen"]
    assert (median.base, median.opt, median.low, median.high) == (4_020_000, 3_020_000, None, None)
    assert changes[RAY_FUNCTION_COUNT, "Worker.gen"].word == "same"
    assert changes[RAY_FUNCTION_TIME, "Worker.update_actor"].difference == 0
    assert any("one timeline on a side" in warning for warning in found.warnings)


def test_the_table_has_the_function_that_runs_longest_first(tmp_path):
    more = task("Reward.score", worker(3), FIRST, execute=1_000)
    found = compare(write_timeline(tmp_path / "base", more=more), write_timeline(tmp_path / "opt", gen=3_000))
    sheet = found.report().overview
    assert [row[0] for row in sheet.rows] == ["Worker.update_actor", "Worker.gen", "Reward.score"]
    rows = [dict(zip([heading.name for heading in sheet.headings], row, strict=True)) for row in sheet.rows]
    assert (rows[1]["base_tasks"], rows[1]["opt_tasks"]) == (8, 8)
    assert rows[1]["median_change"] == pytest.approx(3.02 / 4.02 - 1)
    assert (rows[2]["opt_ns"], rows[2]["word"]) == (None, "only before")


def test_timelines_with_other_numbers_of_tasks_have_no_verdict_on_whole_times(tmp_path):
    before = [write_timeline(tmp_path / "a" / str(run), gen=4_000 + run) for run in range(3)]
    after = [write_timeline(tmp_path / "b" / str(run), gen=3_000 + run, steps=5) for run in range(3)]
    found = compare_paths(before, after, Options(jobs=1)).comparison
    assert found.verdict == "not comparable"
    (difference,) = [one for one in found.differences if one.name == "tasks of Ray"]
    assert (difference.base, difference.opt) == ("16", "20")
    changes = changes_of(found)
    assert changes[RAY_FUNCTION_TIME, "Worker.gen"].word == "not comparable"
    median = changes[RAY_TASK_TIME, "Worker.gen"]
    assert median.word != "not comparable"
    assert 1.32 < median.low < median.ratio < median.high < 1.34


def test_repeated_timelines_have_an_interval_by_run(tmp_path):
    before = [write_timeline(tmp_path / "a" / str(run), gen=4_000 + 5 * run) for run in range(4)]
    after = [write_timeline(tmp_path / "b" / str(run), gen=3_000 + 5 * run) for run in range(4)]
    found = compare_paths(before, after, Options(jobs=1)).comparison
    assert (found.headline.base_runs, found.headline.opt_runs) == (4, 4)
    assert 1.1 < found.headline.low < found.headline.ratio < found.headline.high < 1.13
    assert not any("one timeline on a side" in warning for warning in found.warnings)


def test_a_timeline_compared_with_itself_has_no_change(tmp_path):
    folder = write_timeline(tmp_path / "same")
    found = compare(folder, folder)
    assert found.headline.difference == 0
    assert {change.difference for change in found.changes} == {0}
