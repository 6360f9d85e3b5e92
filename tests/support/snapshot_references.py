"""Snapshots that refer to one long text, list or dictionary very often: name → bytes of a sound pickle.

A reference takes two bytes of the file; who copies what it refers to, or walks through it each time, takes
gigabytes or minutes. Every one of them is what a snapshot may be, and is read.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from functools import cache

from snapshot_attacks import P4, dictionary, text, u32

LONG = 2**20
"""Characters of a long text."""

COUNT = 1500
"""How often it is referred to, where nothing else is said."""


def long_text(letter: str, length: int = LONG) -> bytes:
    return b"X" + u32(length) + letter.encode() * length


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def again(memo: int) -> bytes:
    """A reference to what was remembered as the so-many-th."""
    return b"h" + bytes([memo])


def listed(items: Iterable[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def frame(name: bytes, file: bytes, line: int = 1) -> bytes:
    return dictionary(text("name"), name, text("filename"), file, text("line"), number(line))


def action(row: int, *pairs: bytes, what: bytes | None = None) -> bytes:
    """An allocation of 512 bytes, of other things than its stack as they are given."""
    fixed = text("addr") + number(row * 512), text("size") + number(512), text("time_us") + number(row)  # fmt: skip
    return dictionary(text("action"), what or text("alloc"), *fixed, *pairs)


def actions(rows: Iterable[bytes], **more: bytes) -> bytes:
    """A snapshot with the history of one device."""
    return of(device_traces=listed([listed(rows)]), **more)


def of(**parts: bytes) -> bytes:
    """A snapshot of these keys, in this order."""
    pairs = (text(key) + value for key, value in ({"segments": b"]"} | parts).items())
    return P4 + dictionary(*pairs) + b"."


def stack(frames: Iterable[bytes]) -> bytes:
    return text("frames") + listed(frames)


def long_file_name() -> bytes:
    """The one that was found first: one frame, its file a long text, so often in one stack."""
    shared = frame(text("f"), long_text("x")) + b"\x94"
    return actions([action(0, stack([shared, *[again(0)] * (COUNT - 1)]))])


def long_function_name() -> bytes:
    first = frame(long_text("n") + b"\x94", text("a.py"))
    others = (frame(again(0), text("a.py"), line) for line in range(2, 2 * COUNT))
    return actions([action(0, stack([first, *others]))])


def long_file_of_many_stacks() -> bytes:
    first = stack([frame(text("f"), long_text("x") + b"\x94")])
    others = (stack([frame(text("f"), again(0), line)]) for line in range(2, 3 * COUNT))
    return actions(action(row, each) for row, each in enumerate([first, *others]))


def long_stacks_turn_about() -> bytes:
    shared = frame(text("f"), text("a.py")) + b"\x94"
    one = listed([shared, *[again(0)] * 100_000]) + b"\x94"
    other = listed([again(0)] * 100_000) + b"\x94"
    lists = [one, other, *[again(1), again(2)] * COUNT]
    return actions(action(row, text("frames") + each) for row, each in enumerate(lists))


def one_deep_stack() -> bytes:
    shared = frame(text("f"), text("a.py")) + b"\x94"
    return actions([action(0, stack([shared, *[again(0)] * 500_000]))])


def many_stacks_of_few_frames() -> bytes:
    chance = random.Random(0)
    first = stack(frame(text(f"f{i}"), text("a.py"), i) + b"\x94" for i in range(256))
    others = (stack(again(chance.randrange(256)) for _ in range(1000)) for _ in range(300))
    return actions(action(row, each) for row, each in enumerate([first, *others]))


def long_forward_frames() -> bytes:
    shared = long_text("w") + b"\x94"
    return actions([action(0, text("forward_frames") + listed([shared, *[again(0)] * COUNT]))])


def long_words_of_rows() -> bytes:
    """What rows are for: one text as the category, the metadata and the compile context of all."""
    keys = ("category", "user_metadata", "compile_context")
    first = action(0, text("category") + long_text("c") + b"\x94")
    others = (action(row, *(text(key) + again(0) for key in keys)) for row in range(1, 3 * COUNT))
    return actions([first, *others])


def long_unknown_words() -> bytes:
    """Actions that nobody knows, called by a long text."""
    first = action(0, what=long_text("a") + b"\x94")
    return actions([first, *(action(row, what=again(0)) for row in range(1, COUNT))])


def long_annotations() -> bytes:
    def mark(row: int, name: bytes) -> bytes:
        stage, device = text("START" if row % 2 == 0 else "END"), number(0)
        times = text("time_us") + number(row)
        return dictionary(text("stage"), stage, text("name"), name, text("device"), device, times)

    marks = [mark(0, long_text("m") + b"\x94"), *(mark(row, again(0)) for row in range(1, COUNT))]
    return actions([action(0), action(COUNT)], external_annotations=listed(marks))


def long_user_defined() -> bytes:
    """Annotations as torch 2.4 wrote them, as actions: the file of the frame is their name."""
    shared = frame(text("START"), long_text("u")) + b"\x94"
    mark = text("user_defined")
    first = action(0, stack([shared]), what=mark)
    return actions([first, *(action(row, stack([again(0)]), what=mark) for row in range(1, COUNT))])


def long_keys_of_frames() -> bytes:
    first = dictionary(text("name"), text("f"), long_text("k") + b"\x94", b"N")
    others = (dictionary(text("name"), text("f"), text("line"), number(i), again(0), b"N") for i in range(COUNT))
    return actions([action(0, stack([first, *others]))])


def action_of_many_keys() -> bytes:
    """One dictionary of 50,000 keys, 20,000 times; brackets in a text seem to be as many dictionaries."""
    keys = (text(f"k{i:05}") + b"N" for i in range(50_000))
    shared = dictionary(text("action"), text("alloc"), *keys) + b"\x94"
    return actions([shared, *[again(0)] * 20_000], pad=long_text("}", 20_000))


def segments_of_the_same_blocks() -> bytes:
    block = dictionary(text("size"), number(512), text("state"), text("inactive"))
    blocks = listed([block] * 200) + b"\x94"
    lists = [blocks, *[again(0)] * 200]
    segments = (
        dictionary(text("device"), number(0), text("address"), number(row), text("blocks"), each)
        for row, each in enumerate(lists)
    )
    return of(segments=listed(segments), pad=long_text("}", 45_000), more=long_text("x", 900_000))


def settings_within_settings() -> bytes:
    """A thousand settings that are one dictionary of a thousand long texts: ten gigabytes to who copies them."""
    shared = [long_text("s", 10_001) + b"\x94", *[again(0)] * 998]
    inner = dictionary(*(text(f"i{i}") + each for i, each in enumerate(shared))) + b"\x94"
    settings = dictionary(*(text(f"o{i}") + each for i, each in enumerate([inner, *[again(1)] * 998])))
    return of(allocator_settings=settings)


def small_dictionaries() -> bytes:
    """As many dictionaries as a file of this size may have, with all the columns that the first one has."""
    keys = ("addr", "size", "stream", "time_us", "device_free")
    texts = ("compile_context", "user_metadata", "category")
    first = dictionary(
        text("action") + b"\x94",
        text("alloc") + b"\x94",
        *(text(key) + number(1) for key in keys),
        *(text(key) + text("v") for key in texts),
        text("frames") + b"]",
    )
    rest = b"}(" + again(0) + again(1) + b"u"
    count = 60_000
    return actions([first, *[rest] * count], pad=long_text("x", 16 * count))


def long_frames_of_blocks_in_use() -> bytes:
    """Two hundred frames of long names in any order: five kilobytes of text for each of 20,000 stacks, of 16 devices."""
    chance, names = random.Random(0), [f"{i:03}" + "\U0001f525" * 250 for i in range(200)]
    frames = []
    for i, name in enumerate(names):
        raw = name.encode()
        long = b"X" + u32(len(raw)) + raw
        frames.append(frame(long, long, i + 1) + b"\x94")
    keys = ("size", "state", "frames", "address", "active_allocated")
    first = [text(key) + b"\x94" for key in keys]
    size, state, stack_of, address, active = (again(200 + i) for i in range(len(keys)))

    def block(row: int) -> bytes:
        stack = listed(again(chance.randrange(200)) for _ in range(12))
        return dictionary(size, number(512), state, active, address, number(row * 512), stack_of, stack)  # fmt: skip

    memo = listed([*frames, *first])
    segments = (
        dictionary(
            text("pad"), b"N" if device else memo, text("device"), number(device), text("address"), number(device * 1250 * 512),
            text("total_size"), number(1250 * 512), text("blocks"),
            listed(block(device * 1250 + row) for row in range(1250)),
        )
        for device in range(16)
    )  # fmt: skip
    return of(segments=listed(segments))


MADE = (
    long_file_name,
    long_function_name,
    long_file_of_many_stacks,
    long_stacks_turn_about,
    one_deep_stack,
    many_stacks_of_few_frames,
    long_forward_frames,
    long_words_of_rows,
    long_unknown_words,
    long_annotations,
    long_user_defined,
    long_keys_of_frames,
    action_of_many_keys,
    segments_of_the_same_blocks,
    settings_within_settings,
    small_dictionaries,
    long_frames_of_blocks_in_use,
)


@cache
def references() -> dict[str, bytes]:
    """Every one of them by its name."""
    return {make.__name__.replace("_", " "): make() for make in MADE}


def small() -> bytes:
    """A snapshot of two actions: what is taken for it is taken for every one."""
    frames = stack([frame(text("f"), text("a.py"))])
    return actions([action(0, frames), action(1)])
