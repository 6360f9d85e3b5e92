"""Step times without a profiler: what a log says of the same setting, and what the profiler added to its steps.

A log is one run. It is a driver's log, as `tracekit.job.logs.driver_log` reads it, or a table with columns `step` and
`seconds` (CSV or JSON lines), and where they are known `tokens`, `samples` and `images` of the step.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from tracekit.compare.comparison import Overhead
from tracekit.compare.sides import Side, copies_of, copies_told, mean_of_runs, without, world_size
from tracekit.job.frames import share_of
from tracekit.job.logs.driver_log import Logged, logs
from tracekit.job.steps.metric_samples import COLUMNS, Key, Samples, samples
from tracekit.job.steps.throughput import MOST_WORK, work_rates
from tracekit.job.steps.warm_up import Dropped, LeftOut
from tracekit.model.errors import TracekitError
from tracekit.model.labels import plural
from tracekit.model.metrics import PER_WORK, STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements

KEY: Key = (UNPROFILED, None, None)
STEP: Key = (STEP_TIME, None, None)

STARTS_NS = 1_000_000
"""A driver calls the start and stop of its profiler in every step; only where it does something does it take this."""

MAX_BYTES = 64 * 2**20
MAX_STEPS = 1_000_000
MAX_SECONDS = 1e7
"""Bounds of a table of step times."""

_START, _STOP = "timing_s/start_profile", "timing_s/stop_profile"
_HINT = "a driver's log, or a table with the columns step and seconds (CSV or JSON lines)"


@dataclass(frozen=True, slots=True)
class StepLog:
    """One run as logged: `values` are recorded values by step (`samples.COLUMNS`), `profiled` steps with a profiler.

    `content` is the digest of the log, None where it is not known.
    """

    values: pd.DataFrame
    profiled: frozenset[int] = frozenset()
    content: str | None = None


def driver_logs(measured: Measurements, label: str) -> tuple[StepLog, ...]:
    """The logs among what was measured, one a run; raises `TracekitError` where none times a step."""
    logs_by_run = logs(measured) if measured.has("logged") else {}
    step_logs = []
    for run, log in logs_by_run.items():
        if not len(log.steps):
            continue
        name = label if len(logs_by_run) == 1 or run is None else f"{label}/{run}"
        rows = measured["logged"]
        rows = rows[rows["source"] == log.source]
        content = _content(measured, log.source)
        step_logs.append(StepLog(_values(name, log), _profiled(rows), content))
    if not step_logs:
        raise TracekitError(f"{label}: no step is timed in it", _HINT)
    return tuple(step_logs)


def _content(measured: Measurements, name: str) -> str | None:
    """The digest of what the source of this name holds; None where it is not known."""
    for source in measured.sources:
        if source.name == name:
            return source.content
    return None


def _values(run: str, log: Logged) -> pd.DataFrame:
    """What a driver logged, as recorded values."""
    parts = [
        pd.DataFrame({"step": log.steps.index, "name": UNPROFILED, "value": log.steps.to_numpy()}),
        pd.DataFrame(
            {
                "step": log.stages["step"],
                "name": UNPROFILED_STAGE,
                "stage": log.stages["canonical"],
                "value": log.stages["dur_ns"],
            }
        ),
    ]
    for name, counts in log.counts.items():
        columns = {"step": counts.index, "name": name, "value": counts.to_numpy()}
        parts.append(pd.DataFrame(columns))
    rows = [part.reindex(columns=[*COLUMNS]).astype(object) for part in parts if len(part)]
    return pd.concat(rows, ignore_index=True).assign(run=run)


def _profiled(rows: pd.DataFrame) -> frozenset[int]:
    """Steps in which a profiler began or ended, and those between a logged start and the next stop."""
    starts, stops = _steps_of(rows, _START), _steps_of(rows, _STOP)
    profiled = set(starts)
    pending: list[int] | None = None
    for step in sorted(set(map(int, rows["step"].dropna()))):
        if step in starts:
            pending = []
        if pending is not None:
            pending.append(step)
        if step in stops:
            profiled.update(pending or (), (step,))
            pending = None
    return frozenset(profiled)


def _steps_of(rows: pd.DataFrame, name: str) -> set[int]:
    """The steps in which a call of this name took so long that it did something."""
    took = (rows["name"] == name) & (rows["dur_ns"] >= STARTS_NS).fillna(value=False)
    return set(map(int, rows.loc[took, "step"].dropna()))


def table_log(path: Path, label: str) -> StepLog:
    """The step times of a table; raises `TracekitError` for what is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TracekitError(f"{label}: larger than any list of step times", _HINT)
        text = raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise TracekitError(f"{label}: cannot be read: {error}", _HINT) from error
    try:
        rows = list(_json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text))
    except (ValueError, csv.Error, RecursionError) as error:
        raise TracekitError(f"{label}: {error}", _HINT) from error
    if not rows:
        raise TracekitError(f"{label}: no step is timed in it", _HINT)
    if len(rows) > MAX_STEPS:
        raise TracekitError(f"{label}: over {MAX_STEPS:,} steps", _HINT)
    values = []
    for step, metrics in dict(rows).items():
        values += [(step, name, value) for name, value in metrics.items()]
    frame = pd.DataFrame(values, columns=["step", "name", "value"]).assign(run=label)
    recorded = frame.reindex(columns=[*COLUMNS]).astype(object)
    return StepLog(recorded, content=sha256(raw).hexdigest())


