"""What a comparison concludes: plain, immutable, JSON-able. Nothing here knows how it is shown."""

from __future__ import annotations

from typing import Literal

from tracekit.compare.memory_change import MemoryChange
from tracekit.compare.origins import Attribution
from tracekit.model.display import Displayed, display
from tracekit.model.records import dataclass
from tracekit.model.report import Better, Gate, Report, Unit

SCHEMA = "tracekit.compare/1"
"""Version of the JSON form: additions keep it, a change of meaning raises it."""

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
"""`same` and `changed` are of exact numbers, `only …` of what one side alone holds."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric on both sides: means over runs, and how many times less the second takes.

    `ratio` is first over second with `low` and `high`, all None where there is none; `difference` second less
    first. `label` says what the interval covers, `detectable` the least change that would have been called a regression
    in 80 % of cases (of the step and its stages; None where these runs may say nothing).
    `step_ratio` with `step_low` and `step_high` is what a stage alone makes of the step (`compare.amdahl`).
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


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that should be alike on both sides and is not; a blocking one forbids a verdict."""

    name: str
    base: str
    opt: str
    blocking: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class LeftStep:
    """A step that does not count, and why."""

    side: str
    run: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """How probable each verdict is, were the second side slower by `change`: for the runs at hand, or for more of them.

    The four words by the spread as it was estimated; `at_least` is the first of them by the largest spread that the
    estimate leaves possible.
    """

    runs: str
    change: float
    regression: float
    no_change: float
    improvement: float
    inconclusive: float
    at_least: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the profiler made of the steps of a side: mean step with it and without, ns, and their ratio."""

    side: str
    profiled: float
    unprofiled: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class StepValue:
    """How long one step took, and whether it counts."""

    side: str
    run: str
    step: int | None
    value: float
    counted: bool


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Displayed):
    """Two sides compared; `verdict` is that of `headline`, the step, or "not comparable".

    Of sides without a step of which both have memory snapshots, `headline` is the peak of memory, in bytes.
    `memory` is what those snapshots tell, None where a side has none. `changes` hold every metric, the step
    first. `reading` says how the inputs were understood, `warnings` what to keep in mind, `needed` what it
    would take to say more, `outlook` how probable each verdict was. `sessions_apart`: all runs of one side ran before
    all of the other, so what else changed in between cannot be told from the change.
    """

    tool_version: str
    base: str
    opt: str
    verdict: Word
    headline: Change
    changes: tuple[Change, ...] = ()
    needed: str = ""
    differences: tuple[Difference, ...] = ()
    dropped: tuple[LeftStep, ...] = ()
    reading: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    simulated: bool = False
    min_effect: float = 0.0
    level: float = 0.95
    outlook: tuple[Outlook, ...] = ()
    sessions_apart: bool = False
    overhead: tuple[Overhead, ...] = ()
    steps: tuple[StepValue, ...] = ()
    gates: tuple[Gate, ...] = ()
    inconclusive_fails: bool = False
    untested_passes: bool = False
    origin: Attribution | None = None
    memory: MemoryChange | None = None
    schema: str = SCHEMA

    def report(self) -> Report:
        """The comparison as a report, which every renderer takes."""
        report: Report = display().report_comparison(self)
        return report
