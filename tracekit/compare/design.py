"""Confounders of a comparison: the order of the runs, and the hosts they ran on."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from tracekit.compare.sides import ComparedSide


def list_confounder_warnings(base: ComparedSide, opt: ComparedSide) -> Iterator[str]:
    """List confounders that the recorded times and hosts reveal; empty if they are unknown."""
    base_hosts, opt_hosts = _collect_known_hosts(base), _collect_known_hosts(opt)
    other_hosts = bool(base_hosts and opt_hosts and not base_hosts & opt_hosts)
    if order := describe_session_order(base, opt):
        where = ", on other hosts" if other_hosts else ""
        yield (
            f"all base runs ran {order} all opt runs{where}: what changed in between cannot be told from"
            " the change (alternate the runs)"
        )
    elif other_hosts:
        yield "the sides ran on other hosts: a difference between hosts cannot be told from the change"


def describe_session_order(base: ComparedSide, opt: ComparedSide) -> str:
    """Describe the order of sides whose runs do not interleave: "before" or "after".

    Empty if they interleave, or if the order is unknown.
    """
    base_spans, opt_spans = list_run_spans(base), list_run_spans(opt)
    if min(len(base_spans), len(opt_spans)) < 2:
        return ""
    if _get_last_end(base_spans) <= _get_first_start(opt_spans):
        return "before"
    if _get_last_end(opt_spans) <= _get_first_start(base_spans):
        return "after"
    return ""


def _get_first_start(spans: list[tuple[int, int]]) -> int:
    """Get the start of the first of several runs."""
    return min(spans)[0]


def _get_last_end(spans: list[tuple[int, int]]) -> int:
    """Get the end of the last of several runs."""
    return max(end for _, end in spans)


def list_run_spans(side: ComparedSide) -> list[tuple[int, int]]:
    """List the (first, last) instant of every run whose clock counts from the Unix epoch."""
    if not side.measured:
        return []
    tables = [measured["captures"] for measured in side.measured]
    captures = pd.concat(tables, ignore_index=True)
    captures = captures[captures["absolute_time"].astype(bool)]
    runs = captures.assign(end_ns=captures["ts_ns"] + captures["dur_ns"]).groupby("run", sort=True)
    starts, ends = runs["ts_ns"].min(), runs["end_ns"].max()
    return list(zip((int(start) for start in starts), (int(end) for end in ends), strict=True))


def _collect_known_hosts(side: ComparedSide) -> set[str]:
    """Collect the known hosts of a side."""
    hosts: set[str] = set()
    for measured in side.measured:
        hosts.update(str(host) for host in measured["captures"]["host"].dropna())
    return hosts
