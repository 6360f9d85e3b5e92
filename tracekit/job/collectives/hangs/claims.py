"""A hang in words: the claim, the advice, the numbers and the caveats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tracekit.job.collectives.hangs.dumps import UNTRACKED, RankDump, Record, get_group_title
from tracekit.job.collectives.hangs.evidence import RankStack, TracedCollective
from tracekit.job.collectives.hangs.hangs import Hang
from tracekit.job.collectives.hangs.verdicts import HangSearch
from tracekit.model.report import Metric
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_ranges

_LAST_NS = 253_402_300_799 * 10**9
"""Last second of the year 9999."""

RECORDER_SETTINGS = (
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=DIR/nccl_trace_rank_"
)


def phrase_ranks(ranks: tuple[int, ...]) -> str:
    """Name ranks: `rank 2`, `ranks 0–1, 3`."""
    return f"{choose_plural(len(ranks), 'rank')} {format_ranges(ranks)}"


def format_utc(ns: int) -> str:
    """Format a time as UTC; as ns if no calendar has it.

    >>> format_utc(1_758_000_000_205_000_000)
    '2025-09-16 05:20:00 UTC'
    """
    if not 0 <= ns <= _LAST_NS:
        return f"{ns:,} ns"
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def describe_hang(hang: Hang, dumps: Mapping[int, RankDump], stacks: Mapping[int, RankStack]) -> str:
    """Describe a hang: who, at which collective, who waits since when, where the code is, and how sure that is."""
    what = f"{hang.title} of {get_group_title(hang.key)}"
    since = f" since {format_utc(hang.since_ns)}" if hang.since_ns is not None else ""
    where = f" ({_shorten_frame(hang.record.frame)})" if hang.record is not None and hang.record.frame else ""
    waits = f"{phrase_ranks(hang.waiting)} {_conjugate_wait(len(hang.waiting), since)} in it{since}{where}"
    parts = {
        "missing": lambda: f"{phrase_ranks(hang.culprits)} did not reach {what}; {waits}",
        "no dump": lambda: (
            f"{phrase_ranks(hang.culprits)} left no dump: dead, ending, or not asked; all others {_conjugate_wait(2, since)} in {what}{since}"
        ),
        "mismatch": lambda: f"{_describe_mismatch(hang, what)}; {waits}",
        "timed out": lambda: (
            f"{phrase_ranks(hang.waiting)} all entered {what} alike{since and f', have waited{since}'}, and it timed out"
            f"{_describe_blocked(hang)}"
        ),
        "order": lambda: _describe_order(hang, what, since),
        "one-sided": lambda: f"{phrase_ranks(hang.culprits)} did not call its side of {what}; {waits}",
    }
    claim = parts[hang.kind]()
    return f"{claim}{_locate_culprit(hang, dumps, stacks)} ({hang.confidence})"


def _conjugate_wait(count: int, since: str) -> str:
    """Conjugate "wait" for a number of ranks, in the perfect if its start is known."""
    if since:
        return choose_plural(count, "has waited", "have waited")
    return choose_plural(count, "waits", "wait")


def _describe_blocked(hang: Hang) -> str:
    """Describe ranks on whose stream the collective did not start although it started on others."""
    if not hang.culprits:
        return ""
    have = choose_plural(len(hang.culprits), "has", "have")
    return f"; {phrase_ranks(hang.culprits)} {have} not started it: earlier work blocks the stream"


def _shorten_frame(frame: str) -> str:
    """Shorten the path of a frame: `forward (transformer_impl.py:612)` becomes `forward, transformer_impl.py:612`."""
    function, _, place = frame.rpartition(" (")
    return f"{function}, {place.rstrip(')').rpartition('/')[2]}"


def _describe_mismatch(hang: Hang, what: str) -> str:
    """Describe which rank called another operation or size."""
    ours, theirs = hang.record, hang.other
    assert ours is not None, "a mismatch has the record of the others"
    assert theirs is not None, "and that of the rank"
    verb = "called" if hang.has_majority else "and the others differ: it called"
    if ours.op != theirs.op:
        return f"{phrase_ranks(hang.culprits)} {verb} {theirs.title} instead of {what}"
    if ours.input_sizes != theirs.input_sizes:
        sizes = f"size {theirs.input_sizes} instead of {ours.input_sizes}"
    elif ours.output_sizes != theirs.output_sizes:
        sizes = f"output size {theirs.output_sizes} instead of {ours.output_sizes}"
    else:
        sizes = f"type {theirs.dtypes} instead of {ours.dtypes}"
    return f"{phrase_ranks(hang.culprits)} {verb} {what} with {sizes}"


def _describe_order(hang: Hang, what: str, since: str) -> str:
    """Describe two groups whose collectives ranks called in opposite order."""
    other = hang.against
    assert other is not None, "an inversion has two sides"
    second = f"{other.title} of {get_group_title(other.key)}"
    return (
        f"deadlock of two groups: {phrase_ranks(hang.waiting)} {_conjugate_wait(len(hang.waiting), since)} in {what}{since}, "
        f"{phrase_ranks(other.waiting)} in {second}, each for the other"
    )


def _locate_culprit(hang: Hang, dumps: Mapping[int, RankDump], stacks: Mapping[int, RankStack]) -> str:
    """Locate the code of the first rank that blocks the job: its stack, the call, or the last completed one."""
    if not hang.culprits or hang.kind == "timed out":
        frame = hang.record.frame if hang.record is not None else None
        return f"; called in {frame}" if frame else ""
    rank = hang.culprits[0]
    is_one = len(hang.culprits) == 1
    if hang.kind == "mismatch" and hang.other is not None and hang.other.frame:
        return f"; {'its call' if is_one else f'the call of rank {rank}'} is in {hang.other.frame}"
    subject = "; it" if is_one else f"; rank {rank}"
    stack = stacks.get(rank)
    if stack is not None and stack.frame:
        return f"{subject} is in {stack.frame}"
    return f"{subject} {_describe_last_call(hang.other)}" if hang.kind == "missing" and rank in dumps else ""


def _describe_last_call(last: Record | None) -> str:
    """Describe the last collective that a missing rank completed in the group."""
    if last is None:
        return "completed none of the group's collectives that the recorder kept"
    return f"last completed {last.title}" + (f" in {last.frame}" if last.frame else "")


def make_hang_advice(hang: Hang | None, *, was_off: bool, has_stack: bool = False) -> str:
    """Make the advice for a kind of hang. `has_stack`: the stack of the rank is known."""
    if was_off or hang is None:
        return f"record collectives, and analyze the dumps of all ranks: {RECORDER_SETTINGS}"
    if hang.kind == "missing" and has_stack:
        return "find out why the rank is there: a branch that only some ranks take, a slow host call or an exception"
    return {
        "missing": "dump the stacks of the rank (py-spy dump --pid PID): usual causes are a branch that only some ranks take, a slow host call and an exception",
        "no dump": "look for the rank's exit in its log and dmesg (OOM killer, Xid); if it lives, dump its stacks (py-spy dump --pid PID)",
        "mismatch": "make all ranks call the same collectives in the same order, with equal sizes: pad, or exchange sizes first",
        "timed out": "all ranks arrived alike: suspect the network or a GPU (ncclras -v, dmesg for Xid, NCCL_DEBUG=INFO)",
        "one-sided": "dump the stacks of the rank (py-spy dump --pid PID), and pair its sends and receives",
        "order": "call the collectives of the two groups in one order on all ranks",
    }[hang.kind]


def make_hang_evidence(
    hang: Hang, search: HangSearch, waited_ns: int | None, traced: TracedCollective | None
) -> Iterator[Metric]:
    """Make the numbers of a hang."""
    yield Metric("waiting_ranks", len(hang.waiting), "count", "lower", label="ranks that wait")
    if search.others:
        yield Metric("other_groups", len(search.others), "count", label="other groups that hang, as a consequence")
    if waited_ns is not None:
        yield Metric("waited", waited_ns, "ns", "lower", label="wait until the watchdog's timeout")
    if traced is not None:
        which = "this collective" if traced.is_same else "this operation of the group"
        stage = f", in {traced.stage}" if traced.stage else ""
        yield Metric("usual", traced.median_ns, "ns", label=f"median of {which} in {traced.count} traced calls{stage}")


def list_hang_caveats(dumps: Mapping[int, RankDump], search: HangSearch, *, timed_out: bool = False) -> Iterator[str]:
    """List the limits of the dumps. `timed_out`: a watchdog says that the collective did."""
    untracked = sorted(set().union(*(dump.backends for dump in dumps.values())) & UNTRACKED)
    if untracked:
        yield f"{', '.join(untracked)}: states not tracked; a collective counts as done once it is retired"
    if dumps and not any(dump.has_stacks for dump in dumps.values()):
        yield "the dumps have no stacks, as JSON never has: the pickles of the same ranks have them"
    hang = search.cause
    if hang is None:
        return
    if hang.undumped and hang.kind != "no dump":
        yield f"no dump of {phrase_ranks(hang.undumped)}: dead, ending, or not asked"
    if hang.kind in ("missing", "no dump", "one-sided") and not timed_out:
        yield "a job that runs and was dumped on request looks the same: dump twice, and compare the numbers"
    if hang.confidence == "unknown":
        yield "the recorder's ring dropped records that would show whether the rank arrived"
