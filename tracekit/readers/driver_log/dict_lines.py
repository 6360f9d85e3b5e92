"""Console lines with a whole dictionary: OpenRLHF, slime, TRL (Python's form) and ROLL (JSON)."""

from __future__ import annotations

import ast
import json
from typing import Any

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.console_state import ConsoleLog, parse_printed_number
from tracekit.readers.driver_log.json_lines import add_logged_object, parse_json_object

OPENRLHF_LINE = compile_lazily(r"Global step ([0-9]{1,18}): (\{.*\})\s*\Z")
SLIME_LINE = compile_lazily(r"(?:^|[\s\]])(?:perf|rollout|eval) ([0-9]{1,18}): (\{.*\})\s*\Z")
ROLL_STEP = '"system/step"'

_TRL_KEYS = ("'step_time'", "'completions/", "'queue_wait_time_s'")
_LABEL = r"\A(?:\s{0,5}[0-9]{1,5}:(?= ))?"
"""Number of the task that `srun --label` puts before each line."""
_BAR = compile_lazily(_LABEL + r"\s{0,8}[0-9]{1,3}%\|[^|]{0,400}\| ([0-9]{1,18})/[0-9]{1,18} \[")
_BEFORE_DICT = compile_lazily(
    _LABEL + r"\s{0,8}(?:[0-9]{1,3}%\|[^|]{0,400}\| [0-9]{1,18}/[0-9]{1,18} \[[^\]]{0,100}\])?(?=\{')"
)
"""Text before a dictionary on its line: a label, and a progress bar, which ends without a line break."""
_WRAPPED_NUMBER = compile_lazily(
    r"(?:np\.|numpy\.|torch\.)?(?:float[0-9]{2}|u?int[0-9]{1,2}|tensor)\(([-+.\w]{1,60})(?:, [\w=':.]{1,60})*\)"
)
_NOT_FINITE = compile_lazily(r"(?<=: )-?(?:nan|inf)(?=[,}])")
_TO_JSON = (("'", '"'), (": None", ": null"), (": True", ": true"), (": False", ": false"))


def parse_python_dict(text: str) -> dict[str, Any] | None:
    """Parse the printed form of a dictionary with text as keys; None for other text. Numbers of numpy become plain.

    >>> parse_python_dict("{'a': np.float64(1.5), 'b': nan, 'c': [1]}")
    {'a': 1.5, 'b': None, 'c': [1]}
    """
    if "(" in text:
        text = _WRAPPED_NUMBER.sub(r"\1", text)
    text = _NOT_FINITE.sub("None", text)
    value = None if '"' in text or "\\" in text else _parse_as_json(text)
    if value is None:
        try:
            value = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return None
    return value


def _parse_as_json(text: str) -> Any:
    """Parse a dictionary as JSON, which is faster; None if it is not.

    Without double quotes and backslashes every quote begins or ends a text, so most dictionaries are JSON but for their words.
    """
    for python, plain in _TO_JSON:
        text = text.replace(python, plain)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def add_openrlhf_line(text: str, number: int, log: ConsoleLog) -> None:
    """Add the status that OpenRLHF prints after a global step."""
    match = OPENRLHF_LINE.search(text)
    if match:
        _add_dict(match[2], number, int(match[1]), log)


def add_slime_line(text: str, number: int, log: ConsoleLog) -> None:
    """Add the values that slime prints for a rollout, and those for its training."""
    match = SLIME_LINE.search(text)
    if match:
        _add_dict(match[2], number, int(match[1]), log)


def _add_dict(text: str, number: int, step: int, log: ConsoleLog) -> None:
    """Add the numbers of a printed dictionary; count a damaged one."""
    values = parse_python_dict(text)
    if values is None:
        log.values.damaged += 1
    else:
        log.values.add_record(number, step, values)


def is_trl_line(text: str) -> bool:
    """Check whether a line is a dictionary with keys that TRL's trainers log, which may follow a progress bar."""
    return _BEFORE_DICT.match(text) is not None and any(key in text for key in _TRL_KEYS)


def add_trl_line(text: str, number: int, log: ConsoleLog) -> None:
    """Add the values that a trainer of TRL logs; their step is that of the progress bar, otherwise the next number."""
    if not is_trl_line(text):
        return
    values = parse_python_dict(text[text.find("{'") :].rstrip())
    if values is None:
        log.values.damaged += 1
        return
    step = log.bar if log.bar is not None and log.bar != log.last_numbered else log.last_numbered + 1
    log.last_numbered = step
    log.values.is_numbered |= log.bar is None
    numbers = {name: parse_printed_number(one) if isinstance(one, str) else one for name, one in values.items()}
    log.values.add_record(number, step, numbers)


def note_progress_bar(text: str, number: int, log: ConsoleLog) -> None:
    """Remember the step that a progress bar without a title shows."""
    del number
    match = _BAR.match(text)
    if match:
        log.bar = int(match[1])


def add_roll_line(text: str, number: int, log: ConsoleLog) -> None:
    """Add the metrics that ROLL prints as JSON within a line of its log."""
    logged = parse_json_object(text[max(text.find('{"'), 0) :])
    if logged is not None:
        add_logged_object(logged, number, log.values)
