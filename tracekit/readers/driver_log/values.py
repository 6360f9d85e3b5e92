"""Values of training logs as columns: bounded, split into parts at each restart, the last value of a step kept."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import chain
from typing import Any

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable, choose_narrowest, make_nullable_numbers, select_rows
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Note, NoteSeverity
from tracekit.readers.lines import note_log_losses
from tracekit.readers.loss import DataLoss

MAX_VALUES = 2_000_000
"""Most values kept from one log."""

MAX_NAME = 300
"""Longest metric name kept, in characters."""

MAX_STEP = 2**62

MAX_SHAPES = 16
"""Most records of different names of one step that are remembered to recognize a restart."""

_SURROGATE = compile_lazily("[\ud800-\udfff]")
_PLAIN = frozenset({int, float})

Names = tuple[str, ...]


@dataclass(slots=True)
class LoggedValues:
    """Values parsed so far, by record, and counts of skipped input.

    A record has one line, step, part and time. `shape` indexes `shapes`, the names of the record's values; `numbers`
    has the values of all records in order. Most logs have few shapes, so a record costs no work per value.
    """

    line: list[int] = field(default_factory=list[int])
    step: list[int] = field(default_factory=list[int])
    part: list[int] = field(default_factory=list[int])
    ts_ns: list[int | None] = field(default_factory=list["int | None"])
    shape: list[int] = field(default_factory=list[int])
    shapes: dict[Names, int] = field(default_factory=dict[Names, int])
    names: list[Names] = field(default_factory=list[Names])
    numbers: array[float] = field(default_factory=lambda: array("d"))
    logged: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Shapes of the records of each step of the current part."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """Settings that the driver printed."""
    parts: int = 1
    repeated: int = 0
    too_long: int = 0
    damaged: int = 0
    cut: int = 0
    is_numbered: bool = False
    not_finite: int = 0
    over: int = 0

    def add_record(
        self, line: int, step: int, values: Mapping[str, object], ts_ns: int | None = None, *, joins: bool = False
    ) -> None:
        """Add the numbers of one record of a step, and begin a new part if the log restarted before it.

        Values that are not numbers are skipped. `joins`: the record belongs to the current part whatever its step.
        """
        if not _PLAIN.issuperset(map(type, values.values())):
            values = dict(_select_numbers(values))
        if not values:
            return
        room = MAX_VALUES - len(self.numbers)
        if room < len(values):
            self.over += len(values)
            return
        shape = self._index_shape(tuple(values))
        if not joins and self._is_restart(step, shape):
            self.begin_part()
        try:
            self.numbers += array("d", values.values())  # type: ignore[arg-type]
        except OverflowError:
            self.numbers += array("d", map(_convert_large_number, values.values()))
        self.line.append(line)
        self.step.append(step)
        self.part.append(self.parts - 1)
        self.ts_ns.append(ts_ns)
        self.shape.append(shape)
        if not joins:
            self._remember_shape(step, shape)

    def begin_part(self) -> None:
        """Begin a new part: records from here on are of a restarted run."""
        if self.logged:
            self.parts += 1
            self.logged = {}

    def _index_shape(self, names: Names) -> int:
        """Look up or add the names of a record, shortened."""
        shape = self.shapes.get(names)
        if shape is None:
            clean = tuple(_SURROGATE.sub("\ufffd", name[:MAX_NAME]) for name in names)
            shape = self.shapes.setdefault(clean, len(self.shapes))
            if shape == len(self.names):
                self.names.append(clean)
        return shape

    def _remember_shape(self, step: int, shape: int) -> None:
        """Remember the names that a step of the current part has, and count records that repeat them."""
        shapes = self.logged.setdefault(step, [])
        if shape in shapes:
            self.repeated += 1
        elif len(shapes) < MAX_SHAPES:
            shapes.append(shape)

    def _is_restart(self, step: int, shape: int) -> bool:
        """Check whether a record with a lower step than the one before it begins again.

        A late record of an earlier step adds values that the step does not have yet; a restarted run repeats them.
        """
        last = next(reversed(self.logged), step)
        if step >= last:
            return False
        shapes = self.logged.get(step)
        if shapes is None:
            return True
        names = set(self.names[shape])
        known = names.intersection(chain.from_iterable(self.names[other] for other in shapes))
        return 2 * len(known) >= len(names)


def _select_numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the values that are numbers, with their names."""
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _convert_large_number(value: Any) -> float:
    """Convert a number to float; numbers beyond the range of float become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def make_log_values(log: LoggedValues) -> Columns:
    """Build the table `log_values`: of several values of one name in a step and part, the last one.

    Counts the values that are not finite, which are left out.
    """
    names, codes_of_shape = _code_shapes(log.shapes)
    shape = np.array(log.shape, np.int64)
    lengths = np.array([len(codes) for codes in codes_of_shape], np.int64)[shape] if len(shape) else shape
    record = np.repeat(np.arange(len(shape)), lengths)
    code = np.concatenate([codes_of_shape[one] for one in log.shape]) if len(shape) else shape
    value = np.frombuffer(log.numbers, np.float64) if len(log.numbers) else np.zeros(0)
    finite = np.isfinite(value)
    log.not_finite += int((~finite).sum())
    kept = finite.nonzero()[0]
    kept = kept[_mark_last_values(log, record[kept], code[kept], len(names))]
    record = record[kept]
    columns: dict[str, Any] = {
        "line": np.array(log.line, np.int64)[record],
        "ts_ns": _select_times(log, record),
        "part": np.array(log.part, np.int64)[record],
        "step": np.array(log.step, np.int64)[record],
        "name": Coded(code[kept].astype(choose_narrowest(len(names))), tuple(names)),
        "value": value[kept],
    }
    return TABLES["log_values"].cast(columns, len(kept))


def _code_shapes(shapes: Iterable[Names]) -> tuple[dict[str, int], list[Any]]:
    """Number the names of all shapes: (number by name, the numbers of each shape)."""
    names: dict[str, int] = {}
    codes = [np.array([names.setdefault(name, len(names)) for name in shape], np.int64) for shape in shapes]
    return names, codes


def _mark_last_values(log: LoggedValues, record: Any, code: Any, names: int) -> Any:
    """Mark the last value of each name in each step and part."""
    steps = np.unique(np.array(log.step, np.int64), return_inverse=True)[1].reshape(-1)
    place = np.array(log.part, np.int64) * (len(log.step) + 1) + steps
    place = np.unique(place, return_inverse=True)[1].reshape(-1)
    key = place[record] * max(names, 1) + code
    is_last = np.zeros(len(key), bool)
    order = np.argsort(key, kind="stable")
    ends = np.flatnonzero(np.diff(key[order], append=-1) != 0) if len(key) else order
    is_last[order[ends]] = True
    return is_last


def _select_times(log: LoggedValues, record: Any) -> Nullable:
    """Select the time of each record."""
    return select_rows(make_nullable_numbers(log.ts_ns), record)


def note_skipped_values(log: LoggedValues, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Yield notes on restarts, and on skipped lines and values."""
    damaged = "lines with timers that are not whole JSON were skipped"
    not_finite = "logged values that are not finite numbers were left out"
    restarted = "restarts: steps begin again; each start is a part of its own, the last try of each step counts"
    repeated = "steps were logged more than once: the last values count"
    begins = "steps are missing before the first: the run was resumed, and its file logger began a new file"
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-line", damaged, log.damaged),
        ("warning", "log-truncated", "the last line is incomplete: the log was truncated", log.cut),
        ("warning", "log-long-line", "lines of over 1 MiB were skipped", log.too_long),
        ("info", "log-not-finite", not_finite, log.not_finite),
        ("warning", "log-cut", f"values beyond the first {MAX_VALUES:,} were left out", log.over),
        ("info", "log-empty", "a training log without the values of any step", int(not log.numbers)),
        ("info", "log-restarted", restarted, log.parts - 1),
        ("info", "log-begins-late", begins, _count_steps_before_first(log)),
        ("info", "log-numbered", "the log names no steps: its records are numbered in order", int(log.is_numbered)),
        ("info", "log-repeated", repeated, log.repeated),
    )
    return note_log_losses(losses, counts, source)


def _count_steps_before_first(log: LoggedValues) -> int:
    """Count the steps missing before the first of a log; 0 where the distance between steps is larger than 1."""
    steps = np.unique(np.array(log.step, np.int64))
    if len(steps) < 2 or steps[0] < 2 or int(np.median(np.diff(steps))) != 1:
        return 0
    return int(steps[0]) - 1
