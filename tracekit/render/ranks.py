"""Tables of many ranks in few rows: outliers on their own, similar ranks merged.

`tracekit.model.stats.groups` decides which ranks are similar. JSON, CSV and Parquet have a row per rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from tracekit.model.report import Cell, Heading, Ranked, Sheet
from tracekit.model.stats.groups import find_median_index, group_similar_values
from tracekit.model.units import format_quantity, format_ranges

MAX_RANK_ROWS = 24
"""Most rows of ranks that are compared with one another."""

MAX_RANK_RANGES = 4
"""Most ranges in the rank list of a row: `0–7, 9, 16–23, 31 …`."""

_LARGEST = 10**18
"""Largest value compared; no measurement is larger, and floats of this size lose precision."""

_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,9})(?![0-9])")

T = TypeVar("T")
Row = tuple[Cell, ...]


def merge_similar_ranks(sheet: Sheet, limit: int | None) -> Sheet:
    """Merge similar ranks into `limit` rows; unchanged if at most `limit` ranks are compared.

    A merged row has the lower median of every number; two extra columns hold the range of the compared value.
    Ranks without that value are merged last.
    """
    names = [heading.name for heading in sheet.headings]
    ranked = sheet.ranked
    if ranked is None or limit is None or limit < 2 or len(sheet.rows) <= limit:
        return sheet
    if ranked.value not in names or ranked.member not in names:
        return sheet
    value, member = names.index(ranked.value), names.index(ranked.member)
    kinds = _split_comparable_rows(sheet.rows, names, ranked)
    if max(len(set(_get_rank_column(rows, member))) for rows in kinds) <= limit:
        return sheet
    row_count = min(max(limit // len(kinds), 2), MAX_RANK_ROWS)
    groups: list[list[Row]] = []
    for rows in kinds[: limit // row_count]:
        groups += _group_similar_ranks(rows, value, ranked, row_count)
    return _make_merged_sheet(sheet, groups, value, member, ranked)


def _make_merged_sheet(sheet: Sheet, groups: Sequence[Sequence[Row]], value: int, member: int, ranked: Ranked) -> Sheet:
    """Make a sheet with one row per group; `value` is the compared column, `member` the one that names ranks."""
    columns: list[list[Cell]] = []
    headings: list[Heading] = []
    for index, heading in enumerate(sheet.headings):
        is_member = index == member
        column = [_merge_cells(_get_rank_column(group, index), heading, member=is_member) for group in groups]
        is_text = is_member or bool(_select_cells_of_type(column, str))
        columns.append(column)
        headings.append(replace(heading, unit="text") if is_text else heading)
    compared = sheet.headings[value]
    title = compared.title or ranked.value
    sizes = [_select_comparable_numbers(_get_rank_column(group, value)) for group in groups]
    doc = f"Of the {title} of the ranks of the row."
    for index, (name, extreme) in enumerate((("lowest", min), ("highest", max)), value + 1):
        columns.insert(index, [extreme(values, default=None) for values in sizes])
        headings.insert(index, Heading(f"{ranked.value}_{name}", name, compared.unit, doc))
    rows, caption = tuple(zip(*columns, strict=True)), _make_merged_caption(sheet, groups, title)
    return replace(sheet, headings=tuple(headings), rows=rows, ranked=None, caption=caption)


def _get_rank_column(rows: Sequence[Row], column: int) -> list[Cell]:
    """Get a column of the rows."""
    return [row[column] for row in rows]


def _split_comparable_rows(rows: Sequence[Row], names: Sequence[str], ranked: Ranked) -> list[list[Row]]:
    """Split the rows by kind; only rows of one kind are compared."""
    separate = [names.index(name) for name in ranked.apart if name in names]
    naming = [index for index, name in enumerate(names) if name in (ranked.member, ranked.kind)]
    kinds: dict[Row, list[Row]] = {}
    for row in rows:
        # A row that is not a single rank, such as the median of all, is another kind.
        words = [_NUMBER.sub("", str(row[i])) for i in naming if isinstance(row[i], str)]
        kinds.setdefault((*(row[index] for index in separate), *words), []).append(row)
    return list(kinds.values())


def _make_merged_caption(sheet: Sheet, groups: Sequence[Sequence[Row]], title: str) -> str:
    """Make the caption: the sheet's own, and how rows were merged."""
    count = sum(len(group) for group in groups)
    note = (
        f"{format_quantity(count, 'count')} rows in {len(groups)}: those with similar {title} are grouped, with "
        f"medians; lowest and highest are of {title}. JSON and CSV reports have every row"
    )
    if count < len(sheet.rows):
        note = f"{format_quantity(len(sheet.rows) - count, 'count')} further rows are not shown. {note}"
    return f"{'. '.join(part for part in (sheet.caption.removesuffix('.'), note) if part)}."


