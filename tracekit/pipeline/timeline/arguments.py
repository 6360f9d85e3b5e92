"""Recorded arguments as JSON that any program parses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.frame import Frame
from tracekit.model.tables.keys import QUEUE
from tracekit.model.trace import SparseColumn
from tracekit.readers.chrome.scan import Json

Ints = npt.NDArray[np.int64]

TRACE_ID_RANGE = 2**32
"""Size of the id range of one trace; the exact integers of JavaScript hold 2**21 such ranges."""
_IDS = ("correlation", "External id", "external id")
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote_json(value: object) -> str:
    """Quote a text as JSON; lone surrogates, which many parsers refuse, become U+FFFD."""
    return json.dumps(_SURROGATE.sub("\ufffd", str(value)), ensure_ascii=False)


class RecordedArguments:
    """The recorded arguments of events as JSON; ids are increased by `shift`."""

    def __init__(self, sparse: Mapping[str, SparseColumn], shift: int) -> None:
        self._shift = shift
        self._columns: dict[str, SparseColumn] = {}
        self._texts: dict[str, npt.NDArray[np.object_]] = {}
        for key, column in sparse.items():
            if len(column.rows):
                self._columns[key] = column
                if column.categories is not None:
                    self._texts[key] = _format_categories(key, column.categories)

    def format_rows(self, ids: Ints, queued: Frame | None) -> list[str]:
        """Format `,"args":{…}` for each of these ascending element ids; `queued` supplies device and stream."""
        parts = np.full(len(ids), "", object)
        for key, column in self._columns.items():
            if queued is not None and key in QUEUE:
                continue
            low, high = np.searchsorted(column.rows, [ids[0], ids[-1] + 1])
            places = np.searchsorted(ids, column.rows[low:high])
            is_same = ids[places] == column.rows[low:high]
            if is_same.any():
                parts[places[is_same]] += self._format_values(key, column.values[low:high][is_same])
        if queued is not None:
            for key in QUEUE:
                is_known = ~queued.is_missing(key)
                values = queued.integers(key)[is_known].tolist()
                parts[is_known] += _fill_argument_template(f',"{key}":%d', values)
        return [f',"args":{{{part[1:]}}}' if part else "" for part in parts.tolist()]

    def _format_values(self, key: str, values: Any) -> npt.NDArray[np.object_]:
        """Format `,"key":value` for each value."""
        if key in self._texts:
            texts_of: npt.NDArray[np.object_] = self._texts[key][values]
            return texts_of
        head = f",{quote_json(key)}:".replace("%", "%%")
        if values.dtype.kind == "f":
            texts = [repr(v) if np.isfinite(v) else "null" for v in values.tolist()]
            return _fill_argument_template(head + "%s", texts)
        if key in _IDS:
            is_id = (values > 0) & (values < TRACE_ID_RANGE)
            values = np.where(is_id, values.astype(np.int64) + self._shift, values)
        return _fill_argument_template(head + "%d", values.tolist())


def _fill_argument_template(template: str, values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Fill the template with each value."""
    texts = np.empty(len(values), object)
    texts[:] = list(map(template.__mod__, values))
    return texts


def _format_categories(key: str, categories: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Format `,"key":value` for each distinct value."""
    texts = np.empty(len(categories), object)
    texts[:] = [f",{quote_json(key)}:{_format_json_value(value)}" for value in categories]
    return texts


def _format_json_value(value: Any) -> str:
    """Format a recorded value as JSON; recorded JSON stays as it is if it is valid."""
    if isinstance(value, Json):
        try:
            json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return quote_json(value)
        return str(value).encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else "null"
    return quote_json(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
