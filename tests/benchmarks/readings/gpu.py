"""Programs with GPU rows: window, shares of the GPU's time, kernels with most time, and the largest idle time."""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.readings.reading import WITHIN, Reading, first_line_misses
from benchmarks.readings.rows import Interval, Rows, inside, read_rows, union
from benchmarks.readings.said import Said

COMMUNICATION = re.compile(r"nccl|rccl|multimem_all_reduce", re.IGNORECASE)
CLASSES = (
    ("communication", COMMUNICATION),
    ("attention", re.compile(r"flash|fmha|attention", re.IGNORECASE)),
    ("convolution", re.compile(r"scudnn|conv|wgrad|dgrad|winograd", re.IGNORECASE)),
    ("matmul", re.compile(r"gemm|gemv|Cijk|matmul|cutlass|moe|nvjet", re.IGNORECASE)),
    ("norm", re.compile(r"norm|bn_", re.IGNORECASE)),
    ("copy", re.compile(r"memcpy|^copy$", re.IGNORECASE)),
)


@dataclass(frozen=True, kw_only=True)
class GpuReading(Reading):
    """A reading of a program with GPU rows.

    `steps` are those that count; without any it is a capture, and `begin` says where it begins: `row`, with its first
    row; `device`, with the first device op; `own`, with the first op launched in it. `start_up` bounds in ms how much
    of a capture is start-up, or began before the recording: tables of idle time and kernels are about the rest.
    `loop` is the name of a range that the program passes once per iteration, where it marks no steps: the n-th step
    lasts from the n-th such range to the next.
    """

    kinds: tuple[str, ...] = ("gpu",)
    steps: tuple[int, ...] = ()
    begin: str = "row"
    loop: str = ""
    start_up: tuple[float, float] | None = None


def class_of(name: str) -> str:
    """Classify a device op by its name; most others are element by element."""
    return next((kind for kind, pattern in CLASSES if pattern.search(name)), "other")


def windows_of(rows: Rows, reading: GpuReading) -> list[Interval]:
    """List the windows that count: steps, or the capture."""
    if reading.loop:
        begins = sorted(row[0] for row in rows.host if row[2] == reading.loop)
        return [(begins[number - 1], begins[number]) for number in reading.steps]
    if reading.steps:
        return [rows.steps[number] for number in reading.steps]
    parts = rows.ops if reading.begin == "device" else [*rows.ops, *rows.host]
    starts = parts
    if reading.begin == "own":
        starts = [op for op in rows.ops if op[5] in rows.launches]
    return [(min(part[0] for part in starts), max(part[1] for part in parts))]


def after_start_up(windows: list[Interval], reading: GpuReading, said: Said) -> tuple[list[Interval], list[str]]:
    """Cut the start-up off that the report tells, where the reader saw one; the difference where it is another."""
    if reading.start_up is None:
        return windows, []
    length, (low, high) = said.headline.get("start_up") or 0, reading.start_up
    ((start, end),) = windows
    kept = [(start + int(length), end)]
    if low <= length / 1e6 <= high:
        return kept, []
    return kept, [f"start-up {length / 1e6:,.1f} ms, not {low:,} to {high:,}"]


def shares_of(rows: Rows, windows: list[Interval]) -> dict[str, float]:
    """Compute, communication that nothing computes beside, copies that neither hides, and idle: shares of the windows."""
    whole = sum(end - start for start, end in windows)
    shares: Counter[str] = Counter()
    devices = {op[4] for op in rows.ops}
    for device in devices:
        of_device = [op for op in rows.ops if op[4] == device]
        reached, below = [], 0
        for name in ("compute", "exposed_comm", "copy"):
            reached += [(op[0], op[1]) for op in of_device if kind_of(op) == name]
            covered = inside(union(reached), windows)
            shares[name] += (covered - below) / whole / len(devices)
            below = covered
        busy = inside(union([(op[0], op[1]) for op in of_device]), windows)
        shares["idle"] += 1 / len(devices) - busy / whole / len(devices)
    return dict(shares)


def kind_of(op: tuple[Any, ...]) -> str:
    """What a device op counts as."""
    if op[3] != "kernel":
        return op[3]
    return "exposed_comm" if COMMUNICATION.search(op[2]) else "compute"


def largest_gap(rows: Rows, windows: list[Interval]) -> tuple[int, int, set[str]]:
    """Find the longest time within a window in which a device does nothing, and what the host was in then.

    The host's thread is the one that launched what came next; its names are what it was in for most of the time, and
    all around that. Empty where that launch had returned before: then it was not the host.
    """
    longest, after = (0, 0), None
    for device in {op[4] for op in rows.ops}:
        ops = sorted((op for op in rows.ops if op[4] == device), key=lambda op: op[0])
        for begin, until in windows:
            reached = begin
            for op in ops:
                if op[1] <= begin:
                    continue
                if op[0] >= until:
                    break
                if op[0] - reached > longest[1] - longest[0]:
                    longest, after = (reached, op[0]), op
                reached = max(reached, op[1])
            if until - reached > longest[1] - longest[0]:
                longest, after = (reached, until), None
    start, end = longest
    launch = rows.launches.get(after[5]) if after else None
    if launch is None or launch[1] <= start:
        return start, end, set()
    return start, end, host_in(rows, launch[2], start, end)


