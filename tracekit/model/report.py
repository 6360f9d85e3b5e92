"""The report model: plain, immutable, JSON-able conclusions, and the only input of renderers.

Table cells are plain values in the unit of their column; only `render` rounds and scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import Any, Literal, TypeVar

from tracekit.model.display import Displayed, import_display
from tracekit.model.errors import make_unknown_name_error
from tracekit.model.inputs.timeline import Timeline
from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd

SCHEMA = "tracekit.report/2"
"""Version of the JSON form: additions keep it, a change of meaning raises it."""

RULES = "rules"
"""Id of the section with the verdict of every rule; absent if no selected question has a rule."""

Cell = int | float | str | bool | None
Unit = Literal["", "ns", "bytes", "ratio", "factor", "count", "gb_per_s", "text", "id"]
"""Unit of a number.

`ratio` is 0 to 1 and shown as a percentage, `factor` is shown as 1.12×, `id` is a number that identifies something,
`""` is a bare number.
"""
Better = Literal["lower", "higher", "neither"]
Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
Status = Literal["ok", "skipped", "failed"]
Answer = Literal["fired", "failed", "clear", "not applicable", "insufficient data"]
"""Result of a rule: a finding, none, or an abstention with its reason; `failed` is an error of tracekit."""
Outcome = Literal["pass", "fail", "inconclusive", "not comparable", "not tested", "accepted", "expired"]
"""Result of a gate rule: `not tested` lacks the metric or a baseline, `expired` is an outdated exception."""
ChartKind = Literal[
    "gantt", "bars", "heatmap", "matrix", "lines", "histogram", "intervals", "strips", "waterfall", "extents", "icicle"
]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number with its unit and the better direction; `low` and `high` bound it if known.

    `bounds` names the population that they describe: `steps`.
    """

    name: str
    value: int | float | None
    unit: Unit
    better: Better = "neither"
    low: int | float | None = None
    high: int | float | None = None
    label: str = ""
    bounds: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look; None means everywhere, or unknown.

    `start_ns` and `end_ns` are instants of the recording's own clock, as in its tables: ns since the Unix epoch where the
    recording knows the date. Subtract the offset in `Report.clocks` to compare ranks.
    """

    source: str | None = None
    role: str | None = None
    rank: int | None = None
    device: int | None = None
    step: int | None = None
    stage: str | None = None
    name: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """One interval of the recording that shows a finding: its worst instance, or the median one.

    `cost` is the time (or memory, see `unit`) that the rule counts in this interval, and orders the instances. `place` has
    both instants.
    """

    which: Literal["worst", "median"]
    place: Place
    cost: int
    unit: Literal["ns", "bytes"] = "ns"


@dataclass(frozen=True, slots=True)
class Saving:
    """Time that the fix of a finding takes off the mean step, in ns: predicted by replaying the run with its changes.

    Only `tracekit.replay` makes one. Fixes are planned greedily: `number` is the place in the plan of the run, from 1.

    - `alone_ns`: with this fix only; `low_ns` and `high_ns` are the least and the most over the recorded steps.
    - `after_ns`: on top of the fixes with a lower number. `step_ns` is the step then; `before_ns` the step before it.
    - `last_ns`: once all other fixes are made.
    - `behind`: number of the one earlier fix that leaves this one little to save.
    """

    number: int
    alone_ns: float
    after_ns: float
    last_ns: float
    before_ns: float
    step_ns: float
    recorded_ns: float
    low_ns: float
    high_ns: float
    behind: int | None = None

    @property
    def ratio(self) -> float:
        """The most that the fix takes off the step, alone or with others, as a share of the recorded step."""
        most = max(self.alone_ns, self.after_ns, self.last_ns)
        return most / self.recorded_ns if self.recorded_ns else 0.0


@dataclass(frozen=True, slots=True)
class RunReplay:
    """The replay of one run: its recorded step, the step with all planned fixes, and how well it explains the run.

    `unit` names what is predicted: a step or a capture. `residual_ratio` is the share of the critical path that no dependency
    explains, `unexplained_ratio` that of all time; `unexplained_part` describes its largest part. `refusal` is the reason why nothing is predicted; `step_ns` is None then,
    and where no finding names a change. `cautions` are limits of the predictions.
    """

    run: str | None
    unit: str
    recorded_ns: float
    step_ns: float | None
    residual_ratio: float
    unexplained_ratio: float
    unexplained_part: str = ""
    refusal: str = ""
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Displayed):
    """One claim with its evidence, advice, places, and the saving of its fix per step.

    `cost_ns` is the time per step that the finding is about, and `cost_ratio` its share of the step: not a saving. `changes`
    describe what the fix does to the run, as `tracekit whatif --change` reads them; `saving` is the step that the replay
    predicts with them. Both are missing where the rule names no change or the run cannot be replayed. `rank` is the place in
    the report, from 1. `is_catch_all` marks a finding that names no cause; it ranks last. If one finding covers several stages, `parts` lists them, largest
    first; their costs add up to its own. `instances` are the worst and the median interval that the rule judged, the worst
    first; a finding about the recording itself has none.
    """

    rule: str
    severity: Severity
    claim: str
    advice: str
    evidence: tuple[Metric, ...] = ()
    places: tuple[Place, ...] = ()
    cost_ns: int | None = None
    cost_ratio: float | None = None
    caveats: tuple[str, ...] = ()
    is_catch_all: bool = False
    parts: tuple[Finding, ...] = ()
    changes: tuple[str, ...] = ()
    saving: Saving | None = None
    rank: int | None = None
    instances: tuple[Instance, ...] = ()

    @property
    def importance(self) -> tuple[bool, bool, int, int, str, str]:
        """The sort key without ranks: cost, then catch-alls, then those without cost."""
        cost_ns = self.cost_ns or 0
        return not cost_ns, self.is_catch_all, -cost_ns, SEVERITIES.index(self.severity), self.rule, self.claim


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one rule for one run (None: all runs); `reason` explains an abstention or a clear result.

    An abstention that matters has a price: `price_ns` is the time per step that it concerns (`price_ratio`: its share of
    the step), `claim` the suspected finding without that time, and `needs` the missing evidence.
    """

    rule: str
    answer: Answer
    reason: str = ""
    run: str | None = None
    price_ns: int | None = None
    price_ratio: float | None = None
    claim: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of one gate rule for one metric.

    `value` is checked against `limit`, both in `unit`: it is a change with the interval `low` to `high`, or the second
    side's number for a budget. `base` and `opt` are in `metric_unit`. `point` means that only the estimate was checked.
    Only rules of severity `error` decide the gate.
    """

    rule: str
    metric: str
    outcome: Outcome
    severity: Literal["error", "warn"]
    claim: str
    limit: float
    unit: Unit
    metric_unit: Unit
    value: float | None = None
    low: float | None = None
    high: float | None = None
    base: float | None = None
    opt: float | None = None
    point: bool = False
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a displayed table: `name` is its id, `title` its text."""

    name: str
    title: str
    unit: Unit = "text"
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Marks a table with one row per rank: pages group similar ranks, while JSON and CSV contain all rows.

    `value` names the column that distinguishes ranks, and `worst` the end of it that comes first. `member` names the
    column of the rank (or process), and `apart` the columns by which ranks are kept separate. `kind` names one more whose
    numbers do not matter: GPU 0 and GPU 7 are of the same kind.
    """

    value: str
    worst: Literal["high", "low"] = "high"
    member: str = "rank"
    apart: tuple[str, ...] = ("run", "role", "replica")
    kind: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Sheet(Displayed):
    """A table to display, rows in order of importance; `omitted` counts rows left out of the report."""

    name: str
    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    omitted: int = 0
    caption: str = ""
    ranked: Ranked | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as data; HTML and image files draw it in the same way.

    `rows` and `series` are names; a mark refers to them by index. Marks by kind:
    gantt (row, series, start, end): bars on one time axis, one line per row;
    bars (row, series, value): stacked bars, one per row;
    heatmap (row, start, end, value): colored cells, values in `unit`, None if unknown;
    matrix (row, series, value): the same with one column per series instead of an axis;
    lines (series, x, y); histogram (series, low, high, value): stacked over [low, high).
    intervals (row, series, low, mid, high): factors on one log axis with a line at 1, and the band within the share
    `within` of it shaded; low and high are None without an interval;
    strips (row, series, x, number, counted): one dot per value, hollow if `counted` is 0, next to the mean of the row's
    others; `number` names the dot (its step);
    waterfall (row, series, start, end): changes that lead from one amount to another, each bar starting where the last
    ended; one that starts at 0 is an amount, the others are changes;
    extents (row, series, start, end): parts of an amount side by side, one line per row;
    icicle (row, series, start, end): a tree, each bar above its parts; a row is a depth.
    `unit` applies to values and y, `x_unit` to x, start and end; times are ns from the chart's zero.
    """

    id: str
    title: str
    kind: ChartKind
    marks: tuple[tuple[int | float | None, ...], ...]
    series: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    unit: Unit = "ns"
    x_unit: Unit = "ns"
    caption: str = ""
    omitted: int = 0
    """Marks left out to bound the size, smallest first."""
    within: float = 0.0
    run: str | None = None
    step: int | None = None
    """The run and the step of the chart, if it shows a single one."""
    roles: tuple[str | None, ...] = ()
    ranks: tuple[int | None, ...] = ()
    """Role and rank of each row, if rows are processes."""


