"""What is noted of many sources alike is told once."""

from tracekit.model.trace import Failure, Measurements, Note
from tracekit.pipeline.summary.notes import MOST_ALIKE, list_remarks


def noted(count):
    return tuple(Note("warning", "odd", "no clock", f"rank{at}", 2) for at in range(count))


def test_few_are_listed_one_by_one():
    found = list_remarks(Measurements({}, (), notes=noted(MOST_ALIKE)))
    assert [one.source for one in found] == [f"rank{at}" for at in range(MOST_ALIKE)]


def test_many_are_one_with_their_times_and_the_first_names():
    (found,) = list_remarks(Measurements({}, (), notes=noted(1000)))
    assert found.count == 2000
    assert found.source == "rank0, rank1, rank10 and 997 more"


def test_notes_of_one_source_and_other_words_stay_apart_and_in_order():
    others = (Note("error", "bad", "first", "z"), *(Note("info", "x", "y", "same"),) * 20)
    found = list_remarks(Measurements({}, (), notes=(*noted(9), *others)))
    assert [one.code for one in found] == ["bad", "odd", *["x"] * 20]


def test_files_that_could_not_be_read_are_named_however_many():
    failures = tuple(Failure(f"rank{at}", "not a trace") for at in range(100))
    found = list_remarks(Measurements({}, (), failures=failures, notes=noted(100)))
    assert [one.source for one in found[:-1]] == [f"rank{at}" for at in range(100)]
    assert {one.code for one in found[:-1]} == {"unreadable"}
