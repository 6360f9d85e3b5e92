"""How captures ended, as their processes wrote it: which were lost and why, and which somebody else wrote elsewhere."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tracekit.discover.manifests import Manifest, name_process
from tracekit.discover.nsys_files import REPORT_SUFFIXES, STREAM_SUFFIX
from tracekit.model.codes import Data
from tracekit.model.labels import first_few, plural, shown
from tracekit.model.sources import Note, Recorded, Source
from tracekit.model.units import numbers

_MOST_NAMED = 3


def ledger_notes(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> list[Note]:
    """Compare the captures in manifests with the files that are here; `passed_over` are names of other files."""
    told = _one_per_process(manifests)
    return [*_losses(told), *_elsewhere(told, sources, passed_over)]


def _one_per_process(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifests without copies: that of a process under nsys lies in Ray's session too."""
    distinct = {
        (m.host, m.pid, m.tool, m.role, m.rank) if m.pid is not None else m.path: m
        for m in manifests
    }
    return [*distinct.values()]


def _losses(manifests: Sequence[Manifest]) -> Iterator[Note]:
    """A note for each reason why captures were lost, or not written in full, with the processes that gave it."""
    lost: dict[tuple[tuple[int, ...], bool, str], list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        steps: dict[tuple[bool, str], list[int]] = defaultdict(list)
        for capture in manifest.captures:
            for reason in capture.because if capture.outcome != "elsewhere" else ():
                named = steps[capture.outcome == "lost", reason]
                if capture.step is not None:
                    named.append(capture.step)
        for (whole, reason), in_steps in steps.items():
            lost[tuple(in_steps), whole, reason].append(manifest)
    for (in_steps, whole, reason), processes in lost.items():
        who = first_few([*map(name_process, processes)], _MOST_NAMED)
        message = f"{who}: {_what_happened(in_steps, whole)}: {reason}"
        data = Data(because=reason, steps=in_steps)
        severity, count = ("data_loss" if whole else "warning"), len(processes)
        yield Note(severity, "lost-capture", message, processes[0].name, count, data=data)


def _what_happened(steps: Sequence[int], whole: bool) -> str:
    """What became of these steps, in words."""
    several = len(steps) > 1
    named = f"{plural(len(steps), 'step')} {numbers(steps)}" if steps else "a capture"
    if whole:
        return f"{named} {'were' if several else 'was'} lost"
    return f"{named} {'are' if several else 'is'} not complete"


def _elsewhere(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> Iterator[Note]:
    """A note for each place where nsys wrote reports that are not here."""
    pids = {source.pid for source in sources if source.tool == "nsys"}
    if None in pids:  # one of them may be of any process
        return
    for name in passed_over:
        if name.endswith((*REPORT_SUFFIXES, STREAM_SUFFIX)):
            pids.update(map(int, re.findall(r"\d+", name)))
    places: dict[tuple[str | None, str | None], list[tuple[Manifest, int]]] = defaultdict(list)
    for manifest in manifests:
        captures = [*filter(_is_elsewhere, manifest.captures)]
        if manifest.tool != "nsys" or not captures or manifest.pid in pids:
            continue
        if manifest.files and all(capture.outcome is None for capture in captures):
            continue  # written before captures had outcomes, and some were moved here
        places[captures[0].where, manifest.host].append((manifest, len(captures)))
    for (where, host), told in places.items():
        count = sum(number for _, number in told)
        of_processes = f"{count:,} {plural(count, 'capture')} of {len(told):,} {plural(len(told), 'process', 'processes')}"
        place = f" to {shown(where)}" if where else ""
        node = f" on {host}" if host else ""
        message = f"nsys wrote the reports of {of_processes}{place}{node}: they are not here"
        data = Data(where=where, host=host)
        yield Note("warning", "elsewhere", message, told[0][0].name, count, data=data)


def _is_elsewhere(capture: Recorded) -> bool:
    """Whether somebody else wrote a capture; those without an outcome ended before there were any."""
    if capture.outcome is None:
        return capture.stop_unix_ns is not None
    return capture.outcome == "elsewhere"
