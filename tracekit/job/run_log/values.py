"""Values of one run's log as arrays over its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.job.log_files import JoinedLog, join_log_parts
from tracekit.model.recording.rl_frameworks import RlFramework, find_framework
from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.frame import Frame, Ints, first_of
from tracekit.model.trace import Measurements, derive_once

Floats = npt.NDArray[np.float64]

HOST_USED = re.compile(r"(?:\w+/)?perf/cpu_memory_used_gb|ray/node\.\d{1,5}\.mem_gb|memory/cpu/.{1,100}/rss")
"""Names of values that are the used memory of a host or a process in GiB."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one run: a row per step, in the order of its parts; `series` has the values by name, NaN where not logged.

    A restart begins a new part. `first_tries` has the steps that ran again after one; the rows are their last tries.
    """

    run: str | None
    source: str
    framework: RlFramework
    part: Ints
    step: Ints
    series: Mapping[str, Floats]
    first_tries: RunLog | None = None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.step)

    def has_value(self, name: str) -> bool:
        """Check whether any step has a value of this name."""
        return name in self.series

    def get_first(self, *names: str) -> Floats | None:
        """Get the values of the first name that the log has; None without any."""
        return next((self.series[name] for name in names if name in self.series), None)


def name_logged_stage(framework: RlFramework, name: str, label: str) -> str:
    """Name the canonical stage of a timer: by the registry, or by its label."""
    timer = framework.find_timer(name)
    return get_canonical_stage(label) if timer is None else timer.stage


@derive_once
def map_run_logs(measured: Measurements) -> dict[str | None, RunLog]:
    """Map each run to its log; files of a restarted run are joined. Logs without step times are left out."""
    rows = measured.frame("run_log")
    rows = rows.filter(~rows.is_missing("step") & ~rows.is_missing("value"))
    logs: dict[str | None, RunLog] = {}
    for of_run in rows.group_by("run").frames():
        log = _make_run_log(of_run.values("run")[0], join_log_parts(of_run))
        if log is not None:
            logs[log.run] = log
    return logs


def _make_run_log(run: str | None, joined: JoinedLog) -> RunLog | None:
    """Arrange the values of one log by name and step; None if no framework is known by its names."""
    framework = find_framework(joined.rows.distinct("name").values("name"))
    if framework is None:
        return None
    log = RunLog(run, joined.source, framework, *_arrange_values(joined.rows))
    if not len(joined.first_tries):
        return log
    return replace(log, first_tries=RunLog(run, joined.source, framework, *_arrange_values(joined.first_tries)))


def _arrange_values(rows: Frame) -> tuple[Ints, Ints, Mapping[str, Floats]]:
    """Arrange values by part and step: (part, step, values by name)."""
    groups = rows.group_by("part", "step")
    keys = groups.agg(part=first_of("part"), step=first_of("step"))
    part, step = keys.integers("part"), keys.integers("step")
    order = np.lexsort((step, part))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    row, value = place[groups.number], rows.number("value")
    by_name = rows.group_by("name")
    names: list[Any] = by_name.agg().values("name")
    table = np.full((len(names), len(order)), np.nan)
    table[by_name.number, row] = value
    return part[order], step[order], dict(zip(names, table, strict=True))
