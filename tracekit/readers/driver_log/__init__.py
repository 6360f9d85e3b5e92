"""Training logs of RL frameworks: the values of each step, from JSON lines or console output.

`json_lines` reads verl's file logger and other objects with a step, `console` the step lines of verl and VeRL-Omni,
`headed_tables` the blocks of NeMo-RL and AReaL, `dict_lines` the dictionaries of OpenRLHF, slime, TRL and ROLL, and
`gauges` scrapes of rl-insight.
All other lines are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from tracekit.model.recording.rl_frameworks import find_framework
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Columns, Frames
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Source, Trace, Want
from tracekit.readers import unpack
from tracekit.readers.driver_log.console import ANSI, add_console_lines
from tracekit.readers.driver_log.console_state import ConsoleLog
from tracekit.readers.driver_log.gauges import GAUGE_HINT, Gauges, watch_gauges
from tracekit.readers.driver_log.headed_tables import NEMO_HEADING, NEMO_TIMER, NEMO_TOTALS
from tracekit.readers.driver_log.run_settings import describe_dependencies, make_settings_table
from tracekit.readers.driver_log.values import LoggedValues, make_log_values, note_skipped_values
from tracekit.readers.engine_log.server_lines import add_server_line
from tracekit.readers.engine_log.values import EngineValues
from tracekit.readers.hangs.watchdog_lines import WatchdogLines, add_watchdog_line
from tracekit.readers.lines import MAX_LINE_BYTES, read_log
from tracekit.readers.loss import DataLoss

_EVIDENCE = (
    *("timing_s/", "timing/", "timing_per_", "fully_async/", "perf/", "timeperf/", "time/step_"),
    *("completions/", "queue_wait_time_s", "train/step_time"),
)
"""Every log of a known framework contains one; text without any needs no check of its lines."""

__all__ = ["describe_dependencies", "has_step_below", "make_log_trace", "read", "sniff"]

NO_TABLES: Mapping[str, Columns] = MappingProxyType({})

MAX_SEARCHED_BYTES = 64 * 2**20
"""Bytes of a text file that are searched for the first step."""

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
    """Check whether text begins like a training log: values of a step under a framework's names, or a driver's output.

    A console log may be long before its first step. There, the prefix that Ray gives the driver identifies it.
    """
    if not head or b"\0" in head or is_json_trace_head(head):
        return False
    text = head.decode("utf-8", "replace")
    if _has_logged_step(text) or GAUGE_HINT.search(text):
        return True
    if text.startswith(("{", "[")) or not any(mark in text for mark in _MARKS):
        return False
    return _has_driver_marks(ANSI.sub("", text) if "\x1b" in text else text)


def _has_logged_step(text: str) -> bool:
    """Check whether text contains values of a step under the names of a framework."""
    if not any(name in text for name in _EVIDENCE):
        return False
    log = ConsoleLog()
    add_console_lines(enumerate(text.split("\n"), 1), log)
    return find_framework(chain.from_iterable(log.values.names)) is not None


def _has_driver_marks(text: str) -> bool:
    """Check whether text has the prefix of verl's driver, or a heading and a total of NeMo-RL."""
    if _DRIVER.search(text):
        return True
    if not NEMO_HEADING.search(text):
        return False
    bullets = filter(None, map(NEMO_TIMER.search, text.splitlines()))
    return any(bullet[1] in NEMO_TOTALS for bullet in bullets)


def has_step_below(path: Path) -> bool:
    """Check whether a text file has a training step anywhere in its first `MAX_SEARCHED_BYTES`.

    Output before the first step may be long: configuration, downloads, loading of weights. Raises `OSError`.
    """
    evidence = [name.encode() for name in _EVIDENCE]
    read_bytes, before = 0, b""
    for block in unpack.unpack_blocks(path, [], careful=True):
        read_bytes += len(block)
        if b"\0" in block or read_bytes > MAX_SEARCHED_BYTES:
            return False
        text = before + block
        if any(name in text for name in evidence) and _has_logged_step(text.decode("utf-8", "replace")):
            return True
        before = text[text.rfind(b"\n") + 1 :][-MAX_LINE_BYTES:]
    return False


@dataclass(slots=True)
class _DriverOutput:
    """A console's values by step, those of engines that print into it, and lines of the watchdog of collectives."""

    console: ConsoleLog = field(default_factory=ConsoleLog)
    engines: EngineValues = field(default_factory=EngineValues)
    watchdog: WatchdogLines = field(default_factory=WatchdogLines)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace with the table `log_values`, and those of engines that print into it.

    Raises only `TraceFormatError`.
    """
    output, losses = read_log(Path(source.path), _DriverOutput, _add_output_lines, on_bytes)
    more = output.engines.make_tables(want)
    if want.table("watchdog_lines"):
        more |= output.watchdog.make_tables()
    return make_log_trace(output.console.values, losses, source, want, more)


def _add_output_lines(rows: Iterator[tuple[int, str | None]], output: _DriverOutput) -> None:
    """Add the values of all lines to the output."""
    other = watch_gauges(rows, Gauges(), output.console.values)
    add_console_lines(_watch_other_lines(other, output), output.console)


def _watch_other_lines(
    rows: Iterator[tuple[int, str | None]], output: _DriverOutput
) -> Iterator[tuple[int, str | None]]:
    """Yield all lines and add those of engines and of the watchdog; lines of metrics are longer, or JSON."""
    for number, line in rows:
        if line is not None and len(line) < MAX_ENGINE_LINE and not line.startswith("{"):
            add_server_line(line, number, output.engines)
            add_watchdog_line(line, number, output.watchdog)
        yield number, line


MAX_ENGINE_LINE = 2_000
"""Longest line of a driver's output that is looked at for an engine's statistics, in characters."""


def make_log_trace(
    log: LoggedValues, losses: list[DataLoss], source: Source, want: Want, more: Mapping[str, Columns] = NO_TABLES
) -> list[Trace]:
    """Make the Trace of a training log from its values, with `more` tables."""
    values = make_log_values(log)
    tables = {"log_values": values, **more} if want.table("log_values") else {**more}
    if want.table("log_settings"):
        tables["log_settings"] = make_settings_table(source.path, log.settings)
    meta = {"element_count": len(log.numbers), "absolute_time": False}
    return [Trace(source, Frames(tables), tuple(note_skipped_values(log, losses, source.name)), meta)]
