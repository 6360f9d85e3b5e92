"""Write the explorer page: all tables exact, then kernels as exact as the budget allows, in one file without network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.memory_pieces import HOLDER_TITLES
from tracekit.model.inputs.timeline import EngineState, PathPieces
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.bins import PageBins, choose_bins, iterate_bin_planes
from tracekit.render.explorer.blocks import PageBlockStore
from tracekit.render.explorer.critical_path import fit_critical_path
from tracekit.render.explorer.details import fit_details
from tracekit.render.explorer.findings import describe_findings, describe_page_plan
from tracekit.render.explorer.heads import (
    KINDS,
    describe_details,
    describe_logged_stages,
    describe_page_row,
    has_log_rows,
    list_row_notes,
)
from tracekit.render.explorer.inputs.process_files import ProcessData
from tracekit.render.explorer.kernels import KernelCounts, add_kernels
from tracekit.render.explorer.overlays import encode_memories, encode_memory_curves
from tracekit.render.explorer.plain.answer import write_answer
from tracekit.render.explorer.plain.first_screen import write_finding_items, write_top_kernels, write_unanswered
from tracekit.render.explorer.plain.folded_tables import write_folded_tables, write_overview
from tracekit.render.explorer.plain.notes import NO_TIMELINE, write_basis, write_notes, write_plans
from tracekit.render.explorer.processes import ExplorerRows, arrange_rows
from tracekit.render.explorer.report_values import RankDelays, describe_sheet, read_counted_steps, read_rank_delays
from tracekit.render.explorer.tables import (
    encode_ranges,
    encode_steps,
    list_page_ranges,
    list_page_sums,
)
from tracekit.render.explorer.template import PageAssets, dump_compactly, dump_head, fill_template, inline_assets
from tracekit.render.explorer.varints import encode_columns

Ints = npt.NDArray[np.int64]

BUDGET_BYTES = 3_000_000
BYTES_OF_TABLES, BYTES_OF_TABLES_ALONE = 0.15, 0.8
"""Share of the budget that the tables for readers without scripts may take, and that of tables without a timeline."""


@dataclass(frozen=True, slots=True)
class ExplorerPage:
    """A page, and how many kernels on it are exact, merged, and left out."""

    text: str
    kernels: KernelCounts


def write_explorer_page(
    report: Report,
    processes: Sequence[ProcessData],
    assets: PageAssets,
    causes: Sequence[tuple[str, str, str]],
    budget_bytes: int = BUDGET_BYTES,
    critical: PathPieces | None = None,
    dropped_items: int = 0,
    engines: Sequence[EngineState] = (),
) -> ExplorerPage:
    """Write the page of a report.

    `causes` are key, title and meaning of each cause of idle time by number; `critical` is the critical path as recorded.
    `dropped_items` of long lists are not in the report. `engines` are states of serving engines. Without rows, the page needs no program: its tables are in sight.
    """
    rows, delays = arrange_rows(processes, report), read_rank_delays(report)
    steps = read_counted_steps(report)
    counted = None if steps is None else frozenset(steps)
    details = fit_details(rows, budget_bytes)
    ranges = list_page_ranges(rows, details.numbering)
    sums = list_page_sums(rows, details.numbering, ranges)
    findings, store, bins = describe_findings(report, rows), PageBlockStore(), choose_bins(rows, budget_bytes)
    path = fit_critical_path(rows, critical, details.names, budget_bytes)
    store.blocks |= path.blocks
    curves, dropped_curves = encode_memory_curves(rows, delays.late_ns, budget_bytes)
    texts = details.texts + details.names.list_texts_from(len(details.texts))
    store.add_block("names", dump_compactly({"names": texts, "paths": details.paths}).encode())
    _add_exact_tables(store, rows, bins, (encode_steps(rows, counted), encode_ranges(ranges), encode_columns(sums)))
    memories, pieces = encode_memories(rows, details.numbering, engines, budget_bytes)
    store.blocks |= details.blocks | curves | pieces
    has_timeline = bool(rows.rows or memories)
    identity = [*phrases.list_identity_facts(report)[1:], *path.notes]
    head = {
        **_describe_report(report, delays),
        **_describe_page_rows(rows, delays),
        **describe_details(details, rows),
        **_describe_log_page(report, rows),
        "identity": identity,
        "bins": bins.count,
        "width": bins.width,
        "causes": causes,
        "findings": findings,
        "counted": steps,
        "dropped_ranges": ranges.dropped,
        "dropped_curves": dropped_curves,
        **_describe_memories(memories),
    }
    values = {
        **_write_plain_values(report, delays, findings, dropped_items),
        **_write_basis_and_tables(report, budget_bytes, list_row_notes(rows), has_timeline=has_timeline),
        "identity": escape(" · ".join(identity)),
        **_write_kernels(rows, sums, details.texts),
        **inline_assets(assets if has_timeline else PageAssets(assets.template, assets.style, "")),
    }
    used = sum(len(text.encode()) for text in (*values.values(), assets.template, dump_head(head)))
    room = budget_bytes - used - store.size_bytes
    kernels = add_kernels(rows, details.numbering, store, _list_pins(findings), delays.late_ns, room)
    head |= {"kernels": kernels.total, "missed": kernels.missed}
    values |= {"head": dump_head(head), "blocks": store.write_elements()}
    return ExplorerPage(fill_template(assets.template, values), kernels)


def _describe_memories(memories: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe the memory snapshots, with the titles of holders for the numbers in their blocks."""
    return {"memories": memories, **({"holders": HOLDER_TITLES} if memories else {})}


