"""Where idle time is judged (every stage, or the step of processes without stages), and what calls caused there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.derived.idle import IdleTime
from tracekit.grouping import Ints, as_python, of_keys
from tracekit.pooling import (
    CAPTURE,
    STAGE_OF,
    UNIT,
    distinct,
    in_run,
    job,
    plain,
    same_text,
    stage_rows,
    summed,
    text_or_none,
    units,
)
from tracekit.report import Place
from tracekit.thresholds import defaults
from tracekit.trace import Measurements

WHERE = ("run", "role", "canonical")
"""What a scope is told by: run, role, and the canonical stage (missing: the step)."""

DAMAGED = "every source with GPU activity is damaged: what is missing would look idle"


def idle_time() -> IdleTime:
    """The measurement of idle time with the shipped limits: what judging may not change any more."""
    values = defaults().values
    return IdleTime(
        int(values["idle-causes"]["kernel_wait_ns"]), int(values["host-silence"]["silence_ns"])
    )


class Scope(NamedTuple):
    """One stage, or the step where no stage is annotated, summed over `gpu_steps` steps of single GPUs."""

    run: object
    role: object
    canonical: str | None
    window_ns: int
    gpu_steps: int
    step_ns: float | None
    works: bool
    origin: str | None
    where: str

    @property
    def place(self) -> Place:
        """Where that is."""
        return Place(role=text_or_none(self.role), stage=self.canonical)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from the others, comparable with `keyed`."""
        return keyed({"run": self.run, "role": self.role, "canonical": self.canonical})

    def per_step(self, total_ns: float) -> tuple[float, float | None]:
        """(the mean over steps and GPUs of a sum over both, the same as a share of the step)."""
        value = total_ns / self.gpu_steps
        return value, value / self.step_ns if self.step_ns else None


