"""Classes of work per canonical stage, over ranks, GPUs and steps: what rules about operators judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from tracekit.job.frames import canonical_stages, in_run, same_text, share_of, text_or_none
from tracekit.job.stage_windows import StageWindow, steps_of
from tracekit.model.report import Place
from tracekit.model.trace import Measurements


@dataclass(frozen=True, slots=True)
class StageWork:
    """One class of work of one stage: `busy_ns` of `whole_ns`, both summed over the steps of its window.

    Each device counts its own steps there, a process those of which no device was recorded.
    """

    window: StageWindow
    busy_ns: int
    whole_ns: int
    count: int
    on_gpu: bool
    top: str | None

    @property
    def ratio(self) -> float | None:
        """The share of the stage's work; None of nothing."""
        return share_of(self.busy_ns, self.whole_ns)

    def per_step(self, value: float) -> tuple[int, float | None]:
        """(`value` per step and GPU (process) in ns, the same as a share of the step)."""
        each, ratio = self.window.per_step(value)
        return round(each), ratio

    @property
    def place(self) -> Place:
        """Where that is."""
        return replace(self.window.place, name=self.top)


def by_stage(
    measured: Measurements, kind: str, of: str = "all", table: str = "work_classes"
) -> list[StageWork]:
    """The work of class `kind` of every (run, role, stage) that has any, with that of class `of` as its whole."""
    rows = measured[table]
    rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
    works = []
    for (run, role), of_owner in rows.groupby(["run", "role"], dropna=False, sort=False):
        steps = steps_of(measured, of_owner)
        anywhere = bool(of_owner["canonical"].notna().any())
        for stage, part in of_owner.groupby("canonical", dropna=False, sort=False):
            chosen = part[part["class"] == kind]
            if not len(chosen):
                continue
            canonical = text_or_none(stage)
            name = canonical or ("the rest" if anywhere else "the step")
            works.append(
                StageWork(
                    StageWindow(
                        text_or_none(run),
                        text_or_none(role),
                        canonical,
                        name + in_run(measured, run),
                        steps,
                    ),
                    int(chosen["busy_ns"].sum()),
                    int(part.loc[part["class"] == of, "busy_ns"].sum()),
                    int(chosen["count"].sum()),
                    bool(chosen["device"].notna().any()),
                    _top(chosen),
                )
            )
    return works


def _top(rows: pd.DataFrame) -> str | None:
    """The name with most time, weighted by the groups that it leads."""
    named = rows[rows["top"].notna()]
    if not len(named):
        return None
    sums: Any = named.groupby("top", sort=True)["busy_ns"].sum()
    return str(sums.idxmax())


def of_run(measured: Measurements, table: str, run: object) -> pd.DataFrame:
    """The plain rows of one run."""
    rows = measured[table]
    return rows[same_text(rows["run"], run)]
