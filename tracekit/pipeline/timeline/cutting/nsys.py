"""Cut of an SQLite export of Nsight Systems: the rows of a window in a new, small database."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tracekit.model.errors import TraceFormatError
from tracekit.model.records import dataclass
from tracekit.pipeline.timeline.cutting.chrome import is_public_fact
from tracekit.pipeline.timeline.cutting.names import Placeholders
from tracekit.readers.nsys.content import EXPORT_TABLES, read_export_clock
from tracekit.readers.nsys.sqlite.connection import open_export, quote_identifier
from tracekit.readers.nsys.sqlite.opening import prepare_opening

_PAGE_BYTES = 512
"""Page size of a cut: an empty table takes one page."""

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_CALLS = f"{_CUPTI}RUNTIME"
_NVTX = "NVTX_EVENTS"
_SYSTEM_CALLS = "OSRT_API"
"""Calls of the operating system: the only table outside CUDA and NVTX that an anonymized cut keeps."""
_NVTX_RANGES = "(59, 60, 70, 71)"
_NVTX_MARK = 34
_NAME_COLUMN = re.compile(r"name|text|string|value|label", re.IGNORECASE)
_KERNEL_COLUMNS = ("demangledName", "shortName", "mangledName")
_STATIC = re.compile(
    r"TARGET_INFO_\w+|META_DATA_\w+|EXPORT_META_DATA|PROCESSES|ThreadNames|ANALYSIS_DETAILS|NVTX_PAYLOAD_\w+|DIAGNOSTIC_EVENT"
)
_PUBLIC_STATIC = re.compile(
    r"TARGET_INFO_(?:SESSION_START_TIME|GPU|CUDA_\w+|GPU_METRICS)|META_DATA_EXPORT|EXPORT_META_DATA|ANALYSIS_DETAILS"
)
_CHECKED_TEXTS = {("TARGET_INFO_GPU", "name"), ("TARGET_INFO_GPU_METRICS", "metricName")}
"""Texts that stay if they are facts: names of GPUs and of their metrics."""
_METRIC = re.compile(
    r"(?:(?:GPC|SYS|PCIe?|NVLink|DRAM|SM|SMs|GR|Tensor|Active|Issue|Warp|Compute|Graphics|Copy|Engine|Unallocated|Clock|Frequency"
    r"|Read|Write|RX|TX|Throughput|Bandwidth|Requests|User|Data|Protocol|Async|Sync|Slots|in|to|BAR1|Instructions|MHz|Avg|Idle"
    r"|FP(?=\d)|Pipe|L2|Hit|Rate|Cycles|Occupancy)|[\[\]()%/,.\d -])+"
)
_EXPORT_FACTS = (
    "('EXPORT_SCHEMA_VERSION', 'EXPORT_SCHEMA_VERSION_MAJOR', 'EXPORT_SCHEMA_VERSION_MINOR', 'EXPORT_PRODUCT_VERSION', "
    "'EXPORT_CONFIG_TIME_SHIFT', 'EXPORT_PARAM_TIME_SHIFT', 'EXPORT_PARAM_TIME_NORMALIZE', 'EXPORT_TIME_MODE')"
)


@dataclass(frozen=True, slots=True)
class _CutPlan:
    """The condition on the rows of each table to keep, and its columns with their declared types."""

    conditions: dict[str, str]
    columns: dict[str, dict[str, str]]


def count_rows_of_window(path: Path, start_ns: int, end_ns: int, level: str) -> int:
    """Count the rows of [start_ns, end_ns), in Unix time, in the tables with times."""
    with _open_source(path) as connection:
        plan = _plan_cut(connection, *_convert_window(path, start_ns, end_ns), level, is_anonymous=False)
        return sum(
            connection.execute(f"SELECT count(*) FROM src.{quote_identifier(table)} WHERE {condition}").fetchone()[0]  # noqa: S608
            for table, condition in plan.conditions.items()
            if condition != "1"
        )


def list_cut_tables(path: Path, start_ns: int, end_ns: int, level: str, *, is_anonymous: bool) -> list[str]:
    """List the tables that a cut may have, those outside CUDA and NVTX first."""
    with _open_source(path) as connection:
        plan = _plan_cut(connection, *_convert_window(path, start_ns, end_ns), level, is_anonymous=is_anonymous)
    return sorted(plan.conditions, key=lambda table: (table.startswith(_CUPTI), table == _NVTX, table))


def list_row_names(path: Path, start_ns: int, end_ns: int, level: str) -> list[str]:
    """List the names of the calls and device ops of a window, the most frequent first."""
    counts: Counter[str] = Counter()
    with _open_source(path) as connection:
        plan = _plan_cut(connection, *_convert_window(path, start_ns, end_ns), level, is_anonymous=False)
        for table, condition in plan.conditions.items():
            if column := _find_name_column(table, plan):
                rows = connection.execute(
                    f"SELECT s.value, t.count FROM (SELECT {column} AS id, count(*) AS count "  # noqa: S608
                    f"FROM src.{quote_identifier(table)} WHERE {condition} GROUP BY 1) t JOIN src.StringIds s ON s.id = t.id"
                )
                counts.update({str(value): count for value, count in rows})
    return sorted(counts, key=lambda name: (-counts[name], name))


def _find_name_column(table: str, plan: _CutPlan) -> str | None:
    """Find the column with the name of a call or device op; None if the table has no such names to leave out."""
    if table != _SYSTEM_CALLS and not table.startswith(_CUPTI):
        return None
    return next((name for name in ("nameId", "demangledName") if name in plan.columns[table]), None)


def _list_left_out_ids(connection: sqlite3.Connection, plan: _CutPlan, names: frozenset[str]) -> None:
    """List the ids of names to leave out in `temp.left_out`."""
    connection.execute("CREATE TEMP TABLE left_out (id INTEGER PRIMARY KEY)")
    if "StringIds" in plan.columns:
        connection.executemany(
            "INSERT OR IGNORE INTO temp.left_out SELECT id FROM src.StringIds WHERE value = ?",
            [(name,) for name in sorted(names)],
        )


def _exclude_names(condition: str, table: str, plan: _CutPlan, names: frozenset[str]) -> str:
    """Narrow a condition to rows whose name is not left out."""
    column = _find_name_column(table, plan) if names else None
    return condition if column is None else f"({condition}) AND {column} NOT IN (SELECT id FROM temp.left_out)"  # noqa: S608


def write_cut_export(
    path: Path,
    target: Path,
    start_ns: int,
    end_ns: int,
    level: str,
    placeholders: Placeholders | None,
    left_out: frozenset[str] = frozenset(),
    left_out_names: frozenset[str] = frozenset(),
) -> None:
    """Write the rows of [start_ns, end_ns), in Unix time, to a new database; ranges around the window are clipped to it.

    Tables of `left_out` and calls and device ops of `left_out_names` are not written.
    """
    window = _convert_window(path, start_ns, end_ns)
    target.unlink(missing_ok=True)
    with _open_source(path, target) as connection:
        if placeholders is not None:
            connection.create_function("replace_name", 2, _make_replacer(placeholders), deterministic=True)
            connection.create_function("keep_fact", 1, _keep_fact, deterministic=True)
        plan = _plan_cut(connection, *window, level, is_anonymous=placeholders is not None)
        _list_left_out_ids(connection, plan, left_out_names)
        conditions = {
            table: _exclude_names(condition, table, plan, left_out_names)
            for table, condition in plan.conditions.items()
            if table not in left_out
        }
        plan = replace(plan, conditions=conditions)
        connection.execute("BEGIN")
        for table, condition in plan.conditions.items():
            _copy_table(connection, plan, table, condition, is_anonymous=placeholders is not None)
        _clip_ranges(connection, plan, window[0], window[1])
        _copy_strings(connection, plan, is_anonymous=placeholders is not None)
        connection.execute("COMMIT")


_ROW_KINDS = {
    f"{_CUPTI}KERNEL": "kernel",
    f"{_CUPTI}MEMCPY": "copy",
    f"{_CUPTI}MEMSET": "copy",
    _CALLS: "call",
    _NVTX: "annotation",
}


def count_nsys_rows(path: Path) -> dict[str, int]:
    """Count the rows of a cut by kind, in words of the field; tables without times are not counted."""
    counts: dict[str, int] = dict.fromkeys((*_ROW_KINDS.values(), "other row"), 0)
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            name = quote_identifier(table)
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
            if columns & {"start", "timestamp"}:
                count = connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
                counts[_ROW_KINDS.get(table, "other row")] += int(count)
    return counts


@contextmanager
def _open_source(path: Path, target: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Open a new database (in memory without a `target`) with the export attached read-only as `src`."""
    with prepare_opening(path) as opening:
        name = ":memory:" if target is None else str(target)
        with closing(sqlite3.connect(name, uri=True, isolation_level=None)) as connection:
            try:
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("ATTACH ? AS src", (opening.uri,))
                yield connection
            except sqlite3.Error as error:
                raise TraceFormatError(path, f"cannot be cut: {error}", "export it again") from error


