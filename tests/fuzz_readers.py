"""Damages real traces at random and compares the two scanners on every column and loss.

    python tests/fuzz_readers.py --cases 20000 --seed 0 [--path FILE] [--kind NAME]

Prints what happened how often; exits with 1 at any difference, or if anything but the documented
error escapes. Failing inputs are kept beside the temporary directory that the last line names.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

from scan_comparison import differences, real_documents, scan_or_error  # noqa: E402

from tracekit.readers.chrome import events as chrome_events  # noqa: E402
from tracekit.readers.chrome import stream as chrome_stream  # noqa: E402
from tracekit.readers.chrome import stretches  # noqa: E402
from tracekit.readers.chrome.scan import MAX_EVENT_BYTES, ScanOptions, TraceScan  # noqa: E402

LARGE = chrome_stream.LARGE_FILE_BYTES
TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b" ", b"\x00", b"\xff", b"-", b"0", b".",
    b"e", b"N/A", b"NaN", b"-inf", b"null", b"true", b"1e999", b"1e-999999999", b"-0", b"-0.0",
    b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809", b'"\\ud83d"',
    b'"\\ud83d\\ude00"', b"\\u00", b"\\u0041", b'\\"', b'"args":', b'"args":{}', b'"ph":"X",',
    b',"cat":1.50', b',"pid":true', b'"C:\\dir\\",', b'{"ph":', b'{"name":', b"[[[[", b"]]]]", b"}}",
    b'],"traceName":', b"]}", b'{"ph":"X"},', b'"ts":"12.5",', b'"dur":12.-660,', b'"\\u0070h":1,',
    b'"k":[1, 2.50,"\\u00e9"],', b'"k":-0,', b'"k":1.0,', b'"k":[-0],', b'"k":"1.0",', b"\xed\xa0\x80",
    b'"\xff":1,"\xfe":2,', b"[" * 120 + b"]" * 120, b"\xef\xbb\xbf", b'"ts":1e3,', b'"ts":-1.5,',
    b'"tid":1.0,', b'"tid":18446744073709551616,', b'"name":null,', b'"name":["a"],',
]  # fmt: skip
KEEPS = [
    ScanOptions(),
    ScanOptions(args=("External id", "stream", "Ev Idx")),
    ScanOptions(skip_args=("Call stack", "External id")),
    ScanOptions(skip_cats=("python_function", "cpu_op")),
    ScanOptions(args=("k",), skip_args=("stream",), skip_cats=("kernel",)),
    ScanOptions(skip_cats=("cpu_op", "X", "kernel", "null"), keep_names=("aten::a", "[", "C:\\")),
]


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def flip_bit(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def delete(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 1, 1, 2, 5, 40, 400))]


def insert(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    data[start:start] = b"".join(rng.choices(TOKENS, k=rng.choice((1, 1, 1, 2, 4))))


def insert_at_comma(data: bytearray, rng: random.Random) -> None:
    start = data.find(b",", rng.randrange(len(data))) + 1
    data[start:start] = rng.choice(TOKENS)


def insert_at_quote(data: bytearray, rng: random.Random) -> None:
    start = data.find(b'"', rng.randrange(len(data))) + rng.randrange(2)
    data[start:start] = rng.choice(TOKENS)


def replace_value(data: bytearray, rng: random.Random) -> None:
    start = data.find(b": ", rng.randrange(len(data))) + 2
    end = min(data.find(b",", start) % (len(data) + 1), data.find(b"\n", start) % (len(data) + 1))
    data[start:end] = rng.choice(TOKENS)


def duplicate(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.choice((1, 3, 30, 300, 3000))]
    target = rng.choice((start, rng.randrange(len(data))))
    data[target:target] = piece


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(1, len(data)) :]


CHANGES = (
    flip, flip_bit, delete, insert, insert_at_comma, insert_at_quote, replace_value, duplicate, truncate,
)  # fmt: skip


def damaged(document: bytes, rng: random.Random) -> bytes:
    """A document with one to fifty changes, and perhaps compressed and changed again."""
    data = bytearray(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 50))):
        if len(data) > 1:
            rng.choice(CHANGES[:-1] if rng.random() < 0.9 else CHANGES)(data, rng)
    if rng.random() > 0.2:
        return bytes(data)
    middle = rng.randrange(len(data) + 1)
    packed = bytearray(gzip.compress(bytes(data[:middle]), 1 + rng.randrange(9)))
    packed += gzip.compress(bytes(data[middle:])) + bytes(rng.choice((0, 0, 3)))
    for _ in range(rng.choice((0, 1, 1, 2))):
        rng.choice((flip, flip_bit, delete, truncate, duplicate))(packed, rng)
    return bytes(packed)


def check(path: Path, rng: random.Random, counts: Counter[str]) -> list[str]:
    """What differs for the file, read in both ways, in the one with blocks of another size."""
    keep = rng.choice(KEEPS) if rng.random() < 0.3 else KEEPS[0]
    limit = rng.choice((300, 1000, 5000)) if rng.random() < 0.1 else MAX_EVENT_BYTES
    chrome_stream.MAX_EVENT_BYTES = limit
    try:
        chrome_stream.BLOCK_BYTES = 2**20
        pure = scan_or_error(path, keep, pure=True)
        chrome_stream.BLOCK_BYTES = rng.choice((2**20, 2**20, 37, 500, 2**12))
        chrome_events.BRIDGE_BYTES = rng.choice((2**14, 7, 60, 800))
        chrome_stream.LARGE_FILE_BYTES = rng.choice((LARGE, 0))
        chrome_stream.count_own_cores = lambda: 3
        stretches.STRETCH_BYTES = rng.choice((300, 2000, 9000))
        stretches.LONGEST_STRETCH_BYTES = 4 * stretches.STRETCH_BYTES
        native = scan_or_error(path, keep, pure=False)
    finally:
        chrome_stream.LARGE_FILE_BYTES = LARGE
        chrome_events.BRIDGE_BYTES = 2**14
        chrome_stream.MAX_EVENT_BYTES = MAX_EVENT_BYTES
        chrome_stream.BLOCK_BYTES = 2**20
    if isinstance(pure, TraceScan):
        counts["read"] += 1
        counts["rows"] += len(pure.ts_ns)
        counts.update(f"with {loss.kind}" for loss in pure.losses)
    else:
        counts["not a trace"] += 1
    return differences(pure, native)


def texts(path: Path | None) -> list[bytes]:
    """The texts to cut documents from."""
    if path is not None:
        paths = [path]
    else:
        root = Path(os.environ.get("TRACEKIT_REAL_DATA") or TESTS / "data")
        paths = sorted(root.glob("**/*.json.gz"))
        random.Random(0).shuffle(paths)
    found = []
    for each in paths[:40]:
        raw = each.read_bytes()
        found.append((gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)[: 8 * 2**20])
    return found


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    documents = []
    for text in texts(options.path):
        documents += list(real_documents(text, rng.choice((6000, 15000, 40000))))[:40]
    print(f"{len(documents)} documents, {sum(map(len, documents)) // max(1, len(documents))} bytes each")
    counts: Counter[str] = Counter()
    directory = Path(tempfile.mkdtemp(prefix="fuzz_readers_"))
    failures = 0
    began = time.monotonic()
    path = directory / "case.json"
    for case in range(options.cases):
        rng = random.Random(f"{options.seed}/{case}")
        data = damaged(rng.choice(documents), rng)
        path.write_bytes(data)
        case_began = time.process_time()
        try:
            found = check(path, rng, counts)
        except Exception:  # noqa: BLE001 - that is what is looked for
            found = [traceback.format_exc()]
        if time.process_time() - case_began > 2:
            found = [*found, "took more than two seconds of CPU"]
        if found:
            failures += 1
            kept = directory / f"failure_{options.seed}_{case}.json"
            kept.write_bytes(data)
            print(f"case {case}: {kept}: {found[:3]}")
            if failures >= 20:
                break
    path.unlink(missing_ok=True)
    print(f"{case + 1} cases in {time.monotonic() - began:.0f} s, {failures} failures")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    if failures:
        print(f"kept in {directory}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
