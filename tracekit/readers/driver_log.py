"""Logs of RL training drivers: metrics of each step, from JSON lines or console output.

Four forms are read: verl's file logger (`{"step": 3, "data": {"timing_s/gen": 1.2}}`), the same
without nesting and with the step as a key, verl's console (`step:3 - timing_s/gen:1.2 - …`), and
NeMo-RL's console (a `=== Step 3/10 ===` heading, then `• policy_training: 1.23s (40.0%)`).
All other lines are skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Frames, choose_narrowest
from tracekit.model.tables.frame import Frame, last_of
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers.lines import note_log_losses, read_log
from tracekit.readers.loss import DataLoss

MAX_VALUES = 2_000_000
"""Most values kept from one log."""

MAX_NAME = 300
"""Longest metric name kept, in characters."""

MAX_STEP = 2**62

_ANSI = compile_lazily(r"\x1b\[[0-9;?]*[A-Za-z]")
_SURROGATE = compile_lazily("[\ud800-\udfff]")
_NUMBER = compile_lazily(
    r"(?:[A-Za-z_][\w.]*\()?([-+]?(?:[0-9]{1,40}(?:\.[0-9]*)?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?)\)?"
)
_STEP_LINE = compile_lazily(r"(?:^|\s)step:\s?([0-9]{1,18}) - ")
_HEADING = compile_lazily(r"={8,} Step ([0-9]{1,18})(?:/[0-9]{1,18})? ={8,}")
_BULLET = compile_lazily(r"[•*-] ([^:]{1,300}): ([0-9]{1,15}(?:\.[0-9]{1,12})?)s(?: \([0-9.]{1,12}%\))?\s*\Z")
_TIMER = compile_lazily(r"timing_s/|timing/train/|perf/time_per_step")
_TIMERS = ("timing_s/", "timing/train/", "perf/")
"""Every line with step timers contains one of these; text without them needs no check of its lines."""

_LOGGED_NUMBER = compile_lazily(r"(?:timing_s|perf)/[\w/]{1,80}:(?:np\.\w{1,20}\()?[0-9]")
STEP_KEYS = ("step", "global_step", "_step", "training/global_step", "train/global_step")
TIME_KEYS = ("_timestamp", "timestamp", "time")
_PRINTED = {"Total step time": "total_step_time", "Total validation time": "total_validation_time"}
"""Totals that NeMo-RL prints in words, with the names of their timers."""

_MARKS = ("(TaskRunner pid=", "(main_task pid=", "======== Step ")
"""Every driver's output contains one of these; text without them needs neither of the two searches."""

_DRIVER = compile_lazily(r"\((?:TaskRunner|main_task) pid=[0-9]{1,10}")


_TRACE = compile_lazily(rb'\s*+\{\s*+"(?:schemaVersion|traceEvents|deviceProperties|distributedInfo)"')


def is_json_trace_head(head: bytes) -> bool:
    """Check whether text begins like a JSON trace: an object that its first line does not close.

    No line of a log is like that.
    """
    return _TRACE.match(head) is not None and not head.partition(b"\n")[0].rstrip().endswith(b"}")


def sniff(head: bytes) -> bool:
    """Check whether text begins like the log of an RL driver: step timers, or a driver's own output.

    A console log may be long before its first step. There, the prefix that Ray gives the driver identifies it.
    """
    if not head or b"\0" in head or is_json_trace_head(head):
        return False
    text = head.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if any(timers in text for timers in _TIMERS) and any(_is_step_line(line) for line in text.splitlines()):
        return True
    if text.startswith(("{", "[")) or not any(mark in text for mark in _MARKS):
        return False
    if _DRIVER.search(text):
        return True
    if not _HEADING.search(text):
        return False
    bullets = filter(None, map(_BULLET.search, text.splitlines()))
    return any(bullet[1] in _PRINTED for bullet in bullets)


def _is_step_line(line: str) -> bool:
    """Check whether a line contains the timers of a step, as JSON or in the form of verl's console."""
    if not line.startswith("{"):
        return bool(_STEP_LINE.search(line) and _LOGGED_NUMBER.search(line))
    logged = parse_json_object(line) if _TIMER.search(line) else None
    return logged is not None and _find_logged_step(logged) is not None


@dataclass(slots=True)
class _DriverLog:
    """Values parsed so far, as columns (`name` indexes `names`), and counts of skipped input."""

    line: list[int] = field(default_factory=list[int])
    logged_ns: list[int | None] = field(default_factory=list["int | None"])
    step: list[int] = field(default_factory=list[int])
    name: list[int] = field(default_factory=list[int])
    names: dict[str, int] = field(default_factory=dict[str, int])
    value: list[float] = field(default_factory=list[float])
    heading: int | None = None
    too_long: int = 0
    damaged: int = 0
    not_finite: int = 0
    over: int = 0

    def add(self, line: int, step: int, name: str, value: object, logged_ns: int | None = None) -> None:
        """Add one value of a step; skip a value that is not a number, and count one that is not finite."""
        number = _convert_logged_number(value)
        if number is None:
            return
        if not math.isfinite(number):
            self.not_finite += 1
            return
        if len(self.value) >= MAX_VALUES:
            self.over += 1
            return
        self.line.append(line)
        self.logged_ns.append(logged_ns)
        self.step.append(step)
        plain = _SURROGATE.sub("\ufffd", name[:MAX_NAME])
        self.name.append(self.names.setdefault(plain, len(self.names)))
        self.value.append(number)


