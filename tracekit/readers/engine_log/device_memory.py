"""Lines about the memory of a whole GPU: verl's `device memory used/total`, slime's `Memory-Usage`, vLLM's sleeps.

They come from `mem_get_info`, so they include other processes, and exclude memory that sleep mode has unmapped.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, choose_narrowest, make_nullable_numbers
from tracekit.model.tables.snapshots import SLEEP_MARKS
from tracekit.model.text.patterns import compile_lazily

GIB = 2**30

MEMORY_MARKS = ("device memory used/total (GB): ", "'reserved_GB': ")
"""Marks of lines about the memory of a GPU."""

MAX_LINES = 200_000
"""Most lines kept from one log: the first ones."""

MAX_POINT, MAX_GIB = 120, 2**20
"""Longest name of a point that is kept, in characters; no GPU or host has more memory."""

_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{0,6})?)"
_VERL = compile_lazily(
    r"(?:memory allocated \(GB\): "
    + _NUMBER
    + r", memory reserved \(GB\): "
    + _NUMBER
    + r", )?device memory used/total \(GB\): "
    + _NUMBER
    + "/"
    + _NUMBER
)
_SLIME = compile_lazily(r"Memory-Usage (.{0,200}?): \{(.{0,600}?)\}")
_SLIME_FIELD = compile_lazily(r"'([a-z_]{1,30})(?:_GB)?': '?" + _NUMBER)
_RANK = compile_lazily(r"\[Rank ([0-9]{1,7})\]")
_PID = compile_lazily(r"\((?:[\w.:-]{1,80} )?pid=([0-9]{1,10})[,)]")
_RAY = compile_lazily(r"^\([^()]{1,120}\) ?")
_BEFORE_POINT = compile_lazily(
    r"^.*(?:\] |[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?[: ]|\b(?:DEBUG|INFO|WARNING|ERROR): ?)"
)
_SLEEP = compile_lazily(r"(?i)\bsleep|offload|\bpause")
_WAKE = compile_lazily(r"(?i)\bwake|\bresume|onload")

_SIZES = ("allocated_bytes", "reserved_bytes", "used_bytes", "total_bytes", "freed_bytes", "host_used_bytes")


@dataclass(slots=True)
class DeviceMemoryLines:
    """Lines parsed so far, as columns. Sizes are keyed by the names in `_SIZES`; `points` numbers the points."""

    line: list[int] = field(default_factory=list[int])
    logged_ns: list[int | None] = field(default_factory=list["int | None"])
    pid: list[int | None] = field(default_factory=list["int | None"])
    rank: list[int | None] = field(default_factory=list["int | None"])
    device: list[int | None] = field(default_factory=list["int | None"])
    point: list[int] = field(default_factory=list[int])
    mark: list[int] = field(default_factory=list[int])
    sizes: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    points: dict[str, int] = field(default_factory=dict[str, int])
    last_ns: int | None = None
    over: int = 0

    def add_line(
        self, number: int, text: str, point: str, mark: str, sizes: dict[str, int], gpu: int | None = None
    ) -> None:
        """Add one line; `sizes` are bytes by column."""
        if len(self.line) >= MAX_LINES:
            self.over += 1
            return
        process, rank = _PID.search(text[:400]), _RANK.search(text[:400])
        self.line.append(number)
        self.logged_ns.append(self.last_ns)
        self.pid.append(int(process[1]) if process else None)
        self.rank.append(int(rank[1]) if rank else None)
        self.device.append(gpu)
        self.point.append(self.points.setdefault(point[:MAX_POINT], len(self.points)))
        self.mark.append(SLEEP_MARKS.index(mark))
        self.sizes.append(sizes)

    def make_table(self) -> Columns:
        """Make the table `device_memory_lines`."""
        narrow = choose_narrowest(len(self.points))
        columns = {
            "line": np.array(self.line, np.int64),
            "logged_ns": make_nullable_numbers(self.logged_ns),
            "logged_pid": make_nullable_numbers(self.pid),
            "logged_rank": make_nullable_numbers(self.rank),
            "device": make_nullable_numbers(self.device),
            "point": Coded(np.array(self.point, narrow), tuple(self.points)),
            "mark": Coded(np.array(self.mark, np.int8), SLEEP_MARKS),
            **{name: make_nullable_numbers([sizes.get(name) for sizes in self.sizes]) for name in _SIZES},
        }
        return TABLES["device_memory_lines"].cast(columns, len(self.line))


def add_device_memory_line(text: str, number: int, ts_ns: int | None, lines: DeviceMemoryLines) -> bool:
    """Add a line about the memory of a GPU; False for other lines. A line without a time has that of the line before."""
    if ts_ns is not None:
        lines.last_ns = ts_ns
    if verl := _VERL.search(text):
        sizes = dict(zip(_SIZES, map(_convert_gib, verl.groups()), strict=False))
        point = find_point(text[: verl.start()])
        lines.add_line(number, text, point, find_mark(point), _keep_sound_sizes(sizes))
        return True
    if slime := _SLIME.search(text):
        values = {match[1]: match[2] for match in _SLIME_FIELD.finditer(slime[2])}
        names = ("allocated", "reserved", "used", "total", "freed", "host_used")
        sizes = {size: _convert_gib(values.get(name)) for size, name in zip(_SIZES, names, strict=True)}
        gpu = values.get("gpu", "")
        lines.add_line(
            number, text, slime[1], find_mark(slime[1]), _keep_sound_sizes(sizes), int(gpu) if gpu.isdigit() else None
        )
        return True
    return False


def add_sleep(text: str, number: int, freed_bytes: int, lines: DeviceMemoryLines) -> None:
    """Add what a sleep of vLLM freed. Its two lines about one sleep count once."""
    point = "vLLM sleeps"
    if lines.sizes and lines.sizes[-1] == {"freed_bytes": freed_bytes} and number == lines.line[-1] + 1:
        return
    lines.add_line(number, text, point, "sleep", {"freed_bytes": freed_bytes})


def add_wake(text: str, number: int, lines: DeviceMemoryLines) -> None:
    """Add that vLLM woke up."""
    lines.add_line(number, text, "vLLM wakes up", "wake", {})


def find_point(head: str) -> str:
    """Find the name of the point in the text before the sizes: without the prefixes of Ray and of loggers.

    >>> find_point("(WorkerDict pid=41777) DEBUG:2026-09-01 10:00:00,123:After update_weights, ")
    'After update_weights'
    """
    text = _RAY.sub("", head).strip()
    return _BEFORE_POINT.sub("", text).removeprefix("Memory-Usage ").strip(" ,:")


def find_mark(point: str) -> str:
    """Find whether a point is about falling asleep or waking up, by its name.

    >>> find_mark("After rollout offload"), find_mark("after wake_up model"), find_mark("After update_weights")
    ('sleep', 'wake', 'none')
    """
    if _SLEEP.search(point):
        return "sleep"
    return "wake" if _WAKE.search(point) else "none"


def _convert_gib(printed: str | None) -> int | None:
    """Convert a printed size to bytes: both frameworks divide by 1024³ and call it GB."""
    return None if printed is None else round(float(printed) * GIB)


def _keep_sound_sizes(sizes: dict[str, int | None]) -> dict[str, int]:
    """Keep the sizes that are known and possible. More used than there is: neither counts."""
    sound = {name: size for name, size in sizes.items() if size is not None and size < MAX_GIB * GIB}
    if sound.get("used_bytes", 0) > sound.get("total_bytes", 0):
        del sound["used_bytes"]
        sound.pop("total_bytes", None)
    return sound
