"""Driver logs: stage times and work of each step, shown next to the traces but never added to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracekit.job.frames import COUNTED_ANEW, find_equal_rows, to_text_or_none
from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.trace import Measurements

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
    """Log of one run: `stages` has step, canonical, dur_ns; `steps` is the step time by step number.

    `counts` has the tokens, samples and images by step number (empty where not logged). Of several timers of one stage in
    a step the longest counts, as they may be nested.
    """

    source: str
    stages: pd.DataFrame
    steps: pd.Series[Any]
    counts: Mapping[str, pd.Series[Any]]

    def get_stage_times(self, stage: str) -> pd.Series[Any]:
        """Select the logged time of one stage by step number, ns."""
        of_stage = self.stages[self.stages["canonical"] == stage]
        return of_stage.set_index("step")["dur_ns"]


def map_run_driver_logs(measured: Measurements) -> dict[Any, RunDriverLog]:
    """Map every run to its log (None: the run without a name); of several logs, the one with most numbers."""
    return measured.derived(_map_run_driver_logs)


def _map_run_driver_logs(measured: Measurements) -> dict[Any, RunDriverLog]:
    if not measured.row_count("logged"):
        return {}
    rows = measured["logged"]
    rows = rows[rows["step"].notna()]
    by_run: dict[Any, RunDriverLog] = {}
    for run in rows["run"].unique():
        of_run = rows[find_equal_rows(rows["run"], run)]
        counts = of_run["source"].value_counts()
        source = min(counts.index, key=lambda name: (-int(counts[name]), str(name)))
        by_run[to_text_or_none(run)] = _make_driver_log(str(source), of_run[of_run["source"] == source])
    return by_run


def _make_driver_log(source: str, rows: pd.DataFrame) -> RunDriverLog:
    """Sort the rows of one log into stages, steps and counts."""
    rows = rows.astype({"step": "int64"})
    stage = {name: parse_timed_stage(str(name)) for name in rows["name"].unique()}
    timers = rows[rows["dur_ns"].notna()].assign(canonical=rows["name"].map(stage))
    timers = timers[timers["canonical"].notna()]
    stages = timers.groupby(["step", "canonical"], sort=True)["dur_ns"].max().reset_index()
    counts = {name: _find_first_logged_name(rows, names, "value") for name, names in _COUNTS.items()}
    return RunDriverLog(source, stages, _find_first_logged_name(rows, _STEP_TIMERS, "dur_ns"), counts)


def _find_first_logged_name(rows: pd.DataFrame, names: tuple[str, ...], column: str) -> pd.Series[Any]:
    """Find the first of these names that the log has, and list its value by step."""
    for name in names:
        named = rows[(rows["name"] == name) & rows[column].notna()]
        if len(named):
            return named.groupby("step")[column].last()
    return rows.iloc[:0].set_index("step")[column]


def match_logged_steps(walls: pd.DataFrame, log: RunDriverLog) -> list[int]:
    """Match the steps of units with those that the log has under the same number.

    Steps numbered from the start of a recording (the n of `ProfilerStep#n`) are not matched: they are not those of the run.
    """
    numbers = walls[walls["step"].notna() & ~walls["origin"].isin(COUNTED_ANEW)]["step"]
    logged = set(log.steps.index) | set(log.stages["step"])
    return sorted({int(number) for number in numbers} & logged)
