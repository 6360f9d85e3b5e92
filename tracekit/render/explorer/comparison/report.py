"""Page of a comparison's report: the packed data of both sides is unpacked, and the page written."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.model.errors import TracekitError
from tracekit.model.inputs.page_blocks import DamagedPageError, PageBlocks, unpack_page_blocks
from tracekit.model.inputs.timeline import TimelineProcess, TimelineSide
from tracekit.model.report import Report
from tracekit.render.explorer.comparison.page import write_comparison_page
from tracekit.render.explorer.comparison.sides import PageSide
from tracekit.render.explorer.heads import has_log_processes
from tracekit.render.explorer.template import read_page_assets


def write_packed_comparison(report: Report) -> str:
    """Write the page of a comparison's report. Raises `TracekitError` for damaged data of a process."""
    assert report.timeline is not None
    sides = [_unpack_side(side) for side in report.timeline.sides]
    has_logs = has_log_processes([process for side in sides for process in side.processes])
    assets = read_page_assets("comparison", "log_comparison" if has_logs else "comparison")
    return write_comparison_page(report, sides, assets, report.timeline.causes).text


def _unpack_side(side: TimelineSide) -> PageSide:
    """Unpack the data of a side."""
    excluded: dict[str, set[int]] = {}
    for run, step in side.excluded:
        excluded.setdefault(run, set()).add(step)
    steps = {run: frozenset(numbers) for run, numbers in excluded.items()}
    return PageSide(side.name, unpack_processes(side.processes), steps, side.critical)


def unpack_processes(processes: Sequence[TimelineProcess]) -> list[PageBlocks]:
    """Unpack the data of processes. Raises `TracekitError` for damaged data."""
    unpacked = []
    for process in processes:
        try:
            unpacked.append(unpack_page_blocks(process, process.data))
        except DamagedPageError as error:
            problem = f"{process.name}: not readable as a timeline: {error}"
            hint = "name the profile itself, or save its measurements again with --save"
            raise TracekitError(problem, hint) from error
    return unpacked
