"""Confounders of a comparison: the order of the runs, and the hosts they ran on."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from tracekit.compare.sides import Side


def design_warnings(base: Side, opt: Side) -> Iterator[str]:
    """List confounders that the recorded times and hosts reveal; empty if they are unknown."""
    base_hosts, opt_hosts = _hosts(base), _hosts(opt)
    other_hosts = bool(base_hosts and opt_hosts and not base_hosts & opt_hosts)
    if order := sessions_apart(base, opt):
        where = ", on other hosts" if other_hosts else ""
        yield (
            f"all base runs ran {order} all opt runs{where}: what changed in between cannot be told from"
            " the change (alternate the runs)"
        )
    elif other_hosts:
        yield "the sides ran on other hosts: a difference between hosts cannot be told from the change"


def sessions_apart(base: Side, opt: Side) -> str:
    """Describe the order of sides whose runs do not interleave: "before" or "after".

    Empty if they interleave, or if the order is unknown.
    """
    base_spans, opt_spans = run_spans(base), run_spans(opt)
    if min(len(base_spans), len(opt_spans)) < 2:
        return ""
    if _ends(base_spans) <= _begins(opt_spans):
        return "before"
    if _ends(opt_spans) <= _begins(base_spans):
        return "after"
    return ""


def _begins(spans: list[tuple[int, int]]) -> int:
    """Get the start of the first of several runs."""
    return min(spans)[0]


def _ends(spans: list[tuple[int, int]]) -> int:
    """Get the end of the last of several runs."""
    return max(end for _, end in spans)


def run_spans(side: Side) -> list[tuple[int, int]]:
    """List the (first, last) instant of every run whose clock counts from the Unix epoch."""
    if not side.measured:
        return []
    tables = [measured["captures"] for measured in side.measured]
    captures = pd.concat(tables, ignore_index=True)
    captures = captures[captures["absolute_time"].astype(bool)]
    runs = captures.assign(end_ns=captures["ts_ns"] + captures["dur_ns"]).groupby("run", sort=True)
    starts, ends = runs["ts_ns"].min(), runs["end_ns"].max()
    return list(zip(map(int, starts), map(int, ends), strict=True))


def _hosts(side: Side) -> set[str]:
    """Collect the known hosts of a side."""
    hosts: set[str] = set()
    for measured in side.measured:
        hosts.update(map(str, measured["captures"]["host"].dropna()))
    return hosts
