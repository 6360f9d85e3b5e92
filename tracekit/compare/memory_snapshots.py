"""Memory snapshots of one side: owner, step and levels of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd

from tracekit.compare.sides import ComparedSide
from tracekit.job.frames import to_int_or_none, to_text_or_none
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS
from tracekit.job.steps.metric_samples import MetricSamples
from tracekit.model.keys import left_join
from tracekit.model.labels import format_numbered_word
from tracekit.model.records import dataclass
from tracekit.model.report import Better
from tracekit.model.trace import Measurements

PEAK, END = "peak_requested", "end_requested"
"""Headline levels; the second applies if a side recorded no history."""

MEMORY_LEVELS: Mapping[str, tuple[str, Better]] = {
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
_LEVEL_METRICS = {
    PEAK: "device_peak_requested",
    "peak_reserved": "device_peak_reserved",
    END: "device_end_requested",
    "end_allocated": "device_end_allocated",
    "end_reserved": "device_end_reserved",
    "stranded": "device_end_stranded",
}
"""Metric of each level in a saved report."""


class MemoryOwner(NamedTuple):
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
        memory = format_numbered_word("GPU", self.device) or "GPU"
        if self.memory == "host":
            memory = "pinned host memory"
        return ", ".join(part for part in (name, memory) if part)


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory of one device in one snapshot; `levels` by the names of `LEVELS`, None if not recorded.

    `row` has the columns of `snapshot_levels` of `measured`; both are None for saved reports.
    """

    whose: MemoryOwner
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


def list_measured_snapshots(side: ComparedSide) -> list[MemorySnapshot]:
    """List every measured snapshot of every device; `reported` covers saved reports."""
    return list(chain.from_iterable(_read_input_snapshots(measured) for measured in side.measured))


def _read_input_snapshots(measured: Measurements) -> Iterator[MemorySnapshot]:
    """List the snapshots of one input, with the free space at its end."""
    rows = measured["snapshot_levels"]
    if not len(rows):
        return
    rows = left_join(rows, _measure_free_space(measured), SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    windows = measured["snapshot_windows"]
    ends = windows.dropna(subset=["end_ns"]).groupby("source")["end_ns"].max().to_dict()
    steps = {source.name: source.step for source in measured.sources}
    rows["step"] = pd.array([steps.get(str(source)) for source in rows["source"]], dtype="Int64")
    for row, number in zip(rows.to_dict("records"), _number_processes(rows), strict=True):
        source = to_text_or_none(row["source"]) or ""
        taken_ns = int(ends.get(source, 0))
        yield MemorySnapshot(
            _make_memory_owner(row, number),
            str(row["run"]),
            to_int_or_none(row["step"]),
            taken_ns,
            source,
            _read_snapshot_levels(row),
            row,
            measured,
        )


def _make_memory_owner(row: Mapping[Any, Any], number: int) -> MemoryOwner:
    """Identify the owner of a row of `snapshot_levels`."""
    return MemoryOwner(
        str(row["memory"]),
        to_text_or_none(row["role"]),
        to_int_or_none(row["rank"]),
        to_int_or_none(row["replica"]),
        to_int_or_none(row["device"]),
        number,
    )


def _read_snapshot_levels(row: Mapping[Any, Any]) -> dict[str, int | None]:
    """Read the levels of a row; without a history there is no peak."""
    levels = {name: to_int_or_none(row[column]) for name, column in _MEASURED.items()}
    if not row["entry_count"]:
        levels |= {PEAK: None, "peak_reserved": None}
    return levels


def _number_processes(rows: pd.DataFrame) -> list[int]:
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


def _measure_free_space(measured: Measurements) -> pd.DataFrame:
    """Measure the free space at the end of every snapshot: stranded bytes and the largest block."""
    space = measured["free_space"]
    ends = space[space["moment"] == "end"].groupby([*SNAPSHOT_KEYS], dropna=False, sort=False)
    free = ends.agg(stranded_bytes=("stranded_bytes", "sum"), largest_free_bytes=("largest_free_bytes", "max"))
    types: Any = {"source": object, "pid": "Int64", "memory": object, "device": "Int64"}
    return free.reset_index().astype(types)


def list_reported_snapshots(side: ComparedSide) -> list[MemorySnapshot]:
    """List the snapshot levels of a saved report by step: those of the worst rank of every role.

    Empty without a level that only snapshots have.
    """
    levels: dict[tuple[str | None, str, int | None], dict[str, int | None]] = {}
    for name, metric in _LEVEL_METRICS.items():
        for (recorded, role, stage), samples in side.samples.items():
            if recorded != metric or stage is not None:
                continue
            for run, step, value in _iterate_step_values(samples):
                of_step = levels.setdefault((role, run, step), dict.fromkeys(MEMORY_LEVELS))
                of_step[name] = max(of_step[name] or 0, value)
    snapshots = []
    for (role, run, step), of_step in levels.items():
        if of_step[PEAK] is not None or of_step[END] is not None:
            whose = MemoryOwner("device", role, None, None, None, 0)
            snapshots.append(MemorySnapshot(whose, run, step, 0, side.name, of_step))
    return snapshots


def _iterate_step_values(samples: MetricSamples) -> Iterator[tuple[str, int | None, int]]:
    """Iterate over the (run, step, value) of every step."""
    for run, steps, values in zip(samples.runs, samples.steps, samples.values, strict=True):
        for (_, step, _), value in zip(steps, values, strict=True):
            yield run, step, int(value)
