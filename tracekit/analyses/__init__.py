"""The analyses: one question about a run per file, with its rules.

To add one, write a file that ends with its record `ANALYSIS`, and add a line to `QUESTIONS`.
`measure` turns one Trace into columns of measured tables; the caller adds the key columns. The optional `fold` merges
the measured tables of one process in time order. `judge` sees only the concatenated `Measurements`. It returns None
where the question does not apply and no section is wanted.
Analyses do not import one another: shared code belongs in `process` or `job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from importlib import import_module
from typing import Any

from tracekit.model.records import dataclass
from tracekit.model.report import Chart, Finding, Metric, Parts, Section, Sheet, Verdict, make_lazy_sequence
from tracekit.model.tables import RAW, SHARED, TABLES, Table, register_table
from tracekit.model.tables.arrays import Columns
from tracekit.model.thresholds import Thresholds, load_shared_thresholds
from tracekit.model.trace import Measurements, Trace

Measured = Mapping[str, Mapping[str, Any]]
Tables = Mapping[str, Columns]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question: the tables it reads and writes, its rules with their thresholds, and the functions that answer it."""

    id: str
    title: str
    measure: Callable[[Trace], Measured]
    judge: Callable[[Measurements, Thresholds], Section | None]
    reads: tuple[str, ...] = ()
    """Raw tables that it measures. A source without any of them is skipped."""
    args: tuple[str, ...] = ()
    """Recorded arguments that it reads."""
    writes: tuple[str | Table, ...] = ()
    """Measured tables: `Table` for its own, which are declared in the same file, and names for shared ones."""
    metrics: tuple[str, ...] = ()
    """Names of its rows in the table `metrics`."""
    rests_on: tuple[str, ...] = ()
    """Tables of other analyses that it judges from, in addition to those that every `judge` reads."""
    rules: tuple[str, ...] = ()
    """Rules that it judges; each has a page in the same folder. See `report.Verdict` for rules that abstain."""
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Any])
    """Default thresholds by rule and name. Thresholds that several analyses share are in `model/thresholds.toml`."""
    fold: Callable[[Tables], Tables] | None = None
    every_step: bool = False
    """Whether it judges all recorded steps, including those that do not count (`job/steps/steady_steps.py`)."""
    whole_recording: bool = False
    """Whether it also measures start-up, the part before the work begins (`process/steps/recording_start.py`)."""
    any_source: bool = False
    """Whether it judges every source, including those without the tables in `reads`."""
    file: str = ""
    """Path of the user's file that defines it; empty for tracekit's own analyses."""

    def __post_init__(self) -> None:
        """Declare its own tables."""
        for table in self.writes:
            if isinstance(table, Table):
                register_table(table)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it measures."""
        return tuple(table if isinstance(table, str) else table.name for table in self.writes)

    def concerns(self, trace: Trace) -> bool:
        """Check whether the trace has any table that the analysis reads."""
        return self.any_source or any(trace.has(table) for table in self.reads)

    def skipped(self, reason: str, **parts: Any) -> Section:
        """Make the section of an analysis without an answer, with the reason and any known parts."""
        return Section(self.id, self.title, "skipped", reason, **parts)

    def answered(
        self,
        judged: Iterable[Finding | Verdict | None] = (),
        metrics: Parts[Metric] = (),
        sheets: Parts[Sheet] = (),
        caveats: Parts[str] = (),
        charts: Parts[Chart] = (),
        **parts: Any,
    ) -> Section:
        """Make the section of an answered analysis; `judged` adds findings and verdicts to those in `parts`.

        Callables given as `metrics`, `sheets`, `caveats` or `charts` are called on first use: the terminal output of
        `analyze` shows none of them.
        """
        outcomes = tuple(judged)
        section = Section(
            self.id,
            self.title,
            metrics=make_lazy_sequence(metrics),
            sheets=make_lazy_sequence(sheets),
            caveats=make_lazy_sequence(caveats),
            charts=make_lazy_sequence(charts),
            **parts,
        )
        findings = tuple(outcome for outcome in outcomes if isinstance(outcome, Finding))
        verdicts = tuple(outcome for outcome in outcomes if isinstance(outcome, Verdict))
        return replace(section, findings=(*findings, *section.findings), verdicts=(*verdicts, *section.verdicts))


def load_analysis(name: str) -> Analysis:
    """Load one analysis by the name of its file; no other analysis is imported."""
    path = next(path for path in QUESTIONS if path.partition(".")[2] == name)
    analysis: Analysis = import_module(f"tracekit.analyses.{path}").ANALYSIS
    return analysis


QUESTIONS = (
    "time.steps",
    "time.repeats",
    "time.drift",
    "time.rl_matrix",
    "rl.driver_log",
    "run_log.stages",
    "run_log.waits",
    "run_log.generation",
    "run_log.training",
    "run_log.step_times",
    "run_log.host_memory",
    "ranks.stragglers",
    "ranks.imbalance",
    "time.exclusive",
    "time.gpu_time",
    "time.idle",
    "time.host_pauses",
    "time.edges",
    "time.syncs",
    "time.launch_queues",
    "ranks.communication",
    "ranks.links",
    "ranks.transfers",
    "ranks.fleets",
    "rl.micro_batches",
    "rl.forward_batches",
    "rl.rollout",
    "engines.engine_log",
    "engines.requests",
    "hangs.hang",
    "hangs.late_rank",
    "rl.ray_tasks",
    "time.host",
    "time.cpu",
    "time.data_loading",
    "ops.optimizer",
    "time.interruptions",
    "time.start_up",
    "time.garbage_collection",
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
    "memory.card_holders",
    "memory.live_steps",
    "memory.memory_categories",
    "memory.fragmentation",
    "memory.reserved_growth",
    "memory.allocator",
    "memory.out_of_memory",
    "memory.leaks",
    "trust.counters",
    "trust.cross_check",
    "trust.data_quality",
)
"""Files that define an analysis, relative to this folder, in the order of a report."""

ANALYSES: tuple[Analysis, ...]
"""All analyses, imported on first access: a notebook that needs one does not wait for the others."""


@cache
def load_all_analyses() -> tuple[Analysis, ...]:
    """Load all analyses, which declares their tables."""
    return tuple(load_analysis(path.partition(".")[2]) for path in QUESTIONS)


def merge_thresholds(analyses: Iterable[Analysis]) -> Thresholds:
    """Merge the shared thresholds with those of these analyses; the first analysis to define a rule wins."""
    values = dict(load_shared_thresholds().values)
    for analysis in analyses:
        for rule, limits in analysis.thresholds.items():
            values.setdefault(rule, limits)
    return Thresholds(values)


def load_default_thresholds() -> Thresholds:
    """Load the default thresholds of all analyses."""
    return merge_thresholds(load_all_analyses())


def list_measured_tables() -> tuple[Table, ...]:
    """List the measured tables: shared ones, then those of each analysis in turn, then those of user analyses."""
    of_questions = (table for analysis in load_all_analyses() for table in analysis.writes)
    own = (table for table in of_questions if isinstance(table, Table))
    known = (table for table in TABLES.values() if table not in RAW)
    return tuple(dict.fromkeys((*SHARED, *own, *known)))


def __getattr__(name: str) -> Any:
    """Load `ANALYSES` on first access."""
    if name != "ANALYSES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_all_analyses()
