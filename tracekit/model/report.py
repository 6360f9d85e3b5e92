"""What is concluded: plain, immutable, JSON-able. Renderers see nothing else.

A table's cells are plain values in the unit of their column; only `render` rounds and scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from tracekit.model.display import Displayed, display
from tracekit.model.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "tracekit.report/1"
"""Version of the JSON form: additions keep it, a change of meaning raises it."""

RULES = "rules"
"""The id of the section on what every rule says; where no question with a rule was asked, there is none."""

Cell = int | float | str | bool | None
Unit = Literal["", "ns", "bytes", "ratio", "factor", "count", "gb_per_s", "text", "id"]
"""`ratio` is 0 to 1 and shown as per cent, `factor` as 1.12×; `id` is a number that names something; `""` a bare number."""
Better = Literal["lower", "higher", "neither"]
Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
Status = Literal["ok", "skipped", "failed"]
Answer = Literal["fired", "failed", "clear", "not applicable", "insufficient data"]
"""What a rule says: a finding, none, or that it abstains and why; `failed` is an error of tracekit."""
Basis = Literal["measured", "modelled", "bound"]
"""What the saving of a rule rests on."""
CONFIDENCE: Mapping[Basis, float] = {"measured": 1.0, "modelled": 0.8, "bound": 0.6}
"""How much of the saving the evidence supports.

