"""Sampling of ranks: chosen by number, spread over the job, before any file is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import Data
from tracekit.model.inputs.sources import Note, Source

SAMPLED = "sampled"
"""Code of the note on ranks left out by sampling."""

_SHOWN = 12
"""Most ranks named in the note."""


def sample_ranks(sources: Sequence[Source], count: int) -> tuple[list[Source], list[Note]]:
    """Sample `count` ranks: (their sources and those without a rank, a note on the others). Keeps all if there are fewer.

    Deterministic: the first and last rank, then one of every role, then one of every host, then the rank furthest
    from all chosen ones. Raises `TracekitError` if no name has a rank.
    """
    if count < 1:
        raise TracekitError(f"a sample of {count} ranks holds nothing", "ask for 1 or more")
    ranks = np.array(sorted({s.rank for s in sources if s.rank is not None}), np.int64)
    if not len(ranks):
        raise TracekitError(
            "the names of these files tell no ranks: none can be chosen before they are read",
            "leave out --sample, or choose files with --exclude",
        )
    if len(ranks) <= count:
        return list(sources), []
    chosen = set(_choose_spread_ranks(ranks, _group_ranks(sources), count))
    sampled = [source for source in sources if source.rank is None or source.rank in chosen]
    names = [str(rank) for rank in sorted(chosen)]
    if count > _SHOWN:
        names[_SHOWN:] = ["…"]
    message = (
        f"{count:,} of {len(ranks):,} ranks were read ({', '.join(names)}), chosen by number: "
        f"{len(sources) - len(sampled):,} sources were left out, and a straggler may be among them"
    )
    data = Data(read=count, ranks=len(ranks))
    return sampled, [Note("warning", SAMPLED, message, data=data)]


def _group_ranks(sources: Iterable[Source]) -> list[list[set[int]]]:
    """Group the ranks by role and by host, as far as names tell."""
    roles: dict[tuple[str, str | None], set[int]] = {}
    hosts: dict[str, set[int]] = {}
    for source in sources:
        if source.rank is not None:
            roles.setdefault((source.run, source.role), set()).add(source.rank)
            if source.host is not None:
                hosts.setdefault(source.host, set()).add(source.rank)
    return [[*roles.values()], [*hosts.values()]]


def _choose_spread_ranks(ranks: npt.NDArray[np.int64], kinds: Sequence[Sequence[set[int]]], count: int) -> list[int]:
    """Choose `count` ranks, in order of choice."""
    places = np.arange(len(ranks))
    chosen = [int(ranks[0]), int(ranks[-1])][:count]
    far = np.minimum(places, places[::-1])

    def add(candidates: npt.NDArray[np.bool_]) -> None:
        """Add the candidate furthest from all chosen ranks, the first of equals."""
        best = int(np.where(candidates, far, -1).argmax())
        chosen.append(int(ranks[best]))
        np.minimum(far, abs(places - best), out=far)

    for groups in kinds:
        while len(chosen) < count:
            missing = {rank for group in groups if group.isdisjoint(chosen) for rank in group}
            if not missing:
                break
            add(np.isin(ranks, list(missing)))
    while len(chosen) < count:
        add(far > 0)
    return chosen
