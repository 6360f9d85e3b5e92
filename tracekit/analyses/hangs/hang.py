"""Which rank blocks the job: by flight recorders, stacks of threads, lines of watchdogs and NCCL RAS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.collectives.hangs.claims import describe_hang, list_hang_caveats, make_hang_advice, make_hang_evidence
from tracekit.job.collectives.hangs.conflicts import describe_group_conflict
from tracekit.job.collectives.hangs.dumps import RankDump, collect_dumps, list_group_members
from tracekit.job.collectives.hangs.evidence import (
    FrozenCount,
    Timeout,
    collect_stacks,
    count_unranked_stacks,
    find_traced_collective,
    list_frozen_counts,
    list_timeouts,
    was_recorder_off,
)
from tracekit.job.collectives.hangs.hangs import Hang
from tracekit.job.collectives.hangs.line_claims import describe_frozen_count, describe_timeout
from tracekit.job.collectives.hangs.sheets import make_rank_sheet, make_stack_sheet, make_wait_sheet
from tracekit.job.collectives.hangs.verdicts import HangSearch, search_hangs
from tracekit.job.frames import phrase_run
from tracekit.job.report.tables import select_filled_sheets
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.frame import Frame
from tracekit.model.tables.hangs import COMMUNICATOR, GROUP_STATUS, RECORD, STACK, WATCHDOG_LINE
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

HANG_RECORDS = Table(
    "hang_records",
    "one of the last collectives, sends or receives that a flight recorder kept",
    {**KEYS, **RECORD, "ring_dropped": Column("bool", "Whether the recorder's ring dropped earlier records.")},
)
HANG_GROUPS = Table("hang_groups", "one process group, by the status in a flight recorder", {**KEYS, **GROUP_STATUS})
HANG_STACKS = Table(
    "hang_stacks",
    "one thread of a process at one moment",
    {**KEYS, **STACK, "has_main": Column("bool", "Whether the file names the main thread.")},
)
HANG_LINES = Table("hang_lines", "one line that the watchdog of a process group printed", {**KEYS, **WATCHDOG_LINE})
HANG_COUNTS = Table("hang_counts", "ranks of a communicator with one count of operations", {**KEYS, **COMMUNICATOR})

LAST_RECORDS = 64
"""Completed records kept per group and rank; all pending ones are kept."""

MAX_PENDING = 2_000
"""Most records kept of one dump."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure what one file says about a hang; empty for any other source."""
    tables: dict[str, Mapping[str, Any]] = {}
    if trace.has("collective_records"):
        tables["hang_records"] = _select_last_records(trace)
    if trace.has("collective_groups"):
        tables["hang_groups"] = _select_columns(trace, "collective_groups", tuple(GROUP_STATUS))
    if trace.row_count("thread_stacks"):
        count = trace.row_count("thread_stacks")
        has_main = bool(np.any(trace.numbers("thread_stacks", "is_main")))
        columns = _select_columns(trace, "thread_stacks", tuple(STACK))
        tables["hang_stacks"] = {**columns, "has_main": np.full(count, has_main)}
    if trace.row_count("watchdog_lines"):
        tables["hang_lines"] = _select_columns(trace, "watchdog_lines", tuple(WATCHDOG_LINE))
    if trace.row_count("communicator_counts"):
        tables["hang_counts"] = _select_columns(trace, "communicator_counts", tuple(COMMUNICATOR))
    return tables


def _select_columns(trace: Trace, table: str, names: Sequence[str]) -> Mapping[str, Any]:
    """List columns of a raw table."""
    return {name: trace.array(table, name) for name in names}