def keyed(row: Mapping[Any, Any]) -> tuple[object, ...]:
    """Run, role and stage of a row, missing ones as None."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in WHERE)


def whole(measured: Measurements, table: str) -> pd.DataFrame:
    """The rows of a table, plain, of sources that lost nothing: in a damaged one what is missing looks idle."""
    rows = plain(measured[table])
    damaged = {note.source for note in measured.notes if note.severity == "data_loss"}
    return rows[~rows["source"].isin(damaged)] if damaged else rows


def canonical_names(measured: Measurements) -> pd.DataFrame:
    """The canonical stage of every outermost recorded one: columns of `STAGE_OF`, canonical."""
    return measured.derived(_canonical_names)


def _canonical_names(measured: Measurements) -> pd.DataFrame:
    names = stage_rows(measured)[[*STAGE_OF, "canonical"]]
    return names.dropna(subset="stage").drop_duplicates(STAGE_OF)


def placed(measured: Measurements, table: str) -> pd.DataFrame:
    """Rows of windows that are judged, with `canonical` and `origin`: of stages; of steps where there are none.

    `origin` tells how a step is known (profiler | file); files that are one stage of a step are no step.
    Not to be changed in place.
    """
    return measured.derived(_Placed(table))


@dataclass(frozen=True)
class _Placed:
    """A function of measurements, equal to any other of the same table: so that each is computed once."""

    table: str

    def __call__(self, measured: Measurements) -> pd.DataFrame:
        return _placed(measured, self.table)


def _placed(measured: Measurements, table: str) -> pd.DataFrame:
    rows = whole(measured, table)
    stages = rows[rows["window"] == "stage"].merge(
        canonical_names(measured), on=STAGE_OF, how="inner"
    )
    known = measured.derived(_staged_owners)
    origins = plain(measured["steps"])[[*CAPTURE, "origin"]].drop_duplicates(CAPTURE)
    steps = rows[rows["window"] == "step"].merge(origins, on=CAPTURE, how="inner")
    number, owners = _owners(steps)
    alone = np.array([*(owner not in known for owner in owners), False], bool)[number]
    steps = steps[alone & (steps["origin"] != "stage").to_numpy(bool)]
    parts = [stages.assign(origin=None), steps.assign(canonical=None)]
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _staged_owners(measured: Measurements) -> frozenset[tuple[object, object]]:
    """(run, role) of the devices that have a stage."""
    rows = whole(measured, "gpu_time").merge(canonical_names(measured), on=STAGE_OF, how="inner")
    return frozenset(_owners(rows)[1])


def _owners(rows: pd.DataFrame) -> tuple[Ints, list[tuple[object, object]]]:
    """(for each row which of them it is of, every run and role)."""
    number, first = of_keys(rows, ["run", "role"])
    columns = (rows[name].array[first] for name in ("run", "role"))
    return number, [(run, text_or_none(role)) for run, role in zip(*columns, strict=True)]


def gpu_steps(measured: Measurements) -> dict[tuple[object, object], int]:
    """How many steps of single GPUs every (run, role) has: each device counts in each of its steps."""
    return measured.derived(_gpu_steps)


def _gpu_steps(measured: Measurements) -> dict[tuple[object, object], int]:
    rows = units(whole(measured, "gpu_time"))
    rows = rows[rows["window"] == "step"]
    rows = distinct(rows, [*UNIT, "role", "rank", "host", "pid", "device"])
    number, owners = _owners(rows)
    return dict(zip(owners, np.bincount(number, minlength=len(owners)).tolist(), strict=True))


def each_gpu_step(
    measured: Measurements, table: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """The table of sums by run and role with these columns divided by the steps of single GPUs there."""
    counts, (number, owners) = gpu_steps(measured), _owners(table)
    steps = np.array([counts.get(owner, 1) for owner in owners], np.float64)[number]
    return table.assign(**{name: table[name] / steps for name in names})


def scopes(measured: Measurements) -> list[Scope]:
    """Every stage in which a device was recorded, longest first; the step of a role without stages."""
    return measured.derived(_scopes)


def _scopes(measured: Measurements) -> list[Scope]:
    rows = placed(measured, "gpu_time")
    if not len(rows):
        return []
    origins = rows.groupby(list(WHERE), dropna=False, sort=False)["origin"].first().reset_index()
    sums = summed(rows, WHERE, ("window_ns", "op_count"))
    sums["origin"] = origins["origin"]
    counts, steps = gpu_steps(measured), job(measured)
    launched = summed(stage_rows(measured), WHERE, ("launch_count",)).dropna(subset="launch_count")
    idle_by_design = {keyed(r) for r in launched.to_dict("records") if r["launch_count"] == 0}
    found = []
    for row in sums.sort_values("window_ns", ascending=False, kind="stable").to_dict("records"):
        name = text_or_none(row["canonical"])
        owner = (row["run"], text_or_none(row["role"]))
        found.append(
            Scope(
                row["run"], row["role"], name, int(row["window_ns"]), max(counts.get(owner, 0), 1),
                steps.of(row["run"]).step_ns,
                bool(row["op_count"]) and keyed(row) not in idle_by_design,
                text_or_none(row["origin"]),
                (name or "the step") + in_run(measured, row["run"]),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class SyncBound:
    """A scope, and what its synchronising calls cost: sums over the steps of its GPUs."""

    scope: Scope
    count: int
    stall_count: int
    call_ns: int
    idle_ns: int


def sync_bound(measured: Measurements, limit: Mapping[str, float]) -> list[SyncBound]:
    """The scopes of which rule R02 says that synchronising calls hold them up."""
    rows = placed(measured, "sync_stalls")
    columns = ("count", "stall_count", "call_ns", "idle_ns")
    sums = (
        {keyed(r): r for r in summed(rows, WHERE, columns).to_dict("records")} if len(rows) else {}
    )
    found = []
    for scope in scopes(measured):
        if (row := sums.get(scope.key)) is None or not scope.window_ns:
            continue
        one = SyncBound(scope, *(int(row[name]) for name in columns))
        often = one.stall_count / scope.gpu_steps >= limit["syncs_per_step"]
        if often and one.idle_ns / scope.window_ns >= limit["stage_ratio"]:
            found.append(one)
    return found


class Pauses(NamedTuple):
    """What a (run, role) loses to silence and to garbage collection: sums over the steps of its GPUs."""

    silent_ns: int
    collection_ns: int
    scopes: list[Scope]


def by_cause(rows: pd.DataFrame) -> dict[tuple[object, ...], int]:
    """Idle time by run, role, stage and cause."""
    if not len(rows):
        return {}
    sums = summed(rows, [*WHERE, "cause"], ["idle_ns"])
    return {(*keyed(r), r["cause"]): int(r["idle_ns"]) for r in sums.to_dict("records")}


def idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    """The idle time of what is judged by run, role, stage and cause."""
    return measured.derived(_idle_by_cause)


def _idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    return by_cause(placed(measured, "idle"))


def is_silence(scope: Scope) -> bool:
    """Whether a silent host counts there: in stages that feed a GPU, and steps that a profiler counted."""
    return scope.works and scope.origin != "file"


def pauses(
    measured: Measurements, limit: Mapping[str, float]
) -> dict[tuple[object, object], Pauses]:
    """The (run, role) of which rule R29 says that pauses of the host cost GPU time, and what they lose.

    Silence where `is_silence`, recorded collection anywhere in a step.
    """
    found: dict[tuple[object, object], Pauses] = {}
    caused = idle_by_cause(measured)
    for scope in scopes(measured):
        owner: tuple[object, object] = (scope.run, text_or_none(scope.role))
        before = found.get(owner, Pauses(0, 0, []))
        silent = caused.get((*scope.key, "host_silent"), 0)
        if silent and is_silence(scope):
            before = Pauses(before.silent_ns + silent, 0, [*before.scopes, scope])
        found[owner] = before
    steps = whole(measured, "idle")
    steps = steps[(steps["window"] == "step") & (steps["cause"] == "host_gc")]
    collected = summed(steps, ["run", "role"], ["idle_ns"])
    for owner, idle_ns in zip(_owners(collected)[1], collected["idle_ns"], strict=True):
        before = found.get(owner, Pauses(0, 0, []))
        found[owner] = before._replace(collection_ns=int(idle_ns))
    kept, counts, steps_of = {}, gpu_steps(measured), job(measured)
    for owner, lost in found.items():
        step_ns = steps_of.of(owner[0]).step_ns
        total = (lost.silent_ns + lost.collection_ns) / max(counts.get(owner, 0), 1)
        if total and step_ns and total / step_ns >= limit["step_ratio"]:
            kept[owner] = lost
    return kept


def edge_rows(measured: Measurements, sync_limit: Mapping[str, float]) -> pd.DataFrame:
    """The edges between stages, with what of them is idle for no reason that another rule names.

    Columns added to those of `stage_edges`: canonical and next_canonical, claimed_ns, and its parts host_ns
    and unseen_ns; of it inside_ns lies in the next stage.
    """
    names = canonical_names(measured)
    after = names.rename(columns={"stage": "next_stage", "canonical": "next_canonical"})
    rows = whole(measured, "stage_edges")
    rows = rows.merge(names, on=STAGE_OF).merge(after, on=[*CAPTURE, "next_stage"])
    rows = rows.reset_index(drop=True)
    bound = {one.scope.key for one in sync_bound(measured, sync_limit)}
    number, first = of_keys(rows, ["run", "role", "next_canonical"])
    followed = (as_python(rows[name].array[first]) for name in ("run", "role", "next_canonical"))
    synced = np.array([*(key in bound for key in zip(*followed, strict=True)), False], bool)[number]
    rows["after_sync_ns"] = rows["after_sync_ns"].where(synced, 0)
    rows["inside_ns"] = rows["inside_ns"].fillna(rows["after_sync_ns"]) - rows["after_sync_ns"]
    rows["claimed_ns"] = rows["idle_ns"] - rows["explained_ns"] - rows["after_sync_ns"]
    assert (rows["claimed_ns"] >= 0).all(), "what is explained must be idle"
    rows["host_ns"] = np.minimum(rows["host_ns"], rows["claimed_ns"])
    rows["unseen_ns"] = rows["claimed_ns"] - rows["host_ns"]
    return rows


def idle_at_edges(
    measured: Measurements, rows: pd.DataFrame, limit: Mapping[str, float]
) -> dict[tuple[object, object], tuple[float, float]]:
    """The (run, role) of which rule R15 says that GPUs wait at edges: (ns per step and GPU, share of the step)."""
    counts, steps = gpu_steps(measured), job(measured)
    found = {}
    for owner in _owners(rows)[1]:
        mine = rows[same_text(rows["run"], owner[0]) & same_text(rows["role"], owner[1])]
        step_ns = steps.of(owner[0]).step_ns
        idle = int(mine["claimed_ns"].sum()) / max(counts.get(owner, 0), 1)
        if step_ns and idle / step_ns >= limit["step_ratio"]:
            found[owner] = (idle, idle / step_ns)
    return found
