"""Files of one process on the page: their rows of one device or thread become one row, steps in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]


class FileLabels(Protocol):
    """Labels of the file that a process was read from."""

    @property
    def name(self) -> str:
        """Displayed path."""

    @property
    def run(self) -> str:
        """Run of the process."""

    @property
    def role(self) -> str | None:
        """Role of the process."""

    @property
    def rank(self) -> int | None:
        """Rank of the process."""

    @property
    def host(self) -> str | None:
        """Host of the process."""

    @property
    def pid(self) -> int | None:
        """Number of the process."""


class ProcessData(Protocol):
    """Data of one process, as its worker built it: columns by name, texts, and the instant that times count from."""

    @property
    def source(self) -> FileLabels:
        """File of the process."""

    @property
    def base_ns(self) -> int:
        """Instant that times count from."""

    @property
    def numbers(self) -> Mapping[str, npt.NDArray[np.integer[Any]]]:
        """Columns by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Texts by number."""

    @property
    def threads(self) -> tuple[str, ...]:
        """Names of the host threads."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedProcess:
    """Data of one process from several files: `source` is the first file, `files` are the names of all."""

    source: FileLabels
    base_ns: int
    numbers: Mapping[str, npt.NDArray[np.integer[Any]]]
    names: tuple[str, ...]
    threads: tuple[str, ...]
    files: tuple[str, ...]


def list_file_names(data: ProcessData) -> tuple[str, ...]:
    """List the names of the files of a process."""
    return data.files if isinstance(data, MergedProcess) else (data.source.name,)


def merge_process_files(processes: Sequence[ProcessData]) -> list[ProcessData]:
    """Merge the files of each process in order of time; files that overlap in time, or without a pid, stay apart."""
    merged: list[list[ProcessData]] = []
    places: dict[tuple[object, ...], int] = {}
    for data in sorted(processes, key=lambda data: find_time_bounds(data)[0]):
        source = data.source
        key = source.run, source.host, source.role, source.rank, source.pid
        place = places.get(key)
        if source.pid is None or place is None or find_time_bounds(merged[place][-1])[1] > find_time_bounds(data)[0]:
            places[key] = len(merged)
            merged.append([data])
        else:
            merged[place].append(data)
    return [files[0] if len(files) == 1 else _merge_files(files) for files in merged]


def find_time_bounds(data: ProcessData) -> tuple[int, int]:
    """Find the first and the last instant of the rows of a process."""
    spans = list(_iterate_spans(data.numbers))
    first = min(int(start.min()) for start, _ in spans)
    return data.base_ns + first, data.base_ns + max(int((start + length).max()) for start, length in spans)


def _iterate_spans(numbers: Mapping[str, npt.NDArray[np.integer[Any]]]) -> Iterator[tuple[Ints, Ints]]:
    """Iterate over starts and lengths of all that the rows of a process show."""
    for name in ("kernel", "step", "gap"):
        if len(numbers.get(f"{name}.start", ())):
            yield numbers[f"{name}.start"].astype(np.int64), numbers[f"{name}.length"].astype(np.int64)
    timeline = numbers["timeline.start"].astype(np.int64)
    yield timeline, np.zeros(len(timeline), np.int64)


GROUPS = {
    "ranges": "range",
    "kernels": "kernel",
    "sums": "sum",
    "stretches": "timeline",
    "comm": "comm",
    "curves": "curve",
}
"""Prefix of the columns of each group that rows have a part of; lanes are merged by themselves."""


class _File(NamedTuple):
    """One file of a process: its columns, and the numbers of its names, threads and paths in the merged process."""

    columns: Columns
    shift_ns: int
    names: Ints
    threads: Ints
    first_path: int

    def select_part(self, group: str, row: int) -> slice:
        """Select the part of a group that belongs to a row."""
        sizes = self.columns[f"row.{group}"]
        first = int(sizes[:row].sum())
        return slice(first, first + int(sizes[row]))

    def renumber(self, name: str, values: Ints) -> Ints:
        """Renumber the values of a column whose meaning does not depend on the row."""
        _, kind = name.split(".")
        if kind == "start":
            return values + self.shift_ns
        if kind == "name":
            return self.names[values]
        if kind == "path":
            return add_known(values, self.first_path)
        if kind in ("before", "after"):
            return np.concatenate(([0], self.names + 1))[values]
        return self.threads[values] if name == "host.thread" else values


