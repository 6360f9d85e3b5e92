"""Logs of RL training drivers: metrics of each step, from JSON lines or console output.

Four forms are read: verl's file logger (`{"step": 3, "data": {"timing_s/gen": 1.2}}`), the same
without nesting and with the step as a key, verl's console (`step:3 - timing_s/gen:1.2 - …`), and
NeMo-RL's console (a `=== Step 3/10 ===` heading, then `• policy_training: 1.23s (40.0%)`).
All other lines are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracekit.model.tables.arrays import Frames
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Source, Trace, Want
from tracekit.readers.driver_log.console import (
    ANSI,
    NEMO_HEADING,
    NEMO_TIMER,
    NEMO_TOTALS,
    STEP_LINE,
    TIMER,
    ConsoleLog,
    add_console_lines,
)
from tracekit.readers.driver_log.json_lines import find_logged_step, parse_json_object
from tracekit.readers.driver_log.values import LoggedValues, make_log_values, note_skipped_values
from tracekit.readers.lines import read_log
from tracekit.readers.loss import DataLoss

_TIMERS = ("timing_s/", "timing/train/", "perf/")
"""Every line with step timers contains one; text without any needs no check of its lines."""

_LOGGED_NUMBER = compile_lazily(r"(?:timing_s|perf)/[\w/]{1,80}:(?:np\.\w{1,20}\()?[0-9]")
_MARKS = ("(TaskRunner pid=", "(main_task pid=", "======== Step ")
"""Every driver's output contains one; text without any needs neither of the two searches."""

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
        text = ANSI.sub("", text)
    if any(timers in text for timers in _TIMERS) and any(_is_step_line(line) for line in text.splitlines()):
        return True
    if text.startswith(("{", "[")) or not any(mark in text for mark in _MARKS):
        return False
    if _DRIVER.search(text):
        return True
    if not NEMO_HEADING.search(text):
        return False
    bullets = filter(None, map(NEMO_TIMER.search, text.splitlines()))
    return any(bullet[1] in NEMO_TOTALS for bullet in bullets)


def _is_step_line(line: str) -> bool:
    """Check whether a line contains the timers of a step, as JSON or in the form of verl's console."""
    if not line.startswith("{"):
        return bool(STEP_LINE.search(line) and _LOGGED_NUMBER.search(line))
    logged = parse_json_object(line) if TIMER.search(line) else None
    return logged is not None and find_logged_step(logged) is not None


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace with the table `log_values`.

    Raises only `TraceFormatError`.
    """
    log, losses = read_log(Path(source.path), ConsoleLog, add_console_lines, on_bytes)
    return make_log_trace(log.values, losses, source, want)


def make_log_trace(log: LoggedValues, losses: list[DataLoss], source: Source, want: Want) -> list[Trace]:
    """Make the Trace of a training log from its values."""
    values = make_log_values(log)
    tables = Frames({"log_values": values} if want.table("log_values") else {})
    meta = {"element_count": len(log.numbers), "absolute_time": False}
    return [Trace(source, tables, tuple(note_skipped_values(log, losses, source.name)), meta)]
