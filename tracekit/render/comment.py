"""Pull-request comment of a comparison: the answer, the caveats, the gate, and the rest folded."""

from __future__ import annotations

from hashlib import sha256

from tracekit.model.report import Report
from tracekit.render import phrases
from tracekit.render.markdown import (
    careful_block,
    line_start,
    section_choices,
    sentence,
    sheet_block,
    within_limit,
)
from tracekit.render.options import Options

COMMENT = 60_000
"""Longest comment in characters: GitHub refuses more than 65,536, and a bot may add its own."""

GATE = "gate"
"""Id of the section that is not folded."""


def pull_request_comment(
    report: Report, sides: tuple[str, str], options: Options, limit: int = COMMENT
) -> str:
    """Format the report of a comparison in at most `limit` characters, after a hidden marker of its sides.

    The marker is the same for the same side names, so that a bot finds its comment.
    """
    identity = " · ".join(map(sentence, phrases.identity(report)))
    below = map(line_start, map(sentence, report.basis))
    head = [marker(*sides), f"**tracekit: {sentence(report.answer).strip()}**", *below]
    blocks = [("answer", ["\n\n".join([*head, line_start(identity)])])]
    blocks.append(careful_block(report))
    folded = []
    for section in report.sections:
        if section.id == GATE:
            lines = [sheet_block(sheet, None) for sheet in section.sheets]
            lines += ["\n".join(f"- {sentence(caveat)}" for caveat in section.caveats)]
            blocks.append(("gate", ["\n\n".join(filter(None, lines))]))
        else:
            folded.append((section.title, section_choices(section, options)))
    if report.overview:
        blocks.append(("overview", [sheet_block(report.overview, options.overview_rows)]))
    return within_limit([*blocks, *folded], limit)


def marker(base: str, opt: str) -> str:
    """Make the hidden first line. It contains only a digest, so that no side name can break out of it.

    >>> marker("main", "pr")
    '<!-- tracekit:compare:ff9ec133d011 -->'
    """
    digest = sha256(f"{base}\0{opt}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<!-- tracekit:compare:{digest} -->"