def add_known(values: Ints, offset: int) -> Ints:
    """Add an offset to numbers that are stored + 1; 0 stays unknown."""
    return np.where(values > 0, values + offset, 0)


def _merge_files(parts: Sequence[ProcessData]) -> MergedProcess:
    """Merge the files of one process."""
    texts: dict[str, int] = {}
    threads: dict[tuple[str, int], int] = {}
    base = min(data.base_ns for data in parts)
    files: list[_File] = []
    first_path = 0
    for data in parts:
        columns = {name: column.astype(np.int64) for name, column in data.numbers.items()}
        names, own_threads = (
            _number_in_order(data.names, texts),
            _number_in_order(_number_repeats(data.threads), threads),
        )
        files.append(_File(columns, data.base_ns - base, names, own_threads, first_path))
        first_path += len(columns["path.name"])
    rows = _group_rows(files, tuple(threads))
    places = {piece: place for place, pieces in enumerate(rows) for piece in pieces}
    columns = {
        **_merge_rows(files, rows),
        **_merge_gaps(files, places),
        **_merge_hosts(files),
        "path.parent": np.concatenate([add_known(file.columns["path.parent"], file.first_path) for file in files]),
        "path.name": np.concatenate([file.names[file.columns["path.name"]] for file in files]),
    }
    file_names = tuple(data.source.name for data in parts)
    return MergedProcess(parts[0].source, base, columns, tuple(texts), tuple(name for name, _ in threads), file_names)


def _number_in_order(keys: Sequence[Any], numbers: dict[Any, int]) -> Ints:
    """Number keys in order of first use."""
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _number_repeats(names: Sequence[str]) -> list[tuple[str, int]]:
    """Number the repeats of each name, to keep threads with one name apart."""
    seen: dict[str, int] = {}
    repeats = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        repeats.append((name, seen[name]))
    return repeats


def _group_rows(files: Sequence[_File], threads: Sequence[tuple[str, int]]) -> list[list[tuple[int, int]]]:
    """Group the rows of all files by kind, device and thread: (file, row in it) each."""
    rows: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for number, file in enumerate(files):
        for row in range(len(file.columns["row.kind"])):
            labels = _label_row(file, row)
            thread = threads[labels["thread"] - 1] if labels["thread"] else None
            rows.setdefault((labels["kind"], labels["device"], thread), []).append((number, row))
    return list(rows.values())


class _RowOffsets(NamedTuple):
    """Numbers by which those of one part of a row move: steps and ranges before it in its row, and its lanes."""

    steps: int
    ranges: int
    first_range: int
    own_first_range: int
    lanes: Ints

    def renumber(self, name: str, values: Ints) -> Ints:
        """Renumber the values of a column that counts steps, ranges or lanes."""
        if name in ("range.step", "sum.step"):
            return add_known(values, self.steps)
        if name == "kernel.cell":
            return values + self.steps
        if name == "kernel.stage":
            return add_known(values, self.ranges)
        if name == "sum.range":
            return add_known(values, self.first_range + self.ranges - self.own_first_range)
        return self.lanes[values] if name == "kernel.lane" else values


def _merge_rows(files: Sequence[_File], rows: Sequence[Sequence[tuple[int, int]]]) -> Columns:
    """Merge the parts of each row in order of time."""
    merged: dict[str, list[Ints]] = {}
    first_range = 0
    for place, pieces in enumerate(rows):
        parts = [(files[number], row) for number, row in pieces]
        lanes, lane_numbers = _merge_lanes(parts)
        sizes = dict.fromkeys(GROUPS, 0) | {"lanes": len(lanes["lane.kind"])}
        steps = 0
        for (file, row), numbers in zip(parts, lane_numbers, strict=True):
            own_first = file.select_part("ranges", row).start
            offsets = _RowOffsets(steps, sizes["ranges"], first_range, own_first, numbers)
            for group in GROUPS:
                part = file.select_part(group, row)
                sizes[group] += part.stop - part.start
                _append_columns(merged, _select_group(file, group, part, offsets))
            of_steps = _select_row_steps(file, row, place)
            steps += len(of_steps["step.row"])
            _append_columns(merged, of_steps)
        first_range += sizes["ranges"]
        labels = _label_row(*parts[0])
        _append_columns(merged, lanes)
        _append_columns(merged, {f"row.{name}": np.array([value]) for name, value in (labels | sizes).items()})
    return {name: np.concatenate(columns) for name, columns in merged.items()}


