"""Facts of the first line about files of a hang: dumps, stacks and logs."""

from __future__ import annotations

from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements

_NOUNS = {
    "flight_recorder": ("flight-recorder dump", "flight-recorder dumps"),
    "thread_stacks": ("file of stacks", "files of stacks"),
    "watchdog_log": ("log of a watchdog", "logs of watchdogs"),
    "ras": ("report of RAS", "reports of RAS"),
}


def has_only_hang_files(measured: Measurements) -> bool:
    """Whether all sources are dumps, stacks and logs of a hang: they have no GPU work."""
    return {*measured.frame("recordings").values("kind")} - {None} == {"hang"}


def describe_hang_files(measured: Measurements) -> str:
    """Describe the files of a hang: `4 flight-recorder dumps, 1 file of stacks`."""
    if not has_only_hang_files(measured):
        return ""
    names = {reader: {source.name for source in measured.sources if source.reader == reader} for reader in _NOUNS}
    counts = {reader: len(found) for reader, found in names.items() if found}
    return ", ".join(f"{count:,} {choose_plural(count, *_NOUNS[reader])}" for reader, count in counts.items())
