"""`tracekit tables`: the tables that readers fill and analyses return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.text_tables import format_text_columns
from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import did_you_mean

if TYPE_CHECKING:
    from tracekit.model.tables import Column, Table


@click.command(name="tables", short_help="Show the tables and their columns.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@opt.verbose
def command(*, name: str | None, markdown: bool, verbose: bool) -> int:
    """Show a table: what a row of it is, and the type and meaning of each column. Without NAME, all."""
    del verbose
    from tracekit import analyses
    from tracekit.model import tables as schema

    if name not in schema.TABLES:
        analyses.load_all_analyses()
    known = {**schema.TABLES, schema.ARGS.name: schema.ARGS}
    if name is None:
        text = _format_all_tables(markdown=markdown)
    elif name in known:
        text = _format_table_page(known[name], known[name].columns, markdown=markdown)
    else:
        names = [table.name for table in (*schema.RAW, schema.ARGS, *analyses.list_measured_tables())]
        near = did_you_mean(name, names)
        hint = "tracekit tables shows all"
        if not near:
            hint = f"one of {', '.join(names)}"
        raise TracekitError(f"no table {name!r}{near}", hint)
    terminal.write_output(text + "\n")
    return 0


def _format_all_tables(*, markdown: bool) -> str:
    """Format all tables; the key columns of measured tables are listed only once."""
    from tracekit.analyses import list_measured_tables
    from tracekit.model.tables import ARGS, KEYS, RAW

    heading = "## " * markdown + "{}"
    parts = [heading.format("Read from a trace"), *_format_table_pages((*RAW, ARGS), (), markdown=markdown)]
    parts += [
        heading.format("Measured; every row begins with"),
        _format_column_docs(KEYS, markdown=markdown),
        *_format_table_pages(list_measured_tables(), KEYS, markdown=markdown),
    ]
    return "\n\n".join(parts)


def _format_table_pages(tables: Iterable[Table], without: Iterable[str], *, markdown: bool) -> list[str]:
    """Format each table with its columns, except those in `without`."""
    left_out = set(without)
    parts = []
    for table in tables:
        described = {name: column for name, column in table.columns.items() if name not in left_out}
        parts.append(_format_table_page(table, described, markdown=markdown))
    return parts


def _format_table_page(table: Table, described: Mapping[str, Column], *, markdown: bool) -> str:
    """Format one table: name, meaning of a row, and columns."""
    text = _format_column_docs(described, markdown=markdown)
    if markdown:
        return f"### `{table.name}`\nOne row: {table.row}.\n\n{text}"
    return f"{table.name} — one row: {table.row}\n{text}"


def _format_column_docs(described: Mapping[str, Column], *, markdown: bool) -> str:
    """Format the columns as lines or as a Markdown table."""
    if not markdown:
        rows = [{"column": name, "type": column.dtype, "meaning": column.doc} for name, column in described.items()]
        lines = format_text_columns(rows).splitlines()[1:]
        return "\n".join("  " + line for line in lines)
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for name, column in described.items():
        doc = column.doc.replace("|", "\\|")
        lines.append(f"| `{name}` | {column.dtype} | {doc} |")
    return "\n".join(lines)
