"""Result of a comparison: plain, immutable and JSON-serializable. It does not depend on rendering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tracekit.compare.critical_path import CriticalPathChange
from tracekit.compare.memory_change import MemoryChange
from tracekit.compare.wall_time.attribution_rows import Attribution
from tracekit.model.display import Displayed, import_display
from tracekit.model.inputs.timeline import Timeline
from tracekit.model.records import dataclass
from tracekit.model.report import Better, Gate, Report, Unit
from tracekit.model.system.lazy_pandas import pd

SCHEMA = "tracekit.compare/1"
"""Version of the JSON form: additions keep it, changes of meaning raise it."""

Word = Literal[
    "improvement",
    "regression",
    "no change",
    "inconclusive",
    "not comparable",
    "only before",
    "only after",
    "same",
    "changed",
]
"""Verdicts: `same` and `changed` apply to exact numbers, `only …` to metrics of one side only."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric on both sides: means over runs and the speedup of the second side.

    - `ratio` is first over second, with bounds `low` and `high`; all are None if there is no ratio.
    - `difference` is second minus first. `label` names the coverage of the interval.
    - `detectable` is the smallest change that would have been called a regression in 80 % of cases. Only
      the step and its stages have it; it is None if these runs allow no verdict.
    - `difference_low` and `difference_high` bound `difference`; only metrics of engines have them, because
      theirs may be zero.
    - `reason` explains an inconclusive `word` in a few words; `notes` have the details.
    - `step_ratio`, `step_low` and `step_high` are the step speedup from a stage alone (`compare.amdahl`).
    """

    name: str
    title: str
    role: str | None
    stage: str | None
    unit: Unit
    better: Better
    word: Word
    base: float | None
    opt: float | None
    difference: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    grand_ratio: float | None = None
    median_ratio: float | None = None
    label: str = ""
    detectable: float | None = None
    base_runs: int = 0
    base_steps: int = 0
    opt_runs: int = 0
    opt_steps: int = 0
    notes: tuple[str, ...] = ()
    step_ratio: float | None = None
    step_low: float | None = None
    step_high: float | None = None
    reason: str = ""
    difference_low: float | None = None
    difference_high: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A property that should be equal on both sides and is not; a blocking one forbids a verdict."""

    name: str
    base: str
    opt: str
    blocking: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class ExcludedStep:
    """A step that is excluded from the comparison, and the reason."""

    side: str
    run: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictOutlook:
    """Probability of each verdict if the second side were slower by `change`, for these runs or for more.

    The probabilities are averaged over the spreads that these runs leave possible. `at_least` and `at_most` bound
    that of a regression for 80 % of them; older versions saved no `at_most`.
    """

    runs: str
    change: float
    regression: float
    no_change: float
    improvement: float
    inconclusive: float
    at_least: float
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class LengthChange:
    """One stage of two logs (None: the step), times in ns: raw change, per token, and at equal length with its interval.

    Changes are shares: 0.05 is 5 % longer. `change` is None with too few steps for an interval.
    """

    stage: str | None
    base: float
    opt: float
    raw: float
    per_token: float
    change: float | None
    low: float | None
    high: float | None
    word: Word
    note: str = ""


@dataclass(frozen=True, slots=True)
class ComparedLog:
    """One log of a side, times in ns per step: as logged, and at the mean length of all logs (None: lengths unknown).

    `tokens` are those of a step; `steps` are the steps that count.
    """

    side: str
    run: str
    steps: int
    tokens: float | None
    step: float
    at_equal_length: float | None
    trainer: str = ""
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class LengthComparison:
    """Logs of two sides at equal length, the step first.

    `overlap` is the intersection of the ranges of tokens per step over their union. `at` is the number of tokens at which
    both are compared. `differences` forbid a verdict. `by_run`: the intervals are by run, since a side has several logs.
    """

    changes: tuple[LengthChange, ...]
    overlap: float
    base_tokens: float
    opt_tokens: float
    at: float
    differences: tuple[Difference, ...] = ()
    by_run: bool = False


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """Profiler overhead of a side: mean step with and without profiler, in ns, and their ratio."""

    side: str
    profiled: float
    unprofiled: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class StepValue:
    """Duration of one step, and whether it counts."""

    side: str
    run: str
    step: int | None
    value: float
    counted: bool


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Displayed):
    """The comparison of two sides; `verdict` is that of `headline`, the step, or "not comparable".

    If both sides have memory snapshots but no steps, `headline` is peak memory in bytes.

    - `changes` lists every metric, the step first.
    - `memory` compares the snapshots; None if a side has none.
    - `reading` describes how the inputs were interpreted, `warnings` lists caveats.
    - `needed` lists data that would allow a stronger verdict, `outlook` the probability of each verdict.
    - `critical` compares the critical paths; None unless the graphs of both sides were built.
    - `logs` lists the logs if a side has several.
    - `sessions_apart`: all runs of one side ran before all of the other, so the change cannot be separated
      from other changes in between.
    """

    tool_version: str
    base: str
    opt: str
    verdict: Word
    headline: Change
    changes: tuple[Change, ...] = ()
    needed: str = ""
    differences: tuple[Difference, ...] = ()
    dropped: tuple[ExcludedStep, ...] = ()
    reading: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    simulated: bool = False
    min_effect: float = 0.0
    level: float = 0.95
    outlook: tuple[VerdictOutlook, ...] = ()
    sessions_apart: bool = False
    overhead: tuple[ProfilerOverhead, ...] = ()
    steps: tuple[StepValue, ...] = ()
    gates: tuple[Gate, ...] = ()
    inconclusive_fails: bool = False
    untested_passes: bool = False
    origin: Attribution | None = None
    memory: MemoryChange | None = None
    lengths: LengthComparison | None = None
    logs: tuple[ComparedLog, ...] = ()
    critical: CriticalPathChange | None = None
    schema: str = SCHEMA
    timeline: Timeline | None = None
    """Data of both sides for the page only; JSON does not have it."""

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every table of the comparison as a pandas frame: those of `report().tables`."""
        return self.report().tables

    def report(self) -> Report:
        """Convert the comparison to a report, which every renderer accepts."""
        report: Report = import_display().build_comparison_report(self)
        return report
