"""What a hand-made trace must make a rule say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chrome_builder import write

Rows = Sequence[dict[str, Any]]
Sources = Rows | Mapping[int, Rows] | Mapping[str, Rows | bytes]
"""The rows of one file, or those of several by rank, or by path; bytes are a whole file."""


class Document(list[dict[str, Any]]):
    """Rows with facts of their file (`deviceProperties`) beside them."""

    def __init__(self, rows: Rows, **meta: Any) -> None:
        super().__init__(rows)
        self.meta = meta


@dataclass(frozen=True)
class Firing:
    """The rows, and the one finding they must give."""

    rows: Sources
    claim: str
    severity: str
    cost_ns: int | None = None
    cost_ratio: float | None = None
    evidence: dict[str, float | None] = field(default_factory=dict)


def write_sources(folder: Path, sources: Sources) -> Path:
    """The folder with the file of every rank or path, or with one `rank0.json` that names no rank."""
    if not isinstance(sources, Mapping):
        write(folder / "rank0.json", sources, **_meta(sources))
        return folder
    for key, rows in sources.items():
        if isinstance(rows, bytes):
            (folder / str(key)).parent.mkdir(parents=True, exist_ok=True)
            (folder / str(key)).write_bytes(rows)
        elif isinstance(key, str):
            write(folder / key, rows, **_meta(rows))
        else:
            write(folder / f"rank{key}.json", rows, rank=key, world_size=len(sources), **_meta(rows))
    return folder


def _meta(rows: Rows) -> dict[str, Any]:
    return rows.meta if isinstance(rows, Document) else {}
