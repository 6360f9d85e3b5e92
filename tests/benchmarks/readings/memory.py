"""Memory snapshots and timelines: peaks replayed from raw entries, and the place in the program that holds most.

Snapshots are pickles of strangers: the unpickler refuses every global, so that only plain containers are made.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from benchmarks.readings.reading import WITHIN, Reading, first_line_misses
from benchmarks.readings.rows import read_bytes
from benchmarks.readings.said import Said


@dataclass(frozen=True, kw_only=True)
class MemoryReading(Reading):
    """A reading of memory snapshots or of a timeline; `site` is the line of the program that holds most at the peak.

    `categories` are the bytes of each use at the peak, as a person decides them by the stacks of the blocks.
    """

    kinds: tuple[str, ...] = ("snapshot",)
    rules: tuple[str, ...] = ("",)
    site: str = ""
    categories: tuple[tuple[str, int], ...] = ()


class PlainUnpickler(pickle.Unpickler):
    """Make plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"refused: {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"refused: {pid}")


def load_snapshot(path: Path) -> dict[str, Any]:
    """Load a snapshot as plain containers."""
    with path.open("rb") as file:
        snapshot: dict[str, Any] = PlainUnpickler(file).load()
    return snapshot


RISES = {"alloc": 1, "free_completed": -1}
MAPS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass
class Peak:
    """Most bytes requested and reserved at once, and who had requested them."""

    requested: int
    reserved: int
    sites: Counter[str]


def peak_of(snapshot: dict[str, Any]) -> Peak:
    """Replay the entries of the first device with any, from the blocks that the snapshot ends with."""
    device, trace = next((pair for pair in enumerate(snapshot["device_traces"]) if pair[1]), (0, []))
    segments = [each for each in snapshot["segments"] if each.get("device", 0) == device]
    blocks = {address: (_requested(block), site_of(block)) for address, block in _blocks_in_use(segments)}
    live, before = _before(trace, blocks)
    held = sum(size for size, _ in live.values()) + before
    most, sites = held, Counter(_by_site(live, before))
    for entry in trace:
        if entry["action"] not in RISES:
            continue
        address, size = entry["addr"], entry["size"]
        held += RISES[entry["action"]] * size
        if entry["action"] == "alloc":
            live[address] = size, site_of(entry)
        elif live.pop(address, None) is None:
            before -= size
        if held > most:
            most, sites = held, Counter(_by_site(live, before))
    return Peak(most, _most_reserved(segments, trace), sites)


def _before(trace: list[dict[str, Any]], blocks: dict[Any, tuple[int, str]]) -> tuple[dict[Any, tuple[int, str]], int]:
    """Blocks in use before the first entry: those never allocated in it, and bytes of those freed in it."""
    allocated, freed = set(), 0
    for entry in trace:
        if entry["action"] == "alloc":
            allocated.add(entry["addr"])
        elif entry["action"] == "free_completed":
            if entry["addr"] not in allocated:
                freed += entry["size"]
            allocated.discard(entry["addr"])
    return {address: block for address, block in blocks.items() if address not in allocated}, freed


def _by_site(live: dict[Any, tuple[int, str]], before: int) -> dict[str, int]:
    sites: Counter[str] = Counter({"": before})
    for size, site in live.values():
        sites[site] += size
    return sites


