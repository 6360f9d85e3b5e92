"""The configuration that a driver prints before training: a dictionary over many lines, as `pprint` writes it."""

from __future__ import annotations

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.console_state import ConsoleLog
from tracekit.readers.driver_log.dict_lines import parse_python_dict
from tracekit.readers.driver_log.run_settings import flatten_settings, select_known_settings

_BEGIN = compile_lazily(r"\{'(?:actor_rollout_ref|algorithm|async_training|checkpointing|cluster|data)': \{")
_QUOTED = compile_lazily(r"'(?:[^'\\]|\\.){0,2000}'|\"(?:[^\"\\]|\\.){0,2000}\"")
MAX_CONFIG_PIECES, MAX_CONFIG_CHARS, MAX_FOREIGN_LINES = 5_000, 2**20, 20


def add_config_line(text: str, log: ConsoleLog) -> bool:
    """Add a line if it belongs to a printed configuration; its settings are kept when the dictionary ends.

    Every line but the first is indented. Ray may end a line within an entry and print the rest unindented. Other lines
    may come between.
    """
    if not log.config:
        if not _BEGIN.match(text):
            return False
    elif not text.startswith(" "):
        if _is_complete(log.config[-1]) or not _is_complete(text):
            log.config_foreign += 1
            if log.config_foreign > MAX_FOREIGN_LINES:
                _forget_config(log)
            return False
        before = log.config.pop()
        log.config_depth -= _count_open_braces(before)
        text = before + text
    log.config.append(text)
    log.config_chars += len(text)
    log.config_depth += _count_open_braces(text)
    if log.config_depth <= 0:
        config = parse_python_dict("\n".join(log.config).strip())
        if config is not None:
            log.values.settings |= select_known_settings(flatten_settings(config))
    if log.config_depth <= 0 or len(log.config) > MAX_CONFIG_PIECES or log.config_chars > MAX_CONFIG_CHARS:
        _forget_config(log)
    return True


def _is_complete(line: str) -> bool:
    """Check whether a line ends where `pprint` ends one."""
    return line.rstrip().endswith((",", "{", "[", "(", "}", "]", ")"))


def _count_open_braces(text: str) -> int:
    """Count the braces that a line opens less those that it closes, outside of quoted text."""
    marks = _QUOTED.sub("", text)
    return marks.count("{") - marks.count("}")


def _forget_config(log: ConsoleLog) -> None:
    """Forget the lines of a configuration: it ended, or was truncated."""
    log.config, log.config_depth, log.config_chars, log.config_foreign = [], 0, 0, 0