def _add_exact_tables(
    store: PageBlockStore, rows: ExplorerRows, bins: PageBins, tables: tuple[bytes, bytes, bytes]
) -> None:
    """Add the bins, and the tables of steps, ranges and sums."""
    for name, table in zip(("steps", "ranges", "sums"), tables, strict=True):
        store.add_block(name, table)
    store.add_block("bins", b"".join(plane.tobytes() for plane in iterate_bin_planes(rows, bins)))


def _describe_log_page(report: Report, rows: ExplorerRows) -> dict[str, Any]:
    """Describe the stages and all tables of the report of a log; nothing on other pages."""
    if not has_log_rows(rows):
        return {}
    sheets = [describe_sheet(section.title, sheet) for section in report.sections for sheet in section.sheets]
    return {"sheets": sheets, **describe_logged_stages(report, rows)}


def _list_pins(findings: Sequence[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """List the (row, begin, end) of all pins."""
    return [(pin["row"], pin["t0"], pin["t1"]) for finding in findings for pin in finding["pins"]]


def _describe_report(report: Report, delays: RankDelays) -> dict[str, Any]:
    """Describe the report in the head of the page."""
    return {
        "title": make_printable(report.title, 120),
        "sentence": write_answer(report, delays),
        "version": make_printable(report.tool_version, 40),
        "plan": describe_page_plan(report),
        "skipped": [
            {"title": make_printable(section.title or section.id, 300), "reason": make_printable(section.reason, 600)}
            for section in report.sections
            if section.status != "ok"
        ],
        "metrics": {make_printable(metric.name, 80): metric.value for metric in report.headline},
    }


def _describe_page_rows(rows: ExplorerRows, delays: RankDelays) -> dict[str, Any]:
    """Describe the rows and processes in the head of the page."""
    described = [describe_page_row(row) for row in rows.rows]
    if len({row["run"] for row in described}) < 2:
        for row in described:
            row["run"] = None
    for row, of_page in zip(described, rows.rows, strict=True):
        source = of_page.process.data.source
        row |= {"late": delays.late_ns.get_value(source), "beyond": delays.beyond_ns.get_value(source)}
    return {
        "t0": str(rows.begin_ns),
        "span": rows.span_ns,
        "rows": described,
        "threads": [[make_printable(name, 80) for name in process.data.threads] for process in rows.processes],
    }


def _write_plain_values(
    report: Report, delays: RankDelays, findings: Sequence[Mapping[str, Any]], dropped_items: int
) -> dict[str, str]:
    """Render the texts of the page without scripts."""
    skipped_title, skipped = write_unanswered(report)
    return {
        "title": escape(make_printable(report.title, 120)),
        "sentence": escape(write_answer(report, delays)),
        "findings": write_finding_items(findings, report),
        "plans": write_plans(report),
        "notes": write_notes(report, dropped_items),
        "skipped_title": escape(skipped_title),
        "skipped": skipped,
    }


def _write_kernels(rows: ExplorerRows, sums: Sequence[Ints], texts: Sequence[str]) -> dict[str, str]:
    """Render the top kernels. A log has none: the program shows its stages in their place."""
    hidden = not rows.rows or has_log_rows(rows)
    return {"kernels": write_top_kernels(sums, texts, KINDS), "no_top": " hidden" if hidden else ""}


def _write_basis_and_tables(
    report: Report, budget_bytes: int, notes: Sequence[str], *, has_timeline: bool
) -> dict[str, str]:
    """Render the basis, and the tables: for readers without scripts, or in sight of all on a page without a timeline."""
    share = BYTES_OF_TABLES if has_timeline else BYTES_OF_TABLES_ALONE
    why = f'<p class="quiet">{escape(NO_TIMELINE)}</p>'
    tables = write_folded_tables(report if has_timeline else replace(report, overview=None), budget_bytes * share)
    return {
        "overview": "" if has_timeline else write_overview(report),
        "basis": write_basis(report, notes),
        "tables": f"<noscript>{tables}</noscript>" if has_timeline else f'<section id="tables">{why}{tables}</section>',
    }
