"""Capture outcomes recorded in manifests: captures that were lost, with reasons, and captures written elsewhere."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tracekit.discover.manifests import Manifest, name_process
from tracekit.discover.nsys_files import REPORT_SUFFIXES, STREAM_SUFFIX
from tracekit.model.codes import Data
from tracekit.model.labels import choose_plural, join_first_few
from tracekit.model.sources import Note, NoteSeverity, ReportedCapture, Source
from tracekit.model.units import format_ranges

_MOST_NAMED = 3


def note_capture_outcomes(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> list[Note]:
    """Compare the captures in manifests with the present files; `passed_over` are names of files that are not read."""
    told = _drop_duplicate_manifests(manifests)
    return [*_note_lost_captures(told), *_note_captures_elsewhere(told, sources, passed_over)]


def _drop_duplicate_manifests(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Remove duplicate manifests: a process under nsys also has one in Ray's session."""
    distinct = {(m.host, m.pid, m.tool, m.role, m.rank) if m.pid is not None else m.path: m for m in manifests}
    return [*distinct.values()]


def _note_lost_captures(manifests: Sequence[Manifest]) -> Iterator[Note]:
    """Note each reason for lost or incomplete captures, with the processes that recorded it."""
    processes: dict[tuple[str, tuple[int, ...], bool], list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        for (reason, is_lost), steps in _group_steps_by_reason(manifest).items():
            processes[reason, tuple(steps), is_lost].append(manifest)
    for (reason, in_steps, is_lost), told in processes.items():
        who = join_first_few([name_process(manifest) for manifest in told], _MOST_NAMED)
        message = f"{who}: {_describe_step_outcome(in_steps, is_lost)}: {reason}"
        severity: NoteSeverity = "data_loss" if is_lost else "warning"
        data = Data(because=reason, steps=format_ranges(in_steps))
        yield Note(severity, "lost-capture", message, told[0].name, len(told), data=data)


def _group_steps_by_reason(manifest: Manifest) -> dict[tuple[str, bool], list[int]]:
    """Group the steps of a process by the reasons for missing parts, and check whether all parts are missing."""
    steps: dict[tuple[str, bool], list[int]] = {}
    for capture in manifest.captures:
        if capture.outcome == "elsewhere":
            continue
        if capture.because:
            reasons = "; ".join(capture.because)
            named = steps.setdefault((reasons, capture.outcome == "lost"), [])
            named += [] if capture.step is None else [capture.step]
    return steps


def _describe_step_outcome(steps: Sequence[int], is_lost: bool) -> str:
    """Describe the outcome of these steps."""
    several = len(steps) > 1
    named = f"{choose_plural(len(steps), 'step')} {format_ranges(steps)}" if steps else "a capture"
    if is_lost:
        return f"{named} {'were' if several else 'was'} lost"
    return f"{named} {'are' if several else 'is'} not complete"


def _note_captures_elsewhere(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> Iterator[Note]:
    """Note each location where nsys wrote reports that are missing here."""
    pids = _collect_report_pids(sources, passed_over)
    if None in pids:  # such a report may be of any process
        return
    places: dict[tuple[str | None, str | None], list[tuple[Manifest, int]]] = defaultdict(list)
    for manifest in manifests:
        captures = [] if manifest.pid in pids else _list_captures_elsewhere(manifest)
        if captures:
            places[captures[0].where, manifest.host].append((manifest, len(captures)))
    for (where, host), told in places.items():
        yield _build_elsewhere_note(where, host, told)


def _collect_report_pids(sources: Iterable[Source], passed_over: Iterable[str]) -> set[int | None]:
    """Collect the pids of the present reports, read or not; None for a report that names no process."""
    pids = {source.pid for source in sources if source.tool == "nsys"}
    for name in passed_over:
        if name.endswith((*REPORT_SUFFIXES, STREAM_SUFFIX)):
            pids |= {int(number) for number in re.findall(r"\d+", name)}
    return pids


def _list_captures_elsewhere(manifest: Manifest) -> list[ReportedCapture]:
    """List a process's captures that nsys wrote."""
    if manifest.tool != "nsys":
        return []
    captures = [capture for capture in manifest.captures if _is_written_elsewhere(capture)]
    # Older manifests have no outcomes: `files` listed the captures that had been moved here.
    told_nothing = all(capture.outcome is None for capture in captures)
    return [] if manifest.files and told_nothing else captures


def _build_elsewhere_note(where: str | None, host: str | None, manifest_counts: Sequence[tuple[Manifest, int]]) -> Note:
    """Build the note on captures in one other location."""
    count = sum(number for _, number in manifest_counts)
    captures = f"{count:,} {choose_plural(count, 'capture')}"
    processes = f"{len(manifest_counts):,} {choose_plural(len(manifest_counts), 'process', 'processes')}"
    place = f" to {where}" if where else ""
    node = f" on {host}" if host else ""
    message = f"nsys wrote the reports of {captures} of {processes}{place}{node}: they are not here"
    data = Data(where=where, host=host)
    return Note("warning", "elsewhere", message, manifest_counts[0][0].name, count, data=data)


def _is_written_elsewhere(capture: ReportedCapture) -> bool:
    """Check whether another process wrote a capture. Older captures have no outcome, only a stop time."""
    if capture.outcome is None:
        return capture.stop_unix_ns is not None
    return capture.outcome == "elsewhere"
