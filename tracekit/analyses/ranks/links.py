"""Slow links: groups whose transfers are slower than those of their peers, or than before (R35)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.collectives.slow_links import SlowLink, find_slow_links, list_slow_link_intervals
from tracekit.job.collectives.traffic import list_rated_collectives
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import count_steps_of_processes
from tracekit.model.report import SEVERITIES, Finding, Metric, Place, Section, Severity, Sheet
from tracekit.model.tables.frame import from_rows
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.text.labels import choose_plural, format_numbered_word, join_first_few
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

MAX_RANKS = 8
"""Maximum number of ranks of a group in a claim."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the collectives."""
    del trace
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report groups with slow transfers; judge R35."""
    if not measured.row_count("collectives"):
        return ANALYSIS.skipped("no collective was recorded")
    if list_rated_collectives(measured).is_missing("transfer_bytes").all():
        return ANALYSIS.skipped("no collective of known size was seen on two ranks")
    links = find_slow_links(measured, thresholds.of("slow-link"))
    by_group: dict[tuple[object, ...], list[SlowLink]] = {}
    for link in links:
        by_group.setdefault((link.run, link.role, link.ranks, link.since), []).append(link)
    findings = (_report_slow_link(measured, of_group, thresholds) for of_group in by_group.values())
    return ANALYSIS.answered(
        findings=tuple(findings), sheets=lambda: select_filled_sheets(_make_slow_link_table(measured, links))
    )


def _report_slow_link(measured: Measurements, links: list[SlowLink], thresholds: Thresholds) -> Finding:
    """Report R35 for one group of ranks; transfer time that overlaps compute saves no time."""
    worst = max(links, key=lambda link: (int(link.excess_ns.sum()), link.op))
    rows = list_rated_collectives(measured).take(np.concatenate([link.slow for link in links]))
    steps = count_steps_of_processes(measured, rows)
    gain, ratio = steps.per_step(int(list_slow_link_intervals(measured, links)["dur_ns"].sum()))
    excess = steps.mean(sum(int(link.excess_ns.sum()) for link in links))
    severity: Severity = thresholds.severity(ratio)
    if severity == "info":
        severity = SEVERITIES[2]
    return Finding(
        "slow-link",
        severity,
        f"{_describe_link_ranks(worst)} are on a slow link: {worst.op} moves {format_quantity(worst.rate, 'gb_per_s')},"
        f" {_describe_usual_rate(worst)}{phrase_run(measured, worst.run)}",
        "check the link of these ranks: speed and errors of the port, cables, NCCL's path (NCCL_DEBUG=INFO), other jobs on the same switch",
        (
            Metric("gb_per_s", worst.rate, "gb_per_s", "higher", label=f"{worst.op} over the wire"),
            Metric("usual_gb_per_s", worst.usual_rate, "gb_per_s", "neither", label="usual"),
            make_evidence_metric("excess_ns", round(excess), "longer than usual, per step and rank"),
        ),
        tuple(Place(role=worst.role, rank=rank, name=worst.op) for rank in worst.ranks[:MAX_RANKS]),
        round(gain),
        ratio,
        ("excludes time that overlaps with compute",),
        changes=tuple(
            write_change(
                "scale", "collective", group=write_name_pattern([link.group]), factor=link.rate / link.usual_rate
            )
            for link in links
            if link.group
        ),
        instances=pick_instances(
            rows.with_columns(cost=np.concatenate([link.excess_ns for link in links])), "cost", name=worst.op
        ),
    )


def _describe_link_ranks(link: SlowLink) -> str:
    """Describe a group by its ranks."""
    ranks = join_first_few([str(rank) for rank in link.ranks], MAX_RANKS)
    return f"{choose_plural(len(link.ranks), 'rank')} {ranks}"


def _describe_usual_rate(link: SlowLink) -> str:
    """Describe the rate that the link is compared with."""
    usual = format_quantity(link.usual_rate, "gb_per_s")
    if link.since is not None:
        return f"from {format_numbered_word('step', link.since)} on; before {usual}"
    peers = "other group" if link.peers == 1 else f"{link.peers} other groups"
    return f"the {peers} of its kind {usual}"


def _make_slow_link_table(measured: Measurements, links: list[SlowLink]) -> Sheet:
    """Make the table of slow links."""
    names = ("run", "role", "op", "group", "rate", "usual_rate", "since")
    table = from_rows(
        [*names, "ranks", "count"],
        [(*(getattr(link, name) for name in names), _describe_link_ranks(link), len(link.slow)) for link in links],
    )
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            role | role
            op | op
            group | group
            ranks | ranks
            rate | moved | gb_per_s | Median of bytes on the wire over the transfer: the shortest time of any rank.
            usual_rate | usual | gb_per_s | Of its peers, or of its own steps before.
            since | since step | id
            count | collectives | count | Rows of all ranks.
        """),
    )
    return make_sheet("slow_links", "Slow links", headings, table)


ANALYSIS = Analysis(
    id="links",
    title="Is every link as fast as its peers, and as before?",
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
        }
    },
    measure=measure,
    judge=judge,
)
