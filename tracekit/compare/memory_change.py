"""Memory before and after: plain, immutable and JSON-serializable; exact bytes of single snapshots."""

from __future__ import annotations

from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.report import Better

SiteState = Literal["", "grown", "shrunk", "same", "new", "gone", "not told before", "not told after"]
"""State of an allocation site; empty for rows that are not sites.

`not told …`: on that side the site may be too small to be listed, so it is neither new nor gone.
"""

SiteKind = Literal["place", "untold", "rest", "others"]
"""Allocation site | unknown site with a reason | sites too small for a name in the snapshot | merged rows."""

Moment = Literal["peak", "end"]


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level on both sides; `difference` is after minus before, `share` relative to before.

    Both are None if a side is unknown.
    """

    name: str
    title: str
    better: Better
    base: int | None
    opt: int | None
    difference: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryPair:
    """Memory of one device used by one process, in one snapshot per side.

    For saved reports it is the worst rank.
    """

    who: str
    base_step: int | None
    opt_step: int | None
    base_source: str
    opt_source: str
    levels: tuple[MemoryLevel, ...]

    def level(self, name: str) -> MemoryLevel:
        """Find the level of this name; an empty level if there is none."""
        for level in self.levels:
            if level.name == name:
                return level
        return MemoryLevel(name, name, "neither", None, None)


@dataclass(frozen=True, slots=True)
class SiteChange:
    """Bytes of one allocation site on both sides; the differences of all rows add up to that of the level.

    `base_most` and `opt_most` bound the bytes of a site that the side does not name; None if it names every
    site. `places` counts the sites merged in the row.
    """

    site: str
    kind: SiteKind
    base_bytes: int
    opt_bytes: int
    difference: int
    base_blocks: int
    opt_blocks: int
    state: SiteState = ""
    base_most: int | None = None
    opt_most: int | None = None
    places: int = 1


@dataclass(frozen=True, slots=True)
class MemorySites:
    """Memory of one pair at one moment, by allocation site and by category.

    The rows of each add up to `base` and `opt`; `categories` is empty if no category is known.
    """

    who: str
    moment: Moment
    base: int
    opt: int
    rows: tuple[SiteChange, ...]
    categories: tuple[SiteChange, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Comparison of memory snapshots.

    - `headline` is the highest value of its level on any device, before and after.
    - `pairs` are the worst first, by peak after the change; `omitted` counts those not listed.
    - `median` is the headline level of the median device; None for a single device.
    - `sites` are those of the first pair, `elsewhere` those of the next pairs.
    - `failed` counts failed requests before and after, None if no history was read.
    """

    headline: MemoryLevel
    pairs: tuple[MemoryPair, ...]
    omitted: int = 0
    median: MemoryLevel | None = None
    sites: tuple[MemorySites, ...] = ()
    elsewhere: tuple[MemorySites, ...] = ()
    failed: tuple[int | None, int | None] = (None, None)
    reading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
