"""The tool `tables`: lists the tables of a report, or rows of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from tracekit.agents.bounds import MAX_ANSWER_ROWS, limit_answer_rows, truncate_answer_cell, truncate_answer_text
from tracekit.agents.reports import ColumnNote, Path, Ranks, Stages, Steps, analyze_path, describe_sheet_columns
from tracekit.agents.roots import Roots
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Sheet
from tracekit.model.text.labels import did_you_mean
from tracekit.render.tables import list_report_tables, name_columns_with_units

_REST = "Ask for fewer `columns` or rows."


@dataclass(frozen=True, slots=True)
class TablesArguments:
    """Arguments of the tool `tables`: which table, and which part of it."""

    path: Path
    table: Annotated[str | None, "The table's name. Without it, all tables are listed."] = None
    columns: Annotated[tuple[str, ...], "Only these columns, in this order. Without it, all."] = ()
    where: Annotated[
        Mapping[str, str | int | float | bool | None] | None,
        'Only rows in which each of these columns has exactly this value: {"rank": 1, "stage": "gen"}.',
    ] = None
    limit: Annotated[int, "Rows at most.", range(1, MAX_ANSWER_ROWS + 1)] = 50
    offset: Annotated[int, "Skip this many rows.", range(10_000_000)] = 0
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()


@dataclass(frozen=True, slots=True)
class TableNote:
    """A table of the report."""

    name: str
    title: str
    row_count: Annotated[int, "Number of rows."]
    column_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablesAnswer:
    """All tables, or rows of one. Values are exact and in the units of the columns; null means unknown."""

    path: str
    tables: Annotated[tuple[TableNote, ...], "All tables; of one that was named, that one."]
    caption: Annotated[str, "Notes on the rows."] = ""
    columns: tuple[ColumnNote, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    matching: Annotated[int, "Number of rows that match `where`."] = 0
    next_offset: Annotated[int | None, "Use this offset for the rest; null: no more."] = None
    omitted: Annotated[int, "Rows left out of the report, the least important."] = 0


def answer_tables(roots: Roots, asked: TablesArguments) -> tuple[str, TablesAnswer]:
    """List the tables, or rows of one; as text and as data."""
    path, report, _ = analyze_path(roots, asked.path, asked.ranks, asked.steps, asked.stages)
    sheets = list_report_tables(report)
    if asked.table is None:
        notes = tuple(_make_table_note(name, sheet) for name, sheet in sheets.items())
        lines = [f"{note.name}: {note.title} ({note.row_count:,} rows)" for note in notes]
        return truncate_answer_text("\n".join(lines), _REST), TablesAnswer(path, notes)
    if asked.table not in sheets:
        near = did_you_mean(asked.table, sheets)
        raise TracekitError(f"no table {asked.table!r}{near}", f"there are: {', '.join(sheets)}")
    return _select_table_part(path, asked, sheets[asked.table])


def _select_table_part(path: str, asked: TablesArguments, sheet: Sheet) -> tuple[str, TablesAnswer]:
    """Select the requested rows and columns of one table."""
    names = name_columns_with_units(sheet)
    chosen = [_find_column_index(name, names) for name in asked.columns] or list(range(len(names)))
    matching = _filter_table_rows(sheet.rows, names, asked.where or {})
    cut = [tuple(row[index] for index in chosen) for row in matching[asked.offset :]]
    rows = limit_answer_rows(cut, asked.limit)
    end = asked.offset + len(rows)
    following = end if end < len(matching) else None
    notes = describe_sheet_columns(sheet)
    columns = tuple(notes[index] for index in chosen)
    answer = TablesAnswer(
        path,
        (_make_table_note(str(asked.table), sheet),),
        sheet.caption,
        columns,
        rows,
        len(matching),
        following,
        sheet.omitted,
    )
    lines = [f"{sheet.title}: {len(rows):,} of {len(matching):,} rows"]
    lines += [sheet.caption] if sheet.caption else []
    lines += format_table_lines([column.name for column in columns], rows)
    if following is not None:
        lines.append(f"offset={following} shows the next")
    return truncate_answer_text("\n".join(lines), _REST), answer


def format_table_lines(names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Format a table as tab-separated lines; unknown values are empty."""
    return ["\t".join(names), *("\t".join(_format_line_cell(cell) for cell in row) for row in rows)]


def _format_line_cell(value: Cell) -> str:
    """Format a cell on one line."""
    return "" if value is None else " ".join(str(value).split())


def _make_table_note(name: str, sheet: Sheet) -> TableNote:
    """Summarize a table for a list."""
    return TableNote(name, sheet.title, len(sheet.rows), tuple(name_columns_with_units(sheet)))


def _find_column_index(name: str, names: Sequence[str]) -> int:
    """Find the index of a column; raise `TracekitError` if there is none of that name."""
    if name not in names:
        near = did_you_mean(name, names)
        raise TracekitError(f"no column {name!r}{near}", f"there are: {', '.join(names)}")
    return names.index(name)


def _filter_table_rows(
    rows: Sequence[tuple[Cell, ...]], names: Sequence[str], where: Mapping[str, Cell]
) -> list[tuple[Cell, ...]]:
    """Filter the rows that have all these values; a long text may be given as displayed."""
    remaining = list(rows)
    for name, value in where.items():
        place = _find_column_index(name, names)
        remaining = [row for row in remaining if value in (row[place], truncate_answer_cell(row[place]))]
    return remaining