def _most_reserved(segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> int:
    """Most bytes of segments at once."""
    changes = [MAPS[entry["action"]] * entry["size"] for entry in trace if entry["action"] in MAPS]
    level = sum(segment["total_size"] for segment in segments) - sum(changes)
    most = level
    for change in changes:
        level += change
        most = max(most, level)
    return most


def _blocks_in_use(segments: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Blocks with their addresses: as recorded, or one behind the other."""
    for segment in segments:
        address = segment.get("address", 0)
        for block in segment["blocks"]:
            history = block.get("history") or [{}]
            if block["state"] != "inactive":
                yield block.get("address") or history[0].get("addr") or address, block
            address += block["size"]


def _requested(block: dict[str, Any]) -> int:
    size: int = block.get("requested_size", block["size"])
    return size


OF_LIBRARIES = re.compile(r"site-packages|dist-packages|\btorch[/\\]")


def site_of(entry: dict[str, Any]) -> str:
    """The innermost line of the program itself: `file.py:12`; empty where no Python frame tells it."""
    history = entry.get("history") or [{}]
    for frame in entry.get("frames") or history[0].get("frames") or ():
        name = frame.get("filename", "")
        if name.endswith(".py") and not OF_LIBRARIES.search(name):
            return f"{PurePath(name.replace(chr(92), '/')).name}:{frame['line']}"
    return ""


def timeline_peak(path: Path) -> int:
    """Most bytes held at once by a timeline of torch.profiler: sums by category, or raw events."""
    timeline = json.loads(read_bytes(path))
    if len(timeline) == 2 and isinstance(timeline[0], list) and not isinstance(timeline[0][0], list):
        return max(sum(sizes) for sizes in timeline[1])
    held = most = 0
    for _, _, size, _ in timeline:  # what is freed counts below zero
        held += size
        most = max(most, held)
    return most


def snapshot_misses(reading: MemoryReading, peak: Peak, said: Said) -> list[str]:
    """Compare the peaks of a snapshot and who holds most then."""
    wrong = []
    for name, size in (("peak_requested", peak.requested), ("peak_reserved", peak.reserved)):
        reported = said.headline.get(name)
        if reported is not None and abs(reported / size - 1) > WITHIN:
            wrong.append(f"{name} {reported / 2**20:.1f} MiB, not {size / 2**20:.1f}")
    site, size = max(((s, n) for s, n in peak.sites.items() if s), key=lambda each: each[1], default=("", 0))
    if site != reading.site:
        wrong.append(f"misread: {site or 'nothing'} holds most, not {reading.site or 'nothing'}")
    if site and not any(f"{site} " in f"{row.get('where')} " for row in said.table):
        wrong.append(f"the first screen does not list {site}")
    rows = [row for row in said.sheet("live_peak") if site and f"{site} " in f"{row['where']} "]
    if site and abs(sum(row["size_bytes"] for row in rows) - size) > WITHIN * peak.requested:
        wrong.append(f"{site} holds {[row['size_bytes'] for row in rows]}, not {size:,} bytes")
    return wrong


def category_misses(reading: MemoryReading, peak: Peak, said: Said) -> list[str]:
    """Compare the uses of the memory at the peak; `other` are those that the report leaves open."""
    reported: Counter[str] = Counter()
    for row in said.sheet("live_categories"):
        reported[row["category"]] += row["size_bytes"] if row["how"] else 0
    read = dict(reading.categories)
    names = dict.fromkeys((*read, *(name for name, size in reported.items() if size)))
    names.pop("other", None)
    total = sum(read.values())
    misread = [] if total == peak.requested else [f"misread: the categories sum to {total:,}, not {peak.requested:,}"]
    return misread + [
        f"{name} {reported[name]:,} bytes, not {read.get(name, 0):,}"
        for name in names
        if abs(reported[name] - read.get(name, 0)) > WITHIN * peak.requested
    ]


def read_memory(reading: MemoryReading, path: Path, said: Said) -> tuple[str, list[str]]:
    """Read snapshots or a timeline: figures in one line, and the differences."""
    if path.suffix != ".pickle" and path.is_file():
        most = timeline_peak(path)
        reported = said.headline.get("peak_tensors") or 0
        wrong = [] if abs(reported / most - 1) <= WITHIN else [f"{reported:,} bytes, not {most:,}"]
        return f"{most / 2**20:10.1f} MiB", wrong + first_line_misses(reading, said)
    files = [path] if path.is_file() else sorted(path.rglob("*.pickle"))
    peak = max((peak_of(load_snapshot(file)) for file in files), key=lambda each: each.requested)
    figures = f"{peak.requested / 2**20:10.1f} MiB of {peak.reserved / 2**20:.1f}"
    wrong = snapshot_misses(reading, peak, said) + category_misses(reading, peak, said)
    return figures, wrong + first_line_misses(reading, said)
