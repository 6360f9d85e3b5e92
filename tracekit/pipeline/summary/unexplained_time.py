"""Idle and waiting time that no finding covers: by cause, rank and stage, and as a share of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tracekit.analyses import ANALYSES, QUESTIONS
from tracekit.job.frames import name_stages
from tracekit.job.idle_time.claims import START_UP
from tracekit.job.idle_time.cpu_time import (
    CPU_TIME_OWNER,
    add_time_outside_stages,
    count_cpu_time_steps,
    sum_cpu_time_by_stage,
)
from tracekit.job.recording_kinds import map_classified_processes
from tracekit.job.stages.windows import list_undamaged_rows
from tracekit.model import failed_questions
from tracekit.model.recording.kinds import UNSEEN_DEVICE
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Section
from tracekit.model.tables.frame import Bools, Frame, count_distinct_of, count_rows, sum_of
from tracekit.model.trace import Measurements

UnexplainedKind = Literal["idle", "waiting"]
"""`idle`: no work runs. `waiting`: exposed communication; on the host, waits for collectives."""

Floats = npt.NDArray[np.float64]

RULE_TIME_KINDS: Mapping[str, tuple[UnexplainedKind, ...]] = {
    "exposed-communication": ("waiting",),
    "no-comm-overlap": ("waiting",),
    "small-collectives": ("waiting",),
    "slow-link": ("waiting",),
    "weight-sync": ("waiting", "idle"),
    "straggler": ("waiting", "idle"),
    "rank-imbalance": ("waiting", "idle"),
    "offload": (),
    "host-silence": ("idle", "waiting"),
    "data-loader-wait": ("idle", "waiting"),
    "garbage-collection": ("idle", "waiting"),
    "recompilation": ("idle", "waiting"),
    "graph-capture": ("idle", "waiting"),
    "allocator-calls": ("idle", "waiting"),
    "rollout-tail": ("idle", "waiting"),
    "replica-imbalance": ("idle", "waiting"),
}
"""The kinds of time that the findings of a rule explain, in order; idle time for other rules of `_FOLDERS`."""

RULE_IDLE_CAUSES: Mapping[str, tuple[str, ...]] = {
    "data-loader-wait": ("host_loader", "loader"),
    "host-silence": ("host_silent", "host_code", "host_none", "silent", "between", "after_last"),
    "garbage-collection": ("host_gc", "gc"),
    "launch-bound": ("host_op", "host_overhead", "host_none", "host_code", "kernel_wait"),
}
"""The causes of idle time that a rule counts; other rules count every cause."""

LATE_RANK_PLACES = ("straggler", "rank-imbalance")
"""Rules whose places name the late ranks, while the time is that of the others, in any stage."""

_FOLDERS = ("time.", "rl.", "ranks.")
"""The folders of the questions whose findings may explain idle or waiting time."""

_STEP_QUESTIONS = ("time.steps", "time.drift")
"""Questions about the duration of steps, not about the activity of devices in them."""

_CELL = (*CPU_TIME_OWNER, "stage", "cause")


@dataclass(frozen=True, slots=True)
class UnexplainedTime:
    """Time of one kind that no finding covers, by run, role, rank, stage and cause (`cells`), and the step length.

    `time_ns` of the cells and `window_ns` are sums over ranks, devices and steps.
    """

    kind: UnexplainedKind
    cells: Frame
    window_ns: float

    @property
    def time_ns(self) -> float:
        """The total over all cells."""
        return float(self.cells["time_ns"].sum())

    @property
    def ratio(self) -> float:
        """The share of the steps."""
        return self.time_ns / self.window_ns if self.window_ns else 0.0

    @property
    def largest(self) -> Mapping[str, Any]:
        """The largest part: `cause` and its `ratio` of the steps, then the role, stage and rank with most of it."""
        cells, part = self.cells, dict[str, Any]()
        for name in ("cause", "role", "stage", "rank"):
            sums = cells.group_by(name).agg(time_ns=sum_of("time_ns")).sort(name)
            part[name] = sums.values(name)[int(sums["time_ns"].argmax())]
            cells = cells.filter(cells.equals(name, part[name]))
            if name == "cause":
                part["ratio"] = float(cells["time_ns"].sum()) / self.window_ns
        return part


def measure_unexplained_time(measured: Measurements, sections: Sequence[Section]) -> list[UnexplainedTime]:
    """Measure the idle and waiting time of the steps that no finding covers.

    Empty if neither was measured, or if not all related questions were asked and answered.
    """
    if not has_judged_rules(measured, sections):
        return []
    recorded = _measure_device_times(measured) if measured.row_count("gpu_time") else _measure_host_times(measured)
    if recorded is None:
        return []
    cells, window_ns, counts = recorded
    left = {kind: cells[kind]["time_ns"].copy() for kind in cells}
    for finding in list_covering_findings(sections):
        amount = float(measure_covered_ns(finding) * _count_finding_steps(finding, counts))
        for kind in RULE_TIME_KINDS.get(finding.rule, ("idle",)):
            amount -= _deduct_covered(cells[kind], left[kind], finding, amount)
    return [UnexplainedTime(kind, cells[kind].with_columns(time_ns=left[kind]), window_ns) for kind in cells]


def has_judged_rules(measured: Measurements, sections: Sequence[Section]) -> bool:
    """Check whether all questions that may explain idle or waiting time were asked, and nothing failed."""
    asked = measured.facts.questions
    if failed_questions.has_faults(measured) or any(section.status == "failed" for section in sections):
        return False
    return asked is None or _list_covering_questions().issubset(asked)


def list_covering_findings(sections: Sequence[Section]) -> Iterator[Finding]:
    """List the findings that explain idle or waiting time, each stage as its own part; skips catch-alls."""
    questions = _list_covering_questions()
    for section in sections:
        for finding in section.findings if section.id in questions else ():
            for part in finding.parts or (finding,):
                if part.recoverable_ns and not part.is_catch_all:
                    yield part


def measure_covered_ns(finding: Finding) -> int:
    """Measure the time per step that a finding explains: its saving, or only the part with a known cause."""
    amount = finding.recoverable_ns or 0
    named = [metric.value for metric in finding.evidence if metric.name == "named_ns"]
    return min([amount, *(round(value) for value in named if value is not None)])


@cache
def _list_covering_questions() -> frozenset[str]:
    """List the ids of the questions whose findings count, including those of the user."""
    known = zip(QUESTIONS, ANALYSES, strict=True)
    return frozenset(
        analysis.id for path, analysis in known if path.startswith(_FOLDERS) and path not in _STEP_QUESTIONS
    )


_Recorded = tuple[dict[UnexplainedKind, Frame], float, Mapping[tuple[object, object], int]]


def _measure_device_times(measured: Measurements) -> _Recorded | None:
    """Measure idle and exposed time of devices: (cells by kind, total length of steps, steps by run and role)."""
    rows = list_undamaged_rows(measured, "gpu_time")
    kind = _pick_window_kind(measured, rows)
    steps = rows.filter(rows.equals("window", kind))
    window_ns = float(steps["window_ns"].sum())
    if not window_ns:
        return None
    idle = _sum_unexplained_cells(list_undamaged_rows(measured, "idle"), kind, "idle_ns")
    exposed = _sum_unexplained_cells(rows.with_columns(cause=None), kind, "exposed_comm_ns")
    return {"idle": idle, "waiting": exposed}, window_ns, _count_device_steps(steps)


def _pick_window_kind(measured: Measurements, rows: Frame) -> str:
    """Pick the windows of the headline: selected stages, else steps, else captures."""
    if measured.facts.stages:
        return "stage"
    return "step" if rows.equals("window", "step").any() else "capture"


def _sum_unexplained_cells(rows: Frame, kind: str, value: str) -> Frame:
    """Sum a column of windows by run, role, rank, stage and cause; the stage is missing outside any stage."""
    rows = rows.with_columns(canonical=name_stages(rows))
    staged = rows.filter(rows.equals("window", "stage") & ~rows.is_missing("canonical"))
    keys = (*CPU_TIME_OWNER, "cause")
    totals = rows.filter(rows.equals("window", kind)).group_by(*keys).agg(time_ns=sum_of(value))
    inside = staged.group_by(*keys, "canonical").agg(time_ns=sum_of(value))
    cells = add_time_outside_stages(totals, inside, keys)
    return cells.with_columns(stage=cells["canonical"]).select(*_CELL, "time_ns")


def _measure_host_times(measured: Measurements) -> _Recorded | None:
    """Measure the same for processes without a device: time without ops, and waits for collectives."""
    kinds = {recorded.classified.kind for recorded in map_classified_processes(measured).values()}
    if not measured.row_count("cpu_time") or kinds & UNSEEN_DEVICE:
        return None
    rows = sum_cpu_time_by_stage(measured)
    rows = _keep_recorded_ranks(rows.with_columns(stage=rows["canonical"], cause=rows["activity"]))
    rows = rows.filter(~_mark_other_roles_time(rows)).select(*_CELL, "time_ns")
    window_ns = float(rows["time_ns"].sum())
    if not window_ns:
        return None
    idle = rows.filter(rows.is_in("cause", ("gc", "loader", "between", "silent")))
    waiting = rows.filter(rows.equals("cause", "wait"))
    return {"idle": idle, "waiting": waiting}, window_ns, count_cpu_time_steps(measured)


def _keep_recorded_ranks(rows: Frame) -> Frame:
    """Keep the rows of ranks with recorded activity; nothing is known about ranks without any."""
    recorded_ns = np.where(rows.is_in("cause", ("between", "silent")), 0, rows["time_ns"])
    return rows.filter(rows.group_by(*CPU_TIME_OWNER).each(sum_of(recorded_ns)) > 0)


def _mark_other_roles_time(rows: Frame) -> Bools:
    """Mark time outside the stages of a role if its run has other roles, which may work meanwhile."""
    roles = rows.group_by("run").each(count_distinct_of(rows.group_by("role").number))
    return np.asarray((roles > 1) & rows.is_missing("stage"))


def _count_device_steps(steps: Frame) -> dict[tuple[object, object], int]:
    """Count the steps of single devices by run and role."""
    sizes = steps.group_by("run", "role").agg(size=count_rows())
    owners = zip(sizes.values("run"), sizes.values("role"), strict=True)
    return dict(zip(owners, sizes.values("size"), strict=True))


def _count_finding_steps(finding: Finding, counts: Mapping[tuple[object, object], int]) -> int:
    """Count the steps of single devices over which the mean of a finding is taken."""
    runs, roles = _get_place_values(finding, "run"), _get_place_values(finding, "role")
    return sum(
        size for (run, role), size in counts.items() if (not runs or run in runs) and (not roles or role in roles)
    )


def _get_place_values(finding: Finding, name: str) -> frozenset[Any]:
    """Get the runs, roles, ranks or stages that the places of a finding name."""
    return frozenset(getattr(place, name) for place in finding.places) - {None}


def _deduct_covered(cells: Frame, left: Floats, finding: Finding, amount: float) -> float:
    """Deduct an amount from the cells of a finding, best matches first; returns the deducted amount."""
    taken = 0.0
    for chosen in _rank_cells(cells, finding):
        there = float(left[chosen].sum())
        part = min(there, amount - taken)
        if part > 0:
            left[chosen] *= 1 - part / there
            taken += part
    return taken


def _rank_cells(cells: Frame, finding: Finding) -> Iterator[Bools]:
    """Yield masks of the cells that a finding may explain, most likely first."""
    of_owner = _mark_finding_cells(cells, finding, "run") & _mark_finding_cells(cells, finding, "role")
    if finding.rule in LATE_RANK_PLACES:
        yield of_owner & _mark_finding_cells(cells, finding, "stage")
        yield of_owner
        return
    causes = RULE_IDLE_CAUSES.get(finding.rule)
    if causes is not None:
        of_owner &= cells.is_in("cause", causes) | cells.is_missing("cause")
    of_stage = of_owner & _mark_finding_cells(cells, finding, "stage")
    if finding.rule == "start-up":
        # No cell contains the time before the work of a capture.
        yield of_stage & cells.equals("cause", START_UP)
        return
    yield of_stage & _mark_finding_cells(cells, finding, "rank")
    yield of_stage


def _mark_finding_cells(cells: Frame, finding: Finding, name: str) -> Bools:
    """Mark the cells of the runs, roles, ranks or stages that a finding names; all if it names none."""
    values = _get_place_values(finding, name)
    mask = np.full(len(cells), not values)
    for value in values:
        mask |= cells.equals(name, value)
    return mask
