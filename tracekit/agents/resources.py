"""MCP resources: the report on a path and the page of a rule, as Markdown documents."""

from __future__ import annotations

from urllib.parse import unquote

from tracekit.agents.bounds import MAX_DOCUMENT_CHARACTERS, truncate_answer_text
from tracekit.agents.reports import analyze_path
from tracekit.agents.roots import Roots
from tracekit.analyses import rules
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.render import render

REPORT = "tracekit://report/"
RULE = "tracekit://rule/"
MARKDOWN = "text/markdown"
ROWS_OF_A_TABLE = 30


@dataclass(frozen=True, slots=True)
class Resource:
    """A document, or a family of documents if its URI contains a variable in braces."""

    uri: str
    name: str
    description: str


TEMPLATES: tuple[Resource, ...] = (
    Resource(
        f"{REPORT}{{+path}}",
        "report",
        f"The whole report on a path below a root, as Markdown: of each table {ROWS_OF_A_TABLE} rows, and at most {MAX_DOCUMENT_CHARACTERS:,}"
        " characters.",
    ),
    Resource(f"{RULE}{{name}}", "rule", "The page of a rule, by its id or number, as Markdown."),
)


def list_rule_pages() -> tuple[Resource, ...]:
    """List the pages of all rules."""
    return tuple(Resource(RULE + rule.id, rule.id, rule.title) for rule in rules.RULES)


def read_document(roots: Roots, uri: str) -> str:
    """Read a document by URI; raise `TracekitError` if there is none."""
    if uri.startswith(RULE):
        return rules.read_rule_page(unquote(uri.removeprefix(RULE)))
    if uri.startswith(REPORT):
        _, report, _ = analyze_path(roots, unquote(uri.removeprefix(REPORT)))
        text = str(render(report, "md", top=ROWS_OF_A_TABLE))
        return truncate_answer_text(text, "The tools `findings` and `tables` have the rest.", MAX_DOCUMENT_CHARACTERS)
    uris = " and ".join(template.uri for template in TEMPLATES)
    raise TracekitError(f"no resource {uri!r}", f"there are: {uris}")
