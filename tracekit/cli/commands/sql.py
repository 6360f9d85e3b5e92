"""`tracekit sql`: query the tables of profiles in SQL."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.completions import complete_names, list_recipe_names
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass

if TYPE_CHECKING:
    from tracekit.model.tables.arrays import Columns
    from tracekit.pipeline.options import Options
    from tracekit.pipeline.table_reading import QueriedRows
    from tracekit.sql.session import StatementResult

ROW_FORMATS = ("text", "csv", "json", "parquet")
DEFAULT_TEXT_ROWS = 100
"""Rows of text output without a limit."""

_OPTION = re.compile(r"--[\w-]+=")


@dataclass(frozen=True, slots=True)
class RowOutput:
    """How to output rows: format, limit (None: all, but only the first as text), and file."""

    format: str
    limit: int | None
    output: str | None


class _StatementCommand(GroupedCommand):
    """A command whose last argument may be a statement that begins with a comment, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and return the remaining ones."""
        return super().parse_args(ctx, [_protect_comment(text) for text in args])


def _protect_comment(text: str) -> str:
    r"""Prefix an argument with a newline if it is a comment with a statement below it, which click takes for an option.

    >>> _protect_comment("--limit"), _protect_comment("-- all\nSELECT 1")
    ('--limit', '\n-- all\nSELECT 1')
    """
    first, _, below = text.partition("\n")
    is_comment = first.startswith("--") and below.strip() and not _OPTION.match(first)
    return f"\n{text}" if is_comment else text


@click.command(name="sql", cls=_StatementCommand, short_help="Query the tables of profiles in SQL.")
@opt.add_paths("PATH... [STATEMENT]", required=False)
@click.option(
    "--recipe",
    metavar="NAME",
    shell_complete=complete_names(list_recipe_names),
    help="Run the recipe of this name.",
)
@click.option("--recipes", "lists_recipes", is_flag=True, help="List the recipes.")
@click.option("--print", "prints", is_flag=True, help="Print the statement of --recipe without running it.")
@opt.add_results("rows", ROW_FORMATS, is_moved=True)
@click.option(
    "--limit",
    type=opt.WholeNumber(min=1),
    metavar="N",
    help=f"Most rows [default: all; as text {DEFAULT_TEXT_ROWS}].",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory limit of a statement, tables not included (4GiB) [default: half of the free memory].",
)
@opt.selection
@opt.jobs
@opt.cache
@opt.add_strict()
@opt.quiet
@opt.verbose
@opt.reading
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    paths: tuple[str, ...],
    recipe: str | None,
    lists_recipes: bool,
    prints: bool,
    requested: opt.RequestedOutputs,
    limit: int | None,
    memory: str | None,
    options: Options,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Query the tables of profiles in DuckDB's SQL, and print the rows.

    PATH is a directory of profiles, a file, a glob pattern, or measurements saved with --save. A statement can name
    every table of `tracekit tables`, each with the columns run, role, rank, host, source and step; only the named
    tables are read or measured. DESCRIBE and SHOW TABLES explain them. Without STATEMENT, a shell opens, or
    statements come from standard input. A statement reads only these tables, and writes nothing.
    """
    from tracekit.cli import child_process, sql_shell
    from tracekit.sql import recipes

    if lists_recipes:
        return _write_recipes(requested)
    *leading, last = paths or ("",)
    statement = None
    if _is_statement(last):
        paths, statement = tuple(leading), last
    if recipe is not None:
        if statement is not None:
            raise TracekitError(f"--recipe {recipe}: a statement is given as well", "leave out one")
        statement = recipes.read_recipe(recipe)
        if prints:
            terminal.write_output(f"{statement}\n")
            return 0
    opt.require_paths(paths, (), "PATH")
    form = _parse_row_output(requested, limit)
    is_shell = statement is None and sys.stdin.isatty()
    statements = child_process.Statements() if is_shell else None

    def work() -> int:
        answers = _StatementRunner(paths, options, memory, form, quiet=quiet)
        if statements is not None:
            sql_shell.run_sql_shell(answers.session, answers.show, statements)
        else:
            _run_statements(answers, sys.stdin.read() if statement is None else statement)
        terminal.write_output("")
        return 2 if strict and answers.has_failed else 0

    return child_process.run_in_child(work, verbose, statements)


def _write_recipes(requested: opt.RequestedOutputs) -> int:
    """Write the list of recipes, and return the exit status."""
    from tracekit.cli import report_outputs as out
    from tracekit.cli import sql_shell
    from tracekit.cli.text_tables import encode_rows

    def make_output(target: out.OutputTarget) -> str | bytes:
        if target.format == "parquet":
            raise TracekitError("the list of recipes cannot be written as parquet", "--format text, json or csv")
        if target.format == "text":
            return sql_shell.format_recipes(target.width)
        return encode_rows(sql_shell.list_recipe_rows(), target.format)

    out.write_results(out.list_targets(requested), make_output)
    return 0


