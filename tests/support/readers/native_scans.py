"""Texts given to the C scanner, and the columns that come of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tracekit.readers.chrome.scan import END, MORE, Codes, ScanOptions, Sparse

pytest.importorskip("tracekit.readers.chrome._scan", reason="there was no C compiler")
from tracekit.readers.chrome.scanner_c import NativeScanner

ALL = ScanOptions()


def read(text: bytes, keep: ScanOptions = ALL, max_event_bytes: int = 1 << 20) -> dict:
    """The columns of the inside of an array, which must be read to its end."""
    scanner = NativeScanner(keep, max_event_bytes)
    assert scanner.feed(text + b"]") == (len(text) + 1, END)
    return scanner.finish()


def fed(text: bytes, max_event_bytes: int = 1 << 20) -> tuple[int, int]:
    return NativeScanner(ScanOptions(), max_event_bytes).feed(text)


def values(column: Codes | Sparse) -> list:
    """The value of every row (of a sparse column: that has one)."""
    if isinstance(column, Codes):
        return [column.values[code] if code >= 0 else None for code in column.codes]
    if column.categories is None:
        return column.values.tolist()
    return [column.categories[code] for code in column.values]


def arg(*texts: str, keep: ScanOptions = ALL) -> Sparse:
    """The column of an arg that has these value texts, one per event."""
    text = ",".join('{"args": {"k": ' + text + "}}" for text in texts)
    return read(text.encode(), keep)["args"]["k"]


def ns(*texts: str) -> list[int | None]:
    columns = read(",".join('{"ts": ' + text + "}" for text in texts).encode())
    return [int(time) if has else None for time, has in zip(columns["ts_ns"], columns["has_ts"], strict=True)]


def comparable(column: object) -> object:
    """The column as plain data that tells 1, 1.0 and True apart and has NaN equal NaN."""
    match column:
        case Codes():
            return column.codes.tolist(), column.codes.dtype, repr(column.values)
        case Sparse():
            bits = repr(column.values.tolist())
            return column.rows.tolist(), column.values.dtype, bits, repr(column.categories)
        case np.ndarray():
            return column.tolist(), column.dtype
        case dict():
            return {name: comparable(one) for name, one in column.items()}
    return column


def pieces(text: bytes, cuts: list[int], max_event_bytes: int = 1 << 20) -> tuple:
    """Everything that comes of feeding the text up to each cut in turn."""
    scanner = NativeScanner(ScanOptions(), max_event_bytes)
    start, state = 0, MORE
    for cut in [*sorted(cuts), len(text)]:
        consumed, state = scanner.feed(text[start : max(cut, start)])
        start += consumed
        if state != MORE:
            break
    return start, state, comparable(scanner.finish())


def ragged_text() -> bytes:
    """Events with a bit of everything."""
    chance = random.Random(0)
    texts = [
        '"a"', '"a\\"b\\\\"', "1", "-12.5", "1e5", "NaN", "null", "[1, [2, {}]]", '{"a": "}"}', '"\xe9"', "18446744073709551615",
        "0.1234567890123456789",
    ]  # fmt: skip
    keys = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "x", "\xe9"]
    events = []
    for _ in range(40):
        members = [f'"{key}" : {chance.choice(texts)}' for key in chance.sample(keys, chance.randrange(len(keys)))]
        inner = ",".join(f'"{key}":{chance.choice(texts)}' for key in chance.sample(keys, 4))
        members.append(f'"args":\n{{{inner}}}')
        events.append("{" + ", ".join(members) + chance.choice(["}", ",}", " }\n"]))
    return (", ".join(events) + "]").encode()


RAGGED = ragged_text()
