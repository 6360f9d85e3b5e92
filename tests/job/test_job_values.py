"""The values of the whole job that a comparison rests on, worked by hand from small traces."""

import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chrome_builder import BASE_NS, annotation, op, step, write

from tracekit.job.frames import (
    divide_or_none,
    find_damaged_sources,
    has_epoch_times,
    keep_undamaged_rows,
    make_label_headings,
    phrase_run,
    to_float_or_none,
)
from tracekit.job.steps.step_values import JOB_VALUE_NAMES, list_times_and_marks, list_values_of_job
from tracekit.model.inputs.note_codes import IMPOSSIBLE_TIMES
from tracekit.model.metrics import STEP_TIME, WINDOW, WORK_MARKS
from tracekit.model.tables.frame import from_rows
from tracekit.model.trace import Measurements
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.summary import notes as appendix

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def values_of(path):
    measured = pipeline.analyze_uncached(path, pipeline.Options(jobs=1, questions=("repeats",))).measurements
    return measured, list_values_of_job(measured)


def told(values, name):
    """{(step, stage): value} of one name."""
    rows = values.filter(values.equals("name", name)).rows()
    return {(row["step"], row["stage"]): row["value"] for row in rows}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Two ranks, three steps. Rank 1 is slower in step 2; both pass twice through gen in each step.

    rank 0: steps of 1000, 1000, 1000 µs, gen 100 + 200; rank 1: 1000, 1500, 1000 µs, gen 100 + 250.
    """
    folder = tmp_path_factory.mktemp("two")
    for rank, (lasting, second) in enumerate([((1000, 1000, 1000), 200), ((1000, 1500, 1000), 250)]):
        rows, at = [], 0
        for number, dur in enumerate(lasting, 1):
            rows += [step(number, at, dur), annotation("gen", at + 10, 100), annotation("gen", at + 400, second)]
            rows += [op("aten::mm", at + 20, 50)]
            at += dur
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return values_of(folder)


def test_a_step_lasts_as_long_as_its_longest_rank(two_ranks):
    assert told(two_ranks[1], "step_time") == {(1, None): 1_000_000, (2, None): 1_500_000, (3, None): 1_000_000}


def test_a_stage_lasts_as_long_as_all_its_passes_on_the_longest_rank(two_ranks):
    found = told(two_ranks[1], "stage_time")
    assert set(found.values()) == {350_000}
    assert {number for number, _ in found} == {1, 2, 3}
    assert len({stage for _, stage in found}) == 1


def test_the_first_step_of_a_window_is_marked_once_for_all_ranks(two_ranks):
    assert told(two_ranks[1], "first_of_window") == {(1, None): 1}


def test_a_single_step_is_not_the_first_of_anything(tmp_path):
    write(tmp_path / "rank0.json", [step(4, 0, 100)], rank=0, world_size=1)
    assert told(values_of(tmp_path)[1], "first_of_window") == {}


def test_times_are_lower_better_nanoseconds_and_marks_are_counts(two_ranks):
    kinds = {row["name"]: (row["unit"], row["better"]) for row in two_ranks[1].rows()}
    assert kinds["step_time"] == kinds["stage_time"] == ("ns", "lower")
    assert kinds["first_of_window"] == ("count", "neither")
    assert set(kinds) <= set(JOB_VALUE_NAMES)


def test_equal_numbers_in_two_captures_of_a_process_are_other_steps(tmp_path):
    """Both windows hold steps 7 and 8; a merged step would be the longer of two."""
    for number in (1, 2):
        at = number * 60_000_000
        rows = [step(7, at, 100 * number), annotation("gen", at + 10, 10 * number), step(8, at + 500, 100)]
        name = f"worker0.{1_700_000_000_000 + number}.pt.trace.json"
        write(tmp_path / name, rows, rank=0, world_size=1)
    values = values_of(tmp_path)[1]
    assert sorted(tuple(row.values()) for row in values.rows("name", "part", "step", "value")) == [
        ("first_of_window", "capture1", 7, 1), ("first_of_window", "capture2", 7, 1),
        ("stage_time", "capture1", 7, 10_000), ("stage_time", "capture2", 7, 20_000),
        ("step_time", "capture1", 7, 100_000), ("step_time", "capture1", 8, 100_000),
        ("step_time", "capture2", 7, 200_000), ("step_time", "capture2", 8, 100_000),
    ]  # fmt: skip


def test_shifting_the_clock_of_a_file_changes_no_value(tmp_path):
    shifted = []
    for name, origin in (("a", 0), ("b", 3_600_000_000)):
        rows = [step(1, origin, 100), annotation("gen", origin + 10, 30), step(2, origin + 100, 120)]
        write(tmp_path / name / "run" / "rank0.json", rows, rank=0, world_size=1, base_ns=BASE_NS)
        shifted.append(list(values_of(tmp_path / name / "run")[1].rows()))
    assert shifted[0] == shifted[1]


def test_a_report_that_cannot_hold_all_values_holds_those_of_the_job(two_ranks, monkeypatch):
    """As many as the job has and three more: none of the job's is lost, what is cut is counted."""
    measured, values = two_ranks
    whole = appendix.make_value_table(measured)
    monkeypatch.setattr(appendix, "MAX_REPORT_VALUES", len(values) + 3)
    cut = appendix.make_value_table(measured)
    assert cut.omitted == len(whole.rows) - len(values) - 3 > 0
    name = [heading.name for heading in cut.headings].index("name")
    assert sum(row[name] in JOB_VALUE_NAMES for row in cut.rows) == len(values)
    assert set(cut.rows) <= set(whole.rows)


