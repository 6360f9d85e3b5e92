"""Slow links: groups whose transfers are slower than those of their peers, or than before (R35)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.collectives.slow_links import SlowLink, lost_rows, slow_links
from tracekit.job.collectives.traffic import collectives
from tracekit.job.evidence import evidence
from tracekit.job.frames import in_run, run_heading, text_or_none
from tracekit.job.stages.windows import steps_of
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.labels import called, first_few, plural
from tracekit.model.report import SEVERITIES, Finding, Metric, Place, Section, Severity, Sheet
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show

MAX_RANKS = 8
"""Maximum number of ranks of a group in a claim."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the collectives."""
    del trace
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report groups with slow transfers; judge R35."""
    if not len(measured.columns("collectives")):
        return ANALYSIS.skipped("no collective was recorded")
    if bool(collectives(measured)["transfer_bytes"].isna().all()):
        return ANALYSIS.skipped("no collective of known size was seen on two ranks")
    links = slow_links(measured, thresholds.of("slow-link"))
    by_group: dict[tuple[object, ...], list[SlowLink]] = {}
    for link in links:
        by_group.setdefault((link.run, link.role, link.ranks, link.since), []).append(link)
    findings = (_finding(measured, of_group, thresholds) for of_group in by_group.values())
    return ANALYSIS.answered(
        findings=tuple(findings), sheets=lambda: with_rows(_sheet(measured, links))
    )


def _finding(measured: Measurements, links: list[SlowLink], thresholds: Thresholds) -> Finding:
    """Report R35 for one group of ranks; transfer time that overlaps compute saves no time."""
    worst = max(links, key=lambda link: (int(link.excess_ns.sum()), link.op))
    rows = collectives(measured).iloc[np.concatenate([link.slow for link in links])]
    steps = steps_of(measured, rows)
    gain, ratio = steps.per_step(int(lost_rows(measured, links)["dur_ns"].sum()))
    excess = steps.mean(sum(int(link.excess_ns.sum()) for link in links))
    severity: Severity = thresholds.severity(ratio)
    if severity == "info":
        severity = SEVERITIES[2]
    places = []
    for rank in worst.ranks[:MAX_RANKS]:
        places.append(Place(role=text_or_none(worst.role), rank=rank, name=worst.op))
    return Finding(
        "slow-link",
        severity,
        f"{_group(worst)} are on a slow link: {worst.op} moves {show(worst.rate, 'gb_per_s')},"
        f" {_usual(worst)}{in_run(measured, worst.run)}",
        "check the link of these ranks: speed and errors of the port, cables, the path that NCCL chose (NCCL_DEBUG=INFO),"
        " neighbours on the same switch",
        (
            Metric("gb_per_s", worst.rate, "gb_per_s", "higher", label=f"{worst.op} over the wire"),
            Metric("usual_gb_per_s", worst.usual_rate, "gb_per_s", "neither", label="usual"),
            evidence("excess_ns", round(excess), "longer than usual, per step and rank"),
        ),
        tuple(places),
        round(gain),
        ratio,
        ("time that compute beside it hides is not counted: it gives nothing back",),
    )


def _group(link: SlowLink) -> str:
    """Describe a group by its ranks."""
    ranks = first_few(list(map(str, link.ranks)), MAX_RANKS)
    return f"{plural(len(link.ranks), 'rank')} {ranks}"


def _usual(link: SlowLink) -> str:
    """Describe the rate that the link is compared with."""
    usual = show(link.usual_rate, "gb_per_s")
    if link.since is not None:
        return f"from {called('step', link.since)} on; before {usual}"
    peers = "other group" if link.peers == 1 else f"{link.peers} other groups"
    return f"the {peers} of its kind {usual}"


def _sheet(measured: Measurements, links: list[SlowLink]) -> Sheet:
    """Make the table of slow links."""
    import pandas as pd

    table = pd.DataFrame(
        [
            {
                "run": link.run,
                "role": link.role,
                "op": link.op,
                "group": link.group,
                "ranks": _group(link),
                "rate": link.rate,
                "usual_rate": link.usual_rate,
                "since": link.since,
                "count": len(link.slow),
            }
            for link in links
        ],
        columns=["run", "role", "op", "group", "ranks", "rate", "usual_rate", "since", "count"],
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            role | role
            op | op
            group | group
            ranks | ranks
            rate | moved | gb_per_s | Median of what crosses the wire, over the transfer: the shortest time of any rank.
            usual_rate | usual | gb_per_s | Of its peers, or of its own steps before.
            since | since step | id
            count | collectives | count | Rows of all ranks.
        """),
    )
    return sheet("slow_links", "Slow links", headings, table)


ANALYSIS = Analysis(
    id="links",
    title="Does every link move its bytes as fast as its peers, and as before?",
    bases={"slow-link": "modelled"},
    reads=(),
    writes=(),
    rests_on=("collectives", "gpu_time"),
    rules=("slow-link",),
    thresholds={
        "slow-link": {
            # Messages below this size take as long as the latency of their steps, whatever the link.
            "least_bytes": 1_048_576,
            # Minimum number of transfers of a group and size.
            "least_count": 4,
            # A group is slow at less than this share of the median rate of its peers (or of its own steps before): groups of clean
            # simulated jobs have 98 % and more of it, those with a sixth of the link's rate 19 %,
            "rate_ratio": 0.5,
            # in at least this share of its transfers (single ones of real gloo runs fall to 36 % of their own median),
            "slow_share": 0.9,
            # and, compared with its own past, in at least this many steps, after at least as many normal ones.
            "least_steps": 2,
        },
    },
    measure=measure,
    judge=judge,
)
