"""Phrases for host activity while GPUs wait: the function, the range, the CPU sample, or the ops around it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tracekit.job.idle_time.call_tree import IdleCulprit, find_culprit_of_owner
from tracekit.job.idle_time.causes import NEARLY_ALL, HostPauses
from tracekit.job.idle_time.host_collectives import phrase_awaited_rank
from tracekit.job.stages.windows import Owner
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.process.host.cpu_samples import OFF_CPU


def is_mostly_outside_stages(lost: HostPauses) -> bool:
    """Check whether most of the pauses are outside any stage."""
    return 2 * lost.outside_ns > lost.total_ns


def describe_host_pauses(measured: Measurements, owner: Owner, lost: HostPauses) -> tuple[str, str, tuple[str, ...]]:
    """Describe pauses by their largest kind: (host activity, advice, caveats)."""
    named_culprit = partial(find_culprit_of_owner, measured, owner, is_outside=is_mostly_outside_stages(lost))
    if lost.short_ns > max(lost.silent_ns, lost.code_ns):
        culprit = named_culprit(("python", "range", "sample", "off_cpu", "nothing"))
        place = "" if culprit is None else f", most in {_phrase_culprit_with_share(culprit)}"
        advice = "record the code between the ops: with_stack=True, ranges (NVTX), CPU samples"
        return f"the host is between ops, in many short pauses{place}", advice, ()
    if lost.code_ns > lost.silent_ns:
        culprit = named_culprit(("python", "range"))
        if culprit is None:
            place = "the host runs Python"
        else:
            waiting = phrase_awaited_rank(measured, culprit, owner)
            place = f"the host is in {_phrase_culprit_with_share(culprit)}{waiting}"
        return place, "shorten it, or run it ahead of the step: in workers, or on the GPU", ()
    culprit = named_culprit(("sample", "off_cpu"))
    if culprit is not None:
        advice = "find its caller: mark it with ranges (NVTX), or record Python with with_stack=True"
        return f"the host is {_phrase_cpu_sample(culprit)}", advice, ()
    culprit = named_culprit(("nothing",))
    around = "" if culprit is None else culprit.place.partition("(nothing recorded, ")[2].rstrip(")")
    what = f"no host activity is recorded{_phrase_pause_bounds(around) or _phrase_stages_of_pauses(lost)}"
    advice = "record the host's activity: with_stack=True, ranges (NVTX), or CPU samples"
    return (
        what,
        advice,
        ("the host's activity is not in the trace: it may have waited for another process or a file",),
    )


def _phrase_stages_of_pauses(lost: HostPauses) -> str:
    """Phrase the stages with nearly all pauses, most first: ` in reward`; empty where most are outside of stages."""
    if is_mostly_outside_stages(lost):
        return ""
    stages: list[str] = []
    covered_ns = 0
    for window in sorted(lost.windows, key=lambda window: -lost.stages.get(window.key, 0)):
        if window.canonical and covered_ns < NEARLY_ALL * lost.total_ns:
            stages.append(window.canonical)
            covered_ns += lost.stages.get(window.key, 0)
    return f" in {', '.join(stages)}" if stages else ""


def _phrase_pause_bounds(around: str) -> str:
    """Phrase the activity around a pause, for the end of a sentence: ` between aten::mm and aten::add`."""
    if not around:
        return ""
    after, both, before = around.removeprefix("after ").partition(", before ")
    return f" between {after} and {before}" if both else f" {around}"


def _phrase_cpu_sample(culprit: IdleCulprit) -> str:
    """Phrase a place that only CPU samples show, to follow "the host is"."""
    if culprit.place in OFF_CPU.values():
        return _phrase_culprit_with_share(replace(culprit, place=culprit.place.strip("()")))
    return f"in {_phrase_culprit_with_share(culprit)}, according to CPU samples"


def _phrase_culprit_with_share(culprit: IdleCulprit) -> str:
    """Phrase a place, with its share unless it is nearly all."""
    return (
        culprit.place
        if culprit.ratio >= NEARLY_ALL
        else f"{culprit.place} ({format_quantity(culprit.ratio, 'ratio')} of that time)"
    )
