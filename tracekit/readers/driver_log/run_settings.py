"""Settings of a run: from the configuration that its driver prints, and from the YAML files next to its log.

Hydra writes `.hydra/config.yaml` without resolving references, Weights & Biases `config.yaml` with a `value` per key,
verl prints a resolved dictionary. Only settings that findings name are kept (`model.recording.rl_settings`).

PyYAML parses a file into events, from which this module takes the scalars and lists of scalars. It builds no objects,
follows no tags and expands no aliases: a small file stays small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from tracekit.discover.log_configs import CONFIG_FILES
from tracekit.model.recording.rl_settings import clean_setting
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.frame import texts

MAX_CONFIG_BYTES, MAX_CONFIG_EVENTS, MAX_DEPTH = 2**20, 100_000, 30

_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]{1,200})(?:,([\w.+-]{1,40}))?\}")
MAX_REFERENCES = 10


def parse_yaml_settings(text: str) -> dict[str, str]:
    r"""Parse the scalars and lists of a YAML file by dotted key, with references resolved; those before a damaged place.

    >>> parse_yaml_settings("trainer:\n  nnodes: 2  # two\nrollout:\n  n: ${trainer.nnodes}\nsteps:\n- 2\n- 4\n")
    {'trainer.nnodes': '2', 'rollout.n': '2', 'steps': '[2, 4]'}
    """
    events = _yield_yaml_events(text)
    kind, value = next(events, _CUT)
    leaves = dict(_yield_leaves(events, kind, value, ()))
    resolved = ((key, _resolve_reference(leaf, leaves)) for key, leaf in leaves.items())
    return {key: leaf for key, leaf in resolved if leaf is not None}


_Event = tuple[str, str]
"""Kind of an event (scalar, alias, map, list, end, cut), and the text of a scalar."""

_CUT: _Event = ("cut", "")
"""Stands for an event that a damaged file lacks."""

_ENDS = ("end", "cut")


def _yield_yaml_events(text: str) -> Iterator[_Event]:
    """Yield the events of the first document, up to a damaged place or `MAX_CONFIG_EVENTS`."""
    # The import takes 20 ms, and few logs have a configuration next to them.
    import yaml

    kinds = {
        yaml.ScalarEvent: "scalar",
        yaml.AliasEvent: "alias",
        yaml.MappingStartEvent: "map",
        yaml.SequenceStartEvent: "list",
        yaml.MappingEndEvent: "end",
        yaml.SequenceEndEvent: "end",
    }
    try:
        for event in islice(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), MAX_CONFIG_EVENTS):
            kind = kinds.get(type(event))
            if kind is not None:
                yield kind, event.value if kind == "scalar" else ""
            elif isinstance(event, yaml.DocumentEndEvent):
                return
    except (yaml.YAMLError, ValueError, OverflowError):
        return


def _yield_leaves(events: Iterator[_Event], kind: str, value: str, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the leaves below one node, whose first event is given: (dotted key, text)."""
    if kind == "scalar":
        yield ".".join(path), value
    elif kind == "list":
        items = _take_scalar_items(events)
        if items is not None:
            yield ".".join(path), f"[{', '.join(items)}]"
    elif kind == "map" and len(path) >= MAX_DEPTH:
        _skip_node(events, kind)
    elif kind == "map":
        while (name := next(events, _CUT))[0] not in _ENDS:
            _skip_node(events, name[0])
            inner = next(events, _CUT)
            if name[0] == "scalar":
                yield from _yield_leaves(events, *inner, (*path, name[1]))
            else:
                _skip_node(events, inner[0])


def _take_scalar_items(events: Iterator[_Event]) -> list[str] | None:
    """Take the items of a list; None if one is not a scalar."""
    items: list[str] | None = []
    while (event := next(events, _CUT))[0] not in _ENDS:
        if event[0] != "scalar":
            items = None
        elif items is not None:
            items.append(event[1])
        _skip_node(events, event[0])
    return items if event[0] == "end" else None


def _skip_node(events: Iterator[_Event], kind: str) -> None:
    """Skip the rest of a node whose first event was taken."""
    depth = int(kind in ("map", "list"))
    while depth:
        inner = next(events, None)
        if inner is None:
            return
        depth += (inner[0] in ("map", "list")) - (inner[0] == "end")


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
