"""The scan in C ends where the pattern does, and reads nothing but what it was given."""

import pickle
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.readers.torch_memory.opcodes import _compile_harmless_run, native

pytestmark = pytest.mark.skipif(native is None, reason="built without a compiler")


def harmless_by_pattern(data, offset, place_bytes):
    return _compile_harmless_run(place_bytes).match(data, offset).end()


PIECES = (
    b"h\x01", b"q\x02", b"j\x01\x02\x03\x04", b"r\x01\x00\x00\x00", b"r\x01\x02\x00\x00", b"r\x01\x02\x03\x04",
    b"K\x01", b"M\x01\x02", b"J\x01\x02\x03\x04", b"\x86", b"\x8a\x08abcdefgh", b"\x8a\x09abcdefgh\x00",
    b"\x8a\x09abcdefgh\x01", b"\x8a\x0aabcdefghij", b"\x8a\x00", b"\x8c\x03abc", b"\x8c\x00", b"G12345678", b"}", b"]",
    b"(", b"e", b"u", b"s", b"a", b"N", b"\x88", b"\x89", b"\x94", b".", b"c", b"R", b"\x95", b"X\x01\x00\x00\x00a",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(0, 9), st.integers(0, 3), st.binary(max_size=3))
def test_the_run_of_harmless_instructions_ends_where_the_pattern_ends_it(pieces, cut, place_bytes, tail):
    data = b"".join(pieces)
    data = data[: max(len(data) - cut, 0)] + tail
    for offset in range(len(data) + 1):
        expected = harmless_by_pattern(data, offset, place_bytes)
        assert native.harmless_until(data, offset, place_bytes) == expected


def test_real_pickles_with_damage_end_at_the_same_byte():
    chance = random.Random(3)
    frames = [{"name": f"f{n}", "line": n, "filename": "x" * n} for n in range(300)]
    whole = pickle.dumps([{"frames": frames[n:], "time": 2**40 + n, "pair": (n, 3)} for n in range(300)], 4)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = bytes(data[: chance.randrange(len(data))])
        offset = chance.randrange(2, 4000)
        assert native.harmless_until(data, offset, 2) == harmless_by_pattern(data, offset, 2)


def test_an_offset_at_or_behind_the_end_stays_where_it_is():
    assert native.harmless_until(b"NN", 2, 3) == 2
    assert native.harmless_until(b"NN", 7, 3) == 7
    assert native.harmless_until(struct.pack("<H", 0x4E4E), 0, 3) == 2