def _group_similar_ranks(rows: Sequence[Row], value: int, ranked: Ranked, limit: int) -> list[list[Row]]:
    """Group similar rows, the worst first, in at most `limit` groups; rows without a value come last."""
    sign = {"high": 1, "low": -1}[ranked.worst]
    measured: list[Row] = []
    unknown: list[Row] = []
    sizes: list[int | float] = []
    for row in rows:
        number = _to_comparable_number(row[value])
        if number is None:
            unknown.append(row)
        else:
            measured.append(row)
            sizes.append(sign * number)
    groups = []
    for indices in group_similar_values(sizes, max(limit - bool(unknown), 1)):
        groups.append([measured[index] for index in indices])
    return [*groups, unknown] if unknown else groups


def _merge_cells(cells: Sequence[Cell], heading: Heading, *, member: bool) -> Cell:
    """Merge cells of several rows: the ranks, the common text, or the median number."""
    if member:
        return _merge_rank_names(cells)
    distinct = list(dict.fromkeys(cells))
    if len(distinct) == 1:
        return distinct[0]
    values = _select_comparable_numbers(cells)
    integers = set(_select_cells_of_type(values, int))
    if heading.unit == "id" and len(integers) == len(distinct):
        return format_ranges(integers, MAX_RANK_RANGES)
    if heading.unit in ("text", "id"):
        texts = _select_cells_of_type(distinct, str)
        name = _merge_numbered_names(texts) if len(texts) == len(distinct) else ""
        return name or f"{format_quantity(len(distinct), 'count')} different"
    return values[find_median_index(range(len(values)), values)] if values else None


def _merge_rank_names(cells: Sequence[Cell]) -> str:
    """Merge the ranks of a row: `5`, or `8–503, 512–999 (984 rows)`; for processes the common part of names."""
    if len(cells) == 1:
        return "" if cells[0] is None else str(cells[0])
    ranks = set(_select_cells_of_type(cells, int))
    names = list(dict.fromkeys(_select_cells_of_type(cells, str)))
    who = format_ranges(ranks, MAX_RANK_RANGES) if ranks else _merge_numbered_names(names)
    more = ""
    if not who:
        who = ", ".join(names[:2])
        more = " …" * (len(names) > 2)
    if None in cells:
        who = ", ".join(part for part in (who, "unknown") if part)
    return f"{who}{more} ({format_quantity(len(cells), 'count')} rows)"


def _select_cells_of_type(cells: Iterable[Cell], kind: type[T]) -> list[T]:
    """Select the cells of this type."""
    return [cell for cell in cells if isinstance(cell, kind)]


def _merge_numbered_names(names: Sequence[str]) -> str:
    """Merge names that differ in one number, `rank 0–7 actor`; empty if they differ in more."""
    pieces = [_NUMBER.split(name) for name in names]
    if len({len(piece) for piece in pieces}) != 1:
        return ""
    columns = list(zip(*pieces, strict=True))
    different = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    if len(different) != 1 or not different[0] % 2:
        return ""
    words = pieces[0]
    words[different[0]] = format_ranges({int(number) for number in columns[different[0]]}, MAX_RANK_RANGES)
    return "".join(words)


def _to_comparable_number(cell: Cell) -> int | float | None:
    """Get the cell as a comparable number; None if it is not one."""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    # Integers too large for a float are compared as they are.
    return cell if abs(cell) < _LARGEST else None


def _select_comparable_numbers(cells: Sequence[Cell]) -> list[int | float]:
    """Select the cells that are comparable numbers."""
    if {type(cell) for cell in cells} <= {int, float}:
        return [cell for cell in cells if abs(cell) < _LARGEST]  # type: ignore[arg-type, misc]
    return [number for number in map(_to_comparable_number, cells) if number is not None]
