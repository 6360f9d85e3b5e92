"""The answer of a report in one or two sentences, from its own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tracekit.model.report import Cell, Report
from tracekit.model.units import format_quantity
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.report_values import SHARES, RankDelays, RankKey, RankTable, get_overview_rows

LEAST_DELAY = 0.01
"""Share of a step below which a late rank is not part of the answer."""

MOST_PARTS = 4
"""Stages of a log, or places of allocations, in the answer at most."""

LEAST_PART = 0.02
"""Share below which a stage of a log is not part of the answer."""


def write_answer(report: Report, delays: RankDelays) -> str:
    """Write the answer: the step and its parts, and the rank that others wait for; or the peak of memory and its parts.

    Without a step and a peak, as in the dumps of a job that hangs, the first finding is the answer.
    """
    metrics = {metric.name: metric.value for metric in report.headline}
    step_ns = metrics.get("step_wall")
    if report.answer:
        sentence = report.answer
    elif step_ns:
        shares = [f"{_format_answer_share(metrics[name])} {words}" for name, words in SHARES if metrics.get(name)]
        sentence = _join_answer_parts(f"A step takes {format_quantity(step_ns, 'ns')}", shares)
        sentence = " ".join(filter(None, (sentence, _write_late_rank(delays, step_ns))))
    else:
        sentence = (
            _write_logged_step(report)
            or _write_logged_runs(report)
            or _write_memory_peak(report)
            or _write_first_claim(report)
        )
    return make_printable(sentence, phrases.SENTENCE)


def _write_first_claim(report: Report) -> str:
    """Write the claim of the first finding; the title without one."""
    return report.findings[0].claim if report.findings else report.title


def _format_answer_share(share: float | None) -> str:
    """Format a share without a decimal."""
    return "—" if share is None else f"{share:.0%}".replace("%", " %")


def _join_answer_parts(begin: str, parts: list[str]) -> str:
    """Join the begin of a sentence and its parts."""
    return f"{begin}: {', '.join(parts)}." if parts else f"{begin}."


def _write_late_rank(delays: RankDelays, step_ns: float) -> str:
    """Write which of several ranks is the latest, if that costs a noticeable share of the step."""
    late = _find_latest(delays.late_ns)
    if late is not None and late.net_ns > LEAST_DELAY * step_ns:
        waiting = f"Rank {late.others[0].rank} waits" if len(late.others) == 1 else "Other ranks wait"
        return f"{waiting} {format_quantity(late.time_ns, 'ns')} for {late.name}."
    busiest = _find_latest(delays.beyond_ns, fewest=2)
    if busiest is not None and busiest.time_ns > LEAST_DELAY * step_ns:
        return f"R{busiest.name[1:]} works {format_quantity(busiest.time_ns, 'ns')} longer than the median rank."
    return ""


class LateRank(NamedTuple):
    """A rank with the longest time, the others that it is compared with, and its time beyond that of an only other."""

    name: str
    time_ns: float
    net_ns: float
    others: list[RankKey]


def _find_latest(table: RankTable, fewest: int = 1) -> LateRank | None:
    """Find the rank with the longest time among those with at least so many others to compare with; None without such."""
    groups: dict[tuple[Cell, ...], list[RankKey]] = {}
    for key in table.values:
        groups.setdefault(key[:3], []).append(key)
    compared = []
    for keys in groups.values():
        if len(keys) > fewest:
            key = max(keys, key=table.values.__getitem__)
            others = [other for other in keys if other != key]
            # Of two ranks, each waits for the other at times.
            back_ns = table.values[others[0]] if len(others) == 1 else 0.0
            time_ns = table.values[key]
            compared.append(LateRank(_name_rank(key, table), time_ns, time_ns - back_ns, others))
    return max(compared, key=lambda late: late.net_ns, default=None)


def _name_rank(key: RankKey, table: RankTable) -> str:
    """Name a rank, with its run, role and replica where the table has several."""
    names = [str(label) for at, label in enumerate(key[:3]) if len({other[at] for other in table.values}) > 1]
    return f"rank {key.rank}" + (f" of {', '.join(names)}" if names else "")


def _write_logged_step(report: Report) -> str:
    """Write the step of a log alone and its longest stages; empty without one, or with several logs."""
    rows = get_overview_rows(report, "stage", "mean_ns", "share_ratio", "how")
    medians = [metric.value for metric in report.headline if metric.name == "logged_step"]
    if len(rows) < 2 or len(medians) != 1:
        return ""
    (_, mean_ns, *_), *stages = rows
    begin = f"A step takes {format_quantity(mean_ns, 'ns')} on average (median {format_quantity(medians[0], 'ns')})"
    return _join_answer_parts(begin, list(_list_answer_stages(stages)))


def _write_logged_runs(report: Report) -> str:
    """Write the mean step of each of several logs, where the first table has a column per run; empty otherwise."""
    sheet = report.overview
    if sheet is None or not sheet.rows or [heading.name for heading in sheet.headings[:1]] != ["stage"]:
        return ""
    columns = list(zip(sheet.headings, sheet.rows[0], strict=True))[1:]
    known = [(heading, ns) for heading, ns in columns if heading.unit == "ns" and isinstance(ns, int | float)]
    if len(known) < max(len(columns), 2):
        return ""
    steps = [f"{format_quantity(ns, heading.unit)} in {heading.title}" for heading, ns in known]
    return f"A step takes {', '.join(steps)}."


def _list_answer_stages(stages: list[tuple[Cell, ...]]) -> Iterator[str]:
    """List the longest stages, each with its share and note."""
    for stage, _, share, how in stages[:MOST_PARTS]:
        if isinstance(share, float) and share >= LEAST_PART:
            yield f"{_format_answer_share(share)} {stage}" + (f" ({how})" if how else "")


def _write_memory_peak(report: Report) -> str:
    """Write the highest peak of memory snapshots and where it was allocated; empty without snapshots."""
    rows = get_overview_rows(report, "where", "size_bytes", "share_ratio")
    peaks = [metric for metric in report.headline if metric.name == "peak_requested"]
    if not rows or not peaks:
        return ""
    begin = f"The {peaks[0].label} is {format_quantity(peaks[0].value, 'bytes')}"
    parts = [
        f"{_format_answer_share(share)} by {where}" for where, _, share in rows[:MOST_PARTS] if isinstance(share, float)
    ]
    return _join_answer_parts(begin, parts)
