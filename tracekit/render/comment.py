"""Pull-request comment of a comparison: the answer, the caveats, the gate, and the rest folded."""

from __future__ import annotations

from hashlib import sha256

from tracekit.model.report import Report
from tracekit.render import phrases
from tracekit.render.markdown import (
    escape_line_start,
    escape_markdown,
    format_markdown_table,
    join_within_limit,
    make_caveats_block,
    make_section_choices,
)
from tracekit.render.options import RenderOptions

MAX_COMMENT_CHARS = 60_000
"""Longest comment in characters: GitHub refuses more than 65,536, and a bot may add its own."""

GATE_SECTION = "gate"
"""Id of the section that is not folded."""


def make_pull_request_comment(
    report: Report, sides: tuple[str, str], options: RenderOptions, limit: int = MAX_COMMENT_CHARS
) -> str:
    """Format the report of a comparison in at most `limit` characters, after a hidden marker of its sides.

    The marker is the same for the same side names, so that a bot finds its comment.
    """
    identity = " · ".join(escape_markdown(fact) for fact in phrases.list_identity_facts(report))
    below = [escape_line_start(escape_markdown(line)) for line in report.basis]
    head = [make_comment_marker(*sides), f"**tracekit: {escape_markdown(report.answer).strip()}**", *below]
    blocks = [("answer", ["\n\n".join([*head, escape_line_start(identity)])])]
    blocks.append(make_caveats_block(report))
    folded = []
    for section in report.sections:
        if section.id == GATE_SECTION:
            lines = [format_markdown_table(sheet, None) for sheet in section.sheets]
            lines += ["\n".join(f"- {escape_markdown(caveat)}" for caveat in section.caveats)]
            blocks.append(("gate", ["\n\n".join(line for line in lines if line)]))
        else:
            folded.append((section.title, make_section_choices(section, options)))
    if report.overview:
        blocks.append(("overview", [format_markdown_table(report.overview, options.overview_rows)]))
    return join_within_limit([*blocks, *folded], limit)


def make_comment_marker(base: str, opt: str) -> str:
    """Make the hidden first line. It contains only a digest, so that no side name can break out of it.

    >>> make_comment_marker("main", "pr")
    '<!-- tracekit:compare:ff9ec133d011 -->'
    """
    digest = sha256(f"{base}\0{opt}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<!-- tracekit:compare:{digest} -->"