def host_in(rows: Rows, thread: Any, start: int, end: int) -> set[str]:
    """Name what a thread was in for most of this time in its deepest row, and what that was in."""
    on_thread = [row for row in rows.host if row[3] == thread and row[0] < end and row[1] > start]
    edges = sorted({start, end, *(edge for row in on_thread for edge in row[:2] if start < edge < end)})
    time: Counter[tuple[int, int, str, Any, str]] = Counter()
    coming = sorted(range(len(on_thread)), key=lambda number: on_thread[number][0], reverse=True)
    around: list[tuple[int, int, int]] = []  # The latest start first, then the earliest end.
    for begin, until in itertools.pairwise(edges):
        while coming and on_thread[coming[-1]][0] <= begin:
            number = coming.pop()
            heapq.heappush(around, (-on_thread[number][0], on_thread[number][1], number))
        while around and around[0][1] <= begin:
            heapq.heappop(around)
        if around:
            time[on_thread[around[0][2]]] += until - begin
    if 2 * sum(time.values()) < end - start:
        return set()
    (deepest, _), *_ = time.most_common(1)
    return {row[2].partition(", seq = ")[0] for row in on_thread if row[0] <= deepest[0] and row[1] >= deepest[1]}


def gpu_misses(reading: GpuReading, rows: Rows, said: Said) -> list[str]:
    """Compare the report of a program with GPU rows with the rows, and with the reader."""
    windows, headline, wrong = windows_of(rows, reading), said.headline, []
    wall = sum(end - start for start, end in windows) / len(windows)
    if abs(headline["step_wall"] / wall - 1) > WITHIN:
        wrong.append(f"window {headline['step_wall'] / 1e6:.2f} ms, not {wall / 1e6:.2f}")
    for name, share in shares_of(rows, windows).items():
        if abs((headline.get(f"{name}_ratio") or 0) - share) > WITHIN:
            wrong.append(f"{name} {headline.get(f'{name}_ratio') or 0:.1%}, not {share:.1%}")
    kept, difference = after_start_up(windows, reading, said)
    begin = kept[0][0] if reading.start_up else 0
    wrong += difference
    wrong += kernel_misses(rows, begin, said)
    wrong += gap_misses(rows, kept, said)
    if "start-up" not in reading.rules:
        # A first launch loads code for long: it has begun, and yet the device waits for the host.
        wrong += launched_misses(rows, said)
    return wrong + first_line_misses(reading, said)


def kernel_misses(rows: Rows, begin: int, said: Said) -> list[str]:
    """Compare the class of device ops with most time, of those that end after `begin`."""
    time: Counter[str] = Counter()
    for start, end, name, *_ in rows.ops:
        if end > begin:
            time[class_of(name)] += end - start
    of_report: Counter[str] = Counter()
    for row in said.sheet("kernels"):
        of_report[class_of(row["name"])] += row["total_ns"]
    if not of_report or of_report.most_common(1)[0][0] == time.most_common(1)[0][0]:
        return []
    return [f"most time in {of_report.most_common(1)[0][0]}, not {time.most_common(1)[0][0]}"]


NO_HOST = ("other", "stream wait", "start-up", "launch unknown", "after the last op", "between ops", "host silent")


def gap_misses(rows: Rows, windows: list[Interval], said: Said) -> list[str]:
    """Compare what the report says of the largest idle time."""
    start, end, names = largest_gap(rows, windows)
    length = end - start
    if length < WITHIN * sum(end - start for start, end in windows):
        return []
    alike = [row for row in said.sheet("idle_gaps") if abs(row["dur_ns"] - length) <= WITHIN * length]
    if not alike:
        return [f"no idle time of {length / 1e6:.2f} ms"]
    cells = {(row["why"], row.get("host")) for row in alike}
    if any(host in names if host else (not names and why in NO_HOST) for why, host in cells):
        return []
    return [f"in the largest idle time ({length / 1e6:.2f} ms) the host is in {cells}, not {sorted(names)}"]


ONCE_LAUNCHED = ("kernel_wait", "other", "sync")


def idle_once_launched(rows: Rows) -> tuple[int, int]:
    """Add up ns in which devices do nothing though the launch of what comes next has begun, and ns of all windows.

    The window of a device is from its first op to its last; an op of unknown launch was not launched.
    """
    launched = whole = 0
    for device in {op[4] for op in rows.ops}:
        ops = sorted((op for op in rows.ops if op[4] == device), key=lambda op: op[0])
        reached = ops[0][0]
        for op in ops:
            launch = rows.launches.get(op[5])
            if launch is not None and op[0] > reached:
                launched += op[0] - min(op[0], max(reached, launch[0]))
            reached = max(reached, op[1])
        whole += reached - ops[0][0]
    return launched, whole


def launched_misses(rows: Rows, said: Said) -> list[str]:
    """Compare what the report says of the idle time in which the host has no part."""
    if not rows.launches:
        return []
    launched, whole = idle_once_launched(rows)
    reported = sum(
        row["window_ns"] * sum(row.get(name) or 0 for name in ONCE_LAUNCHED)
        for row in said.sheet("idle_causes")
        if row["stage"].startswith("(first to last")
    )
    if abs(reported - launched) <= WITHIN * whole:
        return []
    return [f"idle once launched {reported / whole:.1%}, not {launched / whole:.1%}"]


def read_gpu(reading: GpuReading, path: Path, said: Said) -> tuple[str, list[str]]:
    """Read the rows of a profile: its figures in one line, and the differences."""
    rows = read_rows(path)
    windows = windows_of(rows, reading)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in shares_of(rows, windows).items())
    wall = sum(end - start for start, end in windows) / len(windows) / 1e6
    return f"{wall:10.2f} ms  {shares}", gpu_misses(reading, rows, said)
