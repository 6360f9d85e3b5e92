"""Could something other than the change explain the difference? Order of the runs, and where they ran."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from tracekit.compare.sides import Side
from tracekit.job.frames import plain


def design_warnings(base: Side, opt: Side) -> Iterator[str]:
    """What the recorded times and hosts say of the design; nothing where they are not known."""
    hosts = [_hosts(side) for side in (base, opt)]
    apart = bool(hosts[0] and hosts[1] and not hosts[0] & hosts[1])
    where = ", on other hosts" if apart else ""
    if order := sessions_apart(base, opt):
        yield (
            f"all base runs ran {order} all opt runs{where}: what changed in between cannot be told from"
            " the change (alternate the runs)"
        )
        return
    if apart:
        yield "the sides ran on other hosts: a difference between hosts cannot be told from the change"


def sessions_apart(base: Side, opt: Side) -> str:
    """Whether all runs of the first side ran "before" or "after" all of the second; empty where neither, or unknown."""
    spans = [run_spans(side) for side in (base, opt)]
    if min(map(len, spans)) > 1:
        for first, second, order in ((0, 1, "before"), (1, 0, "after")):
            if max(end for _, end in spans[first]) <= min(start for start, _ in spans[second]):
                return order
    return ""


def run_spans(side: Side) -> list[tuple[int, int]]:
    """(first, last) instant of every run whose clock counts from the Unix epoch."""
    if not side.measured:
        return []
    captures = pd.concat([plain(part["captures"]) for part in side.measured], ignore_index=True)
    captures = captures[captures["absolute_time"].astype(bool)]
    end = captures["ts_ns"] + captures["dur_ns"]
    return [
        (int(mine["ts_ns"].min()), int(end[mine.index].max()))
        for _, mine in captures.groupby("run", sort=True)
    ]


def _hosts(side: Side) -> set[str]:
    """The hosts that are known."""
    return {
        str(host) for part in side.measured for host in plain(part["captures"])["host"].dropna()
    }
