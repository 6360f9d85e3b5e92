"""Attribution of the step's change: each nanosecond counted once, by stage, op and kernel.

It shows where the wall time changed, not why: shortening work that overlaps with other work saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.compare.sides import ComparedSide
from tracekit.compare.wall_time import replaced_names
from tracekit.compare.wall_time.attribution_rows import (
    Attribution,
    AttributionRow,
    Presence,
    StageByOp,
    shorten_attribution_rows,
)
from tracekit.compare.wall_time.difference_intervals import compute_difference_intervals
from tracekit.compare.wall_time.kernels import find_kernel_changes
from tracekit.compare.wall_time.renamed_kernels import RENAMED
from tracekit.compare.wall_time.slot_table import (
    RESIDUALS,
    REST,
    STEP_END,
    STEP_KEY,
    TWICE,
    UNRECORDED,
    SlotHalf,
    SlotTable,
    build_slot_table,
    sum_rows_by_group,
)
from tracekit.compare.wall_time.transfers import compare_transfers
from tracekit.job.frames import to_float_or_none
from tracekit.job.steps.metric_samples import Key
from tracekit.model.stats.estimate import Floats
from tracekit.model.stats.speedup import Pairing
from tracekit.model.tables.frame import Frame
from tracekit.model.tables.slots import NO_OP, OTHER, UNLINKED, get_class_title
from tracekit.model.text.kernel_labels import label_kernel_family

Ints = npt.NDArray[np.int64]

MAX_ROWS = 300
"""Largest number of rows in one level; the others are folded into one row."""

TOLERANCE_NS, TOLERANCE = 1e3, 1e-9
"""Tolerance of the sum of rows: one microsecond, or the rounding error of steps that last for weeks."""

MAX_STAGES, MAX_WITHIN, LEAST_STAGE = 3, 8, 0.05
"""Limits of the per-op tables: stages shown, rows per stage, smallest share of all changes worth a table."""

RESIDUAL_TITLES = {
    STEP_END: "wait at step end",
    REST: "rest of the step (not recorded)",
    UNRECORDED: "steps without any recording",
    TWICE: "recorded twice (subtracted)",
}
"""Titles of the time that no lane accounts for."""

COUNTED_CLASSES = ("compute", "collective", "memcpy", "memset", "host")
"""Classes of slots that have a number of calls."""

OUTSIDE = "(outside any stage)"

_BACKWARD = "autograd::engine::evaluate_function: "


def attribute_sides(
    base: ComparedSide, opt: ComparedSide, level: float, paired: Pairing | None = None, unit: Key = STEP_KEY
) -> Attribution:
    """Attribute the change of the step, or give the reason why it cannot be attributed.

    `paired` is the pairing that `choose_pairing` found, `unit` the unit of work of recordings without step marks.
    """
    table = build_slot_table(base, opt, unit)
    if isinstance(table, str):
        return Attribution(missing=table)
    return replace(
        attribute_slot_table(table, level, paired),
        transfers=compare_transfers(base, opt, unit),
        kernels=find_kernel_changes(table),
    )


def attribute_slot_table(table: SlotTable, level: float, paired: Pairing | None = None) -> Attribution:
    """Attribute the change of the step to the slots of a table.

    Raises AssertionError if the rows of a level do not add up to the change.
    """
    base_wall = float(table.base.wall @ table.base.weights)
    opt_wall = float(table.opt.wall @ table.opt.weights)
    stage = _name_time_outside_stages(table.keys)
    slots = _list_key_texts(table.keys, "class", "cause", "op", "kernel")
    swaps = _find_replaced_keys(table)
    names = _title_replaced_places(swaps, table)
    titles = [_title_op(*slot) for slot in slots]
    swapped_titles = set()
    for row, place in swaps.items():
        if not place[2]:  # whole ops replaced one another
            titles[row] = names[place]
            swapped_titles.add(names[place])

    def rows_by(labels: Iterable[str]) -> list[AttributionRow]:
        return _build_attribution_level(table, level, list(zip(stage, labels, strict=True)), paired)

    stages = rows_by([""] * len(slots))
    classes = rows_by(_title_slot_class(kind, cause) for kind, cause, _, _ in slots)
    ops = [_clear_row_counts(row) for row in _mark_replaced_rows(rows_by(titles), swapped_titles)]
    leaves = rows_by(_title_leaf(*slot) for slot in slots)
    levels = (
        shorten_attribution_rows((_clear_row_counts(row) for row in classes), MAX_ROWS),
        shorten_attribution_rows(ops, MAX_ROWS),
        shorten_attribution_rows(leaves, MAX_ROWS),
    )
    for rows in levels:
        _check_level_sums(rows, base_wall, opt_wall)
    return Attribution(
        base_wall,
        opt_wall,
        stages=tuple(levels[0]),
        ops=tuple(levels[1]),
        leaves=tuple(levels[2]),
        replaced=tuple(_list_replaced_names(table, level, swaps, names, paired)),
        notes=table.notes,
        within=tuple(_list_largest_stages_by_op(stages, ops)),
        stage_times=table.stages,
        paired=paired,
    )


def _clear_row_counts(row: AttributionRow) -> AttributionRow:
    """Clear the counts of a row; only leaves have meaningful counts."""
    return replace(row, base_count=None, opt_count=None)


def _list_largest_stages_by_op(stages: Sequence[AttributionRow], ops: Sequence[AttributionRow]) -> Iterator[StageByOp]:
    """List the stages that changed most, each by op; empty if the step has no stages."""
    named = [row for row in stages if row.stage]
    if len(named) < 2:
        return
    least_change = LEAST_STAGE * sum(abs(row.difference) for row in named)
    for stage in named[:MAX_STAGES]:
        stage_ops = [row for row in ops if row.stage == stage.stage]
        too_little = stage.difference == 0 or abs(stage.difference) < least_change
        if too_little or len(stage_ops) < 2:
            continue
        rows = shorten_attribution_rows(stage_ops, MAX_WITHIN)
        _check_level_sums(rows, stage.base, stage.opt)
        yield StageByOp(stage.stage, stage.base, stage.opt, stage.low, stage.high, tuple(rows))


def _list_replaced_names(
    table: SlotTable,
    level: float,
    swaps: dict[int, replaced_names.ReplacedPlace],
    names: dict[replaced_names.ReplacedPlace, str],
    paired: Pairing | None,
) -> list[AttributionRow]:
    """List one row per place where some names replace others, the largest net change first."""
    if not swaps:
        return []
    rows = np.array(sorted(swaps), np.int64)
    swapped = replace(
        table,
        keys=table.keys.take(rows),
        base=_select_half_rows(table.base, rows),
        opt=_select_half_rows(table.opt, rows),
    )
    titles = [names[swaps[row]] for row in sorted(swaps)]
    labels = list(zip(swapped.keys.values("stage"), titles, strict=True))
    changes = _build_attribution_level(swapped, level, labels, paired)
    return _mark_replaced_rows(shorten_attribution_rows(changes, MAX_ROWS), set(names.values()))


def _select_half_rows(half: SlotHalf, rows: Ints) -> SlotHalf:
    """Select rows of one side of a slot table."""
    return replace(half, ns=half.ns[rows], count=half.count[rows])


def _mark_replaced_rows(rows: Sequence[AttributionRow], titles: set[str]) -> list[AttributionRow]:
    """Mark the rows with these titles as replaced."""
    return [replace(row, presence="replaced") if row.what in titles else row for row in rows]


def _name_time_outside_stages(keys: Frame) -> list[str]:
    """List the stage of every key; the time outside any stage has a name if the step has stages."""
    stages = keys.values("stage")
    if not any(stages):
        return stages
    is_residual = keys.is_in("class", RESIDUALS).tolist()
    return [stage or ("" if residual else OUTSIDE) for stage, residual in zip(stages, is_residual, strict=True)]


def _list_key_texts(keys: Frame, *names: str) -> list[tuple[str, str, str, str]]:
    """List four columns of every key as text."""
    return list(zip(*(keys.values(name) for name in names), strict=True))


def _title_slot_class(kind: str, cause: str) -> str:
    """Title a slot class; idle time includes its cause."""
    return RESIDUAL_TITLES.get(kind) or get_class_title(kind, cause)


def _title_op(kind: str, cause: str, path: str, kernel: str) -> str:
    """Title a slot by the op at the top of its path; collectives by the op at its end.

    Slots without an op are titled by their class.
    """
    names: list[str] = []
    if path not in ("", NO_OP):
        names = path.removeprefix(_BACKWARD).split(replaced_names.SEPARATOR)
    if kind == "idle" or (not names and (kind == "no_op" or not kernel)):
        return _title_slot_class(kind, cause)
    if names and path not in (UNLINKED, OTHER):
        name = names[-1] if kind == "collective" else names[0]
    elif kernel and kernel != OTHER:
        name = kernel if RENAMED in kernel else label_kernel_family(kernel)
    else:
        name = path or OTHER
    if kind in ("compute", "host"):
        return name
    return f"{_title_slot_class(kind, '')}: {name}"


def _title_leaf(kind: str, cause: str, path: str, kernel: str) -> str:
    """Title a slot by its path and kernel; time without either by its class."""
    if kind in ("idle", "no_op") or not (path or kernel):
        return _title_slot_class(kind, cause)
    return " · ".join(part for part in (path.removeprefix(_BACKWARD) or NO_OP, kernel) if part)


def _build_attribution_level(
    table: SlotTable, level: float, labels: Sequence[tuple[str, str]], paired: Pairing | None
) -> list[AttributionRow]:
    """Build one row per distinct label (stage and title) of the slot keys, the largest change first."""
    base, opt = table.base, table.opt
    titles = sorted(set(labels))
    size = len(titles)
    place = {title: number for number, title in enumerate(titles)}
    group = np.array([place[label] for label in labels], np.int64)
    base_ns, opt_ns = (sum_rows_by_group(base.ns, group, size), sum_rows_by_group(opt.ns, group, size))
    low, high = compute_difference_intervals((base_ns, base.run), (opt_ns, opt.run), level, paired)
    base_count, opt_count = base.count @ base.weights, opt.count @ opt.weights
    called = table.keys.is_in("class", COUNTED_CLASSES)
    of_count = called * _measure_count_effect(base.ns @ base.weights, opt.ns @ opt.weights, base_count, opt_count)
    columns = (
        base_ns @ base.weights,
        opt_ns @ opt.weights,
        low,
        high,
        *(np.bincount(group, values, size) for values in (base_count, opt_count, of_count)),
        np.bincount(group, called, size) == 0,
    )
    rows = []
    for (stage, what), *sums in zip(titles, *(column.tolist() for column in columns), strict=True):
        before, after, least, most, base_calls, opt_calls, by_count, is_waiting = sums
        rows.append(
            AttributionRow(
                stage,
                what,
                base=before,
                opt=after,
                difference=after - before,
                low=to_float_or_none(least),
                high=to_float_or_none(most),
                base_count=base_calls,
                opt_count=opt_calls,
                by_count=by_count,
                by_duration=after - before - by_count,
                presence=_classify_row_presence(before, after),
                waiting=is_waiting,
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.difference), row.stage, row.what))


def _measure_count_effect(before: Floats, after: Floats, n_before: Floats, n_after: Floats) -> Floats:
    """Measure the part of each difference that the change in calls explains: `(n_o − n_b)(d_o + d_b)/2`.

    A key on one side only is explained by calls alone. If one side takes time without counting calls,
    calls explain nothing.
    """
    counted = (n_before > 0) & (n_after > 0)
    d_before = np.divide(before, n_before, out=np.zeros_like(before), where=counted)
    d_after = np.divide(after, n_after, out=np.zeros_like(after), where=counted)
    effect = (n_after - n_before) * (d_before + d_after) / 2
    one_side = (before == 0) & (n_before == 0) | (after == 0) & (n_after == 0)
    return np.where(counted, effect, np.where(one_side, after - before, 0.0))


def _classify_row_presence(before: float, after: float) -> Presence:
    """Classify a row by the sides that spend time in it."""
    if before and after:
        return "both"
    return "gone" if before else "new"


def _find_replaced_keys(table: SlotTable) -> dict[int, replaced_names.ReplacedPlace]:
    """Map rows of keys that replace one another to the place under which they do."""
    keys: list[replaced_names.SlotKey] = _list_key_texts(table.keys, "stage", "class", "op", "kernel")
    before, after = _find_named_rows(table.base, keys), _find_named_rows(table.opt, keys)
    places = replaced_names.match_replaced_keys(
        (keys[position] for position in before), (keys[position] for position in after)
    )
    return {row: places[keys[row]] for row in sorted(before ^ after) if keys[row] in places}


def _find_named_rows(half: SlotHalf, keys: Sequence[replaced_names.SlotKey]) -> set[int]:
    """Find the rows of one side with time or calls of an op or kernel with a name."""
    present = np.any((half.ns != 0) | (half.count != 0), axis=1)
    return {row for row in np.flatnonzero(present).tolist() if _has_own_name(keys[row])}


def _has_own_name(key: replaced_names.SlotKey) -> bool:
    """Check whether a key is an op or kernel with a name of its own."""
    _, kind, path, kernel = key
    if kind not in ("compute", "collective", "host"):
        return False
    return path not in (UNLINKED, OTHER, NO_OP) and kernel != OTHER and bool(path or kernel)


def _title_replaced_places(
    swaps: dict[int, replaced_names.ReplacedPlace], table: SlotTable
) -> dict[replaced_names.ReplacedPlace, str]:
    """Title each place: the names that disappeared, then those that appeared, the largest first."""
    keys: list[replaced_names.SlotKey] = _list_key_texts(table.keys, "stage", "class", "op", "kernel")
    gone = _sum_time_by_place(swaps, keys, table.base.ns @ table.base.weights)
    come = _sum_time_by_place(swaps, keys, table.opt.ns @ table.opt.weights)
    titles = {}
    for place in dict.fromkeys(swaps.values()):
        old, new = _join_largest_names(gone[place]), _join_largest_names(come[place])
        op = place[2].removeprefix(_BACKWARD) if place[2] else "replaced"
        titles[place] = f"{op}: {old} → {new}"
    return titles


def _sum_time_by_place(
    swaps: dict[int, replaced_names.ReplacedPlace], keys: Sequence[replaced_names.SlotKey], total: Floats
) -> dict[replaced_names.ReplacedPlace, dict[str, float]]:
    """Sum the time of one side at each place, by the part of the name that differs there."""
    sizes: dict[replaced_names.ReplacedPlace, dict[str, float]] = {}
    for row, place in swaps.items():
        of_place = sizes.setdefault(place, {})
        if total[row]:
            name = replaced_names.get_differing_name(keys[row], place).removeprefix(_BACKWARD)
            of_place[name] = of_place.get(name, 0.0) + float(total[row])
    return sizes


def _join_largest_names(sizes: dict[str, float]) -> str:
    """Join the names, the largest first."""
    return replaced_names.join_first_names(sorted(sizes, key=lambda name: (-sizes[name], name)))


def _check_level_sums(rows: Sequence[AttributionRow], base: float, opt: float) -> None:
    """Raise AssertionError if rows do not add up to both steps and to the change."""
    slack = max(TOLERANCE_NS, TOLERANCE * max(base, opt))
    for name, wanted in (("base", base), ("opt", opt), ("difference", opt - base)):
        total = sum(getattr(row, name) for row in rows)
        assert abs(total - wanted) < slack, f"{name}: {total} of {wanted} is attributed"
    effects = sum(row.by_count + row.by_duration for row in rows)
    assert abs(effects - (opt - base)) < slack, "the effects of count and duration do not add up to the change"