class _StatementRunner:
    """A session over the tables of some paths, and the output of its results."""

    def __init__(
        self, paths: tuple[str, ...], options: Options, memory: str | None, form: RowOutput, *, quiet: bool
    ) -> None:
        from tracekit.discover.arguments import refuse_missing
        from tracekit.pipeline import sql_session, table_reading

        refuse_missing(paths)
        self.has_failed = False
        self._paths, self._options, self._form, self._quiet = paths, options, form, quiet
        self.session = sql_session.open_sql_session(self._load, memory, options.jobs)
        self._rows_of = table_reading.query_rows
        self._told: set[str] = set()

    @property
    def writes(self) -> bool:
        """Whether rows go to a file."""
        return self._form.output is not None

    def show(self, statement: str) -> None:
        """Run a statement, and print or write its rows."""
        with _naming_options():
            _output_sql_rows(self.session.run(statement), self._form)
        if not self._quiet:
            for warning in self.session.list_warnings(statement):
                terminal.print_message(f"warning: {warning}")
            for name in sorted(self.session.unfilled - self._told):
                terminal.print_message(f"{name}: not recorded")
        self._told |= self.session.unfilled

    def _load(self, names: Collection[str], with_step: bool) -> Mapping[str, Columns]:
        rows: QueriedRows = self._rows_of(names, self._paths, self._options, with_step=with_step)
        self.has_failed = self.has_failed or bool(rows.failures or rows.faults)
        terminal.print_failures(rows.failures)
        for fault in rows.faults:
            # A failed table is not "not recorded": suppress that message.
            self._told.update(fault.tables)
            problem = f"{fault.source}: {fault.question} could not be {fault.action}: {fault.error}"
            terminal.print_problem(problem, "the tables of other questions are whole")
        return rows.tables


@contextlib.contextmanager
def _naming_options() -> Iterator[None]:
    """Add the option of this command that helps to the hint of an error."""
    from tracekit.sql.messages import OutOfMemoryError, ReadsOnlyError

    try:
        yield
    except OutOfMemoryError as error:
        raise TracekitError(error.problem, f"{error.hint}; --memory 8GiB allows more") from None
    except ReadsOnlyError as error:
        raise TracekitError(error.problem, f"{error.hint}; -o FILE writes them") from None


def _run_statements(answers: _StatementRunner, text: str) -> None:
    """Run every statement of a text."""
    with _naming_options():
        statements = answers.session.statements(text)
    if not statements:
        raise TracekitError("no statement is given", "tracekit sql PATH 'SHOW TABLES'")
    if len(statements) > 1 and answers.writes:
        raise TracekitError(f"-o takes the rows of one statement, and {len(statements)} are given", "give one")
    for number, statement in enumerate(statements):
        if number:
            terminal.write_output("\n")
        answers.show(statement)


def _is_statement(text: str) -> bool:
    """Check whether an argument is a statement: several words, and not an existing path."""
    from tracekit.discover.arguments import split_label

    if len(text.split()) < 2:
        return False
    return not split_label(text)[1].exists()


def _parse_row_output(requested: opt.RequestedOutputs, limit: int | None) -> RowOutput:
    """Parse how to output rows; raises if that is not possible."""
    from tracekit.cli import report_outputs as out

    target, *others = out.list_targets(requested)
    if others:
        raise click.UsageError("the rows go to one place: name one file")
    return RowOutput(target.format, limit, None if target.printed else target.path)


def _output_sql_rows(result: StatementResult, form: RowOutput) -> None:
    """Print the rows, or write them."""
    from tracekit.model.system.files import write_atomically

    if form.output is None:
        data, has_more = _render_sql_rows(result, form, terminal.get_page_width()[0])
        terminal.write_output(data.decode("utf-8") if form.format == "text" else data)
    else:
        data, has_more = _render_sql_rows(result, form, None)
        write_atomically(form.output, data)
        terminal.print_message(f"wrote {form.output}")
    if has_more and form.format == "text" and form.limit is None:
        terminal.print_message(f"… more than {DEFAULT_TEXT_ROWS} rows: --limit shows more, -o rows.csv all")


def _render_sql_rows(result: StatementResult, form: RowOutput, width: int | None) -> tuple[bytes, bool]:
    """Render (the rows in their format, whether there are more)."""
    from tracekit.cli import query_rows as render
    from tracekit.sql.values import make_json_value, make_sql_cell

    limit = form.limit or (DEFAULT_TEXT_ROWS if form.format == "text" else None)
    rows = list(_limit_sql_rows(result, limit))
    has_more = limit is not None and len(rows) > limit
    rows = rows[:limit]
    if form.format == "json":
        values = [tuple(make_json_value(cell) for cell in row) for row in rows]
        return render.write_query_json(result.names, values).encode(), has_more
    sheet = render.make_query_sheet(result.names, [tuple(make_sql_cell(cell) for cell in row) for row in rows])
    if form.format == "csv":
        return render.write_query_csv(sheet), has_more
    if form.format == "parquet":
        return render.write_query_parquet(sheet), has_more
    return render.format_query_rows(sheet, width).encode(), has_more


def _limit_sql_rows(result: StatementResult, limit: int | None) -> Iterator[tuple[object, ...]]:
    """Iterate over the rows, at most one more than `limit`."""
    if limit is not None:
        yield from result.rows(limit + 1)
        return
    for block in result.blocks():
        yield from block
