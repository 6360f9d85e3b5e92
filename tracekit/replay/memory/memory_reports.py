"""Report of `tracekit whatif --memory`: peak memory with each change, and how well the replay matches the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.job.report.tables import parse_headings
from tracekit.model.records import dataclass
from tracekit.model.report import Report, Section, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity, format_signed
from tracekit.model.version import VERSION
from tracekit.process.memory.allocator.identity import MAX_DIFFERENCE, HistoryMatch
from tracekit.process.memory.allocator.plain import EMPTY, RELEASE
from tracekit.process.memory.allocator.run import LANE, OP
from tracekit.replay.memory.applying import ReplayedMemory
from tracekit.replay.memory.batches import LargestBatch
from tracekit.replay.memory.predicting_memory import MemoryPlan, measure_from_empty_cache
from tracekit.replay.what_if_tables import make_replay_sheet

OUTSIDE = "memory outside PyTorch's allocator (CUDA context, NCCL, other processes) is not in these numbers"
ADDRESSES = (
    "new segments get ascending addresses; the driver may choose others, and then other blocks of equal size are used"
)

EARLY_SHARE = 0.1
"""Share of the peak that was reserved before the history, from which on a note mentions it."""

_CHANGES = parse_headings("""
    number | # | id
    change | change
    touched | touches
    alone_bytes | alone | bytes | Peak of the reserved memory with this change only.
    alone_saved_bytes | saved | bytes | Against the recorded peak; negative: the peak rises.
    peak_bytes | together | bytes | Peak of the reserved memory with this change and those before it; empty for a change that does not lower it.
    emptied_bytes | emptied | bytes | Peak with this change only if the cache is emptied before the history: a lower bound.
    active_bytes | in use | bytes | Peak of the blocks in use with this change only.
    touched_bytes | touched | bytes | Requested bytes of the touched memory at the recorded peak.
    fits | OOM request | text | Whether the request that ran out of memory fits with this change only.
    failed_count | failed | count | Requests that run out of memory with this change only.
""")

_HISTORIES = parse_headings("""
    source | file
    device | device | id
    operations | operations | count | Allocations, frees and releases that are replayed.
    match | replay | text | Whether the replay gives the recorded segments, addresses and reserved memory.
    difference | difference | ratio | Largest difference of the reserved memory, as a share of its peak.
    peak_bytes | peak | bytes | Most reserved.
    before_bytes | before | bytes | Reserved when the history begins.
    emptied_bytes | emptied | bytes | Most reserved if the cache is emptied before the history.
    active_bytes | in use | bytes | Most in use, as blocks.
