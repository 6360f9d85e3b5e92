"""Classes of work per canonical stage, over ranks, GPUs and steps: what rules about operators judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.collectives import same
from tracekit.job.frames import (
    STAGE_OF,
    distinct,
    in_run,
    plain,
    same_text,
    stage_rows,
    text_or_none,
)
from tracekit.job.stage_windows import ExistingSteps, steps_of
from tracekit.model.report import Place
from tracekit.model.stages import scope_stage
from tracekit.model.trace import Measurements


@dataclass(frozen=True, slots=True)
class StageWork:
    """One class of work of one stage: `busy_ns` of `whole_ns`, both summed over `steps`.

    Each device counts its own steps, a process those of which no device was recorded.
    """

    run: str | None
    role: str | None
    stage: str | None
    name: str
    busy_ns: int
    whole_ns: int
    count: int
    on_gpu: bool
    top: str | None
    steps: ExistingSteps

    @property
    def ratio(self) -> float | None:
        """The share of the stage's work; None of nothing."""
        return self.busy_ns / self.whole_ns if self.whole_ns else None

    def per_step(self, value: float) -> tuple[int, float | None]:
        """(`value` per step and GPU (process) in ns, the same as a share of the step)."""
        each, ratio = self.steps.per_step(value)
        return round(each), ratio

    @property
    def place(self) -> Place:
        """Where that is."""
        return Place(role=self.role, stage=self.stage, name=self.top)


def with_canonical(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Plain rows with a column `canonical`: the stage under its one name, None outside all stages."""
    of = measured.derived(_canonical_of)
    number = same(rows, (*STAGE_OF, "scope", "role"))
    once = rows.iloc[np.unique(number, return_index=True)[1]]
    keys = zip(*(once[name] for name in STAGE_OF), strict=True)
    canonical = [
        of.get(key) or scope_stage(text_or_none(scope), text_or_none(role))
        for key, scope, role in zip(keys, once["scope"], once["role"], strict=True)
    ]
    return rows.assign(canonical=np.array([*canonical, None], object)[number])


def _canonical_of(measured: Measurements) -> dict[tuple[Any, ...], Any]:
    """The one name of every recorded stage, by the values of `STAGE_OF`."""
    known = distinct(stage_rows(measured), [*STAGE_OF, "canonical"])
    return {tuple(key): canonical for *key, canonical in known.itertuples(index=False, name=None)}


def by_stage(
    measured: Measurements, kind: str, of: str = "all", table: str = "work_classes"
) -> list[StageWork]:
    """The work of class `kind` of every (run, role, stage) that has any, with that of class `of` as its whole."""
    rows = with_canonical(measured, plain(measured[table]))
    found = []
    for (run, role), mine in rows.groupby(["run", "role"], dropna=False, sort=False):
        steps = steps_of(measured, mine)
        anywhere = bool(mine["canonical"].notna().any())
        for stage, part in mine.groupby("canonical", dropna=False, sort=False):
            chosen = part[part["class"] == kind]
            if not len(chosen):
                continue
            name = text_or_none(stage)
            found.append(
                StageWork(
                    text_or_none(run),
                    text_or_none(role),
                    name,
                    (name or ("the rest" if anywhere else "the step")) + in_run(measured, run),
                    int(chosen["busy_ns"].sum()),
                    int(part.loc[part["class"] == of, "busy_ns"].sum()),
                    int(chosen["count"].sum()),
                    bool(chosen["device"].notna().any()),
                    _top(chosen),
                    steps,
                )
            )
    return found


def _top(rows: pd.DataFrame) -> str | None:
    """The name with most time, weighted by the groups that it leads."""
    named = rows[rows["top"].notna()]
    if not len(named):
        return None
    sums: Any = named.groupby("top", sort=True)["busy_ns"].sum()
    return str(sums.idxmax())


def of_run(measured: Measurements, table: str, run: object) -> pd.DataFrame:
    """The plain rows of one run."""
    rows = plain(measured[table])
    return rows[same_text(rows["run"], run)]
