"""The memory snapshots of one side: whose memory each tells of, of which step, and its levels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from tracekit.compare.sides import Side
from tracekit.job.frames import plain, text_or_none
from tracekit.job.memory_snapshots import SNAPSHOT_KEYS
from tracekit.job.samples import Samples
from tracekit.model.keys import looked_up
from tracekit.model.report import Better
from tracekit.model.trace import Measurements

PEAK, END = "peak_requested", "end_requested"
"""The levels that a comparison is headed by: the second where a side recorded no history."""

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
"""Where each level stands in what was measured, and in a saved report."""


class Whose(NamedTuple):
    """Whose memory: `number` tells apart processes of one rank, by the order of their ids."""

    memory: str
    role: str | None
    rank: int | None
    replica: int | None
    device: int | None
    number: int

    def __str__(self) -> str:
        """In words: `rank 3 actor, GPU 0`."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        name = " ".join(part for part in (rank, self.role) if part)
        name = f"{name} (process {self.number + 1})".strip() if self.number else name
        of = "GPU" if self.device is None else f"GPU {self.device}"
        return ", ".join(
            filter(None, (name, "pinned host memory" if self.memory == "host" else of))
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device's memory in one snapshot; `levels` by the names of `LEVELS`, None where not recorded.

    `row` are the columns of `snapshot_levels` of `measured`; both are None of saved reports.
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
        """By what the worst of several snapshots is found: its peak, then its level at the end; later ones first."""
        return self.levels[PEAK] or 0, self.levels[END] or 0, self.step or 0


def snapshots(side: Side) -> list[Snapshot]:
    """Every snapshot that was measured, of every device; of saved reports `reported`."""
    return [one for measured in side.measured for one in _measured(measured)]


def _measured(measured: Measurements) -> Iterator[Snapshot]:
    rows = plain(measured["snapshot_levels"])
    if not len(rows):
        return
    rows = looked_up(rows, _free(measured), SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    windows = plain(measured["snapshot_windows"])
    taken = windows.dropna(subset=["end_ns"]).groupby("source")["end_ns"].max().to_dict()
    steps = {source.name: source.step for source in measured.sources}
    rows["step"] = pd.array([steps.get(str(source)) for source in rows["source"]], dtype="Int64")
    for row, number in zip(rows.to_dict("records"), _numbers(rows), strict=True):
        whose = Whose(
            str(row["memory"]),
            text_or_none(row["role"]),
            _whole(row["rank"]),
            _whole(row["replica"]),
            _whole(row["device"]),
            number,
        )
        levels = {name: _whole(row[column]) for name, column in _MEASURED.items()}
        if not row["entry_count"]:
            levels |= {PEAK: None, "peak_reserved": None}
        source = text_or_none(row["source"]) or ""
        ends, step = int(taken.get(source, 0)), _whole(row["step"])
        yield Snapshot(whose, str(row["run"]), step, ends, source, levels, row, measured)


def _numbers(rows: pd.DataFrame) -> list[int]:
    """The number of the process of each row among those of its rank; one that took the place of another is the same."""
    of = [rows[n] for n in ("run", "memory", "role", "rank", "replica", "device")]
    process = rows.groupby(["host", "pid"], dropna=False, sort=True).ngroup()
    number = process.groupby(of, dropna=False).rank("dense").astype(int) - 1
    at_once = process.groupby([*of, rows["step"]], dropna=False).transform("nunique")
    several = at_once.groupby(of, dropna=False).transform("max") > 1
    found: list[int] = number.where(several, 0).tolist()
    return found


def _whole(value: Any) -> int | None:
    """A whole number, None for a missing one."""
    return None if pd.isna(value) else int(value)


def _free(measured: Measurements) -> pd.DataFrame:
    """What is free at the end of every snapshot: stranded bytes and the largest piece."""
    keys = [*SNAPSHOT_KEYS]
    space = plain(measured["free_space"])
    ends = space[space["moment"] == "end"].groupby(keys, dropna=False, sort=False)
    found = ends.agg(
        stranded_bytes=("stranded_bytes", "sum"), largest_free_bytes=("largest_free_bytes", "max")
    )
    types: Any = {"source": object, "pid": "Int64", "memory": object, "device": "Int64"}
    return found.reset_index().astype(types)


def reported(side: Side) -> list[Snapshot]:
    """The levels that a saved report tells of snapshots, step by step: those of the worst rank of every role.

    Without a level that snapshots alone tell there are none.
    """
    found: dict[tuple[str | None, str, int | None], dict[str, int | None]] = {}
    for name, metric in _METRICS.items():
        for key, samples in side.samples.items():
            if key[0] == metric and key[2] is None:
                for run, step, value in _values(samples):
                    told = found.setdefault((key[1], run, step), dict.fromkeys(LEVELS))
                    told[name] = max(told[name] or 0, value)
    return [
        Snapshot(Whose("device", role, None, None, None, 0), run, step, 0, side.name, levels)
        for (role, run, step), levels in found.items()
        if levels[PEAK] is not None or levels[END] is not None
    ]


def _values(found: Samples) -> Iterable[tuple[str, int | None, int]]:
    """(run, step, value) of every step."""
    for run, steps, values in zip(found.runs, found.steps, found.values, strict=True):
        yield from ((run, step[1], int(value)) for step, value in zip(steps, values, strict=True))
