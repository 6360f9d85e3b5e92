"""Judgements without the captures for which a question failed, and what is said of them, on two or three sources."""

from dataclasses import replace
from pathlib import Path

import pytest

from tracekit.model import failed_questions as failing
from tracekit.model.inputs.sources import Fault, Note, Source
from tracekit.model.report import Finding, Section, Verdict
from tracekit.model.tables import TABLES
from tracekit.model.trace import Facts, Measurements


def source(name, rank=None, tool="torch"):
    return Source(Path(name), name, "chrome", tool, rank=rank, pid=7)


def fault(name, question="copies", file="", tables=("collectives",), metrics=()):
    return Fault(question, "measured", "boom", name, 7, tables, metrics, file)


def collectives(*names):
    known = {"source": names, "pid": [7] * len(names), "ts_ns": 0, "dur_ns": 1, "synchronising": True}
    columns = {name: [None] * len(names) for name in TABLES["collectives"].columns}
    filled = {name: value if isinstance(value, tuple | list) else [value] * len(names) for name, value in known.items()}
    return TABLES["collectives"].cast(columns | filled)


SOURCES = (source("a", 0), source("b", 1), source("c", 2))


def measured(*faults, **other):
    notes = tuple(Note("info", "code", "words", name) for name in "abc")
    return Measurements({"collectives": collectives("a", "b", "c")}, SOURCES, notes=notes, faults=faults, **other)


def sources_of(some):
    return [row["source"] for row in some.frame("collectives").rows("source")]


def test_a_judgement_leaves_out_the_captures_of_the_tables_that_it_looks_at():
    whole = measured(fault("b"), fault("c", "memory", tables=("memory_peaks",)))
    found = failing.judge_without_faults(whole, sources_of)
    assert (found.value, [one.source for one in found.faults]) == (["a", "c"], ["b"])
    # What a question writes with others does not rest on theirs, and its own fault counts whatever it looks at.
    assert failing.judge_without_faults(whole, sources_of, writes=("collectives",)).value == ["a", "b", "c"]
    assert failing.judge_without_faults(whole, lambda some: len(some.sources), "memory").value == 2
    none = failing.judge_without_faults(measured(*map(fault, "abc")), sources_of)
    assert (none.value, len(none.faults)) == (None, 3)


def test_what_is_left_has_nothing_of_the_captures_left_out():
    check = Measurements({"collectives": collectives("a", "b")}, SOURCES[:2])
    whole = measured(fault("b"), fault("a", "memory", tables=("memory_peaks",)), check=check, recorded=measured())
    seen = []
    failing.judge_without_faults(whole, lambda some: seen.append(some) or sources_of(some))
    left = seen[-1]
    assert [one.name for one in left.sources] == [note.source for note in left.notes] == ["a", "c"]
    assert [one.source for one in left.faults] == ["a"]
    assert (sources_of(left.check), sources_of(left.recorded)) == (["a"], ["a", "c"])
    whole = measured(fault("b"), check=Measurements({}, SOURCES[1:2]))
    failing.judge_without_faults(whole, lambda some: seen.append(some) or sources_of(some))
    assert seen[-1].check is None


def test_an_error_of_a_sound_judgement_is_raised():
    def fail(some):
        some.has("collectives")
        raise KeyError("wrong")

    for whole in (measured(), measured(fault("b", tables=("memory_peaks",)))):
        with pytest.raises(KeyError):
            failing.judge_without_faults(whole, fail)
        with pytest.raises(KeyError):
            failing.judge_if_sound(whole, fail, "otherwise")
    several = measured(fault("a", tables=("memory_peaks",)), fault("b"))
    assert failing.judge_if_sound(several, fail, "otherwise") == "otherwise"


