"""Profiles without kernels: length of a step, one stage, the operator with most self time, a late rank, memory kept."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.readings.reading import WITHIN, Reading, first_line_misses
from benchmarks.readings.rows import Interval, Rows, read_rows
from benchmarks.readings.said import Said


@dataclass(frozen=True, kw_only=True)
class HostReading(Reading):
    """A reading of a profile without kernels.

    `layout` says what a step is: `marks`, a range with its number; `files`, one file per step and process; `parts`,
    all files one after another; empty, where nothing is a step. `stage` is the name of a stage in the report and of
    its range in the rows, `op` the operator with most self time, `late` the rank that waits least for the others.
    `grows`: each step after the first keeps memory.
    """

    kinds: tuple[str, ...] = ("cpu-only",)
    layout: str = "marks"
    stage: tuple[str, str] = ("", "")
    op: str = ""
    late: int | None = None
    grows: bool = False


@dataclass(frozen=True)
class Step:
    """One step of one process: its number, whose it is, its window and its ranges by name."""

    number: int
    process: Any
    window: Interval
    ranges: dict[str, int]


Files = list[tuple[Path, Rows]]


def read_files(path: Path) -> Files:
    """Read all profiles below a path, in order of their names."""
    if path.is_file():
        return [(path, read_rows(path))]
    files = sorted([*path.rglob("*.json.gz"), *path.rglob("*.sqlite")])
    return [(file, read_rows(file)) for file in files]


def rank_of(file: Path) -> int | None:
    """The rank in the name of a file."""
    found = re.search(r"rank[-_]?(\d+)", file.name)
    return int(found[1]) if found else None


def steps_of(files: Files, layout: str) -> list[Step]:
    """Cut files into steps."""
    return _by_marks(files) if layout == "marks" else _by_files(files)


def _by_marks(files: Files) -> list[Step]:
    """Steps by ranges such as `ProfilerStep#3`, `step 3` and `step:3`."""
    steps = []
    for file, rows in files:
        of_process: dict[Any, list[tuple[int, int, str, Any, str]]] = defaultdict(list)
        for row in rows.host:
            of_process[_process(row[3])].append(row)
        for process, host in of_process.items():
            for row in host:
                mark = re.fullmatch(r"(?:ProfilerStep#|step[ :])(\d+)", row[2])
                if mark:
                    window = row[0], row[1]
                    steps.append(Step(int(mark[1]), (file, process), window, _ranges(host, window)))
    return steps


def _process(thread: Any) -> Any:
    """The process of a thread: nsys packs both into one number."""
    return thread >> 24 if isinstance(thread, int) else None


def _by_files(files: Files) -> list[Step]:
    """One step per file: its number from the name, else by order among the files of a rank."""
    seen: Counter[int | None] = Counter()
    steps = []
    for file, rows in files:
        named, rank = re.search(r"_step(\d+)_", file.name), rank_of(file)
        number = int(named[1]) if named else seen[rank]
        seen[rank] += 1
        window = min(row[0] for row in rows.host), max(row[1] for row in rows.host)
        steps.append(Step(number, file, window, _ranges(rows.host, window)))
    return steps


def _ranges(host: list[tuple[int, int, str, Any, str]], window: Interval) -> dict[str, int]:
    """Time in each named range that begins in a window."""
    time: Counter[str] = Counter()
    for start, end, name, _, category in host:
        if category in ("user_annotation", "range") and window[0] <= start < window[1]:
            time[name] += min(end, window[1]) - start
    return time


def step_wall(steps: list[Step], layout: str) -> float:
    """The mean over steps of the longest process; of parts their sum."""
    lengths: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        lengths[step.number].append(step.window[1] - step.window[0])
    if layout == "parts":
        return sum(sum(of_step) for of_step in lengths.values())
    return statistics.fmean(max(of_step) for of_step in lengths.values())


def stage_wall(steps: list[Step], name: str) -> float:
    """The mean over steps of the longest process in a range."""
    lengths: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        lengths[step.number].append(step.ranges.get(name, 0))
    return statistics.fmean(max(of_step) for of_step in lengths.values())


def self_times(files: Files) -> Counter[str]:
    """Time of operators outside the operators that they call, by name."""
    time: Counter[str] = Counter()
    for _, rows in files:
        of_thread: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
        for start, end, name, thread, category in rows.host:
            if category in ("cpu_op", "operator"):
                of_thread[thread].append((start, -end, name))
        for ops in of_thread.values():
            open_ops: list[tuple[int, str]] = []
            for start, negative_end, name in sorted(ops):
                end = -negative_end
                while open_ops and open_ops[-1][0] <= start:
                    open_ops.pop()
                if open_ops:
                    time[open_ops[-1][1]] -= min(end, open_ops[-1][0]) - start
                time[name] += end - start
                open_ops.append((end, name))
    return time


def waits_by_rank(files: Files) -> dict[int | None, int]:
    """Time in collectives of gloo by rank."""
    waits: Counter[int | None] = Counter()
    for file, rows in files:
        waits[rank_of(file)] += sum(row[1] - row[0] for row in rows.host if row[2].startswith("gloo:"))
    return waits


def kept_per_step(files: Files) -> float:
    """Bytes that a step after the first allocates and does not free: the median over steps and processes."""
    kept = []
    for _, rows in files:
        for start, end in sorted(rows.steps.values())[1:]:
            kept.append(sum(size for time, size in rows.memory if start <= time < end))
    return statistics.median(kept)


def host_misses(reading: HostReading, files: Files, said: Said) -> list[str]:
    """Compare the report of a profile without kernels with its rows, and with the reader."""
    wrong = []
    if reading.layout:
        wrong += _step_misses(reading, files, said)
    if reading.op:
        wrong += _op_misses(reading, files, said)
    text = " ".join(said.screen.split())
    if reading.late is not None:
        waits = waits_by_rank(files)
        if min(waits, key=lambda rank: waits[rank]) != reading.late:
            wrong.append(f"misread: rank {reading.late} does not wait least: {dict(waits)}")
        if not re.search(rf"(?:straggler|unproven:).*\brank {reading.late} ", text):
            wrong.append(f"the screen does not name rank {reading.late} as late")
    if reading.grows:
        kept = kept_per_step(files) / 2**20
        if not re.search(rf"memory-growth\b.*\b{kept:.1f}\d* MiB", text):
            wrong.append(f"the screen does not say that memory grows by {kept:.1f} MiB per step")
    return wrong + first_line_misses(reading, said)


def _step_misses(reading: HostReading, files: Files, said: Said) -> list[str]:
    """Compare the length of a step and of one stage."""
    steps = steps_of(files, reading.layout)
    wall, wrong = step_wall(steps, reading.layout), []
    reported = said.headline.get("step_wall") or 0
    if abs(reported / wall - 1) > WITHIN:
        wrong.append(f"step {reported / 1e6:.2f} ms, not {wall / 1e6:.2f}")
    canonical, name = reading.stage
    if canonical:
        length = stage_wall(steps, name)
        cells = [row["wall_ns"] for row in said.table if row.get("canonical") == canonical]
        if not any(abs(cell / length - 1) <= WITHIN for cell in cells):
            wrong.append(f"{canonical} takes {[round(cell / 1e6, 2) for cell in cells]} ms, not {length / 1e6:.2f}")
    return wrong


def _op_misses(reading: HostReading, files: Files, said: Said) -> list[str]:
    """Compare the operator with most self time."""
    ((name, time),) = self_times(files).most_common(1)
    if name != reading.op:
        return [f"misread: {name} has most self time, not {reading.op}"]
    rows = sorted(said.sheet("operators_by_host_time"), key=lambda row: -row["self_ns"])
    if not rows or rows[0]["name"] != name:
        return [f"most self time in {rows[0]['name'] if rows else 'nothing'}, not {name}"]
    if abs(rows[0]["self_ns"] / time - 1) > WITHIN:
        return [f"{name} {rows[0]['self_ns'] / 1e6:.2f} ms, not {time / 1e6:.2f}"]
    return []


def read_host(reading: HostReading, path: Path, said: Said) -> tuple[str, list[str]]:
    """Read the rows of profiles without kernels: their figures in one line, and the differences."""
    files = read_files(path)
    figures = []
    if reading.layout:
        figures.append(f"{step_wall(steps_of(files, reading.layout), reading.layout) / 1e6:10.2f} ms")
    for name, time in self_times(files).most_common(1):
        figures.append(f"{name} {time / 1e6:.1f} ms")
    if reading.grows:
        figures.append(f"{kept_per_step(files) / 2**20:.2f} MiB kept per step")
    return "  ".join(figures), host_misses(reading, files, said)


def read_nothing(reading: Reading, said: Said) -> tuple[str, list[str]]:
    """Read what is no profile: only what is said of it is held."""
    return "", first_line_misses(reading, said) if said.report else _refusal_misses(reading, said)


def _refusal_misses(reading: Reading, said: Said) -> list[str]:
    """Compare the refusal to read a file."""
    text = " ".join(said.screen.split())
    return [f"it is not said: {each}" for each in reading.mentions if not re.search(each, text)]
