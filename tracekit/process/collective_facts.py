"""What the recorded arguments of chosen elements say of the collectives that they belong to (M12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.keys import place_of
from tracekit.model.trace import Trace
from tracekit.process.collective_names import (
    ITEM_BYTES,
    MAX_BYTES,
    dtype_of,
    group_key,
    is_bookkeeping,
    members,
    message,
    op_of,
    recorded_groups,
    split_elements,
)

Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

ARGS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "In split size",
    "Process Group Name",
    "Process Group Ranks",
    "Seq",
    "Input Dims",
    "Input type",
)
"""The recorded arguments that tell of collectives."""

_SEPARATOR = "\x1f"


def described(trace: Trace, comms: Ints, ranges: Ints, op: npt.NDArray[np.object_]) -> pd.DataFrame:
    """group, group_size, op, dtype, seq and size_bytes of each collective.

    `comms` and `ranges` are the elements (ids, -1 for none) whose arguments tell of it: the metadata of
    the collective, and the range with the shape of its input; `op` is what names say.
    """
    op_names = text(trace, "Collective name", comms)
    op = first_known(
        by_value(op_names, lambda name: None if is_bookkeeping(name) else op_of(name)), op
    )
    group, size = _groups(trace, comms)
    type_ = by_value(text(trace, "dtype", comms), dtype_of)
    pair = _joined(text(trace, "Input Dims", ranges), text(trace, "Input type", ranges))
    tensors = by_value(pair, lambda text: message(*_parted(text)))
    seen = np.array([tensor is not None for tensor in tensors], np.bool_)
    shape_bytes = np.array([tensor[0] if tensor else 0 for tensor in tensors], np.int64)
    shape_type = by_value(pair, lambda text: (message(*_parted(text)) or (0, None))[1])
    gathers = op == "all_gather"
    # The range of an all_gather tells of what one rank puts in.
    copies = np.where(gathers, size.to_numpy(np.int64, na_value=0), 1)
    seen &= (copies > 0) & (shape_bytes <= MAX_BYTES // np.maximum(copies, 1))
    bytes_ = _metadata_bytes(trace, comms, op, type_)
    by_shape = pd.arrays.IntegerArray(np.where(seen, shape_bytes * copies, 0), ~seen)
    return pd.DataFrame(
        {
            "group": group,
            "group_size": size.array,
            "op": op,
            "dtype": first_known(type_, shape_type),
            "seq": whole(trace, "Seq", comms).array,
            "size_bytes": bytes_.where(bytes_.notna(), pd.Series(by_shape)).array,
        }
    )


def _metadata_bytes(trace: Trace, comms: Ints, op: Any, type_: Any) -> pd.Series[Any]:
    """Elements times the size of one: of the output for all_gather, else of the input; NA where unknown."""
    in_count, out_count = (
        whole(trace, "In msg nelems", comms),
        whole(trace, "Out msg nelems", comms),
    )
    splits = by_value(text(trace, "In split size", comms), split_elements)
    split = np.array([s or 0 for s in splits], np.int64)
    # Split sizes count rows of the first dimension: never more than the elements, if those are known.
    whole_size = (in_count >= split).fillna(value=False) | (split == 0)
    exchanged = in_count.where(whole_size, pd.Series(split, dtype="Int64"))
    count = in_count.where(pd.Series(op != "all_gather"), out_count)
    count = count.where(pd.Series(op != "all_to_all"), exchanged)
    either = pd.Series(np.isin(op, ("gather", "scatter", "recv", "other")))
    larger = in_count.where(
        out_count.isna() | (in_count >= out_count).fillna(value=False), out_count
    )
    count = count.where(~either, larger)
    item = pd.Series([ITEM_BYTES.get(t, 0) for t in type_.tolist()], dtype="Int64")
    item = item.where(item > 0)
    return (count * item).where((count <= MAX_BYTES // item).fillna(value=False))


def _groups(trace: Trace, comms: Ints) -> tuple[npt.NDArray[np.object_], pd.Series[Any]]:
    """(key, number of ranks) of the group of each collective; the only group there is where none is told."""
    listed = recorded_groups(trace.meta)
    only = next(iter(listed)) if len(listed) == 1 else ""

    def parts(pair: str) -> tuple[str, tuple[str, ...]]:
        name, ranks = _parted(pair)
        return name, members(ranks) or listed.get(name, ())

    names = text(trace, "Process Group Name", comms)
    pair = _joined(
        first_known(names, np.full(len(comms), only, object)),
        text(trace, "Process Group Ranks", comms),
    )
    key = by_value(pair, lambda text: group_key(*parts(text)))

    def count(text: str) -> int | None:
        ranks = parts(text)[1]
        return None if not ranks or "..." in ranks else len(ranks)

    size = whole(trace, "Group size", comms)
    size = size.where((size > 0).fillna(value=False))
    group_sizes = pd.Series(pd.array(by_value(pair, count).tolist(), dtype="Int64"))
    return key, size.where(size.notna(), group_sizes)


def has(trace: Trace, key: str, ids: Ints) -> npt.NDArray[np.bool_]:
    """Whether each element (-1: none) has the argument."""
    if key not in trace.sparse:
        return np.zeros(len(ids), np.bool_)
    return place_of(trace.sparse[key].rows, ids)[1]


def text(trace: Trace, key: str, ids: Ints) -> Objects:
    """The argument of each element (-1: none) as text, None where there is none."""
    values = _argument(trace, key, ids)
    out = np.full(len(ids), None, object)
    is_text = values.notna().to_numpy()
    out[is_text] = [str(value) for value in values[is_text]]
    return out


def whole(trace: Trace, key: str, ids: Ints) -> pd.Series[Any]:
    """The argument of each element (-1: none) as a whole number from 0 on, NA where it is no such."""
    if key not in trace.sparse:
        none = np.ones(len(ids), np.bool_)
        return pd.Series(pd.arrays.IntegerArray(np.zeros(len(ids), np.int64), none))
    numbers_ = _argument(trace, key, ids)
    if numbers_.dtype == object:
        # A file that quotes numbers quotes few different ones.
        numbers_ = pd.Series(
            pd.array(by_value(numbers_.to_numpy(object), _number).tolist(), dtype="Float64")
        )
    number = numbers_.astype("Float64")
    sound = ((number >= 0) & (number <= MAX_BYTES) & (number == number.round())).fillna(value=False)
    exact = numbers_.where(sound, 0).astype("Int64")
    return exact.where(sound)


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) <= MAX_BYTES else None


def _argument(trace: Trace, key: str, ids: Ints) -> pd.Series[Any]:
    """The argument of each element, by position; NA for -1 and where it is missing."""
    if key not in trace.sparse:
        return pd.Series(np.full(len(ids), None, object), dtype=object)
    return trace.arg(key).reindex(ids).reset_index(drop=True)


def by_value(values: Objects, function: Callable[[Any], Any]) -> Objects:
    """`function` of every value, called once per distinct one; None stays None."""
    codes, distinct = pd.factorize(values)
    table = np.full(len(distinct) + 1, None, object)
    for place, value in enumerate(distinct):
        table[place] = function(value)
    per_id: Objects = table[codes]
    return per_id


def first_known(*columns: Objects) -> Objects:
    """For each row the first of these values that is not None."""
    out = columns[0].copy()
    for column in columns[1:]:
        missing = pd.isna(out)
        out[missing] = column[missing]
    return out


def _joined(first: Objects, second: Objects) -> Objects:
    """Two texts as one, to be looked up together; a missing one is empty. `_parted` undoes it."""
    left, right = first.copy(), second.copy()
    for part in (left, right):
        part[pd.isna(part)] = ""
    joined: Objects = left + np.full(len(left), _SEPARATOR, object) + right
    return joined


def _parted(joined: str) -> tuple[str, str]:
    first, _, second = joined.partition(_SEPARATOR)
    return first, second
