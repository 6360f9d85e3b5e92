"""Pages of the site that are generated from the package, and files of the repository that pages link.

Rules, tables, commands, problems and words are written once, in the program; their pages are generated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import click
from mkdocs.structure.files import File, Files

from tracekit import analyses
from tracekit.analyses import ANALYSES, rules
from tracekit.cli import main as commands
from tracekit.health.problems import PROBLEMS
from tracekit.model.recording.kinds import KINDS
from tracekit.model.tables import ARGS, KEYS, RAW
from tracekit.readers.chrome.classes import ACCELERATORS, is_read
from tracekit.render.words import MEANINGS

ROOT = Path(__file__).parents[2]
DOCS = "docs"

INCLUDED: Mapping[str, str] = {
    "examples/capture.md": "recipes.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "tracekit/readers/chrome/RECOVERY.md": "recovery.md",
}
"""Names on the site of pages that are stored outside docs/, by path in the repository."""

SUBJECTS: Mapping[str, str] = {
    "time": "Time",
    "ranks": "Ranks and communication",
    "hangs": "Jobs that hang",
    "rl": "Rollout and training",
    "run_log": "Logs of runs",
    "engines": "Rollout engines",
    "ops": "Ops, kernels and copies",
    "memory": "Memory",
    "trust": "Data quality",
}

SEARCH_BOOSTS: Mapping[str, float] = {"guides/": 6, "changelog.md": 0.1, "contributing.md": 0.3}
"""Factors on the rank of pages in a search, by how their names begin: guides answer, a changelog repeats every word."""

_BLOCK = re.compile(r"\||- |\d+\. ")
"""Start of a table row or of a list item."""

_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    """Add one page per rule to the navigation."""
    for part in config.nav:
        for name, pages in part.items():
            if name == "Findings":
                pages += list(_rules_by_subject())
    return config


def _rules_by_subject() -> Iterator[dict[str, list[dict[str, str]]]]:
    for subject, title in SUBJECTS.items():
        found = [rule for rule in rules.RULES if _folder(rule) == subject]
        yield {title: [{rule.id: f"rules/{rule.id}.md"} for rule in found]}


def _folder(rule: rules.RulePage) -> str:
    """Get the folder of a rule's page."""
    return next((ROOT / "tracekit/analyses").rglob(f"{rule.id}.md")).parent.name


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the files outside docs/ that pages link."""
    for uri, text in pages().items():
        files.append(File.generated(config, uri, content=text))
    for uri in sorted(_linked(files)):
        files.append(File.generated(config, f"repo/{uri}", content=(ROOT / uri).read_bytes()))
    return files


def pages() -> dict[str, str]:
    """Generate pages, by name on the site."""
    made = {uri: (ROOT / source).read_text() for source, uri in INCLUDED.items()}
    made |= {f"rules/{rule.id}.md": _rule_page(rule) for rule in rules.RULES}
    made["rules/index.md"] = _rule_list()
    made["tables/raw.md"] = _tables(
        "Raw tables", (*RAW, ARGS), without=(), preface="Readers make these tables from the events of a file."
    )
    made["tables/measured.md"] = _measured_tables()
    made["commands.md"] = _command_page()
    made["schema/index.md"] = _schema_list()
    return made


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert the generated parts of a page, and redirect links that leave docs/."""
    markdown = markdown.replace("<!-- problems -->", _problems())
    markdown = markdown.replace("<!-- words -->", _words())
    markdown = markdown.replace("<!-- accelerators -->", _accelerators())
    markdown = markdown.replace("<!-- recordings -->", _recordings())
    uri = page.file.src_uri
    for start, boost in SEARCH_BOOSTS.items():
        if uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return _LINK.sub(lambda link: _relinked(link, uri), spaced(markdown))


def spaced(markdown: str) -> str:
    """Add a blank line before each list and table: Python's Markdown needs it, GitHub does not."""
    lines: list[str] = []
    fenced = False
    before = ""
    for line in markdown.split("\n"):
        begins = _BLOCK.match(line)
        if begins and before.strip() and not fenced and not _inside(begins[0], before):
            lines.append("")
        lines.append(line)
        fenced ^= line.lstrip().startswith("```")
        before = line
    return "\n".join(lines)