def _select_last_records(trace: Trace) -> Mapping[str, Any]:
    """Select the pending records of a dump and the last completed ones of each group."""
    columns = _select_columns(trace, "collective_records", tuple(RECORD))
    rows = Frame(dict(columns), trace.row_count("collective_records"))
    if not len(rows):
        return {**columns, "ring_dropped": np.zeros(0, np.bool_)}
    newest_first = np.arange(len(rows) - 1, -1, -1)
    place = rows.group_by("group", "group_desc", "is_p2p").position(newest_first)
    is_pending = ~rows["retired"] & ~rows.equals("state", "completed")
    kept = rows.filter((place < LAST_RECORDS) | (is_pending & (place < MAX_PENDING)))
    first_id = rows.integers("record_id").min()
    return {**kept.columns, "ring_dropped": np.full(len(kept), bool(first_id > 0))}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report the hang of each run; judge R70. None without any file about hangs."""
    tables = ("hang_records", "hang_groups", "hang_stacks", "hang_lines", "hang_counts")
    if not any(measured.row_count(table) for table in tables):
        return None
    limit = thresholds.of("hang")
    dumps = collect_dumps(measured)
    runs = list(dict.fromkeys(run for table in tables for run in measured.frame(table).values("run")))
    searches = {run: search_hangs(dumps.get(run, {}), limit["least_wait_s"] * 1e9) for run in runs}
    judged = [_judge_run(measured, run, dumps.get(run, {}), searches[run]) for run in runs]
    return ANALYSIS.answered(
        judged=judged,
        metrics=lambda: _list_hang_metrics(dumps, searches),
        sheets=lambda: select_filled_sheets(
            make_rank_sheet(measured, dumps, searches),
            make_wait_sheet(measured, dumps, searches),
            make_stack_sheet(measured),
        ),
        caveats=lambda: [
            caveat for run in runs for caveat in _list_run_caveats(measured, run, dumps.get(run, {}), searches[run])
        ],
    )


def _list_run_caveats(
    measured: Measurements, run: str | None, dumps: Mapping[int, RankDump], search: HangSearch
) -> Iterator[str]:
    """List the caveats of one run; a finding has its own."""
    if search.cause is None:
        yield from list_hang_caveats(dumps, search)
    unranked = count_unranked_stacks(measured, run)
    if unranked:
        files = choose_plural(unranked, "file of stacks has", "files of stacks have")
        yield f"{unranked:,} {files} no rank in the name (stacks_rank2.txt), so the process is unknown"


def _judge_run(
    measured: Measurements, run: str | None, dumps: Mapping[int, RankDump], search: HangSearch
) -> Finding | Verdict | None:
    """Judge one run: by its dumps, then the lines of its watchdogs, then RAS."""
    timeouts, frozen = list_timeouts(measured, run), list_frozen_counts(measured, run)
    if search.cause is not None:
        return _make_dump_finding(measured, run, dumps, search)
    if timeouts:
        return _make_timeout_finding(measured, run, timeouts)
    if frozen:
        return _make_frozen_finding(measured, run, frozen)
    return _abstain_from_hang(measured, run, search) or _abstain_from_one_dump(run, dumps)


def _abstain_from_hang(measured: Measurements, run: str | None, search: HangSearch) -> Verdict | None:
    """Abstain where dumps conflict, ranks wait without a proof of a hang, or only one report of RAS differs."""
    if search.conflict is not None:
        return Verdict("hang", "insufficient data", describe_group_conflict(search.conflict), run)
    if search.waits:
        hang = search.waits[0]
        bound = format_quantity(hang.at_most_ns, "ns") if hang.at_most_ns is not None else "a short time"
        reason = f"ranks wait in {hang.title} for at most {bound} when dumped: dump again later"
        return Verdict("hang", "insufficient data", reason, run)
    counts = measured.frame("hang_counts")
    if len(counts) and counts.is_in("status", ("MISMATCH",)).any():
        return Verdict("hang", "insufficient data", "one report of RAS differs: ask twice, 10 s apart", run)
    return None


def _abstain_from_one_dump(run: str | None, dumps: Mapping[int, RankDump]) -> Verdict | None:
    """Abstain where one rank left the only dump, unless its groups are known to have no other member."""
    if len(dumps) != 1:
        return None
    ((rank, dump),) = dumps.items()
    if all(list_group_members(key) == frozenset((rank,)) for key in dump.groups):
        return None
    return Verdict("hang", "insufficient data", f"only rank {rank} left a dump: add those of the other ranks", run)


def _make_dump_finding(
    measured: Measurements, run: str | None, dumps: Mapping[int, RankDump], search: HangSearch
) -> Finding:
    """Make the finding of the hang that the dumps show."""
    hang = search.cause
    assert hang is not None, "the caller found a cause"
    stacks, timeouts = collect_stacks(measured, run), list_timeouts(measured, run)
    same = [timeout for timeout in timeouts if timeout.seq == hang.seq]
    waited = [timeout.waited_ns for timeout in same if timeout.waited_ns is not None]
    op = hang.record.op if hang.record is not None else ""
    traced = find_traced_collective(measured, run, hang.key, op, hang.seq)
    return Finding(
        "hang",
        "high",
        f"{describe_hang(hang, dumps, stacks)}{phrase_run(measured, run)}",
        make_hang_advice(
            hang, was_off=was_recorder_off(measured, run), has_stack=any(rank in stacks for rank in hang.culprits)
        ),
        tuple(make_hang_evidence(hang, search, max(waited, default=None), traced)),
        tuple(_list_hang_places(hang, dumps, run)),
        caveats=tuple(list_hang_caveats(dumps, search, timed_out=bool(same))),
    )


def _list_hang_places(hang: Hang, dumps: Mapping[int, RankDump], run: str | None) -> Iterator[Place]:
    """List the ranks that block the job, then those that wait."""
    for rank in (*hang.culprits, *hang.waiting)[:8]:
        source = dumps[rank].source if rank in dumps else None
        yield Place(source=source, rank=rank, name=hang.title, start_ns=hang.since_ns, run=run)


def _make_timeout_finding(measured: Measurements, run: str | None, timeouts: Sequence[Timeout]) -> Finding:
    """Make the finding of timeouts that watchdogs printed, without dumps."""
    first = timeouts[0]
    stacks = collect_stacks(measured, run)
    evidence = [Metric("waited", first.waited_ns, "ns", "lower", label="wait until the timeout")]
    return Finding(
        "hang",
        "high",
        f"{describe_timeout(first, timeouts, stacks)}{phrase_run(measured, run)}",
        make_hang_advice(None, was_off=was_recorder_off(measured, run)),
        tuple(metric for metric in evidence if metric.value is not None),
        tuple(Place(source=first.source, rank=rank, name=f"{first.op} #{first.seq}", run=run) for rank in first.ranks),
        caveats=("a rank whose log is not here may wait too: a rank without a line is a suspect, not a proof",),
    )


def _make_frozen_finding(measured: Measurements, run: str | None, frozen: Sequence[FrozenCount]) -> Finding:
    """Make the finding of counts that differ between ranks and stand still."""
    first = frozen[0]
    return Finding(
        "hang",
        "high",
        f"{describe_frozen_count(first)}{phrase_run(measured, run)}",
        "dump the stacks of the ranks that are behind (py-spy dump --pid PID)",
        (Metric("samples", first.samples, "count", label="reports of RAS with the same counts"),),
        (Place(source=first.source, name=f"communicator {first.communicator}", run=run),),
        caveats=("RAS numbers ranks within the communicator; the ranks that differ may be those ahead",),
    )


def _list_hang_metrics(
    dumps: Mapping[str | None, Mapping[int, RankDump]], searches: Mapping[str | None, HangSearch]
) -> Iterator[Metric]:
    """List the number of dumps and of groups that wait."""
    count = sum(len(of_run) for of_run in dumps.values())
    if count:
        yield Metric("dumped_ranks", count, "count", label="ranks with a flight-recorder dump")
    hangs = sum((search.cause is not None) + len(search.others) for search in searches.values())
    if hangs:
        yield Metric("hanging_groups", hangs, "count", "lower", label="groups that hang")


ANALYSIS = Analysis(
    id="hang",
    title="Which rank blocks the job?",
    reads=("collective_records", "collective_groups", "thread_stacks", "watchdog_lines", "communicator_counts"),
    writes=(HANG_RECORDS, HANG_GROUPS, HANG_STACKS, HANG_LINES, HANG_COUNTS),
    rests_on=("collectives",),
    rules=("hang",),
    thresholds={
        "hang": {
            # A wait that was shorter than this when it was dumped proves nothing, s.
            "least_wait_s": 5,
        },
    },
    measure=measure,
    judge=judge,
)
