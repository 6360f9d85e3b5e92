"""Recorded arguments of collectives: group, op, dtype, sequence number and message size (M12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.tables.keys import look_up_keys, number_keys
from tracekit.model.trace import Trace
from tracekit.process.collectives.names import (
    ITEM_BYTES,
    MAX_BYTES,
    is_collective_bookkeeping,
    make_group_key,
    normalize_dtype,
    parse_collective_op,
    parse_group_ranks,
    parse_message_size,
    parse_recorded_groups,
    sum_split_sizes,
)
from tracekit.process.name_filters import map_coded_values, mark_none

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
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
"""Recorded arguments that describe collectives."""


def describe_collectives(trace: Trace, comms: Ints, ranges: Ints, op: Objects) -> dict[str, Any]:
    """Compute group, group_size, op, dtype, seq and size_bytes of each collective.

    `comms` and `ranges` are the elements (ids, -1 for none) whose arguments describe it: the metadata of the
    collective, and the range with the shape of its input. `op` is the op according to names.
    """
    names = read_text_argument(trace, "Collective name", comms)
    recorded_op = map_coded_values(
        names.codes, names.texts, lambda name: None if is_collective_bookkeeping(name) else parse_collective_op(name)
    )
    op = select_first_known(recorded_op, op)
    group, size = _identify_process_groups(trace, comms)
    types = read_text_argument(trace, "dtype", comms)
    type_ = map_coded_values(types.codes, types.texts, normalize_dtype)
    shape_bytes, shape_type = _measure_messages_by_shape(trace, ranges)
    # The range of an all_gather records the input of one rank.
    copies = np.where(op == "all_gather", np.where(size.missing, 0, size.values), 1)
    fits = (copies > 0) & (shape_bytes.values <= MAX_BYTES // np.maximum(copies, 1))
    size_bytes = _measure_messages_by_metadata(trace, comms, op, type_)
    by_shape = Nullable(shape_bytes.values * np.where(fits, copies, 0), shape_bytes.missing | ~fits)
    return {
        "group": group,
        "group_size": size,
        "op": op,
        "dtype": select_first_known(type_, shape_type),
        "seq": read_count_argument(trace, "Seq", comms),
        "size_bytes": select_nullable(~size_bytes.missing, size_bytes, by_shape),
    }


def _measure_messages_by_shape(trace: Trace, ranges: Ints) -> tuple[Nullable, Objects]:
    """Compute the (bytes, element type) of each range's tensors from their recorded shapes."""
    dims, types = (read_text_argument(trace, "Input Dims", ranges), read_text_argument(trace, "Input type", ranges))
    tensors = map_coded_values(*_number_text_pairs(dims, types), lambda pair: parse_message_size(*pair))
    missing = mark_none(tensors)
    messages = tensors[~missing].tolist()
    size_bytes, type_ = np.zeros(len(tensors), np.int64), np.full(len(tensors), None, object)
    size_bytes[~missing] = [size for size, _ in messages]
    type_[~missing] = [name for _, name in messages]
    return Nullable(size_bytes, missing), type_