def _inside(begin: str, before: str) -> bool:
    """Whether a line that begins so continues the list or table of the line before."""
    return before.startswith((" ", begin)) or (begin != "|" and _BLOCK.match(before) is not None)


def _home(uri: str) -> str:
    """Get the path in the repository of a page."""
    sources = {page: source for source, page in INCLUDED.items()}
    return sources.get(uri, f"{DOCS}/{uri}")


def _target(link: re.Match[str], uri: str) -> str:
    """Resolve a link of a page to a path from the root of the repository."""
    return normpath(str(PurePosixPath(_home(uri)).parent / link[2]))


def _relinked(link: re.Match[str], uri: str) -> str:
    target = _target(link, uri)
    here = str(PurePosixPath(uri).parent)
    if target in INCLUDED:
        return f"{link[1]}{relpath(INCLUDED[target], here)}{link[3] or ''}{link[4]}"
    if target.startswith(f"{DOCS}/"):
        if (ROOT / target).is_dir():
            target = f"{target}/index.md"
        target = target.replace(".ipynb", ".md")
        return f"{link[1]}{relpath(target.removeprefix(f'{DOCS}/'), here)}{link[3] or ''}{link[4]}"
    if (ROOT / target).is_file():
        return f"{link[1]}{relpath(f'repo/{target}', here)}{link[4]}"
    if (ROOT / target).is_dir():
        listing = f"{target}/README.md"
        if listing in INCLUDED:
            return f"{link[1]}{relpath(INCLUDED[listing], here)}{link[4]}"
    return link[0]


def _linked(files: Files) -> set[str]:
    """Find the files outside docs/ that pages link, without those that are pages."""
    found = set()
    for file in files.documentation_pages():
        if not file.src_uri.endswith(".md"):
            continue
        for link in _LINK.finditer(file.content_string):
            target = _target(link, file.src_uri)
            if target.startswith(f"{DOCS}/") or target in INCLUDED:
                continue
            if (ROOT / target).is_file():
                found.add(target)
    return found


def _rule_list() -> str:
    """Generate the list of all rules."""
    lines = [
        "# Findings",
        "Each finding comes from a rule. `tracekit explain NAME` prints the same page.",
        "The section *Which rules were checked?* of a report lists for each rule whether it found something, found nothing, or lacked data.",
    ]
    for subject, title in SUBJECTS.items():
        lines += [f"\n## {title}", "| | rule | finding |", "|---|---|---|"]
        lines += [
            f"| {rule.number} | [{rule.id}]({rule.id}.md) | {rule.title} |"
            for rule in rules.RULES
            if _folder(rule) == subject
        ]
    return "\n".join(lines) + "\n"


def _rule_page(rule: rules.RulePage) -> str:
    """Generate the page of a rule, with its question and thresholds at the end."""
    lines = [rule.page.rstrip("\n"), ""]
    for question in ANALYSES:
        if rule.id not in question.rules:
            continue
        lines += [
            "## Judged by",
            f"`{question.id}`: {question.title} Ask it alone with `tracekit analyze PATH --only {question.id}`.",
        ]
        limits = question.thresholds.get(rule.id, {})
        if limits:
            lines += ["", "| threshold | default |", "|---|---|"]
            lines += [f"| `{rule.id}.{name}` | {value:g} |" for name, value in limits.items()]
    return "\n".join(lines) + "\n"


def _measured_tables() -> str:
    """Generate the page of measured tables, with their common columns listed once."""
    measured = [table for table in analyses.list_measured_tables() if not table.name.startswith("own_")]
    keys = ["Analyses make these tables. Every row starts with:", "", *_columns(KEYS)]
    return _tables("Measured tables", measured, tuple(KEYS), "\n".join(keys))


