"""The report for a terminal or a pipe: the first screen, and with `verbose` everything.

Plain without colour: no escape codes, no box drawing, nothing at the end of a line.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from tracekit.model.report import Finding, Report, Section, Severity
from tracekit.render import phrases
from tracekit.render.escape import printable, shorten
from tracekit.render.grid import Grid, answer_columns, grid, name_columns
from tracekit.render.options import Options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DEFAULT_WIDTH = 100
NARROWEST = 40
WIDEST = 120
"""Findings are sentences: on a wider line the amount is too far from the claim."""
FIRST_FINDINGS = 5
"""Findings on the first screen: what one can act on today; the rest are one flag away."""

_GAP = 2
_NAME_WIDTH = 56
_SHRUNK = 20
_SMALLEST = 6
_COLORS: dict[Severity, str] = {"high": "red", "medium": "yellow", "low": "cyan", "info": ""}

Line = list[tuple[str, str]]
"""One line of output: pieces of text, each with a style."""


def render_text(report: Report, options: Options) -> str:
    """The report as lines of text, each at most `width` cells wide."""
    width = max(options.width or DEFAULT_WIDTH, NARROWEST)
    lines: list[Line] = [*_pack(phrases.identity(report), " · ", width), []]
    if report.answer:
        lines += [*_wrap(printable(report.answer, phrases.SENTENCE), width, style="bold")]
        for line in report.basis:
            lines += _pack(printable(line, phrases.SENTENCE).split(" · "), " · ", width)
        others = list(map(phrases.metric_phrase, report.headline))
        lines += [*_pack(others, "  ", width), []]
    elif report.headline:
        lines += [*_headline(report, width), []]
    if report.overview:
        shown = None if options.verbose else options.top
        lines += [*_sheet(grid(report.overview, shown), width, titled=False), []]
    lines += _cautions(report, min(width, WIDEST))
    lines += _findings(report, options, min(width, WIDEST))
    lines += _gaps(report, options, width)
    if options.verbose:
        for section in report.sections:
            lines += _section(section, options, width)
        lines += _remarks(report, width)
    while lines and not lines[-1]:
        lines.pop()
    return _print(lines, options, width)


def _headline(report: Report, width: int) -> list[Line]:
    """The answer in bold, then the other numbers; on lines of their own where the width asks for it."""
    first, *others = map(phrases.metric_phrase, report.headline)
    rest = "  ".join(others)
    if _cells(first) + 6 + _cells(rest) <= width:
        return [[(first, "bold"), ("      " if rest else "", ""), (rest, "")]]
    return [*_wrap(first, width, style="bold"), *_pack(others, "  ", width)]


def _sheet(table: Grid, width: int, *, titled: bool, where: str = "-v for all") -> list[Line]:
    """A table in its width; without a title line the title stands over the names."""
    columns, widths = _fit(table, width)
    names = sum(1 for at in columns if at < name_columns(table))
    span = sum(widths[:names]) + _GAP * (names - 1)
    lines: list[Line] = []
    titles = [table.columns[at].title for at in columns]
    if titled or not names or _cells(table.title) > span:
        lines += _wrap(table.title, width, style="bold")
        head: Line = []
        names = names if not titled else 0
        span = span if names else -_GAP
        if names:
            head = [(" " * span, "")]
    else:
        head = [(_pad(table.title, span), "bold")]
    for at, title, size in list(zip(columns, titles, widths, strict=True))[names:]:
        head += [
            (" " * _GAP if head else "", ""),
            (_pad(title, size, table.columns[at].numeric), "dim"),
        ]
    lines.append(head)
    for row in table.rows:
        line: Line = []
        for at, size in zip(columns, widths, strict=True):
            line += [(" " * _GAP if line else "", "")]
            line += [(_pad(row[at], size, table.columns[at].numeric), "")]
        lines.append(line)
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, where)
    if note:
        lines += _wrap(f"… {note}", width, style="dim")
    if len(columns) < len(table.columns):
        hidden = ", ".join(c.title for at, c in enumerate(table.columns) if at not in columns)
        how = f"COLUMNS={_whole(table)} shows all, or -o report.html"
        lines += _wrap(f"Not shown at this width: {hidden} ({how})", width, style="dim")
    if table.caption:
        lines += _wrap(table.caption, width, style="dim")
    return lines


def _fit(table: Grid, width: int) -> tuple[list[int], list[int]]:
    """The columns that fit and their widths: names shrink first, then columns go from the right.

    Of those that went, narrower ones come back where there is room without cutting a name.
    """
    natural, shrunk = _natural(table), _shrunk(table)
    keep = answer_columns(table)
    columns = list(range(len(natural)))
    loose = [at for at in columns if at not in keep]
    while loose and _total([shrunk[at] for at in columns]) > width:
        columns.remove(loose.pop())
    for at in sorted(set(range(len(natural))) - set(columns)):
        if _total([natural[at] for at in (*columns, at)]) <= width:
            columns = sorted([*columns, at])
    floor = _SHRUNK if len(columns) > len(keep) else _SMALLEST
    widths = _shrink([natural[at] for at in columns], columns, table, width, floor)
    while _total(widths) > width and len(columns) > 1:
        # Narrower than even the answer: the name and one number are what is left.
        gone = 1 if len(columns) > 2 and not table.columns[columns[1]].numeric else len(columns) - 1
        del columns[gone], widths[gone]
    if _total(widths) > width:
        widths = [width]
    return columns, widths


def _natural(table: Grid) -> list[int]:
    """The width that each column asks for: its widest cell, of names no more than a person reads."""
    natural = []
    for at, column in enumerate(table.columns):
        cells = max([_cells(column.title), *(_cells(row[at]) for row in table.rows)])
        natural.append(cells if column.numeric else min(cells, _NAME_WIDTH))
    return natural


def _shrunk(table: Grid) -> list[int]:
    """The least width of each column beside others: names may be cut, numbers not."""
    return [
        size if column.numeric else min(size, _SHRUNK)
        for size, column in zip(_natural(table), table.columns, strict=True)
    ]


def _whole(table: Grid) -> int:
    """The width at which every column is shown."""
    return _total(_shrunk(table))


def _shrink(
    widths: list[int], columns: list[int], table: Grid, width: int, floor: int
) -> list[int]:
    """The widths with the widest text columns made narrower, down to `floor`, until all fit."""
    text = [i for i, at in enumerate(columns) if not table.columns[at].numeric]
    while _total(widths) > width:
        widest = max(text, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= floor:
            break
        widths[widest] -= 1
    return widths


def _total(widths: list[int]) -> int:
    """The width of a line of columns."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _cautions(report: Report, width: int) -> list[Line]:
    """What to keep in mind, one below the other."""
    lines: list[Line] = []
    for caution in report.cautions:
        first, *rest = _wrap(printable(caution, phrases.SENTENCE), width - 9) or [[]]
        lines.append([("         " if lines else "Careful: ", "bold"), *first])
        lines += [[("           ", ""), *line] for line in rest]
    return [*lines, []] if lines else []


