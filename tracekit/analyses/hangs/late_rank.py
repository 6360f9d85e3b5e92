"""Which rank arrives last at collectives of a job that runs: by durations in flight recorders (R71)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.analyses import Analysis
from tracekit.job.collectives.hangs.claims import phrase_ranks
from tracekit.job.collectives.hangs.dumps import RankDump, collect_dumps, get_group_title
from tracekit.job.collectives.hangs.lateness import LateArrival, count_timed_calls, find_late_arrivals
from tracekit.job.collectives.hangs.verdicts import search_hangs
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Finding, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables.frame import from_rows
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

_HEADINGS = """
    group | group
    call | collective
    rank | arrives last | id
    late | after the rank before it | ns | Median over the calls.
    last | calls in which it is last | count
    calls | calls compared | count
    waited | wait for it alone | ns | Sum over the calls in which it is last.
    frame | called in
"""

Late = Mapping[str | None, Sequence[LateArrival]]


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure nothing: the question about hangs has the records."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report the rank that arrives last in each run without a hang; judge R71. None without durations."""
    limit, least_wait_ns = thresholds.of("late-rank"), thresholds.of("hang")["least_wait_s"] * 1e9
    dumps = collect_dumps(measured)
    counts = {run: count_timed_calls(of_run) for run, of_run in dumps.items()}
    if not any(counts.values()):
        return None
    late: dict[str | None, Sequence[LateArrival]] = {}
    for run, of_run in dumps.items():
        limits = limit["min_calls"], limit["last_ratio"], limit["late_ms"] * 1e6
        late[run] = [] if _may_hang(of_run, least_wait_ns) else find_late_arrivals(of_run, *limits)
    return ANALYSIS.answered(
        judged=[
            _judge_arrivals(measured, thresholds, run, ranks, dumps[run]) for run, ranks in late.items() if counts[run]
        ],
        metrics=lambda: (Metric("timed_calls", sum(counts.values()), "count", label="collectives with durations"),),
        sheets=lambda: select_filled_sheets(_make_late_sheet(measured, late)),
    )


def _may_hang(dumps: Mapping[int, RankDump], least_wait_ns: float) -> bool:
    """Check whether the dumps show a hang, or conflict: then lateness is not the question."""
    search = search_hangs(dumps, least_wait_ns)
    return search.cause is not None or search.conflict is not None


def _judge_arrivals(
    measured: Measurements,
    thresholds: Thresholds,
    run: str | None,
    late: Sequence[LateArrival],
    dumps: Mapping[int, RankDump],
) -> Finding | Verdict:
    """Make the finding of one run, or a clear verdict."""
    if not late:
        return Verdict("late-rank", "clear", "no rank arrives last at most calls of a collective", run)
    first = late[0]
    where = f" in {first.frame}" if first.frame else ""
    claim = (
        f"rank {first.rank} arrives last at {first.op} of {get_group_title(first.key)}{where}: "
        f"{format_quantity(first.late_ns, 'ns')} (median) after the rank before it, in {first.last:,} of {first.calls:,} calls"
    )
    return Finding(
        "late-rank",
        thresholds.severity(first.wait_ratio),
        f"{claim}{phrase_run(measured, run)}",
        "profile this rank next to another one (tracekit analyze DIR with both traces): longer work before the collective, "
        "an uneven batch, or a slower GPU or host",
        tuple(_list_lateness(first, late)),
        (Place(source=dumps[first.rank].source, rank=first.rank, name=first.op, run=run),),
        caveats=tuple(_list_late_caveats(first, dumps)),
    )


def _list_lateness(first: LateArrival, late: Sequence[LateArrival]) -> Iterator[Metric]:
    """List the numbers of a late rank."""
    yield Metric("late", first.late_ns, "ns", "lower", label="median time after the rank before it")
    yield Metric("waited", first.waited_ns, "ns", "lower", label=f"wait for it alone, in {first.last:,} calls")
    if first.wait_ratio is not None:
        yield Metric("wait_ratio", first.wait_ratio, "ratio", "lower", label="share of the time between these calls")
    if len(late) > 1:
        yield Metric("late_sites", len(late), "count", label="call sites at which a rank arrives last")


def _list_late_caveats(first: LateArrival, dumps: Mapping[int, RankDump]) -> Iterator[str]:
    """List the limits of the durations."""
    yield "a rank may be late because it waited for another group's collective: see the table"
    if first.key[2]:
        absent = tuple(sorted(set(map(int, first.key[2].split(","))) - set(dumps)))
        if absent:
            yield f"no dump of {phrase_ranks(absent)}: a later one may be among them"


def _make_late_sheet(measured: Measurements, late: Late) -> Sheet:
    """Make the table of call sites at which a rank arrives last."""
    rows = [
        (
            *(run, get_group_title(one.key), one.op, one.rank),
            *(one.late_ns, one.last, one.calls, one.waited_ns, one.frame),
        )
        for run, of_run in late.items()
        for one in of_run
    ]
    headings = parse_headings(_HEADINGS)
    frame = from_rows(("run", *(heading.name for heading in headings)), rows)
    return make_sheet("late_ranks", "Ranks that arrive last", (*make_run_heading(measured), *headings), frame)


ANALYSIS = Analysis(
    id="late-rank",
    title="Which rank arrives last at collectives?",
    rests_on=("hang_records", "hang_groups"),
    rules=("late-rank",),
    thresholds={
        "late-rank": {
            # Fewer calls of one site show no habit.
            "min_calls": 10,
            # A rank that is last in fewer calls alternates with others.
            "last_ratio": 0.9,
            # A median below this is jitter, ms.
            "late_ms": 1,
        },
    },
    measure=measure,
    judge=judge,
)
