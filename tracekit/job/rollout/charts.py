"""Charts of a rollout: the running batch of each engine over time, and the end of each engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter

import numpy as np

from tracekit.job.frames import phrase_run
from tracekit.job.rollout.generations import (
    EngineGeneration,
    group_generations_by_role,
    is_on_one_clock,
    list_generation_iterations,
    measure_end_times,
)
from tracekit.model.labels import format_numbered_word
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements

_START, _NAME = attrgetter("begin_ns"), attrgetter("engine")

MAX_MARKS, MAX_LINES, MAX_ROWS = 2_000, 20, 64
"""Most marks, lines and rows of one chart."""


def draw_rollout(measured: Measurements, engine_generations: Sequence[EngineGeneration]) -> Iterator[Chart]:
    """Draw the unit with the longest generation: running batches over time, and the end of each engine."""
    units = chain.from_iterable(group_generations_by_role(engine_generations).values())
    unit = max(units, key=lambda unit: max(g.dur_ns for g in unit))
    run, _, number = unit[0].unit[:3]
    step = format_numbered_word(", step", number)
    title = f"{step}{phrase_run(measured, run)}"
    same_clock = is_on_one_clock(unit)
    batches = _draw_running_batches(measured, unit, title, same_clock=same_clock)
    if batches.marks:
        yield batches
    if len(unit) > 1:
        yield _draw_engine_ends(unit, title, same_clock=same_clock)


def _draw_running_batches(
    measured: Measurements, unit: Sequence[EngineGeneration], title: str, *, same_clock: bool
) -> Chart:
    """Draw a line per engine: the largest batch of neighbouring iterations."""
    first = min(map(_START, unit))
    engines = sorted((g for g in unit if g.iterations), key=lambda g: -g.dur_ns)[:MAX_LINES]
    marks: list[tuple[int, int, int]] = []
    left_out = 0
    for number, engine in enumerate(engines):
        rows = list_generation_iterations(measured, engine)
        since_start = rows["ts_ns"].to_numpy() - engine.ts_ns
        since_start = since_start + (engine.begin_ns - first if same_clock else 0)
        most = MAX_MARKS // len(engines)
        bins = np.arange(len(since_start)) * most // max(len(since_start), most)
        begin = np.flatnonzero(np.diff(bins, prepend=-1))
        highest = np.maximum.reduceat(rows["decode_requests"].to_numpy(np.int64), begin)
        marks += zip(repeat(number), since_start[begin].tolist(), highest.tolist(), strict=False)
        left_out += len(since_start) - len(begin)
    caption = "The longest generation; the largest batch of neighbouring iterations."
    if not same_clock:
        caption += " Clocks cannot be compared: every engine begins at its own zero."
    return Chart(
        "rollout-batch",
        f"Requests that generate, over time{title}",
        "lines",
        tuple(marks),
        tuple(map(_NAME, engines)),
        unit="count",
        caption=caption,
        omitted=left_out,
    )


def _draw_engine_ends(unit: Sequence[EngineGeneration], title: str, *, same_clock: bool) -> Chart:
    """Draw a bar per engine, the last one first: its generation time, then its wait for the last engine (bubble)."""
    ended = sorted(zip(measure_end_times(unit), unit, strict=True), key=lambda pair: -pair[0])[:MAX_ROWS]
    longest = ended[0][0]
    worked: list[tuple[int, int, int]] = []
    waited: list[tuple[int, int, int]] = []
    for row, (after, _) in enumerate(ended):
        worked.append((row, 0, after))
        if after < longest:
            waited.append((row, 1, longest - after))
    return Chart(
        "rollout-ends",
        f"When each engine ended{title}",
        "bars",
        (*worked, *waited),
        ("until its end", "waiting for the last"),
        tuple(engine.engine for _, engine in ended),
        caption="" if same_clock else "Clocks cannot be compared: every engine begins at its own zero.",
        omitted=len(unit) - len(ended),
    )
