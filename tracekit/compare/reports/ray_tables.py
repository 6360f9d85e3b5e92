"""The table of two timelines of Ray: tasks by function on both sides."""

from __future__ import annotations

from tracekit.compare.comparison import Change, Comparison
from tracekit.job.report.tables import parse_headings
from tracekit.model.metrics import RAY_FUNCTION_COUNT, RAY_FUNCTION_TIME, RAY_METRICS, RAY_TASK_TIME
from tracekit.model.report import Cell, Sheet

_HEADINGS = parse_headings("""
    name | function
    base_tasks | tasks | count | Before, per timeline.
    opt_tasks | after | count | Tasks after the change.
    base_ns | any running | ns | Before: time in which at least one worker runs it, per timeline.
    opt_ns | after | ns | The same after the change.
    difference_ns | change | ns | After minus before.
    base_median_ns | median | ns | Before: of a task, with fetching its arguments and storing its results.
    opt_median_ns | after | ns | The median task after the change.
    median_change | change | ratio | Change of the median task: above 0 is longer.
    low | CI low | ratio | By timeline; — with one timeline on a side.
    high | CI high | ratio
    word | ran | text | Only before or only after the change.
""")


def make_ray_sheet(name: str, comparison: Comparison) -> Sheet:
    """Make the table of one row per function of Ray, the one that runs longest first; no row without timelines."""
    by_function: dict[str, dict[str, Change]] = {}
    for change in comparison.changes:
        if change.name in RAY_METRICS and change.stage is not None:
            by_function.setdefault(change.stage, {})[change.name] = change
    rows = sorted(
        (_make_function_row(function, of_function) for function, of_function in by_function.items()),
        key=lambda row: (-max(_get_number(row[3]), _get_number(row[4])), str(row[0])),
    )
    caption = "Means over the timelines of a side."
    return Sheet(name, "Tasks of Ray by function", _HEADINGS, tuple(rows), caption=caption)


def _make_function_row(function: str, changes: dict[str, Change]) -> tuple[Cell, ...]:
    """Make the row of one function."""
    count, time, task = (changes.get(name) for name in (RAY_FUNCTION_COUNT, RAY_FUNCTION_TIME, RAY_TASK_TIME))
    sides = [(None, None) if change is None else (change.base, change.opt) for change in (count, time, task)]
    ends = (None, None) if task is None else (task.high, task.low)
    return (
        function,
        *map(_make_whole, sides[0]),
        *sides[1],
        None if time is None else time.difference,
        *sides[2],
        None if task is None or not task.ratio else 1 / task.ratio - 1,
        *(None if end is None else 1 / end - 1 for end in ends),
        task.word if task is not None and task.word in ("only before", "only after") else "",
    )


def _make_whole(count: float | None) -> float | None:
    """Make a count an integer where it is whole."""
    return int(count) if count is not None and count.is_integer() else count


def _get_number(cell: Cell) -> float:
    """Get a cell as a number; 0 where it is unknown."""
    return float(cell) if isinstance(cell, int | float) else 0.0