@dataclass(frozen=True, slots=True, repr=False)
class Section(Displayed):
    """The answer to one question, or the reason why there is none."""

    id: str
    title: str
    status: Status = "ok"
    reason: str = ""
    metrics: tuple[Metric, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    findings: tuple[Finding, ...] = ()
    caveats: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    charts: tuple[Chart, ...] = ()


NOT_IN_JSON = frozenset(("timeline", "stage_order"))
"""Fields of a report that JSON does not have."""

MADE_LATER = ("metrics", "sheets", "caveats", "charts")
"""Fields of a section that the first screen does not show; they may be lazy sequences."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A note for display: missing, damaged or odd data, and its source."""

    severity: Literal["info", "warning", "data_loss", "error"]
    code: str
    message: str
    source: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """The kind of recording of some sources, with advice and one command where there is something to do.

    `kind` is a code of `recording_kinds.KINDS`. `sources` names at most 50 of the `source_count` sources. `data` contains
    the counts behind the sentence by name; counts of single categories, devices and ops are named `name label`.
    """

    kind: str
    sentence: str
    advice: str = ""
    command: str = ""
    sources: tuple[str, ...] = ()
    source_count: int = 0
    data: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The clock of one process: subtract `offset_ns` from its times to compare them with those of processes of the same `group`.

    The offset is 0 where the clocks agree within `uncertainty_ns`, and where processes share a host.
    """

    run: str | None
    role: str | None
    replica: int | None
    rank: int | None
    offset_ns: int
    uncertainty_ns: int
    group: int


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """Numbers of the steps of one run on which means and findings are based: without warm-up and incomplete steps.

    `left_out` lists the numbers of the other recorded steps. Steps without a number are in neither.
    """

    run: str | None
    numbers: tuple[int, ...]
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Report(Displayed):
    """All conclusions about a set of sources.

    `identity` contains the facts of the first line (run, ranks, steps, hardware …) in order, `headline` the numbers of
    the second, and `overview` the table shown first. `unseen` lists what was not analyzed and why. `values` contains the
    metrics of every process and step. Two reports are comparable if their `fingerprint` agrees. `answer` is the first
    sentence if numbers alone do not answer, `basis` its evidence, and `cautions` lists caveats, most severe first.
    `contents` pairs runs with the content digests of their files. `spans` are the first and last instant of each run
    in ns since the Unix epoch, without runs of another clock. `files` counts files by state: `read`, `refused`,
    `unreadable` and `duplicate`. `replays` has the predictions of each replayed run. `clocks` are the offsets between ranks,
    as far as collectives determine them, and `counted_steps` the steps that count.
    """

    title: str
    tool_version: str
    identity: tuple[str, ...] = ()
    headline: tuple[Metric, ...] = ()
    overview: Sheet | None = None
    sections: tuple[Section, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unseen: tuple[str, ...] = ()
    values: Sheet | None = None
    fingerprint: tuple[tuple[str, str], ...] = ()
    answer: str = ""
    basis: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    contents: tuple[tuple[str, str], ...] = ()
    spans: tuple[tuple[str, int, int], ...] = ()
    files: tuple[tuple[str, int], ...] = ()
    recordings: tuple[Recording, ...] = ()
    replays: tuple[RunReplay, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()
    counted_steps: tuple[StepNumbers, ...] = ()
    schema: str = SCHEMA
    timeline: Timeline | None = None
    """For the page only."""
    stage_order: tuple[str, ...] = field(default=(), compare=False)
    """Stages in order of appearance, for their colors in a terminal only."""

    @property
    def asks_rules(self) -> bool:
        """Whether any selected question has a rule."""
        return any(section.id == RULES for section in self.sections)

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every table of the report as a pandas frame, by the name of the file that `--export csv` writes.

        Values are raw: ns, bytes, ratios of 0 to 1; a unit is the suffix of the column's name. `attrs` of a frame contains
        `title`, `caption`, `omitted` (rows that no output has), and `units` and `docs` by column.
        """
        frames: Mapping[str, pd.DataFrame] = import_display().make_report_tables(self)
        return frames

    def section(self, id: str) -> Section:  # noqa: A002 - the public name
        """Get the section with this id; raise `UnknownNameError`, a `KeyError` that lists all ids, if there is none."""
        sections = {section.id: section for section in self.sections}
        if id not in sections:
            raise make_unknown_name_error("no section", id, "in the report", sections)
        return sections[id]

    def figure(self, chart: str = "", axes: Any = None) -> Any:
        """Draw one chart on matplotlib axes, new ones unless given, and return them.

        `chart` is the id of a chart, or of a section (its first chart). Raises `TracekitError` that lists the ids for any
        other, and if matplotlib is missing.
        """
        return import_display().draw_chart(self, chart, axes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings by rank; without ranks by cost, then catch-alls, then those without cost, by severity."""
        findings = chain.from_iterable(section.findings for section in self.sections)
        return tuple(
            sorted(findings, key=lambda finding: (finding.rank is None, finding.rank or 0, finding.importance))
        )

    @property
    def unproven(self) -> tuple[Verdict, ...]:
        """Abstentions with a price, most expensive first."""
        verdicts = chain.from_iterable(section.verdicts for section in self.sections)
        priced = (v for v in verdicts if v.price_ns and v.claim and v.answer != "fired")
        return tuple(sorted(priced, key=_make_price_key))


def _make_price_key(verdict: Verdict) -> tuple[int, str, str]:
    """Make the sort key of abstentions."""
    return -(verdict.price_ns or 0), verdict.rule, verdict.run or ""


T = TypeVar("T")

Parts = Sequence[T] | Callable[[], Iterable[T]]
"""Parts that exist, or a function that makes them."""


class LazySequence(Sequence[T]):
    """A sequence whose parts are made on first access."""

    __slots__ = ("_make", "_parts")

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        """Store the function that makes the parts; it is called until it succeeds once."""
        self._make: Callable[[], Iterable[T]] | None = make
        self._parts: tuple[T, ...] = ()

    def materialize(self) -> tuple[T, ...]:
        """Make the parts if needed; re-raises on each access what making them raises."""
        if self._make is not None:
            self._parts = tuple(self._make())
            self._make = None
        return self._parts

    def __len__(self) -> int:
        """Count the parts."""
        return len(self.materialize())

    def __iter__(self) -> Iterator[T]:
        """Iterate over the parts."""
        return iter(self.materialize())

    def __getitem__(self, index: Any) -> Any:
        """Get one part, or the parts of a slice."""
        return self.materialize()[index]

    def __eq__(self, other: object) -> bool:
        """Compare the parts with those of another lazy sequence, or with a tuple."""
        return self.materialize() == (other.materialize() if isinstance(other, LazySequence) else other)

    def __hash__(self) -> int:
        """Hash the parts."""
        return hash(self.materialize())

    def __repr__(self) -> str:
        """Format the parts as a tuple."""
        return repr(self.materialize())

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[tuple[T, ...]]]:
        """Pickle as the tuple of the parts."""
        return tuple, (self.materialize(),)


def make_lazy_sequence(parts: Parts[T]) -> tuple[T, ...]:
    """Make a tuple of the parts, or a lazy sequence if a function makes them."""
    made: Any = LazySequence(parts) if callable(parts) else tuple(parts)
    return made  # type: ignore[no-any-return]
