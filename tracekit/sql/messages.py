"""DuckDB errors as two lines for the user: the problem and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from tracekit.model.errors import TracekitError
from tracekit.model.tables.table import Table
from tracekit.model.text.labels import did_you_mean

_KIND = re.compile(r"^(?:[A-Z][\w-]* )+Error: ")
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")
_NO_COLUMN = re.compile(
    r'(?:Referenced column "([^"]+)" (?:was )?not found|does not have a column named "([^"]+)"'
    r'|[Cc]olumn "([^"]+)" does not exist)'
)
_NO_FUNCTION = re.compile(r"Function with name \"?([^\s\"]+)\"? (?:does not exist|is not in the catalog)")
_MEANT = re.compile(r'Did you mean "([^"]+)"')

_OUT_OF_REACH = frozenset({"PermissionException", "IOException", "HTTPException", "MissingExtensionException"})
OUT_OF_REACH = "files, networks and extensions are out of reach of a statement"
MAX_LISTED = 2
"""Most tables whose columns an error lists."""
_CHECKED = "EXPLAIN "
"""Prefix of a statement that is only checked."""


class OutOfMemoryError(TracekitError):
    """A statement needed more memory than it may take."""


class ReadsOnlyError(TracekitError):
    """A statement would read or write something other than the tables of the profiles."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "a statement reads the tables of the profiles and returns rows")


def explain_duckdb_error(
    error: Exception, tables: Mapping[str, Table] | None = None, statement: str = ""
) -> TracekitError:
    """Convert a DuckDB error to a `TracekitError`, with suggestions for mistyped names of the statement."""
    text = str(error)
    kind = type(error).__name__
    first = _KIND.sub("", (text or kind).splitlines()[0]).strip()
    if kind in _OUT_OF_REACH:
        return ReadsOnlyError(_strip_setting_remarks(f"{OUT_OF_REACH}: {first}"))
    if kind == "InterruptException":
        return TracekitError("the statement took too long", "let it read fewer rows or join less")
    if kind == "OutOfMemoryException":
        return OutOfMemoryError(f"memory ran out: {first}", "select fewer columns or rows, or aggregate before joining")
    return _explain_unknown_name(first, text, tables or {}, statement) or TracekitError(
        f"the statement: {first}", _locate_in_statement(text)
    )


def _explain_unknown_name(first: str, text: str, tables: Mapping[str, Table], statement: str) -> TracekitError | None:
    """Build the error for an unknown table, column or function; None for any other error."""
    if match := _NO_TABLE.search(first):
        near = did_you_mean(match[1], tables)
        hint = "SHOW TABLES lists them"
        return TracekitError(f"no table {match[1]!r}{near}", hint)
    if match := _NO_COLUMN.search(first):
        # DuckDB quotes one line of the statement; the tables may be named on another.
        words = set(re.findall(r"\w+", statement.lower()))
        named = [table for name, table in tables.items() if name in words]
        return _explain_unknown_column(next(name for name in match.groups() if name), text, named)
    if match := _NO_FUNCTION.search(first):
        near = did_you_mean(match[1], _MEANT.findall(text))
        hint = "any function of DuckDB that reads no file and no network"
        return TracekitError(f"no function {match[1]!r}{near}", hint)
    return None


def _explain_unknown_column(name: str, text: str, tables: Sequence[Table]) -> TracekitError:
    """Build the error for an unknown column: the nearest column of the tables and of DuckDB's candidates, or all."""
    candidates = re.findall(r'"([^"]+)"', text.partition("Candidate bindings:")[2].split("\n")[0])
    columns = [candidate.rpartition(".")[2] for candidate in candidates]
    columns += chain.from_iterable(table.columns for table in tables)
    # `ts` means `ts_ns`: the unit of a column is the part that people leave out.
    whole = next((column for column in columns if column.startswith(f"{name.lower()}_")), name)
    near = did_you_mean(whole, columns)
    if near or not tables:
        return TracekitError(f"no column {name!r}{near}", "DESCRIBE and a table's name list its columns")
    listed = "; ".join(f"a column of {table.name}: {', '.join(table.columns)}" for table in tables[:MAX_LISTED])
    return TracekitError(f"no column {name!r}", listed)


def _locate_in_statement(text: str) -> str:
    """Extract the marked position in the statement, as a hint; a general hint if there is none."""
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1]):
        match = re.match(r"LINE \d+: ", line)
        if match and "^" in lines[number + 1]:
            start = max(len(line[: lines[number + 1].index("^")]) - 20, match.end())
            return f"see at: {line[start : start + 60].removeprefix(_CHECKED).strip()}"
    return "DESCRIBE and a table's name list its columns; SHOW TABLES the tables"


def _strip_setting_remarks(text: str) -> str:
    """Strip DuckDB's remarks about its own settings."""
    return re.sub(r" - file system operations are disabled by configuration| through configuration", "", text)