""")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryAnswer:
    """Replayed histories, the predictions for the first, and the largest micro-batch.

    `unreplayed` pairs files with the reason why they cannot be replayed.
    """

    memories: tuple[ReplayedMemory, ...]
    unreplayed: tuple[tuple[str, str], ...]
    plan: MemoryPlan
    largest: LargestBatch | None = None
    problem: str = ""

    @property
    def memory(self) -> ReplayedMemory:
        """The history that changes are replayed on."""
        return self.memories[0]


def build_memory_report(answer: MemoryAnswer, title: str, facts: Sequence[str] = ()) -> Report:
    """Build the report of an answer."""
    return Report(
        title=title,
        tool_version=VERSION,
        identity=(*facts, *_list_memory_facts(answer)),
        answer=_describe_memory_answer(answer),
        overview=_list_memory_predictions(answer) if answer.plan.predictions else None,
        sections=(Section("histories", "Replayed histories", sheets=(_list_histories(answer),)),),
        cautions=tuple(_list_memory_cautions(answer)),
        unseen=tuple(f"{name}: not replayed: {reason}" for name, reason in answer.unreplayed),
    )


def _list_memory_facts(answer: MemoryAnswer) -> Iterator[str]:
    memory = answer.memory
    yield memory.name
    yield describe_match(memory.match)
    if memory.trace.meta.get("simulated"):
        yield "SIMULATED DATA"


def describe_match(match: HistoryMatch) -> str:
    """Describe how well a replay matches the record."""
    if match.is_exact:
        return f"replay exact: {match.segments:,} segment events, {match.allocations:,} addresses"
    if not match.largest_bytes:
        return f"reserved memory exact; {match.unequal_addresses:,} of {match.allocations:,} addresses differ"
    share = format_quantity(match.difference, "ratio", 2)
    return f"replay differs by up to {format_quantity(match.largest_bytes, 'bytes')} ({share} of the peak)"


def _describe_memory_answer(answer: MemoryAnswer) -> str:
    before = answer.memory.run.peak_reserved
    words = format_quantity(before, "bytes")
    if not answer.memory.match.is_sufficient:
        return f"peak reserved memory {words} as replayed; nothing is predicted"
    added = [each for each in answer.plan.predictions if each.run is not None]
    if not added:
        text = f"peak reserved memory {words}; no change lowers it"
    else:
        after = answer.plan.get_last(answer.memory.run).peak_reserved
        share = format_signed((after - before) / before, "ratio") if before else ""
        text = (
            f"peak reserved memory with {len(added)} {choose_plural(len(added), 'change')}: {words} → "
            f"{format_quantity(after, 'bytes')} ({format_signed(after - before, 'bytes')}, {share})"
        )
    return text if answer.largest is None else f"{text}; {describe_largest_batch(answer.largest)}"


def describe_largest_batch(largest: LargestBatch) -> str:
    """Describe the largest micro-batch that fits."""
    size = format_quantity(largest.device_memory, "bytes")
    ends = f"{largest.low:,}" if largest.low == largest.high else f"{largest.low:,} to {largest.high:,}"
    more = " or more" if largest.is_capped else ""
    return f"largest micro-batch in {size}: {ends}{more} (from {largest.basis})"


def _list_memory_predictions(answer: MemoryAnswer) -> Sheet:
    before = answer.memory.run.peak_reserved
    rows = [
        (
            number,
            each.change.describe(),
            each.touched.words,
            each.alone.peak_reserved,
            before - each.alone.peak_reserved,
            None if each.run is None else each.run.peak_reserved,
            each.emptied_bytes,
            each.alone.peak_active,
            each.touched.peak_bytes,
            None if each.fits is None else "fits" if each.fits else "fails",
            each.alone.failed or None,
        )
        for number, each in enumerate(answer.plan.predictions, 1)
    ]
    return make_replay_sheet("changes", "Predicted peak memory", _CHANGES, rows)


def _list_histories(answer: MemoryAnswer) -> Sheet:
    rows = []
    for memory in answer.memories:
        match, run = memory.match, memory.run
        state = "exact" if match.is_exact else "differs" if match.largest_bytes else "reserved memory exact"
        emptied = measure_from_empty_cache(memory.program)
        levels = run.peak_reserved, run.reserved_before, emptied, run.peak_active
        source, device = memory.trace.source.name, memory.replay.device
        rows.append((source, device, len(memory.program.ops), state, match.difference, *levels))
    return make_replay_sheet("histories", "Histories, the highest peak first", _HISTORIES, rows)


def _list_memory_cautions(answer: MemoryAnswer) -> Iterator[str]:
    memory = answer.memory
    if not memory.match.is_sufficient:
        yield (
            f"{describe_match(memory.match)}, more than {format_quantity(MAX_DIFFERENCE, 'ratio', 2)}: "
            "this allocator followed other rules, and nothing is predicted"
        )
    if answer.problem:
        yield answer.problem
    before, peak = memory.run.reserved_before, memory.run.peak_reserved
    if peak and before > EARLY_SHARE * peak:
        yield (
            f"{format_quantity(before, 'bytes')} were reserved before the history and stay as they are: a whole run with a "
            "change may save more, down to the peak of the column emptied"
        )
    if ((memory.program.ops[:, OP] == RELEASE) & (memory.program.ops[:, LANE] == 1)).any():
        yield (
            "segments are given back as recorded, up to the first change: the limit that chose them "
            "(garbage collection, max_split_size) is not in a snapshot"
        )
    releases = int((memory.program.ops[:, OP] == EMPTY).sum())
    if releases and answer.plan.predictions:
        yield (
            f"{releases:,} {choose_plural(releases, 'release')} of the cache (empty_cache, or memory that ran out) "
            "replayed at the recorded place"
        )
    if answer.plan.predictions:
        yield ADDRESSES
        yield OUTSIDE
    if any(each.change.do == "gc" for each in answer.plan.predictions):
        yield "PyTorch collects garbage only with torch.cuda.set_per_process_memory_fraction; the share is of that memory"
    yield from (f"not predicted: {change.describe()}: {reason}" for change, reason in answer.plan.refused)
