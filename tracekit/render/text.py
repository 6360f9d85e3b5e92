"""Report for a terminal or a pipe: the first screen, and with `verbose` all sections.

Without colour the output has no escape codes, no box drawing and no trailing blanks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from io import StringIO
from operator import itemgetter
from typing import TYPE_CHECKING

from tracekit.model.escape import without_command
from tracekit.model.kernel_labels import is_template, short_kernel
from tracekit.model.report import Finding, Report, Section, Severity
from tracekit.render import phrases
from tracekit.render.escape import printable, shorten
from tracekit.render.grid import Grid, answer_columns, grid, name_columns
from tracekit.render.options import Options
from tracekit.render.words import occurring

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DEFAULT_WIDTH = 100
NARROWEST = 40
WIDEST = 120
"""Widest line; on wider ones the amount of a finding is too far from its claim."""
FIRST_FINDINGS = 5
"""Findings on the first screen: what one can act on today; the others need one flag."""

_GAP = 2
_BETWEEN = " " * _GAP, ""
_NAME_WIDTH = 56
_SHRUNK = 20
_SMALLEST = 6
_COLORS: dict[Severity, str] = {"high": "red", "medium": "yellow", "low": "cyan", "info": ""}

Line = list[tuple[str, str]]
"""One line of output: pieces of text, each with a style."""


def render_text(report: Report, options: Options) -> str:
    """Render the report as lines of text, each at most `width` cells wide."""
    width = max(options.width or DEFAULT_WIDTH, NARROWEST)
    lines: list[Line] = [*_pack(phrases.identity(report), " · ", width), []]
    if report.answer:
        lines += [*_wrap(printable(report.answer, phrases.SENTENCE), width, style="bold")]
        for line in report.basis:
            lines += _pack(printable(line, phrases.SENTENCE).split(" · "), " · ", width)
        phrased = list(map(phrases.metric_phrase, report.headline))
        lines += [*_pack(phrased, "  ", width), []]
    elif report.headline:
        lines += [*_headline(report, width), []]
    lines += _recordings(report, min(width, WIDEST))
    if report.overview:
        lines += [*_sheet(grid(report.overview, options.overview_rows), width, titled=False), []]
    lines += _cautions(report, min(width, WIDEST))
    lines += _findings(report, options, min(width, WIDEST))
    lines += _gaps(report, options, width)
    if options.verbose:
        for section in report.sections:
            lines += _section(section, options, width)
        lines += _remarks(report, width)
    while lines and not lines[-1]:
        lines.pop()
    lines += _words(lines, min(width, WIDEST))
    return _print(lines, options, width)


def _headline(report: Report, width: int) -> list[Line]:
    """Format the answer in bold, then the other numbers, on their own lines if the width requires it."""
    first, *further = map(phrases.metric_phrase, report.headline)
    line = "  ".join(further)
    if _cells(first) + 6 + _cells(line) <= width:
        return [[(first, "bold"), ("      ", ""), (line, "")]]
    return [*_wrap(first, width, style="bold"), *_pack(further, "  ", width)]


def _sheet(table: Grid, width: int, *, titled: bool, where: str = "-v for all") -> list[Line]:
    """Format a table in its width; unless `titled`, the title is above the name columns."""
    columns, widths = _fit(table, width)
    lines: list[Line] = []
    head: Line = []
    names = 0
    if not titled:
        names = bisect_left(columns, name_columns(table))
    span = _total(widths[:names])
    if names and _cells(table.title) <= span:
        head += [(_pad(table.title, span), "bold"), _BETWEEN]
    else:
        lines += _wrap(table.title, width, style="bold")
        if names:
            head += [(" " * span, ""), _BETWEEN]
    cells = list(zip(columns, widths, strict=True))
    for index, size in cells[names:]:
        column = table.columns[index]
        head += [(_pad(column.title, size, column.numeric), "dim"), _BETWEEN]
    lines.append(head)
    for row in table.rows:
        line: Line = []
        for index, size in cells:
            line += [(_pad(row[index], size, table.columns[index].numeric), ""), _BETWEEN]
        lines.append(line)
    return lines + _below_sheet(table, columns, width, where)


def _below_sheet(table: Grid, columns: list[int], width: int, where: str) -> list[Line]:
    """Format the notes on omitted rows and columns, and the caption."""
    lines: list[Line] = []
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, where)
    if note:
        lines += _wrap(f"… {note}", width, style="dim")
    if len(columns) < len(table.columns):
        titles = [c.title for index, c in enumerate(table.columns) if index not in columns]
        how = f"COLUMNS={_total(_widths(table, _SHRUNK))} shows all, or -o report.html"
        text = f"Not shown at this width: {', '.join(titles)} ({how})"
        lines += _wrap(text, width, style="dim")
    return lines + _wrap(table.caption, width, style="dim")


def _fit(table: Grid, width: int) -> tuple[list[int], list[int]]:
    """Choose the columns that fit and their widths: names shrink first, then columns drop from the right.

    Dropped columns that are narrower return if there is room without cutting a name.
    """
    natural, keep = _widths(table, _NAME_WIDTH), answer_columns(table)
    columns = _columns_of_width(table, natural, width)
    floor = _SHRUNK if len(columns) > len(keep) else _SMALLEST
    widths = _shrink(list(map(natural.__getitem__, columns)), columns, table, width, floor)
    while _total(widths) > width and len(columns) > 1:
        # Too narrow even for the answer: keep the name and one number.
        dropped = 1
        if table.columns[columns[1]].numeric:
            dropped = len(columns) - 1
        del columns[dropped], widths[dropped]
    return columns, [width] if _total(widths) > width else widths


def _columns_of_width(table: Grid, natural: list[int], width: int) -> list[int]:
    """Choose the columns of the answer, and others as room allows."""
    shrunk, keep = _widths(table, _SHRUNK), answer_columns(table)
    columns = list(range(len(natural)))
    loose = sorted(set(columns) - keep)
    dropped: list[int] = []
    while loose and _total(map(shrunk.__getitem__, columns)) > width:
        dropped.append(loose.pop())
        columns.remove(dropped[-1])
    for index in sorted(dropped):
        if _total(map(natural.__getitem__, (*columns, index))) <= width:
            columns = sorted([*columns, index])
    return columns


def _widths(table: Grid, longest_name: int) -> list[int]:
    """Measure the widest cell of each column; names are limited to `longest_name`, numbers are not."""
    widths = []
    for index, column in enumerate(table.columns):
        size = max(_cells(column.title), *(_cells(row[index]) for row in table.rows), 0)
        if not column.numeric:
            size = min(size, longest_name)
        widths.append(size)
    return widths


def _shrink(
    widths: list[int], columns: list[int], table: Grid, width: int, floor: int
) -> list[int]:
    """Shrink the widest text columns, down to `floor`, until all columns fit."""
    text = [place for place, index in enumerate(columns) if not table.columns[index].numeric]
    while _total(widths) > width:
        widest = max(text, key=lambda place: widths[place], default=None)
        if widest is None or widths[widest] <= floor:
            break
        widths[widest] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    """Compute the width of a line of columns."""
    return sum(size + _GAP for size in widths) - _GAP


def _recordings(report: Report, width: int) -> list[Line]:
    """Format recordings that limit the answer, each with its remedy."""
    lines: list[Line] = []
    label = "Recorded: "
    for sentence, advice, command in phrases.recordings(report):
        first, *further = _wrap(sentence, width - len(label)) or [[]]
        lines += [[(label, "bold"), *first], *_indented(further, len(label))]
        first, *further = _remedy(advice, command, width - len(label) - 2) or [[]]
        lines += _indented([[("→ ", ""), *first], *_indented(further, 2)], len(label))
        label = " " * len(label)
    if lines:
        lines.append([])
    return lines


def _remedy(advice: str, command: str, width: int) -> list[Line]:
    """Format advice with its command, which gets its own line for pasting if both do not fit on one."""
    whole = f"{advice}: {command}"
    if _cells(whole) <= width:
        return _wrap(whole, width)
    return _wrap(f"{advice}:", width) + _wrap(command, width)


def _cautions(report: Report, width: int) -> list[Line]:
    """Format the caveats, one below the other."""
    lines: list[Line] = []
    label = "Careful: "
    for caution in report.cautions:
        first, *further = _wrap(printable(caution, phrases.SENTENCE), width - 9) or [[]]
        lines += [[(label, "bold"), *first], *_indented(further, 11)]
        label = " " * len(label)
    if lines:
        lines.append([])
    return lines


def _findings(report: Report, options: Options, width: int) -> list[Line]:
    """Format the ranked list: the largest cost, the claim, and the advice."""
    limit = options.top if options.verbose else min(options.top, FIRST_FINDINGS)
    findings, left = phrases.first_findings(report, limit)
    unproven = _unproven(report, findings, width)
    if not findings:
        if left or report.answer or not report.sections:
            return []
        return [[(f"{phrases.no_findings(report)}.", "bold")], *unproven, []]
    amounts = phrases.recoverable(findings)
    times, shares = (max(map(_cells, texts)) for texts in zip(*amounts, strict=True))
    amount_width = min(times + _GAP + shares, width - 20)
    title, aside = "Worth fixing first", "up to, per step"
    fill = max(width - _cells(title) - max(_cells(aside), amount_width), 1)
    right = _pad(aside, max(_cells(aside), amount_width), right=True)
    lines: list[Line] = [[(title, "bold"), (" " * fill, ""), (right, "dim")]]
    first_of: dict[tuple[str, str], int] = {}
    for number, (finding, (time, share)) in enumerate(zip(findings, amounts, strict=True), 1):
        both = f"{_pad(time, times, right=True)}  {_pad(share, shares, right=True)}"
        amount = _pad(both, amount_width, right=True)
        lines += _claim(finding, number, amount, width, _rule_width(findings))
        alike = first_of.setdefault((finding.rule, finding.advice), number)
        lines += _advice(finding, width, alike if alike < number else None, findings[alike - 1])
        lines += _parts(finding, width) if options.verbose else []
    lines += unproven
    if left:
        lines += _wrap(
            f"… {left} more in the sections; -v for the first {options.top}", width, style="dim"
        )
    return [*lines, []]


def _parts(finding: Finding, width: int) -> list[Line]:
    """Format the stages of a finding, one per line with its amount."""
    lines: list[Line] = []
    for part, (time, _) in zip(finding.parts, phrases.recoverable(finding.parts), strict=True):
        text = f"{time}: {printable(part.claim, phrases.SENTENCE)}"
        first, *further = _wrap(text, width - 9, style="dim")
        lines += _indented([first], 7) + _indented(further, 9)
    return lines


def _unproven(report: Report, findings: list[Finding], width: int) -> list[Line]:
    """Format abstentions that matter, each with its price and the missing proof."""
    lines: list[Line] = []
    for sentence in phrases.unproven(report, findings):
        first, *further = _wrap(f"unproven: {sentence}", width - 5)
        lines += _indented([first], 5) + _indented(further, 7)
    return lines


def _rule_width(findings: list[Finding]) -> int:
    """Measure the width of the rule column."""
    return min(max(_cells(printable(f.rule, 32)) for f in findings), 32)


def _claim(f: Finding, number: int, amount: str, width: int, rules: int) -> list[Line]:
    """Format one finding; in narrow output the claim goes below its rule instead of beside it."""
    rule, style = printable(f.rule, 32), _COLORS[f.severity]
    claim_width = width - 5 - rules - _GAP - _GAP - _cells(amount)
    claim = phrases.claim(f)
    if claim_width >= 28:
        first, *further = _wrap(claim, claim_width) or [[]]
        text = _pad("".join(map(itemgetter(0), first)), claim_width)
        middle = [(_pad(rule, rules), style), (f"  {text}  ", "")]
        below = _indented(further, 5 + rules + _GAP)
    else:
        room = width - 5 - _GAP - _cells(amount)
        middle = [(_pad(rule, room), style), _BETWEEN]
        below = _indented(_wrap(claim, width - 5), 5)
    return [[(f"{number:>3}  ", ""), *middle, (amount, "bold")], *below]


def _advice(f: Finding, width: int, alike: int | None, said: Finding) -> list[Line]:
    """Format the advice and caveats of a finding, or a reference to finding `alike` with the same advice."""
    lines: list[Line] = []
    advice, style = printable(f.advice, phrases.SENTENCE), _COLORS[f.severity]
    if advice.strip() and alike is not None:
        lines.append([("     → ", style), (f"as for {alike}", "")])
    elif advice.strip():
        first, *further = _wrap(advice, width - 7)
        lines += [[("     → ", style), *first], *_indented(further, 7)]
    for caveat in f.caveats:
        if alike is not None and caveat in said.caveats:
            continue
        text = f"Careful: {printable(caveat, phrases.SENTENCE)}"
        lines += _indented(_wrap(text, width - 7, style="dim"), 7)
    return lines


def _indented(lines: list[Line], width: int) -> list[Line]:
    """Indent lines by `width` blanks."""
    return [[(" " * width, ""), *line] for line in lines]


def _gaps(report: Report, options: Options, width: int) -> list[Line]:
    """Format the questions without an answer, and the data quality."""
    lines: list[Line] = []
    listing = phrases.not_analysed if options.verbose else phrases.not_analysed_in_short
    gaps = listing(report)
    if gaps:
        lines += _pack(["Not analysed: " + gaps[0], *gaps[1:]], " · ", width, hang=2)
    summary = phrases.remarks_summary(report.remarks)
    if summary:
        if not options.verbose:
            summary += "  (-v to list)"
        lines += _pack([f"Data quality: {summary}"], " · ", width)
    if lines:
        lines.append([])
    return lines


def _words(lines: list[Line], width: int) -> list[Line]:
    """Explain the jargon on the screen that newcomers may not know."""
    screen = "\n".join("".join(map(itemgetter(0), line)) for line in lines)
    meanings = _pack(occurring(screen), " · ", width)
    return [[], *([(text, "dim") for text, _ in line] for line in meanings)] if meanings else []


def _section(section: Section, options: Options, width: int) -> list[Line]:
    """Format a section with its numbers and tables, or the reason for having none."""
    title = printable(section.title, 120)
    lines = _wrap(title, width, style="bold")
    lines.append([("-" * min(_cells(title), width), "dim")])
    if section.status != "ok":
        reason = printable(section.reason, phrases.SENTENCE) or "no reason given"
        lines += _wrap(f"{section.status}: {reason}", width)
    if section.metrics:
        lines += [*_pack(list(map(phrases.metric_phrase, section.metrics)), " · ", width), []]
    for sheet in section.sheets:
        where = "--top for more"
        lines += [*_sheet(grid(sheet, options.top), width, titled=True, where=where), []]
    for caveat in section.caveats:
        lines += _wrap(f"Careful: {printable(caveat, phrases.SENTENCE)}", width)
    if lines[-1]:
        lines.append([])
    return lines


def _remarks(report: Report, width: int) -> list[Line]:
    """Format every remark on the data, in the report's order, the most serious first."""
    if not report.remarks:
        return []
    lines: list[Line] = [[("Data quality", "bold")], [("-" * 12, "dim")]]
    for remark in report.remarks:
        kind = remark.severity.replace("_", " ")
        text = f"{kind} [{printable(remark.code, 60)}] {phrases.remark_phrase(remark)}"
        lines += _wrap(text, width)
    return lines


