"""What a hand-made trace must make a rule say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chrome_builder import write

Rows = Sequence[dict[str, Any]]
Sources = Rows | Mapping[int, Rows]
"""The rows of one file, or those of several ranks by rank."""


@dataclass(frozen=True)
class Firing:
    """The rows, and the one finding they must give."""

    rows: Sources
    claim: str
    severity: str
    recoverable_ns: int | None = None
    recoverable_ratio: float | None = None
    evidence: dict[str, float | None] = field(default_factory=dict)


def write_sources(folder: Path, sources: Sources) -> Path:
    """The folder with the file of every rank, or with one `rank0.json` that names no rank."""
    if not isinstance(sources, Mapping):
        write(folder / "rank0.json", sources)
    else:
        for rank, rows in sources.items():
            write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(sources))
    return folder
