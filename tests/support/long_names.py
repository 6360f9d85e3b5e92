"""Profiles in which one long text stands for very many rows: name → what writes a file and returns its unpacked size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import chrome_builder as chrome
import nsys_builder as nsys

LONG = "n" * 10**6
MARK = "!"
"""What stands for the long text until a file is written: rows do not hold a megabyte each."""

COUNT = 20_000
OFTEN = 300


def export(path: Path, rows: Iterable[tuple[str, dict]]) -> int:
    """Write an export, its marks as the long text."""
    steps = [nsys.nvtx(f"step {i}", i * 10**9, i * 10**9 + 9 * 10**8) for i in range(3)]
    nsys.write(path, [*steps, *rows], duration_ns=10**10)
    nsys.execute(path, ("UPDATE StringIds SET value = replace(value, ?, ?)", (MARK, LONG)))
    return path.stat().st_size


def kernels(path: Path) -> int:
    rows = (nsys.launched(MARK, i * 50_000, i * 50_000 + 500, i * 50_000 + 800, i + 1) for i in range(COUNT))  # fmt: skip
    return export(path, (row for pair in rows for row in pair))


def ranges(path: Path) -> int:
    return export(path, (nsys.nvtx(MARK, i * 50_000, i * 50_000 + 900, registered=True) for i in range(COUNT)))  # fmt: skip


def calls(path: Path) -> int:
    return export(path, (nsys.api(MARK, i * 50_000, i * 50_000 + 900, i) for i in range(COUNT)))


def overlapping_ranges(path: Path) -> int:
    """Ranges within and across one another, two thousand deep, and launches within them."""
    nested = [nsys.nvtx(f"{MARK}{i % 3}", i * 1000, 10**9 - i * 1000, registered=True) for i in range(2000)]  # fmt: skip
    times = (3 * 10**6 + i * 50 for i in range(COUNT))
    rows = (nsys.launched(MARK, at, at + 500, at + 10**6, i + 1) for i, at in enumerate(times))
    return export(path, [*nested, *(row for pair in rows for row in pair)])


def trace(path: Path, rows: Iterable[dict]) -> int:
    """Write a packed trace a row at a time."""
    size = 0
    with gzip.open(path, "wb", 1) as file:
        size += file.write(b'{"schemaVersion":1,"baseTimeNanoseconds":1700000000000000000,"traceEvents":[')
        for row in [chrome.step(i, i * 10_000, 9_000) for i in range(3)]:
            size += file.write(json.dumps(row).encode() + b",")
        for row in rows:
            size += file.write(json.dumps(row).encode() + b",")
        size += file.write(b"{}]}")
    return size


def one_annotation(path: Path) -> int:
    return trace(path, (chrome.annotation(LONG, i * 50, 20) for i in range(OFTEN)))


def operators_of_different_names(path: Path) -> int:
    return trace(path, (chrome.op(f"{LONG}{i}", i * 50, 20) for i in range(OFTEN)))


def kernels_of_different_names(path: Path) -> int:
    def rows() -> Iterator[dict]:
        for i in range(OFTEN):
            yield from chrome.launched(f"{LONG}{i}", i * 50, i * 50 + 5, 10, i + 1)

    return trace(path, rows())


MADE: dict[str, Callable[[Path], int]] = {
    "kernels.sqlite": kernels,
    "ranges.sqlite": ranges,
    "calls.sqlite": calls,
    "overlapping ranges.sqlite": overlapping_ranges,
    "one annotation.pt.trace.json.gz": one_annotation,
    "operators of different names.pt.trace.json.gz": operators_of_different_names,
    "kernels of different names.pt.trace.json.gz": kernels_of_different_names,
}
