"""The answer of a report in one or two sentences, from its own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracekit.model.report import Cell, Report
from tracekit.model.units import format_quantity
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.report_values import SHARES, Member, RankDelays, get_overview_rows

LEAST_DELAY = 0.01
"""Share of a step below which a late rank is not part of the answer."""

MOST_PARTS = 4
"""Stages of a log, or places of allocations, in the answer at most."""

LEAST_PART = 0.02
"""Share below which a stage of a log is not part of the answer."""


def write_answer(report: Report, delays: RankDelays) -> str:
    """Write the answer: the step and its parts, and the rank that others wait for; or the peak of memory and its parts."""
    metrics = {metric.name: metric.value for metric in report.headline}
    step_ns = metrics.get("step_wall")
    if report.answer:
        sentence = report.answer
    elif step_ns:
        shares = [f"{_format_answer_share(metrics[name])} {words}" for name, words in SHARES if metrics.get(name)]
        sentence = _join_answer_parts(f"A step takes {format_quantity(step_ns, 'ns')}", shares)
        sentence = " ".join(filter(None, (sentence, _write_late_rank(delays, step_ns))))
    else:
        sentence = _write_logged_step(report) or _write_memory_peak(report) or report.title
    return make_printable(sentence, phrases.SENTENCE)


def _format_answer_share(share: float | None) -> str:
    """Format a share without a decimal."""
    return "—" if share is None else f"{share:.0%}".replace("%", " %")


def _join_answer_parts(begin: str, parts: list[str]) -> str:
    """Join the begin of a sentence and its parts."""
    return f"{begin}: {', '.join(parts)}." if parts else f"{begin}."


def _write_late_rank(delays: RankDelays, step_ns: float) -> str:
    """Write which of several ranks is the latest, if that costs a noticeable share of the step."""
    late = _find_latest(delays.late_ns)
    if late is not None:
        member, waits_ns, others = late
        # Of two ranks, each waits for the other at times.
        if waits_ns - (delays.late_ns[others[0]] if len(others) == 1 else 0.0) > LEAST_DELAY * step_ns:
            waiting = f"Rank {others[0][1]} waits" if len(others) == 1 else "Other ranks wait"
            return f"{waiting} {format_quantity(waits_ns, 'ns')} for {_name_member(member, delays)}."
    busiest = _find_latest(delays.beyond_ns)
    if busiest is not None and len(busiest[2]) > 1 and busiest[1] > LEAST_DELAY * step_ns:
        name = _name_member(busiest[0], delays)
        return f"{name[0].upper()}{name[1:]} works {format_quantity(busiest[1], 'ns')} longer than the median rank."
    return ""


def _find_latest(times: Mapping[Member, float]) -> tuple[Member, float, list[Member]] | None:
    """Find the rank with the longest time, and the others of its role; None without others."""
    if not times:
        return None
    (role, rank), time = max(times.items(), key=lambda pair: pair[1])
    others = [other for other in times if other[0] == role and other[1] != rank]
    return ((role, rank), time, others) if others else None


def _name_member(member: Member, delays: RankDelays) -> str:
    """Name a rank, with its role where several roles are compared."""
    role, rank = member
    several = len({role for role, _ in delays.late_ns}) > 1
    return f"rank {rank} of {role}" if role and several else f"rank {rank}"


def _write_logged_step(report: Report) -> str:
    """Write the step of a log alone and its longest stages; empty without one, or with several logs."""
    rows = get_overview_rows(report, "stage", "mean_ns", "share_ratio", "how")
    medians = [metric.value for metric in report.headline if metric.name == "logged_step"]
    if len(rows) < 2 or len(medians) != 1:
        return ""
    (_, mean_ns, *_), *stages = rows
    begin = f"A step takes {format_quantity(mean_ns, 'ns')} on average (median {format_quantity(medians[0], 'ns')})"
    return _join_answer_parts(begin, list(_list_answer_stages(stages)))


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
