"""A file that holds several processes says what a file for each of them says."""

import json
import re

import pytest
from chrome_builder import annotation, launched, step, write
from rules.firing import Document, write_sources
from rules.traces import FIRES
from several_processes import TOGETHER, alone_and_together

from tracekit import render
from tracekit.job import frames as pooling
from tracekit.pipeline.run import Options, analyze_uncached


def folder_of(path, firings):
    """The traces as ranks of one run; those that are of several ranks already as they are."""
    if len(firings) == 1 and not isinstance(firings[0].rows, list):
        return write_sources(path, firings[0].rows)
    for rank, firing in enumerate(firings):
        meta = firing.rows.meta if isinstance(firing.rows, Document) else {}
        write(path / f"rank{rank}.json", firing.rows, rank=rank, world_size=len(firings), **meta)
    return path


def answers(result):
    """Everything concluded, with one name for all files; rows of a table that tie have no order."""
    text = render(result.report, "json")
    for source in result.measurements.sources:
        text = text.replace(source.name, TOGETHER)
    # One file that is named for several processes is named once.
    text = re.sub(f"{re.escape(TOGETHER)}(, {re.escape(TOGETHER)})+", TOGETHER, text)
    report = json.loads(text)
    for section in report["sections"]:
        # What went wrong is told by file, and a file has one kind of recording.
        section["sheets"] = [s for s in section["sheets"] if s["name"] != "diagnoses"]
        for sheet in section["sheets"]:
            sheet["rows"] = sorted(map(str, sheet["rows"]))
    return {name: report[name] for name in ("sections", "headline", "overview", "unseen")}


ALONE = [firing for firing in FIRES.values() if isinstance(firing.rows, list)]
# A flight-recorder dump is of one rank, which its file name has.
OF_RANKS = [
    firing for rule, firing in FIRES.items() if not isinstance(firing.rows, list) and rule not in ("hang", "late-rank")
]


@pytest.mark.parametrize(
    "firings",
    [ALONE[::9], *(pytest.param(f, marks=pytest.mark.slow) for f in (ALONE[4::9], *([f] for f in OF_RANKS)))],
)  # fmt: skip
def test_processes_in_one_file_are_told_apart(tmp_path, monkeypatch, firings):
    (tmp_path / "spare").mkdir()
    folder = folder_of(tmp_path / "files", firings)
    apart, together = alone_and_together(monkeypatch, folder, tmp_path / "spare")
    assert len(together.measurements.sources) == len(apart.measurements.sources)
    assert {source.name for source in together.measurements.sources} == {TOGETHER}
    assert [s for s in together.report.sections if s.status == "failed"] == []
    assert answers(together) == answers(apart)


def test_stages_of_another_process_of_the_file_cover_nothing(tmp_path, monkeypatch):
    """Both step from 0 to 100; the stage of 60 of one says nothing of the step of the other."""
    (tmp_path / "spare").mkdir()
    rows = [step(1, 0, 100), *launched("gemm", 1, 2, 9, 1)]
    write(tmp_path / "files" / "rank0.json", [*rows, annotation("gen", 0, 60)], rank=0)
    write(tmp_path / "files" / "rank1.json", [step(1, 0, 120)], rank=1)
    _, together = alone_and_together(monkeypatch, tmp_path / "files", tmp_path / "spare")
    (wall,) = pooling.measure_step_walls(together.measurements).rows()
    assert (wall["wall_ns"], wall["ranks"]) == (120_000, 2)
    assert wall["attributed_ns"] is None


def test_clocks_are_comparable_where_all_count_from_the_epoch(tmp_path):
    write(tmp_path / "rank0.json", [step(1, 0, 100)], rank=0)
    write(tmp_path / "rank1.json", [step(1, 0, 100)], rank=1, base_ns=None)
    measured = analyze_uncached(tmp_path, Options(jobs=1)).measurements
    steps = measured.frame("steps")
    assert not pooling.has_epoch_times(measured, steps)
    assert pooling.has_epoch_times(measured, steps.filter(steps.equals("rank", 0)))
    assert not pooling.has_epoch_times(measured, steps.filter(steps.equals("rank", 1)))