def test_what_was_not_measured_has_no_values():
    assert appendix.make_value_table(Measurements({}, (), (), (), {})) is None


def test_what_tells_which_steps_count_are_rows_of_all_values(two_ranks):
    assert_rows_of_all_values(two_ranks[0])


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize(
    "folder",
    [
        "chrome/verl_cpu/v091_e2e_all_ranks/outputs/profile",
        "chrome/verl_cpu/v091_discrete/outputs/profile",
        "chrome/hta/ns_resolution_trace",
        "chrome/hta/trace_diff",
    ],
)
def test_what_tells_which_steps_of_real_runs_count_are_rows_of_all_values(folder):
    assert_rows_of_all_values(values_of(Path(REAL) / folder)[0])


def assert_rows_of_all_values(measured):
    """Of times and marks of steps the same rows are told alone as among all values."""
    names = {STEP_TIME, WINDOW, *WORK_MARKS, "first_of_window", "compilations"}
    columns = ("run", "step", "part", "name", "value")
    among_all = list_values_of_job(measured)
    among_all = among_all.filter(among_all.is_in("name", names))
    assert list(list_times_and_marks(measured).rows(*columns)) == list(among_all.rows(*columns))


def test_a_source_that_lost_more_than_rows_of_impossible_times_is_damaged():
    notes = [
        SimpleNamespace(source="a", severity="data_loss", code=IMPOSSIBLE_TIMES),
        SimpleNamespace(source="b", severity="data_loss", code="truncated"),
        SimpleNamespace(source="c", severity="info", code="truncated"),
    ]
    rows = from_rows(("source",), [("a",), ("b",), ("c",), ("b",)])
    assert find_damaged_sources(SimpleNamespace(notes=notes)) == {"b"}
    assert keep_undamaged_rows(SimpleNamespace(notes=notes), rows).values("source") == ["a", "c"]
    assert keep_undamaged_rows(SimpleNamespace(notes=notes[::2]), rows) is rows


@pytest.mark.parametrize(
    ("part", "total", "ratio"), [(1, 2, 0.5), (0, 5, 0.0), (1, 0, None), (None, 2, None), (1, None, None)]
)
def test_a_share_is_known_where_both_are_and_the_total_is_something(part, total, ratio):
    assert divide_or_none(part, total) == ratio


def test_what_is_missing_is_no_number():
    assert (to_float_or_none(3), to_float_or_none(None), to_float_or_none(math.nan)) == (3.0, None, None)


class Captures:
    """Measurements of nothing but these captures."""

    def __init__(self, names, rows):
        self.captures = from_rows(names, rows)

    def frame(self, _):
        return self.captures

    def derived(self, function):
        return function(self)


@pytest.mark.parametrize(
    ("rows", "headings", "words"),
    [
        ([("a", None), ("a", "actor")], ["role"], ""), ([("a", None), ("a", None)], [], ""),
        ([("a", "actor"), ("b", None)], ["run", "role"], " (run a)"), ([("a", None), ("b", None)], ["run"], " (run a)"),
    ],
)  # fmt: skip
def test_rows_are_labelled_by_what_tells_them_apart(rows, headings, words):
    captures = Captures(("run", "role"), rows)
    assert [heading.name for heading in make_label_headings(captures)] == headings
    assert phrase_run(captures, "a") == words


@pytest.mark.parametrize(("rows", "epoch"), [([1], True), ([1, 1], True), ([0, 1], False), ([0], False)])
def test_times_are_comparable_where_every_clock_counts_from_the_epoch(rows, epoch):
    sources = [(f"s{number}", number) for number in range(len(rows))]
    captures = Captures(("source", "pid"), sources)
    captures.captures = captures.captures.with_columns(absolute_time=np.array(rows, np.bool_))
    assert has_epoch_times(captures, from_rows(("source", "pid"), sources)) is epoch
