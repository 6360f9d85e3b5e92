"""Questions asked of traces. A new one is a file with `measure` and `judge`, and one line in `_FILES`.

`measure` turns one Trace into columns of measured tables (keys are added for it), `fold` may merge the
measured frames of one process in time order, `judge` sees only the concatenated `Measurements`; it gives
None where the question does not arise at all, which is not worth a line.
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
    judge: Callable[[Measurements, Thresholds], Section | None]
    fold: Callable[[Frames], Frames] | None = None
    rules: tuple[str, ...] = ()
    """The rules that it judges; see `report.Verdict` for those that abstain."""
    writes: tuple[str, ...] = ()
    """The tables that it measures."""
    metrics: tuple[str, ...] = ()
    """The names of its rows in the table `metrics`."""
    any_source: bool = False
    """Whether it has something to say of every source, also of one that holds nothing of what it reads."""

    def concerns(self, trace: Trace) -> bool:
        """Whether the trace recorded anything that the question is about: of what was not, nothing is measured."""
        return self.any_source or any(map(trace.has, self.needs))


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
        getattr(module, "WRITES", ()),
        getattr(module, "METRICS", ()),
        getattr(module, "ANY_SOURCE", False),
    )


_FILES = (
    "steps",
    "repeats",
    "rl_matrix",
    "driver_log",
    "stragglers",
    "imbalance",
    "exclusive",
    "gpu_time",
    "idle",
    "edges",
    "syncs",
    "launch_queues",
    "communication",
    "transfers",
    "fleets",
    "micro_batches",
    "forward_batches",
    "rollout",
    "host",
    "data_loading",
    "optimizer",
    "interruptions",
    "kernels",
    "matmuls",
    "unfused",
    "operators",
    "shapes",
    "modules",
    "copies",
    "attribution",
    "memory",
    "memory_growth",
    "memory_peak",
    "live_steps",
    "memory_categories",
    "fragmentation",
    "allocator",
    "out_of_memory",
    "leaks",
    "counters",
    "cross_check",
    "data_quality",
)
"""The files of this directory that answer a question, in the order of a report."""

ANALYSES: tuple[Analysis, ...]
"""All questions. Imported when first asked for: a notebook that needs one does not wait for the others."""


def __getattr__(name: str) -> Any:
    """`ANALYSES`, made now."""
    if name != "ANALYSES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = tuple(map(_analysis, _FILES))
    return found