def _findings(report: Report, options: Options, width: int) -> list[Line]:
    """The ranked list: what it costs at most, the claim, and what to try."""
    limit = options.top if options.verbose else min(options.top, FIRST_FINDINGS)
    findings, left = phrases.first_findings(report, limit)
    if not findings:
        judged = report.sections and not left and not report.answer
        return [[("No findings.", "bold")], []] if judged else []
    amounts = phrases.recoverable(findings)
    times, shares = (max(_cells(amount[i]) for amount in amounts) for i in (0, 1))
    amount_width = min(times + _GAP + shares, width - 20)
    title, aside = "Worth fixing first", "up to, per step"
    fill = max(width - _cells(title) - max(_cells(aside), amount_width), 1)
    right = _pad(aside, max(_cells(aside), amount_width), right=True)
    lines: list[Line] = [[(title, "bold"), (" " * fill, ""), (right, "dim")]]
    for number, (finding, (time, share)) in enumerate(zip(findings, amounts, strict=True), 1):
        both = f"{_pad(time, times, right=True)}  {_pad(share, shares, right=True)}"
        amount = _pad(both, amount_width, right=True)
        lines += _finding(finding, number, amount, width, _rule_width(findings))
    if left:
        lines += _wrap(
            f"… {left} more in the sections; -v for the first {options.top}", width, style="dim"
        )
    return [*lines, []]


def _rule_width(findings: list[Finding]) -> int:
    """The width of the column of rules."""
    return min(max(_cells(printable(f.rule, 32)) for f in findings), 32)


