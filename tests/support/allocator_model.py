"""A second model of PyTorch's caching allocator, with its options: the truth that replays with an option are compared with.

It shares no code with tracekit, nor with `memory_builder`. It is slow and plain: a segment is a list of pieces in order of
address, a free piece is looked for among all of them. Written from c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from random import Random

MIB = 2**20
FIRST = 0x7F00_0000_0000
FAR = 2**46
FILES = {"optimizer_state": "/lib/torch/optim/adamw.py"}
CATEGORIES = {
    "weights": "parameter", "optimizer_state": "optimizer_state", "gradient": "gradient",
    "forward": "activation", "backward": "activation",
}  # fmt: skip


@dataclass(eq=False)
class Piece:
    address: int
    size: int
    state: str = "free"
    mapped: bool = True
    asked: int = 0
    since: int = 0

    @property
    def end(self):
        return self.address + self.size


@dataclass(eq=False)
class Held:
    """A segment: of one stream, for small or for large pieces."""

    stream: int
    small: bool
    grows: bool
    pieces: list
    base: int = 0

    def neighbour(self, piece, step):
        at = self.pieces.index(piece) + step
        return self.pieces[at] if 0 <= at < len(self.pieces) else None


@dataclass
class Setting:
    expandable: bool = False
    max_split: int | None = None
    collect_above: float | None = None
    limit: int | None = None


@dataclass
class Model:
    """A device. `levels` has (reserved, in use or waiting) after each step of the program; `failed` counts requests refused."""

    setting: Setting = field(default_factory=Setting)
    segments: list = field(default_factory=list)
    history: list = field(default_factory=list)
    levels: list = field(default_factory=list)
    of_key: dict = field(default_factory=dict)
    waiting: list = field(default_factory=list)
    looked: dict = field(default_factory=lambda: {True: 0, False: 0})
    next_address: int = FIRST
    failed: int = 0
    categories: bool = False
    marks: list = field(default_factory=list)
    clock: int = 1_790_000_000_000_000

    def run(self, program):
        for step in program:
            getattr(self, step[0])(*step[1:])
            self.levels.append((self.reserved(), self.active()))
        return self

    def reserved(self):
        return sum(p.size for s in self.segments for p in s.pieces if p.mapped)

    def active(self):
        return sum(p.size for s in self.segments for p in s.pieces if p.state != "free")

    @property
    def peaks(self):
        return tuple(map(max, zip(*self.levels, strict=True)))

    # steps of a program

    def alloc(self, key, size, stream=0, site="work"):
        need = max(512, (size + 511) // 512 * 512)
        small = need <= MIB
        found = self.look_for(need, small, stream)
        if found is None and self.setting.collect_above is not None:
            self.collect()
        for rescue in (None, self.drop_oversize, self.drop_all):
            if found is None and (rescue is None or rescue(need, small, stream)):
                found = self.ask_driver(need, small, stream)
        if found is None:
            self.failed += 1
            self.write("oom", 0, size, stream, site)
            free = (self.setting.limit or 0) - self.reserved()
            self.history[-1] = {**{k: v for k, v in self.history[-1].items() if k != "addr"}, "device_free": free}
            return
        segment, piece = found
        rest = piece.size - need
        loose = small or self.setting.expandable
        if rest >= 512 if loose else (rest > MIB and need < self.most()):
            segment.pieces.insert(
                segment.pieces.index(piece) + 1,
                Piece(piece.address + need, rest, since=self.looked[segment.small]),
            )
            piece.size = need
        piece.state, piece.asked = "used", size
        self.of_key[key] = (segment, piece)
        self.write("alloc", piece.address, size, stream, site)

    def free(self, key):
        if key not in self.of_key:
            return  # its request failed
        segment, piece = self.of_key.pop(key)
        self.write("free_requested", piece.address, piece.asked, segment.stream)
        self.finish(segment, piece)

    def free_later(self, key):
        """Free what another stream still uses (record_stream)."""
        if key not in self.of_key:
            return
        segment, piece = self.of_key.pop(key)
        self.write("free_requested", piece.address, piece.asked, segment.stream)
        piece.state = "waiting"
        self.waiting.append((segment, piece))

    def sync(self):
        for segment, piece in self.waiting:
            self.finish(segment, piece)
        self.waiting = []

    def mark(self, name, stage):
        """Note the start or the end of a range."""
        self.clock += 1
        self.marks.append({"stage": stage, "name": name, "device": 0, "time_us": self.clock})

    def empty(self):
        self.drop_all(0, True, 0)

    # parts

    def most(self):
        return self.setting.max_split or float("inf")

    def write(self, action, address, size, stream, site=""):
        self.clock += 1
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.clock}
        frames = [{"name": site, "filename": FILES.get(site, "/job/train.py"), "line": 7}] if site else []
        if self.categories and site:
            entry["category"] = CATEGORIES.get(site, "temporary")
        self.history.append({**entry, "frames": frames})

    def finish(self, segment, piece):
        self.write("free_completed", piece.address, piece.asked, segment.stream)
        piece.state, piece.asked = "free", 0
        self.join(segment, piece)

    def join(self, segment, piece):
        """Join a free piece with free neighbours of its kind."""
        for step in (-1, 1):
            other = segment.neighbour(piece, step)
            if other is not None and other.state == "free" and other.mapped == piece.mapped:
                piece.address = min(piece.address, other.address)
                piece.size += other.size
                segment.pieces.remove(other)
        piece.since = self.looked[segment.small]

    def free_pieces(self, small, stream):
        found = [
            (s, p)
            for s in self.segments
            if s.small == small and s.stream == stream
            for p in s.pieces
            if p.mapped and p.state == "free"
        ]
        return sorted(found, key=lambda pair: (pair[1].size, pair[1].address))

    def look_for(self, need, small, stream):
        if self.setting.collect_above is not None:
            self.looked[small] += 1
        fits = [pair for pair in self.free_pieces(small, stream) if pair[1].size >= need]

        def room(pair):
            behind = pair[0].neighbour(pair[1], 1)
            return pair[1].size + (behind.size if behind is not None and not behind.mapped else 0)

        while len(fits) > 1 and fits[0][0].grows and room(fits[1]) < room(fits[0]):
            fits.pop(0)
        if not fits:
            return None
        size = fits[0][1].size
        if need < self.most() <= size or (need >= self.most() and size >= need + 20 * MIB):
            return None
        return fits[0]

    def ask_driver(self, need, small, stream):
        if self.setting.expandable:
            return self.grow(need, small, stream)
        size = 2 * MIB if small else 20 * MIB if need < 10 * MIB else -(-need // (2 * MIB)) * 2 * MIB
        if self.setting.limit is not None and self.reserved() + size > self.setting.limit:
            return None
        piece = Piece(self.next_address, size)
        self.next_address += size
        self.segments.append(Held(stream, small, False, [piece], piece.address))
        self.write("segment_alloc", piece.address, size, stream)
        return self.segments[-1], piece

    def grow(self, need, small, stream):
        page = 2 * MIB if small else 20 * MIB
        own = [s for s in self.segments if s.grows and (s.small, s.stream) == (small, stream)]
        start = None
        for segment in sorted(own, key=lambda s: s.base):
            for piece in segment.pieces:
                if piece.mapped or start is not None:
                    continue
                before = segment.neighbour(piece, -1)
                first = before if before is not None and before.state == "free" else piece
                at, sum_free = segment.pieces.index(first), 0
                while at < len(segment.pieces) and segment.pieces[at].state == "free" and sum_free < need:
                    sum_free += segment.pieces[at].size
                    at += 1
                if sum_free >= need:
                    start = (segment, first)
        if start is None:
            whole = Piece(self.next_address, FAR // page * page, mapped=False)
            self.next_address += FAR
            start = Held(stream, small, True, [whole], whole.address), whole
            self.segments.append(start[0])
        segment, piece = start
        if not piece.mapped and not self.map(segment, piece, min(piece.size, need), page):
            return None
        while piece.size < need:
            behind = segment.neighbour(piece, 1)
            if not self.map(segment, behind, min(need - piece.size, behind.size), page):
                return None
            piece = behind
        return segment, piece

    def map(self, segment, piece, size, page):
        size = -(-size // page) * page
        if self.setting.limit is not None and self.reserved() + size > self.setting.limit:
            return False
        if size < piece.size:
            rest = Piece(piece.address + size, piece.size - size, mapped=False)
            segment.pieces.insert(segment.pieces.index(piece) + 1, rest)
            piece.size = size
        self.write("segment_map", piece.address, size, segment.stream)
        piece.mapped = True
        self.join(segment, piece)
        return True

    def drop(self, segment):
        self.write("segment_free", segment.pieces[0].address, segment.pieces[0].size, segment.stream)
        self.segments.remove(segment)

    def is_idle(self, segment):
        return not segment.grows and len(segment.pieces) == 1 and segment.pieces[0].state == "free"

    def drop_all(self, need, small, stream):
        self.sync()
        for segment in list(self.segments):
            if self.is_idle(segment):
                self.drop(segment)
            elif segment.grows:
                for piece in [p for p in segment.pieces if p.mapped and p.state == "free"]:
                    self.unmap(segment, piece)
                if not any(p.mapped for p in segment.pieces):
                    self.segments.remove(segment)
        return True

    def unmap(self, segment, piece):
        page = 2 * MIB if segment.small else 20 * MIB
        first = segment.base + -(-(piece.address - segment.base) // page) * page
        last = segment.base + (piece.end - segment.base) // page * page
        if first >= last:
            return
        at = segment.pieces.index(piece)
        now = self.looked[segment.small]
        parts = [
            Piece(piece.address, first - piece.address, since=now),
            Piece(first, last - first, mapped=False),
            Piece(last, piece.end - last, since=now),
        ]
        segment.pieces[at : at + 1] = [part for part in parts if part.size]
        self.write("segment_unmap", first, last - first, segment.stream)
        self.join(segment, parts[1])

    def drop_oversize(self, need, small, stream):
        if self.setting.max_split is None:
            return False
        need = max(need, self.setting.max_split)
        free = [(s, p) for s, p in self.free_pieces(small, stream)]
        enough = [s for s, p in free if p.size >= need]
        if enough:
            self.drop(enough[0])
            return True
        total = 0
        for segment, piece in reversed(free):
            if total >= need or piece.size < self.setting.max_split:
                break
            total += piece.size
            self.drop(segment)
        return total >= need

    def collect(self):
        excess = self.reserved() - self.setting.collect_above
        if excess <= 0:
            return
        idle = [s for s in self.segments if not s.small and self.is_idle(s)]
        gone, progress = 0, True
        while gone < excess and progress and idle:
            ages = [self.looked[False] - s.pieces[0].since for s in idle]
            mean, progress = sum(ages) / len(ages), False
            for segment, age in zip(list(idle), ages, strict=True):
                if age >= mean:
                    progress, gone = True, gone + segment.pieces[0].size
                    idle.remove(segment)
                    self.drop(segment)

    def snapshot(self):
        """The snapshot as torch writes it."""
        found = []
        for segment in sorted(self.segments, key=lambda s: s.base):
            for group in self.mapped_groups(segment):
                used = [p for p in group if p.state != "free"]
                found.append(
                    {
                        "device": 0, "address": group[0].address, "total_size": sum(p.size for p in group),
                        "allocated_size": sum(p.size for p in group if p.state == "used"),
                        "active_size": sum(p.size for p in used), "requested_size": sum(p.asked for p in used),
                        "stream": segment.stream, "segment_type": "small" if segment.small else "large",
                        "segment_pool_id": (0, 0), "is_expandable": segment.grows, "frames": [],
                        "blocks": [
                            {"address": p.address, "size": p.size, "requested_size": p.asked, "frames": [],
                             "state": {"free": "inactive", "used": "active_allocated", "waiting": "active_pending_free"}[p.state]}
                            for p in group
                        ],
                    }
                )  # fmt: skip
        settings = {"max_split_size": self.setting.max_split or -1, "expandable_segments": self.setting.expandable}
        return {
            "segments": found,
            "device_traces": [self.history],
            "external_annotations": self.marks,
            "allocator_settings": settings,
            "simulated": "SIMULATED: a model",
        }

    @staticmethod
    def mapped_groups(segment):
        groups, last = [], None
        for piece in segment.pieces:
            if piece.mapped:
                groups.append([piece]) if last is None or not last.mapped else groups[-1].append(piece)
            last = piece
        return groups


def train(seed, steps=6, layers=12, streams=(0,), later=0.0, empties=0.0, scale=None, offloaded=False, emptied=False):
    """A program like training: weights, then steps of forward, backward and optimizer with lengths that vary.

    `scale` multiplies the sizes of a site. With `offloaded` the optimizer's state is on the device only during its steps;
    with `emptied` each of these steps empties the cache when it ends.
    """
    random, program, number, scale = Random(seed), [], 0, scale or {}

    def alloc(size, stream=0, site="forward", key=None):
        nonlocal number
        number += key is None
        program.append(("alloc", key or number, max(1, ceil(size * scale.get(site, 1))), stream, site))
        return key or number

    def free(key):
        program.append(("free_later" if random.random() < later else "free", key))

    def mark(stage):
        program.append(("mark", "Optimizer.step#AdamW.step", stage))

    widths, state = [random.choice((3, 5, 8)) * MIB // 2 for _ in range(layers)], {}
    for width in widths:
        alloc(width, site="weights"), alloc(4096, site="weights")
    for step in range(steps):
        tokens, saved, gradients = random.uniform(0.4, 2.5), [], []
        for width in widths:
            saved.append(alloc(int(width * tokens), random.choice(streams)))
            saved.append(alloc(random.randrange(1, 3 * MIB)))
            free(alloc(int(width * tokens * 4)))
        for width in reversed(widths):
            gradients.append(alloc(width, site="gradient"))
            for _ in range(2):
                free(saved.pop())
            free(alloc(int(width * tokens * random.choice((1, 2))), site="backward"))
        mark("START")
        if step == 0:
            state.update((alloc(2 * width, site="optimizer_state"), 2 * width) for width in widths)
        elif offloaded:
            for key, size in state.items():
                alloc(size, site="optimizer_state", key=key)
        mark("END")
        if offloaded:
            program.extend(("free", key) for key in state)
        if emptied:
            program.append(("empty",))
        for key in gradients:
            free(key)
        program.append(("sync",))
        if random.random() < empties:
            program.append(("empty",))
    return program
