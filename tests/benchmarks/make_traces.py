"""Builds the benchmark traces: real events, repeated with shifted times and ids.

    python tests/benchmarks/make_traces.py [--sizes 15,20,200,1000] [--ranks 8] [--force]

A is a V100 training trace without stacks (Kineto's own layout), B an MI300X inference trace with
stacks and shapes (one line, `json.dump` layout). Each lands in `bench-data/` as `.json` and
`.json.gz`, with the layout of its source. Only the digits of times and ids change: a time keeps its
fraction as text and moves by whole microseconds, so no float ever touches it.

A smaller or a last, incomplete repetition is the first part of the recording: all events up to a
moment, in file order. Records that a trace has once (process names, the profiler's own span) stay
single, and `ProfilerStep`s are stretched over the whole time rather than repeated: a longer
recording has longer steps here, not hundreds of them, on which HTA's loop over rows and steps would
take most of its time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import operator
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH_DATA = REPOSITORY / "bench-data"

SOURCES = {
    "A": "chrome/hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "B": "chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
}

ID_SPACES = (
    ("correlation", "id"),  # an arrow's id is the correlation of the launch it starts from
    ("External id",),
    ("Ev Idx",),
    ("Python id", "Python parent id"),
    ("Sequence number",),
)
"""Keys whose numbers name the same things, and which so must move together."""

MARGIN_US = 1000
"""Pause between two repetitions, so that none overlaps the next."""

GZIP_LEVEL = 9  # what torch.profiler's own handler writes

_MOVED = re.compile('"(ts|' + "|".join(key for keys in ID_SPACES for key in keys) + r')":\s*(\d+)(?=[.,\s}])')
_TS = re.compile(r'("ts":\s*)([0-9.]+)')
_DUR = re.compile(r'("dur":\s*)([0-9.]+)')


@dataclass(frozen=True, slots=True)
class Event:
    """One event as recorded: its text, and its times in ns."""

    text: str
    ts_ns: int
    dur_ns: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A source cut up: `head`, then events joined by `separator`, then `tail`.

    `work` is what repeats, `steps` what is stretched, `once` what stays single.
    """

    head: str
    separator: str
    tail: str
    work: list[Event]
    steps: list[Event]
    once: list[Event]

    @property
    def start_us(self) -> int:
        """Whole microsecond in which the first repeated event starts."""
        return min(event.ts_ns for event in self.work) // 1000

    @property
    def span_us(self) -> int:
        """Whole microseconds from one repetition to the next."""
        end_ns = max(event.ts_ns + event.dur_ns for event in self.work)
        return end_ns // 1000 - self.start_us + MARGIN_US


def real_data() -> Path:
    """The folder of real profiles: `TRACEKIT_REAL_DATA`, or `shared/data` beside the repository."""
    return Path(os.environ.get("TRACEKIT_REAL_DATA") or REPOSITORY.parent / "shared" / "data")


def read_recording(letter: str) -> Recording:
    """The source A or B."""
    with gzip.open(real_data() / SOURCES[letter], "rt", encoding="utf-8") as file:
        return cut_up(file.read())


def cut_up(text: str) -> Recording:
    """A trace, cut at the exact ends of its events whatever its layout."""
    first = re.search(r'"traceEvents":\s*\[\s*', text)
    if first is None:
        raise ValueError("no traceEvents")
    decode = json.JSONDecoder(parse_float=Decimal).raw_decode
    between = re.compile(r"\s*,\s*")
    events: list[tuple[Event, dict[str, object]]] = []
    position, separator = first.end(), ","
    while True:
        event, end = decode(text, position)
        ts, dur = (round(Decimal(event.get(key, 0)) * 1000) for key in ("ts", "dur"))
        events.append((Event(text[position:end], ts, dur), event))
        comma = between.match(text, end)
        if comma is None:
            break
        separator, position = comma.group(), comma.end()
    recording = Recording(text[: first.end()], separator, text[end:], [], [], [])
    for event, fields in events:
        _part(recording, fields).append(event)
    return recording


