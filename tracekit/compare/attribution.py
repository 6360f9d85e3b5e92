"""Where did the change of the step come from? Each nanosecond of it once, by stage, op and kernel.

Where the wall time went, not why: making work shorter that other work hides gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.compare import renames
from tracekit.compare.kernels import kernel_changes
from tracekit.compare.origins import Attribution, Presence, Row, Within, shortened
from tracekit.compare.sides import Side
from tracekit.compare.slots_of import (
    KEYS,
    RESIDUALS,
    REST,
    STEP_END,
    TWICE,
    UNRECORDED,
    SlotTable,
    slot_table,
)
from tracekit.compare.spreads import intervals
from tracekit.compare.transfers import transfers
from tracekit.model.stats.estimate import Floats
from tracekit.model.stats.speedup import Pairing
from tracekit.model.tables.slots import NO_OP, OTHER, UNLINKED, class_title

Ints = npt.NDArray[np.int64]

MAX_ROWS = 300
"""Most rows of one level that are kept; the others are one row."""

TOLERANCE_NS, TOLERANCE = 1e3, 1e-9
"""Rows add up to the step within a microsecond, or rounding where steps last for weeks."""

MAX_STAGES, MAX_WITHIN, LEAST_STAGE = 3, 8, 0.05
"""Most stages that are told op by op, and rows of each; the least part of all changes that makes it worth it."""

RESIDUAL_TITLES = {
    STEP_END: "wait at step end",
    REST: "rest of the step (not recorded)",
    UNRECORDED: "steps of which nothing was recorded",
    TWICE: "recorded twice (taken off)",
}
"""What people read for what lanes do not account for."""

CALLED = ("compute", "collective", "memcpy", "memset", "host")
"""Classes of what is called a number of times."""

OUTSIDE = "(no stage)"

_BACKWARD = "autograd::engine::evaluate_function: "


def attribute(base: Side, opt: Side, level: float, paired: Pairing | None = None) -> Attribution:
    """Where the change of the step came from, or why that cannot be said; `paired` as `changes.pairing` found it."""
    table = slot_table(base, opt)
    if isinstance(table, str):
        return Attribution(missing=table)
    return replace(
        attributed(table, level, paired),
        transfers=transfers(base, opt),
        kernels=kernel_changes(table),
    )


def attributed(table: SlotTable, level: float, paired: Pairing | None = None) -> Attribution:
    """The attribution of slots; an AssertionError where a level does not add up to the change of the step."""
    walls = [float(half.wall @ half.weights) for half in (table.base, table.opt)]
    keys = _with_outside(table.keys)
    swaps = _swaps(table)
    whole_ops = {row: place for row, place in swaps.items() if not place[2]}
    by_class = keys[["stage"]].assign(what=[_class(*key) for key in _plain(keys, "class", "cause")])
    by_op = keys[["stage"]].assign(what=[_op(*key) for key in _plain(keys, *KEYS[1:])])
    names = _names(swaps, table)
    for row, place in whole_ops.items():
        by_op.loc[row, "what"] = names[place]
    by_leaf = keys[["stage"]].assign(what=[_leaf(*key) for key in _plain(keys, *KEYS[1:])])
    by_stage = keys[["stage"]].assign(what="")
    stages, classes, every_op, every_leaf = (
        _level(table, level, rows, paired) for rows in (by_stage, by_class, by_op, by_leaf)
    )
    every_op = _marked(every_op, {names[place] for place in whole_ops.values()})
    ops = [_uncounted(row) for row in every_op]
    levels = [shortened(rows, MAX_ROWS) for rows in (map(_uncounted, classes), ops, every_leaf)]
    for rows in levels:
        _checked(rows, walls[0], walls[1])
    return Attribution(
        walls[0], walls[1], tuple(levels[0]), tuple(levels[1]), tuple(levels[2]),
        tuple(_replaced(table, level, swaps, names, paired)), notes=table.notes,
        within=tuple(_within(stages, ops)), stage_times=table.stages, paired=paired,
    )  # fmt: skip


def _uncounted(row: Row) -> Row:
    return replace(row, base_count=None, opt_count=None)


def _within(stages: Sequence[Row], ops: Sequence[Row]) -> Iterator[Within]:
    """The stages that changed most, by op; nothing where the step has no stages."""
    named = [row for row in stages if row.stage]
    least = LEAST_STAGE * sum(abs(row.difference) for row in named)
    for stage in named[:MAX_STAGES] if len(named) > 1 else ():
        own = [row for row in ops if row.stage == stage.stage]
        if stage.difference == 0 or abs(stage.difference) < least or len(own) < 2:
            continue
        rows = shortened(own, MAX_WITHIN)
        _checked(rows, stage.base, stage.opt)
        yield Within(stage.stage, stage.base, stage.opt, stage.low, stage.high, tuple(rows))


def _replaced(
    table: SlotTable,
    level: float,
    swaps: dict[int, renames.Place],
    names: dict[renames.Place, str],
    paired: Pairing | None,
) -> list[Row]:
    """One row a place at which some names stand for others, the largest net change first."""
    rows = np.array(sorted(swaps), np.int64)
    if not len(rows):
        return []
    keys = table.keys.iloc[rows].reset_index(drop=True)
    halves = [replace(h, ns=h.ns[rows], count=h.count[rows]) for h in (table.base, table.opt)]
    labels = keys[["stage"]].assign(what=[names[swaps[int(row)]] for row in rows])
    found = _level(replace(table, keys=keys, base=halves[0], opt=halves[1]), level, labels, paired)
    return _marked(shortened(found, MAX_ROWS), set(names.values()))


def _marked(rows: Sequence[Row], titles: set[str]) -> list[Row]:
    return [replace(row, presence="replaced") if row.what in titles else row for row in rows]


def _with_outside(keys: pd.DataFrame) -> pd.DataFrame:
    """The keys with a name for being in no stage, where there are stages."""
    outside = (keys["stage"] == "") & ~keys["class"].isin(RESIDUALS)
    if not (keys["stage"] != "").any():
        return keys
    return keys.assign(stage=keys["stage"].where(~outside, OUTSIDE))


def _plain(keys: pd.DataFrame, *names: str) -> list[tuple[str, ...]]:
    return [tuple(map(str, key)) for key in keys[list(names)].itertuples(index=False, name=None)]


def _class(kind: str, cause: str) -> str:
    """A class as people read it, idle time with its cause."""
    return RESIDUAL_TITLES.get(kind) or class_title(kind, cause)


def _op(kind: str, cause: str, path: str, kernel: str) -> str:
    """The op at the top of a path, of communication the one at its end; where there is none, the class."""
    title = "" if kind in ("compute", "host") else _class(kind, "")
    names = [] if path in ("", NO_OP) else path.removeprefix(_BACKWARD).split(renames.SEPARATOR)
    if kind == "idle" or (kind == "no_op" and not names) or (not names and not kernel):
        return _class(kind, cause)
    if not names or path in (UNLINKED, OTHER):
        name = renames.stripped(kernel) if kernel and kernel != OTHER else path or OTHER
    else:
        name = names[-1 if kind == "collective" else 0]
    return f"{title}: {name}" if title else name


def _leaf(kind: str, cause: str, path: str, kernel: str) -> str:
    """The path and the kernel, of time without either the class."""
    if kind == "idle" or not (path or kernel) or kind == "no_op":
        return _class(kind, cause)
    text = path.removeprefix(_BACKWARD) or NO_OP
    return f"{text} · {kernel}" if kernel else text


def _level(
    table: SlotTable, level: float, labels: pd.DataFrame, paired: Pairing | None
) -> list[Row]:
    """One row a distinct label, the largest change first."""
    group = np.asarray(labels.groupby(["stage", "what"], sort=True).ngroup(), np.int64)
    told = labels.drop_duplicates().sort_values(["stage", "what"], kind="stable")
    size = len(told)
    sums = [_summed(half.ns, group, size) for half in (table.base, table.opt)]
    halves = (table.base, table.opt)
    low, high = intervals((sums[0], halves[0].run), (sums[1], halves[1].run), level, paired)
    mean = [own @ half.weights for own, half in zip(sums, halves, strict=True)]
    leaf = [half.ns @ half.weights for half in halves]
    count = [half.count @ half.weights for half in halves]
    called = table.keys["class"].isin(CALLED).to_numpy()
    effect = np.bincount(group, _count_effect(*leaf, *count) * called, minlength=size)
    counts = [np.bincount(group, own, minlength=size) for own in count]
    waiting = np.bincount(group, called, minlength=size) == 0
    rows = []
    for at, (stage, what) in enumerate(told.itertuples(index=False, name=None)):
        before, after = float(mean[0][at]), float(mean[1][at])
        rows.append(
            Row(
                str(stage), str(what), before, after, after - before, _known(low[at]), _known(high[at]),
                float(counts[0][at]), float(counts[1][at]), float(effect[at]),
                after - before - float(effect[at]), _presence(before, after), bool(waiting[at]),
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-abs(row.difference), row.stage, row.what))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _summed(values: Floats, group: Ints, size: int) -> Floats:
    out = np.zeros((size, values.shape[1]))
    np.add.at(out, group, values)
    return out


def _count_effect(before: Floats, after: Floats, n_before: Floats, n_after: Floats) -> Floats:
    """The part of each difference that more or fewer times make: `(n_o − n_b)(d_o + d_b)/2`.

    Of what one side alone holds it is all; where one side counts none and yet takes time, nothing.
    """
    known = (n_before > 0) & (n_after > 0)
    each = [
        np.divide(ns, n, out=np.zeros_like(ns), where=known)
        for ns, n in ((before, n_before), (after, n_after))
    ]
    alone = (before == 0) & (n_before == 0) | (after == 0) & (n_after == 0)
    split = (n_after - n_before) * (each[0] + each[1]) / 2
    return np.where(known, split, np.where(alone, after - before, 0.0))


def _presence(before: float, after: float) -> Presence:
    return "both" if before and after else "gone" if before else "new"


def _swaps(table: SlotTable) -> dict[int, renames.Place]:
    """Rows of keys that stand for one another, by the place under which they do."""
    rows = _plain(table.keys, "stage", "class", "op", "kernel")
    named = [
        kind in ("compute", "collective", "host")
        and path not in (UNLINKED, OTHER, NO_OP)
        and bool(path or kernel)
        and kernel != OTHER
        for _, kind, path, kernel in rows
    ]
    sides = []
    for half in (table.base, table.opt):
        there: list[bool] = np.any((half.ns != 0) | (half.count != 0), axis=1).tolist()
        sides.append({at for at in range(len(rows)) if there[at] and named[at]})
    keys: list[renames.Key] = [(row[0], row[1], row[2], row[3]) for row in rows]
    found = renames.replaced((keys[at] for at in sides[0]), (keys[at] for at in sides[1]))
    return {at: found[keys[at]] for at in sorted(sides[0] ^ sides[1]) if keys[at] in found}


def _names(swaps: dict[int, renames.Place], table: SlotTable) -> dict[renames.Place, str]:
    """What each place is called: what went, then what came, the largest first."""
    size = [half.ns @ half.weights for half in (table.base, table.opt)]
    rows = _plain(table.keys, "stage", "class", "op", "kernel")
    parts: dict[renames.Place, tuple[dict[str, float], dict[str, float]]] = {}
    for at, place in swaps.items():
        key: renames.Key = (rows[at][0], rows[at][1], rows[at][2], rows[at][3])
        name = renames.differing(key, place).removeprefix(_BACKWARD)
        for mine, total in zip(parts.setdefault(place, ({}, {})), size, strict=True):
            if total[at]:
                mine[name] = mine.get(name, 0.0) + float(total[at])
    return {
        place: _under(place) + " → ".join(
            renames.shown(sorted(side, key=lambda name: (-side[name], name))) for side in sides
        )
        for place, sides in parts.items()
    }  # fmt: skip


def _under(place: renames.Place) -> str:
    """What stands before the names of what was replaced: the op under which it was."""
    return f"{place[2].removeprefix(_BACKWARD)}: " if place[2] else "replaced: "


def _checked(rows: Sequence[Row], base: float, opt: float) -> None:
    """Nothing, or an AssertionError where rows do not add up to both steps and the change."""
    slack = max(TOLERANCE_NS, TOLERANCE * max(base, opt))
    for name, whole in (("base", base), ("opt", opt), ("difference", opt - base)):
        total = sum(getattr(row, name) for row in rows)
        assert abs(total - whole) < slack, f"{name}: {total} of {whole} is attributed"
    parts = sum(row.by_count + row.by_duration for row in rows)
    assert abs(parts - (opt - base)) < slack, "both effects are all of the change"
