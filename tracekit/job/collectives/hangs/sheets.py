"""Tables about a hang: the ranks of its group, all groups that wait, and stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.job.collectives.hangs.claims import format_utc
from tracekit.job.collectives.hangs.dumps import RankDump, get_group_title
from tracekit.job.collectives.hangs.evidence import collect_stacks
from tracekit.job.collectives.hangs.hangs import Hang
from tracekit.job.collectives.hangs.verdicts import HangSearch, list_waiting_rows
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Sheet
from tracekit.model.tables.frame import from_rows
from tracekit.model.trace import Measurements
from tracekit.model.units import format_ranges

Dumps = Mapping[str | None, Mapping[int, RankDump]]
Searches = Mapping[str | None, HangSearch]

_RANKS = """
    group | group
    rank | rank | id
    state | state
    enqueued | last enqueued | id
    completed | last completed | id
    call | its call | text | The collective of the hang, or the last one that the rank enqueued.
    sizes | input sizes
    since | enqueued at
    frame | called in
    now | thread is in | text | By py-spy or faulthandler.
"""

_WAITS = """
    group | group
    call | collective
    kind | verdict
    culprits | blocked by
    waiting | ranks that wait
    since | since
    confidence | confidence
"""

_STACKS = """
    rank | rank | id
    source | file
    stack | main thread, innermost frame first
"""


def make_rank_sheet(measured: Measurements, dumps: Dumps, searches: Searches) -> Sheet:
    """Make the table of the ranks of the group that hangs."""
    rows = [
        row for run, search in searches.items() for row in _list_rank_rows(measured, run, dumps.get(run, {}), search)
    ]
    headings = (*make_run_heading(measured), *parse_headings(_RANKS))
    frame = from_rows(("run", *(heading.name for heading in parse_headings(_RANKS))), rows)
    return make_sheet("hang_ranks", "Ranks of the group that hangs", headings, frame)


def _list_rank_rows(
    measured: Measurements, run: str | None, dumps: Mapping[int, RankDump], search: HangSearch
) -> Iterator[tuple[Any, ...]]:
    """List the ranks of the group of a run's cause."""
    hang = search.cause
    if hang is None:
        return
    stacks = collect_stacks(measured, run)
    title = get_group_title(hang.key)
    for rank, group, record in list_waiting_rows(dumps, hang):
        part = "blocks it" if rank in hang.culprits else "waits" if rank in hang.waiting else ""
        call = (
            (record.title, record.input_sizes, record.created_ns, record.frame) if record is not None else (None,) * 4
        )
        since = format_utc(call[2]) if call[2] is not None else None
        now = stacks[rank].frame if rank in stacks else None
        counts = group.last_enqueued, group.last_completed
        yield (run, title, rank, part, *counts, call[0], call[1], since, call[3], now)
    for rank in hang.undumped:
        yield (run, title, rank, "no dump", None, None, None, None, None, None, None)


def make_wait_sheet(measured: Measurements, dumps: Dumps, searches: Searches) -> Sheet:
    """Make the table of all groups that wait."""
    del dumps
    rows = [
        _make_wait_row(run, hang, place)
        for run, search in searches.items()
        for place, hangs in (
            ("cause", [search.cause] if search.cause is not None else []),
            ("consequence", search.others),
            ("too short to judge", search.waits),
        )
        for hang in hangs
    ]
    headings = (*make_run_heading(measured), *parse_headings(_WAITS))
    frame = from_rows(("run", *(heading.name for heading in parse_headings(_WAITS))), rows)
    return make_sheet("hang_groups", "Groups that wait", headings, frame)


def _make_wait_row(run: str | None, hang: Hang, place: str) -> tuple[Any, ...]:
    """Make the row of one group."""
    since = format_utc(hang.since_ns) if hang.since_ns is not None else None
    culprits = format_ranges(hang.culprits) if hang.culprits else None
    return (
        *(run, get_group_title(hang.key), hang.title, f"{place}: {hang.kind}", culprits),
        *(format_ranges(hang.waiting), since, hang.confidence),
    )


def make_stack_sheet(measured: Measurements) -> Sheet:
    """Make the table of the main thread of each rank."""
    runs = list(dict.fromkeys(measured.frame("hang_stacks").values("run")))
    rows = [
        (run, rank, stack.source, " < ".join((stack.stack or "").splitlines()))
        for run in runs
        for rank, stack in sorted(collect_stacks(measured, run).items())
    ]
    headings = (*make_run_heading(measured), *parse_headings(_STACKS))
    frame = from_rows(("run", *(heading.name for heading in parse_headings(_STACKS))), rows)
    return make_sheet("hang_stacks", "Stacks", headings, frame)
