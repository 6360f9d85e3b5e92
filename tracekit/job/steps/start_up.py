"""Start-up time before the work of captures without step marks, over processes."""

from __future__ import annotations

import numpy as np

from tracekit.job.frames import UNIT, clear_parts_of_numbered_steps, split_by_keys, summarize_job_steps
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements


@dataclass(frozen=True, slots=True)
class RunStartUp:
    """Longest start-up of a run, of the process in `source`; `whole_ns` is the capture including it."""

    run: object
    source: object
    start_up_ns: int
    whole_ns: int

    @property
    def ratio(self) -> float:
        """Share of the start-up in the capture."""
        return self.start_up_ns / max(self.whole_ns, 1)


def find_run_start_ups(measured: Measurements) -> list[RunStartUp]:
    """Find the start-up of every run that begins with one; over several captures, the mean of the longest of each."""
    return measured.derived(_find_run_start_ups)


def _find_run_start_ups(measured: Measurements) -> list[RunStartUp]:
    if not measured.row_count("steps"):
        return []
    rows = clear_parts_of_numbered_steps(measured["steps"])
    rows = rows[(rows["start_up_ns"] > 0).to_numpy(np.bool_)]
    found = []
    for of_run in split_by_keys(rows, ["run"]):
        run = of_run["run"].iloc[0]
        longest = [of_unit["start_up_ns"].max() for of_unit in split_by_keys(of_run, [*UNIT])]
        place = int(of_run["start_up_ns"].to_numpy(np.int64).argmax())
        walls = summarize_job_steps(measured).select_run(run)
        start_up_ns = round(sum(longest) / max(walls.count or 1, 1))
        wall_ns = round(walls.step_ns or 0.0)
        found.append(RunStartUp(run, of_run["source"].iloc[place], start_up_ns, wall_ns + start_up_ns))
    return found
