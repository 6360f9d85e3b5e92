"""Log files of one directory: copies of one log, parts of a restarted one, and logs of several runs.

The values decide. Copies have the same values in the same steps. A restarted run begins again later than the log before it and
repeats at most half of the steps. Logs with other values in the same steps are runs of their own, such as seeds.
TensorBoard writes an event file per start: those of one directory are always one run. Weights & Biases writes a directory per
start: files with the same id are always one run.

Steps that ran again after a restart count once, by their last try: it is the one that training continued from. This is decided
here for all questions (`join_log_parts`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.recording.rl_frameworks import list_step_keys
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, concat

Relation = Literal["copy", "restart", "other run", "unknown"]

ROUNDING = 2e-3
"""Largest relative or absolute difference between copies: consoles print three decimals."""

LEAST_EQUAL = 0.9
"""Share of the common values that must be equal in copies: a file may end within a step."""

MOST_REPEATED = 0.5
"""Largest share of the steps of a log that a restart repeats; copies have more in common."""

EVENT_FILE = "tfevents"
"""Part of the name of each event file; TensorBoard requires it."""


@dataclass(slots=True)
class LogGroup:
    """Files of one run: `parts` in the order of its starts, and their copies."""

    parts: list[str] = field(default_factory=list[str])
    copies: list[str] = field(default_factory=list[str])

    @property
    def sources(self) -> list[str]:
        """All files."""
        return [*self.parts, *self.copies]


@dataclass(frozen=True, slots=True, eq=False)
class _LogFile:
    """The values of one file: `key` numbers the step and name of each value, sorted. The last value of a step counts."""

    source: str
    key: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    names: frozenset[int]
    steps: npt.NDArray[np.int64]


def group_log_files(rows: Frame) -> list[LogGroup]:
    """Group the files of one run's directory by their values; files with nothing in common stay together.

    `rows` has the columns source, part, step, name and value.
    """
    files = sorted(_list_log_files(rows), key=_order_log_file)
    groups: list[tuple[LogGroup, list[_LogFile]]] = []
    for file in files:
        for group, members in groups:
            relation = _relate_to_group(members, file)
            if relation == "other run":
                continue
            (group.parts if relation == "restart" else group.copies).append(file.source)
            if relation == "restart":
                members.append(file)
            break
        else:
            groups.append((LogGroup([file.source]), [file]))
    return [group for group, _ in groups]


def _order_log_file(file: _LogFile) -> tuple[bool, int, int, str]:
    """Make the sort key of a file: those of a tracker by the time of the start, which is in their path; others by their steps."""
    if _get_tracker_run(file) is not None:
        time = _WANDB_TIME.search(file.source)
        return (False, 0, 0, time[1] if time else file.source)
    return (True, int(file.steps[0]), -len(file.key), file.source)


def _list_log_files(rows: Frame) -> Iterator[_LogFile]:
    """List the files with any value of a step."""
    rows = rows.filter(~rows.is_missing("step") & ~rows.is_missing("value"))
    name = rows.group_by("name").number
    count = int(name.max()) + 1 if len(rows) else 1
    rows = rows.with_columns(number=name)
    for of_file in rows.group_by("source").frames():
        key = of_file.integers("step") * count + of_file.integers("number")
        key, last = np.unique(key[::-1], return_index=True)
        value = of_file.number("value")[::-1][last]
        yield _LogFile(
            of_file.values("source")[0], key, value, frozenset(np.unique(key % count).tolist()), np.unique(key // count)
        )


def _get_tracker_run(file: _LogFile) -> str | None:
    """Get the name of the run that a tracker writes into its paths; None for other files."""
    if EVENT_FILE in file.source:
        return EVENT_FILE
    match = _WANDB_FILE.search(file.source)
    return match[1] if match else None


_WANDB_FILE = re.compile(r"(?:\A|/)run-([^/]+)\.wandb\Z")
_WANDB_TIME = re.compile(r"(?:\A|/)(?:offline-)?run-([0-9]{8}_[0-9]{6})-[^/]+/[^/]+\Z")


def _relate_to_group(members: Sequence[_LogFile], file: _LogFile) -> Relation:
    """Relate a file to the parts of a run: a copy of any part, or a restart after the last."""
    relations = [_relate_files(member, file) for member in members]
    if "copy" in relations:
        return "copy"
    return relations[-1]


def _relate_files(first: _LogFile, second: _LogFile) -> Relation:
    """Relate two files, the one that starts first before the other."""
    if not first.names & second.names:
        return "unknown"
    repeated = len(np.intersect1d(first.steps, second.steps, assume_unique=True))
    is_partly = repeated <= MOST_REPEATED * min(len(first.steps), len(second.steps))
    if not is_partly and _has_equal_values(first, second):
        return "copy"
    tracker_run = _get_tracker_run(first)
    if tracker_run is not None and tracker_run == _get_tracker_run(second):
        return "restart"
    return "restart" if is_partly and second.steps[0] > first.steps[0] else "other run"


def _has_equal_values(first: _LogFile, second: _LogFile) -> bool:
    """Check whether two files have the same values in the same steps."""
    _, of_first, of_second = np.intersect1d(first.key, second.key, assume_unique=True, return_indices=True)
    is_equal = np.isclose(first.value[of_first], second.value[of_second], rtol=ROUNDING, atol=ROUNDING)
    return len(is_equal) > 0 and float(is_equal.mean()) >= LEAST_EQUAL


@dataclass(frozen=True, slots=True)
class JoinedLog:
    """The log of one run: `rows` are the last try of each step, `first_tries` those that ran again after a restart.

    `source` is the first file. Parts are numbered over all files.
    """

    source: str
    rows: Frame
    first_tries: Frame


def join_log_parts(rows: Frame) -> JoinedLog:
    """Join the files of one run's directory to its log, and take the tries apart that ran again after a restart.

    Of several runs, the one with most values counts; of copies, the file with most values.
    """
    source, rows = _join_files(rows)
    is_last = _mark_last_tries(rows)
    return JoinedLog(source, rows.filter(is_last), rows.filter(~is_last))


def _join_files(rows: Frame) -> tuple[str, Frame]:
    """Join the files of the log: (the first file, the rows with parts numbered over all files)."""
    names: list[Any] = rows.distinct("source").values("source")
    if len(names) == 1:
        return names[0], rows
    counts = {name: int(rows.equals("source", name).sum()) for name in names}
    groups = group_log_files(rows)
    group = max(groups, key=lambda group: sum(counts[part] for part in group.parts))
    parts = group.parts
    if len(parts) == 1:
        parts = [max(group.sources, key=lambda name: counts[name])]
    pieces, offset = [], 0
    for name in parts:
        piece = rows.filter(rows.equals("source", name))
        part = piece.integers("part")
        pieces.append(piece.with_columns(part=part + offset))
        offset += int(part.max()) + 1
    return parts[0], concat(pieces)


def _mark_last_tries(rows: Frame) -> npt.NDArray[np.bool_]:
    """Mark the rows of the last try of each step: those of the last part that times it.

    A part without the time of a step did not run the step: a resumed run validates before its first step. Steps that no part
    times count in the last part that has them.
    """
    part = rows.integers("part")
    if not len(part) or part.min() == part.max():
        return np.ones(len(part), np.bool_)
    step = rows.group_by("step").number
    is_timed = rows.is_in("name", list_step_keys())
    last = np.full(int(step.max()) + 1, -1, np.int64)
    np.maximum.at(last, step[is_timed], part[is_timed])
    untimed = last[step] < 0
    np.maximum.at(last, step[untimed], part[untimed])
    return np.asarray(part == last[step])
