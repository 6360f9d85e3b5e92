"""Step times without a profiler: what a log says of the same setting, and what the profiler added to its steps.

A log is one run. It is a driver's log, as `tracekit.job.driver_log` reads it, or a table with columns `step` and
`seconds` (CSV or JSON lines), and where they are known `tokens`, `samples` and `images` of the step.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from tracekit.compare.comparison import Overhead
from tracekit.compare.sides import Side, copies_of, copies_told, world_size
from tracekit.job.driver_log import Logged, logs
from tracekit.job.frames import plain
from tracekit.job.metric_kinds import PER_WORK, STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE
from tracekit.job.samples import COLUMNS, Key, Samples, samples
from tracekit.job.throughput import MOST_WORK, work_rates
from tracekit.job.warm_up import Dropped, LeftOut
from tracekit.model.errors import TracekitError
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
    known = logs(measured) if measured.has("logged") else {}
    found = []
    for run, log in known.items():
        if not len(log.steps):
            continue
        name = label if len(known) == 1 or run is None else f"{label}/{run}"
        rows = plain(measured["logged"])
        rows = rows[rows["source"] == log.source]
        content = next((s.content for s in measured.sources if s.name == log.source), None)
        found.append(StepLog(_values(name, log), _profiled(rows), content))
    if not found:
        raise TracekitError(f"{label}: no step is timed in it", _HINT)
    return tuple(found)


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
        *(
            pd.DataFrame({"step": counts.index, "name": name, "value": counts.to_numpy()})
            for name, counts in log.counts.items()
        ),
    ]
    rows = [part.reindex(columns=[*COLUMNS]).astype(object) for part in parts if len(part)]
    return pd.concat(rows, ignore_index=True).assign(run=run)


def _profiled(rows: pd.DataFrame) -> frozenset[int]:
    """Steps in which a profiler began or ended, and those between a logged start and the next stop."""
    took = {
        name: set(rows[(rows["name"] == name) & (rows["dur_ns"] >= STARTS_NS).fillna(value=False)]["step"])
        for name in (_START, _STOP)
    }  # fmt: skip
    found: set[int] = set()
    pending: list[int] | None = None
    for step in sorted({int(step) for step in rows["step"].dropna()}):
        if step in took[_START]:
            pending = []
        if pending is not None:
            pending.append(step)
        if step in took[_STOP]:
            found |= {step, *(pending or ())}
            pending = None
    return frozenset(found | {int(step) for step in took[_START]})


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
    told = [(step, name, value) for step, row in dict(rows).items() for name, value in row.items()]
    frame = pd.DataFrame(told, columns=["step", "name", "value"])
    values = frame.assign(run=label).reindex(columns=[*COLUMNS]).astype(object)
    return StepLog(values, content=sha256(raw).hexdigest())


_Row = tuple[int, dict[str, float]]
"""A step, and its values by the name of their metric."""


def _json_rows(text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found = json.loads(line)
            yield _row(found if isinstance(found, dict) else {}, number)


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
    found = {name: row[name] for name in PER_WORK if row.get(name) not in (None, "")}
    try:
        counts = {name: float(cell) for name, cell in found.items()}
    except (TypeError, ValueError, OverflowError):
        counts = dict.fromkeys(found, -1.0)
    if not all(0 < count <= MOST_WORK for count in counts.values()):
        raise ValueError(f"line {line}: {', '.join(counts)} of a step are no numbers above 0")
    return counts


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
    named = [_named(logged) for logged in (base_logs, opt_logs)]
    copies = [copies_of(_contents(runs)) for runs in named]
    named = [
        {run: log for run, log in runs.items() if run not in out}
        for runs, out in zip(named, copies, strict=True)
    ]
    found = [_kept(runs, drop_first) for runs in named]
    profiled = {key[2] for side in (base, opt) for key in side.samples if key[0] == STAGE_TIME}
    stages = [{key for key in kept if key[0] == UNPROFILED_STAGE} for kept, _ in found]
    wanted = {key for key in stages[0] | stages[1] if key[2] not in profiled}
    rates = [
        _work_of(side, kept, wanted) for side, (kept, _) in zip((base, opt), found, strict=True)
    ]
    both = rates[0].keys() & rates[1].keys()
    sides = []
    for side, (kept, dropped), rate, runs, out in zip(
        (base, opt), found, rates, named, copies, strict=True
    ):
        if KEY not in kept:
            raise TracekitError(
                f"{side.name}: no logged step is left: all are the first of a log, or profiled",
                "keep the first steps with --drop-first 0, or log steps without the profiler",
            )
        new = {key: kept[key] for key in kept if key in wanted or key == KEY}
        new |= {key: rate[key] for key in both}
        sides.append(
            replace(
                side,
                samples={**side.samples, **new},
                left_out_of_logs=dropped.steps,
                notes=(*side.notes, *copies_told(side.name, out)),
                log_contents=_contents(runs),
            )
        )
    return sides[0], sides[1]


def _work_of(
    side: Side, kept: Mapping[Key, Samples], stages: Collection[Key]
) -> dict[Key, Samples]:
    """The work of logged steps, and the time for it of the step and of these stages."""
    counts = {key: one for key, one in kept.items() if key[0] in PER_WORK}
    times = {key: one for key, one in kept.items() if key in stages or key == KEY}
    ranks = world_size(side.fingerprint)
    return {**counts, **work_rates({**counts, **times}, ranks, UNPROFILED, UNPROFILED_STAGE)}


def with_log(side: Side, logged: Sequence[StepLog], drop_first: int | None = None) -> Side:
    """One side alone with the un-profiled steps of its logs; raises `TracekitError` where none is left."""
    return with_logs(side, side, logged, logged, drop_first)[0]


def _named(logged: Sequence[StepLog]) -> dict[str, StepLog]:
    """The logs by the name of their run, those of one name with a number."""
    names = [str(log.values["run"].iloc[0]) for log in logged]
    return {
        name if names.count(name) == 1 else f"{name} ({number})": log
        for number, (log, name) in enumerate(zip(logged, names, strict=True), 1)
    }


def _contents(runs: Mapping[str, StepLog]) -> dict[str, frozenset[str]]:
    """The digest of every log that has one, by its run."""
    return {run: frozenset({log.content}) for run, log in runs.items() if log.content}


def _kept(logged: Mapping[str, StepLog], first: int | None) -> tuple[dict[Key, Samples], LeftOut]:
    """The samples of all logs of one side without the steps that do not count."""
    frames = []
    out: list[Dropped] = []
    for run, log in logged.items():
        frames.append(log.values.assign(run=run))
        timed = log.values[log.values["name"] == UNPROFILED]["step"]
        steps = sorted({int(step) for step in timed})
        count = min(1, len(steps) - 1) if first is None else first
        reason = "the first of its log" if first is None else f"one of the first {first}"
        out += [Dropped(run, step, None, reason) for step in steps[:count]]
        out += [
            Dropped(run, step, None, "logged while a profiler ran")
            for step in steps[count:]
            if step in log.profiled
        ]
    left_out = LeftOut(tuple(out))
    every = samples(pd.concat(frames, ignore_index=True))
    return {key: kept for key, one in every.items() if (kept := left_out.kept(one)).runs}, left_out


def overheads(base: Side, opt: Side) -> tuple[Overhead, ...]:
    """What the profiler made of the steps of each side; nothing of a side without both times."""
    found = []
    for side in (base, opt):
        with_it, without = side.samples.get(STEP), side.samples.get(KEY)
        if with_it and without:
            profiled, plain_ns = _mean(with_it), _mean(without)
            ratio = profiled / plain_ns if plain_ns else None
            found.append(Overhead(side.name, profiled, plain_ns, ratio))
    return tuple(found)


def _mean(found: Samples) -> float:
    """The mean over runs of their means."""
    return sum(sum(run) / len(run) for run in found.values) / len(found.values)


def logged_reading(side: Side) -> Iterator[str]:
    """How the logs of a side were understood: runs, steps that count."""
    steps = side.samples.get(KEY)
    if steps is None:
        return
    counts = sorted({len(run) for run in steps.values})
    of = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    runs, gone = len(steps.runs), len(side.left_out_of_logs)
    text = f"{side.name}, un-profiled: {runs} {'log' if runs == 1 else 'logs'} × {of} {'step' if counts == [1] else 'steps'}"
    yield text + (f", {gone} left out" if gone else "")
