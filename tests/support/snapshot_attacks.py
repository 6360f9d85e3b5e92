"""Files made to harm whoever loads a pickle, or a reader of memory snapshots: name → (bytes, what the error says).

Each is the smallest that does its harm to a loader that only refuses names, or to code that walks through
whatever was loaded.
"""

from __future__ import annotations

import gzip
import pickle
import struct
from functools import cache

from memory_builder import page

P4 = b"\x80\x04"
MANY = 2_000_000


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str) -> bytes:
    raw = value.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def dictionary(*pairs: bytes) -> bytes:
    return b"}(" + b"".join(pairs) + b"u"


def snapshot(segments: bytes = b"]", traces: bytes = b"]") -> bytes:
    """A snapshot of protocol 4 with these instructions for its two lists."""
    return P4 + dictionary(text("segments"), segments, text("device_traces"), traces) + b"."


def colliding_integers(count: int) -> bytes:
    """Integers that all have one hash in CPython: a dictionary of them takes quadratic time."""
    modulus = 2**61 - 1
    return b"".join(b"\x8a\x0a" + (i * modulus).to_bytes(10, "little", signed=True) + b"N" for i in range(1, count))


def laughs(levels: int) -> bytes:
    """A list of ten times the list before it, so often: ten to the power of that many elements."""
    lines = (b"](" + b"h" + bytes([i]) + (b"h" + bytes([i])) * 9 + b"e\x94" for i in range(levels))
    return P4 + b"]\x94" + b"".join(lines) + b"."


def shared_blocks(blocks: int, segments: int) -> bytes:
    """Many references to one segment with many references to one block: their product is what a reader makes."""
    block = dictionary(text("size"), b"K\x01", text("state"), text("inactive"))
    inner = b"](" + block + b"\x94" + b"h\x00" * (blocks - 1) + b"e"
    segment = dictionary(text("device"), b"K\x00", text("address"), b"K\x00", text("blocks"), inner)
    return snapshot(b"](" + segment + b"\x94" + b"h\x01" * (segments - 1) + b"e")


def shared_entries(count: int) -> bytes:
    """Many references to one action."""
    entry = dictionary(text("action"), text("alloc"))
    return snapshot(traces=b"](](" + entry + b"\x94" + b"h\x00" * (count - 1) + b"ee")