def _append_columns(merged: dict[str, list[Ints]], columns: Columns) -> None:
    """Append columns to those of their names."""
    for name, column in columns.items():
        merged.setdefault(name, []).append(column)


def _select_group(file: _File, group: str, part: slice, offsets: _RowOffsets) -> Columns:
    """Select a part of the columns of a group, with the numbers of the merged process."""
    prefix = f"{GROUPS[group]}."
    return {
        name: offsets.renumber(name, file.renumber(name, column[part]))
        for name, column in file.columns.items()
        if name.startswith(prefix)
    }


def _select_row_steps(file: _File, row: int, place: int) -> Columns:
    """Select the steps of a row, which is at `place` in the merged process."""
    of_row = file.columns["step.row"] == row
    columns = {
        name: file.renumber(name, column[of_row]) for name, column in file.columns.items() if name.startswith("step.")
    }
    return {**columns, "step.row": np.full(int(of_row.sum()), place)}


def _label_row(file: _File, row: int) -> dict[str, int]:
    """Label a row by its kind, device and thread."""
    labels = {name: int(file.columns[f"row.{name}"][row]) for name in ("kind", "device", "thread")}
    thread = labels["thread"]
    return {**labels, "thread": int(file.threads[thread - 1]) + 1 if thread else 0}


def _merge_lanes(parts: Sequence[tuple[_File, int]]) -> tuple[Columns, list[Ints]]:
    """Merge the lanes of a row: (columns, the number of each lane of each part)."""
    lanes = [
        np.stack([file.columns[name][file.select_part("lanes", row)] for name in ("lane.kind", "lane.number")], 1)
        for file, row in parts
    ]
    distinct, number = np.unique(np.concatenate(lanes), axis=0, return_inverse=True)
    ends = np.cumsum([len(of_part) for of_part in lanes])[:-1]
    return {"lane.kind": distinct[:, 0], "lane.number": distinct[:, 1]}, np.split(number.reshape(-1), ends)


def _merge_gaps(files: Sequence[_File], places: Mapping[tuple[int, int], int]) -> Columns:
    """Merge the gaps of all files; those that are shorter than a gap which a worker left out are left out too."""
    gaps: dict[str, list[Ints]] = {}
    dropped, floor = np.zeros(2, np.int64), 0
    for number, file in enumerate(files):
        columns = {name: column for name, column in file.columns.items() if name.startswith(("gap.", "segment."))}
        if not columns:
            continue
        of_file = columns.pop("gap.dropped")
        if of_file.any():
            dropped, floor = dropped + of_file, max(floor, int(columns["gap.length"].min()))
        own = np.array([places[number, row] for row in range(len(file.columns["row.kind"]))], np.int64)
        merged_rows = {"gap.row": own[columns["gap.row"]]}
        _append_columns(gaps, {name: file.renumber(name, column) for name, column in columns.items()} | merged_rows)
    if not gaps:
        return {}
    merged = {name: np.concatenate(columns) for name, columns in gaps.items()}
    kept = merged["gap.length"] >= floor
    inside = np.repeat(kept, merged["gap.segments"])
    short = merged["gap.length"][~kept]
    selected = {name: column[kept if name.startswith("gap.") else inside] for name, column in merged.items()}
    return {**selected, "gap.dropped": dropped + np.array([len(short), short.sum()], np.int64)}


def _merge_hosts(files: Sequence[_File]) -> Columns:
    """Merge the host rows of all files, by thread and start."""
    names = ("host.thread", "host.start", "host.length", "host.path")
    merged = {name: np.concatenate([file.renumber(name, file.columns[name]) for file in files]) for name in names}
    order = np.lexsort((-merged["host.length"], merged["host.start"], merged["host.thread"]))
    cut = max(int(file.columns["host.cut_ns"][0]) for file in files)
    return {**{name: column[order] for name, column in merged.items()}, "host.cut_ns": np.array([cut])}
