"""Slow links: rank groups whose collectives move bytes far slower than those of their peers, or than before.

Peers are process groups of one run and role with as many ranks, equally far apart, that share no rank: the same kind of
parallelism over the same kind of link. The comparison uses the transfer time of one operation and size, the shortest of
any rank, which excludes waits for late ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracekit.job.collectives.traffic import list_rated_collectives
from tracekit.model.intervals import measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.frame import Bools, Frame, Ints, median_of, number_alike, texts
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements

TRANSFER_KIND = ("run", "role", "op", "doublings", "shape")
"""Keys that transfers must share to be compared; `doublings` is log2 of their bytes."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One slow operation of one group: `slow` are its rows in `collectives`, `excess_ns` the excess time of each.

    `rate` and `usual_rate` are medians in bytes per nanosecond (GB/s). `since` is the first slow step, None if it was slow
    all the time, compared with `peers` other groups.
    """

    run: str | None
    role: str | None
    op: str
    group: str
    ranks: tuple[int, ...]
    rate: float
    usual_rate: float
    peers: int
    since: int | None
    slow: Ints
    excess_ns: Ints


def find_slow_links(measured: Measurements, limit: Mapping[str, float]) -> list[SlowLink]:
    """Find the groups with slow transfers: slower than their peers, or than themselves before some step."""
    links: list[SlowLink] = []
    for of_kind in _list_comparable_transfers(measured, limit["least_bytes"]).group_by(*TRANSFER_KIND).frames():
        groups = [rows for rows in of_kind.group_by("group").frames() if len(rows) >= limit["least_count"]]
        beside_peers = list(_find_links_slower_than_peers(groups, limit))
        slow_groups = {link.group for link in beside_peers}
        links += beside_peers
        for rows in groups:
            if rows.head(1).values("group")[0] not in slow_groups:
                links += _find_link_slowdown_over_time(rows, limit)
    return [_attach_slow_link_rows(measured, link) for link in links]


def list_slow_link_intervals(measured: Measurements, links: Sequence[SlowLink]) -> Frame:
    """List the collectives of slow links as intervals of their exposed excess time, at the end of each."""
    places = np.concatenate([np.empty(0, np.int64), *(link.slow for link in links)])
    excess = np.concatenate([np.empty(0, np.int64), *(link.excess_ns for link in links)])
    rows = list_rated_collectives(measured).take(places)
    is_exposed = ~rows.is_missing("exposed_ns")
    rows, excess = rows.filter(is_exposed), excess[is_exposed]
    shared_ns = _measure_concurrent_collectives(measured, rows, places[is_exposed])
    exposed, waited = rows.integers("exposed_ns"), rows.integers("wait_ns")
    lost = np.minimum(excess, np.maximum(exposed - waited - shared_ns, 0))
    return rows.with_columns(ts_ns=rows["ts_ns"] + rows["dur_ns"] - lost, dur_ns=lost, exposed_ns=lost)


def _measure_concurrent_collectives(measured: Measurements, rows: Frame, places: Ints) -> Ints:
    """Measure how long other collectives run on the device during each of these; compute waits for them too.

    `places` are those of the rows among all collectives.
    """
    shared_ns = np.zeros(len(rows), np.int64)
    if not len(rows):
        return shared_ns
    others = list_rated_collectives(measured)
    is_other = ~others.is_missing("exposed_ns")
    is_other[places] = False
    others = others.filter(is_other)
    of_row, of_other = number_alike([*CAPTURE, "device"], rows, others)
    start, other_start = rows["ts_ns"], others["ts_ns"]
    end, other_end = start + rows["dur_ns"], other_start + others["dur_ns"]
    for lane in np.unique(of_row).tolist():
        is_row, is_other = of_row == lane, of_other == lane
        running = merge_intervals(other_start[is_other], other_end[is_other])
        shared_ns[is_row] = measure_coverage(running, start[is_row], end[is_row])
    return shared_ns


def _list_comparable_transfers(measured: Measurements, least_bytes: float) -> Frame:
    """List the comparable transfers, one row per collective: kind, group, members, step, start and rate."""
    rows = list_rated_collectives(measured)
    is_known = ~rows.is_missing("transfer_bytes") & ~rows.is_missing("match")
    known = rows.filter(is_known & (rows.integers("size_bytes") >= least_bytes))
    groups = known.group_by("run", "role", "group")
    members, shapes = [], []
    for of_group in groups.frames():
        ranks = sorted(set(of_group.values("rank")))
        members.append(" ".join(map(str, ranks)))
        shapes.append(" ".join(map(str, [len(ranks), *np.diff(ranks).tolist()])))
    known = known.with_columns(
        doublings=np.log2(known.number("size_bytes")).astype(np.int64),
        shape=select_rows(texts(shapes), groups.number),
        members=select_rows(texts(members), groups.number),
        rate=known.number("transfer_bytes") / known.number("moved_ns"),
    )
    # All ranks of a collective share one transfer: count it once.
    return known.distinct("match").select(*TRANSFER_KIND, "group", "members", "step", "ts_ns", "rate").sort("ts_ns")


def _list_group_members(transfers: Frame) -> tuple[int, ...]:
    """List the ranks of the group of these transfers."""
    return tuple(map(int, transfers.head(1).values("members")[0].split()))


def _find_links_slower_than_peers(groups: list[Frame], limit: Mapping[str, float]) -> Iterator[SlowLink]:
    """Find the groups with nearly every transfer slower than the median of their peers."""
    medians = np.array([np.median(rows["rate"]) for rows in groups])
    members = [set(_list_group_members(rows)) for rows in groups]
    for place, rows in enumerate(groups):
        peers = [peer for peer in range(len(groups)) if peer != place and members[place].isdisjoint(members[peer])]
        if not peers or len(members[place]) < 2:
            continue
        usual = float(np.median(medians[peers]))
        slow = rows["rate"] < usual * limit["rate_ratio"]
        if slow.mean() >= limit["slow_share"]:
            yield _make_slow_link(rows, slow, usual, len(peers), None)


def _find_link_slowdown_over_time(rows: Frame, limit: Mapping[str, float]) -> Iterator[SlowLink]:
    """Find the step from which on all steps of a group are slower than all before."""
    stepped = rows.filter(~rows.is_missing("step"))
    by_step = stepped.group_by("step").agg(rate=median_of("rate")).sort("step")
    steps, rate, least = by_step.values("step"), by_step["rate"], int(limit["least_steps"])
    if len(steps) < 2 * least or len(_list_group_members(rows)) < 2:
        return
    for place in range(least, len(steps) - least + 1):
        before, after = rate[:place], rate[place:]
        if after.max() < before.min() * limit["rate_ratio"]:
            is_late = rows.integers("step", steps[0]) >= steps[place]
            yield _make_slow_link(rows, is_late, float(np.median(before)), 0, steps[place])
            return


def _make_slow_link(rows: Frame, slow: Bools, usual: float, peers: int, since: int | None) -> SlowLink:
    """Make a slow link, without its rows."""
    labels, none = next(rows.rows("run", "role", "op", "group")), np.empty(0, np.int64)
    rate = float(np.median(rows["rate"][slow]))
    return SlowLink(
        **labels,
        ranks=_list_group_members(rows),
        rate=rate,
        usual_rate=usual,
        peers=peers,
        since=since,
        slow=none,
        excess_ns=none,
    )


def _attach_slow_link_rows(measured: Measurements, link: SlowLink) -> SlowLink:
    """Add the rows of the link, for all ranks and sizes, and the excess of each over its usual rate."""
    rows = list_rated_collectives(measured)
    same = rows.equals("group", link.group) & rows.equals("op", link.op) & ~rows.is_missing("transfer_bytes")
    same &= rows.equals("run", link.run) & rows.equals("role", link.role)
    if link.since is not None:
        same &= ~rows.is_missing("step") & (rows.integers("step") >= link.since)
    places = np.flatnonzero(same)
    moved, wire = rows.integers("moved_ns")[places], rows.number("transfer_bytes")[places]
    excess = np.maximum(moved - wire / link.usual_rate, 0).astype(np.int64)
    return replace(link, slow=places, excess_ns=excess)