def _pack(items: list[str], between: str, width: int, hang: int = 0) -> list[Line]:
    """Pack items in lines, broken between items if possible; later lines are indented by `hang` blanks."""
    rows: list[str] = []
    for item in items:
        if rows and _cells(rows[-1] + between + item) + hang <= width:
            rows[-1] += between + item
        else:
            rows.append(item)
    lines: list[Line] = []
    for row in rows:
        lines += _wrap(row, width - hang)
    return [*lines[:1], *_indented(lines[1:], hang)]


def _wrap(text: str, width: int, style: str = "") -> list[Line]:
    """Wrap text in lines of at most `width` cells, at spaces, or within words longer than a line."""
    if not text.strip():
        return []
    if _cells(text) <= width:
        return [[(text, style)]]
    words = re.findall(r"\s*\S+\s*", text)
    longest = max(map(_cells, map(str.rstrip, words)))
    if longest > width or "\t" in text or "\n" in text:
        return _folded(text, width, style)
    lines, size = [""], 0
    for word in words:
        if lines[-1] and size + _cells(word.rstrip()) > width:
            lines.append("")
            size = 0
        lines[-1] += word
        size += _cells(word)
    return [[(line.rstrip(), style)] for line in lines]


def _folded(text: str, width: int, style: str) -> list[Line]:
    """Wrap text with words longer than a line, or with its own line breaks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=StringIO(), width=width, _environ={})
    wrapped = Text(text).wrap(console, width)
    return [[(line.plain.rstrip(), style)] for line in wrapped]


def _cells(text: str) -> int:
    """Count the terminal cells of text: wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int, right: bool = False) -> str:
    """Pad or shorten text to exactly `width` cells; shortened text keeps both ends."""
    size = _cells(text)
    if size > width:
        below = text.lstrip("· ")  # the prefix shows its depth in a tree
        if is_template(below):
            text = text[: len(text) - len(below)] + short_kernel(below)
            size = _cells(text)
        keep = width
        while size > width:
            text = shorten(text, keep)
            size, keep = _cells(text), keep - 1
    fill = " " * (width - size)
    return fill + text if right else text + fill


def _print(lines: list[Line], options: Options, width: int) -> str:
    """Join the lines to one string, with colour only on request, whatever the environment says."""
    if not options.color:
        texts = ("".join(map(itemgetter(0), line)).rstrip() for line in lines)
        return "\n".join([*map(without_command, texts), ""])
    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    console: Console = Console(
        file=out,
        width=width,
        color_system="standard",
        force_terminal=True,
        force_jupyter=False,
        legacy_windows=False,
        no_color=False,
        _environ={},
    )
    for line in lines:
        text: Text = Text.assemble(*line)
        text.rstrip()
        console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
    return "\n".join(map(without_command, out.getvalue().split("\n")))
