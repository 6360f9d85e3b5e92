"""One side of a comparison: what was recorded of its runs, from measurements or from a saved report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pandas as pd

from tracekit.job.metric_kinds import STEP_TIME, WINDOW
from tracekit.job.samples import COLUMNS, Key, Samples, samples
from tracekit.job.step_values import NAMES
from tracekit.job.throughput import work_rates
from tracekit.job.warm_up import Dropped, dropped
from tracekit.model import faults
from tracekit.model.errors import TracekitError
from tracekit.model.report import Report
from tracekit.model.stats.estimate import RANGE
from tracekit.model.trace import Measurements

_HINT = "write it again: tracekit analyze … -o report.json"


@dataclass(frozen=True, slots=True)
class Side:
    """The samples of every metric (without the steps that were dropped), and what must agree with the other side.

    `measured` lacks saved reports: what it says of steps can be compared, but not what made them.
    `every_step` holds the step times with those that were dropped.
    """

    name: str
    samples: Mapping[Key, Samples]
    dropped: tuple[Dropped, ...]
    fingerprint: Mapping[str, str]
    measured: tuple[Measurements, ...]
    simulated: bool
    left_out_of_logs: tuple[Dropped, ...] = ()
    every_step: Samples | None = None
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    """What tracekit failed at: what rests on it is in neither `samples` nor `measured`."""
    contents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    log_contents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The digests of what the files of each run, and each log, hold, by run. What is not known is not there."""


@dataclass(frozen=True, slots=True)
class Input:
    """One thing a side was given: a report, what it was judged from where that is known, and its label.

    `values` are all that was recorded, of which a report holds a limited number.
    """

    label: str
    report: Report
    measured: Measurements | None
    values: pd.DataFrame | None = None


def side(name: str, inputs: Sequence[Input], drop_first: int | None = None) -> Side:
    """The side that these inputs make together; raises `TracekitError` where one holds no values.

    Runs of different inputs are different runs, called by their label where they share a name; but those whose
    files hold the same bytes are one, however often it is given. `drop_first` steps of every run are left out, or
    with None those that are known to be warm-up.
    """
    marks, renamed = _apart([one.label for one in inputs], [_values(one) for one in inputs])
    contents = _contents(inputs, renamed)
    copies = copies_of(contents)
    marks = marks[~marks["run"].isin(copies)].reset_index(drop=True)
    found = samples(marks)
    left_out = dropped(found, marks, drop_first)
    kept = {key: rest for key, every in found.items() if (rest := left_out.kept(every)).runs}
    fingerprint = _agreed([dict(one.report.fingerprint) for one in inputs])
    return Side(
        name,
        {**kept, **work_rates(kept, world_size(fingerprint), _timed(kept))},
        left_out.steps,
        fingerprint,
        tuple(one.measured for one in inputs if one.measured is not None and not _errors(one)),
        any("SIMULATED DATA" in one.report.identity for one in inputs),
        every_step=found.get((STEP_TIME, None, None)),
        notes=(
            *(one for part in inputs for one in (*_lost(name, part), *_cut(name, part))),
            *copies_told(name, copies),
        ),
        errors=tuple(dict.fromkeys(error for part in inputs for error in _errors(part))),
        contents={run: held for run, held in contents.items() if run not in copies},
    )


def _errors(one: Input) -> tuple[str, ...]:
    """The errors of tracekit that its report names."""
    return tuple(dict.fromkeys(r.message for r in one.report.remarks if faults.is_of(r)))


