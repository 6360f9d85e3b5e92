"""One look-up of names: `explain`, `tables` and `schema` find every rule, table, metric, column and JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from tracekit.cli.completions import Completer, match_names
from tracekit.cli.text_tables import encode_rows, format_text_columns
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import did_you_mean
from tracekit.model.text.wrapping import wrap_words

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.model.metrics import MetricKind
    from tracekit.model.tables import Column, Table

TopicKind = Literal["rule", "table", "metric", "column", "schema"]
DEFAULT_WIDTH = 100
"""Width of prose without a terminal, and its widest line on one."""


@dataclass(frozen=True, slots=True)
class Page:
    """Width and style of a page of text; without `width` tables are not wrapped, and prose has the default."""

    width: int | None = None
    is_styled: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing with a name, and the functions that write it, by format."""

    kind: TopicKind
    name: str
    writers: Mapping[str, Callable[[Page], str | bytes]]

    def write(self, target: OutputTarget) -> str | bytes:
        """Write the topic for a target; raises `TracekitError` for a format that it does not have."""
        if target.format not in self.writers:
            formats = ", ".join(self.writers)
            raise TracekitError(f"{self.kind} {self.name} cannot be written as {target.format}", f"it has {formats}")
        return self.writers[target.format](get_page(target))


def get_page(target: OutputTarget) -> Page:
    """Get the page of a target: that of the terminal, at most as wide as prose is."""
    from tracekit.cli import terminal

    width, is_styled = terminal.get_page_width() if target.printed else (None, False)
    return Page(width and min(width, DEFAULT_WIDTH), is_styled)


def find_topic(name: str, kinds: Sequence[TopicKind]) -> Topic:
    """Find what has this name, looking at `kinds` in order; raises `TracekitError` with the closest name of all kinds."""
    wanted = re.sub(r"\Ar([0-9])\Z", r"r0\1", name.strip().lower())
    for kind in kinds:
        for known, make_topic in _TOPICS[kind]():
            if known.lower() == wanted:
                return make_topic()
    names = list_topic_names(kinds)
    near = did_you_mean(wanted, [known for known in names if known.lower().startswith(wanted)])
    near = near or did_you_mean(wanted, names)
    raise TracekitError(f"unknown name {name!r}{near}", "tracekit explain lists rules, tracekit tables lists tables")


def list_topic_names(kinds: Iterable[TopicKind]) -> list[str]:
    """List the names of these kinds, each once."""
    return list(dict.fromkeys(name for kind in kinds for name, _ in _TOPICS[kind]()))


