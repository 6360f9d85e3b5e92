"""One look-up of names for `explain`, `tables` and `schema`.

It finds every rule, table, metric, column, command, word of the glossary, JSON Schema and question.
"""

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
    from tracekit.analyses import Analysis
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.model.metrics import MetricKind
    from tracekit.model.tables import Column, Table

TopicKind = Literal["rule", "table", "metric", "column", "command", "word", "schema", "question"]
COMMAND_PAGES: Mapping[str, str] = {
    "demo": "install",
    "analyze": "usage",
    "open": "usage",
    "inspect": "troubleshooting",
    "doctor": "troubleshooting",
    "compare": "compare",
    "gate": "guides/ci",
    "noise": "compare",
    "whatif": "whatif",
    "explain": "tour",
    "tables": "sql",
    "sql": "sql",
    "schema": "agents",
    "export": "usage",
    "cut": "usage",
    "log": "logging",
    "collect": "guides/ray",
    "mcp": "agents",
    "cache": "troubleshooting",
    "completion": "install",
}
"""The page in docs/ about each command."""
_MAX_MENTIONS = 5
DEFAULT_WIDTH = 100
"""Width of prose without a terminal, and its widest line on one."""


@dataclass(frozen=True, slots=True)
class Page:
    """Width and style of a page of text; without `width` tables are not wrapped, and prose has the default."""

    width: int | None = None
    is_styled: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing with a name, and the functions that write it, one for each format of a list."""

    kind: TopicKind
    name: str
    writers: Mapping[str, Callable[[Page], str | bytes]]

    def write(self, target: OutputTarget) -> str | bytes:
        """Write the topic for a target."""
        return self.writers[target.format](get_page(target))


def get_page(target: OutputTarget) -> Page:
    """Get the page of a target: that of the terminal, at most as wide as prose is."""
    from tracekit.cli import terminal

    width, is_styled = terminal.get_page_width() if target.printed else (None, False)
    return Page(width and min(width, DEFAULT_WIDTH), is_styled)


def find_topic(name: str, kinds: Sequence[TopicKind]) -> Topic:
    """Find what has this name, looking at `kinds` in order; raises `TracekitError` with the closest name of all kinds."""
    wanted = re.sub(r"\Ar([0-9])\Z", r"r0\1", name.strip().lower())
    for spelling in dict.fromkeys((wanted, wanted.removeprefix("tracekit "), re.sub(r"[\s_]+", "-", wanted))):
        for kind in kinds:
            for known, make_topic in _TOPICS[kind]():
                if known.lower() == spelling:
                    return make_topic()
    names = list_topic_names(kinds)
    near = did_you_mean(wanted, [known for known in names if known.lower().startswith(wanted)])
    near = near or did_you_mean(wanted, names)
    hint = "tracekit explain lists rules, tracekit tables lists tables"
    if mentions := _list_mentioning_rules(wanted):
        hint = f"rules that mention it: {', '.join(mentions)}; {hint}"
    raise TracekitError(f"unknown name {name!r}{near}", hint)


def _list_mentioning_rules(word: str) -> list[str]:
    """List the first rules whose page contains a word."""
    from tracekit.analyses import rules

    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    named = [rule.id for rule in rules.RULES if pattern.search(rule.title)]
    named += [rule.id for rule in rules.RULES if pattern.search(rule.page)]
    return list(dict.fromkeys(named))[:_MAX_MENTIONS] if word else []


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
            "csv": lambda _: encode_rows([{"number": rule.number, "rule": rule.id, "finds": rule.title}], "csv"),
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


def _iterate_commands() -> Found:
    context = click.get_current_context(silent=True)
    group = None if context is None else context.find_root().command
    if context is not None and isinstance(group, click.Group):
        for name in group.list_commands(context):
            yield name, partial(_make_command_topic, name, group, context)


def _make_command_topic(name: str, group: click.Group, context: click.Context) -> Topic:
    command = group.get_command(context, name)
    help_text = "" if command is None else (command.help or "")
    paragraphs = [" ".join(block.split()) for block in help_text.split("\n\n")]
    page = f"docs/{COMMAND_PAGES[name]}.md"
    more = f"Options: tracekit {name} --help. Documentation: {page}."
    if name in list_topic_names(["schema"]):
        more += f" JSON: tracekit schema {name}."
    summary, *_ = paragraphs
    row = {"command": name, "summary": summary, "page": page}
    return _make_prose_topic("command", name, f"{name}: a command (tracekit {name})", [*paragraphs, more], row)


def _iterate_words() -> Found:
    from tracekit.cli.glossary import list_glossary

    for word, heading, meaning in list_glossary():
        yield word, partial(_make_word_topic, word, heading, meaning)


def _make_word_topic(word: str, heading: str, meaning: str) -> Topic:
    paragraphs = [meaning[:1].upper() + meaning[1:] + "."]
    if mentions := _list_mentioning_rules(word):
        paragraphs.append(f"Rules that mention it (tracekit explain NAME): {', '.join(mentions)}.")
    row = {"word": heading, "meaning": meaning, "rules": ", ".join(mentions)}
    return _make_prose_topic("word", word, f"{heading}: glossary", paragraphs, row)


def _make_prose_topic(
    kind: TopicKind, name: str, title: str, paragraphs: Sequence[str], row: Mapping[str, str]
) -> Topic:
    """Make a topic of paragraphs below a title; `row` has its fields."""

    def write_text(page: Page) -> str:
        lines = [_style(title, page)]
        for paragraph in paragraphs:
            lines += ["", *wrap_words(paragraph, page.width or DEFAULT_WIDTH)]
        return "\n".join(lines) + "\n"

    return Topic(
        kind,
        name,
        {
            "text": write_text,
            "md": lambda _: "\n\n".join([f"# {title}", *paragraphs]) + "\n",
            "csv": lambda _: encode_rows([row], "csv"),
            "json": lambda _: json.dumps({"kind": kind, "name": name, **row}, indent=1) + "\n",
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

    def list_fields() -> list[dict[str, str]]:
        from tracekit.render.schema import list_schema_fields, make_schema_document

        return list(list_schema_fields(make_schema_document(contract.kind, contract.version)))

    def write_markdown(_: Page) -> str:
        from tracekit.render.schema import make_schema_urn

        title = f"# `{contract.name}`: `{make_schema_urn(contract.version)}`"
        return f"{title}\n\nWritten by: {contract.written_by}.\n\n{encode_rows(list_fields(), 'md')!s}"

    return Topic(
        "schema",
        contract.name,
        {
            "text": write_schema,
            "json": write_schema,
            "md": write_markdown,
            "csv": lambda _: encode_rows(list_fields(), "csv"),
        },
    )


def _iterate_questions() -> Found:
    from tracekit import analyses

    for analysis in analyses.load_all_analyses():
        yield analysis.id, partial(_make_question_topic, analysis)


def _make_question_topic(analysis: Analysis) -> Topic:
    rules = ", ".join(analysis.rules)
    tables = ", ".join(table if isinstance(table, str) else table.name for table in analysis.writes)
    paragraphs = [f"Ask it alone: tracekit analyze PATH -v --only {analysis.id}"]
    paragraphs += [f"Rules (tracekit explain NAME): {rules}."] if rules else []
    paragraphs += [f"Tables (tracekit tables NAME): {tables}."] if tables else []
    row = {"question": analysis.id, "title": analysis.title, "rules": rules, "tables": tables}
    return _make_prose_topic("question", analysis.id, f"{analysis.id}: {analysis.title}", paragraphs, row)


_TOPICS: Mapping[TopicKind, Callable[[], Found]] = {
    "rule": _iterate_rules,
    "table": _iterate_tables,
    "metric": _iterate_metrics,
    "column": _iterate_columns,
    "command": _iterate_commands,
    "word": _iterate_words,
    "schema": _iterate_schemas,
    "question": _iterate_questions,
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
