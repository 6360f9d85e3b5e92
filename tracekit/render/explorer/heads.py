"""Head of the page: its rows, details and kinds of device work as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracekit.model.report import Report
from tracekit.render.escape import make_printable
from tracekit.render.explorer.details import PageDetails
from tracekit.render.explorer.inputs.process_files import ProcessData
from tracekit.render.explorer.processes import ExplorerRows, PageRow
from tracekit.render.explorer.report_values import get_overview_rows

KINDS = ("compute", "communication", "copies")
ROW_KINDS = ("device", "thread", "log")
_NO_ROWS = np.empty(0, np.int64)

LOG_NOTE = "Lengths are from the driver's log, which has no start times: stages are in the order of the pipeline."


def describe_details(details: PageDetails, rows: ExplorerRows) -> dict[str, Any]:
    """Describe the gaps and host rows that are on the page, and count the gaps that are not."""
    gaps = details.gaps
    return {
        "kinds": KINDS,
        "floor": gaps.floor_ns,
        "dropped_gaps": [gaps.dropped_count, gaps.dropped_ns],
        "host_floor": details.host_floor,
        "host": [process.number for process in rows.processes if f"h{process.number}" in details.blocks],
    }


def choose_page_program(processes: Sequence[ProcessData]) -> str:
    """Choose the program of a page: that of logs, of memory snapshots, or of profiles without."""
    if has_log_processes(processes):
        return "log"
    return "memory" if any(len(data.numbers.get("snapshot.peak", ())) for data in processes) else "page"


def has_log_processes(processes: Sequence[ProcessData]) -> bool:
    """Check for rows of a driver's log. A page with one has no other rows."""
    log = ROW_KINDS.index("log")
    return any((data.numbers.get("row.kind", _NO_ROWS) == log).any() for data in processes)


def has_log_rows(rows: ExplorerRows) -> bool:
    """Check for rows of a driver's log, which have only stages."""
    return has_log_processes([process.data for process in rows.processes])


def list_row_notes(rows: ExplorerRows) -> list[str]:
    """List the notes on how exact the rows are."""
    return [LOG_NOTE] if has_log_rows(rows) else []


def describe_logged_stages(report: Report, rows: ExplorerRows) -> dict[str, Any]:
    """Describe the report's table of the stages of a log; nothing on other pages."""
    stages = get_overview_rows(report, "stage", "mean_ns", "share_ratio", "how")
    if not stages or not has_log_rows(rows) or report.overview is None:
        return {}
    # The number of GPUs may be unknown.
    gpu_hours = get_overview_rows(report, "gpu_hours") or [(None,)] * len(stages)
    printable = [
        (make_printable(str(name), 120), ns, share, hours, make_printable(str(how or ""), 120))
        for (name, ns, share, how), (hours,) in zip(stages, gpu_hours, strict=True)
        # Tries that ran again after a restart are part of no step.
        if ns is not None
    ]
    return {"overview": {"rows": printable, "caption": make_printable(report.overview.caption, 300)}}


def describe_page_row(row: PageRow) -> dict[str, Any]:
    """Describe one row in the head of the page."""
    source, thread = row.process.data.source, row.get_label("thread")
    kind, number = (row.read_part("lanes", f"lane.{name}").tolist() for name in ("kind", "number"))
    texts = {
        name: make_printable(text, 120) if text else None
        for name, text in (("host", source.host), ("role", source.role), ("run", source.run))
    }
    return {
        "kind": ROW_KINDS[row.kind],
        "rank": source.rank,
        "device": row.get_label("device"),
        "thread": None if thread is None else make_printable(row.process.data.threads[thread], 80),
        **texts,
        "process": row.process.number,
        "lanes": list(zip(kind, number, strict=True)),
        "late": None,
        "beyond": None,
    }
