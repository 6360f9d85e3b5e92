"""Write the comparison page: the verdict, the profiles of both sides on one timeline, and the parts of the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tracekit.model.report import Cell, Report
from tracekit.model.units import format_quantity, format_signed
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.bins import choose_bins, iterate_bin_planes
from tracekit.render.explorer.blocks import PageBlockStore
from tracekit.render.explorer.comparison.change import NAME_LIMIT, describe_page_change
from tracekit.render.explorer.comparison.critical_path import fit_side_paths
from tracekit.render.explorer.comparison.sides import PageSide, SideRows, arrange_side_rows
from tracekit.render.explorer.details import fit_details
from tracekit.render.explorer.heads import describe_details, describe_page_row, list_row_notes
from tracekit.render.explorer.kernels import add_kernels
from tracekit.render.explorer.page import BUDGET_BYTES, BYTES_OF_TABLES, ExplorerPage
from tracekit.render.explorer.plain.folded_tables import write_folded_tables
from tracekit.render.explorer.processes import ExplorerRows
from tracekit.render.explorer.report_values import NO_RANKS
from tracekit.render.explorer.tables import encode_ranges, encode_steps, list_page_ranges, list_page_sums
from tracekit.render.explorer.template import PageAssets, dump_compactly, dump_head, fill_template, inline_assets
from tracekit.render.explorer.varints import encode_columns

STATIC_PARTS = 12
"""Parts of the change that the page lists without scripts."""


def write_comparison_page(
    report: Report,
    sides: Sequence[PageSide],
    assets: PageAssets,
    causes: Sequence[tuple[str, str, str]],
    budget_bytes: int = BUDGET_BYTES,
) -> ExplorerPage:
    """Write the page of a comparison's report; sides without processes have no timeline.

    `causes` are key, title and meaning of each cause of idle time by number.
    """
    arranged = arrange_side_rows(sides)
    rows = arranged.rows
    details = fit_details(rows, budget_bytes)
    ranges = list_page_ranges(rows, details.numbering)
    store, bins = PageBlockStore(), choose_bins(rows, budget_bytes)
    path = fit_side_paths(arranged, sides, details.names, budget_bytes)
    texts = details.texts + details.names.list_texts_from(len(details.texts))
    store.add_block("names", dump_compactly({"names": texts, "paths": details.paths}).encode())
    store.add_block("steps", encode_steps(rows, None, arranged.excluded))
    store.add_block("ranges", encode_ranges(ranges))
    store.add_block("bins", b"".join(plane.tobytes() for plane in iterate_bin_planes(rows, bins)))
    store.add_block("sums", encode_columns(list_page_sums(rows, details.numbering, ranges)))
    store.blocks |= details.blocks | path.blocks
    head = {
        "title": make_printable(report.title, 120),
        "version": make_printable(report.tool_version, 40),
        **_describe_side_rows(arranged),
        **describe_details(details, rows),
        "bins": bins.count,
        "width": bins.width,
        "causes": causes,
        "findings": [],
        "plan": None,
        "memories": [],
        "counted": None,
        "dropped_ranges": ranges.dropped,
        "comparison": describe_page_change(report, [side.name for side in sides]),
    }
    values = {
        "title": escape(make_printable(report.title, 120)),
        "identity": escape(" · ".join(map(make_printable, report.identity))),
        "sentence": escape(make_printable(report.answer, phrases.SENTENCE)),
        "gate": _write_gate(report),
        "basis": _write_texts("p", (*report.basis, *_list_basis_notes(report, rows))),
        "notes": _write_notes([*(caveat for section in report.sections for caveat in section.caveats), *path.notes]),
        "parts": _write_static_parts(head["comparison"]["parts"]),
        "tables": write_folded_tables(report, budget_bytes * BYTES_OF_TABLES),
        **inline_assets(assets),
    }
    used = sum(len(text.encode()) for text in (*values.values(), assets.template, dump_head(head)))
    kernels = add_kernels(rows, details.numbering, store, [], NO_RANKS, budget_bytes - used - store.size_bytes)
    head |= {"kernels": kernels.total, "missed": kernels.missed}
    values |= {"head": dump_head(head), "blocks": store.write_elements()}
    return ExplorerPage(fill_template(assets.template, values), kernels)


def _describe_side_rows(arranged: SideRows) -> dict[str, Any]:
    """Describe the rows of both sides and their processes in the head of the page."""
    rows = arranged.rows
    described = [{**describe_page_row(row), "side": arranged.sides[row.process.number]} for row in rows.rows]
    return {
        "t0": "0",
        "span": rows.span_ns,
        "rows": described,
        "threads": [[make_printable(name, 80) for name in process.data.threads] for process in rows.processes],
    }


def _write_texts(tag: str, texts: Sequence[str]) -> str:
    """Render texts as elements of one kind."""
    return "".join(f"<{tag}>{escape(make_printable(text, phrases.SENTENCE))}</{tag}>" for text in texts)


def _list_basis_notes(report: Report, rows: ExplorerRows) -> list[str]:
    """List the notes that the basis of the answer does not contain."""
    basis = " ".join(report.basis).lower()
    return [f"Note: {text}" for text in (*report.cautions, *list_row_notes(rows)) if text.lower() not in basis]


def _write_gate(report: Report) -> str:
    """Render the outcome of each rule of the gate, those that did not pass first; empty without a gate."""
    gates = [section for section in report.sections if section.id == "gate"]
    badges = []
    for row in (row for section in gates for sheet in section.sheets for row in sheet.rows):
        rule, outcome = (make_printable(str(cell), NAME_LIMIT) for cell in (row[0], row[2]))
        has_passed = outcome.startswith(("pass", "accepted"))
        style = "badge" if has_passed else "badge failed"
        badges.append((has_passed, f'<span class="{style}">{escape(f"{outcome}: {rule}")}</span>'))
    badges.sort(key=lambda badge: badge[0])
    return f'<div id="gate">{"".join(text for _, text in badges)}</div>' if badges else ""


def _write_notes(caveats: Sequence[str]) -> str:
    """Render the caveats of all sections in one line that opens; empty if there are none."""
    if not caveats:
        return ""
    return f'<details id="skipped"><summary>Further caveats</summary><ul>{_write_texts("li", caveats)}</ul></details>'


def _write_static_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    """Render the largest parts of the change, for readers without scripts."""
    rows = []
    for part in parts[:STATIC_PARTS]:
        texts = [part["stage"], " › ".join(part["path"])]
        numbers = [_format_time(part["base"]), _format_time(part["opt"]), format_signed(part["difference"], "ns")]
        cells = [f"<td>{escape(text)}</td>" for text in texts] + [
            f'<td class="n">{escape(text)}</td>' for text in numbers
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return "".join(rows)


def _format_time(value: Cell) -> str:
    """Format a time; a dash if it is unknown."""
    return format_quantity(value, "ns") if isinstance(value, int | float) else "–"