def _convert_window(path: Path, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Convert Unix times to those of the export."""
    with open_export(path) as database:
        base_ns = read_export_clock(database)[0].base_ns
    return start_ns - base_ns, end_ns - base_ns


def _plan_cut(connection: sqlite3.Connection, start: int, end: int, level: str, *, is_anonymous: bool) -> _CutPlan:
    """Choose the tables, and the rows of each."""
    columns = _list_columns(connection)
    conditions: dict[str, str] = {}
    inside = f"(start >= {start} AND start < {end})"
    _list_linked_calls(connection, columns, inside)
    for name, own in columns.items():
        if name == "StringIds" or name.startswith("sqlite_"):
            continue
        if "start" in own:
            condition = _choose_timed_condition(
                name, own, (start, end), is_whole=level == "full" and (not is_anonymous or name == _SYSTEM_CALLS)
            )
        elif "timestamp" in own and name != "DIAGNOSTIC_EVENT":
            is_read = level != "lean" and (not is_anonymous or name == "GPU_METRICS")
            condition = f"(timestamp >= {start} AND timestamp < {end})" if is_read else None
        else:
            condition = _choose_static_condition(name, own, is_whole=level == "full", is_anonymous=is_anonymous)
        if condition is not None:
            conditions[name] = condition
    return _CutPlan(conditions, columns)


def _list_columns(connection: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """List the columns of each table of the export with their declared types."""
    names = [name for (name,) in connection.execute("SELECT name FROM src.sqlite_master WHERE type = 'table'")]
    columns: dict[str, dict[str, str]] = {}
    for name in names:
        rows = connection.execute(f"PRAGMA src.table_info({quote_identifier(name)})")
        columns[name] = {row[1]: row[2] for row in rows}
    return columns


def _choose_timed_condition(name: str, types: dict[str, str], window: tuple[int, int], *, is_whole: bool) -> str | None:
    """Choose the rows of a table whose rows have a start; None to leave the table out."""
    start, end = window
    inside = f"(start >= {start} AND start < {end})"
    if name.startswith(_CUPTI):
        return f"{inside} OR correlationId IN (SELECT id FROM temp.linked)" if "correlationId" in types else inside  # noqa: S608
    if name == _NVTX:
        around = f'(start < {end} AND coalesce("end", start + 1) > {start})'
        return f"eventType NOT IN {_NVTX_RANGES[:-1]}, {_NVTX_MARK}) OR {around}"
    return inside if is_whole else None


def _choose_static_condition(name: str, types: dict[str, str], *, is_whole: bool, is_anonymous: bool) -> str | None:
    """Choose the rows of a table without times; None to leave the table out."""
    if not is_anonymous:
        return "1" if is_whole or _STATIC.fullmatch(name) else None
    if not _PUBLIC_STATIC.fullmatch(name):
        return None
    return f"name IN {_EXPORT_FACTS}" if name in EXPORT_TABLES and "name" in types else "1"


def _list_linked_calls(connection: sqlite3.Connection, columns: dict[str, dict[str, str]], inside: str) -> None:
    """List the ids of the launches of the window, and of its device ops, in `temp.linked`."""
    connection.execute("DROP TABLE IF EXISTS temp.linked")
    connection.execute("CREATE TEMP TABLE linked (id INTEGER PRIMARY KEY)")
    for name, own in columns.items():
        if name.startswith(_CUPTI) and {"start", "correlationId"} <= own.keys():
            connection.execute(
                f"INSERT OR IGNORE INTO temp.linked SELECT correlationId FROM src.{quote_identifier(name)} "  # noqa: S608
                f"WHERE {inside} AND correlationId > 0"
            )


def _copy_table(
    connection: sqlite3.Connection, plan: _CutPlan, table: str, condition: str, *, is_anonymous: bool
) -> None:
    """Copy the chosen rows of a table; without private texts if `is_anonymous`."""
    name, columns = quote_identifier(table), plan.columns[table]
    declared = ", ".join(
        f"{quote_identifier(column)} {re.sub(r'[^A-Za-z0-9 ]', '', kind)}" for column, kind in columns.items()
    )
    connection.execute(f"CREATE TABLE main.{name} ({declared})")
    if is_anonymous:
        chosen = ", ".join(_make_public_column(table, column) for column in columns)
    else:
        chosen = ", ".join(map(quote_identifier, columns))
    connection.execute(f"INSERT INTO main.{name} SELECT {chosen} FROM src.{name} WHERE {condition}")  # noqa: S608


def _make_public_column(table: str, column: str) -> str:
    """Make the expression of a column without private texts."""
    name = quote_identifier(column)
    if (table, column) in _CHECKED_TEXTS or table in EXPORT_TABLES:
        return name if column == "name" and table in EXPORT_TABLES else f"keep_fact({name})"
    if (table, column) == (_NVTX, "text"):
        return f"replace_name({name}, 'annotation')"
    return f"iif(typeof({name}) IN ('text', 'blob'), NULL, {name})"


def _clip_ranges(connection: sqlite3.Connection, plan: _CutPlan, start: int, end: int) -> None:
    """Clip NVTX ranges that begin before the window to it, or to the end of the last range of their thread that begins in it."""
    if not {"end", "globalTid"} <= plan.columns.get(_NVTX, {}).keys() or _NVTX not in plan.conditions:
        return
    ranges = f"main.{_NVTX} WHERE eventType IN {_NVTX_RANGES} AND"
    connection.execute(
        'CREATE TEMP TABLE ends AS SELECT globalTid AS thread, max("end") AS last '  # noqa: S608
        f"FROM {ranges} start >= {start} AND start < {end} GROUP BY 1"
    )
    last = f"(SELECT max({end}, last) FROM temp.ends WHERE thread = globalTid)"  # noqa: S608
    connection.execute(
        f'UPDATE main.{_NVTX} SET start = {start}, "end" = min("end", coalesce({last}, {end})) '  # noqa: S608
        f'WHERE start < {start} AND "end" > {start} AND eventType IN {_NVTX_RANGES}'
    )


def _copy_strings(connection: sqlite3.Connection, plan: _CutPlan, *, is_anonymous: bool) -> None:
    """Copy the strings that the kept rows refer to."""
    if not {"id", "value"} <= plan.columns.get("StringIds", {}).keys():
        return
    connection.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY, kind TEXT)")
    for table in plan.conditions:
        for column in plan.columns[table]:
            if not _NAME_COLUMN.search(column):
                continue
            kind = "kernel" if column in _KERNEL_COLUMNS else "annotation" if table == _NVTX else "name"
            name = quote_identifier(column)
            connection.execute(
                f"INSERT OR IGNORE INTO temp.used SELECT DISTINCT {name}, '{kind}' FROM main.{quote_identifier(table)} "  # noqa: S608
                f"WHERE typeof({name}) = 'integer'"
            )
    value = "replace_name(value, kind)" if is_anonymous else "value"
    connection.execute("CREATE TABLE main.StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.execute(
        f"INSERT INTO main.StringIds SELECT s.id, {value} FROM src.StringIds s JOIN temp.used u ON u.id = s.id"  # noqa: S608
    )


def _keep_fact(value: str | bytes | float | None) -> str | bytes | int | float | None:
    """Keep numbers, versions, and names of GPUs and their metrics; other texts become None."""
    if not isinstance(value, str | bytes):
        return value
    is_fact = isinstance(value, str) and (_METRIC.fullmatch(value) or is_public_fact(value))
    return value if is_fact or value in ("true", "false") else None


def _make_replacer(placeholders: Placeholders) -> Callable[[object, str], str | None]:
    """Make the SQL function that replaces private names."""

    def replace_name(text: object, kind: str) -> str | None:
        return placeholders.replace(text, kind, is_device=kind == "kernel") if isinstance(text, str) else None

    return replace_name
