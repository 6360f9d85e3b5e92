"""From rows of single processes to numbers of the job: ranks reduced within a step, steps averaged.

A *unit* is one step of one run; where steps have no number, a repeated capture stands for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.groups import least, most
from tracekit.model import keys as grouping
from tracekit.model.codes import OF_TIMES
from tracekit.model.frame import Frame, texts
from tracekit.model.intervals import union_totals
from tracekit.model.keys import (
    CAPTURE,
    PROCESS,
    Ints,
    as_python,
    equal,
    is_among,
    numbered_alike,
    of_keys,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Heading
from tracekit.model.stages import canonical, scope_stage, stage_name
from tracekit.model.tables.arrays import (
    OBJECT,
    Coded,
    Nullable,
    at_rows,
    bare,
    for_pandas,
    framed,
)
from tracekit.model.trace import Measurements

UNIT = ("run", "step", "part")

STEP_ORIGINS = ("profiler", "range", "iteration", "repeat", "graph", "file", "stage")
"""How steps are known, the surest first."""

REPEATING = ("iteration", "repeat", "graph")
"""Origins of steps that no mark tells: what repeats in a recording divides it."""

COUNTED_ANEW = ("profiler", *REPEATING)
"""Origins of steps whose numbers count from the start of the recording: they need not be those of the training."""

ORIGIN_NOTES = {
    "profiler": "step",
    "range": "step",
    "iteration": "step (iterations {name})",
    "repeat": "step (ranges {name})",
    "graph": "step (launches of a graph)",
    "file": "step (as recorded)",
    "stage": "captured stages",
}
"""What the wall of a unit is, by how it is known; `{name}` is what repeats."""


STEP_BOUNDS = "steps"
"""What the bounds of the mean wall are of: the shortest step and the longest."""


def from_epoch(measured: Measurements, rows: pd.DataFrame) -> bool:
    """Whether the clocks of all these rows count from the Unix epoch: their times can be compared."""
    return not bool(_relative(measured, rows).any())


def _relative(measured: Measurements, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows are of a source whose clock has a zero of its own."""
    captures = measured["captures"]
    absolute = captures["absolute_time"].to_numpy(np.bool_)
    if absolute.all():
        return np.zeros(len(rows), np.bool_)
    return is_among(rows, captures[~absolute], CAPTURE)