_Row = tuple[int, dict[str, float]]
"""A step, and its values by the name of their metric."""


def _json_rows(text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            row = json.loads(line)
            yield _row(row if isinstance(row, dict) else {}, number)


def _csv_rows(text: str) -> Iterator[_Row]:
    table = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    names = [(name or "").strip() for name in table.fieldnames or ()]
    if not {"step", "seconds"} <= set(names):
        raise ValueError("has no columns step and seconds")
    table.fieldnames = names
    for row in table:
        yield _row(row, table.line_num)


def _row(row: Mapping[str, Any], line: int) -> _Row:
    """What one line tells of its step; a ValueError says which line tells no time of one."""
    try:
        number, time = int(row["step"]), float(row["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"line {line} has no step and seconds") from error
    if not (isfinite(time) and 0 < time <= MAX_SECONDS and 0 <= number < 2**62):
        raise ValueError(f"line {line}: {time} seconds of step {number} is no time of a step")
    return number, {UNPROFILED: time * 1e9, **_work(row, line)}


def _work(row: Mapping[str, Any], line: int) -> dict[str, float]:
    """How much work the step of one line holds; nothing where a cell is empty."""
    cells = {name: row[name] for name in PER_WORK if row.get(name) not in (None, "")}
    try:
        counts = dict(zip(cells, map(float, cells.values()), strict=True))
    except (TypeError, ValueError, OverflowError):
        counts = dict.fromkeys(cells, -1.0)
    if not all(0 < count <= MOST_WORK for count in counts.values()):
        raise ValueError(f"line {line}: {', '.join(counts)} of a step are no numbers above 0")
    return counts


@dataclass(frozen=True, slots=True)
class _LoggedSide:
    """The logs of one side: each run once, what counts of them, and which runs are copies of which."""

    runs: Mapping[str, StepLog]
    samples: Mapping[Key, Samples]
    left_out: LeftOut
    copies: Mapping[str, str]


def with_logs(
    base: Side,
    opt: Side,
    base_logs: Sequence[StepLog],
    opt_logs: Sequence[StepLog],
    drop_first: int | None = None,
) -> tuple[Side, Side]:
    """Both sides with what was logged of them: un-profiled steps, their work, and stages that no profile has.

    Raises `TracekitError` where nothing is left of a side's logs. Of a log the first step, which pays for
    start-up, and steps with a profiler are left out; with `drop_first` that many instead of one.
    """
    before, after = _logged_side(base_logs, drop_first), _logged_side(opt_logs, drop_first)
    profiled = _stages(base.samples, STAGE_TIME) | _stages(opt.samples, STAGE_TIME)
    stages = set()
    for key in before.samples.keys() | after.samples.keys():
        if key[0] == UNPROFILED_STAGE and key[2] not in profiled:
            stages.add(key)
    base_rates = _rates(base, before.samples, stages)
    opt_rates = _rates(opt, after.samples, stages)
    return (
        _with_logged(base, before, stages, _chosen(base_rates, opt_rates)),
        _with_logged(opt, after, stages, _chosen(opt_rates, base_rates)),
    )


def _chosen(metrics: Mapping[Key, Samples], keys: Container[Key]) -> dict[Key, Samples]:
    """Those of the metrics that are under these keys."""
    return {key: metric for key, metric in metrics.items() if key in keys}


def _stages(keys: Iterable[Key], metric: str) -> set[str | None]:
    """The stages of which this metric is known."""
    return {stage for name, _, stage in keys if name == metric}


def _logged_side(logged: Sequence[StepLog], drop_first: int | None) -> _LoggedSide:
    """The logs of one side, of equal ones the first alone, and what counts of them."""
    runs = _named(logged)
    copies = copies_of(_contents(runs))
    runs = {run: log for run, log in runs.items() if run not in copies}
    left_out = LeftOut(tuple(_left_out(runs, drop_first)))
    values = [log.values.assign(run=run) for run, log in runs.items()]
    recorded = samples(pd.concat(values, ignore_index=True))
    return _LoggedSide(runs, without(recorded, left_out), left_out, copies)


def _with_logged(
    side: Side, logged: _LoggedSide, stages: Collection[Key], rates: Mapping[Key, Samples]
) -> Side:
    """A side with its logged step and stages, and its `rates`; raises `TracekitError` where no step is left."""
    if KEY not in logged.samples:
        raise TracekitError(
            f"{side.name}: no logged step is left: all are the first of a log, or profiled",
            "keep the first steps with --drop-first 0, or log steps without the profiler",
        )
    times = _chosen(logged.samples, {KEY, *stages})
    return replace(
        side,
        samples={**side.samples, **times, **rates},
        left_out_of_logs=logged.left_out.steps,
        notes=(*side.notes, *copies_told(side.name, logged.copies)),
        log_contents=_contents(logged.runs),
    )


def _rates(
    side: Side, logged: Mapping[Key, Samples], stages: Collection[Key]
) -> dict[Key, Samples]:
    """The work of logged steps, and the time for it of the step and of these stages."""
    counts = {key: metric for key, metric in logged.items() if key[0] in PER_WORK}
    times = _chosen(logged, {KEY, *stages})
    ranks = world_size(side.fingerprint)
    return {**counts, **work_rates({**counts, **times}, ranks, UNPROFILED, UNPROFILED_STAGE)}


def with_log(side: Side, logged: Sequence[StepLog], drop_first: int | None = None) -> Side:
    """One side alone with the un-profiled steps of its logs; raises `TracekitError` where none is left."""
    return with_logs(side, side, logged, logged, drop_first)[0]


def _named(logged: Sequence[StepLog]) -> dict[str, StepLog]:
    """The logs by the name of their run, those of one name with a number."""
    names = [str(log.values["run"].iloc[0]) for log in logged]
    runs = {}
    for number, (log, name) in enumerate(zip(logged, names, strict=True), 1):
        run = name if names.count(name) == 1 else f"{name} ({number})"
        runs[run] = log
    return runs


def _contents(runs: Mapping[str, StepLog]) -> dict[str, frozenset[str]]:
    """The digest of every log that has one, by its run."""
    return {run: frozenset({log.content}) for run, log in runs.items() if log.content}


def _left_out(logged: Mapping[str, StepLog], first: int | None) -> Iterator[Dropped]:
    """The steps of all logs of one side that do not count."""
    reason = "the first of its log" if first is None else f"one of the first {first}"
    for run, log in logged.items():
        timed = log.values[log.values["name"] == UNPROFILED]["step"]
        steps = sorted(set(map(int, timed)))
        count = min(1, len(steps) - 1) if first is None else first
        for step in steps[:count]:
            yield Dropped(run, step, None, reason)
        for step in steps[count:]:
            if step in log.profiled:
                yield Dropped(run, step, None, "logged while a profiler ran")


def overheads(base: Side, opt: Side) -> tuple[Overhead, ...]:
    """What the profiler made of the steps of each side; nothing of a side without both times."""
    rows = []
    for side in (base, opt):
        profiled_steps, steps = side.samples.get(STEP), side.samples.get(KEY)
        if profiled_steps and steps:
            profiled, unprofiled = mean_of_runs(profiled_steps), mean_of_runs(steps)
            ratio = share_of(profiled, unprofiled)
            rows.append(Overhead(side.name, profiled, unprofiled, ratio))
    return tuple(rows)


def logged_reading(side: Side) -> Iterator[str]:
    """How the logs of a side were understood: runs, steps that count."""
    steps = side.samples.get(KEY)
    if steps is None:
        return
    number = len(steps.runs)
    text = f"{side.name}, un-profiled: {number} {plural(number, 'log')} × {steps_a_run(steps)}"
    left_out = len(side.left_out_of_logs)
    if left_out:
        text += f", {left_out} left out"
    yield text


def steps_a_run(steps: Samples) -> str:
    """How many steps the runs have: `1 step`, `5 steps`, or `4–6 steps` where they differ."""
    counts = sorted(set(map(len, steps.values)))
    if len(counts) > 1:
        return f"{counts[0]}–{counts[-1]} steps"
    return f"{counts[0]} {plural(counts[0], 'step')}"
