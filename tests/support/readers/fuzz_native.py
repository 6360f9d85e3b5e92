"""Damages real events at random and reads them twice, cut differently: both scans must agree.

`python tests/support/readers/fuzz_native.py TRACE.json.gz ... [--cases N] [--seed N]`; made for a build with
sanitizers (`make sanitize`), where it also finds reads and writes out of bounds.
"""

from __future__ import annotations

import argparse
import gzip
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np

from tracekit.readers.chrome.scan import BAD, END, MORE, Codes, ScanOptions, Sparse
from tracekit.readers.chrome.scanner_c import NativeScanner

ODD = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b".", b"e", b"0", b"9" * 19, b"\xff", b"\xe2\x82",
    b"\n", b"\x00", b"NaN", b"null", b'"args": {', b'"args": 1,', b'"ts": "1.5",', b'"dur": 1e3,', b'{"\xff": 1}',
    b'"cat": "kernel",', b'"cat": null,', b'"ph": [1],', b"\\u00e9", b'\\"', b"1.-660", b"18446744073709551615",
]  # fmt: skip
KEEPS = [
    ScanOptions(),
    ScanOptions(),
    ScanOptions(args=("External id", "stream"), skip_cats=("kernel", "python_function")),
    ScanOptions(args=("External id",), skip_cats=("cpu_op", "python_function"), keep_names=("aten::", "\xe9")),
]
MAX_EVENT = 20_000


def document(paths: list[Path], size: int) -> bytes:
    """About `size` events from all over the files, as the inside of one array."""
    parts = []
    for path in paths:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        inside = text[text.index(b"[", text.index(b'"traceEvents"')) + 1 :]
        starts = [at for at, _ in elements(inside)]
        for piece in range(5):
            first = piece * len(starts) // 5
            last = min(first + max(size // len(paths) // 5, 1), len(starts) - 1)
            parts.append(inside[starts[first] : starts[last]].rstrip(b", \n\r\t"))
    return b",".join(part for part in parts if part) + b"]"


def elements(inside: bytes) -> list[tuple[int, int]]:
    """(start, end) of every event in sound text."""
    found, position = [], 0
    while position < len(inside):
        start = inside.find(b"{", position)
        if start < 0 or b"]" in inside[position:start]:
            break
        end = start
        for end in _closings(inside, start):
            scanner = NativeScanner(ScanOptions())
            if scanner.feed(inside[start:end])[0] == end - start:
                break
        found.append((start, end))
        position = end
    return found


def _closings(text: bytes, start: int) -> list[int]:
    ends, at = [], start
    while len(ends) < 200 and (at := text.find(b"}", at) + 1):
        ends.append(at)
    return ends


def damaged(text: bytes, chance: random.Random) -> bytes:
    """The text after a few random changes."""
    changed = bytearray(text)
    for _ in range(chance.choice([1, 1, 2, 5, 30])):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randrange(1, 40)]
            case 2:
                changed[at:at] = b"".join(chance.choices(ODD, k=chance.randrange(1, 4)))
            case 3:
                other = chance.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + chance.randrange(1, 200)]
            case _ if chance.random() < 0.2:
                del changed[max(at, 50) :]
    return bytes(changed)


def scan(text: bytes, keep: ScanOptions, cut: random.Random | None) -> list[object]:
    """What a scan makes of the text; a bad element is left for the next brace.

    With `cut` it is fed in random pieces, some of them to other scanners whose rows it takes over.
    """
    scanner = NativeScanner(keep, MAX_EVENT)
    others = [NativeScanner(keep, MAX_EVENT) for _ in range(2)]
    met: list[object] = []
    start = end = 0
    while True:
        # A copy, so that the allocation ends where the data ends.
        piece = np.frombuffer(text[start:end], np.uint8).copy()
        reading = scanner if cut is None else cut.choice([scanner, *others])
        consumed, state = reading.feed(piece.data)
        if reading is not scanner:
            scanner.append(reading)
        start += consumed
        if state == END:
            break
        if state == BAD:
            met.append(start)
            start = text.find(b"{", start + 1)
            if start < 0:
                break
            end = max(start, end)
        elif end == len(text):
            break
        if state == MORE or start >= end:
            step = len(text) if cut is None else cut.choice([1, 7, 100, 1000, 5000, 50_000])
            end = min(len(text), end + step)
    columns = scanner.finish()
    return [*met, start, *(plain(columns[name]) for name in sorted(columns))]


def plain(column: object) -> object:
    """The column as lists and texts, which can be compared (NaN equals NaN)."""
    if isinstance(column, Codes):
        return column.codes.tolist(), repr(column.values)
    if isinstance(column, Sparse):
        return (column.rows.tolist(), str(column.values.dtype), repr(column.values.tolist()), repr(column.categories))
    if isinstance(column, np.ndarray):
        return column.tolist()
    if isinstance(column, dict):
        return {name: plain(column[name]) for name in column}
    return column


def main() -> None:
    """Runs the cases; the first difference is an AssertionError with the number of its case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    text = document(options.traces, options.events)
    chance = random.Random(options.seed)
    seen: Counter[str] = Counter()
    began = time.monotonic()
    for case in range(options.cases):
        # A window of the document: many small cases find more than a few large ones.
        first = chance.randrange(len(text))
        window = text[text.find(b"{", first) :][: chance.choice([300, 2000, 20_000, len(text)])]
        broken, keep = damaged(window, chance), chance.choice(KEEPS)
        whole, pieces = scan(broken, keep, None), scan(broken, keep, chance)
        assert whole == pieces, f"case {case} depends on how the text is cut"
        seen["with bad elements" if len(whole) > 13 else "without"] += 1
    print(f"{text.count(b'ph')} events, {len(text)} bytes; {options.cases} cases {dict(seen)}, no difference,")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
