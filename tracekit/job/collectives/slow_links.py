"""Slow links: rank groups whose collectives move bytes far slower than those of their peers, or than before.

Peers are process groups of one run and role with as many ranks, equally far apart, that share no rank: the same kind of
parallelism over the same kind of link. The comparison uses the transfer time of one operation and size, the shortest of
any rank, which excludes waits for late ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.collectives.matching import match_collectives
from tracekit.job.collectives.traffic import list_rated_collectives
from tracekit.job.frames import split_by_keys
from tracekit.model.intervals import measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import CAPTURE, group_rows_by, number_frames_alike
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

TRANSFER_KIND = ("run", "role", "op", "doublings", "shape")
"""Keys that transfers must share to be compared; `doublings` is log2 of their bytes."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One slow operation of one group: `slow` are its rows in `collectives`, `excess_ns` the excess time of each.

    `rate` and `usual_rate` are medians in bytes per nanosecond (GB/s). `since` is the first slow step, None if it was slow
    all the time, compared with `peers` other groups.
    """

    run: object
    role: object
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
    for of_kind in split_by_keys(_list_comparable_transfers(measured, limit["least_bytes"]), TRANSFER_KIND):
        groups = [rows for rows in split_by_keys(of_kind, ["group"]) if len(rows) >= limit["least_count"]]
        beside_peers = list(_find_links_slower_than_peers(groups, limit))
        slow_groups = {link.group for link in beside_peers}
        links += beside_peers
        for rows in groups:
            if rows["group"].iloc[0] not in slow_groups:
                links += _find_link_slowdown_over_time(rows, limit)
    return [_attach_slow_link_rows(measured, link) for link in links]


def list_slow_link_intervals(measured: Measurements, links: Sequence[SlowLink]) -> pd.DataFrame:
    """List the collectives of slow links as intervals of their exposed excess time, at the end of each."""
    places = np.concatenate([np.empty(0, np.int64), *(link.slow for link in links)])
    excess = np.concatenate([np.empty(0, np.int64), *(link.excess_ns for link in links)])
    rows = list_rated_collectives(measured).iloc[places]
    rows = rows[rows["exposed_ns"].notna()]
    excess = excess[list_rated_collectives(measured)["exposed_ns"].notna().to_numpy(np.bool_)[places]]
    exposed = rows["exposed_ns"].to_numpy(np.int64)
    waited = rows["wait_ns"].to_numpy(np.int64, na_value=0)
    shared_ns = _measure_concurrent_collectives(measured, rows)
    lost = np.minimum(excess, np.maximum(exposed - waited - shared_ns, 0))
    end = rows["ts_ns"].to_numpy(np.int64) + rows["dur_ns"].to_numpy(np.int64)
    return rows.assign(ts_ns=end - lost, dur_ns=lost, exposed_ns=pd.array(lost, dtype="Int64"))


def _measure_concurrent_collectives(measured: Measurements, rows: pd.DataFrame) -> Ints:
    """Measure how long other collectives run on the device during each of these; compute waits for them too."""
    shared_ns = np.zeros(len(rows), np.int64)
    if not len(rows):
        return shared_ns
    keys = [*CAPTURE, "device"]
    other_rows = list_rated_collectives(measured).drop(index=rows.index)
    other_rows = other_rows[other_rows["exposed_ns"].notna()]
    of_row, of_other = number_frames_alike(keys, rows, other_rows)
    start, dur = (rows[name].to_numpy(np.int64) for name in ("ts_ns", "dur_ns"))
    other_start, other_dur = (other_rows[name].to_numpy(np.int64) for name in ("ts_ns", "dur_ns"))
    for lane in np.unique(of_row).tolist():
        is_row, is_other = of_row == lane, of_other == lane
        running = merge_intervals(other_start[is_other], (other_start + other_dur)[is_other])
        shared_ns[is_row] = measure_coverage(running, start[is_row], (start + dur)[is_row])
    return shared_ns


def _list_comparable_transfers(measured: Measurements, least_bytes: float) -> pd.DataFrame:
    """List the comparable transfers, one row per collective: kind, group, step, start, wire bytes and transfer time."""
    rows = list_rated_collectives(measured).assign(match=match_collectives(measured)["match"])
    is_large = (rows["size_bytes"] >= least_bytes).fillna(value=False)
    is_known = is_large & rows["transfer_bytes"].notna() & rows["match"].notna()
    names = ["run", "role", "op", "group", "step", "rank", "ts_ns", "match"]
    known = rows.loc[is_known, [*names, "size_bytes", "transfer_bytes", "moved_ns"]]
    if not len(known):
        return known.assign(doublings=0, shape="", members=None, rate=0.0)
    number, first = group_rows_by(known, ["run", "role", "group"])
    shapes, members = _describe_group_shapes(known, number, len(first))
    known = known.assign(
        doublings=np.log2(known["size_bytes"].to_numpy(float)).astype(np.int64),
        shape=shapes[number],
        members=members[number],
        rate=known["transfer_bytes"].to_numpy(float) / known["moved_ns"].to_numpy(float),
    )
    # All ranks of a collective share one transfer: count it once.
    return known.drop_duplicates("match").sort_values("ts_ns", kind="stable")


def _describe_group_shapes(transfers: pd.DataFrame, number: Ints, count: int) -> tuple[Any, Any]:
    """Describe each group: (spacing of its ranks, its ranks), by number."""
    shapes, members = np.full(count, "", object), np.full(count, None, object)
    ranks = transfers["rank"].to_numpy(np.int64)
    order = np.lexsort((ranks, number))
    bounds = np.searchsorted(number[order], np.arange(count + 1))
    for place in range(count):
        of_group = np.unique(ranks[order[bounds[place] : bounds[place + 1]]])
        shapes[place] = " ".join(str(n) for n in [len(of_group), *np.diff(of_group).tolist()])
        members[place] = tuple(of_group.tolist())
    return shapes, members


def _find_links_slower_than_peers(groups: list[pd.DataFrame], limit: Mapping[str, float]) -> Iterator[SlowLink]:
    """Find the groups with nearly every transfer slower than the median of their peers."""
    medians = np.array([float(rows["rate"].median()) for rows in groups])
    for place, rows in enumerate(groups):
        ranks = set(rows["members"].iloc[0])
        peers = []
        for peer, peer_rows in enumerate(groups):
            if peer != place and ranks.isdisjoint(peer_rows["members"].iloc[0]):
                peers.append(peer)
        if not peers or len(ranks) < 2:
            continue
        usual = float(np.median(medians[peers]))
        slow = rows["rate"].to_numpy(float) < usual * limit["rate_ratio"]
        if slow.mean() >= limit["slow_share"]:
            yield _make_slow_link(rows, slow, usual, len(peers), None)


def _find_link_slowdown_over_time(rows: pd.DataFrame, limit: Mapping[str, float]) -> Iterator[SlowLink]:
    """Find the step from which on all steps of a group are slower than all before."""
    stepped = rows[rows["step"].notna()]
    steps = np.unique(stepped["step"].to_numpy(np.int64, na_value=0))
    least = int(limit["least_steps"])
    if len(steps) < 2 * least or len(rows["members"].iloc[0]) < 2:
        return
    by_step = stepped.groupby("step")["rate"].median().to_numpy(float)
    for place in range(least, len(steps) - least + 1):
        before, after = by_step[:place], by_step[place:]
        if after.max() < before.min() * limit["rate_ratio"]:
            is_late = (rows["step"] >= steps[place]).fillna(value=False).to_numpy(np.bool_)
            yield _make_slow_link(rows, is_late, float(np.median(before)), 0, int(steps[place]))
            return


def _make_slow_link(
    rows: pd.DataFrame, slow: npt.NDArray[np.bool_], usual: float, peers: int, since: int | None
) -> SlowLink:
    """Make a slow link, without its rows."""
    first, none = rows.iloc[0], np.empty(0, np.int64)
    rate = float(rows["rate"][slow].median())
    return SlowLink(
        first["run"],
        first["role"],
        str(first["op"]),
        str(first["group"]),
        first["members"],
        rate,
        usual,
        peers,
        since,
        none,
        none,
    )


def _attach_slow_link_rows(measured: Measurements, link: SlowLink) -> SlowLink:
    """Add the rows of the link, for all ranks and sizes, and the excess of each over its usual rate."""
    rows = list_rated_collectives(measured)
    same = (rows["group"] == link.group) & (rows["op"] == link.op) & rows["transfer_bytes"].notna()
    for name in ("run", "role"):
        value = getattr(link, name)
        same &= rows[name].isna() if pd.isna(value) else rows[name] == value
    if link.since is not None:
        same &= (rows["step"] >= link.since).fillna(value=False)
    places = np.flatnonzero(same.to_numpy(np.bool_))
    moved = rows["moved_ns"].to_numpy(np.int64, na_value=0)[places]
    wire = rows["transfer_bytes"].to_numpy(float, na_value=0.0)[places]
    excess = np.maximum(moved - wire / link.usual_rate, 0).astype(np.int64)
    return replace(link, slow=places, excess_ns=excess)
