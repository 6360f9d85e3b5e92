"""Questions asked of traces. A new one is a file with `measure` and `judge`, and one line in `ANALYSES`.

`measure` turns one Trace into columns of measured tables (keys are added for it), `fold` may merge the
measured frames of one process in time order, `judge` sees only the concatenated `Measurements`.
Analyses do not import one another: what they share is in `derived`, `pooling` and `sheets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pandas as pd

from tracekit.report import Section
from tracekit.thresholds import Thresholds
from tracekit.trace import Measurements, Trace

Measured = Mapping[str, Mapping[str, Any]]
Frames = Mapping[str, pd.DataFrame]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question: the tables and arguments it reads, and the functions that answer it."""

    id: str
    title: str
    needs: tuple[str, ...]
    args: tuple[str, ...]
    measure: Callable[[Trace], Measured]
    judge: Callable[[Measurements, Thresholds], Section]
    fold: Callable[[Frames], Frames] | None = None
    rules: tuple[str, ...] = ()
    """The rules that it judges; see `report.Verdict` for those that abstain."""


def _analysis(name: str) -> Analysis:
    """The question that a file of this directory answers."""
    module = import_module(f"tracekit.analyses.{name}")
    return Analysis(
        module.ID,
        module.TITLE,
        module.NEEDS,
        getattr(module, "ARGS", ()),
        module.measure,
        module.judge,
        getattr(module, "fold", None),
        getattr(module, "RULES", ()),
    )


ANALYSES: tuple[Analysis, ...] = (
    _analysis("steps"),
    _analysis("repeats"),
    _analysis("rl_matrix"),
    _analysis("driver_log"),
    _analysis("stragglers"),
    _analysis("imbalance"),
    _analysis("exclusive"),
    _analysis("gpu_time"),
    _analysis("idle"),
    _analysis("edges"),
    _analysis("syncs"),
    _analysis("launch_queues"),
    _analysis("communication"),
    _analysis("transfers"),
    _analysis("fleets"),
    _analysis("micro_batches"),
    _analysis("forward_batches"),
    _analysis("rollout"),
    _analysis("host"),
    _analysis("data_loading"),
    _analysis("optimizer"),
    _analysis("interruptions"),
    _analysis("kernels"),
    _analysis("matmuls"),
    _analysis("unfused"),
    _analysis("operators"),
    _analysis("shapes"),
    _analysis("modules"),
    _analysis("copies"),
    _analysis("attribution"),
    _analysis("memory"),
    _analysis("memory_growth"),
    _analysis("data_quality"),
)
