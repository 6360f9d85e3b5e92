"""The configuration that a driver prints before training: a dictionary over many lines, as `pprint` writes it."""

from __future__ import annotations

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.console_state import ConsoleLog
from tracekit.readers.driver_log.dict_lines import parse_python_dict
from tracekit.readers.driver_log.run_settings import flatten_settings, select_known_settings

_BEGIN = compile_lazily(r"\{'(?:actor_rollout_ref|algorithm|async_training|checkpointing|cluster|data)': \{")
_QUOTED = compile_lazily(r"'(?:[^'\\]|\\.){0,2000}'|\"(?:[^\"\\]|\\.){0,2000}\"")
MAX_CONFIG_PIECES, MAX_CONFIG_CHARS = 5_000, 2**20


def add_config_line(text: str, log: ConsoleLog) -> bool:
    """Add a line if it belongs to a printed configuration; its settings are kept when the dictionary ends."""
    if not text.startswith(" "):
        # Every line but the first is indented: the dictionary ended, or was truncated.
        log.config, log.config_depth, log.config_chars = [], 0, 0
    if not log.config and not _BEGIN.match(text):
        return False
    log.config.append(text)
    marks = _QUOTED.sub("", text)
    log.config_depth += marks.count("{") - marks.count("}")
    log.config_chars += len(text)
    if log.config_depth <= 0:
        config = parse_python_dict("\n".join(log.config).strip())
        if config is not None:
            log.values.settings |= select_known_settings(flatten_settings(config))
    if log.config_depth <= 0 or len(log.config) > MAX_CONFIG_PIECES or log.config_chars > MAX_CONFIG_CHARS:
        log.config, log.config_depth, log.config_chars = [], 0, 0
    return True
