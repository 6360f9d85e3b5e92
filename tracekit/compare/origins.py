"""What is told of where a change came from: plain, immutable, JSON-able; times in ns of the mean step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.stats.speedup import Pairing

Presence = Literal["both", "new", "gone", "replaced"]


@dataclass(frozen=True, slots=True)
class Row:
    """What something takes of the mean step on both sides; `difference` is after less before.

    `low` and `high` bound the difference, None where nothing can. `difference` is `by_count` (more or fewer
    times) and `by_duration` (longer or shorter each); of `waiting`, which is not called, all is duration. Both and
    the counts, which leaves alone have, are per step. `rows` counts what is put together.
    """

    stage: str
    what: str
    base: float
    opt: float
    difference: float
    low: float | None = None
    high: float | None = None
    base_count: float | None = None
    opt_count: float | None = None
    by_count: float = 0.0
    by_duration: float = 0.0
    presence: Presence = "both"
    waiting: bool = False
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Transfer:
    """Collectives of one stage and kind on both sides: (transfer, wait, not split) per step and rank.

    These are whole durations, those that other work hides included.
    """

    stage: str
    op: str
    base: tuple[float, float, float]
    opt: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel that changed, its time on both sides; ratios are before over after.

    `corrected` is the ratio without the shift of its class, `q` the share of false ones up to it.
    """

    name: str
    kind: str
    base: float
    opt: float
    difference: float
    ratio: float | None = None
    corrected: float | None = None
    q: float | None = None
    presence: Presence = "both"


@dataclass(frozen=True, slots=True)
class KernelChanges:
    """What changed, the largest difference first; `tested` of `seen` could be tested, on `unit`s (run | step).

    `warnings` tell of shifts that all kernels of a class have in common. `on_host`: ops instead of kernels.
    """

    changed: tuple[KernelChange, ...] = ()
    tested: int = 0
    seen: int = 0
    unit: str = "step"
    on_host: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Within:
    """One stage of the mean step on both sides, and the rows by op that it is the sum of; `low`, `high` as in `Row`."""

    stage: str
    base: float
    opt: float
    low: float | None
    high: float | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StageTime:
    """The exclusive time of a role's stage on its longest rank, in the mean step of both sides; 0 in steps without it."""

    role: str | None
    stage: str
    base: float
    opt: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """The change of the step by class, by op and by op path and kernel; each level adds up to all of it.

    The largest change first, then one row for those that are left out. `stages` are the stages with their
    classes, `ops` what the first screen is made of, `leaves` the finest. `replaced` names what stands for what:
    rows that the levels hold already. `within` tells the stages that changed most by op, `stage_times` all stages.
    `paired`: intervals are of pairs (step | run). `missing` says why there is no attribution.
    """

    base: float = 0.0
    opt: float = 0.0
    stages: tuple[Row, ...] = ()
    ops: tuple[Row, ...] = ()
    leaves: tuple[Row, ...] = ()
    replaced: tuple[Row, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    kernels: KernelChanges = KernelChanges()
    notes: tuple[str, ...] = ()
    missing: str = ""
    within: tuple[Within, ...] = ()
    stage_times: tuple[StageTime, ...] = ()
    paired: Pairing | None = None


def together(rows: Sequence[Row]) -> Row:
    """The sum of rows, without an interval."""
    total = Row("", "", 0, 0, 0, rows=0)
    for row in rows:
        total = replace(
            total,
            base=total.base + row.base,
            opt=total.opt + row.opt,
            difference=total.difference + row.difference,
            by_count=total.by_count + row.by_count,
            by_duration=total.by_duration + row.by_duration,
            rows=total.rows + row.rows,
        )
    return replace(total, what=f"other ({total.rows:,} rows)")


def shortened(rows: Iterable[Row], limit: int) -> list[Row]:
    """The first `limit` rows, then one that stands for all later ones; a single later one stands for itself."""
    ordered = list(rows)
    if len(ordered) <= limit + 1:
        return ordered
    return [*ordered[:limit], together(ordered[limit:])]
