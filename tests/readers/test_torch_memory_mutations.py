"""Damaged copies of real snapshots give a Trace or a TraceFormatError, whatever was damaged."""

import os
import random
from functools import cache
from pathlib import Path

import pytest
from memory_reading import read
from recorded import REAL, SNAPSHOTS

from tracekit.model.errors import TraceFormatError

REAL_SMALL = (
    "LfieLike+SketchKV2/my_snapshot.pickle",
    *(f"SIMULATED_cpu_allocsim/step{i}/torch_memory_rank0_pid1.pickle" for i in range(8)),
)
REAL_ALL = (
    *REAL_SMALL,
    "Yiyi-philosophy+LLM-inference/oom_snapshot.pickle",
    "Yiyi-philosophy+LLM-inference/1.3b_snapshot.pickle",
    "MAGMA27+assignment2-systems/memory_snapshot.pickle",
    "facebookresearch+mosaic/SYNTHETIC_output.pickle",
    "CPU_torch2.13/cpu_profile_snapshot.pickle",
)
SMALL, ALL = (REAL_SMALL, REAL_ALL) if REAL else (SNAPSHOTS, SNAPSHOTS)
INSTRUCTIONS = b"}](eusahjKMJNq\x8a\x8c\x94\x86\x88\x89GXr\x95.\x80"
TABLES = {"allocations", "memory_segments", "blocks", "stacks", "annotations"}


@cache
def content(name):
    return (Path(REAL or "") / "memory" / name).read_bytes()


def mutated(data, chance):
    """The bytes with one to three places changed, put in, left out, moved or cut off."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(made))
        length = chance.choice((1, 1, 2, 4, 8, 40))
        kind = chance.randrange(8)
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at : at + length] = chance.randbytes(length)
        elif kind == 2:
            del made[at : at + length]
        elif kind == 3:
            made[at:at] = made[chance.randrange(len(made)) :][:length]
        elif kind == 4:
            made[at] = chance.choice(INSTRUCTIONS)
        elif kind == 5:
            made[at : at + 1] = bytes([chance.choice(INSTRUCTIONS)]) + made[at : at + 1]
        elif kind == 6:  # a reference to something else
            found = made.find(b"h", at)
            made[found + 1 : found + 2] = chance.randbytes(1) if found >= 0 else b""
        elif chance.randrange(4) == 0:
            del made[at + 1 :]
        else:
            found = made.find(b"\x8c", at)
            made[found + 2 : found + 3] = chance.randbytes(1) if found >= 0 else b""
    return bytes(made)


def outcome(path):
    """The Trace of a file, or the error that refuses it; any other error goes through."""
    try:
        return read(path)
    except TraceFormatError as error:
        return error


def try_many(names, count, seed, path):
    """How many of the damaged copies could still be read."""
    chance = random.Random(seed)
    whole = 0
    for _ in range(count):
        path.write_bytes(mutated(content(chance.choice(names)), chance))
        got = outcome(path)
        if isinstance(got, TraceFormatError):
            assert "\n" not in str(got) + got.hint
            continue
        whole += 1
        assert set(got.tables) <= TABLES
        for note in got.notes:
            note.message.encode()
    return whole


@pytest.mark.parametrize("part", range(20))
def test_damaged_copies_are_read_or_refused(part, tmp_path):
    """500 in all, of the smaller files."""
    whole = try_many(SMALL, 25, f"0 {part}", tmp_path / "damaged.pickle")
    assert whole < 25


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_many_damaged_copies_are_read_or_refused(part, tmp_path):
    """2,000 in all; TRACEKIT_MUTATIONS=20000 tries ten times as many, in minutes."""
    count = int(os.environ.get("TRACEKIT_MUTATIONS", "2000")) // 40
    whole = try_many(ALL, count, f"many 0 {part}", tmp_path / "damaged.pickle")
    assert 0 < whole < count
