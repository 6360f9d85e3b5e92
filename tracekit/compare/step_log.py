"""Unprofiled step times from logs of the same setting, and the profiler overhead of steps.

A log is one run: a driver's log, as `tracekit.job.driver_log` reads it, or a table. The table (CSV or
JSON lines) has columns `step` and `seconds`, and optionally the step's `tokens`, `samples` and `images`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.compare.comparison import ProfilerOverhead
from tracekit.compare.equal_length import Correction, compute_length_corrections
from tracekit.compare.sides import (
    ComparedSide,
    average_runs,
    describe_run_copies,
    exclude_steps,
    find_run_copies,
    parse_world_size,
)
from tracekit.job.driver_log import RunDriverLog, map_run_driver_logs
from tracekit.job.engines.compared import collect_engine_samples, join_engine_samples
from tracekit.job.frames import divide_or_none
from tracekit.job.run_log.settings import find_log_settings, list_profiled_steps
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps, sum_step_timers
from tracekit.job.steps.metric_samples import COLUMNS, Key, MetricSamples, collect_samples
from tracekit.job.steps.throughput import MOST_WORK, compute_work_rates
from tracekit.job.steps.warm_up import DroppedStep, LeftOutSteps
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.timeline import TimelineProcess
from tracekit.model.metrics import PER_WORK, STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, concat, from_rows
from tracekit.model.text.labels import choose_plural, make_displayable
from tracekit.model.trace import Measurements

KEY: Key = (UNPROFILED, None, None)
STEP: Key = (STEP_TIME, None, None)

MAX_BYTES = 64 * 2**20
MAX_STEPS = 1_000_000
MAX_SECONDS = 1e7
"""Limits of a table of step times."""

_HINT = "a driver's log, or a table with the columns step and seconds (CSV or JSON lines)"


@dataclass(frozen=True, slots=True)
class StepLog:
    """One logged run: `recorded` has values by step (`metric_samples.COLUMNS`), `profiled` the profiled steps.

    `content` is the digest of the log, None if unknown. `logged` has all its values, if it is a driver's. The times of an equalized
    log are those at the length at which both sides are compared. `strip` has its steps and stages as logged, for the page.
    """

    recorded: Frame
    profiled: frozenset[int] = frozenset()
    content: str | None = None
    logged: LoggedSteps | None = None
    is_equalized: bool = False
    engines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Samples of the engines of the run by metric."""
    strip: TimelineProcess | None = None


def list_driver_logs(
    measured: Measurements, label: str, path: Path, strips: Iterable[TimelineProcess] = ()
) -> tuple[StepLog, ...]:
    """List the logs at `path`, one per run; raises `TracekitError` if they time no step.

    `strips` are their steps and stages, for the page.
    """
    strip_by_run = {(strip.run, strip.name): strip for strip in strips}
    logs_by_run = map_run_driver_logs(measured) if measured.has("logged") else {}
    by_run = {steps.log.run: steps for steps in list_logged_steps(measured)} if measured.has("run_log") else {}
    engines = collect_engine_samples(measured)
    step_logs = []
    for run, log in logs_by_run.items():
        step_ns = log.step_ns or (sum_step_timers(measured, run) if run in by_run else {})
        if not step_ns:
            continue
        name = label if len(logs_by_run) == 1 or run is None else f"{label}/{run}"
        profiled = log.profiled | list_profiled_steps(find_log_settings(measured, run, log.source))
        content = _find_log_digest(measured, log.source)
        of_run = {
            key[0]: dict(zip(metric.runs, metric.values, strict=True)).get(str(run), ())
            for key, metric in engines.items()
        }
        recorded = _convert_driver_log(name, replace(log, step_ns=step_ns))
        strip = strip_by_run.get((run or "", log.source))
        step_logs.append(StepLog(recorded, profiled, content, by_run.get(run), engines=of_run, strip=strip))
    if not step_logs:
        raise TracekitError(f"{make_displayable(str(path))}: contains no step times", _HINT)
    return tuple(step_logs)


def _find_log_digest(measured: Measurements, name: str) -> str | None:
    """Find the digest of the source of this name; None if unknown."""
    for source in measured.sources:
        if source.name == name:
            return source.content
    return None


