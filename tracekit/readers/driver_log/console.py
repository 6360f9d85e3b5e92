"""Console output of training drivers: the lines of a step, with prefixes of Ray, colors, carriage returns and wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.console_state import ConsoleLog, parse_printed_number
from tracekit.readers.driver_log.dict_lines import (
    ROLL_STEP,
    add_openrlhf_line,
    add_roll_line,
    add_slime_line,
    add_trl_line,
    note_progress_bar,
)
from tracekit.readers.driver_log.headed_tables import (
    add_areal_row,
    add_nemo_value,
    note_areal_heading,
    note_nemo_heading,
)
from tracekit.readers.driver_log.json_lines import add_logged_object, parse_json_object
from tracekit.readers.driver_log.printed_config import add_config_line
from tracekit.readers.driver_log.values import LoggedValues

ANSI = compile_lazily(r"\x1b\[[0-9;?]*[A-Za-z]")
RAY_PREFIX = compile_lazily(r"\((\w{1,60}) pid=([0-9]{1,10})(?:, ip=[^)\s]{1,60})?\)\s?")
STEP_LINE = compile_lazily(r"(?:^|\s)step:\s?([0-9]{1,18}) - ")
TIMER = compile_lazily(r"timing_s/|timing/train/|perf/time_per_step|time/step_")
DRIVERS = frozenset({"TaskRunner", "TaskRunnerV1", "OneStepTaskRunner", "FullyAsyncTaskRunner", "main_task"})
"""Ray actors and tasks that run verl's driver."""

_PROGRESS = compile_lazily(
    r"Training Progress:\s{0,4}[0-9]{1,3}%\|[^|]{0,400}\| ([0-9]{1,18})/[0-9]{1,18} "
    r"\[(?:([0-9]{1,4}) days?, )?(?:([0-9]{1,5}):)?([0-9]{1,2}):([0-9]{2})<"
)
PROGRESS_NAME = "progress/elapsed_s"
"""Name of the seconds since the start of a run, as the progress bar of verl shows them after each step."""

_DIGITS = compile_lazily(r"[-+.0-9eE]{1,60}\)?\Z")
MAX_WRAPPED_LINES, MAX_WRAPPED_CHARS = 200, 2**20


def add_console_lines(rows: Iterator[tuple[int, str | None]], log: ConsoleLog) -> None:
    """Add the values of all lines to the log; count lines over the size limit."""
    for number, line in rows:
        if line is None:
            log.values.too_long += 1
        elif line.startswith("{") and not line.startswith("{'"):
            _add_json_line(line, number, log.values)
        else:
            _add_console_line(line, number, log)
    flush_wrapped_line(log, is_end=True)


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
    is_driver = prefix is None or prefix[1] in DRIVERS
    if is_driver and (log.config or text.startswith("{'")) and add_config_line(text, log):
        return
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
    first, dash, rest = text.partition(" - ")
    if (dash and not first.strip()) or text.startswith("- "):
        return _has_pair(rest or text[2:])
    if tail.rstrip().endswith(" -"):
        return bool(_split_pair(first)[0]) and " " not in first.strip()
    last = tail.rpartition(" - ")[2]
    if not _split_pair(last)[0]:
        return bool(_split_pair(last + first)[0])
    return (bool(dash) or wrapped) and _DIGITS.match(first) is not None


def _has_pair(text: str) -> bool:
    """Check whether one of the pieces of a line is a name and a number."""
    return any(_split_pair(piece)[0] for piece in text.split(" - "))


def _split_pair(piece: str) -> tuple[str, float | None]:
    """Split `name:number`; the name is empty for other text. Calls and texts in the value may contain colons.

    >>> _split_pair("perf/mfu:tensor(0.5, device='cuda:0')"), _split_pair("val/gsm8k:v1/acc:nan"), _split_pair("x")
    (('perf/mfu', 0.5), ('val/gsm8k:v1/acc', nan), ('', None))
    """
    name, _, printed = piece.rpartition(":")
    value = parse_printed_number(printed) if name else None
    if name and value is None and piece.endswith((")", ")'", ')"')):
        before, _, call = piece.partition("(")
        name, _, function = before.rpartition(":")
        value = parse_printed_number(f"{function}({call}") if name else None
    return ("", None) if value is None else (name.strip(), value)


def flush_wrapped_line(log: ConsoleLog, *, is_end: bool = False) -> None:
    """Add the values of the step's line that was kept; at the end of the log, it may be truncated."""
    text, log.wrapped = "".join(log.wrapped), []
    match = STEP_LINE.search(text)
    if not match:
        return
    values: dict[str, object] = {}
    name = ""
    for piece in text[match.end() :].split(" - "):
        name, value = _split_pair(piece)
        if name:
            values[name] = value
    if is_end and _is_truncated(tuple(values), log.values):
        log.values.cut += 1
        if name:
            # The number of the last piece may have lost digits.
            del values[name]
    log.values.add_record(log.wrapped_at, int(match[1]), values)


def _is_truncated(names: tuple[str, ...], values: LoggedValues) -> bool:
    """Check whether a record has only the first names of an earlier one, as no complete record has."""
    return names not in values.shapes and any(shape[: len(names)] == names for shape in values.shapes)


def _add_progress(text: str, number: int, log: ConsoleLog) -> None:
    """Add the elapsed time that verl's progress bar shows after a step."""
    match = _PROGRESS.search(text)
    if match is None or not log.values.step:
        return
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    elapsed = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    log.values.add_record(number, int(match[1]), {PROGRESS_NAME: float(elapsed)}, joins=True)


_FORMS: tuple[tuple[str, Callable[[str, int, ConsoleLog], None]], ...] = (
    ("step:", _add_verl_line),
    ("Training Progress:", _add_progress),
    ("= Step ", note_nemo_heading),
    (": ", add_nemo_value),
    ("Global step ", add_openrlhf_line),
    (": {", add_slime_line),
    ("%|", note_progress_bar),
    ("{'", add_trl_line),
    ("Train step ", note_areal_heading),
    ("│", add_areal_row),
    (ROLL_STEP, add_roll_line),
)
"""Forms of lines: text that every such line contains, and the function that adds its values."""
