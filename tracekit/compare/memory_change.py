"""What is told of memory before and after: plain, immutable, JSON-able; bytes, of single snapshots and exact."""

from __future__ import annotations

from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.report import Better

SiteState = Literal[
    "", "grown", "shrunk", "same", "new", "gone", "not told before", "not told after"
]
"""`not told …`: on that side it may be among what is too small to be named there, so it is neither new nor gone; of
what is no place nothing is said."""

SiteKind = Literal["place", "untold", "rest", "others"]
"""A place in the program | why none is known | what is too small to be named in its snapshot | rows put together."""

Moment = Literal["peak", "end"]


@dataclass(frozen=True, slots=True)
class Level:
    """One level on both sides; `difference` is after less before, `share` that of before, None where unknown."""

    name: str
    title: str
    better: Better
    base: int | None
    opt: int | None
    difference: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """The memory of one device as one process uses it, in one snapshot a side (of a saved report: of the worst rank)."""

    who: str
    base_step: int | None
    opt_step: int | None
    base_source: str
    opt_source: str
    levels: tuple[Level, ...]

    def level(self, name: str) -> Level:
        """The level of this name, of which nothing is known where there is none."""
        for level in self.levels:
            if level.name == name:
                return level
        return Level(name, name, "neither", None, None)


@dataclass(frozen=True, slots=True)
class SiteChange:
    """What one place in the program holds on both sides; the differences of all rows add up to that of the level.

    `base_most` (`opt_most`) is how much it may hold of what is not named on a side that does not name it; None
    where the side names everything. `places` are put together in the row.
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
class Sites:
    """What holds the memory of one pair at one moment: by place in the program, and by category.

    The rows of each add up to `base` and `opt`; `categories` are empty where nothing tells any.
    """

    who: str
    moment: Moment
    base: int
    opt: int
    rows: tuple[SiteChange, ...]
    categories: tuple[SiteChange, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Memory snapshots of both sides compared: `headline` is the highest of its level on any device, before and after.

    `pairs` are the worst first, with the highest peak after, `median` that level of the median device where there
    are several; `sites` are of the first pair, `elsewhere` of the next ones. `failed` counts requests that failed
    before and after, None where no history was read.
    """

    headline: Level
    pairs: tuple[Pair, ...]
    omitted: int = 0
    median: Level | None = None
    sites: tuple[Sites, ...] = ()
    elsewhere: tuple[Sites, ...] = ()
    failed: tuple[int | None, int | None] = (None, None)
    reading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
