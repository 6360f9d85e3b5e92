"""The logs of several runs on the first screen: stages by run where they fit, otherwise the main values of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracekit.model.report import Cell, Heading, Sheet
from tracekit.model.units import format_quantity

MOST_COLUMNS, FIRST_SCREEN_WIDTH = 4, 100
"""Most runs with a column each, and the characters that these columns may take."""

_NUMBER_WIDTH = 8
_HIDDEN = ("iqr_ns",)
_LEGEND = "step: median without warm-up; wall: mean, with validation and other stages between steps."


def make_run_overview(stages: Sheet, runs: Sheet) -> Sheet:
    """Make the first table of several logs: a column per run and a row per stage, or a row per run if that is too wide.

    `stages` is the table of the stages of all runs, `runs` that of their main values.
    """
    names = list(dict.fromkeys(str(cell) for cell in _get_column(stages, "run")))
    rows = _list_rows_by_run(stages, runs, names)
    width = max(len(stages.title), *(len(str(row[0])) for row in rows))
    width += sum(2 + max(len(name) + 2, _NUMBER_WIDTH) for name in names)
    if len(names) > MOST_COLUMNS or width > FIRST_SCREEN_WIDTH:
        caption = " ".join(filter(None, (_LEGEND, runs.caption)))
        return replace(drop_columns(runs, _HIDDEN), name="overview", caption=caption)
    headings = (
        Heading("stage", "stage"),
        *(
            Heading(f"mean_ns_{place}", name, "ns", f"Mean per step of the run {name}.")
            for place, name in enumerate(names)
        ),
    )
    captions = (stages.caption, _describe_rates(runs), runs.caption)
    return Sheet("overview", stages.title, headings, rows, 0, " ".join(filter(None, captions)))


def _list_rows_by_run(stages: Sheet, runs: Sheet, names: Sequence[str]) -> tuple[tuple[Cell, ...], ...]:
    """List the rows of stages with a cell per run: the step and its median, stages by time, then time in no timer."""
    cells: dict[str, dict[str, Cell]] = {}
    for run, stage, mean_ns in zip(*(_get_column(stages, name) for name in ("run", "stage", "mean_ns")), strict=True):
        cells.setdefault(str(stage), {})[str(run)] = mean_ns
    order = list(cells)
    whole, untimed = order[0], _get_column(stages, "stage")[-1]
    medians = dict(zip(map(str, _get_column(runs, "run")), _get_column(runs, "median_ns"), strict=True))
    by_time = sorted(set(order) - {whole, untimed}, key=lambda name: (-_sum_cells(cells[name]), name))
    chosen = [(whole, cells[whole]), ("(step, median)", medians), *((name, cells[name]) for name in by_time)]
    chosen.append((str(untimed), cells[str(untimed)]))
    return tuple((name, *(of_run.get(run) for run in names)) for name, of_run in chosen)


def _sum_cells(of_run: dict[str, Cell]) -> float:
    """Sum the known times of a stage over all runs."""
    return sum(value for value in of_run.values() if isinstance(value, int | float))


def _describe_rates(runs: Sheet) -> str:
    """Describe the throughput, MFU and GPU-hours of all runs in the order of their columns."""
    parts = []
    for heading in runs.headings:
        if heading.name in ("work_per_s_per_gpu", "mfu_ratio", "gpu_hours", "price"):
            values = (format_quantity(value, heading.unit) for value in _get_column(runs, heading.name))
            parts.append(f"{heading.title} {' · '.join(values)}")
    return f"By run: {', '.join(parts)}." if parts else ""


def _get_column(sheet: Sheet, name: str) -> tuple[Cell, ...]:
    """Get the cells of one column; None in each row where the table has no such column."""
    places = [place for place, heading in enumerate(sheet.headings) if heading.name == name]
    return tuple(row[places[0]] if places else None for row in sheet.rows)


def drop_columns(sheet: Sheet, names: Sequence[str]) -> Sheet:
    """Drop columns by name."""
    kept = [place for place, heading in enumerate(sheet.headings) if heading.name not in names]
    return replace(
        sheet,
        headings=tuple(sheet.headings[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in sheet.rows),
    )
