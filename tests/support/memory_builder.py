"""Memory snapshots of our own making: a model of PyTorch's caching allocator with its truth, and all ways to write one.

`Allocator` does what the native allocator does by default (rounding, pools for small and large blocks by stream,
best fit, splitting, merging, cudaMalloc, the cache given back before memory runs out) and records what it would
record. `levels` is the truth after every entry of its history. `tests/readers/test_torch_memory_real.py` replays
real histories through it: every address comes out as recorded.
"""

from __future__ import annotations

import base64
import bisect
import gzip
import io
import json
import pickle
import struct
from collections import deque
from dataclasses import dataclass, field

MIB = 2**20
LEAST, SMALL = 512, MIB
SIMULATED = "SIMULATED: written by a model of the allocator; no GPU ran, nothing was measured"
SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT, ROUND_LARGE = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
FIRST_ADDRESS, FIRST_US = 0x7F00_0000_0000, 1_790_000_000_000_000


def frame(name, file="/job/train.py", line=1):
    return {"name": name, "filename": file, "line": line}


def stack(*names):
    """A stack of functions, the innermost first, each on a line of its own."""
    return [frame(name, line=len(name)) for name in names]


@dataclass(eq=False)
class Block:
    address: int
    size: int
    segment: Segment
    requested: int = 0
    state: str = "inactive"
    frames: list = field(default_factory=list)
    metadata: str = ""
    before: Block | None = None
    after: Block | None = None


@dataclass(eq=False)
class Segment:
    address: int
    size: int
    kind: tuple  # (pool, stream, whether it is for small blocks)
    frames: list
    first: Block | None = None

    def blocks(self):
        block = self.first
        while block is not None:
            yield block
            block = block.after


class DeviceFullError(Exception):
    """What the model raises where PyTorch raises torch.cuda.OutOfMemoryError."""