def _measure_messages_by_metadata(trace: Trace, comms: Ints, op: Objects, type_: Objects) -> Nullable:
    """Compute elements × element size: of the output for all_gather, else of the input; missing where unknown."""
    in_count = read_count_argument(trace, "In msg nelems", comms)
    out_count = read_count_argument(trace, "Out msg nelems", comms)
    splits = read_text_argument(trace, "In split size", comms)
    split = map_coded_values(splits.codes, splits.texts, sum_split_sizes)
    split[mark_none(split)] = 0
    split_count = Nullable(split.astype(np.int64), np.zeros(len(split), np.bool_))
    # Split sizes count rows of the first dimension, so they never exceed the number of elements.
    is_whole = (~in_count.missing & (in_count.values >= split_count.values)) | (split_count.values == 0)
    is_larger = ~in_count.missing & (in_count.values >= out_count.values)
    larger = select_nullable(out_count.missing | is_larger, in_count, out_count)
    either = np.isin(op, ("gather", "scatter", "recv", "other"))
    count = select_nullable(op == "all_gather", out_count, in_count)
    count = select_nullable(op == "all_to_all", select_nullable(is_whole, in_count, split_count), count)
    count = select_nullable(either, larger, count)
    item = np.fromiter((ITEM_BYTES.get(name, 0) for name in type_.tolist()), np.int64, len(type_))
    missing = count.missing | (item == 0) | (count.values > MAX_BYTES // np.maximum(item, 1))
    return Nullable(np.where(missing, 0, count.values) * item, missing)


def select_nullable(is_first: Bools, first: Nullable, second: Nullable) -> Nullable:
    """Select the first number where `is_first` holds, else the second."""
    return Nullable(np.where(is_first, first.values, second.values), np.where(is_first, first.missing, second.missing))


def _identify_process_groups(trace: Trace, comms: Ints) -> tuple[Objects, Nullable]:
    """Find the (key, number of ranks) of the group of each collective; defaults to the only listed group."""
    listed = parse_recorded_groups(trace.meta)
    only = next(iter(listed)) if len(listed) == 1 else ""

    def parts(pair: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
        """Split a pair of texts into (group name, ranks); ranks default to those that the file lists."""
        name, ranks = pair
        return name, parse_group_ranks(ranks) or listed.get(name, ())

    def count(pair: tuple[str, str]) -> int:
        """Count the ranks of a group; 0 if its list is truncated."""
        ranks = parts(pair)[1]
        return 0 if "..." in ranks else len(ranks)

    names = read_text_argument(trace, "Process Group Name", comms)
    ranks = read_text_argument(trace, "Process Group Ranks", comms)
    place, pairs = _number_text_pairs(names, ranks, only)
    key = map_coded_values(place, pairs, lambda pair: make_group_key(*parts(pair)))
    size = read_count_argument(trace, "Group size", comms)
    listed_size = map_coded_values(place, pairs, count).astype(np.int64)
    return key, select_nullable(~size.missing & (size.values > 0), size, Nullable(listed_size, listed_size == 0))


def mark_rows_with_argument(trace: Trace, key: str, ids: Ints) -> Bools:
    """Mark the elements (-1: none) that have the argument."""
    if key not in trace.sparse:
        return np.zeros(len(ids), np.bool_)
    return look_up_keys(trace.sparse[key].rows, ids)[1]


def read_text_argument(trace: Trace, key: str, ids: Ints) -> Coded:
    """Read the argument of each element (-1: none) as text, missing where there is none."""
    values, categories, rows = _look_up_argument(trace, key, ids)
    codes = np.full(len(ids), -1, np.int64)
    if categories is None:
        if not len(rows):
            return Coded(codes, ())
        numbers, place = np.unique(values, return_inverse=True)
        codes[rows] = place
        return Coded(codes, tuple(str(number) for number in numbers.tolist()))
    occurring, place = number_keys(values.astype(np.int64))
    texts = [categories[code] for code in occurring.tolist()]
    # Missing in JSON is None, or a number that is not one.
    codes[rows] = np.array([-1 if t is None or t != t else code for code, t in enumerate(texts)], np.int64)[place]  # noqa: PLR0124
    return Coded(codes, tuple(str(text) for text in texts))


def read_count_argument(trace: Trace, key: str, ids: Ints) -> Nullable:
    """Read the argument of each element (-1: none) as a whole number >= 0, missing where it is not one."""
    values, categories, rows = _look_up_argument(trace, key, ids)
    if categories is not None:
        # A file that quotes numbers has few distinct ones.
        values = map_coded_values(values.astype(np.int64), categories, _parse_argument_number).astype(np.float64)
    number = values.astype(np.float64)
    sound = (number >= 0) & (number <= MAX_BYTES) & (number == np.round(number))
    whole_number = np.zeros(len(ids), np.int64)
    missing = np.ones(len(ids), np.bool_)
    whole_number[rows[sound]] = values[sound].astype(np.int64)
    missing[rows[sound]] = False
    return Nullable(whole_number, missing)


def _parse_argument_number(value: object) -> float | None:
    """Parse a quoted number; None if it is not a number or too large."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) <= MAX_BYTES else None


def _look_up_argument(trace: Trace, key: str, ids: Ints) -> tuple[npt.NDArray[Any], Sequence[Any] | None, Ints]:
    """Look up an argument: (values of elements that have it, categories or None, their positions in `ids`)."""
    column = trace.sparse.get(key)
    if column is None or not len(column.rows):
        return np.empty(0, np.int64), None, np.empty(0, np.int64)
    place, is_recorded = look_up_keys(column.rows, ids)
    return column.values[place[is_recorded]], column.categories, is_recorded.nonzero()[0]


def select_first_known(*columns: Objects) -> Objects:
    """Select the first value of each row that is not None."""
    out = columns[0].copy()
    for column in columns[1:]:
        missing = mark_none(out)
        out[missing] = column[missing]
    return out


def _number_text_pairs(first: Coded, second: Coded, unnamed: str = "") -> tuple[Ints, list[tuple[str, str]]]:
    """Assign numbers to pairs of texts: (pair number of each row, pairs); a missing text is `unnamed` or ""."""
    width = len(second.texts) + 1
    distinct, place = number_keys((first.codes + 1) * width + second.codes + 1)
    of_first, of_second = (unnamed, *first.texts), ("", *second.texts)
    pairs = [(of_first[code // width], of_second[code % width]) for code in distinct.tolist()]
    return place, pairs
