"""A hang in words where no flight recorder was dumped: by lines of the watchdog, or by NCCL RAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.job.collectives.hangs.claims import phrase_ranks
from tracekit.job.collectives.hangs.evidence import FrozenCount, RankStack, Timeout
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity


def describe_timeout(first: Timeout, timeouts: Sequence[Timeout], stacks: Mapping[int, RankStack]) -> str:
    """Describe the first collective that timed out: who waited, and who printed other lines."""
    what = f"{first.op} #{first.seq}" + (f" of {first.group}" if first.group else "")
    waited = f" after {format_quantity(first.waited_ns, 'ns')}" if first.waited_ns is not None else ""
    claim = f"{phrase_ranks(first.ranks)} timed out in {what}{waited}"
    others = [other for other in timeouts if other is not first and set(other.ranks) - set(first.ranks)]
    if others:
        rest = tuple(rank for rank in others[0].ranks if rank not in first.ranks)
        return f"{claim}; {phrase_ranks(rest)} in {others[0].op} #{others[0].seq} instead (likely)"
    if first.other_ranks:
        rank = first.other_ranks[0]
        frame = stacks[rank].frame if rank in stacks else None
        verb = choose_plural(len(first.other_ranks), "reports", "report")
        where = f"; rank {rank} is in {frame}" if frame else ""
        return f"{claim}; {phrase_ranks(first.other_ranks)} {verb} no timeout{where} (likely)"
    return f"{claim}; no line names the rank that is missing (unknown)"


def describe_frozen_count(frozen: FrozenCount) -> str:
    """Describe a communicator whose ranks launched different numbers of operations."""
    parts = [
        f"{phrase_ranks(ranks) if ranks and len(ranks) == count else f'{count} ranks'} launched {launched:,}"
        for launched, count, ranks in frozen.parts[:3]
    ]
    return (
        f"communicator {frozen.communicator}: {', '.join(parts)} of {frozen.op}, unchanged in {frozen.samples} reports "
        "of RAS (likely)"
    )
