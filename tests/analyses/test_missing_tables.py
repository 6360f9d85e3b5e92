"""Every question judged on measurements of which one table is absent, empty, or holds the rows of one kind of window alone."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from analyses.test_counters import recording

from tracekit.analyses import ANALYSES, load_default_thresholds
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements
from tracekit.pipeline import run as pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = ("simulated_gpu", "simulated_memory", "verl_cpu")


class Watched(Measurements):
    """Measurements that note which tables are looked at, in themselves and in what is cut from them."""

    looked_at: ClassVar[set[str]] = set()

    def has(self, *names):
        self.looked_at.update(names)
        return super().has(*names)

    def __getitem__(self, name):
        self.looked_at.add(name)
        return super().__getitem__(name)


def measured(folder):
    found = pipeline.discover_sources(folder)
    return pipeline.measure(found, pipeline.Options(progress=False))


def looked_at(analysis, whole):
    """The tables that a question reads of these measurements."""
    watched = Watched(whole.arrays, whole.sources, whole.failures, whole.notes, whole.facts, whole.check)
    Watched.looked_at.clear()
    analysis.judge(watched, load_default_thresholds())
    return sorted(watched.looked_at & set(whole.arrays))


def variants(whole, name):
    """(what was done to it, the measurements) for every way in which a table can be poorer."""
    columns = whole.columns(name)
    others = {key: table for key, table in whole.arrays.items() if key != name}
    yield "absent", replace(whole, arrays=others)
    yield "empty", replace(whole, arrays={**others, name: TABLES[name].no_rows()})
    if "window" in columns.arrays:
        windows = whole[name]["window"]
        for window in windows.dropna().unique():
            alone = columns.where((windows == window).to_numpy())
            yield f"{window} alone", replace(whole, arrays={**others, name: alone})


def failures(whole, analyses):
    """What goes wrong, in words."""
    wrong = []
    for analysis in analyses:
        for name in looked_at(analysis, whole):
            for what, poorer in variants(whole, name):
                try:
                    analysis.judge(poorer, load_default_thresholds())
                except AssertionError:
                    continue  # what must add up over tables of one measure is asserted
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
                    wrong.append(f"{analysis.id}: {name} {what}: {error!r}")
    return wrong


def test_counters_without_any_stage_are_those_of_the_recording(tmp_path):
    """GPU metrics of a process that annotates nothing: levels over the recording, no table by stage."""
    recording(tmp_path / "worker_process_100.sqlite", annotated=False)
    (analysis,) = [one for one in ANALYSES if one.id == "counters"]
    section = analysis.judge(measured(tmp_path), load_default_thresholds())
    assert section.status == "ok"
    assert [sheet.name for sheet in section.sheets] == ["counters"]
    assert failures(measured(tmp_path), [analysis]) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_question_needs_a_table_to_be_filled(folder):
    assert failures(measured(EXAMPLES / folder), ANALYSES) == []


@pytest.mark.slow
def test_no_question_needs_a_table_of_nsys_to_be_filled(tmp_path):
    recording(tmp_path / "worker_process_100.sqlite")
    assert failures(measured(tmp_path), ANALYSES) == []