def test_a_part_is_judged_where_no_table_of_it_has_failed():
    assert failing.judge_if_sound(measured(), sources_of, None) == ["a", "b", "c"]
    assert failing.judge_if_sound(measured(fault("b")), sources_of, None) is None
    assert failing.judge_if_sound(measured(fault("b", tables=("memory_peaks",))), sources_of, None) == ["a", "b", "c"]
    assert failing.judge_if_sound(measured(check=measured(fault("b"))), sources_of, None) is None
    # One of the tables is enough, and one of the faults.
    both = fault("b", tables=("memory_peaks", "collectives"))
    assert failing.judge_if_sound(measured(both), sources_of, None) is None
    assert failing.judge_if_sound(measured(fault("b"), fault("a", tables=("memory_peaks",))), sources_of, None) is None
    assert failing.has_faults(measured(check=measured(fault("b"))))
    assert not failing.has_faults(measured(check=measured()))


def test_a_part_is_judged_where_every_table_of_it_was_asked_for():
    for unasked, value in (((), ["a", "b", "c"]), (("memory_peaks",), ["a", "b", "c"]), (("collectives",), None)):
        whole = measured(facts=Facts(unasked=frozenset(unasked)))
        assert failing.judge_if_asked(whole, sources_of, None) == value


def test_metrics_that_failed_anywhere_are_left_out():
    columns = {name: [None] * 2 for name in TABLES["metrics"].columns}
    rows = TABLES["metrics"].cast(
        columns | {"source": ["a", "b"], "name": ["x", "y"], "value": [1.0, 2.0], "better": ["lower"] * 2}
    )
    for faults, names in (((), ["x", "y"]), ((fault("a", metrics=("x",)),), ["y"])):
        whole = Measurements({"metrics": rows}, SOURCES, faults=faults)
        assert failing.keep_sound_metrics(whole).values("name") == names


@pytest.mark.parametrize(
    ("faults", "left", "caution"),
    [
        ([fault("b")], "2 of 3 ranks", "1 of 3 ranks (rank 1)"),
        ([fault("a"), fault("c")], "1 of 3 ranks", "2 of 3 ranks (ranks 0, 2)"),
    ],
)
def test_ranks_that_failed_are_named(faults, left, caution):
    whole = measured(*faults)
    assert failing.describe_sound_captures(whole, faults) == left
    (words,) = failing.list_fault_cautions(whole)
    start = f"an error in tracekit, not in the run: copies could not be measured of {caution}: boom (missing"
    assert words.startswith(start)


@pytest.mark.parametrize(
    ("names", "caution"),
    [("a", "1 of 3 captures (a)"), ("ab", "2 of 3 captures (a and 1 more)"), ("abc", "3 of 3 captures (a and 2 more)")],
)
@pytest.mark.parametrize("ranks", [(0, 0, 1), (0, 1, None)])
def test_captures_without_ranks_of_their_own_are_counted(names, caution, ranks):
    """One of another tool is not among them."""
    sources = tuple(replace(one, rank=rank) for one, rank in zip(SOURCES, ranks, strict=True))
    whole = Measurements({}, (*sources, source("n", 5, "nsys")), faults=tuple(map(fault, names)))
    (words,) = failing.list_fault_cautions(whole)
    assert f"measured of {caution}: boom" in words


def test_an_error_is_of_the_file_that_all_faults_come_from():
    own, others = fault("a", file="/x/mine.py"), fault("b", "memory")
    assert failing.explain_faults([own]) == "an error in mine.py: copies could not be measured: boom"
    both = "an error in tracekit: copies could not be measured: boom; memory could not be measured: boom"
    assert failing.explain_faults([own, others, fault("c", "memory")]) == both
    assert failing.describe_fault_caveat(measured(own), [own]).startswith("of 2 of 3 ranks: an error in mine.py left")


def test_rules_that_did_not_fire_have_failed_where_captures_are_missing():
    finding = Finding("pageable-copies", "low", "claim", "advice", caveats=("of its own",))
    verdicts = (Verdict("pageable-copies", "clear"), Verdict("late-ranks", "clear"))
    section = Section("copies", "title", "answered", findings=(finding,), verdicts=verdicts, caveats=("old",))
    marked = failing.mark_partial_section(section, ("pageable-copies", "late-ranks"), "partial")
    assert marked.findings[0].caveats == ("partial", "of its own")
    assert marked.caveats == ("partial", "old")
    assert [(one.rule, one.answer) for one in marked.verdicts] == [
        ("pageable-copies", "clear"), ("late-ranks", "failed"),
    ]  # fmt: skip
