"""Hand-overs between host threads: a thread that shows no work goes on when another one falls silent."""

from __future__ import annotations

import numpy as np

from tracekit.process.collectives.compute_between_collectives import compute_late_end_slack
from tracekit.replay.edges import HAND_OVER, EdgeList, Ints
from tracekit.replay.process_parts.device_ops import MICRO
from tracekit.replay.process_parts.host_threads import HostThreads

SILENT_NS = 20 * MICRO
"""Shorter silences are not looked into."""
PROMPT_NS, FIRST_NS, LEFT_SHARE = 50 * MICRO, 500 * MICRO, 0.3
"""A hand-over takes at most `PROMPT_NS`, `FIRST_NS` to the first row of a thread, or `LEFT_SHARE` of the silence that it ends."""
LONG_NS = 1_000 * MICRO
"""Shorter silences do not end before a row that ends later."""
LOOK_BACK = 64
"""Silences before the end of one that are tried."""


def add_hand_overs(threads: HostThreads, edges: EdgeList) -> int:
    """Add the edges from threads that fall silent to those that go on then, and return their number.

    A silence that another thread ends has no time of its own.
    """
    count = len(threads.time)
    if not count or threads.thread[0] == threads.thread[-1]:
        return 0
    opens = np.ones(count, np.bool_)
    opens[1:] = threads.thread[1:] != threads.thread[:-1]
    was_quiet = opens.copy()
    was_quiet[1:] |= threads.quiet[:-1]
    falls = np.flatnonzero(threads.quiet & ~was_quiet)
    falls = falls[np.argsort(threads.time[falls], kind="stable")]
    if not len(falls):
        return 0
    ends = np.flatnonzero(~opens & was_quiet & (threads.spent_ns > SILENT_NS))
    asked = np.concatenate((ends, np.flatnonzero(opens)))
    since = np.where(opens[asked], -(2**60), threads.time[asked - 1])
    giver = _find_last_fall(threads, falls, asked, since)
    asked, giver = asked[giver >= 0], giver[giver >= 0]
    lag, silence = threads.time[asked] - threads.time[giver], threads.spent_ns[asked]
    prompt = lag <= PROMPT_NS
    prompt |= np.where(opens[asked], lag < FIRST_NS, lag < LEFT_SHARE * silence)
    asked, giver, lag = asked[prompt], giver[prompt], lag[prompt]
    late, late_giver = _find_late_falls(threads, falls, np.setdiff1d(ends, asked))
    asked, giver = np.concatenate((asked, late)), np.concatenate((giver, late_giver))
    lag = np.concatenate((lag, threads.time[late] - threads.time[late_giver]))
    edges.add(giver, asked, lag, HAND_OVER, -1, inferred=True)
    threads.spent_ns[asked] = 0
    return len(asked)


def _find_late_falls(threads: HostThreads, falls: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Find silences that end shortly before a row as long as they: (their ends, the ends of the rows).

    A thread may record the end of its row only after the thread that waited for it continues.
    """
    silence, time = threads.spent_ns[asked], threads.time
    asked, silence = asked[silence >= LONG_NS], silence[silence >= LONG_NS]
    began, giver = time[asked] - silence, np.full(len(asked), -1, np.int64)
    _, longest = compute_late_end_slack(silence, np.zeros_like(silence))
    is_long = (falls > 0) & (threads.thread[falls - 1] == threads.thread[falls])
    falls = falls[is_long & (time[falls] - time[falls - 1] >= LONG_NS // 2)]
    place = np.searchsorted(time[falls], time[asked], side="right")
    for ahead in range(min(LOOK_BACK, len(falls))):
        at = falls[np.minimum(place + ahead, len(falls) - 1)]
        near = (giver < 0) & (place + ahead < len(falls)) & (time[at] - time[asked] <= longest)
        if not near.any():
            break
        slack, delay = compute_late_end_slack(silence, began - time[at - 1])
        found = near & (threads.thread[at] != threads.thread[asked])
        found &= (time[at] - time[asked] <= delay) & (time[at - 1] <= began + slack)
        giver[found] = at[found]
    return asked[giver >= 0], giver[giver >= 0]


def _find_last_fall(threads: HostThreads, falls: Ints, asked: Ints, since: Ints) -> Ints:
    """Find the last instant after `since` at which another thread fell silent, for each asked instant; -1 for none."""
    found = np.full(len(asked), -1, np.int64)
    place = np.searchsorted(threads.time[falls], threads.time[asked], side="right") - 1
    is_open = np.ones(len(asked), np.bool_)
    for back in range(LOOK_BACK):
        is_open &= place >= back
        at = np.maximum(place - back, 0)
        is_open &= threads.time[falls[at]] > since
        if not is_open.any():
            break
        other = is_open & (threads.thread[falls[at]] != threads.thread[asked])
        found[other] = falls[at[other]]
        is_open &= ~other
    return found
