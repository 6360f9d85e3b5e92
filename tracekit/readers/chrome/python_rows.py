"""Rows of the scanner in pure Python: events from json or the strict layer, appended to columns."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tracekit.readers.chrome import values
from tracekit.readers.chrome.python_columns import KeyedColumns, LabelColumn, TimeColumn, convert_parsed_value
from tracekit.readers.chrome.scan import ScanOptions
from tracekit.readers.chrome.strict import EventElement


class PythonRows:
    """Columns of the rows read so far."""

    def __init__(self, keep: ScanOptions) -> None:
        self.keep_args = None if keep.args is None else frozenset(keep.args)
        self.skip_args = frozenset(keep.skip_args)
        self.skip_cats = frozenset(keep.skip_cats)
        self.keep_names, self.keep_fields = keep.keep_names, keep.fields
        self.labels = {n: LabelColumn(values.format_label, str) for n in ("ph", "cat", "name")}
        self.labels |= {n: LabelColumn(values.convert_to_id, int, str) for n in ("pid", "tid")}
        self.times = {"ts": TimeColumn(), "dur": TimeColumn()}
        self.args, self.fields = KeyedColumns(), KeyedColumns()
        self.skipped: dict[str, int] = {}
        self.count = 0

    def add_element(self, element: EventElement) -> None:
        """Append an event that the strict layer read."""
        raw = element.members
        name_text = raw.get(b"name", b"")
        name = None
        if self.keep_names and name_text.startswith(b'"'):
            name = values.decode_value(name_text)
        if self._skips(values.decode_label(raw.get(b"cat", b"null")), name):
            return
        for key, labels in self.labels.items():
            labels.add(values.decode_value(raw.pop(key.encode(), b"null")))
        for key, times in self.times.items():
            times.add(values.parse_raw_time(raw.pop(key.encode(), b"null")))
        for key, value in _decode_member_keys(element.args).items():
            if self._wants(key):
                self.args.column(key).add(self.count, values.decode_value(value))
        for key, value in _decode_member_keys(raw).items() if self.keep_fields else ():
            self.fields.column(key).add(self.count, values.decode_value(value))
        self.count += 1

    def add_parsed(self, events: list[dict[str, Any]]) -> None:
        """Append events that the json module parsed, column by column because that is fastest."""
        if self.skip_cats:
            events = self._without_skipped(events)
        for name, column in (self.labels | self.times).items():
            column.extend([event.pop(name, None) for event in events])
        args_shapes: _ObjectsByKeys = defaultdict(_SameKeyObjects)
        fields_shapes: _ObjectsByKeys = defaultdict(_SameKeyObjects)
        for row, event in enumerate(events, self.count):
            args = event.get("args")
            if type(args) is dict:
                del event["args"]
                args_shapes[tuple(args)].add(row, args)
            if event and self.keep_fields:
                fields_shapes[tuple(event)].add(row, event)
        for key, rows, parsed in _transpose_objects(args_shapes):
            if self._wants(key):
                self.args.column(key).extend(rows, parsed)
        for key, rows, parsed in _transpose_objects(fields_shapes):
            self.fields.column(key).extend(rows, parsed)
        self.count += len(events)

    def _without_skipped(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Filter out the events whose category is skipped, and count them."""
        cats, skips = self.skip_cats, self._skips
        return [
            event
            for event in events
            # The first line decides nearly all rows without a call.
            if (type(cat := event.get("cat")) is str and cat not in cats)
            or not skips(_convert_parsed_label(cat), event.get("name"))
        ]

    def finish(self) -> dict[str, object]:
        """Return the columns under their names in `TraceScan`."""
        columns: dict[str, object] = {n: labels.finish() for n, labels in self.labels.items()}
        for name, times in self.times.items():
            columns[f"{name}_ns"], columns[f"has_{name}"] = times.finish()
        columns |= {"args": self.args.finish(), "fields": self.fields.finish()}
        columns["skipped"] = self.skipped
        return columns

    def _skips(self, cat: str | None, name: Any) -> bool:
        """Check whether a row of this category and name is skipped; count it if so."""
        if cat is None or cat not in self.skip_cats:
            return False
        if self.keep_names and type(name) is str and name.startswith(self.keep_names):
            return False
        self.skipped[cat] = self.skipped.get(cat, 0) + 1
        return True

    def _wants(self, key: str) -> bool:
        """Check whether the argument of this key is kept."""
        return (self.keep_args is None or key in self.keep_args) and key not in self.skip_args


class _SameKeyObjects:
    """Objects with the same keys in the same order, and their rows."""

    __slots__ = ("objects", "rows")

    def __init__(self) -> None:
        self.rows = array("i")
        self.objects: list[dict[str, Any]] = []

    def add(self, row: int, members: dict[str, Any]) -> None:
        """Append an object."""
        self.rows.append(row)
        self.objects.append(members)


_ObjectsByKeys = defaultdict[tuple[str, ...], _SameKeyObjects]


def _transpose_objects(shapes: _ObjectsByKeys) -> Iterator[tuple[str, array[int], tuple[Any, ...]]]:
    """Yield (key, rows, value of each row) for every key of every shape."""
    for keys, shape in shapes.items():
        values_by_key = zip(*map(dict.values, shape.objects), strict=True)
        for key, parsed in zip(keys, values_by_key, strict=True):
            yield key, shape.rows, parsed


def _convert_parsed_label(parsed: Any) -> str | None:
    """Convert a parsed category to its label; None if absent."""
    return parsed if type(parsed) is str else values.format_label(convert_parsed_value(parsed))


def _decode_member_keys(members: dict[bytes, bytes]) -> dict[str, bytes]:
    """Decode the keys of members; of equal keys, the last one wins."""
    return {values.decode_key(raw_key): value for raw_key, value in members.items()}