def complete_topics(*kinds: TopicKind) -> Completer:
    """Make a completer of the names of the first of these kinds that has a match."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        for kind in kinds:
            if items := match_names(list_topic_names([kind]), typed):
                return items
        return []

    return complete


Found = Iterator[tuple[str, Callable[[], Topic]]]
"""Names, each with the function that makes its topic."""


def _iterate_rules() -> Found:
    from tracekit.analyses import rules

    for rule in rules.RULES:
        for name in (rule.id, rule.number):
            yield name, partial(_make_rule_topic, rule)


def _make_rule_topic(rule: Any) -> Topic:
    value = {"kind": "rule", "id": rule.id, "number": rule.number, "title": rule.title, "page": rule.page}
    return Topic(
        "rule",
        rule.id,
        {
            "text": lambda page: format_rule_page(rule.page, page),
            "md": lambda _: rule.page.rstrip("\n") + "\n",
            "json": lambda _: json.dumps(value, indent=1) + "\n",
        },
    )


def list_known_tables() -> dict[str, Table]:
    """List all tables by name: those of readers, `args`, and those of analyses."""
    from tracekit import analyses
    from tracekit.model import tables

    return {table.name: table for table in (*tables.RAW, tables.ARGS, *analyses.list_measured_tables())}


def _iterate_tables() -> Found:
    for name, table in list_known_tables().items():
        yield name, partial(_make_table_topic, table)


def _make_table_topic(table: Table) -> Topic:
    rows = describe_columns(table.columns)
    value = {"kind": "table", "name": table.name, "row": table.row, "columns": rows}
    return Topic(
        "table",
        table.name,
        {
            "text": lambda page: format_table_page(table, rows, page) + "\n",
            "md": lambda _: format_table_markdown(table, rows) + "\n",
            "json": lambda _: json.dumps(value, indent=1) + "\n",
            "csv": lambda _: encode_rows(rows, "csv"),
        },
    )


def describe_columns(columns: Mapping[str, Column]) -> list[dict[str, str]]:
    """Describe columns as rows: name, type and meaning."""
    return [{"column": name, "type": str(column.dtype), "meaning": column.doc} for name, column in columns.items()]


def format_table_page(table: Table, rows: Sequence[Mapping[str, str]], page: Page) -> str:
    """Format one table: name, meaning of a row, and columns."""
    title = f"{table.name} — one row: {table.row}"
    lines = wrap_words(title, page.width) if page.width else [title]
    return "\n".join([*(_style(line, page) for line in lines), format_column_lines(rows, page)])


def format_column_lines(rows: Sequence[Mapping[str, str]], page: Page) -> str:
    """Format described columns as indented lines without a heading."""
    width = page.width and page.width - 2
    lines = format_text_columns(rows, width=width).splitlines()[1:]
    return "\n".join(f"  {line}" for line in lines)


def format_table_markdown(table: Table, rows: Sequence[Mapping[str, str]]) -> str:
    """Format one table as Markdown."""
    return f"### `{table.name}`\nOne row: {table.row}.\n\n{format_columns_markdown(rows)}"


def format_columns_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Format described columns as a Markdown table."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for row in rows:
        meaning = row["meaning"].replace("|", "\\|")
        lines.append(f"| `{row['column']}` | {row['type']} | {meaning} |")
    return "\n".join(lines)


def _iterate_metrics() -> Found:
    from tracekit.model.metrics import METRICS

    for name, metric in METRICS.items():
        yield name, partial(_make_metric_topic, name, metric)


def _make_metric_topic(name: str, metric: MetricKind) -> Topic:
    row = {
        "metric": name,
        "title": metric.title,
        "unit": metric.unit or "number",
        "better": metric.better,
        "over ranks": metric.ranks,
    }
    return _make_rows_topic("metric", name, [row], f"{name}: a metric that `compare` and `gate` check")


def _iterate_columns() -> Found:
    tables = list_known_tables()
    for name in dict.fromkeys(column for table in tables.values() for column in table.columns):
        yield name, partial(_make_column_topic, name, tables)


def _make_column_topic(name: str, tables: Mapping[str, Table]) -> Topic:
    holders: dict[tuple[str, str], list[str]] = {}
    for table in tables.values():
        if name in table.columns:
            column = table.columns[name]
            holders.setdefault((str(column.dtype), column.doc), []).append(table.name)
    rows = [{"type": dtype, "meaning": doc, "tables": ", ".join(names)} for (dtype, doc), names in holders.items()]
    count = sum(map(len, holders.values()))
    return _make_rows_topic(
        "column", name, rows, f"{name}: a column of {count:,} {'table' if count == 1 else 'tables'}"
    )


def _make_rows_topic(kind: TopicKind, name: str, rows: Sequence[Mapping[str, str]], title: str) -> Topic:
    """Make a topic of rows below a title."""
    return Topic(
        kind,
        name,
        {
            "text": lambda page: f"{_style(title, page)}\n{format_text_columns(rows, width=page.width)}\n",
            "json": lambda _: json.dumps({"kind": kind, "name": name, "rows": rows}, indent=1) + "\n",
            "csv": lambda _: encode_rows(rows, "csv"),
            "md": lambda _: encode_rows(rows, "md"),
        },
    )


def _iterate_schemas() -> Found:
    from tracekit.cli.json_contracts import CONTRACTS

    for contract in CONTRACTS:
        yield contract.name, partial(_make_schema_topic, contract)


def _make_schema_topic(contract: Any) -> Topic:
    def write_schema(_: Page) -> bytes:
        from tracekit.render.schema import make_schema_document

        document = make_schema_document(contract.kind, contract.version)
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")

    return Topic("schema", contract.name, {"text": write_schema, "json": write_schema})


_TOPICS: Mapping[TopicKind, Callable[[], Found]] = {
    "rule": _iterate_rules,
    "table": _iterate_tables,
    "metric": _iterate_metrics,
    "column": _iterate_columns,
    "schema": _iterate_schemas,
}

_PAGE_HEADING = re.compile(r"# (?P<number>R\d+) (?P<id>\S+): (?P<title>.+)")
_SECTION = re.compile(r"\*\*(?P<title>[^*]+)\.\*\* (?P<text>.+)", re.DOTALL)
_ITEM = re.compile(r"(?:- |\d+\. )")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])")
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[nµm]?s|[KMGT]?i?B|GB/s)\b|[%×])")
"""The space between a number and its unit."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def format_rule_page(text: str, page: Page) -> str:
    """Format the page of a rule as text: the title and the summary first, then each section under its heading."""
    width = page.width or DEFAULT_WIDTH
    lines: list[str] = []
    indent = ""
    for block in re.split(r"\n{2,}", text.strip()):
        heading, section = _PAGE_HEADING.fullmatch(block), _SECTION.match(block)
        if heading is not None:
            title = f"{heading['id']} ({heading['number']}): {heading['title']}"
            lines += [_style(line, page) for line in wrap_words(title, width)]
            continue
        lines.append("")
        if section is not None:
            indent = "  "
            lines.append(_style(section["title"], page))
        lines += _wrap_block(section["text"] if section is not None else block, width, indent)
    return "\n".join(lines) + "\n"


def _wrap_block(text: str, width: int, indent: str) -> list[str]:
    """Wrap a paragraph, or the items of a list, without the marks of Markdown."""
    items: list[str] = []
    for line in text.splitlines():
        if items and not _ITEM.match(line):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    lines: list[str] = []
    for item in items:
        mark = _ITEM.match(item)
        bullet = mark[0] if mark is not None else ""
        plain = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1 (\2)", item[len(bullet) :]))
        plain = _UNIT.sub("\u00a0", plain)
        first, *further = wrap_words(plain, width - len(indent) - len(bullet))
        lines += [f"{indent}{bullet}{first}", *(f"{indent}{' ' * len(bullet)}{line}" for line in further)]
    return [line.replace("\u00a0", " ") for line in lines]


def _style(text: str, page: Page) -> str:
    """Make a heading bold on a terminal."""
    return click.style(text, bold=True) if page.is_styled else text
