"""Report as GitHub-flavoured Markdown, also for the summary of a GitHub job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from tracekit.model.report import Finding, Metric, Report, Section, Sheet
from tracekit.model.units import UNKNOWN, format_quantity
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.grid import TextGrid, make_grid
from tracekit.render.options import RenderOptions

MAX_MARKDOWN_CHARS = 65_000
"""Largest text in characters; GitHub refuses comments of more than 65,536."""

_ROWS_VERBOSE = 200
_NAME = 120
_PLAIN = re.compile(r"([\w .,;%()+/=·—–−≥≤…×█▉▊▋▌▍▎▏▒-]|:(?= ))+|[<>]−?[\d.]+( %)?")
_SPECIAL = re.compile(r"[\\`*_\[\]~|$]")
_LIVE = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|\bwww(?=\.)|(?<=\bGH)-(?=\d)|:(?=[\w+-]+:)", re.IGNORECASE)
_LINE_START = re.compile(r"([#+\-=~>]|\d+(?=[.)]))")

GATE_SECTION = "gate"
"""Id of the section that is not folded."""


def render_markdown(report: Report, options: RenderOptions) -> str:
    """Render the report in at most 65,000 characters; blocks that do not fit are listed at the end."""
    blocks: list[tuple[str, list[str]]] = [("identity", [escape_line_start(_join_identity(report))])]
    if report.answer or report.headline:
        blocks.append(("headline", [_make_headline_block(report)]))
    blocks.append(("recordings", [_list_recording_lines(report)]))
    if report.overview:
        blocks.append(("overview", [format_markdown_table(report.overview, options.overview_rows)]))
    blocks.append(make_caveats_block(report))
    blocks += _make_finding_blocks(report, options)
    blocks.append(("not analyzed", [_format_markdown_gaps(report)]))
    blocks += [(section.title, make_section_choices(section, options)) for section in report.sections]
    blocks.append(("data quality", [_format_markdown_remarks(report)]))
    return join_within_limit(blocks)


def _list_recording_lines(report: Report) -> str:
    """List recordings that limit the answer, each with its remedy."""
    return "\n".join(
        f"- Recorded: {escape_markdown(recorded)} → {escape_markdown(f'{advice}: {command}')}"
        for recorded, advice, command in phrases.list_limiting_recordings(report)
    )


def make_caveats_block(report: Report) -> tuple[str, list[str]]:
    """Make the block of caveats as a list."""
    return "notes", ["\n".join(f"- Note: {escape_markdown(text)}" for text in report.cautions)]


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it as it is, without markup, HTML, mentions, issue links or URLs.

    >>> escape_markdown("see @team <b>#12</b> of update_actor")
    'see @&#8203;team &lt;b&gt;#&#8203;12&lt;/b&gt; of update_actor'
    """
    out = _escape_html_entities(make_printable(text, phrases.SENTENCE))
    # Underscores within words need no escape, which would be hard to read in the raw text.
    out = re.sub(r"(?<=[^\W_])_(?=[^\W_])", "\0", out)
    out = _SPECIAL.sub(r"\\\g<0>", out).replace(r"\|", "&vert;")
    return _LIVE.sub(lambda match: f"{match[0]}&#8203;", out).replace("\0", "_")


def format_code_span(text: str, limit: int = _NAME) -> str:
    """Format a name as a code span that also works in tables; plain words stay plain.

    >>> format_code_span("at::native::add"), format_code_span("update_actor"), format_code_span("a|b")
    ('`at::native::add`', 'update_actor', '<code>a&#124;b</code>')
    """
    out = make_printable(text, limit)
    if not out.strip():
        return UNKNOWN
    plain = _escape_html_entities(out)
    if _PLAIN.fullmatch(out) and escape_markdown(out) == plain:
        return plain
    if re.search(r"[|`\\]", out):
        # Tables interpret pipes and backslashes even within code spans, so use entities in <code>.
        safe = re.sub(r"[^\w ]|_", lambda match: f"&#{ord(match[0])};", out)
        return f"<code>{safe}</code>"
    return f"`{out.strip()}`"