def copies_of(contents: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Each run whose files hold the same bytes as those of one before it, with that one."""
    first: dict[frozenset[str], str] = {}
    return {
        run: first[held] for run, held in contents.items() if first.setdefault(held, run) != run
    }


def copies_told(name: str, copies: Mapping[str, str]) -> Iterator[str]:
    """What is to be said of runs that were given more than once."""
    several: dict[str, list[str]] = {}
    for run, first in copies.items():
        several.setdefault(first, []).append(run)
    for first, runs in several.items():
        hold = "holds" if len(runs) == 1 else "hold"
        yield f"{name}: {', '.join(runs)} {hold} the same files as {first}: copies of one run count as one run"


def _contents(
    inputs: Sequence[Input], renamed: Sequence[Mapping[str, str]]
) -> dict[str, frozenset[str]]:
    """The digests of every run by the name that it has on this side, in order of names."""
    found: dict[str, set[str]] = {}
    for one, names in zip(inputs, renamed, strict=True):
        for run, digest in one.report.contents:
            if run in names:
                found.setdefault(names[run], set()).add(digest)
    return {run: frozenset(found[run]) for run in sorted(found)}


def _timed(found: Mapping[Key, Samples]) -> str:
    """What holds the work: the step, or the recording where nothing marks one."""
    unmarked = (WINDOW, None, None) in found and (STEP_TIME, None, None) not in found
    return WINDOW if unmarked else STEP_TIME


def _lost(name: str, one: Input) -> Iterator[str]:
    """What is to be said of sources that could not be read, or not whole."""
    unread = sum(remark.code == "unreadable" for remark in one.report.remarks)
    damaged = {r.source for r in one.report.remarks if r.severity == "data_loss"}
    for error in _errors(one):
        yield f"{name}: an error of tracekit, not of the run: {error}; what rests on it is not compared"
    if unread:
        yield f"{name}: {unread:,} {'source' if unread == 1 else 'sources'} could not be read and are not in these numbers"
    if damaged:
        yield f"{name}: {len(damaged):,} {'source is' if len(damaged) == 1 else 'sources are'} damaged: steps may be missing, and what they hold too short"


def _cut(name: str, one: Input) -> Iterator[str]:
    """What is missing of a report that was too large to hold all values."""
    if one.values is None and one.report.values is not None and one.report.values.omitted:
        yield f"{name}: a saved report of so many ranks holds values of the whole job only, not of single ranks"


def world_size(fingerprint: Mapping[str, str]) -> int | None:
    """The number of ranks that all processes of a side tell, None where they differ or do not."""
    text = fingerprint.get("world_size", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _values(one: Input) -> pd.DataFrame:
    """The values of one input as a frame with the columns `COLUMNS`."""
    if one.values is not None:
        return _checked(one.label, one.values.astype(object).reindex(columns=[*COLUMNS]))
    sheet = one.report.values
    if sheet is None or not {"run", "name", "value"} <= {
        heading.name for heading in sheet.headings
    }:
        raise TracekitError(f"{one.label}: holds no values by step", _HINT)
    frame = pd.DataFrame(list(sheet.rows), columns=[h.name for h in sheet.headings], dtype=object)
    frame = frame.loc[:, ~frame.columns.duplicated()].reindex(columns=[*COLUMNS])
    if sheet.omitted:
        frame = frame[frame["name"].isin(NAMES)].reset_index(drop=True)
    return _checked(one.label, frame)


def _checked(label: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with texts as texts and numbers as numbers, whatever a saved report holds there."""
    for name in ("run", "role", "part", "stage", "name"):
        column = [None if pd.isna(cell) else str(cell) for cell in frame[name]]
        frame[name] = pd.Series(column, index=frame.index, dtype=object)
    steps, values = (frame[name][frame[name].notna()] for name in ("step", "value"))
    if not all(isinstance(cell, int | np.integer) and abs(int(cell)) < 2**63 for cell in steps):
        raise TracekitError(f"{label}: holds a step that is no whole number", _HINT)
    if not all(isinstance(cell, int | float | np.number) for cell in values):
        raise TracekitError(f"{label}: holds a value that is no number", _HINT)
    # What no clock could have measured is not known.
    measured = [cell if cell == 0 or RANGE[0] < abs(cell) < RANGE[1] else None for cell in values]
    frame["value"] = pd.Series(measured, index=values.index, dtype="Float64").reindex(frame.index)
    return frame.astype({"step": "Int64"})


def _apart(
    labels: Sequence[str], frames: Sequence[pd.DataFrame]
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """(all rows, every run of every input having a name of its own, in whichever order they were given; these names)."""
    counts = Counter(str(run) for frame in frames for run in frame["run"].unique())
    same = len(set(labels)) < len(labels)
    content = [str(frame.to_numpy(object).tolist()) if same else "" for frame in frames]
    order = sorted(range(len(frames)), key=lambda at: (labels[at], content[at]))
    taken = {run for run, count in counts.items() if count == 1}
    renamed: list[dict[str, str]] = [{} for _ in frames]
    for at in order:
        runs = [str(run) for run in frames[at]["run"].unique()]
        names = {run: run for run in runs if counts[run] == 1}
        for run in sorted(set(runs) - names.keys()):
            names[run] = _free(labels[at] if len(runs) == 1 else f"{labels[at]}/{run}", taken)
            taken.add(names[run])
        frames[at]["run"] = frames[at]["run"].astype(str).map(names)
        renamed[at] = names
    return pd.concat([frames[at] for at in order], ignore_index=True), renamed


def _free(wanted: str, taken: set[str]) -> str:
    """The name, with a number where another run has it."""
    numbered = (f"{wanted}#{number}" for number in count(2))
    return wanted if wanted not in taken else next(n for n in numbered if n not in taken)


def _agreed(fingerprints: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Each fact as all inputs tell it; where they disagree, all that was said."""
    names = dict.fromkeys(name for one in fingerprints for name in one)
    told = {name: dict.fromkeys(one[name] for one in fingerprints if name in one) for name in names}
    return {name: " / ".join(sorted(values)) for name, values in told.items()}
