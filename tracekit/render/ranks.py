"""A sheet of many ranks in few rows: the worst, the best and those that differ, and the others by whom they are like.

What stands together is told by `tracekit.model.stats.groups`. JSON, CSV and Parquet hold a row for each rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tracekit.model.report import Cell, Heading, Ranked, Sheet
from tracekit.model.stats.groups import alike, middle
from tracekit.model.units import numbers, show

MOST_ROWS = 24
"""Most rows of ranks that are compared with one another."""

PIECES = 4
"""Most pieces by which a row names its ranks: `0–7, 9, 16–23, 31 …`."""

_LARGEST = 10**18
"""Nothing that was measured is larger; what is so large cannot be told apart as a float."""

_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,9})(?![0-9])")

Row = tuple[Cell, ...]


def few_rows(sheet: Sheet, limit: int | None) -> Sheet:
    """The sheet as it is where no more than `limit` ranks are compared with one another; else in so many rows.

    A row of several ranks has the lower median of every number; the range of the value by which they are
    compared is in two columns of its own. Ranks of which that is unknown stand together, last.
    """
    names = [heading.name for heading in sheet.headings]
    ranked = sheet.ranked
    if ranked is None or limit is None or limit < 2 or len(sheet.rows) <= limit:
        return sheet
    if ranked.value not in names or ranked.member not in names:
        return sheet
    value, member = names.index(ranked.value), names.index(ranked.member)
    apart = [names.index(name) for name in ranked.apart if name in names]
    kind = [at for at, name in enumerate(names) if name in (ranked.member, ranked.kind)]
    compared: dict[Row, list[Row]] = {}
    for row in sheet.rows:
        # A row that is of no single rank, as a median of all, is of another kind.
        kinds = [_NUMBER.sub("", str(row[at])) for at in kind if isinstance(row[at], str)]
        compared.setdefault((*(row[at] for at in apart), *kinds), []).append(row)
    if max(len({row[member] for row in rows}) for rows in compared.values()) <= limit:
        return sheet
    most = min(max(limit // len(compared), 2), MOST_ROWS)
    groups = [
        group
        for rows in list(compared.values())[: limit // most]
        for group in _groups(rows, value, ranked, most)
    ]
    columns = [
        [_together([row[at] for row in group], heading, member=at == member) for group in groups]
        for at, heading in enumerate(sheet.headings)
    ]
    headings = [
        replace(heading, unit="text") if at == member or _any_text(columns[at]) else heading
        for at, heading in enumerate(sheet.headings)
    ]
    title, unit = sheet.headings[value].title or ranked.value, sheet.headings[value].unit
    known = [_numbers([row[value] for row in group]) for group in groups]
    columns[value + 1 : value + 1] = [
        [min(of, default=None) for of in known],
        [max(of, default=None) for of in known],
    ]
    headings[value + 1 : value + 1] = [
        Heading(f"{ranked.value}_{name}", name, unit, f"Of the {title} of the ranks of the row.")
        for name in ("lowest", "highest")
    ]
    shown = sum(map(len, groups))
    told = (
        f"{show(shown, 'count')} rows in {len(groups)}: those whose {title} is alike stand together, with "
        f"medians; lowest and highest are of {title}. JSON and CSV reports have every row"
    )
    if shown < len(sheet.rows):
        told = f"{show(len(sheet.rows) - shown, 'count')} further rows are not shown. {told}"
    return replace(
        sheet,
        headings=tuple(headings),
        rows=tuple(zip(*columns, strict=True)),
        ranked=None,
        caption=". ".join(text for text in (sheet.caption.removesuffix("."), told) if text) + ".",
    )


def _groups(rows: Sequence[Row], value: int, ranked: Ranked, most: int) -> list[list[Row]]:
    """The rows in at most `most` groups of those alike, the worst first; those of no known value last."""
    known = [row for row in rows if _number(row[value]) is not None]
    unknown = [row for row in rows if _number(row[value]) is None]
    sign = 1 if ranked.worst == "high" else -1
    values = [sign * (_number(row[value]) or 0) for row in known]
    found = alike(values, max(most - bool(unknown), 1))
    return [[known[at] for at in group] for group in found] + ([unknown] if unknown else [])


def _together(cells: Sequence[Cell], heading: Heading, *, member: bool) -> Cell:
    """What one row says of several: who they are, what they have in common, the median of their numbers."""
    if member:
        return _who(cells)
    distinct = list(dict.fromkeys(cells))
    if len(distinct) == 1:
        return distinct[0]
    known = _numbers(cells)
    whole = {number for number in known if isinstance(number, int)}
    if heading.unit == "id" and len(whole) == len(distinct):
        return numbers(whole, PIECES)
    if heading.unit in ("text", "id"):
        texts = [cell for cell in distinct if isinstance(cell, str)]
        one = _in_one(texts) if len(texts) == len(distinct) else ""
        return one or f"{show(len(distinct), 'count')} different"
    return known[middle(range(len(known)), known)] if known else None


def _who(cells: Sequence[Cell]) -> str:
    """The ranks of a row: `5`, or `8–503, 512–999 (984 rows)`; of processes what their names have in common."""
    if len(cells) == 1:
        return "" if cells[0] is None else str(cells[0])
    ranks = {cell for cell in cells if isinstance(cell, int)}
    named = list(dict.fromkeys(str(cell) for cell in cells if isinstance(cell, str)))
    known = numbers(ranks, PIECES) if ranks else _in_one(named) or ", ".join(named[:2])
    more = " …" if not ranks and len(named) > 2 and known.endswith(named[1]) else ""
    unknown = [] if None not in cells else ["unknown"]
    return f"{', '.join([*([known] if known else []), *unknown])}{more} ({show(len(cells), 'count')} rows)"


def _in_one(names: Sequence[str]) -> str:
    """Names that differ in one number as one, `rank 0–7 actor`; nothing where they differ in more."""
    parts = [_NUMBER.split(name) for name in names]
    columns = list(zip(*parts, strict=False))
    differ = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if not parts or len({len(part) for part in parts}) > 1 or len(differ) != 1 or not differ[0] % 2:
        return ""
    found = numbers({int(text) for text in columns[differ[0]]}, PIECES)
    return "".join(found if at == differ[0] else column[0] for at, column in enumerate(columns))


def _number(cell: Cell) -> int | float | None:
    """The cell as a number that can be compared with others; None of what is none."""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    # A whole number may be too large for a float, and is compared as it is.
    return cell if abs(cell) < _LARGEST else None


def _numbers(cells: Sequence[Cell]) -> list[int | float]:
    """Those of the cells that are numbers and can be compared with others."""
    if set(map(type, cells)) <= {int, float}:
        return [cell for cell in cells if abs(cell) < _LARGEST]  # type: ignore[arg-type, misc]
    return [number for cell in cells if (number := _number(cell)) is not None]


def _any_text(cells: Sequence[Cell]) -> bool:
    """Whether a column of numbers got words."""
    return any(isinstance(cell, str) for cell in cells)