def _finding(f: Finding, number: int, amount: str, width: int, rules: int) -> list[Line]:
    """One finding: with little room the claim goes below its rule instead of beside it."""
    rule, style = printable(f.rule, 32), _COLORS[f.severity]
    claim_width = width - 5 - rules - _GAP - _GAP - _cells(amount)
    claim = phrases.claim(f)
    lines: list[Line] = []
    if claim_width >= 28:
        first, *others = _wrap(claim, claim_width) or [[]]
        text = _pad("".join(piece for piece, _ in first), claim_width)
        lines.append(
            [
                (f"{number:>3}  ", ""),
                (_pad(rule, rules), style),
                (f"  {text}  ", ""),
                (amount, "bold"),
            ]
        )
        lines += [[(" " * (5 + rules + _GAP), ""), *other] for other in others]
    else:
        room = width - 5 - _GAP - _cells(amount)
        lines.append(
            [(f"{number:>3}  ", ""), (_pad(rule, room), style), ("  ", ""), (amount, "bold")]
        )
        lines += [[("     ", ""), *line] for line in _wrap(claim, width - 5)]
    advice = printable(f.advice, phrases.SENTENCE)
    if advice.strip():
        arrow, *rest = _wrap(advice, width - 7)
        lines += [[("     → ", style), *arrow], *([("       ", ""), *line] for line in rest)]
    for caveat in f.caveats:
        text = f"Careful: {printable(caveat, phrases.SENTENCE)}"
        lines += [[("       ", ""), *line] for line in _wrap(text, width - 7, style="dim")]
    return lines


def _gaps(report: Report, options: Options, width: int) -> list[Line]:
    """The lines of what was not seen, and how sound the data is."""
    lines: list[Line] = []
    gaps = phrases.not_analysed(report)
    if gaps:
        shown = gaps if options.verbose else gaps[:6]
        more = [f"{len(gaps) - len(shown)} more (-v)"] if len(gaps) > len(shown) else []
        lines += _pack(["Not analysed: " + shown[0], *shown[1:], *more], " · ", width, hang="  ")
    summary = phrases.remarks_summary(report.remarks)
    if summary:
        hint = "" if options.verbose else "  (-v to list)"
        lines += _pack([f"Data quality: {summary}{hint}"], " · ", width)
    return [*lines, []] if lines else []


def _section(section: Section, options: Options, width: int) -> list[Line]:
    """A section with its numbers and tables; or why it has none."""
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
    return [*lines, []] if lines[-1] else lines


def _remarks(report: Report, width: int) -> list[Line]:
    """Every remark on the data, the gravest as the report orders them."""
    if not report.remarks:
        return []
    lines: list[Line] = [[("Data quality", "bold")], [("-" * 12, "dim")]]
    for remark in report.remarks:
        kind = remark.severity.replace("_", " ")
        text = f"{kind} [{printable(remark.code, 60)}] {phrases.remark_phrase(remark)}"
        lines += _wrap(text, width)
    return lines


def _pack(items: list[str], between: str, width: int, hang: str = "") -> list[Line]:
    """The items in a row, broken between them where possible; later lines begin with `hang`."""
    rows: list[str] = []
    for item in items:
        if rows and _cells(rows[-1] + between + item) + len(hang) <= width:
            rows[-1] += between + item
        else:
            rows.append(item)
    lines = [line for row in rows for line in _wrap(row, width - len(hang))]
    return [*lines[:1], *([(hang, ""), *line] for line in lines[1:])]


def _wrap(text: str, width: int, style: str = "") -> list[Line]:
    """The text in lines of at most `width` cells, broken at spaces, within a word only if it is longer."""
    from rich.console import Console
    from rich.text import Text

    if not text.strip():
        return []
    if _cells(text) <= width:
        return [[(text, style)]]
    console = Console(file=StringIO(), width=width, _environ={})
    wrapped = Text(text).wrap(console, width)
    return [[(line.plain.rstrip(), style)] for line in wrapped]


def _cells(text: str) -> int:
    """The cells that a terminal needs for the text: wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int, right: bool = False) -> str:
    """The text in exactly `width` cells: both ends stay where it is too long."""
    size = _cells(text)
    if size > width:
        keep = width
        while size > width:
            text = shorten(text, keep)
            size, keep = _cells(text), keep - 1
    fill = " " * (width - size)
    return fill + text if right else text + fill


def _print(lines: list[Line], options: Options, width: int) -> str:
    """The lines as one string; colour only where asked for, whatever the environment says."""
    if not options.color:
        return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)
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
    return out.getvalue()
