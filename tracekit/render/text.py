"""Report for a terminal or a pipe: the first screen, and with `verbose` all sections that have an answer.

Without colour the output has no escape codes, no box drawing and no trailing blanks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING

from tracekit.model.report import Finding, Report, Section, Severity
from tracekit.model.text.escape import break_ci_command
from tracekit.model.text.wrapping import count_terminal_cells as _count_terminal_cells
from tracekit.model.text.wrapping import is_prose, measure_longest_word, shorten_cells, wrap_rows
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.grid import TextGrid, choose_answer_columns, count_name_columns, make_grid
from tracekit.render.options import RenderOptions
from tracekit.render.plots.stage_inks import assign_stage_inks
from tracekit.render.words import list_glossary_entries

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DEFAULT_WIDTH = 100
NARROWEST = 40
WIDEST = 120
"""Widest line; on wider ones the amount of a finding is too far from its claim."""
MAX_FIRST_FINDINGS = 5
"""Findings on the first screen: what one can act on today; the others need one flag."""

_GAP = 2
_BETWEEN = " " * _GAP, ""
_NAME_WIDTH = 56
_SHRUNK = 20
_SMALLEST = 6
_COLORS: dict[Severity, str] = {"high": "red", "medium": "yellow", "low": "cyan", "info": ""}

StyledLine = list[tuple[str, str]]
"""One line of output: pieces of text, each with a style."""


def render_text(report: Report, options: RenderOptions) -> str:
    """Render the report as lines of text, each at most `width` cells wide."""
    width = max(options.width or DEFAULT_WIDTH, NARROWEST)
    lines: list[StyledLine] = [*_pack_items(phrases.list_identity_facts(report), " · ", width), []]
    if report.answer:
        lines += [*_wrap_text(make_printable(report.answer, phrases.SENTENCE), width, style="bold")]
        for line in report.basis:
            lines += _pack_items(make_printable(line, phrases.SENTENCE).split(" · "), " · ", width)
        phrased = [phrases.format_metric(metric) for metric in report.headline]
        lines += [*_pack_items(phrased, "  ", width), []]
    elif report.headline:
        lines += [*_format_text_headline(report, width), []]
    lines += _format_text_recordings(report, min(width, WIDEST))
    if report.overview:
        overview = report.overview if options.verbose else phrases.add_verbose_hint(report.overview)
        inks = assign_stage_inks(report.stage_order) if options.color else {}
        lines += [*_format_text_table(make_grid(overview, options.overview_rows), width, titled=False, inks=inks), []]
    lines += _format_text_cautions(report, min(width, WIDEST))
    lines += _format_text_findings(report, options, min(width, WIDEST))
    lines += _format_text_gaps(report, options, width)
    if options.verbose:
        for section in report.sections:
            if section.status != "skipped":  # "Not analyzed" lists these with their reasons
                lines += _format_text_section(section, options, width)
        lines += _format_text_remarks(report, width)
    while lines and not lines[-1]:
        lines.pop()
    lines += _format_glossary(lines, min(width, WIDEST))
    return _print_lines(lines, options, width)


def _format_text_headline(report: Report, width: int) -> list[StyledLine]:
    """Format the answer in bold, then the other numbers, on their own lines if the width requires it."""
    first, *further = (phrases.format_metric(metric) for metric in report.headline)
    line = "  ".join(further)
    if _count_terminal_cells(first) + 6 + _count_terminal_cells(line) <= width:
        return [[(first, "bold"), ("      ", ""), (line, "")]]
    return [*_wrap_text(first, width, style="bold"), *_pack_items(further, "  ", width)]


def _format_text_table(
    table: TextGrid,
    width: int,
    *,
    titled: bool,
    where: str = "-v for all",
    inks: Mapping[str, str] = MappingProxyType({}),
) -> list[StyledLine]:
    """Format a table in its width; unless `titled`, the title is above the name columns. Names in `inks` have a color."""
    columns, widths = _fit_columns(table, width)
    lines: list[StyledLine] = []
    head: StyledLine = []
    names = 0
    if not titled:
        names = bisect_left(columns, count_name_columns(table))
    span = _sum_column_widths(widths[:names])
    if names and _count_terminal_cells(table.title) <= span:
        head += [(_pad_text(table.title, span), "bold"), _BETWEEN]
    else:
        lines += _wrap_text(table.title, width, style="bold")
        if names:
            head += [(" " * span, ""), _BETWEEN]
    cells = list(zip(columns, widths, strict=True))
    for index, size in cells[names:]:
        column = table.columns[index]
        head += [(_pad_text(column.title, size, column.numeric), "dim"), _BETWEEN]
    lines.append(head)
    wrapped = wrap_rows([[row[index] for index in columns] for row in table.rows], widths)
    for row, row_lines in zip(table.rows, wrapped, strict=True):
        for texts in row_lines:
            line: StyledLine = []
            for text, (index, size) in zip(texts, cells, strict=True):
                ink = inks.get(row[index], "") if index < names else ""
                line += [(_pad_text(text, size, table.columns[index].numeric), ink), _BETWEEN]
            lines.append(line)
    return lines + _format_table_notes(table, columns, width, where)


def _format_table_notes(table: TextGrid, columns: list[int], width: int, where: str) -> list[StyledLine]:
    """Format the notes on omitted rows and columns, and the caption."""
    lines: list[StyledLine] = []
    note = phrases.describe_missing_rows(len(table.rows), table.more, table.omitted, where)
    if note:
        lines += _wrap_text(f"… {note}", width, style="dim")
    if len(columns) < len(table.columns):
        titles = [c.title for index, c in enumerate(table.columns) if index not in columns]
        how = f"COLUMNS={_sum_column_widths(_measure_column_widths(table, _SHRUNK))} shows all, or -o report.html"
        text = f"Not shown at this width: {', '.join(titles)} ({how})"
        lines += _wrap_text(text, width, style="dim")
    return lines + _wrap_text(table.caption, width, style="dim")


def _fit_columns(table: TextGrid, width: int) -> tuple[list[int], list[int]]:
    """Choose the columns that fit and their widths: names shrink first, then columns drop from the right.

    Dropped columns that are narrower return if there is room without cutting a name.
    """
    natural, keep = _measure_column_widths(table, _NAME_WIDTH), choose_answer_columns(table)
    columns = _choose_columns_by_width(table, natural, width)
    floor = _SHRUNK if len(columns) > len(keep) else _SMALLEST
    widths = _shrink_text_columns([natural[column] for column in columns], columns, table, width, floor)
    while _sum_column_widths(widths) > width and len(columns) > 1:
        # Too narrow even for the answer: keep the name and one number.
        dropped = 1
        if table.columns[columns[1]].numeric:
            dropped = len(columns) - 1
        del columns[dropped], widths[dropped]
    return columns, [width] if _sum_column_widths(widths) > width else widths


def _choose_columns_by_width(table: TextGrid, natural: list[int], width: int) -> list[int]:
    """Choose the columns of the answer, and others as room allows."""
    shrunk, keep = _measure_column_widths(table, _SHRUNK), choose_answer_columns(table)
    columns = list(range(len(natural)))
    loose = _group_interval_ends(table, sorted(set(columns) - keep))
    dropped: list[tuple[int, ...]] = []
    while loose and _sum_column_widths(shrunk[column] for column in columns) > width:
        dropped.append(loose.pop())
        columns = [column for column in columns if column not in dropped[-1]]
    for group in reversed(dropped):
        if _sum_column_widths(natural[place] for place in (*columns, *group)) <= width:
            columns = sorted([*columns, *group])
    return columns


def _group_interval_ends(table: TextGrid, columns: list[int]) -> list[tuple[int, ...]]:
    """Group the two ends of an interval, which are shown together or not at all; other columns are on their own."""
    highs = dict(table.intervals)
    paired = {low: high for low, high in highs.items() if low in columns and high in columns}
    return [
        (column, paired[column]) if column in paired else (column,)
        for column in columns
        if column not in paired.values()
    ]


def _measure_column_widths(table: TextGrid, longest_name: int) -> list[int]:
    """Measure the widest cell of each column; names are limited to `longest_name`, numbers are not."""
    widths = []
    for index, column in enumerate(table.columns):
        size = max(_count_terminal_cells(column.title), *(_count_terminal_cells(row[index]) for row in table.rows), 0)
        if not column.numeric:
            size = min(size, longest_name)
        widths.append(size)
    return widths


def _shrink_text_columns(widths: list[int], columns: list[int], table: TextGrid, width: int, floor: int) -> list[int]:
    """Shrink the widest text columns until all columns fit; prose needs its longest word, other text `floor`."""
    floors = {
        place: max(floor, min(_measure_prose_word(table, index), _SHRUNK))
        for place, index in enumerate(columns)
        if not table.columns[index].numeric
    }
    while _sum_column_widths(widths) > width:
        wide = [place for place in floors if widths[place] > floors[place]]
        if not wide:
            break
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def _measure_prose_word(table: TextGrid, index: int) -> int:
    """Measure the longest word of the prose in a column; 0 if it has names only."""
    return max((measure_longest_word(row[index]) for row in table.rows if is_prose(row[index])), default=0)


def _sum_column_widths(widths: Iterable[int]) -> int:
    """Compute the width of a line of columns."""
    return sum(size + _GAP for size in widths) - _GAP


def _format_text_recordings(report: Report, width: int) -> list[StyledLine]:
    """Format recordings that limit the answer, each with its remedy."""
    lines: list[StyledLine] = []
    label = "Recorded: "
    for sentence, advice, command in phrases.list_limiting_recordings(report):
        lines += _label_lines(label, "bold", _wrap_text(sentence, width - len(label)), len(label))
        remedy = _format_remedy(advice, command, width - len(label) - 2)
        lines += _indent_lines(_label_lines("→ ", "", remedy, 2), len(label))
        label = " " * len(label)
    if lines:
        lines.append([])
    return lines


def _format_remedy(advice: str, command: str, width: int) -> list[StyledLine]:
    """Format advice with its command, which gets its own line for pasting if both do not fit on one."""
    whole = f"{advice}: {command}"
    if _count_terminal_cells(whole) <= width:
        return _wrap_text(whole, width)
    return _wrap_text(f"{advice}:", width) + _wrap_text(command, width)


def _format_text_cautions(report: Report, width: int) -> list[StyledLine]:
    """Format the notes on all numbers, one below the other."""
    lines: list[StyledLine] = []
    label = "Note: "
    for caution in report.cautions:
        lines += _label_lines(label, "bold", _wrap_text(make_printable(caution, phrases.SENTENCE), width - 8), 8)
        label = " " * len(label)
    if lines:
        lines.append([])
    return lines


def _format_text_findings(report: Report, options: RenderOptions, width: int) -> list[StyledLine]:
    """Format the ranked list: the largest cost, the claim, and the advice."""
    limit = options.top if options.verbose else min(options.top, MAX_FIRST_FINDINGS)
    findings, left = phrases.choose_first_findings(report, limit)
    unproven = _format_text_unproven(report, findings, width)
    if not findings:
        if left or report.answer or not report.sections:
            return []
        return [[(f"{phrases.describe_no_findings(report)}.", "bold")], *unproven, []]
    aside, amounts = _align_savings(findings, report, width - 20)
    title = "Top issues"
    fill = " " * max(width - _count_terminal_cells(title) - _count_terminal_cells(aside), 1) if aside else ""
    lines: list[StyledLine] = [[(title, "bold"), (fill, ""), (aside, "dim")]]
    rule_width = min(max(_count_terminal_cells(make_printable(finding.rule, 32)) for finding in findings), 32)
    first_of: dict[tuple[str, str], int] = {}
    for number, (finding, amount) in enumerate(zip(findings, amounts, strict=True), 1):
        lines += _format_text_claim(finding, number, amount, width, rule_width)
        alike = first_of.setdefault((finding.rule, finding.advice), number)
        lines += _format_text_advice(finding, width, alike if alike < number else None, findings[alike - 1])
        lines += _format_finding_details(finding, report, width) if options.verbose else []
    lines += _format_text_plans(report, width, is_predicted=bool(aside))
    lines += unproven
    if left:
        text = phrases.describe_hidden_findings(len(findings), left, options.top, verbose=options.verbose)
        lines += _wrap_text(f"… {text}", width, style="dim")
    return [*lines, []]


def _align_savings(findings: list[Finding], report: Report, most: int) -> tuple[str, list[str]]:
    """Align the two columns of savings: (their titles, the cells of each finding); without a prediction there is one."""
    amounts = phrases.format_savings(findings, report)
    rows = [(phrases.ALONE_TITLE, phrases.AFTER_TITLE), *amounts]
    if all(finding.saving is None for finding in findings):
        after = min(max(_count_terminal_cells(text) for _, text in amounts), most)
        return "", [_pad_text(text, after, right=True) for _, text in amounts]
    alone, after = (max(_count_terminal_cells(text) for text in texts) for texts in zip(*rows, strict=True))
    width = min(alone + _GAP + after, most)
    cells = [f"{_pad_text(one, alone, right=True)}{' ' * _GAP}{_pad_text(two, after, right=True)}" for one, two in rows]
    titles, *aligned = [_pad_text(cell, width, right=True) for cell in cells]
    return titles, aligned


def _format_text_plans(report: Report, width: int, *, is_predicted: bool) -> list[StyledLine]:
    """Format the step with all fixes, and how it is predicted."""
    lines: list[StyledLine] = []
    for sentence in phrases.describe_plans(report):
        lines += _indent_lines(_wrap_text(f"{sentence}.", width - 5), 5)
    if is_predicted:
        lines += _indent_lines(_wrap_text(f"{phrases.PREDICTION_NOTE}.", width - 5, style="dim"), 5)
    return lines


def _format_finding_details(finding: Finding, report: Report, width: int) -> list[StyledLine]:
    """Format the worst instance of a finding and its stages, one per line with its amount."""
    worst = phrases.describe_worst_instance(finding, report)
    lines = _label_lines(" " * 7, "", _wrap_text(worst, width - 9, style="dim"), 9) if worst else []
    for part, (time, _) in zip(finding.parts, phrases.format_costs(finding.parts), strict=True):
        text = f"{time}: {make_printable(part.claim, phrases.SENTENCE)}"
        lines += _label_lines(" " * 7, "", _wrap_text(text, width - 9, style="dim"), 9)
    return lines


def _format_text_unproven(report: Report, findings: list[Finding], width: int) -> list[StyledLine]:
    """Format abstentions that matter, each with its price and the missing proof."""
    lines: list[StyledLine] = []
    for sentence in phrases.list_unproven_claims(report, findings):
        lines += _label_lines(" " * 5, "", _wrap_text(f"unproven: {sentence}", width - 7), 7)
    return lines


def _format_text_claim(f: Finding, number: int, amount: str, width: int, rules: int) -> list[StyledLine]:
    """Format one finding; in narrow output the claim goes below its rule instead of beside it."""
    rule, style = make_printable(f.rule, 32), _COLORS[f.severity]
    claim_width = width - 5 - rules - _GAP - _GAP - _count_terminal_cells(amount)
    claim = phrases.format_claim(f)
    if claim_width >= 28:
        first, *further = _wrap_text(claim, claim_width) or [[]]
        text = _pad_text("".join(piece[0] for piece in first), claim_width)
        middle = [(_pad_text(rule, rules), style), (f"  {text}  ", "")]
        below = _indent_lines(further, 5 + rules + _GAP)
    else:
        room = width - 5 - _GAP - _count_terminal_cells(amount)
        middle = [(_pad_text(rule, room), style), _BETWEEN]
        below = _indent_lines(_wrap_text(claim, width - 5), 5)
    return [[(f"{number:>3}  ", ""), *middle, (amount, "bold")], *below]


def _format_text_advice(
    f: Finding, width: int, first_with_advice: int | None, earlier_finding: Finding
) -> list[StyledLine]:
    """Format the advice and caveats of a finding, or a reference to finding `first_with_advice` with the same advice."""
    lines: list[StyledLine] = []
    advice, style = make_printable(f.advice, phrases.SENTENCE), _COLORS[f.severity]
    if advice.strip() and first_with_advice is not None:
        lines.append([("     → ", style), (f"same fix as #{first_with_advice}", "")])
    elif advice.strip():
        lines += _label_lines("     → ", style, _wrap_text(advice, width - 7), 7)
    for caveat in f.caveats:
        if first_with_advice is not None and caveat in earlier_finding.caveats:
            continue
        text = f"Caveat: {make_printable(caveat, phrases.SENTENCE)}"
        lines += _indent_lines(_wrap_text(text, width - 7, style="dim"), 7)
    return lines


def _label_lines(label: str, style: str, lines: list[StyledLine], hang: int) -> list[StyledLine]:
    """Put a label before the first line, and indent the others by `hang` blanks."""
    first, *further = lines or [[]]
    return [[(label, style), *first], *_indent_lines(further, hang)]


def _indent_lines(lines: list[StyledLine], width: int) -> list[StyledLine]:
    """Indent lines by `width` blanks."""
    return [[(" " * width, ""), *line] for line in lines]


def _format_text_gaps(report: Report, options: RenderOptions, width: int) -> list[StyledLine]:
    """Format the questions without an answer, and the data quality."""
    lines: list[StyledLine] = []
    listing = phrases.list_unanswered if options.verbose else phrases.summarize_unanswered
    gaps = listing(report)
    if gaps:
        lines += _pack_items(["Not analyzed: " + gaps[0], *gaps[1:]], " · ", width, hang=2)
    summary = phrases.summarize_remarks(report.remarks)
    if summary:
        if not options.verbose:
            summary += "  (-v to list)"
        lines += _pack_items([f"Data quality: {summary}"], " · ", width)
    if lines:
        lines.append([])
    return lines


def _format_glossary(lines: list[StyledLine], width: int) -> list[StyledLine]:
    """Explain the jargon on the screen that newcomers may not know."""
    screen = "\n".join("".join(piece[0] for piece in line) for line in lines)
    meanings = _pack_items(list_glossary_entries(screen), " · ", width)
    return [[], *([(text, "dim") for text, _ in line] for line in meanings)] if meanings else []


def _format_text_section(section: Section, options: RenderOptions, width: int) -> list[StyledLine]:
    """Format a section with its numbers and tables, or the reason for having none."""
    title = make_printable(section.title, 120)
    lines = _wrap_text(title, width, style="bold")
    lines.append([("-" * min(_count_terminal_cells(title), width), "dim")])
    if section.status != "ok":
        reason = make_printable(section.reason, phrases.SENTENCE) or "no reason given"
        lines += _wrap_text(f"{section.status}: {reason}", width)
    if section.metrics:
        lines += [*_pack_items([phrases.format_metric(metric) for metric in section.metrics], " · ", width), []]
    for sheet in section.sheets:
        where = "--top for more"
        lines += [*_format_text_table(make_grid(sheet, options.top), width, titled=True, where=where), []]
    for caveat in section.caveats:
        lines += _wrap_text(f"Note: {make_printable(caveat, phrases.SENTENCE)}", width)
    if section.status == "ok" and not (section.metrics or section.sheets or section.caveats):
        lines += _wrap_text(phrases.describe_rule_answers(section), width)
    if lines[-1]:
        lines.append([])
    return lines


def _format_text_remarks(report: Report, width: int) -> list[StyledLine]:
    """Format every remark on the data, in the report's order, the most serious first."""
    if not report.remarks:
        return []
    lines: list[StyledLine] = [[("Data quality", "bold")], [("-" * 12, "dim")]]
    for remark in report.remarks:
        kind = remark.severity.replace("_", " ")
        text = f"{kind} [{make_printable(remark.code, 60)}] {phrases.format_remark(remark)}"
        lines += _wrap_text(text, width)
    return lines


