"""The tool `sql`: runs a read-only statement over the tables of profiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated

from tracekit.agents.bounds import MAX_ANSWER_ROWS, MAX_LIST_ENTRIES, limit_answer_rows, truncate_answer_text
from tracekit.agents.reports import Path, Ranks, Stages, Steps, UnreadAnswerFile, make_agent_options
from tracekit.agents.roots import Roots, resolve_inside_roots
from tracekit.agents.table_rows import format_table_lines
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Cell

if TYPE_CHECKING:
    from tracekit.model.tables.arrays import Columns

LIMIT_S = 60.0
"""Time limit of a statement once its tables are loaded, in seconds."""

MEMORY_BYTES = 2 << 30
"""Memory limit of a statement, excluding its tables; half of the free memory if that is less."""

CELL_CHARACTERS = 1_000
"""Length at which DuckDB truncates a cell."""

_RECIPES_HINT = "call sql without statement and recipe to list the recipes"


@dataclass(frozen=True, slots=True)
class SqlArguments:
    """Arguments of the tool `sql`: a statement, or the name of a recipe."""

    path: Path
    statement: Annotated[
        str | None,
        "One statement in DuckDB's SQL: SELECT, DESCRIBE and a table, SHOW TABLES. Without it and `recipe`, recipes are listed.",
    ] = None
    recipe: Annotated[str | None, "The name of a statement that tracekit knows."] = None
    limit: Annotated[int, "Rows at most.", range(1, MAX_ANSWER_ROWS + 1)] = 100
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()


@dataclass(frozen=True, slots=True)
class RecipeNote:
    """A named statement."""

    name: str
    answers: str


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """The rows of a statement. Column names end in their units; null means unknown."""

    path: str
    statement: Annotated[str | None, "The statement that was run."] = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    has_more: Annotated[bool, "Whether there are more rows: use LIMIT and OFFSET."] = False
    not_recorded: Annotated[
        tuple[str, ...], "Tables without any recorded row: their content is unknown, not empty."
    ] = ()
    unread: tuple[UnreadAnswerFile, ...] = ()
    warnings: Annotated[tuple[str, ...], "Likely mistakes of the statement."] = ()
    recipes: tuple[RecipeNote, ...] = ()


def answer_sql(roots: Roots, asked: SqlArguments) -> tuple[str, SqlAnswer]:
    """Run a statement, or list the recipes; as text and as data."""
    from tracekit.sql import recipes

    path = resolve_inside_roots(roots, asked.path)
    if asked.statement is None and asked.recipe is None:
        named = tuple(RecipeNote(name, recipes.read_recipe_question(name)) for name in recipes.list_recipes())
        lines = [f"{recipe.name}: {recipe.answers}" for recipe in named]
        return truncate_answer_text("\n".join(lines), ""), SqlAnswer(path, recipes=named)
    if asked.statement is not None and asked.recipe is not None:
        raise TracekitError("both `statement` and `recipe` are given", "leave out one")
    statement = asked.statement or recipes.read_recipe(str(asked.recipe), _RECIPES_HINT)
    answer = _run_agent_statement(roots, path, asked, statement)
    lines = format_table_lines(answer.columns, answer.rows)
    lines += [f"{name}: nothing of it was recorded" for name in answer.not_recorded]
    lines += [f"warning: {warning}" for warning in answer.warnings]
    lines += [f"not read: {file.source}: {file.problem}" for file in answer.unread[:10]]
    if answer.has_more:
        lines.append(f"… more than these {len(answer.rows):,} rows: LIMIT and OFFSET give them")
    return truncate_answer_text("\n".join(lines), "Ask for fewer columns or rows."), answer


def _run_agent_statement(roots: Roots, path: str, asked: SqlArguments, statement: str) -> SqlAnswer:
    """Run one statement and collect its rows."""
    from tracekit.pipeline import sql_session, table_reading
    from tracekit.sql.values import make_sql_cell

    reading = make_agent_options(roots, asked.ranks, asked.steps, asked.stages)
    unread: list[UnreadAnswerFile] = []

    def load(names: Collection[str], with_step: bool) -> Mapping[str, Columns]:
        rows = table_reading.query_rows(names, [path], reading, with_step=with_step)
        unread.extend(UnreadAnswerFile(f.source, f.problem, f.hint) for f in rows.failures)
        for fault in rows.faults:
            problem = f"{fault.question} could not be {fault.action}: {fault.error}"
            unread.append(UnreadAnswerFile(fault.source, problem, "the tables of other questions are whole"))
        return rows.tables

    session = sql_session.open_sql_session(load, limit_s=LIMIT_S, most_bytes=MEMORY_BYTES)
    statements = session.statements(statement)
    if len(statements) != 1:
        raise TracekitError(f"{len(statements)} statements are given", "one at a time")
    result = session.run(statements[0], (asked.limit + 1, CELL_CHARACTERS))
    values = [tuple(make_sql_cell(cell) for cell in row) for row in result.rows(asked.limit + 1)]
    first = limit_answer_rows(values, asked.limit)
    return SqlAnswer(
        path=path,
        statement=statements[0],
        columns=result.names,
        rows=first,
        has_more=len(values) > len(first),
        not_recorded=tuple(sorted(session.unfilled)),
        unread=tuple(dict.fromkeys(unread))[:MAX_LIST_ENTRIES],
        warnings=tuple(session.list_warnings(statements[0])),
    )
