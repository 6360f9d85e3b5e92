"""Attribution of a change: plain, immutable and JSON-serializable; times in ns of the mean step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.stats.speedup import Pairing

Presence = Literal["both", "new", "gone", "replaced"]


@dataclass(frozen=True, slots=True)
class AttributionRow:
    """Time of one item in the mean step on both sides; `difference` is after minus before.

    - `low` and `high` bound the difference, None if there is no interval.
    - `difference` is `by_count` (more or fewer calls) plus `by_duration` (longer or shorter calls). Items
      that only wait (`waiting`) have no calls, so all of it is duration. Counts exist for leaves only. All are per step.
    - `rows` counts the rows merged in this one.
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
class TransferChange:
    """Collectives of one stage and kind on both sides: (transfer, wait, not split) per step and rank.

    These are whole durations, including overlap with other work. `waited_for` is the rank for which the wait of all
    ranks changed most, with that wait on both sides; None if the clocks do not show the last rank.
    """

    stage: str
    op: str
    base: tuple[float, float, float]
    opt: tuple[float, float, float]
    waited_for: tuple[int, float, float] | None = None


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel that changed, with its time on both sides; ratios are before over after.

    `corrected` is the ratio without the shift of its class, `q` the false discovery rate up to this kernel.
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
    """Kernels that changed beyond chance, the largest difference first; `tested` of `seen` had enough `unit`s (run | step).

    `largest` are those of all kernels that differ most, whether tested or not. `warnings` describe shifts shared by
    all kernels of a class. `on_host`: host ops instead of kernels.
    """

    changed: tuple[KernelChange, ...] = ()
    largest: tuple[KernelChange, ...] = ()
    tested: int = 0
    seen: int = 0
    unit: str = "step"
    on_host: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageByOp:
    """One stage of the mean step on both sides, and its rows by op; `low` and `high` as in `Row`."""

    stage: str
    base: float
    opt: float
    low: float | None
    high: float | None
    rows: tuple[AttributionRow, ...]


@dataclass(frozen=True, slots=True)
class StageTimeChange:
    """Exclusive time of a role's stage on its longest rank, in the mean step of both sides.

    It is 0 in steps without the stage.
    """

    role: str | None
    stage: str
    base: float
    opt: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """Change of the step by class, by op, and by op path and kernel; each level adds up to the whole change.

    Rows are ordered by change, the largest first, then one row for those left out.

    - `stages` are the stages by class, `ops` feed the first screen, `leaves` are the finest level.
    - `replaced` lists names that replace others; the levels contain these rows already.
    - `within` lists the stages that changed most by op, `stage_times` all stages.
    - `paired`: intervals are of pairs (step | run). `missing` says why there is no attribution.
    """

    base: float = 0.0
    opt: float = 0.0
    stages: tuple[AttributionRow, ...] = ()
    ops: tuple[AttributionRow, ...] = ()
    leaves: tuple[AttributionRow, ...] = ()
    replaced: tuple[AttributionRow, ...] = ()
    transfers: tuple[TransferChange, ...] = ()
    kernels: KernelChanges = KernelChanges()
    notes: tuple[str, ...] = ()
    missing: str = ""
    within: tuple[StageByOp, ...] = ()
    stage_times: tuple[StageTimeChange, ...] = ()
    paired: Pairing | None = None


def merge_attribution_rows(rows: Sequence[AttributionRow]) -> AttributionRow:
    """Sum rows into one, without an interval."""
    total = AttributionRow("", "", 0, 0, 0, rows=0)
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


def shorten_attribution_rows(rows: Iterable[AttributionRow], limit: int) -> list[AttributionRow]:
    """Keep the first `limit` rows and merge all later ones; a single later row stays as it is."""
    ordered = list(rows)
    if len(ordered) <= limit + 1:
        return ordered
    return [*ordered[:limit], merge_attribution_rows(ordered[limit:])]