def _pack_items(items: list[str], between: str, width: int, hang: int = 0) -> list[StyledLine]:
    """Pack items in lines, broken between items if possible; later lines are indented by `hang` blanks."""
    rows: list[str] = []
    for item in items:
        if rows and _count_terminal_cells(rows[-1] + between + item) + hang <= width:
            rows[-1] += between + item
        else:
            rows.append(item)
    lines: list[StyledLine] = []
    for row in rows:
        lines += _wrap_text(row, width - hang)
    return [*lines[:1], *_indent_lines(lines[1:], hang)]


def _wrap_text(text: str, width: int, style: str = "") -> list[StyledLine]:
    """Wrap text in lines of at most `width` cells, at spaces, or within words longer than a line."""
    if not text.strip():
        return []
    if _count_terminal_cells(text) <= width:
        return [[(text, style)]]
    words = re.findall(r"\s*\S+\s*", text)
    longest = max(_count_terminal_cells(word.rstrip()) for word in words)
    if longest > width or "\t" in text or "\n" in text:
        return _wrap_long_words(text, width, style)
    lines, size = [""], 0
    for word in words:
        if lines[-1] and size + _count_terminal_cells(word.rstrip()) > width:
            lines.append("")
            size = 0
        lines[-1] += word
        size += _count_terminal_cells(word)
    return [[(line.rstrip(), style)] for line in lines]


def _wrap_long_words(text: str, width: int, style: str) -> list[StyledLine]:
    """Wrap text with words longer than a line, or with its own line breaks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=StringIO(), width=width, _environ={})
    wrapped = Text(text).wrap(console, width)
    return [[(line.plain.rstrip(), style)] for line in wrapped]


def _pad_text(text: str, width: int, right: bool = False) -> str:
    """Pad or shorten text to exactly `width` cells; shortened text keeps both ends."""
    text = shorten_cells(text, width)
    fill = " " * (width - _count_terminal_cells(text))
    return fill + text if right else text + fill


def _print_lines(lines: list[StyledLine], options: RenderOptions, width: int) -> str:
    """Join the lines to one string, with colour only on request, whatever the environment says."""
    if not options.color:
        texts = ("".join(piece[0] for piece in line).rstrip() for line in lines)
        return "\n".join([*(break_ci_command(text) for text in texts), ""])
    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    console: Console = Console(
        file=out,
        width=width,
        color_system="256",
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
    return "\n".join(break_ci_command(line) for line in out.getvalue().split("\n"))
