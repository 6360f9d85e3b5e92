"""Start-up time before the work of captures without step marks, over processes."""

from __future__ import annotations

from tracekit.job.frames import UNIT, clear_redundant_parts, summarize_step_walls
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import max_of
from tracekit.model.trace import Measurements, derive_once


@dataclass(frozen=True, slots=True)
class RunStartUp:
    """Longest start-up of a run, of the process in `source`; `whole_ns` is the capture including it."""

    run: str | None
    source: str
    start_up_ns: int
    whole_ns: int

    @property
    def ratio(self) -> float:
        """Share of the start-up in the capture."""
        return self.start_up_ns / max(self.whole_ns, 1)


@derive_once
def find_run_start_ups(measured: Measurements) -> list[RunStartUp]:
    """Find the start-up of every run that begins with one; over several captures, the mean of the longest of each."""
    if not measured.row_count("steps"):
        return []
    rows = clear_redundant_parts(measured.frame("steps"))
    found = []
    for of_run in rows.filter(rows["start_up_ns"] > 0).group_by("run").frames():
        run = of_run.values("run")[0]
        longest = of_run.group_by(*UNIT).agg(start_up_ns=max_of("start_up_ns"))
        source = of_run.values("source")[int(of_run["start_up_ns"].argmax())]
        walls = summarize_step_walls(measured).select_run(run)
        start_up_ns = round(int(longest["start_up_ns"].sum()) / max(walls.count or 1, 1))
        found.append(RunStartUp(run, source, start_up_ns, round(walls.step_ns or 0.0) + start_up_ns))
    return found
