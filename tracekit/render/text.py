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
        phrased = list(map(phrases.metric_phrase, report.headline))
        lines += [*_pack(phrased, "  ", width), []]
    elif report.headline:
        lines += [*_headline(report, width), []]
    if report.overview:
        table = grid(report.overview, None if options.verbose else options.top)
        lines += [*_sheet(table, width, titled=False), []]
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
    first, *further = map(phrases.metric_phrase, report.headline)
    line = "  ".join(further)
    if _cells(first) + 6 + _cells(line) <= width:
        return [[(first, "bold"), ("      " if line else "", ""), (line, "")]]
    return [*_wrap(first, width, style="bold"), *_pack(further, "  ", width)]


def _sheet(table: Grid, width: int, *, titled: bool, where: str = "-v for all") -> list[Line]:
    """A table in its width; without a title line the title stands over the names."""
    columns, widths = _fit(table, width)
    lines: list[Line] = []
    head = [] if titled else _title_over_names(table, columns, widths)
    if not head:
        lines += _wrap(table.title, width, style="bold")
    if not (head or titled):
        head = _blank_over_names(table, columns, widths)
    cells = list(zip(columns, widths, strict=True))
    for index, size in cells[_names_in(table, columns) if head else 0 :]:
        column = table.columns[index]
        head += [
            (" " * _GAP if head else "", ""),
            (_pad(column.title, size, column.numeric), "dim"),
        ]
    lines.append(head)
    for row in table.rows:
        line: Line = []
        for index, size in cells:
            line.append((" " * _GAP if line else "", ""))
            line.append((_pad(row[index], size, table.columns[index].numeric), ""))
        lines.append(line)
    return lines + _below_sheet(table, columns, width, where)


def _names_in(table: Grid, columns: list[int]) -> int:
    """How many of these columns name the row."""
    return sum(index < name_columns(table) for index in columns)


def _title_over_names(table: Grid, columns: list[int], widths: list[int]) -> Line:
    """The title over the columns that name the row; nothing where it does not fit there."""
    names = _names_in(table, columns)
    span = _total(widths[:names])
    return [(_pad(table.title, span), "bold")] if names and _cells(table.title) <= span else []


def _blank_over_names(table: Grid, columns: list[int], widths: list[int]) -> Line:
    """Room over the columns that name the row; nothing where there are none."""
    names = _names_in(table, columns)
    return [(" " * _total(widths[:names]), "")] if names else []


def _below_sheet(table: Grid, columns: list[int], width: int, where: str) -> list[Line]:
    """What a table leaves out, and its caption."""
    lines: list[Line] = []
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, where)
    if note:
        lines += _wrap(f"… {note}", width, style="dim")
    if len(columns) < len(table.columns):
        titles = [c.title for index, c in enumerate(table.columns) if index not in columns]
        how = f"COLUMNS={_full_width(table)} shows all, or -o report.html"
        text = f"Not shown at this width: {', '.join(titles)} ({how})"
        lines += _wrap(text, width, style="dim")
    return lines + _wrap(table.caption, width, style="dim")


def _fit(table: Grid, width: int) -> tuple[list[int], list[int]]:
    """The columns that fit and their widths: names shrink first, then columns go from the right.

    Of those that went, narrower ones come back where there is room without cutting a name.
    """
    natural, keep = _natural(table), answer_columns(table)
    columns = _columns_of_width(table, natural, width)
    floor = _SHRUNK if len(columns) > len(keep) else _SMALLEST
    widths = _shrink([natural[index] for index in columns], columns, table, width, floor)
    while _total(widths) > width and len(columns) > 1:
        # Narrower than even the answer: the name and one number are what is left.
        last = len(columns) - 1
        dropped = last if last == 1 or table.columns[columns[1]].numeric else 1
        del columns[dropped], widths[dropped]
    return columns, [width] if _total(widths) > width else widths


