"""Hand-overs between host threads: a thread that shows no work goes on when another one falls silent."""

from __future__ import annotations

import numpy as np

from tracekit.replay.edges import HAND_OVER, EdgeList, Ints
from tracekit.replay.process_parts.device_ops import MICRO
from tracekit.replay.process_parts.host_threads import HostThreads

SILENT_NS = 20 * MICRO
"""Shorter silences are not looked into."""
PROMPT_NS, FIRST_NS, LEFT_SHARE = 50 * MICRO, 500 * MICRO, 0.3
"""A hand-over takes at most `PROMPT_NS`, `FIRST_NS` to the first row of a thread, or `LEFT_SHARE` of the silence that it ends."""
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
    edges.add(giver, asked, lag, HAND_OVER, -1, inferred=True)
    threads.spent_ns[asked] = 0
    return len(asked)


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
