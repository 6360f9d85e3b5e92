"""`tracekit tables`: the tables that readers fill and analyses return; also looks up any other name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.topics import (
    Page,
    TopicKind,
    complete_topics,
    describe_columns,
    find_topic,
    format_column_lines,
    format_columns_markdown,
    format_table_markdown,
    format_table_page,
    get_page,
    list_known_tables,
)

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.model.tables import Table

_TABLES_FIRST: tuple[TopicKind, ...] = ("table", "column", "metric", "rule", "command", "word", "schema", "question")


@click.command(name="tables", cls=GroupedCommand, short_help="Show the tables and their columns.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_topics(*_TABLES_FIRST))
@opt.add_results("tables", is_moved=True)
@click.option("--markdown", is_flag=True, hidden=True, help="Same as --format md.")
@opt.verbose
def command(*, name: str | None, requested: opt.RequestedOutputs, markdown: bool, verbose: bool) -> int:
    """Show a table: the meaning of a row, and the type and meaning of each column. Without NAME, show all.

    NAME may also be any other name that `tracekit explain` finds.
    """
    del verbose
    from tracekit.cli import report_outputs as out

    targets = out.list_targets(replace(requested, format="md") if markdown else requested)
    if name is not None:
        topic = find_topic(name, _TABLES_FIRST)
        out.write_results(targets, topic.write)
    else:
        out.write_results(targets, _write_all_tables)
    return 0


def _write_all_tables(target: OutputTarget) -> str | bytes:
    """Write all tables for a target."""
    from tracekit.cli.text_tables import encode_rows

    tables = list_known_tables().values()
    if target.format == "json":
        values = [{"name": t.name, "row": t.row, "columns": describe_columns(t.columns)} for t in tables]
        return json.dumps(values, indent=1) + "\n"
    if target.format == "csv":
        rows = [{"table": table.name, **row} for table in tables for row in describe_columns(table.columns)]
        return encode_rows(rows, "csv")
    return _format_all_tables(get_page(target), is_markdown=target.format == "md") + "\n"


def _format_all_tables(page: Page, *, is_markdown: bool) -> str:
    """Format all tables; the key columns of measured tables are listed only once."""
    from tracekit.analyses import list_measured_tables
    from tracekit.model.tables import ARGS, KEYS, RAW

    heading = "## " * is_markdown + "{}"
    keys = describe_columns(KEYS)
    parts = [heading.format("Read from a trace"), *_format_tables((*RAW, ARGS), (), page, is_markdown=is_markdown)]
    parts += [
        heading.format("Measured; every row begins with"),
        format_columns_markdown(keys) if is_markdown else format_column_lines(keys, page),
        *_format_tables(list_measured_tables(), KEYS, page, is_markdown=is_markdown),
    ]
    return "\n\n".join(parts)


def _format_tables(tables: Iterable[Table], without: Iterable[str], page: Page, *, is_markdown: bool) -> list[str]:
    """Format each table with its columns, except those in `without`."""
    left_out = set(without)
    parts = []
    for table in tables:
        rows = [row for row in describe_columns(table.columns) if row["column"] not in left_out]
        parts.append(format_table_markdown(table, rows) if is_markdown else format_table_page(table, rows, page))
    return parts