@cache
def attacks() -> dict[str, tuple[bytes, str]]:
    """Every attack by its name, with words of the error that must refuse it."""
    reduce_system = b"\x80\x04cos\nsystem\n(S'echo pwned'\ntR."
    return {
        # code
        "reduce": (reduce_system, "GLOBAL at byte 2 is not allowed"),
        "reduce within a snapshot": (
            snapshot(b"cos\nsystem\n" + text("echo pwned") + b"\x85R"),
            "GLOBAL at byte 14 is not allowed",
        ),
        "stack global": (
            P4 + text("os") + text("system") + b"\x93" + text("echo") + b"\x85R.",
            "STACK_GLOBAL at byte 14 is not allowed",
        ),
        "protocol 0 inst": (b"(S'echo pwned'\nios\nsystem\n.", "not a pickle of protocol 2 to 5"),
        "inst": (P4 + b"(S'echo pwned'\nios\nsystem\n.", "STRING at byte 3 is not allowed"),
        "object": (P4 + b"(cos\nsystem\no.", "GLOBAL at byte 3 is not allowed"),
        "new object": (P4 + b")\x81.", "EMPTY_TUPLE at byte 2 is not allowed"),
        "build": (P4 + b"}}(" + text("a") + b"K\x01ub.", "BUILD at byte 11 is not allowed"),
        "extension 1": (P4 + b"\x82\x01.", "EXT1 at byte 2 is not allowed"),
        "extension 2": (P4 + b"\x83\x01\x00.", "EXT2 at byte 2 is not allowed"),
        "extension 4": (P4 + b"\x84\x01\x00\x00\x00.", "EXT4 at byte 2 is not allowed"),
        "persistent id of protocol 0": (b"Pfoo\n.", "not a pickle of protocol 2 to 5"),
        "persistent id": (P4 + b"Pfoo\n.", "PERSID at byte 2 is not allowed"),
        "binary persistent id": (P4 + b"K\x01Q.", "BINPERSID at byte 4 is not allowed"),
        # memory
        "memo place": (P4 + b"Nr" + u32(0x7FFFFFF0) + b".", "LONG_BINPUT at byte 3: no such place"),
        "memo place of protocol 0": (b"Np2000000000\n.", "not a pickle of protocol 2 to 5"),
        "memo place as text": (P4 + b"Np2000000000\n.", "PUT at byte 3 is not allowed"),
        "bytes of a terabyte": (P4 + b"\x8e" + u64(1 << 40) + b".", "BINBYTES8 at byte 2 is not"),
        "text of a terabyte": (P4 + b"\x8d" + u64(1 << 40) + b".", "BINUNICODE8 at byte 2 is not"),
        "text of 4 GB": (P4 + b"X" + u32(2**32 - 1) + b".", "BINUNICODE at byte 2 goes beyond"),
        "byte array": (b"\x80\x05\x96" + u64(1 << 36) + b".", "BYTEARRAY8 at byte 2 is not"),
        "next buffer": (b"\x80\x05\x97.", "NEXT_BUFFER at byte 2 is not allowed"),
        "frame": (P4 + b"\x95" + u64(1 << 40) + b"N.", "FRAME at byte 2 goes beyond the end"),
        "long integer": (P4 + b"\x8b" + u32(0x7FFFFFFF) + b".", "LONG4 at byte 2 is not allowed"),
        "deep lists": (P4 + b"]" * MANY + b"a" * (MANY - 1) + b".", "2,000,000 dictionaries and lists"),
        "many dictionaries": (P4 + b"](" + b"}" * MANY + b"e.", "2,000,001 dictionaries and lists"),
        "laughs": (laughs(200), "expected a dictionary, found a list"),
        "shared blocks": (shared_blocks(50_000, 50_000), "the file has"),
        "shared entries": (shared_entries(1_000_000), "the file has"),
        # stack and time
        "many devices": (snapshot(traces=b"](" + b"]\x94" + b"h\x00" * 9999 + b"e"), "10,000 devices"),
        "deep tuples": (P4 + b")" + b"\x85" * MANY + b".", "EMPTY_TUPLE at byte 2 is not allowed"),
        "deep tuples as a key": (P4 + b"})" + b"\x85" * MANY + b"Ns.", "EMPTY_TUPLE at byte 3 is not allowed"),
        "deep pairs as a key": (
            P4 + b"}K\x01K\x01\x86" + b"K\x01\x86" * MANY + b"Ns.",
            "TUPLE2 at byte 10 is not allowed: only a pair of small integers is",
        ),
        "colliding keys": (
            P4 + b"}(" + colliding_integers(20_000) + b"u.",
            "LONG1 at byte 4 is not allowed: an integer of over 64 bits",
        ),
        "colliding pairs as keys": (
            P4 + b"}(" + (b"K\x01\x8a\x08" + u64(2**62) + b"\x86N") * 1000 + b"u.",
            "TUPLE2 at byte 16 is not allowed",
        ),
        "contains itself": (P4 + b"]\x94h\x00a.", "segments: 1 entries, but the file has 0 dictionaries"),
        "snapshot that contains itself": (
            P4 + b"}\x94(" + text("segments") + b"](h\x00eu.",
            "segments[0].address: expected an integer of 64 bits, found nothing",
        ),
        "a set": (P4 + b"\x8f.", "EMPTY_SET at byte 2 is not allowed"),
        # no pickle at all
        "empty": (b"", "not a pickle of protocol 2 to 5"),
        "one byte": (b"\x80", "not a pickle of protocol 2 to 5"),
        "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a Git LFS pointer"),
        "archive": (b"PK\x03\x04" + bytes(100), "not a pickle of protocol 2 to 5"),
        "protocol 9": (b"\x80\x09}.", "not a pickle of protocol 2 to 5"),
        "unknown instruction": (P4 + b"\xff.", "0xff at byte 2 is not allowed"),
        "second protocol": (P4 + b"\x80\x04}.", "PROTO at byte 2 is not allowed"),
        "bytes after the end": (P4 + b"}." + b"AAAA", "4 bytes follow the end of the pickle"),
        "cut off": (P4 + b"\x95" + u64(100) + b"}(\x8c\x08segm", "FRAME at byte 2 goes beyond"),
        "cut off in a text": (P4 + b"}(\x8c\x08segm", "SHORT_BINUNICODE at byte 4 goes beyond"),
        "cut off in a number": (P4 + b"}(J\x00", "BININT at byte 4 goes beyond"),
        "no end": (P4 + b"}", "ends at byte 3 without STOP"),
        "nothing on the stack": (P4 + b"a.", "does not load: UnpicklingError"),
        "no mark": (P4 + b"}u.", "does not load: UnpicklingError"),
        "no such memo": (P4 + b"h\x07.", "does not load"),
        "list as a key": (P4 + b"}]Ns.", "does not load: TypeError"),
        # what it lies in
        "gzip bomb": (gzip.compress(P4 + b"N" * (3 * 10**7), 9), "bytes or more: over"),
        "gzip cut off": (gzip.compress(pickle.dumps({"segments": []}))[:-12], "cut off or damaged at byte"),
        "page with code": (page(reduce_system), "GLOBAL at byte 2 is not allowed"),
        "page without a snapshot": (b"<html><body>local_files</body></html>", "holds 0 snapshots"),
    }