def _part(recording: Recording, fields: dict[str, object]) -> list[Event]:
    """The list of `recording` that an event with these fields belongs to."""
    if fields["ph"] in {"M", "i"} or fields.get("cat") == "Trace":
        return recording.once
    if str(fields["name"]).startswith("ProfilerStep#"):
        return recording.steps
    return recording.work


class Repeater:
    """Texts of one repetition after another: constant text between numbers that grow."""

    def __init__(self, texts: list[str], separator: str, shifts: dict[str, int]) -> None:
        """Cuts the texts at their moving numbers; `shifts` says by how much each key moves."""
        text = separator.join(texts)
        self._pieces: list[str] = []
        self._numbers: list[int] = []
        self._shifts: list[int] = []
        end = times = 0
        for match in _MOVED.finditer(text):
            self._pieces += (sys.intern(text[end : match.start(2)]), "")
            self._numbers.append(int(match.group(2)))
            self._shifts.append(shifts[match.group(1)])
            times += match.group(1) == "ts"
            end = match.end()
        self._pieces.append(text[end:])
        if times != len(texts):
            raise ValueError(f"{times} times in {len(texts)} events: a layout that is not known here")

    def text(self, repetition: int) -> str:
        """The text of a repetition, counted from 0."""
        moved = map(operator.mul, self._shifts, [repetition] * len(self._shifts))
        self._pieces[1::2] = map(str, map(operator.add, self._numbers, moved))
        return "".join(self._pieces)


def shifts_of(recording: Recording) -> dict[str, int]:
    """By how much each key moves from one repetition to the next: past all its numbers."""
    largest = dict.fromkeys((key for keys in ID_SPACES for key in keys), 0)
    for event in recording.work:
        for key, number in _MOVED.findall(event.text):
            if key != "ts":
                largest[key] = max(largest[key], int(number))
    shifts = {key: max(largest[each] for each in keys) + 1 for keys in ID_SPACES for key in keys}
    return shifts | {"ts": recording.span_us}


def first_part(recording: Recording, size_bytes: int) -> tuple[list[Event], int]:
    """The events of the first moments that fill `size_bytes`, and where these end, in ns."""
    end_ns = recording.start_us * 1000
    for event in sorted(recording.work, key=lambda event: event.ts_ns):
        size_bytes -= len(event.text) + len(recording.separator)
        if size_bytes < 0:
            break
        end_ns = event.ts_ns
    return [event for event in recording.work if event.ts_ns <= end_ns], end_ns


def _microseconds(ns: int) -> str:
    """Microseconds with all three decimals, as Kineto writes them."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def stretched(event: Event, start_ns: int, total_ns: int, span_ns: int) -> str:
    """The event's text with start and length scaled by total / span about `start_ns`."""
    ts = start_ns + (event.ts_ns - start_ns) * total_ns // span_ns
    text = _TS.sub(rf"\g<1>{_microseconds(ts)}", event.text, count=1)
    return _DUR.sub(rf"\g<1>{_microseconds(event.dur_ns * total_ns // span_ns)}", text, count=1)


def extended(event: Event, extra_ns: int) -> str:
    """The event's text with its end moved by `extra_ns`, if it tells of the recording's end."""
    if '"cat": "Trace"' in event.text:
        dur = _microseconds(event.dur_ns + extra_ns)
        return _DUR.sub(rf"\g<1>{dur}", event.text, count=1)
    if '"Record Window End"' in event.text:
        return _TS.sub(rf"\g<1>{_microseconds(event.ts_ns + extra_ns)}", event.text, count=1)
    return event.text


def trace_texts(recording: Recording, size_bytes: int) -> Iterator[str]:
    """The pieces of a trace of about `size_bytes`, in order; the first is the head."""
    separator = recording.separator
    events = [event.text for event in recording.work]
    once_size = sum(len(event.text) + len(separator) for event in recording.once + recording.steps)
    room = size_bytes - len(recording.head) - len(recording.tail) - once_size
    whole, rest = divmod(room, len(separator.join(events)) + len(separator))
    partial, end_ns = first_part(recording, rest)
    start_ns, span_ns = recording.start_us * 1000, recording.span_us * 1000
    total_ns = whole * span_ns + end_ns - start_ns
    shifts = shifts_of(recording)

    yield recording.head
    for event in recording.steps:
        yield stretched(event, start_ns, total_ns, span_ns) + separator
    repeater = Repeater(events, separator, shifts) if whole else None
    for repetition in range(whole):
        if repeater is not None:
            yield repeater.text(repetition) + separator
    if partial:
        texts = [event.text for event in partial]
        yield Repeater(texts, separator, shifts).text(whole) + separator
    yield separator.join(extended(event, total_ns - span_ns) for event in recording.once)
    yield recording.tail