def rounded(size):
    """What a request occupies."""
    return max(LEAST, -(-size // LEAST) * LEAST)


def segment_size(size):
    """What is asked of the driver for a block of this rounded size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUND_LARGE) * ROUND_LARGE


class Allocator:
    """One device: `capacity` bytes, of which others hold `elsewhere`; a history of at most `most` entries."""

    def __init__(self, device=0, capacity=None, elsewhere=0, most=None, addresses=None):
        self.device, self.capacity, self.elsewhere, self.most = device, capacity, elsewhere, most
        self.addresses = addresses  # a function size → address of a new segment; None: our own
        self.next_address = FIRST_ADDRESS + (device << 40)
        self.now_us = FIRST_US
        self.segments, self.blocks, self.free_blocks = {}, {}, {}
        self.pending = []
        self.history, self.levels = deque(maxlen=most), deque(maxlen=most)
        self.overflowed = False
        self.annotations = []
        self.requested = self.allocated = self.reserved = 0

    # what a program does

    def alloc(self, size, frames=(), stream=0, pool=(0, 0), metadata=""):
        """The address of a block for `size` bytes."""
        frames = list(frames)
        need = rounded(size)
        kind = (pool, stream, need <= SMALL)
        block = self._best_fit(kind, need) or self._new_segment(kind, need, frames)
        if block is None:
            self._record("oom", None, size, stream, frames, pool, free=self._device_free())
            raise DeviceFullError
        rest = block.size - need
        if rest >= LEAST if kind[2] else rest > SMALL:
            self._split(block, need)
        block.requested, block.state = size, "active_allocated"
        block.frames, block.metadata = frames, metadata
        self.requested += size
        self.allocated += block.size
        self._record("alloc", block.address, size, stream, frames, pool, metadata)
        return block.address

    def free(self, address, frames=(), wait=False):
        """Nothing; with `wait` another stream still uses the block, until `synchronize`."""
        block = self.blocks[address]
        frames = list(frames)
        pool, stream, _ = block.segment.kind
        self._record("free_requested", address, block.requested, stream, frames, pool)
        self.allocated -= block.size
        block.state = "active_pending_free"
        if wait:
            self.pending.append((block, frames))
        else:
            self._complete(block, frames)

    def synchronize(self):
        """Complete the frees that wait for other streams."""
        waiting, self.pending = self.pending, []
        for block, frames in waiting:
            self._complete(block, frames)

    def empty_cache(self, frames=()):
        """Give segments without a block in use back to the driver."""
        for segment in list(self.segments.values()):
            if segment.first.after is None and segment.first.state == "inactive":
                self._take(segment.first)
                del self.segments[segment.address], self.blocks[segment.address]
                self.reserved -= segment.size
                pool, stream, _ = segment.kind
                self._record("segment_free", segment.address, segment.size, stream, list(frames), pool)

    def annotate(self, name, stage):
        """A mark of a range's START or END."""
        self._tick()
        self.annotations.append({"stage": stage, "name": name, "device": self.device, "time_us": self.now_us})

    def clear_history(self):
        """Begin a new history, as recording anew does; blocks keep their stacks."""
        self.history.clear()
        self.levels.clear()
        self.overflowed = False

    # how the allocator does it

    def _best_fit(self, kind, need):
        free = self.free_blocks.setdefault(kind, [])
        at = bisect.bisect_left(free, (need, 0))
        return self.blocks[free.pop(at)[1]] if at < len(free) else None

    def _new_segment(self, kind, need, frames):
        size = segment_size(need)
        if self._is_full(size):
            self.empty_cache(frames)
            if self._is_full(size):
                return None
        address = self.addresses(size) if self.addresses else self.next_address
        self.next_address += -(-size // ROUND_LARGE) * ROUND_LARGE
        segment = Segment(address, size, kind, frames)
        block = segment.first = Block(address, size, segment)
        self.segments[address], self.blocks[address] = segment, block
        self.reserved += size
        self._record("segment_alloc", address, size, kind[1], frames, kind[0])
        return block

    def _is_full(self, size):
        return self.capacity is not None and self._device_free() < size

    def _device_free(self):
        return (self.capacity or 0) - self.elsewhere - self.reserved

    def _split(self, block, need):
        rest = Block(block.address + need, block.size - need, block.segment)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, need
        self._give(rest)

    def _complete(self, block, frames):
        pool, stream, _ = block.segment.kind
        self.requested -= block.requested
        self._record("free_completed", block.address, block.requested, stream, frames, pool)
        block.requested, block.state, block.frames, block.metadata = 0, "inactive", [], ""
        for other in (block.before, block.after):
            if other is not None and other.state == "inactive":
                self._take(other)
                block = self._merged(*sorted((block, other), key=lambda b: b.address))
        self._give(block)

    def _merged(self, low, high):
        low.size += high.size
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        del self.blocks[high.address]
        return low

    def _give(self, block):
        self.blocks[block.address] = block
        bisect.insort(self.free_blocks.setdefault(block.segment.kind, []), (block.size, block.address))

    def _take(self, block):
        self.free_blocks[block.segment.kind].remove((block.size, block.address))

    def _tick(self):
        self.now_us += 10

    def _record(self, action, address, size, stream, frames, pool, metadata="", free=None):
        self._tick()
        where = {"addr": address} if free is None else {"device_free": free}
        entry = {
            "action": action, **where, "size": size, "stream": stream, "time_us": self.now_us,
            "compile_context": "N/A", "user_metadata": metadata, "pool_id": pool, "frames": frames,
        }  # fmt: skip
        self.overflowed |= len(self.history) == self.most
        self.history.append(entry)
        self.levels.append((self.requested, self.allocated, self.reserved))


def segments_of(allocator):
    """The segments as `torch.cuda.memory_snapshot()` gives them."""
    found = []
    for segment in sorted(allocator.segments.values(), key=lambda s: s.address):
        blocks = list(segment.blocks())
        used = [b for b in blocks if b.state == "active_allocated"]
        active = [b for b in blocks if b.state != "inactive"]
        found.append(
            {
                "device": allocator.device, "address": segment.address, "total_size": segment.size,
                "allocated_size": sum(b.size for b in used), "active_size": sum(b.size for b in active),
                "requested_size": sum(b.requested for b in active), "stream": segment.kind[1],
                "segment_type": "small" if segment.kind[2] else "large",
                "segment_pool_id": segment.kind[0], "is_expandable": False, "frames": segment.frames,
                "blocks": [
                    {"address": b.address, "size": b.size, "requested_size": b.requested,
                     "state": b.state, "frames": b.frames, "user_metadata": b.metadata}
                    for b in blocks
                ],
            }
        )  # fmt: skip
    return found


def snapshot(*allocators, **more):
    """The snapshot of several devices as torch 2.13 writes it; devices between them were not used."""
    count = max((a.device for a in allocators), default=-1) + 1
    traces = [[] for _ in range(count)]
    for allocator in allocators:
        traces[allocator.device] = list(allocator.history)
    return {
        "segments": [segment for a in allocators for segment in segments_of(a)],
        "device_traces": traces,
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
        "external_annotations": [mark for a in allocators for mark in a.annotations],
        "simulated": SIMULATED,
        **more,
    }


_ADDED = {
    "2.1": (("segments", "frames"), ("segments", "segment_pool_id"), ("segments", "is_expandable")),
    "2.2": (("entries", "time_us"), ("top", "allocator_settings")),
    "2.5": (("top", "external_annotations"),),
    "2.7": (("entries", "compile_context"),),
    "2.9": (("entries", "user_metadata"), ("blocks", "user_metadata")),
    "2.12": (("entries", "pool_id"),),
}
VERSIONS = ("2.0", *_ADDED)


def as_written_by(version, made):
    """The snapshot without what came after this version of torch; changed in place and returned."""
    later = VERSIONS[VERSIONS.index(version) + 1 :]
    rows = {
        "top": [made],
        "segments": made["segments"],
        "blocks": [block for segment in made["segments"] for block in segment["blocks"]],
        "entries": [entry for trace in made.get("device_traces", ()) for entry in trace],
    }
    for place, key in (pair for name in later for pair in _ADDED[name]):
        for row in rows[place]:
            row.pop(key, None)
    if version == "2.0":
        for block in rows["blocks"]:
            address, frames = block.pop("address"), block.pop("frames")
            past = {"addr": address, "real_size": block["requested_size"], "frames": frames}
            block["history"] = [past] if block["state"] != "inactive" else []
    return made


# how it is written


def pickled(made, protocol=4):
    return pickle.dumps(made, protocol=protocol)


def written_by_cpp(made):
    """A pickle as PyTorch's own pickler in C++ writes it: protocol 2, texts and shared containers memoised."""
    out, texts, containers = io.BytesIO(), {}, {}

    def put(memo, key):
        at = memo[key] = len(texts) + len(containers)
        out.write(b"q" + bytes([at]) if at < 256 else b"r" + struct.pack("<I", at))

    def get(at):
        out.write(b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at))

    def number(value):
        if 0 <= value < 256:
            out.write(b"K" + bytes([value]))
        elif 0 <= value < 65536:
            out.write(b"M" + struct.pack("<H", value))
        elif -(2**31) <= value < 2**31:
            out.write(b"J" + struct.pack("<i", value))
        else:  # always eight bytes: larger addresses come out negative
            out.write(b"\x8a\x08" + struct.pack("<Q", value % 2**64))

    def write(value):
        if isinstance(value, str):
            if value in texts:
                return get(texts[value])
            raw = value.encode()
            out.write(b"X" + struct.pack("<I", len(raw)) + raw)
            return put(texts, value)
        if value is None or isinstance(value, bool):
            return out.write({True: b"\x88", False: b"\x89", None: b"N"}[value])
        if isinstance(value, int):
            return number(value)
        if isinstance(value, float):
            return out.write(b"G" + struct.pack(">d", value))
        if isinstance(value, tuple):
            write(value[0])
            write(value[1])
            return out.write(b"\x86")
        if id(value) in containers:
            return get(containers[id(value)])
        out.write(b"}" if isinstance(value, dict) else b"]")
        put(containers, id(value))
        out.write(b"(")
        for item in value.items() if isinstance(value, dict) else value:
            for part in item if isinstance(value, dict) else (item,):
                write(part)
        return out.write(b"u" if isinstance(value, dict) else b"e")

    out.write(b"\x80\x02")
    write(made)
    out.write(b".")
    return out.getvalue()


def page(data):
    """The page that `torch.cuda._memory_viz` makes of a pickle: base64, with 1 to 3 zero bytes behind it."""
    packed = base64.b64encode(data + b"\0" * (3 - len(data) % 3)).decode()
    held = json.dumps([{"name": "snapshot.pickle", "base64": packed}])
    return (
        '\n<!DOCTYPE html>\n<html>\n<head>\n</head>\n<body>\n<script type="module">\n'
        f'import {{add_local_files}} from "./MemoryViz.js"\nconst local_files = {held}\n'
        "add_local_files(local_files, 'Active Memory Timeline')\n</script>\n</body>\n"
    ).encode()


def zipped(data):
    return gzip.compress(data, mtime=0)
