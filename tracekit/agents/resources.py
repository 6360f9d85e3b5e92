"""MCP resources: the report on a path and the page of a rule, as Markdown documents."""

from __future__ import annotations

from operator import attrgetter
from urllib.parse import unquote

from tracekit.agents.bounds import DOCUMENT, text_within
from tracekit.agents.reports import report_on
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
        f"The whole report on a path below a root, as Markdown: of each table {ROWS_OF_A_TABLE} rows, and at most {DOCUMENT:,}"
        " characters.",
    ),
    Resource(f"{RULE}{{name}}", "rule", "The page of a rule, by its id or number, as Markdown."),
)


def rule_pages() -> tuple[Resource, ...]:
    """List the pages of all rules."""
    return tuple(Resource(RULE + rule.id, rule.id, rule.title) for rule in rules.RULES)


def document(roots: Roots, uri: str) -> str:
    """Read a document by URI; raise `TracekitError` if there is none."""
    if uri.startswith(RULE):
        return rules.page(unquote(uri.removeprefix(RULE)))
    if uri.startswith(REPORT):
        _, report, _ = report_on(roots, unquote(uri.removeprefix(REPORT)))
        text = str(render(report, "md", top=ROWS_OF_A_TABLE))
        return text_within(text, "The tools `findings` and `tables` tell the rest.", DOCUMENT)
    uris = " and ".join(map(attrgetter("uri"), TEMPLATES))
    raise TracekitError(f"no resource {uri!r}", f"there are: {uris}")