def _gzip_writer(path: Path) -> tuple[Callable[[bytes | None], None], threading.Thread]:
    """A function that takes blocks (None: the end), and the thread that compresses them.

    zlib lets the interpreter go while it works, so the next block is made meanwhile.
    """
    blocks: queue.Queue[bytes | None] = queue.Queue(maxsize=2)

    def work() -> None:
        with gzip.GzipFile(path, "wb", GZIP_LEVEL, mtime=0) as file:
            while (block := blocks.get()) is not None:
                file.write(block)

    thread = threading.Thread(target=work)
    thread.start()
    return blocks.put, thread


def write_trace(texts: Iterator[str], plain: Path | None, packed: Path) -> None:
    """Write the texts to both files, which appear only when they are complete."""
    packed.parent.mkdir(parents=True, exist_ok=True)
    unfinished = {path: path.with_name(path.name + ".part") for path in (plain, packed) if path}
    put, thread = _gzip_writer(unfinished[packed])
    try:
        with (unfinished[plain] if plain else Path(os.devnull)).open("wb") as file:
            for text in texts:
                block = text.encode()
                file.write(block)
                put(block)
    finally:
        put(None)
        thread.join()
    for path, part in unfinished.items():
        part.replace(path)


def build_trace(letter: str, size_mb: int, folder: Path = BENCH_DATA, *, force: bool = False) -> Path:
    """The `.json` of this letter and size (its `.json.gz` beside it), built if it is missing."""
    plain = folder / f"{letter}{size_mb}.json"
    packed = plain.with_name(plain.name + ".gz")
    if force or not (plain.exists() and packed.exists()):
        write_trace(trace_texts(read_recording(letter), size_mb * 10**6), plain, packed)
    return plain


def _with_rank(texts: Iterator[str], rank: int, ranks: int) -> Iterator[str]:
    """The texts, their head telling this rank instead of the recorded one."""
    head, count = re.subn(r'"rank": \d+, "world_size": \d+', f'"rank": {rank}, "world_size": {ranks}', next(texts))
    if count != 1:
        raise ValueError("the source does not tell its rank")
    yield head
    yield from texts


def build_ranks(ranks: int, size_mb: int, folder: Path = BENCH_DATA, *, force: bool = False) -> Path:
    """A folder with one trace A (`.json.gz`) of this size for each rank, built if it is missing."""
    target = folder / f"ranks{ranks}x{size_mb}"
    paths = [target / f"rank-{rank}.pt.trace.json.gz" for rank in range(ranks)]
    if force or not all(path.exists() for path in paths):
        recording = read_recording("A")
        for rank, path in enumerate(paths):
            texts = trace_texts(recording, size_mb * 10**6)
            write_trace(_with_rank(texts, rank, ranks), None, path)
    return target


def main() -> None:
    """Build what the command line asks for, and name each file with its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="15,20,200,1000", help="MB of JSON, comma separated")
    parser.add_argument("--ranks", type=int, default=8, help="files of the many-file input, 0: none")
    parser.add_argument("--force", action="store_true", help="build again what is there")
    options = parser.parse_args()
    for size_mb in map(int, options.sizes.split(",")):
        for letter in SOURCES:
            path = build_trace(letter, size_mb, force=options.force)
            sys.stdout.write(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}\n")
    if options.ranks:
        path = build_ranks(options.ranks, 200, force=options.force)
        sys.stdout.write(f"{len(list(path.iterdir())):8} files  {path.name}\n")


if __name__ == "__main__":
    main()