def _convert_logged_number(value: object) -> float | None:
    """Convert a number to float; None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace with the table `log_values`.

    Raises only `TraceFormatError`.
    """
    log, losses = read_log(Path(source.path), _DriverLog, _add_driver_lines, on_bytes)
    tables = Frames({"log_values": _make_log_values(log)} if want.table("log_values") else {})
    meta = {"element_count": len(log.value), "absolute_time": False}
    return [Trace(source, tables, tuple(_note_skipped_driver_lines(log, losses, source.name)), meta)]


def _add_driver_lines(rows: Iterator[tuple[int, str | None]], log: _DriverLog) -> None:
    """Add the values of all lines to the log; count lines over the size limit."""
    for number, line in rows:
        if line is None:
            log.too_long += 1
        else:
            _add_driver_line(line, number, log)


def _add_driver_line(line: str, number: int, log: _DriverLog) -> None:
    """Add the values of one line to the log."""
    if line.startswith("{"):
        logged = parse_json_object(line)
        if logged is not None:
            _add_logged_object(logged, number, log)
        elif _TIMER.search(line):
            log.damaged += 1
        return
    text = line
    if "\x1b" in line:
        text = _ANSI.sub("", line)
    match = _STEP_LINE.search(text)
    if match:
        step = int(match[1])
        for piece in text[match.end() :].split(" - "):
            name, _, value = piece.rpartition(":")
            printed = _NUMBER.fullmatch(value.strip())
            if name and printed:
                log.add(number, step, name.strip(), float(printed[1]))
        return
    match = _HEADING.search(text)
    if match:
        log.heading = int(match[1])
        return
    if log.heading is not None and (bullet := _BULLET.search(text)):
        name = _PRINTED.get(bullet[1], bullet[1])
        kind = "validation" if name == "total_validation_time" else "train"
        log.add(number, log.heading, f"timing/{kind}/{name}", float(bullet[2]))


_JSON_SPACE = " \t\r\n"


def parse_json_object(line: str) -> dict[str, Any] | None:
    """Parse a JSON line that contains an object; None for anything else.

    >>> parse_json_object(' {"step": 1} '), parse_json_object('{"step": 1},'), parse_json_object('"traceEvents": [')
    ({'step': 1}, None, None)
    """
    text = line.strip(_JSON_SPACE)
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _find_logged_step(logged: Mapping[str, Any]) -> int | None:
    """Find the step of a logged object; None if it names none."""
    for key in STEP_KEYS:
        value = logged.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEP:
            return value
    return None


def _add_logged_object(logged: Mapping[str, Any], number: int, log: _DriverLog) -> None:
    """Add the values of one JSON line.

    Values in `data` keep their names; names in other objects are prefixed with the object's key.
    """
    step = _find_logged_step(logged)
    if step is None:
        return
    times = [convert_seconds_to_unix_ns(logged.get(key)) for key in TIME_KEYS]
    logged_ns = next((time for time in times if time), None)
    for key, value in logged.items():
        if not isinstance(value, dict):
            if key not in STEP_KEYS and key not in TIME_KEYS:
                log.add(number, step, key, value, logged_ns)
            continue
        prefix = "" if key == "data" else f"{key}/"
        for name, inner in value.items():
            log.add(number, step, prefix + name, inner, logged_ns)


def convert_seconds_to_unix_ns(value: object) -> int | None:
    """Convert seconds since the Unix epoch to ns; None for values outside 1e9 to 1e10 s (2001 to 2286)."""
    number = _convert_logged_number(value)
    if number is None or not 1e9 < number < 1e10:
        return None
    return round(number * 1e9)


def _make_log_values(log: _DriverLog) -> Columns:
    """Build the table `log_values`.

    If a step was logged more than once (a resumed run), the last value of each name counts.
    """
    columns = {
        "line": log.line,
        "logged_ns": log.logged_ns,
        "step": log.step,
        "name": Coded(np.array(log.name, choose_narrowest(len(log.names))), tuple(log.names)),
        "value": log.value,
    }
    rows = Frame.from_columns(TABLES["log_values"].cast(columns, len(log.value)))
    rows = rows.take(np.sort(rows.group_by("step", "name").agg(last=last_of(np.arange(len(rows))))["last"]))
    return Columns(len(rows), rows.columns)


def _note_skipped_driver_lines(log: _DriverLog, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Yield notes on skipped lines and values."""
    damaged = "lines with timers that are no whole JSON were passed over"
    not_finite = "logged values that are no finite number were left out"
    repeated = "steps were logged more than once: the last values count"
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-line", damaged, log.damaged),
        ("warning", "log-long-line", "lines of over 1 MiB were passed over", log.too_long),
        ("info", "log-not-finite", not_finite, log.not_finite),
        ("warning", "log-cut", f"values beyond the first {MAX_VALUES:,} were left out", log.over),
        ("info", "log-empty", "a driver's log without the numbers of any step", int(not log.value)),
        ("info", "log-repeated", repeated, _count_repeated_steps(log)),
    )
    return note_log_losses(losses, counts, source)


def _count_repeated_steps(log: _DriverLog) -> int:
    """Count the steps that start again after a later step, as in a resumed run or one of several epochs."""
    steps = np.array(log.step, np.int64)
    starts = steps[np.flatnonzero(np.diff(steps, prepend=-1) != 0)]
    return int(len(starts) - len(np.unique(starts)))
