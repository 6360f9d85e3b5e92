"""Questions asked of traces. A new one is a file that ends with its record `ANALYSIS`, and one line in `QUESTIONS`.

`measure` turns one Trace into columns of measured tables (keys are added for it), `fold` may merge the
measured tables of one process in time order, `judge` sees only the concatenated `Measurements`; it gives
None where the question does not arise at all, which is not worth a line.
Questions do not import one another: what they share is a fact of the process or of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from importlib import import_module
from typing import Any

from tracekit.model.later import Parts, later
from tracekit.model.records import dataclass
from tracekit.model.report import Basis, Chart, Finding, Metric, Section, Sheet, Verdict
from tracekit.model.tables import RAW, SHARED, TABLES, Table, declare
from tracekit.model.tables.arrays import Columns
from tracekit.model.thresholds import Thresholds, shared
from tracekit.model.trace import Measurements, Trace

Measured = Mapping[str, Mapping[str, Any]]
Tables = Mapping[str, Columns]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question: what it reads and writes, its rules with their thresholds, and the functions that answer it."""

    id: str
    title: str
    measure: Callable[[Trace], Measured]
    judge: Callable[[Measurements, Thresholds], Section | None]
    reads: tuple[str, ...] = ()
    """The raw tables that it measures; of a source that recorded none of them nothing is measured."""
    args: tuple[str, ...] = ()
    """The recorded arguments that it reads."""
    writes: tuple[str | Table, ...] = ()
    """The tables that it measures: its own, which stand beside it, and by name those that others fill too."""
    metrics: tuple[str, ...] = ()
    """The names of its rows in the table `metrics`."""
    rests_on: tuple[str, ...] = ()
    """The tables of other questions that it judges from, besides those that every judgement looks at."""
    rules: tuple[str, ...] = ()
    """The rules that it judges, each with a page beside it; see `report.Verdict` for those that abstain."""
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Any])
    """The thresholds of its rules by name, with their defaults, unless several questions share them (`model/thresholds.toml`)."""
    bases: Mapping[str, Basis] = field(default_factory=dict[str, Any])
    """What the savings of its rules rest on, where not on time that was measured (`report.CONFIDENCE`)."""
    fold: Callable[[Tables], Tables] | None = None
    every_step: bool = False
    """Whether it judges all recorded steps, also those that do not count (`job/steps/steady_steps.py`)."""
    whole_recording: bool = False
    """Whether it measures what was recorded before the work began too: start-up (`process/steps/recording_start.py`)."""
    any_source: bool = False
    """Whether it judges every source, even one without the rows that it reads."""
    file: str = ""
    """The name of the user's file that it comes from; nothing for those of tracekit."""

    def __post_init__(self) -> None:
        """Let its own tables be known."""
        for table in self.writes:
            if isinstance(table, Table):
                declare(table)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it measures."""
        return tuple(table if isinstance(table, str) else table.name for table in self.writes)

    def concerns(self, trace: Trace) -> bool:
        """Whether the trace recorded anything that the question is about: of what was not, nothing is measured."""
        return self.any_source or any(map(trace.has, self.reads))

    def skipped(self, reason: str, **parts: Any) -> Section:
        """The section that says why the question has no answer, with those of its parts that are known all the same."""
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
        """The section that answers it: `judged` are findings and verdicts besides those among its parts.

        What gives `metrics`, `sheets`, `caveats` or `charts` is called when they are looked at: the screen of `analyze`
        shows none of them.
        """
        outcomes = tuple(judged)
        section = Section(
            self.id,
            self.title,
            metrics=later(metrics),
            sheets=later(sheets),
            caveats=later(caveats),
            charts=later(charts),
            **parts,
        )
        findings = tuple(outcome for outcome in outcomes if isinstance(outcome, Finding))
        verdicts = tuple(outcome for outcome in outcomes if isinstance(outcome, Verdict))
        return replace(
            section,
            findings=(*findings, *section.findings),
            verdicts=(*verdicts, *section.verdicts),
        )


def question(name: str) -> Analysis:
    """The question that a file answers, by the name of the file; no other file is loaded."""
    path = next(path for path in QUESTIONS if path.partition(".")[2] == name)
    analysis: Analysis = import_module(f"tracekit.analyses.{path}").ANALYSIS
    return analysis


QUESTIONS = (
    "time.steps",
    "time.repeats",
    "time.drift",
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
    "ranks.links",
    "ranks.transfers",
    "ranks.fleets",
    "rl.micro_batches",
    "rl.forward_batches",
    "rl.rollout",
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


@cache
def loaded() -> tuple[Analysis, ...]:
    """All questions; from now on their own tables are known."""
    return tuple(question(path.partition(".")[2]) for path in QUESTIONS)


def thresholds_of(analyses: Iterable[Analysis]) -> Thresholds:
    """The thresholds that questions share, and those of these questions; of one rule those that come first."""
    values = dict(shared().values)
    for analysis in analyses:
        for rule, limits in analysis.thresholds.items():
            values.setdefault(rule, limits)
    return Thresholds(values)


def defaults() -> Thresholds:
    """The thresholds that tracekit ships: those of all its questions."""
    return thresholds_of(loaded())


def measured_tables() -> tuple[Table, ...]:
    """The measured tables: those that questions share, those of each question in turn, those of the user's own."""
    of_questions = (table for analysis in loaded() for table in analysis.writes)
    own = (table for table in of_questions if isinstance(table, Table))
    known = (table for table in TABLES.values() if table not in RAW)
    return tuple(dict.fromkeys((*SHARED, *own, *known)))


def __getattr__(name: str) -> Any:
    """`ANALYSES`, made now."""
    if name != "ANALYSES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded()