def _escape_html_entities(text: str) -> str:
    """Replace the three special characters of HTML by entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_summary(text: str) -> str:
    """Escape text within an HTML tag, where backslashes do not escape but entities work."""
    out = _LIVE.sub("\\g<0>\0", make_printable(text, 120))
    out = re.sub(r"[^\w \0,?()]|_", lambda match: f"&#{ord(match[0])};", out)
    return out.replace("\0", "&#8203;")


def _join_identity(report: Report) -> str:
    """Join the facts of the run in one line, the first (the sources) in bold."""
    first, *further = phrases.list_identity_facts(report)
    return " · ".join([_format_bold(first), *(escape_markdown(fact) for fact in further)])


def _format_bold(text: str) -> str:
    """Format text in bold; stars around empty text would be a horizontal rule."""
    return f"**{escape_markdown(text).strip() or UNKNOWN}**"


def _make_headline_block(report: Report) -> str:
    """Make the answer a heading, with the other numbers below it."""
    answer = [escape_markdown(report.answer)] if report.answer else []
    first, *numbers = [*answer, *(_format_markdown_metric(metric) for metric in report.headline)]
    below = [escape_markdown(line) for line in report.basis]
    if numbers:
        below.append(" · ".join(numbers))
    return "\n\n".join([f"## {first}", *(escape_line_start(line) for line in below)])


def _format_markdown_metric(metric: Metric) -> str:
    """Format the name, number and bounds of a metric."""
    return escape_markdown(phrases.format_metric(metric))


def format_markdown_table(sheet: Sheet, limit: int | None, name_limit: int = _NAME) -> str:
    """Format a table under its title, with a note on omitted rows and the caption below."""
    table: TextGrid = make_grid(sheet, limit, name_limit)
    lines = [_format_bold(table.title), ""]
    dashes = {True: "---:", False: ":---"}
    lines.append(_format_markdown_row(escape_markdown(column.title) for column in table.columns))
    lines.append(f"|{'|'.join(dashes[column.numeric] for column in table.columns)}|")
    lines += [_format_markdown_row(format_code_span(cell) for cell in row) for row in table.rows]
    note = phrases.describe_missing_rows(len(table.rows), table.more, table.omitted, "all in the HTML or CSV report")
    notes = ". ".join(part for part in (note, table.caption) if part)
    if notes:
        lines += ["", f"<sub>{escape_markdown(notes)}</sub>"]
    return "\n".join(lines)


def _format_markdown_row(cells: Iterable[str]) -> str:
    """Format a line of a table."""
    return f"| {' | '.join(cells)} |"


def _make_finding_blocks(report: Report, options: RenderOptions) -> list[tuple[str, list[str]]]:
    """Make the ranked list, one block per finding, so that a cut drops the last ones first."""
    findings, left = phrases.choose_first_findings(report, options.top)
    unproven = [f"- unproven: {escape_markdown(text)}" for text in phrases.list_unproven_claims(report, findings)]
    if not findings:
        if left or report.answer or not report.sections:
            return []
        nothing = [f"### {phrases.describe_no_findings(report)}", *unproven]
        return [("findings", ["\n\n".join(nothing[:1] + ["\n".join(unproven)] * bool(unproven))])]
    blocks = [("findings", ["### Top issues"])]
    for number, finding in enumerate(findings, 1):
        blocks.append((f"finding {number}", [_format_markdown_finding(report, finding, number)]))
    if plans := phrases.describe_plans(report):
        blocks.append(("plan", ["\n".join(f"{escape_markdown(sentence)}." for sentence in plans)]))
    if any(finding.saving for finding in findings):
        blocks.append(("prediction", [f"<sub>{phrases.PREDICTION_NOTE}.</sub>"]))
    if unproven:
        blocks.append(("unproven", ["\n".join(unproven)]))
    if left:
        more = f"<sub>{left} more findings in the HTML or JSON report</sub>"
        blocks.append(("more findings", [more]))
    return blocks


def _format_markdown_finding(report: Report, finding: Finding, number: int) -> str:
    """Format a finding as a list item: its saving, the claim, the advice, evidence, places."""
    head = f"{number}. **{format_code_span(finding.rule, 60)}**"
    if saving := phrases.describe_saving(finding, report):
        head += f" — {escape_markdown(saving)}"
    lines = [f"{head}<br>", f"   {escape_line_start(escape_markdown(phrases.format_claim(finding)))}"]
    if finding.advice:
        lines.append(f"   <br>→ {escape_markdown(finding.advice)}")
    if finding.parts:
        parts = zip(finding.parts, phrases.format_costs(finding.parts), strict=True)
        listed = (f"{escape_markdown(time)}: {escape_markdown(part.claim)}" for part, (time, _) in parts)
        lines.append(f"   <br><sub>Stages: {'; '.join(islice(listed, 8))}</sub>")
    if finding.evidence:
        facts = " · ".join(_format_markdown_metric(metric) for metric in finding.evidence[:8])
        lines.append(f"   <br><sub>Evidence: {facts}</sub>")
    if finding.places:
        places = [escape_markdown(phrases.format_place(place, report.spans)) for place in finding.places[:3]]
        if len(finding.places) > 3:
            places.append(f"{len(finding.places) - 3} more")
        lines.append(f"   <br><sub>Where: {'; '.join(places)}</sub>")
    lines += [f"   <br><sub>Caveat: {escape_markdown(caveat)}</sub>" for caveat in finding.caveats[:4]]
    return "\n".join(lines)


def _format_markdown_gaps(report: Report) -> str:
    """Format the questions without an answer, and the data quality."""
    lines = []
    gaps = phrases.list_unanswered(report)
    if gaps:
        listed = [escape_markdown(gap) for gap in gaps[:12]]
        if len(gaps) > 12:
            listed.append(f"{len(gaps) - 12} more")
        lines.append(f"**Not analyzed:** {' · '.join(listed)}")
    summary = phrases.summarize_remarks(report.remarks)
    if summary:
        lines.append(f"**Data quality:** {escape_markdown(summary)}")
    return "\n\n".join(lines)


def make_section_choices(section: Section, options: RenderOptions) -> list[str]:
    """Format a section with fewer and fewer rows, so that a long one is shortened before it is dropped."""
    if not (section.sheets or section.metrics or section.caveats):
        return [""]
    largest = options.top
    if options.verbose:
        largest = _ROWS_VERBOSE
    limits = [largest, *(rows for rows in (50, 10, 3) if rows < largest)]
    return [_format_markdown_section(section, rows) for rows in limits]


def _format_markdown_section(section: Section, rows: int) -> str:
    """Format a folded section: its numbers, tables and caveats."""
    title = _escape_summary(section.title)
    if section.status != "ok":
        title += f" ({section.status})"
    parts = [f"<details><summary>{title}</summary>"]
    if section.metrics:
        parts.append(escape_line_start("; ".join(_format_markdown_metric(metric) for metric in section.metrics)))
    parts += [format_markdown_table(sheet, rows) for sheet in section.sheets]
    parts += [f"Note: {escape_markdown(caveat)}" for caveat in section.caveats]
    return "\n\n".join([*parts, "</details>"])


def _format_markdown_remarks(report: Report) -> str:
    """Format every remark on the data, folded."""
    if not report.remarks:
        return ""
    lines = [
        f"- {remark.severity.replace('_', ' ')} {format_code_span(remark.code, 60)}: "
        f"{escape_markdown(phrases.format_remark(remark))}"
        for remark in report.remarks[:50]
    ]
    if len(report.remarks) > 50:
        lines.append(f"- {len(report.remarks) - 50} more in the HTML or JSON report")
    listed = "\n".join(lines)
    return f"<details><summary>Data quality</summary>\n\n{listed}\n\n</details>"


def escape_line_start(text: str) -> str:
    """Escape a first character that would make the text a list, heading or quote."""
    text = text.strip()
    match = _LINE_START.match(text)
    if match is None:
        return text
    mark = match[0]
    if mark.isdigit():
        return f"{mark}\\{text[len(mark) :]}"
    return f"\\{text}"


def join_within_limit(blocks: list[tuple[str, list[str]]], limit: int = MAX_MARKDOWN_CHARS) -> str:
    """Join all blocks that fit, each in its longest form that fits, and a line on those that do not."""
    reserve = 1_200  # for the line that lists what was cut
    text = ""
    missing: list[str] = []
    shortened = False
    for name, choices in blocks:
        if not choices[0]:
            continue
        room = limit - reserve - len(text) - 2
        chosen = next((choice for choice in choices if len(choice) <= room), None)
        if chosen is None:
            missing.append(name)
            continue
        shortened = shortened or chosen is not choices[0]
        text = "\n\n".join(part for part in (text, chosen) if part)
    if missing or shortened:
        names = ", ".join(format_code_span(name, 24) for name in missing[:4]) or "rows of long tables"
        if len(missing) > 4:
            names += f" and {len(missing) - 4} more"
        text += f"\n\n*Cut at {format_quantity(limit, 'count')} characters; left out: {names}.*"
    return text + "\n"


def make_job_summary(report: Report, options: RenderOptions, limit: int = MAX_MARKDOWN_CHARS) -> str:
    """Format the report of a comparison in at most `limit` characters, with its sections folded."""
    identity = " · ".join(escape_markdown(fact) for fact in phrases.list_identity_facts(report))
    below = [escape_line_start(escape_markdown(line)) for line in report.basis]
    head = [f"**tracekit: {escape_markdown(report.answer).strip()}**", *below]
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