def _tables(title: str, tables: Iterable[Any], without: Iterable[str], preface: str = "") -> str:
    """Generate a page of tables: the list, then each with its columns."""
    tables = list(tables)
    left_out = set(without)
    lines = [
        f"# {title}",
        "`tracekit tables NAME` prints the same. Types are those of pandas. Times are int64 nanoseconds; unknown values are `<NA>`.",
        "",
        preface,
        "",
        "| table | a row is |",
        "|---|---|",
        *(f"| [`{table.name}`](#{table.name}) | {table.row} |" for table in tables),
    ]
    for table in tables:
        own = {name: column for name, column in table.columns.items() if name not in left_out}
        lines += ["", f"## `{table.name}` {{#{table.name}}}", f"One row: {table.row}.", ""]
        lines += _columns(own)
    return "\n".join(lines) + "\n"


def _columns(described: Mapping[str, Any]) -> list[str]:
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for name, column in described.items():
        lines.append(f"| `{name}` | {column.dtype} | {_cell(column.doc)} |")
    return lines


def _cell(text: str) -> str:
    """Format a text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _schema_list() -> str:
    """Generate the list of JSON Schemas."""
    lines = [
        "# JSON",
        "Schemas of the output of `--format json` and `-o FILE.json`. `tracekit schema NAME` prints the same schema. The field `schema` has the version.",
        "",
        "| schema | content |",
        "|---|---|",
    ]
    for path in sorted((ROOT / DOCS / "schema").glob("*.json")):
        schema = json.loads(path.read_text())
        what = str(schema.get("description", schema["title"])).partition("\n\n")[0]
        lines.append(f"| [{path.stem}]({path.name}) | {_cell(what)} |")
    return "\n".join(lines) + "\n"


def _command_page() -> str:
    """Generate the page of all commands from their help."""
    with click.Context(commands, info_name="tracekit") as top:
        lines = ["# Commands", "The same as `tracekit COMMAND --help`.", ""]
        names = commands.list_commands(top)
        lines += [f"- [`tracekit {name}`](#{name}): {_short(top, name)}" for name in names]
        for name in names:
            command = commands.get_command(top, name)
            assert command is not None
            with click.Context(command, info_name=name, parent=top) as context:
                lines += ["", f"## `tracekit {name}` {{#{name}}}", *_help(command, context)]
    return "\n".join(lines) + "\n"


def _short(top: click.Context, name: str) -> str:
    command = commands.get_command(top, name)
    assert command is not None
    return command.get_short_help_str(200)


def _help(command: click.Command, context: click.Context) -> Iterator[str]:
    """Format the usage, description and options of one command."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield from ("```text", " ".join(usage.split()), "```", "")
    paragraphs = [*(command.help or "").split("\n\n"), *(command.epilog or "").strip("\n").split("\n\n")]
    for paragraph in filter(None, paragraphs):
        if paragraph.startswith("\b"):
            yield from ("```text", paragraph.removeprefix("\b\n"), "```", "")
        else:
            yield from (_cell(paragraph), "")
    options = [given for given in command.params if isinstance(given, click.Option)]
    records = [option.get_help_record(context) for option in options]
    shown = [record for record in records if record is not None]
    if shown:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in shown)


def _problems() -> str:
    """Make the table of capture problems that `doctor` reports."""
    lines = [
        "| code | problem | cause | fix |",
        "|---|---|---|---|",
    ]
    for code, problem in PROBLEMS.items():
        what = problem.what.format(files="N files", count="N") or "(the problem)"
        cells = map(_cell, (what, problem.cause, problem.remedy))
        lines.append(f"| `{code}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _accelerators() -> str:
    """Make the table of accelerators in PyTorch traces: which of their rows tracekit reads."""
    lines = ["| accelerator | host rows | device rows |", "|---|---|---|"]
    for name, categories in ACCELERATORS.items():
        cells = (f"{'read' if is_read(of_side) else 'not read'} (`{'`, `'.join(of_side)}`)" for of_side in categories)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _recordings() -> str:
    """Make the table of recording kinds."""
    lines = ["| code | recording | data read |", "|---|---|---|"]
    lines += [f"| `{kind.code}` | {kind.title} | {kind.read} |" for kind in KINDS.values()]
    return "\n".join(lines)


def _words() -> str:
    """Make the table of the words that the screen explains."""
    lines = ["| word | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| {word} | {meaning} |" for word, meaning in MEANINGS.items())])
