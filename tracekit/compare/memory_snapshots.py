"""Memory snapshots of one side: owner, step and levels of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd

from tracekit.compare.sides import Side
from tracekit.job.frames import text_or_none, whole_or_none
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS
from tracekit.job.steps.metric_samples import Samples
from tracekit.model.keys import looked_up
from tracekit.model.labels import called
from tracekit.model.records import dataclass
from tracekit.model.report import Better
from tracekit.model.trace import Measurements

PEAK, END = "peak_requested", "end_requested"
"""Headline levels; the second applies if a side recorded no history."""

LEVELS: Mapping[str, tuple[str, Better]] = {
    PEAK: ("peak requested", "lower"),
    "peak_reserved": ("peak reserved", "lower"),
    END: ("requested at the end", "lower"),
    "end_allocated": ("allocated at the end", "lower"),
    "end_reserved": ("reserved at the end", "lower"),
    "stranded": ("stranded at the end", "lower"),
    "largest_free": ("largest free piece at the end", "neither"),
}
"""Title and direction of every level."""

_MEASURED = {
    PEAK: "peak_bytes",
    "peak_reserved": "reserved_peak_bytes",
    END: "end_requested_bytes",
    "end_allocated": "end_allocated_bytes",
    "end_reserved": "end_reserved_bytes",
    "stranded": "stranded_bytes",
    "largest_free": "largest_free_bytes",
}
_METRICS = {
    PEAK: "device_peak_requested",
    "peak_reserved": "device_peak_reserved",
    END: "device_end_requested",
    "end_allocated": "device_end_allocated",
    "end_reserved": "device_end_reserved",
    "stranded": "device_end_stranded",
}
"""Metric of each level in a saved report."""


class Whose(NamedTuple):
    """Owner of a memory; `number` separates processes of one rank, in the order of their ids."""

    memory: str
    role: str | None
    rank: int | None
    replica: int | None
    device: int | None
    number: int

    def __str__(self) -> str:
        """Format the owner: `rank 3 actor, GPU 0`."""
        words = []
        if self.rank is not None:
            words.append(f"rank {self.rank}")
        if self.role:
            words.append(self.role)
        if self.number:
            words.append(f"(process {self.number + 1})")
        name = " ".join(words)
        memory = called("GPU", self.device) or "GPU"
        if self.memory == "host":
            memory = "pinned host memory"
        return ", ".join(filter(None, (name, memory)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of one device in one snapshot; `levels` by the names of `LEVELS`, None if not recorded.

    `row` has the columns of `snapshot_levels` of `measured`; both are None for saved reports.
    """

    whose: Whose
    run: str
    step: int | None
    taken_ns: int
    source: str
    levels: Mapping[str, int | None]
    row: Mapping[Any, Any] | None = None
    measured: Measurements | None = None

    @property
    def height(self) -> tuple[int, int, int]:
        """Sort key of the worst snapshot: its peak, then its level at the end, then its step."""
        return self.levels[PEAK] or 0, self.levels[END] or 0, self.step or 0


def snapshots(side: Side) -> list[Snapshot]:
    """List every measured snapshot of every device; `reported` covers saved reports."""
    return list(chain.from_iterable(map(_measured, side.measured)))


def _measured(measured: Measurements) -> Iterator[Snapshot]:
    """List the snapshots of one input, with the free space at its end."""
    rows = measured["snapshot_levels"]
    if not len(rows):
        return
    rows = looked_up(rows, _free(measured), SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    windows = measured["snapshot_windows"]
    ends = windows.dropna(subset=["end_ns"]).groupby("source")["end_ns"].max().to_dict()
    steps = {source.name: source.step for source in measured.sources}
    rows["step"] = pd.array([*map(steps.get, map(str, rows["source"]))], dtype="Int64")
    for row, number in zip(rows.to_dict("records"), _numbers(rows), strict=True):
        source = text_or_none(row["source"]) or ""
        taken_ns = int(ends.get(source, 0))
        yield Snapshot(
            _whose(row, number),
            str(row["run"]),
            whole_or_none(row["step"]),
            taken_ns,
            source,
            _levels(row),
            row,
            measured,
        )


def _whose(row: Mapping[Any, Any], number: int) -> Whose:
    """Identify the owner of a row of `snapshot_levels`."""
    return Whose(
        str(row["memory"]),
        text_or_none(row["role"]),
        whole_or_none(row["rank"]),
        whole_or_none(row["replica"]),
        whole_or_none(row["device"]),
        number,
    )


def _levels(row: Mapping[Any, Any]) -> dict[str, int | None]:
    """Read the levels of a row; without a history there is no peak."""
    levels = {name: whole_or_none(row[column]) for name, column in _MEASURED.items()}
    if not row["entry_count"]:
        levels |= {PEAK: None, "peak_reserved": None}
    return levels


def _numbers(rows: pd.DataFrame) -> list[int]:
    """Assign each row the number of its process within the rank.

    A process that replaced another keeps its number.
    """
    rank = [rows[name] for name in ("run", "memory", "role", "rank", "replica", "device")]
    process = rows.groupby(["host", "pid"], dropna=False, sort=True).ngroup()
    number = process.groupby(rank, dropna=False).rank("dense").astype(int) - 1
    at_once = process.groupby([*rank, rows["step"]], dropna=False).transform("nunique")
    several = at_once.groupby(rank, dropna=False).transform("max") > 1
    numbers: list[int] = number.where(several, 0).tolist()
    return numbers


def _free(measured: Measurements) -> pd.DataFrame:
    """Measure the free space at the end of every snapshot: stranded bytes and the largest block."""
    space = measured["free_space"]
    ends = space[space["moment"] == "end"].groupby([*SNAPSHOT_KEYS], dropna=False, sort=False)
    free = ends.agg(
        stranded_bytes=("stranded_bytes", "sum"), largest_free_bytes=("largest_free_bytes", "max")
    )
    types: Any = {"source": object, "pid": "Int64", "memory": object, "device": "Int64"}
    return free.reset_index().astype(types)


def reported(side: Side) -> list[Snapshot]:
    """List the snapshot levels of a saved report by step: those of the worst rank of every role.

    Empty without a level that only snapshots have.
    """
    levels: dict[tuple[str | None, str, int | None], dict[str, int | None]] = {}
    for name, metric in _METRICS.items():
        for (recorded, role, stage), samples in side.samples.items():
            if recorded != metric or stage is not None:
                continue
            for run, step, value in _values(samples):
                of_step = levels.setdefault((role, run, step), dict.fromkeys(LEVELS))
                of_step[name] = max(of_step[name] or 0, value)
    snapshots = []
    for (role, run, step), of_step in levels.items():
        if of_step[PEAK] is not None or of_step[END] is not None:
            whose = Whose("device", role, None, None, None, 0)
            snapshots.append(Snapshot(whose, run, step, 0, side.name, of_step))
    return snapshots


def _values(samples: Samples) -> Iterator[tuple[str, int | None, int]]:
    """Iterate over the (run, step, value) of every step."""
    for run, steps, values in zip(samples.runs, samples.steps, samples.values, strict=True):
        for (_, step, _), value in zip(steps, values, strict=True):
            yield run, step, int(value)
