"""Settings of a run: from the configuration that its driver prints, and from the YAML files next to its log.

Hydra writes `.hydra/config.yaml` without resolving references, Weights & Biases `config.yaml` with a `value` per key,
verl prints a resolved dictionary. Only settings that findings name are kept (`model.recording.rl_settings`).

The YAML reader knows what these programs write: block mappings of scalars. It builds no objects and follows no tags,
anchors or aliases; lists and texts of several lines are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tracekit.model.recording.rl_settings import clean_setting
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.frame import texts

CONFIG_FILES = (".hydra/config.yaml", "files/config.yaml", "config.yaml")
"""Places of a run's configuration next to its log: Hydra's, that of a W&B run, that next to W&B's `output.log`."""

MAX_CONFIG_BYTES, MAX_CONFIG_LINES, MAX_DEPTH = 2**20, 20_000, 30

_PAIR = re.compile(r"( {0,120})(?:'([\w./-]{1,100})'|\"([\w./-]{1,100})\"|([\w./-]{1,100})):(?:\s+(.*))?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]{1,200})(?:,([\w.+-]{1,40}))?\}")
MAX_REFERENCES = 10


def parse_yaml_settings(text: str) -> dict[str, str]:
    r"""Parse the scalars of a YAML file by dotted key, with references resolved.

    >>> parse_yaml_settings("trainer:\n  nnodes: 2  # two\nrollout:\n  n: ${trainer.nnodes}\n")
    {'trainer.nnodes': '2', 'rollout.n': '2'}
    """
    leaves = dict(_yield_yaml_leaves(text))
    resolved = ((key, _resolve_reference(value, leaves)) for key, value in leaves.items())
    return {key: value for key, value in resolved if value is not None}


def _yield_yaml_leaves(text: str) -> Iterator[tuple[str, str]]:
    """Yield the scalars of block mappings: (dotted key, text)."""
    path: list[tuple[int, str]] = []
    skipped: int | None = None
    for line in text.split("\n", MAX_CONFIG_LINES)[:MAX_CONFIG_LINES]:
        indent = len(line) - len(line.lstrip(" "))
        if skipped is not None and (indent > skipped or not line.strip()):
            continue
        skipped = None
        match = _PAIR.fullmatch(line.rstrip())
        if match is None:
            # A list: what is deeper belongs to it.
            skipped = indent if line.lstrip().startswith("-") else None
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        key, value = match[2] or match[3] or match[4], _strip_comment(match[5] or "")
        if value:
            yield ".".join([*(name for _, name in path), key]), value.strip("'\"")
            # The following lines of a text that continues are deeper.
            skipped = indent
        elif len(path) < MAX_DEPTH:
            path.append((indent, key))


def _strip_comment(value: str) -> str:
    """Strip a comment from the value of a line."""
    return "" if value.startswith("#") else value.partition(" #")[0].strip()


def _resolve_reference(value: str, leaves: Mapping[str, str]) -> str | None:
    """Resolve a value that refers to another setting; None if it is not known."""
    for _ in range(MAX_REFERENCES):
        match = _REFERENCE.fullmatch(value)
        if match is None:
            return value
        known = leaves.get(match[1], match[2])
        if known is None:
            return None
        value = known
    return None


def flatten_settings(config: Mapping[str, object]) -> dict[str, str]:
    """Flatten a printed configuration to its numbers, switches, words and lists by dotted key."""
    leaves: dict[str, str] = {}
    levels: list[tuple[str, Mapping[str, object]]] = [("", config)]
    while levels:
        prefix, level = levels.pop()
        for name, value in level.items():
            if isinstance(value, dict) and prefix.count(".") < MAX_DEPTH:
                levels.append((f"{prefix}{name}.", value))
            elif isinstance(value, str | int | float | list | None):
                leaves[f"{prefix}{name}"] = str(value)
    return leaves


def select_known_settings(leaves: Mapping[str, str]) -> dict[str, str]:
    """Select the settings that findings name, without W&B's `value` level."""
    cleaned = ((_drop_value_level(key), value) for key, value in leaves.items())
    known = ((key, clean_setting(key, value)) for key, value in cleaned)
    return {key: value for key, value in known if value is not None}


def _drop_value_level(key: str) -> str:
    """Drop the level `value` that W&B puts below each first key."""
    first, _, rest = key.partition(".value.")
    return f"{first}.{rest}" if rest and "." not in first else key


def _read_config_file(folder: Path, name: str) -> str | None:
    """Read a configuration file; None if it is absent, a link out of its place, too large or not readable."""
    path = folder / name
    try:
        is_own = path.is_file() and path.resolve() == folder.resolve() / name
        if not is_own or path.stat().st_size > MAX_CONFIG_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def describe_dependencies(path: Path) -> tuple[str, ...] | None:
    """Describe the configuration files next to a log, whose settings are read with it."""
    known = []
    for name in CONFIG_FILES:
        text = _read_config_file(path.parent, name)
        if text is not None:
            known.append(f"{name} {sorted(select_known_settings(parse_yaml_settings(text)).items())}")
    return tuple(known)


def make_settings_table(path: str | os.PathLike[str], printed: Mapping[str, str]) -> Columns:
    """Make the table `log_settings`: printed settings, which are resolved, before those of files next to the log."""
    path = Path(path)
    rows = {key: (value, path.name) for key, value in select_known_settings(printed).items()}
    for name in CONFIG_FILES:
        text = _read_config_file(path.parent, name)
        for key, value in select_known_settings(parse_yaml_settings(text or "")).items():
            rows.setdefault(key, (value, name))
    columns = {
        "key": texts(list(rows)),
        "value": texts([value for value, _ in rows.values()]),
        "origin": texts([origin for _, origin in rows.values()]),
    }
    return TABLES["log_settings"].cast(columns, len(rows))
