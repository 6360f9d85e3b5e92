"""Console output of training drivers: the lines of a step, with prefixes of Ray, colors, carriage returns and wraps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.json_lines import add_logged_object, parse_json_object
from tracekit.readers.driver_log.values import LoggedValues

ANSI = compile_lazily(r"\x1b\[[0-9;?]*[A-Za-z]")
RAY_PREFIX = compile_lazily(r"\((\w{1,60}) pid=([0-9]{1,10})(?:, ip=[^)\s]{1,60})?\)\s?")
STEP_LINE = compile_lazily(r"(?:^|\s)step:\s?([0-9]{1,18}) - ")
NEMO_HEADING = compile_lazily(r"={8,} Step ([0-9]{1,18})(?:/[0-9]{1,18})? ={8,}")
NEMO_TIMER = compile_lazily(r"[•*-] ([^:]{1,300}): ([0-9]{1,15}(?:\.[0-9]{1,12})?)s(?: \([0-9.]{1,12}%\))?\s*\Z")
TIMER = compile_lazily(r"timing_s/|timing/train/|perf/time_per_step")
NEMO_TOTALS = {"Total step time": "total_step_time", "Total validation time": "total_validation_time"}
"""Totals that NeMo-RL prints in words, with the names of their timers."""

DRIVERS = frozenset({"TaskRunner", "main_task"})
"""Ray actors and tasks that run verl's driver."""

_NUMBER = compile_lazily(
    r"(?:[A-Za-z_][\w.]{0,60}\()?"
    r"([-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|inf))"
    r"(?:,[^()]{0,200})?\)?"
)
_PROGRESS = compile_lazily(
    r"Training Progress:\s{0,4}[0-9]{1,3}%\|[^|]{0,400}\| ([0-9]{1,18})/[0-9]{1,18} "
    r"\[(?:([0-9]{1,4}) days?, )?(?:([0-9]{1,5}):)?([0-9]{1,2}):([0-9]{2})<"
)
PROGRESS_NAME = "progress/elapsed_s"
"""Name of the seconds since the start of a run, as the progress bar of verl shows them after each step."""

_PAIR = compile_lazily(r"[^\s:]:(?:[\w.]{1,60}\()?[-+.\w]{1,60}[^:]{0,200}\Z")
_DIGITS = compile_lazily(r"[-+.0-9eE]{1,60}\)?\Z")
MAX_WRAPPED_LINES, MAX_WRAPPED_CHARS = 200, 2**20


@dataclass(slots=True)
class ConsoleLog:
    """Values parsed so far, and the state of lines that belong together."""

    values: LoggedValues = field(default_factory=LoggedValues)
    pid: str | None = None
    heading: int | None = None
    wrapped: list[str] = field(default_factory=list[str])
    wrapped_at: int = 0
    wrapped_chars: int = 0


def add_console_lines(rows: Iterator[tuple[int, str | None]], log: ConsoleLog) -> None:
    """Add the values of all lines to the log; count lines over the size limit."""
    for number, line in rows:
        if line is None:
            log.values.too_long += 1
        elif line.startswith("{"):
            _add_json_line(line, number, log.values)
        else:
            _add_console_line(line, number, log)
    flush_wrapped_line(log)


def _add_json_line(line: str, number: int, values: LoggedValues) -> None:
    """Add the values of a line that begins as JSON; count a damaged one that has timers."""
    logged = parse_json_object(line)
    if logged is not None:
        add_logged_object(logged, number, values)
    elif TIMER.search(line):
        values.damaged += 1


def _add_console_line(line: str, number: int, log: ConsoleLog) -> None:
    """Add the values of one line of console output."""
    if "\x1b" in line:
        line = ANSI.sub("", line)
    for text in line.split("\r") if "\r" in line else (line,):
        _add_console_text(text, number, log)


def _add_console_text(text: str, number: int, log: ConsoleLog) -> None:
    """Add the values of text between carriage returns: a prefix of Ray, then one of the known forms."""
    prefix = RAY_PREFIX.match(text) if text.startswith("(") else None
    if prefix:
        text = text[prefix.end() :]
        _note_driver_process(prefix[1], prefix[2], log)
    if log.wrapped and _add_wrapped_piece(text, log):
        return
    for mark, add_line in _FORMS:
        if mark in text:
            add_line(text, number, log)


