"""Driver logs: stage times and work of each step, shown next to the traces but never added to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracekit.job.frames import COUNTED_ANEW
from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.frame import Frame, count_rows, max_of, texts
from tracekit.model.trace import Measurements, derive_once

TIMER = re.compile(r"timing_s/|timing/(?:train|validation)/")
"""Prefixes of the names under which drivers log seconds."""

_STEP_TIMERS = ("timing_s/step", "timing/train/total_step_time", "perf/time_per_step")
_COUNTS = {
    "tokens": ("perf/total_num_tokens", "train/global_valid_toks", "global_valid_toks"),
    "samples": ("train/global_valid_seqs", "global_valid_seqs"),
    "images": ("perf/total_num_images",),
}
"""Names under which drivers log the work of a step. Work that is logged only as a rate is left out."""
_NO_STAGE = frozenset({"step", "total_step_time", "start_profile", "stop_profile"})
_NO_TIMERS = frozenset({"agent_loop", "idle", "wasted"})
"""First parts of names of single requests or classes of time, which are not stages."""


def parse_timed_stage(name: str) -> str | None:
    """Parse the canonical stage of a timer; None for the whole step and for timers of no stage.

    >>> parse_timed_stage("timing_s/old_log_prob"), parse_timed_stage("timing/train/policy_training")
    ('old_log_prob', 'update_actor')
    >>> parse_timed_stage("timing_s/step"), parse_timed_stage("timing_s/agent_loop/slowest/generate_sequences")
    (None, None)
    """
    match = TIMER.match(name)
    if match is None:
        return None
    label = name[match.end() :]
    first, slash, _ = label.partition("/")
    if label in _NO_STAGE or first in _NO_TIMERS:
        return None
    stage = get_canonical_stage(label)
    return None if slash and stage == label else stage


@dataclass(frozen=True, slots=True)
class RunDriverLog:
    """Log of one run: `stage_times` has step, canonical, dur_ns; `step_ns` is the step time by step number.

    `work` has the tokens, samples and images by step number (empty where not logged). Of several timers of one stage in
    a step the longest counts, as they may be nested.
    """

    source: str
    stage_times: Frame
    step_ns: Mapping[int, int]
    work: Mapping[str, Mapping[int, float]]

    def map_stage_ns(self, stage: str) -> dict[int, int]:
        """Map step numbers to the logged time of one stage, ns."""
        of_stage = self.stage_times.filter(self.stage_times.equals("canonical", stage))
        return dict(zip(of_stage.values("step"), of_stage.values("dur_ns"), strict=True))


@derive_once
def map_run_driver_logs(measured: Measurements) -> dict[Any, RunDriverLog]:
    """Map every run to its log (None: the run without a name); of several logs, the one with most numbers."""
    logged = measured.frame("logged")
    by_run: dict[Any, RunDriverLog] = {}
    for of_run in logged.filter(~logged.is_missing("step")).group_by("run").frames():
        counts = of_run.group_by("source").agg(count=count_rows())
        source = counts.sort("count", "source", descending=["count"]).values("source")[0]
        by_run[of_run.values("run")[0]] = _make_driver_log(source, of_run.filter(of_run.equals("source", source)))
    return by_run


def _make_driver_log(source: str, logged: Frame) -> RunDriverLog:
    """Sort the rows of one log into stages, steps and work; of a restarted log, the last part of each step counts."""
    logged = _select_last_parts(logged)
    by_name = logged.group_by("name")
    stages = texts([parse_timed_stage(name or "") for name in by_name.agg().values("name")])
    logged = logged.with_columns(step=logged.integers("step"), canonical=select_rows(stages, by_name.number))
    timers = logged.filter(~logged.is_missing("dur_ns") & ~logged.is_missing("canonical"))
    longest = timers.group_by("step", "canonical").agg(dur_ns=max_of("dur_ns"))
    return RunDriverLog(
        source,
        longest.sort("step", "canonical"),
        _map_first_logged_name(logged, _STEP_TIMERS, "dur_ns"),
        {name: _map_first_logged_name(logged, names, "value") for name, names in _COUNTS.items()},
    )


def _select_last_parts(logged: Frame) -> Frame:
    """Select the rows of the last part that has each step."""
    by_step = logged.group_by("step")
    last = by_step.agg(part=max_of("part"))["part"]
    return logged.filter(logged["part"] == last[by_step.number])


def _map_first_logged_name(logged: Frame, names: tuple[str, ...], column: str) -> dict[int, Any]:
    """Find the first of these names that the log has, and map step numbers to its last value in the step."""
    known = logged.filter(~logged.is_missing(column)).sort("step")
    for name in names:
        named = known.filter(known.equals("name", name))
        if len(named):
            return dict(zip(named.values("step"), named.values(column), strict=True))
    return {}


def find_logged_steps(units: Frame, log: RunDriverLog) -> list[int]:
    """Find the steps of units that the log has under the same number.

    Steps numbered from the start of a recording (the n of `ProfilerStep#n`) do not count: they are not those of the run.
    """
    units = units.filter(~units.is_in("origin", COUNTED_ANEW))
    return sorted({*log.step_ns, *log.stage_times.values("step")}.intersection(units.values("step")))