def _convert_driver_log(run: str, log: RunDriverLog) -> Frame:
    """Convert a driver's log to recorded values."""
    values: list[_LoggedValue] = [(step, None, UNPROFILED, ns) for step, ns in log.step_ns.items()]
    for row in log.stage_times.rows("step", "canonical", "dur_ns"):
        values.append((row["step"], row["canonical"], UNPROFILED_STAGE, row["dur_ns"]))
    for name, counts in log.work.items():
        values += [(step, None, name, count) for step, count in counts.items()]
    return _make_recorded_values(run, values)


_LoggedValue = tuple[int, str | None, str, float]
"""Step number, stage, name and value."""


def _make_recorded_values(run: str, values: Iterable[_LoggedValue]) -> Frame:
    """Make a frame of `COLUMNS` of the values of one run."""
    rows = [(run, None, None, step, None, stage, name, float(value)) for step, stage, name, value in values]
    return from_rows(COLUMNS, rows)


def read_step_table(path: Path, label: str) -> StepLog:
    """Read a table of step times as the run `label`; raises `TracekitError` for anything else."""
    place = make_displayable(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TracekitError(f"{place}: too large for a list of step times", _HINT)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TracekitError(f"{place}: is not UTF-8 text", _HINT) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TracekitError(f"{place}: cannot be read: {reason}", _HINT) from error
    try:
        rows = list(_parse_json_steps(text) if text.lstrip().startswith("{") else _parse_csv_steps(text))
    except (ValueError, csv.Error, RecursionError) as error:
        raise TracekitError(f"{place}: {error}", _HINT) from error
    if not rows:
        raise TracekitError(f"{place}: contains no step times", _HINT)
    if len(rows) > MAX_STEPS:
        raise TracekitError(f"{place}: over {MAX_STEPS:,} steps", _HINT)
    values: list[_LoggedValue] = []
    for step, metrics in dict(rows).items():
        values += [(step, None, name, value) for name, value in metrics.items()]
    return StepLog(_make_recorded_values(label, values), content=sha256(raw).hexdigest())


_LoggedStep = tuple[int, dict[str, float]]
"""A step number, and its values by metric name."""


def _parse_json_steps(text: str) -> Iterator[_LoggedStep]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            row = json.loads(line)
            yield _parse_logged_step(row if isinstance(row, dict) else {}, number)


def _parse_csv_steps(text: str) -> Iterator[_LoggedStep]:
    table = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    names = [(name or "").strip() for name in table.fieldnames or ()]
    if not {"step", "seconds"} <= set(names):
        raise ValueError("lacks the columns step and seconds")
    table.fieldnames = names
    for row in table:
        yield _parse_logged_step(row, table.line_num)


def _parse_logged_step(row: Mapping[str, Any], line: int) -> _LoggedStep:
    """Parse one line; raises ValueError with the line number if it has no valid step time."""
    try:
        number, time = int(row["step"]), float(row["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"line {line} lacks a step or seconds") from error
    if not (isfinite(time) and 0 < time <= MAX_SECONDS and 0 <= number < 2**62):
        raise ValueError(f"line {line}: {time} seconds is not a valid time for step {number}")
    return number, {UNPROFILED: time * 1e9, **_parse_step_work(row, line)}


def _parse_step_work(row: Mapping[str, Any], line: int) -> dict[str, float]:
    """Parse the work counts of one line; empty cells are left out."""
    cells = {name: row[name] for name in PER_WORK if row.get(name) not in (None, "")}
    try:
        counts = dict(zip(cells, (float(value) for value in cells.values()), strict=True))
    except (TypeError, ValueError, OverflowError):
        counts = dict.fromkeys(cells, -1.0)
    if not all(0 < count <= MOST_WORK for count in counts.values()):
        raise ValueError(f"line {line}: {', '.join(counts)} of a step must be positive numbers")
    return counts


@dataclass(frozen=True, slots=True)
class _LoggedSide:
    """Logs of one side: each run once, its samples and excluded steps, and which runs are copies."""

    runs: Mapping[str, StepLog]
    samples: Mapping[Key, MetricSamples]
    left_out: LeftOutSteps
    copies: Mapping[str, str]


def add_step_logs(
    base: ComparedSide,
    opt: ComparedSide,
    base_logs: Sequence[StepLog],
    opt_logs: Sequence[StepLog],
    drop_first: int | None = None,
) -> tuple[ComparedSide, ComparedSide]:
    """Add logged, unprofiled steps to both sides, with their work and the stages that no profile has.

    Raises `TracekitError` if no step of a side's logs is left. The first step of a log, which includes start-up,
    and profiled steps are excluded; `drop_first` sets the number of first steps.
    """
    base_logs, opt_logs = _equalize_logs(base_logs, opt_logs)
    before, after = (_build_logged_side(base_logs, drop_first), _build_logged_side(opt_logs, drop_first))
    profiled = _collect_metric_stages(base.samples, STAGE_TIME) | _collect_metric_stages(opt.samples, STAGE_TIME)
    stages = set()
    for key in before.samples.keys() | after.samples.keys():
        if key[0] == UNPROFILED_STAGE and key[2] not in profiled:
            stages.add(key)
    base_rates = _compute_logged_rates(base, before.samples, stages)
    opt_rates = _compute_logged_rates(opt, after.samples, stages)
    return (
        _add_logged_metrics(base, before, stages, _select_metrics(base_rates, opt_rates)),
        _add_logged_metrics(opt, after, stages, _select_metrics(opt_rates, base_rates)),
    )


def _equalize_logs(base: Sequence[StepLog], opt: Sequence[StepLog]) -> tuple[Sequence[StepLog], Sequence[StepLog]]:
    """Convert the times of all logs to the mean length of both sides; unchanged unless each log has lengths that vary."""
    corrections = compute_length_corrections([log.logged for log in (*base, *opt)])
    if not corrections:
        return base, opt
    logs = [_equalize_log(log, more) for log, more in zip((*base, *opt), corrections, strict=True)]
    return logs[: len(base)], logs[len(base) :]


def _equalize_log(log: StepLog, more: Correction) -> StepLog:
    """Subtract what length adds to the times of one log.

    The counts of work are dropped: they no longer belong to the times.
    """
    recorded = log.recorded.filter(log.recorded.is_in("name", (UNPROFILED, UNPROFILED_STAGE)))
    keys = zip(recorded.values("step"), recorded.values("stage"), strict=True)
    value = recorded.number("value") - np.array([more.get(key, 0.0) for key in keys])
    return replace(log, recorded=recorded.with_columns(value=value).filter(value > 0), is_equalized=True)


def _select_metrics(metrics: Mapping[Key, MetricSamples], keys: Container[Key]) -> dict[Key, MetricSamples]:
    """Select the metrics with these keys."""
    return {key: metric for key, metric in metrics.items() if key in keys}


def _collect_metric_stages(keys: Iterable[Key], metric: str) -> set[str | None]:
    """Collect the stages with this metric."""
    return {stage for name, _, stage in keys if name == metric}


def _build_logged_side(logged: Sequence[StepLog], drop_first: int | None) -> _LoggedSide:
    """Combine the logs of one side without duplicates, and exclude the steps that do not count."""
    runs = _name_log_runs(logged)
    copies = find_run_copies(_collect_log_digests(runs))
    runs = {run: log for run, log in runs.items() if run not in copies}
    left_out = LeftOutSteps(tuple(_list_excluded_log_steps(runs, drop_first)))
    recorded = concat([log.recorded.with_columns(run=run) for run, log in runs.items()])
    samples = collect_samples(recorded)
    return _LoggedSide(runs, exclude_steps(samples, left_out), left_out, copies)


def _add_logged_metrics(
    side: ComparedSide, logged: _LoggedSide, stages: Collection[Key], rates: Mapping[Key, MetricSamples]
) -> ComparedSide:
    """Add the logged step, stages and `rates` to a side; raises `TracekitError` if no step is left."""
    if KEY not in logged.samples:
        raise TracekitError(
            f"{side.name}: no logged step is left: all are first or profiled steps",
            "keep the first steps with --drop-first 0, or log steps without the profiler",
        )
    times = _select_metrics(logged.samples, {KEY, *stages})
    engines = join_engine_samples({run: dict(log.engines) for run, log in logged.runs.items()})
    return replace(
        side,
        samples={**side.samples, **times, **rates, **engines},
        left_out_of_logs=logged.left_out.steps,
        notes=(*side.notes, *describe_run_copies(side.name, logged.copies)),
        log_contents=_collect_log_digests(logged.runs),
        logs={run: log.logged for run, log in logged.runs.items() if log.logged is not None},
        log_strips=tuple(replace(log.strip, run=run) for run, log in logged.runs.items() if log.strip is not None),
    )


def _compute_logged_rates(
    side: ComparedSide, logged: Mapping[Key, MetricSamples], stages: Collection[Key]
) -> dict[Key, MetricSamples]:
    """Compute the work of logged steps, and the time of the step and of these stages per unit of work."""
    counts = {key: metric for key, metric in logged.items() if key[0] in PER_WORK}
    times = _select_metrics(logged, {KEY, *stages})
    ranks = parse_world_size(side.fingerprint)
    return {**counts, **compute_work_rates({**counts, **times}, ranks, UNPROFILED, UNPROFILED_STAGE)}


def add_step_log(side: ComparedSide, logged: Sequence[StepLog], drop_first: int | None = None) -> ComparedSide:
    """Add the unprofiled steps of its logs to a single side; raises `TracekitError` if none is left."""
    return add_step_logs(side, side, logged, logged, drop_first)[0]


def _name_log_runs(logged: Sequence[StepLog]) -> dict[str, StepLog]:
    """Name the run of each log, with a number if names collide."""
    names = [log.recorded.values("run")[0] for log in logged]
    runs = {}
    for number, (log, name) in enumerate(zip(logged, names, strict=True), 1):
        run = name if names.count(name) == 1 else f"{name} ({number})"
        runs[run] = log
    return runs


def _collect_log_digests(runs: Mapping[str, StepLog]) -> dict[str, frozenset[str]]:
    """Collect the known digests of logs by run."""
    return {run: frozenset({log.content}) for run, log in runs.items() if log.content}


def _list_excluded_log_steps(logged: Mapping[str, StepLog], first: int | None) -> Iterator[DroppedStep]:
    """List the steps of all logs of one side that do not count."""
    reason = "the first of its log" if first is None else f"one of the first {first}"
    for run, log in logged.items():
        timed = log.recorded.filter(log.recorded.equals("name", UNPROFILED))
        steps = sorted(set(timed.values("step")))
        count = min(1, len(steps) - 1) if first is None else first
        for step in steps[:count]:
            yield DroppedStep(run, step, None, reason)
        steady = _list_steady_steps(log)
        for step in steps[count:]:
            if step in log.profiled:
                yield DroppedStep(run, step, None, "logged while a profiler ran")
            elif steady and step not in steady:
                yield DroppedStep(run, step, None, "warm-up, validation or checkpoint")


def _list_steady_steps(log: StepLog) -> frozenset[int]:
    """List the steady steps of a log that was converted to equal length; empty for any other."""
    if log.logged is None or not log.is_equalized:
        return frozenset()
    return frozenset(log.logged.log.step[log.logged.counted.steady].tolist())


def measure_profiler_overheads(base: ComparedSide, opt: ComparedSide) -> tuple[ProfilerOverhead, ...]:
    """Measure the profiler overhead of each side that has both step times."""
    rows = []
    for side in (base, opt):
        profiled_steps, steps = side.samples.get(STEP), side.samples.get(KEY)
        if profiled_steps and steps:
            profiled, unprofiled = average_runs(profiled_steps), average_runs(steps)
            ratio = divide_or_none(profiled, unprofiled)
            rows.append(ProfilerOverhead(side.name, profiled, unprofiled, ratio))
    return tuple(rows)


def describe_logs(side: ComparedSide) -> Iterator[str]:
    """Describe the logs of a side: runs, steps that count."""
    steps = side.samples.get(KEY)
    if steps is None:
        return
    number = len(steps.runs)
    text = f"{side.name}, un-profiled: {number} {choose_plural(number, 'log')} × {format_steps_per_run(steps)}"
    left_out = len(side.left_out_of_logs)
    if left_out:
        text += f", {left_out} left out"
    yield text


def format_steps_per_run(steps: MetricSamples) -> str:
    """Format the steps per run: `1 step`, `5 steps`, or `4–6 steps` if they differ."""
    counts = sorted({len(values) for values in steps.values})
    if len(counts) > 1:
        return f"{counts[0]}–{counts[-1]} steps"
    return f"{counts[0]} {choose_plural(counts[0], 'step')}"