def _note_driver_process(actor: str, pid: str, log: ConsoleLog) -> None:
    """Begin a new part where another process is the driver."""
    if actor not in DRIVERS:
        return
    if log.pid is not None and log.pid != pid:
        flush_wrapped_line(log)
        log.values.begin_part()
    log.pid = pid


def _add_verl_line(text: str, number: int, log: ConsoleLog) -> None:
    """Keep a step's line of verl: the next line may continue it."""
    match = STEP_LINE.search(text)
    if match:
        flush_wrapped_line(log)
        log.wrapped, log.wrapped_at, log.wrapped_chars = [text[match.start() :].lstrip()], number, len(text)


def _add_wrapped_piece(text: str, log: ConsoleLog) -> bool:
    """Add a line if it continues the step's line before it; otherwise the step's line is complete."""
    tail = log.wrapped[-1].rstrip("\n")
    width = log.wrapped_chars + len(text)
    fits = len(log.wrapped) < MAX_WRAPPED_LINES and width <= MAX_WRAPPED_CHARS
    if fits and not STEP_LINE.search(text) and _continues_pairs(tail, text, len(log.wrapped) > 1):
        if (text.startswith("- ") and not tail.endswith(" ")) or (tail.endswith(" -") and not text.startswith(" ")):
            text = f" {text}"
        log.wrapped.append(text)
        log.wrapped_chars = width
        return True
    flush_wrapped_line(log)
    return False


def _continues_pairs(tail: str, text: str, wrapped: bool) -> bool:
    """Check whether text continues the `name:value` pairs that end with `tail`."""
    if not text.strip() or text.startswith(("[", "(")):
        return False
    last = tail.rpartition(" - ")[2]
    is_open = not _PAIR.search(last)
    first, dash, _ = text.partition(" - ")
    if dash and (first.startswith("- ") or is_open or ":" in first or _DIGITS.match(first)):
        return _has_pair(text)
    if is_open or tail.endswith(" -"):
        return _has_pair(f"{last}{first}")
    return wrapped and _DIGITS.match(text) is not None


def _has_pair(text: str) -> bool:
    """Check whether one of the pieces of a line is a name and a number."""
    for piece in text.split(" - "):
        name, _, value = piece.rpartition(":")
        if name and _NUMBER.fullmatch(value.strip()):
            return True
    return False


def flush_wrapped_line(log: ConsoleLog) -> None:
    """Add the values of the step's line that was kept."""
    text, log.wrapped = "".join(log.wrapped), []
    match = STEP_LINE.search(text)
    if not match:
        return
    values: dict[str, object] = {}
    for piece in text[match.end() :].split(" - "):
        name, _, value = piece.rpartition(":")
        printed = _NUMBER.fullmatch(value.strip())
        if name and printed:
            values[name.strip()] = float(printed[1])
    log.values.add_record(log.wrapped_at, int(match[1]), values)


def _add_progress(text: str, number: int, log: ConsoleLog) -> None:
    """Add the elapsed time that verl's progress bar shows after a step."""
    match = _PROGRESS.search(text)
    if match is None or not log.values.step:
        return
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    elapsed = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    log.values.add_record(number, int(match[1]), {PROGRESS_NAME: float(elapsed)}, joins=True)


def _add_nemo_heading(text: str, number: int, log: ConsoleLog) -> None:
    """Remember the step whose timers follow."""
    del number
    match = NEMO_HEADING.search(text)
    if match:
        log.heading = int(match[1])


def _add_nemo_timer(text: str, number: int, log: ConsoleLog) -> None:
    """Add a timer below the heading of its step."""
    timer = NEMO_TIMER.search(text) if log.heading is not None else None
    if timer is None or log.heading is None:
        return
    name = NEMO_TOTALS.get(timer[1], timer[1])
    kind = "validation" if name == "total_validation_time" else "train"
    value = float(timer[2])
    log.values.add_record(number, log.heading, {f"timing/{kind}/{name}": value if math.isfinite(value) else None})


_FORMS: tuple[tuple[str, Callable[[str, int, ConsoleLog], None]], ...] = (
    ("step:", _add_verl_line),
    ("Training Progress:", _add_progress),
    ("= Step ", _add_nemo_heading),
    ("s", _add_nemo_timer),
)
"""Forms of lines: text that every such line contains, and the function that adds its values."""