def summed(frame: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Sums of `columns` per distinct `by`, missing keys being a key like any other; in order of keys."""
    number, first = of_keys(frame, by)
    out = each_key(frame, by, first)
    for name in columns:
        out[name] = _known_sums(frame[name], number, len(first))
    return framed(out, len(first))


def _known_sums(column: pd.Series[Any], number: Ints, count: int) -> Any:
    """The sum of each group, missing where nothing is known; what is no whole number pandas adds up, at ten times the cost."""
    sums = _sums(column, number, count)
    return column.groupby(number, sort=False).sum(min_count=1).array if sums is None else sums


def grouped(frame: pd.DataFrame, by: Sequence[str], **parts: tuple[str, str]) -> pd.DataFrame:
    """One row per distinct `by`, in order of appearance: each of `parts` is a column and how it is reduced.

    As `groupby(by, dropna=False, sort=False).agg(…).reset_index()`, in a fifth of its time for small frames;
    `leading` is the value of the first row of a group, known or not; `known_sum` is missing where nothing is known.
    """
    number, first = of_keys(frame, by)
    out = each_key(frame, by, first)
    for name, (column, how) in parts.items():
        if how == "size":
            out[name] = np.bincount(number, minlength=len(first))
        elif how == "leading":
            out[name] = frame[column].array[first]
        elif how == "known_sum":
            out[name] = _known_sums(frame[column], number, len(first))
        else:
            out[name] = _reduced(frame[column], number, len(first), how)
    return framed(out, len(first))


def _reduced(column: pd.Series[Any], number: Ints, count: int, how: str) -> Any:
    """A value for each of so many groups, as pandas reduces them; of whole numbers in a tenth of its time."""
    array = bare(column.array)
    numbers = array.values if isinstance(array, Nullable) else array
    if isinstance(numbers, np.ndarray) and _is_reduced_here(numbers, how):
        is_known = ~array.missing if isinstance(array, Nullable) else np.ones(len(array), np.bool_)
        numbers, number = numbers[is_known], number[is_known]
        if how != "mean" or grouping.exact_sum(numbers):
            values = _REDUCTIONS[how](number, numbers, count)
            if not isinstance(array, Nullable):
                return values
            is_missing = np.bincount(number, minlength=count) == 0
            return for_pandas(Nullable(values, is_missing & (how != "sum")))
    return getattr(column.groupby(number, sort=False), how)().array


def _is_reduced_here(numbers: npt.NDArray[Any], how: str) -> bool:
    """Whether numpy reduces such numbers so as pandas does."""
    if numbers.dtype == np.float64:
        return how in ("max", "min") and not np.isnan(numbers).any()
    return numbers.dtype == np.int64 and how in _REDUCTIONS


def _means(number: Ints, values: Ints, count: int) -> npt.NDArray[np.float64]:
    """The mean of each group."""
    sizes = np.bincount(number, minlength=count)
    means: npt.NDArray[np.float64] = grouping.summed(number, values, count) / np.maximum(sizes, 1)
    return means


_REDUCTIONS: Mapping[str, Callable[[Ints, Ints, int], npt.NDArray[Any]]] = {
    "sum": grouping.summed,
    "mean": _means,
    "max": most,
    "min": least,
}
"""How whole numbers are reduced: by the group of each, for so many groups."""


def apart(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[pd.DataFrame]:
    """The rows of each distinct `by`, in order of appearance; the frame itself where there is only one."""
    number, first = of_keys(frame, by)
    if len(first) == 1:
        yield frame
    elif len(first):
        ends = np.cumsum(np.bincount(number))
        for rows in np.split(np.argsort(number, kind="stable"), ends[:-1]):
            yield frame.iloc[rows]


def each_run(frame: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """(the run, its rows) for each run, in order of appearance."""
    for rows in apart(frame, ["run"]):
        yield rows["run"].iloc[0], rows


def ordered(frame: pd.DataFrame, **ascending: bool) -> pd.DataFrame:
    """The rows by these columns, missing ones last, equal ones as they stand: as `sort_values`, in a fifth of its time."""
    ranks = [_rank(frame[name], is_up) for name, is_up in ascending.items()]
    return frame.iloc[np.lexsort(ranks[::-1])]


def _rank(column: pd.Series[Any], is_ascending: bool) -> npt.NDArray[Any]:
    """A number for each value by which rows are sorted."""
    array = bare(column.array)
    if isinstance(array, Nullable):
        numbers, is_missing = array.values, array.missing
    elif isinstance(array, np.ndarray) and array.dtype.kind in "ifb":
        numbers, is_missing = array + 0, np.isnan(array)
    else:
        number, first = grouping.of_column(column)
        values = as_python(column.array[first])
        names = sorted(text for text in values if text is not None)
        place = {text: rank for rank, text in enumerate(names)}
        numbers = np.array([place.get(text, 0) for text in values], np.int64)[number]
        is_missing = np.array([text is None for text in values], np.bool_)[number]
    numbers = numbers if is_ascending else -numbers
    return np.where(is_missing, numbers.max(initial=0) + 1, numbers)


def each_key(frame: pd.DataFrame, by: Sequence[str], first: Ints) -> dict[str, Any]:
    """The columns `by` of these rows, the first ones of their keys."""
    return {name: keys_at(frame[name], first) for name in by}


def distinct(frame: pd.DataFrame, by: Sequence[str], *more: str) -> pd.DataFrame:
    """The distinct combinations of these columns, each as it stands first, with the values of `more` there."""
    return frame[[*by, *more]].iloc[of_keys(frame, by)[1]]


def count_distinct(frame: pd.DataFrame, by: Sequence[str]) -> int:
    """How many combinations of these columns there are, missing values being values like any other."""
    return len(of_keys(frame, by)[1])


def _sums(column: pd.Series[Any], number: Ints, count: int) -> Any:
    """Sums of whole numbers by group, NA where no row of a group has one; None of other numbers."""
    array = bare(column.array)
    if isinstance(array, np.ndarray) and array.dtype == np.int64:
        return grouping.summed(number, array, count)
    if not isinstance(array, Nullable) or np.isnan(array.values).any():
        return None
    is_present = ~array.missing
    values, group = array.values[is_present], number[is_present]
    is_missing = np.bincount(group, minlength=count) == 0
    whole = values.astype(np.int64)
    if not ((values == whole).all() and (values.dtype == np.int64 or grouping.exact_sum(whole))):
        return None
    sums = grouping.summed(group, whole, count).astype(values.dtype)
    return for_pandas(Nullable(sums, is_missing))


def keys_at(column: pd.Series[Any], rows: Ints) -> Any:
    """The keys in these rows; text that is missing is one thing, whether None or NaN."""
    if column.dtype != object:
        return column.array[rows]
    keys = column.to_numpy()[rows]
    keys[pd.isna(keys)] = np.nan
    return keys


def units(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `part` emptied where a step number identifies the step already."""
    out = frame.copy(deep=False)
    part = out["part"]
    parts = part.to_numpy(object, copy=True)
    parts[out["step"].notna().to_numpy()] = None
    out["part"] = pd.Series(parts, part.index, OBJECT, copy=False)
    return out


def step_walls(measured: Measurements) -> pd.DataFrame:
    """One row a unit, in order: run, step, part, origin, name, ranks, ts_ns, wall_ns, and attributed_ns.

    Wall: the longest `ProfilerStep` (or range `step n`) over ranks; else from the first to the last activity over all
    processes of one host; for sources that are single stages, the time that any of them covers.
    attributed_ns: what stages of any process cover of it (NA without stages); see `stage_rows`.
    """
    steps = units(measured["steps"])
    stages = stage_rows(measured)
    unit_of, stage_unit = numbered_alike(UNIT, steps, stages)
    count = int(unit_of.max(initial=-1)) + 1
    # Of each unit the rows of its best origin.
    rank = np.fromiter(map(STEP_ORIGINS.index, steps["origin"]), np.int64, len(steps))
    best = np.full(count, len(STEP_ORIGINS), np.int64)
    np.minimum.at(best, unit_of, rank)
    chosen = rank == best[unit_of]
    rows, unit_of = steps[chosen], unit_of[chosen]
    process, stage_process = numbered_alike(CAPTURE, rows, stages)
    longest, low, high, wall = _longest(measured, rows, unit_of, process, best)
    # What stages of the processes of the longest wall cover of it.
    of_longest = pd.DataFrame({"unit": unit_of[longest], "process": process[longest]})
    of_stages = pd.DataFrame({"unit": stage_unit, "process": stage_process})
    inside = is_among(of_stages, of_longest, ("unit", "process"))
    begin = stages["ts_ns"].to_numpy(np.int64)[inside]
    end = begin + stages["dur_ns"].to_numpy(np.int64)[inside]
    group = stage_unit[inside]
    begin, end = np.clip(begin, low[group], None), np.clip(end, None, high[group])
    no_stage = np.bincount(group, minlength=count) == 0
    first = grouping.first_of_each(unit_of, count)
    out = {
        **{name: list(keys_at(rows[name], first)) for name in UNIT},
        "origin": list(map(STEP_ORIGINS.__getitem__, best.tolist())),
        "name": list(keys_at(rows["name"], first)),
        "ranks": _counted(rows["rank"], unit_of, count),
        "ts_ns": low,
        "wall_ns": wall,
        "attributed_ns": pd.arrays.IntegerArray(union_totals(begin, end, group, count), no_stage),
    }
    walls = pd.DataFrame(out)
    return walls.sort_values(["run", "step", "ts_ns"], kind="stable", ignore_index=True)


def _longest(
    measured: Measurements, rows: pd.DataFrame, unit_of: Ints, process: Ints, best: Ints
) -> tuple[npt.NDArray[np.bool_], Ints, Ints, Ints]:
    """(which rows are of the longest wall of their unit; its start, its end and its length for every unit)."""
    count = len(best)
    # The steps of each process, or all that one host did where the clocks of a unit can be compared.
    by_process = np.isin(best, list(map(STEP_ORIGINS.index, ("profiler", "range", *REPEATING))))
    by_process |= np.bincount(unit_of[_relative(measured, rows)], minlength=count) > 0
    # Where ranks began to record one after the other, their common time is not one capture.
    is_skewed = (rows["skew_ns"] > 0).to_numpy(np.bool_)
    by_process |= np.bincount(unit_of[is_skewed], minlength=count) > 0
    occurrence = rows["occurrence"].to_numpy(np.int64)
    host = numbered_alike(["host"], rows)[0]
    is_by_process = by_process[unit_of]
    keys = {
        "unit": unit_of,
        "where": np.where(is_by_process, process, host),
        "occurrence": np.where(is_by_process, occurrence, 0),
    }
    group, _ = of_keys(pd.DataFrame(keys), [*keys])
    first = grouping.first_of_each(group, int(group.max(initial=-1)) + 1)
    start = rows["ts_ns"].to_numpy(np.int64)
    end = start + rows["dur_ns"].to_numpy(np.int64)
    low, high = start[first], end[first]
    np.minimum.at(low, group, start)
    np.maximum.at(high, group, end)
    of_stages = best[unit_of[first]] == STEP_ORIGINS.index("stage")
    wall = np.where(of_stages, union_totals(start, end, group, len(first)), high - low)
    # The first of equally long ones, in order of appearance.
    order = np.lexsort((np.arange(len(first)), -wall, unit_of[first]))
    heads = order[np.unique(unit_of[first][order], return_index=True)[1]]
    return np.isin(group, heads), low[heads], high[heads], wall[heads]


def _counted(column: pd.Series[Any], group: Ints, count: int) -> Any:
    """How many different values each group has; NA where it has none."""
    is_present = column.notna().to_numpy(np.bool_)
    values, _ = pd.factorize(column[is_present])
    pairs = np.unique(np.stack((group[is_present], values)), axis=1)
    counts = np.bincount(pairs[0], minlength=count)
    return pd.arrays.IntegerArray(counts.astype(np.int64), counts == 0)


def stage_rows(measured: Measurements) -> pd.DataFrame:
    """The outermost stage ranges: columns of `stages` plus `canonical`, the stage under its one name.

    Numbered pieces (mini-batches) that stand alone in a source of one stage are that stage.
    """
    return measured.derived(_stage_rows)


def _stage_rows(measured: Measurements) -> pd.DataFrame:
    stages = units(measured["stages"])
    top = stages[stages["parent"].isna()].copy()
    top["canonical"] = canonical_stages(top)
    return top[top["canonical"].notna()]


def staged(rows: pd.DataFrame, column: str = "stage", name: str = "canonical") -> pd.DataFrame:
    """The rows that lie in a stage, with its canonical name in a column more."""
    out = rows.assign(**{name: canonical_stages(rows, column)})
    return out[out[name].notna()]


def canonical_stages(
    rows: pd.DataFrame,
    column: str = "stage",
    *,
    in_file: bool = False,
    any_range: bool = False,
) -> npt.NDArray[np.object_]:
    """The canonical stage of the recorded one in a column of every row, None outside all stages.

    `in_file`: what lies in no recorded range is in the stage that its file is of. `any_range`: every recorded
    range counts under its own name, also one that can be no stage (of snapshots, which tell of no other).
    """
    by = [column, "role", "scope"]
    number, first = of_keys(rows, by)
    firsts = zip(*(as_python(rows[name].array[first]) for name in by), strict=True)
    names = [_canonical_stage(*each, in_file=in_file, any_range=any_range) for each in firsts]
    return np.array([*names, None], object)[number]


def name_stages(rows: Frame, column: str = "stage", *, in_file: bool = False) -> Coded:
    """Return the canonical stage of each row, as `canonical_stages` does."""
    by_stage = rows.group_by(column, "role", "scope")
    names = [
        _canonical_stage(*row.values(), in_file=in_file, any_range=False)
        for row in by_stage.agg().rows()
    ]
    return at_rows(texts(names), by_stage.number)


def _canonical_stage(
    recorded: str | None, role: str | None, scope: str | None, *, in_file: bool, any_range: bool
) -> str | None:
    """Return the canonical name of one recorded stage."""
    if recorded is None:
        return scope_stage(scope, role) if in_file else None
    return canonical(recorded, role) if any_range else stage_name(recorded, role, scope)


@dataclass(frozen=True, slots=True)
class Job:
    """What every judgement needs: the walls of the units, and their mean."""

    walls: pd.DataFrame
    step_ns: float | None
    count: int

    def of(self, run: object) -> Job:
        """The steps of one run."""
        return _job(self.walls[same_text(self.walls["run"], run)])


def job(measured: Measurements) -> Job:
    """The steps of all runs; `step_ns` is None when no step was recorded."""
    return measured.derived(_all_runs)


def _all_runs(measured: Measurements) -> Job:
    return _job(step_walls(measured))


def _job(walls: pd.DataFrame) -> Job:
    return Job(walls, number_or_none(walls["wall_ns"].mean()), len(walls))


def undamaged(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of sources that lost nothing: in a damaged one what is missing looks idle.

    Rows left out because of their times are counted in their notes: what is left is sound.
    """
    losses = (note for note in measured.notes if note.severity == "data_loss")
    damaged = {note.source for note in losses if note.code not in OF_TIMES}
    return rows[~rows["source"].isin(damaged)] if damaged else rows


def devices_of(rows: pd.DataFrame) -> int:
    """How many devices the rows are of: by process and rank, as hosts are often not recorded."""
    return count_distinct(rows, (*PROCESS, "device"))


def run_heading(measured: Measurements) -> tuple[Heading, ...]:
    """A column for the run, when there are several."""
    return measured.derived(_run_heading)


def _run_heading(measured: Measurements) -> tuple[Heading, ...]:
    return (Heading("run", "run"),) if len(set(measured["captures"]["run"])) > 1 else ()


def label_headings(measured: Measurements) -> tuple[Heading, ...]:
    """Columns for run and role, as far as they tell rows apart or are known at all."""
    return measured.derived(_label_headings)


def _label_headings(measured: Measurements) -> tuple[Heading, ...]:
    has_role = bool(measured["captures"]["role"].notna().any())
    return (*run_heading(measured), *((Heading("role", "role"),) if has_role else ()))


def in_run(measured: Measurements, run: object) -> str:
    """How a claim names its run: ` (run base)`, nothing where there is only one."""
    return f" (run {run})" if run_heading(measured) else ""


def stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all parts, one after the other; parts without rows have no say in the types."""
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def text_or_none(value: object) -> str | None:
    """Text, None for a missing value."""
    return None if pd.isna(value) else str(value)  # type: ignore[call-overload]


def whole_or_none(value: Any) -> int | None:
    """A whole number as Python has it, None for a missing value."""
    return None if pd.isna(value) else int(value)


def number_or_none(value: Any) -> float | None:
    """A number as Python has it, None for a missing value."""
    return None if pd.isna(value) else float(value)


def share_of(part: float | None, total: float | None) -> float | None:
    """The part of the total, None of nothing and where one of them is unknown."""
    return part / total if part is not None and total else None


def same_text(column: pd.Series[Any], value: object) -> pd.Series[Any]:
    """Which rows equal `value`, a missing value equalling a missing one."""
    return pd.Series(equal(column, value), column.index)


def whole_if_exact(column: pd.Series[Any]) -> Any:
    """The numbers of a column, as integers if every known one is one: 192 launches, not 192.0."""
    missing = column.isna().to_numpy(np.bool_)
    values = column.to_numpy(np.float64, na_value=np.nan)
    present = values[~missing]
    if bool((present == np.round(present)).all()):
        return pd.arrays.IntegerArray(np.where(missing, 1, values).astype(np.int64), missing)
    return pd.arrays.FloatingArray(np.where(missing, 1.0, values), missing)