`measured`: the lost time itself was recorded, and its cause. `modelled`: the saving compares with a model (equal
ranks, the best rate seen). `bound`: an upper bound; how much of it comes back is not known.
"""
Outcome = Literal[
    "pass",
    "fail",
    "inconclusive",
    "not comparable",
    "not tested",
    "accepted",
    "expired",
]
"""What a rule of a gate says: `not tested` lacks the metric or a baseline, `expired` is an old exception."""
ChartKind = Literal[
    "gantt",
    "bars",
    "heatmap",
    "matrix",
    "lines",
    "histogram",
    "intervals",
    "strips",
    "waterfall",
    "extents",
    "icicle",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number with its unit and which way is better; `low`/`high` bound it where that is known.

    `bounds` says what they are of: `steps`.
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
    """Where to look; None means everywhere, or unknown."""

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


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Displayed):
    """One claim, the numbers behind it, what to try, where to look, and what it would give per step.

    `confidence` is the share of the saving that its evidence supports (see `CONFIDENCE`): findings are ranked by saving
    × confidence. `is_catch_all` marks one that names no cause, which ranks last. `parts` are its stages, largest first,
    where one finding covers several: their savings add up to its own.
    """

    rule: str
    severity: Severity
    claim: str
    advice: str
    evidence: tuple[Metric, ...] = ()
    places: tuple[Place, ...] = ()
    recoverable_ns: int | None = None
    recoverable_ratio: float | None = None
    caveats: tuple[str, ...] = ()
    confidence: float = 1.0
    is_catch_all: bool = False
    parts: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of one run (None: of all); `reason` tells why it abstains or stays clear.

    An abstention that matters has a price: `price_ns` is the time per step that it is about (`price_ratio`: its share
    of the step), `claim` what was almost found, without that time, and `needs` what would prove it.
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
    """What one rule of a gate found of one metric.

    `value` is what is held against `limit` (a change, of which `low` and `high` are the interval, or the
    second side's number of a budget), both in `unit`; `base` and `opt` are in `metric_unit`. `point` says
    that the estimate alone was held against it. Only rules of severity `error` decide.
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
    """One column of a shown table: `name` is its id, `title` what a person reads."""

    name: str
    title: str
    unit: Unit = "text"
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """That a sheet has a row a rank: pages put the ranks together that are alike, and JSON and CSV hold all.

    `value` names the heading by which ranks are told apart, `worst` its end that comes first. `member` names the
    heading of the rank (or process), `apart` those by which ranks are kept apart, and `kind` one more of which the
    numbers do not matter: GPU 0 and GPU 7 are of one kind.
    """

    value: str
    worst: Literal["high", "low"] = "high"
    member: str = "rank"
    apart: tuple[str, ...] = ("run", "role", "replica")
    kind: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Sheet(Displayed):
    """A table to show: rows in the order of importance; `omitted` counts rows left out of the report."""

    name: str
    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    omitted: int = 0
    caption: str = ""
    ranked: Ranked | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture as data, which HTML and image files draw alike.

    `rows` and `series` are names; a mark refers to them by number. The marks of each kind:
    gantt (row, series, start, end): bars on one time axis, one line a row;
    bars (row, series, value): stacked bars, one a row;
    heatmap (row, start, end, value): coloured cells, values of `unit`, None where unknown;
    matrix (row, series, value): the same with a column a series instead of an axis;
    lines (series, x, y); histogram (series, low, high, value): stacked over [low, high).
    intervals (row, series, low, mid, high): factors on one log axis with a line at 1 and the band of
    those nearer to it than `within`, a share, shaded; low and high None where there is no interval;
    strips (row, series, x, number, counted): a dot a value, hollow where `counted` is 0, beside the mean
    of the row's others; `number` names the dot (its step);
    waterfall (row, series, start, end): what leads from one amount to another, each bar from where the
    last ended; one that starts at 0 is an amount, the others are changes;
    extents (row, series, start, end): parts of an amount beside one another, one line a row;
    icicle (row, series, start, end): a tree, each bar above those that are parts of it; a row is a depth.
    `unit` is that of values and y, `x_unit` that of x, start and end; times are ns from the chart's zero.
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
    """Marks left out, the smallest first, to bound the size."""
    within: float = 0.0
    run: str | None = None
    step: int | None = None
    """The run and the step that it is of, where it is of one."""
    roles: tuple[str | None, ...] = ()
    ranks: tuple[int | None, ...] = ()
    """Whose row each is, where rows are processes."""


@dataclass(frozen=True, slots=True, repr=False)
class Section(Displayed):
    """The answer to one question, or why there is none."""

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


MADE_LATER = ("metrics", "sheets", "caveats", "charts")
"""The fields of a section that the screen does not show: in a report for the screen they are made when they are looked at."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A note as shown: what is known to be missing, damaged or odd, and in which source."""

    severity: Literal["info", "warning", "data_loss", "error"]
    code: str
    message: str
    source: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """What kind of recording some sources are, with advice and one command to type where there is something to do.

    `kind` is a code of `recording_kinds.KINDS`. `sources` names at most 50 of the `source_count` sources. `data` holds
    the counts behind the sentence by name, those of single categories, devices and ops as `name label`.
    """

    kind: str
    sentence: str
    advice: str = ""
    command: str = ""
    sources: tuple[str, ...] = ()
    source_count: int = 0
    data: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Report(Displayed):
    """Everything that was concluded about a set of sources.

    `identity` are the facts of the first line (run, ranks, steps, hardware …) in order; `headline` the
    numbers of the second; `overview` names the sheet that is shown first. `unseen` lists what was not
    analysed and why. `values` are the metrics of every process and step, `fingerprint` what must agree
    between two reports to compare them. `answer` is the first sentence where numbers alone are none,
    `basis` what it rests on, and `cautions` what to keep in mind, the gravest first. `contents` are pairs of a run
    and the digest of what a file of it holds: files of the same digest are the same, byte by byte. `files` are how many files were `read`, `refused`, `unreadable` and `duplicate`.
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
    files: tuple[tuple[str, int], ...] = ()
    recordings: tuple[Recording, ...] = ()
    schema: str = SCHEMA

    @property
    def asks_rules(self) -> bool:
        """Whether any question that was asked has a rule."""
        return any(section.id == RULES for section in self.sections)

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every table of the report as a pandas frame, by the name of the file that `--export csv` writes.

        Values are raw: ns, bytes, ratios of 0 to 1; a unit is the suffix of the column's name. `attrs` of a frame hold
        `title`, `caption`, `omitted` (rows that no output has), and `units` and `docs` by column.
        """
        frames: Mapping[str, pd.DataFrame] = display().make_frames(self)
        return frames

    def section(self, id: str) -> Section:  # noqa: A002 - what it is called
        """The section of this id; raises `KeyError` naming those there are."""
        for section in self.sections:
            if section.id == id:
                return section
        known = ", ".join(section.id for section in self.sections)
        raise KeyError(f"no section {id!r}; there are: {known}")

    def figure(self, chart: str, axes: Any = None) -> Any:
        """The axes of matplotlib with one chart on them, a new figure's or those given.

        `chart` is the id of a chart or of the section that it is in (its first one). Raises `TracekitError` for others, and
        where matplotlib is missing.
        """
        return display().draw_chart(self, chart, axes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings by saving × confidence, then catch-alls, then those that save no time, by severity."""
        findings = chain.from_iterable(section.findings for section in self.sections)
        return tuple(sorted(findings, key=_importance))

    @property
    def unproven(self) -> tuple[Verdict, ...]:
        """Abstentions with a price, the most expensive first."""
        verdicts = chain.from_iterable(section.verdicts for section in self.sections)
        priced = (v for v in verdicts if v.price_ns and v.claim and v.answer != "fired")
        return tuple(sorted(priced, key=_price))


def _importance(finding: Finding) -> tuple[bool, bool, int, int, str, str]:
    """The sort key of findings: by saving × confidence, then catch-alls, then those that save no time."""
    grade = SEVERITIES.index(finding.severity)
    # In whole numbers: times may be too large for a float.
    weight = (finding.recoverable_ns or 0) * round(1000 * finding.confidence)
    return not weight, finding.is_catch_all, -weight, grade, finding.rule, finding.claim


def _price(verdict: Verdict) -> tuple[int, str, str]:
    """The sort key of abstentions."""
    return -(verdict.price_ns or 0), verdict.rule, verdict.run or ""
