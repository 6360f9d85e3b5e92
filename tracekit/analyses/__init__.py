"""Questions asked of traces. A new one is a file with `measure` and `judge`, and one line in `_FILES`.

`measure` turns one Trace into columns of measured tables (keys are added for it), `fold` may merge the
measured tables of one process in time order, `judge` sees only the concatenated `Measurements`; it gives
None where the question does not arise at all, which is not worth a line.
Analyses do not import one another: what they share is in `derived`, `pooling` and `sheets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tracekit.model.report import Section
from tracekit.model.tables.arrays import Columns
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

Measured = Mapping[str, Mapping[str, Any]]
Tables = Mapping[str, Columns]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question: the tables and arguments it reads, and the functions that answer it."""

    id: str
    title: str
    needs: tuple[str, ...]
    args: tuple[str, ...]
    measure: Callable[[Trace], Measured]
    judge: Callable[[Measurements, Thresholds], Section | None]
    fold: Callable[[Tables], Tables] | None = None
    rules: tuple[str, ...] = ()
    """The rules that it judges; see `report.Verdict` for those that abstain."""
    writes: tuple[str, ...] = ()
    """The tables that it measures."""
    metrics: tuple[str, ...] = ()
    """The names of its rows in the table `metrics`."""
    any_source: bool = False
    """Whether it has something to say of every source, also of one that holds nothing of what it reads."""

    rests_on: tuple[str, ...] = ()
    """The tables of other questions that it judges from, besides those that every judgement looks at."""

    def concerns(self, trace: Trace) -> bool:
        """Whether the trace recorded anything that the question is about: of what was not, nothing is measured."""
        return self.any_source or any(map(trace.has, self.needs))


def question(name: str) -> Analysis:
    """The question that a file answers, by the name of the file; no other file is loaded."""
    folder = next(file.partition(".")[0] for file in _FILES if file.partition(".")[2] == name)
    module = import_module(f"tracekit.analyses.{folder}.{name}")
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
        getattr(module, "RESTS_ON", ()),
    )


_FILES = (
    "time.steps",
    "time.repeats",
    "time.rl_matrix",
    "rl.driver_log",
    "ranks.stragglers",
    "ranks.imbalance",
    "time.exclusive",
    "time.gpu_time",
    "time.idle",
    "time.edges",
    "time.syncs",
    "time.launch_queues",
    "ranks.communication",
    "ranks.transfers",
    "ranks.fleets",
    "rl.micro_batches",
    "rl.forward_batches",
    "rl.rollout",
    "time.host",
    "time.data_loading",
    "ops.optimizer",
    "time.interruptions",
    "ops.kernels",
    "ops.matmuls",
    "ops.unfused",
    "ops.operators",
    "ops.shapes",
    "ops.modules",
    "ops.copies",
    "time.attribution",
    "memory.memory",
    "memory.memory_growth",
    "memory.memory_peak",
    "memory.live_steps",
    "memory.memory_categories",
    "memory.fragmentation",
    "memory.allocator",
    "memory.out_of_memory",
    "memory.leaks",
    "trust.counters",
    "trust.cross_check",
    "trust.data_quality",
)
"""The files below this directory that answer a question, in the order of a report."""

ANALYSES: tuple[Analysis, ...]
"""All questions. Imported when first asked for: a notebook that needs one does not wait for the others."""


def __getattr__(name: str) -> Any:
    """`ANALYSES`, made now."""
    if name != "ANALYSES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = tuple(question(file.partition(".")[2]) for file in _FILES)
    return found
