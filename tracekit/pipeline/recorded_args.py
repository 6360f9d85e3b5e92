"""Arguments recorded with rows, as rows of the table `args`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracekit.model.tables.arrays import Array, Coded, Nullable
from tracekit.model.trace import SparseColumn


def list_recorded_args(by_key: Mapping[str, SparseColumn]) -> dict[str, Array]:
    """List the columns of `args`: one row per value of each key. Needs at least one key."""
    keys = sorted(by_key)
    columns = [by_key[key] for key in keys]
    counts = [len(column.rows) for column in columns]
    numbers = np.zeros(sum(counts), np.float64)
    is_text = np.ones(sum(counts), np.bool_)
    codes = np.zeros(sum(counts), np.int64)
    texts: list[str] = []
    end = 0
    for column, count in zip(columns, counts, strict=True):
        start, end = end, end + count
        if column.categories is None:
            distinct, code = np.unique(column.values, return_inverse=True)
            numbers[start:end] = column.values
            is_text[start:end] = False
            of_column = list(map(str, distinct.tolist()))
        else:
            code, of_column = column.values, [_format_arg_value(value) for value in column.categories]
        codes[start:end] = code + len(texts)
        texts += of_column
    place, unique = pd.factorize(np.array([*texts, ""], object))
    return {
        "id": np.concatenate([column.rows for column in columns]).astype(np.int32),
        "key": Coded(np.repeat(np.arange(len(keys), dtype=np.int32), counts), tuple(keys)),
        "value": Coded(place[codes].astype(np.int32), tuple(unique.tolist())),
        "number": Nullable(numbers, is_text),
    }


def _format_arg_value(value: object) -> str:
    """Format a value as JSON; texts stay as they are.

    >>> _format_arg_value(True), _format_arg_value(None), _format_arg_value("a")
    ('true', 'null', 'a')
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)
