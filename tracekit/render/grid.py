"""Sheet as text cells: scaled by column, rounded and printable; the basis of text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Heading, Sheet
from tracekit.model.text.wrapping import is_prose, shorten_name
from tracekit.model.units import UNKNOWN, Scale, choose_scale, format_cell, refine_scale
from tracekit.render.escape import make_printable
from tracekit.render.phrases import SENTENCE
from tracekit.render.ranks import merge_similar_ranks

COMPARED_COLUMNS = (("difference", "low", "high"), ("base", "opt"))
"""Columns that readers compare with one another: a change and its interval, and the values before and after."""

NAME_LIMIT = 160
"""Longest name in a table, in characters; machine-readable outputs keep it whole."""


@dataclass(frozen=True, slots=True)
class GridColumn:
    """One displayed column: its heading with the unit, and whether it is numeric."""

    title: str
    unit: str
    numeric: bool
    doc: str


@dataclass(frozen=True, slots=True)
class TextGrid:
    """A table of text; `more` counts rows left out of it, `omitted` rows that no output has.

    `intervals` are the places of columns with the two ends of an interval, which make sense only together.
    """

    title: str
    columns: tuple[GridColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int
    omitted: int
    caption: str
    intervals: tuple[tuple[int, int], ...] = ()


def make_grid(sheet: Sheet, limit: int | None = None, name_limit: int = NAME_LIMIT) -> TextGrid:
    """Convert the first `limit` rows to text, merging similar ranks.

    The scale of a column depends on all rows, shown or not.
    """
    sheet = merge_similar_ranks(sheet, limit)
    scales = [_choose_column_scale(sheet, place) for place in range(len(sheet.headings))]
    rows: list[tuple[str, ...]] = []
    for row in sheet.rows if limit is None else sheet.rows[: max(limit, 0)]:
        cells = zip(row, scales, strict=True)
        rows.append(tuple(format_grid_cell(value, scale, name_limit) for value, scale in cells))
    return TextGrid(
        title=make_printable(sheet.title or sheet.name, 300),
        columns=tuple(_make_grid_column(heading, scale) for heading, scale in zip(sheet.headings, scales, strict=True)),
        rows=tuple(rows),
        more=len(sheet.rows) - len(rows),
        omitted=sheet.omitted,
        caption=make_printable(sheet.caption, 2_000),
        intervals=tuple(_pair_interval_ends(sheet.headings)),
    )


def _choose_column_scale(sheet: Sheet, place: int) -> Scale:
    """Choose the scale of a column by its values and those of the columns that readers compare with it.

    A column without any value but 0 gets the unit of the other columns, not the smallest one: `0 GiB`, not `0 B`.
    """
    heading = sheet.headings[place]
    alike = [other for other, column in enumerate(sheet.headings) if column.unit == heading.unit]
    group = next((names for names in COMPARED_COLUMNS if heading.name in names), (heading.name,))
    places = [other for other in alike if sheet.headings[other].name in group]
    scale = choose_scale(_list_values(sheet, places), heading.unit)
    if any(_list_values(sheet, places)):
        return scale
    of_others = choose_scale(_list_values(sheet, alike), heading.unit)
    return Scale(of_others.label, of_others.factor, scale.digits, scale.unit)


def _list_values(sheet: Sheet, places: Sequence[int]) -> Iterator[Cell]:
    """List the values of some columns."""
    return (row[place] for row in sheet.rows for place in places)


def _pair_interval_ends(headings: Sequence[Heading]) -> Iterator[tuple[int, int]]:
    """Pair the places of the columns `low` and `high`, or `x_low` and `x_high`."""
    places = {heading.name: place for place, heading in enumerate(headings)}
    for name, place in places.items():
        if name.endswith("low") and (high := places.get(f"{name.removesuffix('low')}high")) is not None:
            yield place, high


def format_grid_cell(value: Cell, scale: Scale, limit: int = NAME_LIMIT) -> str:
    """Format a value in its column's scale; text is made printable, and an empty name is unknown.

    Only names are shortened to `limit`: sentences may be as long as those of findings. A small percentage keeps two
    significant digits.
    """
    if isinstance(value, str):
        name = shorten_name(value) if len(value) > limit else value
        return make_printable(name, max(limit, SENTENCE) if is_prose(value) else limit) or UNKNOWN
    return format_cell(value, refine_scale(value, scale) if scale.unit == "ratio" else scale)


def count_name_columns(table: TextGrid) -> int:
    """Count the columns that name the row: those before the first number."""
    for index, column in enumerate(table.columns):
        if column.numeric:
            return index
    return len(table.columns)


def choose_answer_columns(table: TextGrid) -> frozenset[int]:
    """Choose the columns of a narrow page: at most two names, the first quantity and the first ratio."""
    keep = set(range(min(count_name_columns(table), 2)))
    ids, ratios, quantities = [], [], []
    for index, column in enumerate(table.columns):
        if column.unit == "ratio":
            ratios.append(index)
        elif column.numeric and column.unit == "id":
            ids.append(index)
        elif column.numeric:
            quantities.append(index)
    # A rank or device (`id`) also names the row; it is the answer only if there is no other quantity.
    keep.update((quantities or ids)[:1], ratios[:1])
    return frozenset(keep) or frozenset({0})


def _make_grid_column(heading: Heading, scale: Scale) -> GridColumn:
    """Make the column of a heading; per cent and × go in the cells, other unit labels in the title."""
    title = make_printable(heading.title or heading.name, 60)
    if scale.label not in ("", "%", "×"):
        title = f"{title} {scale.label}"
    return GridColumn(title, heading.unit, heading.unit != "text", make_printable(heading.doc, 500))
