"""Work by class and canonical stage, over ranks, GPUs and steps, for rules about operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracekit.job.frames import divide_or_none, name_stages, phrase_run
from tracekit.job.stages.windows import Owner, StageWindow, count_recorded_steps_of_processes
from tracekit.model.records import dataclass
from tracekit.model.report import Place
from tracekit.model.tables.frame import Frame, concat, sum_of
from tracekit.model.text.changes import write_change
from tracekit.model.trace import Measurements

MAX_NAMED = 3
"""Further stages with one cause are counted, not named."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One class of work of one stage: `busy_ns` out of `whole_ns`, both summed over the steps of its window.

    Each device counts its own steps; a process counts the steps without a recorded device.
    """

    window: StageWindow
    busy_ns: int
    whole_ns: int
    count: int
    on_gpu: bool
    top: str | None
    parts: tuple[StageWork, ...] = ()
    """The single stages if several are merged."""

    @property
    def ratio(self) -> float | None:
        """The share of the stage's work; None if it has none."""
        return divide_or_none(self.busy_ns, self.whole_ns)

    def per_step(self, value: float) -> tuple[int, float | None]:
        """Return (`value` per step and GPU (process) in ns, the same as a share of the step)."""
        each, ratio = self.window.per_step(value)
        return round(each), ratio

    @property
    def stages(self) -> tuple[StageWork, ...]:
        """The single stages, the one with most work first."""
        return self.parts or (self,)

    def write_changes(self, verb: str, kind: str, **fields: Any) -> tuple[str, ...]:
        """Write the changes that do something to the ops of class `kind` in these stages."""
        stages = dict.fromkeys(work.window.canonical for work in self.stages)
        return tuple(
            write_change(verb, "device", stage=stage, work=kind, **fields)
            for stage in ([None] if None in stages else stages)
        )

    @property
    def places(self) -> tuple[Place, ...]:
        """The places of the stages, with the name that takes most time."""
        return tuple(replace(work.window.place, name=work.top) for work in self.stages)


def list_stage_work(
    measured: Measurements, kind: str, total_kind: str = "all", table: str = "work_classes"
) -> list[StageWork]:
    """List the work of class `kind` of every (run, role, stage) with any; class `total_kind` is the whole."""
    works = []
    for window, rows in measured.derived(_RowsByStage(table)):
        of_kind = rows.filter(rows.equals("class", kind))
        if not len(of_kind):
            continue
        works.append(
            StageWork(
                window,
                int(of_kind["busy_ns"].sum()),
                int(rows["busy_ns"][rows.equals("class", total_kind)].sum()),
                int(of_kind["count"].sum()),
                not of_kind.is_missing("device").all(),
                _find_top_name(of_kind),
            )
        )
    return works


def list_work_rows(measured: Measurements, kind: str, works: Sequence[StageWork], table: str = "work_classes") -> Frame:
    """List the rows of class `kind` behind these works, with `canonical`."""
    wanted = {stage.window.key for work in works for stage in work.stages}
    of_windows = measured.derived(_RowsByStage(table))
    parts = [rows.filter(rows.equals("class", kind)) for window, rows in of_windows if window.key in wanted]
    return concat(parts)


def merge_stage_work(measured: Measurements, works: Sequence[StageWork]) -> list[StageWork]:
    """Merge the stages of each (run, role) into one, named after the one with most work first.

    The cost of one cause in several stages is one finding.
    """
    by_owner: dict[Owner, list[StageWork]] = {}
    for work in works:
        by_owner.setdefault(work.window.owner, []).append(work)
    return [_merge_stages_of_owner(measured, of_owner) for of_owner in by_owner.values()]


def _merge_stages_of_owner(measured: Measurements, works: list[StageWork]) -> StageWork:
    """Merge these stages of one owner into one."""
    if len(works) == 1:
        return works[0]
    most_first = sorted(works, key=lambda work: -work.busy_ns)
    largest = most_first[0]
    run = phrase_run(measured, largest.window.run)
    name = phrase_stage_names([work.window.name.removesuffix(run) for work in most_first]) + run
    return replace(
        largest,
        window=replace(largest.window, canonical=None, name=name),
        busy_ns=sum(work.busy_ns for work in works),
        whole_ns=sum(work.whole_ns for work in works),
        count=sum(work.count for work in works),
        parts=tuple(most_first),
    )


def phrase_stage_names(stages: Sequence[str]) -> str:
    """Join the names of the stages of one finding.

    >>> phrase_stage_names(["forward"]), phrase_stage_names(["forward", "backward"])
    ('forward', 'forward and backward')
    >>> phrase_stage_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 other stages'
    """
    names = list(stages)
    if len(names) > MAX_NAMED + 1:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} other stages"]
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


@dataclass(frozen=True)
class _RowsByStage:
    """A function of measurements that equals another of the same table, so it is computed once."""

    table: str

    def __call__(self, measured: Measurements) -> list[tuple[StageWindow, Frame]]:
        """Split the rows of the table by (run, role, stage)."""
        rows = measured.frame(self.table)
        rows = rows.with_columns(canonical=name_stages(rows, in_file=True))
        parts = []
        for of_owner in rows.group_by("run", "role").frames():
            run, role = of_owner.values("run")[0], of_owner.values("role")[0]
            steps = count_recorded_steps_of_processes(measured, of_owner)
            rest = "the step" if of_owner.is_missing("canonical").all() else "the rest"
            for of_stage in of_owner.group_by("canonical").frames():
                stage = of_stage.values("canonical")[0]
                name = (stage or rest) + phrase_run(measured, run)
                parts.append((StageWindow(run, role, stage, name, steps), of_stage))
        return parts


def _find_top_name(rows: Frame) -> str | None:
    """Return the name with most time, weighted by the groups that it leads."""
    named = rows.filter(~rows.is_missing("top"))
    by_name = named.group_by("top").agg(busy_ns=sum_of("busy_ns"))
    most_first = by_name.sort("busy_ns", "top", descending=["busy_ns"]).values("top")
    return most_first[0] if most_first else None