def _columns_of_width(table: Grid, natural: list[int], width: int) -> list[int]:
    """The columns of the answer, and of the others those that there is room for."""
    shrunk, keep = _shrunk(table), answer_columns(table)
    columns = list(range(len(natural)))
    loose = [index for index in columns if index not in keep]
    dropped: list[int] = []
    while loose and _total([shrunk[index] for index in columns]) > width:
        dropped.append(loose.pop())
        columns.remove(dropped[-1])
    for index in sorted(dropped):
        if _total([natural[column] for column in (*columns, index)]) <= width:
            columns = sorted([*columns, index])
    return columns


def _natural(table: Grid) -> list[int]:
    """The width that each column asks for: its widest cell, of names no more than a person reads."""
    natural = []
    for index, column in enumerate(table.columns):
        size = max(_cells(column.title), *(_cells(row[index]) for row in table.rows), 0)
        natural.append(size if column.numeric else min(size, _NAME_WIDTH))
    return natural


def _shrunk(table: Grid) -> list[int]:
    """The least width of each column beside others: names may be cut, numbers not."""
    widths = zip(_natural(table), table.columns, strict=True)
    return [size if column.numeric else min(size, _SHRUNK) for size, column in widths]


def _full_width(table: Grid) -> int:
    """The width at which every column is shown."""
    return _total(_shrunk(table))


def _shrink(
    widths: list[int], columns: list[int], table: Grid, width: int, floor: int
) -> list[int]:
    """The widths with the widest text columns made narrower, down to `floor`, until all fit."""
    text = [place for place, index in enumerate(columns) if not table.columns[index].numeric]
    while _total(widths) > width:
        widest = max(text, key=lambda place: widths[place], default=None)
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
        first, *further = _wrap(printable(caution, phrases.SENTENCE), width - 9) or [[]]
        lines.append([("         " if lines else "Careful: ", "bold"), *first])
        lines += _indented(further, 11)
    return [*lines, []] if lines else []


def _findings(report: Report, options: Options, width: int) -> list[Line]:
    """The ranked list: what it costs at most, the claim, and what to try."""
    limit = options.top if options.verbose else min(options.top, FIRST_FINDINGS)
    findings, left = phrases.first_findings(report, limit)
    if not findings:
        judged = report.sections and not left and not report.answer
        return [[(f"{phrases.no_findings(report)}.", "bold")], []] if judged else []
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
        first, *further = _wrap(claim, claim_width) or [[]]
        text = _pad("".join(piece for piece, _ in first), claim_width)
        lines.append(
            [
                (f"{number:>3}  ", ""),
                (_pad(rule, rules), style),
                (f"  {text}  ", ""),
                (amount, "bold"),
            ]
        )
        lines += _indented(further, 5 + rules + _GAP)
    else:
        room = width - 5 - _GAP - _cells(amount)
        lines.append(
            [(f"{number:>3}  ", ""), (_pad(rule, room), style), ("  ", ""), (amount, "bold")]
        )
        lines += _indented(_wrap(claim, width - 5), 5)
    advice = printable(f.advice, phrases.SENTENCE)
    if advice.strip():
        first, *further = _wrap(advice, width - 7)
        lines += [[("     → ", style), *first], *_indented(further, 7)]
    for caveat in f.caveats:
        text = f"Careful: {printable(caveat, phrases.SENTENCE)}"
        lines += _indented(_wrap(text, width - 7, style="dim"), 7)
    return lines


def _indented(lines: list[Line], width: int) -> list[Line]:
    """The lines, so many blanks further right."""
    return [[(" " * width, ""), *line] for line in lines]


def _gaps(report: Report, options: Options, width: int) -> list[Line]:
    """The lines of what was not seen, and how sound the data is."""
    lines: list[Line] = []
    gaps = phrases.not_analysed(report)
    if gaps:
        listed = gaps if options.verbose else gaps[:6]
        if len(gaps) > len(listed):
            listed.append(f"{len(gaps) - len(listed)} more (-v)")
        lines += _pack(["Not analysed: " + listed[0], *listed[1:]], " · ", width, hang="  ")
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
