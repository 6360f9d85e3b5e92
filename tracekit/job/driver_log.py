"""Driver logs: stage times and work of each step, shown next to the traces but never added to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from tracekit.job.frames import COUNTED_ANEW
from tracekit.job.log_files import JoinedLog, join_log_parts
from tracekit.model.recording.rl_frameworks import FRAMEWORKS, list_step_keys, map_timers
from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.frame import Frame, max_of, texts
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements, derive_once

TIMER = re.compile(r"timing_s/|timing/(?:train|validation)/")
"""Prefixes of the names under which verl and NeMo-RL log seconds."""

_NO_SECONDS = re.compile(r"timing_s/agent_loop/(?:.*/)?(?:num_preempted|prompt_length|response_length)(?:/|\Z)")
"""Counts and lengths that verl logs among its timers."""

_COUNTS = {
    what: tuple(key for framework in FRAMEWORKS for of_what, key in framework.work if of_what == what)
    for what in ("tokens", "samples", "images")
}
"""Names under which drivers log the work of a step. Work that is logged only as a rate is left out."""
_NO_STAGE = frozenset({"step", "total_step_time", "start_profile", "stop_profile"})
_NO_TIMERS = frozenset({"agent_loop", "idle", "wasted"})
"""First parts of names of single requests or classes of time, which are not stages."""


def get_timer_seconds(name: str) -> float | None:
    """Get the size in seconds of the unit of a timer of any framework; None for other values.

    >>> [get_timer_seconds(f"timing_s/{name}") for name in ("gen", "agent_loop/num_preempted/mean")]
    [1.0, None]
    >>> get_timer_seconds("timeperf/rollout"), get_timer_seconds("wait_scoring_ms"), get_timer_seconds("loss")
    (1.0, 0.001, None)
    """
    if name in map_timers():
        return map_timers()[name].seconds
    is_timer = name in list_step_keys() or (TIMER.match(name) and not _NO_SECONDS.match(name))
    return 1.0 if is_timer else None


def parse_timed_stage(name: str) -> str | None:
    """Parse the canonical stage of a timer; None for the whole step and for timers of no stage.

    >>> parse_timed_stage("timing_s/old_log_prob"), parse_timed_stage("timing/train/policy_training")
    ('old_log_prob', 'update_actor')
    >>> parse_timed_stage("timing_s/step"), parse_timed_stage("timing_s/agent_loop/slowest/generate_sequences")
    (None, None)
    """
    match = TIMER.match(name)
    label = name[match.end() :] if match else ""
    timer = map_timers().get(name)
    if timer is not None and label not in _NO_STAGE:
        return timer.stage
    if match is None:
        return None
    first, slash, _ = label.partition("/")
    if label in _NO_STAGE or first in _NO_TIMERS:
        return None
    stage = get_canonical_stage(label)
    return None if slash and stage == label else stage


@dataclass(frozen=True, slots=True)
class RunDriverLog:
    """Log of one run: `stage_times` has step, canonical, dur_ns; `step_ns` is the step time by step number.

    Of a step that ran again after a restart, the last try counts. `sources` are all files of a restarted run. `work` has the tokens, samples and
    images by step number (empty where not logged). Of several timers of one stage in a step the longest counts, as they may be nested. `profiled`
    are the steps in which a profiler ran.
    """

    source: str
    sources: frozenset[str]
    stage_times: Frame
    step_ns: Mapping[int, int]
    work: Mapping[str, Mapping[int, float]]
    profiled: frozenset[int] = frozenset()

    def map_stage_ns(self, stage: str) -> dict[int, int]:
        """Map step numbers to the logged time of one stage, ns."""
        of_stage = self.stage_times.filter(self.stage_times.equals("canonical", stage))
        return dict(zip(of_stage.values("step"), of_stage.values("dur_ns"), strict=True))


_READ_COLUMNS = ("source", "part", "step", "name", "value", "dur_ns")


@derive_once
def map_run_driver_logs(measured: Measurements) -> dict[Any, RunDriverLog]:
    """Map every run to its log (None: the run without a name); files of a restarted run are joined."""
    # Each filter below copies the columns that it keeps.
    logged = measured.frame("logged").select("run", *_READ_COLUMNS)
    by_run: dict[Any, RunDriverLog] = {}
    for of_run in logged.filter(~logged.is_missing("step")).group_by("run").frames():
        by_run[of_run.values("run")[0]] = _make_driver_log(join_log_parts(of_run))
    return by_run


def describe_unused_logs(measured: Measurements) -> list[str]:
    """Describe the log files that do not count: copies, and files whose values no other file has; [] without any."""
    used = frozenset[str]().union(*(log.sources for log in map_run_driver_logs(measured).values()))
    unused = set(measured.frame("logged").distinct("source").values("source")) - used - {None}
    if not unused:
        return []
    files, runs = choose_plural(len(unused), "log file"), choose_plural(len(unused), "the same run", "the same runs")
    verb = choose_plural(len(unused), "was", "were")
    return [f"{len(unused)} more {files} of {runs} {verb} not used"]


def _make_driver_log(joined: JoinedLog) -> RunDriverLog:
    """Sort the rows of one log into stages, steps and work."""
    sources = (rows.distinct("source").values("source") for rows in (joined.rows, joined.first_tries))
    logged = joined.rows.select(*_READ_COLUMNS[2:])
    by_name = logged.group_by("name")
    stages = texts([parse_timed_stage(name or "") for name in by_name.agg().values("name")])
    logged = logged.with_columns(step=logged.integers("step"), canonical=select_rows(stages, by_name.number))
    timers = logged.filter(~logged.is_missing("dur_ns") & ~logged.is_missing("canonical"))
    longest = timers.group_by("step", "canonical").agg(dur_ns=max_of("dur_ns"))
    step_ns = _map_first_logged_name(logged, list_step_keys(), "dur_ns")
    if step_ns:
        # A validation before training is not a step, nor is one whose line was truncated.
        longest = longest.filter(np.isin(longest.integers("step"), list(step_ns)))
    return RunDriverLog(
        joined.source,
        frozenset(chain.from_iterable(sources)),
        longest.sort("step", "canonical"),
        step_ns,
        {name: _map_first_logged_name(logged, names, "value") for name, names in _COUNTS.items()},
        _find_profiled_steps(logged),
    )


MIN_PROFILER_CALL_NS = 1_000_000
"""Shortest start or stop call that had an effect; drivers call both in every step."""

_START, _STOP = "timing_s/start_profile", "timing_s/stop_profile"


def _find_profiled_steps(logged: Frame) -> frozenset[int]:
    """Find the steps in which a profiler started or stopped, and those between."""
    starts, stops = _find_steps_of_call(logged, _START), _find_steps_of_call(logged, _STOP)
    profiled = set(starts)
    pending: list[int] | None = None
    for step in sorted(set(logged.values("step"))) if starts or stops else ():
        if step in starts:
            pending = []
        if pending is not None:
            pending.append(step)
        if step in stops:
            profiled.update(pending or (), (step,))
            pending = None
    return frozenset(profiled)


def _find_steps_of_call(logged: Frame, name: str) -> set[int]:
    """Find the steps in which a call of this name took long enough to have had an effect."""
    is_long = logged.equals("name", name) & (logged.integers("dur_ns") >= MIN_PROFILER_CALL_NS)
    return set(logged.filter(is_long).values("step"))


def _map_first_logged_name(logged: Frame, names: tuple[str, ...], column: str) -> dict[int, Any]:
    """Find the first of these names that the log has, and map step numbers to its last value in the step."""
    known = set(logged.distinct("name").values("name"))
    for name in filter(known.__contains__, names):
        named = logged.filter(logged.equals("name", name) & ~logged.is_missing(column)).sort("step")
        if len(named):
            return dict(zip(named.values("step"), named.values(column), strict=True))
    return {}


def find_logged_steps(units: Frame, log: RunDriverLog) -> list[int]:
    """Find the steps of units that the log has under the same number.

    Steps numbered from the start of a recording (the n of `ProfilerStep#n`) do not count: they are not those of the run.
    """
    units = units.filter(~units.is_in("origin", COUNTED_ANEW))
    return sorted({*log.step_ns, *log.stage_times.values("step")}.intersection(units.values("step")))
