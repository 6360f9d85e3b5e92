"""Time for the work that was done: a step per token, and tokens a second, as ratios of sums over its steps (Q22)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.metric_kinds import STEP_TIME, THROUGHPUT, TIME_PER_TOKEN, TOKENS
from tracekit.samples import Key, Samples

TOKENS_KEY: Key = (TOKENS, None, None)


def work_rates(
    found: Mapping[Key, Samples], ranks: int | None, time: str = STEP_TIME
) -> dict[Key, Samples]:
    """`time_per_token` (ns) and, where the number of ranks is known, `throughput` (tokens per second and rank).

    Of the steps whose tokens are known, and nothing without any. The mean of a run's values is Σ time over
    Σ tokens (or Σ tokens over Σ time and ranks), and they spread as that ratio does: steps that are long
    because they hold more tokens add nothing.
    """
    times, tokens = found.get((time, None, None)), found.get(TOKENS_KEY)
    if times is None or tokens is None:
        return {}
    counts = {
        step: value
        for ids, values in zip(tokens.steps, tokens.values, strict=True)
        for step, value in zip(ids, values, strict=True)
        if value > 0
    }
    runs = [
        (run, [(step, ns) for step, ns in zip(ids, values, strict=True) if step in counts])
        for run, ids, values in zip(times.runs, times.steps, times.values, strict=True)
    ]
    runs = [(run, pairs) for run, pairs in runs if pairs and sum(ns for _, ns in pairs) > 0]
    if not runs:
        return {}
    out: dict[Key, Samples] = {}
    for name, per in ((TIME_PER_TOKEN, True), (THROUGHPUT, False)):
        if not per and not ranks:
            continue
        key: Key = (name, None, None)
        values = []
        for _, pairs in runs:
            ns = np.array([value for _, value in pairs], np.float64)
            work = np.array([counts[step] for step, _ in pairs], np.float64)
            rate = _ratio(ns, work) if per else _ratio(work, ns) * 1e9 / (ranks or 1)
            values.append(tuple(map(float, rate)))
        steps = tuple(tuple(step for step, _ in pairs) for _, pairs in runs)
        out[key] = Samples(key, tuple(run for run, _ in runs), steps, tuple(values))
    return out


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Values whose mean is Σ over / Σ under, each off by what its step departs from that ratio."""
    ratio = over.sum() / under.sum()
    away: np.ndarray = ratio + (over - ratio * under) / under.mean()
    return away
