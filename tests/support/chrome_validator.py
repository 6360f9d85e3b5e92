"""Strict check of Chrome traces by the rules of the Trace Event Format, as Perfetto's importer applies them.

Perfetto counts an event that breaks a rule as an error, drops it, or draws it on another track. `list_trace_problems` names each
such event. It reads the file with json alone, and shares no code with the package.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]
TIMED = frozenset("XBEiICstfbenNOD")
FLOW_PHASES = frozenset("stf")
MOST_ID = 2**32
"""Ids of processes and threads are unsigned integers of 32 bits. Other numbers are read as if they were missing."""
METADATA_TEXTS = {"process_name": "name", "thread_name": "name", "process_labels": "labels"}
METADATA_NUMBERS = frozenset(("process_sort_index", "thread_sort_index"))


class Problem(NamedTuple):
    """A broken rule, and the place of the event in the file."""

    rule: str
    place: int


def read_strict_json(path: Path) -> dict[str, Any]:
    """Read a trace as JSON of RFC 8259, with exact numbers; NaN, Infinity and repeated keys are errors."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    document: dict[str, Any] = json.loads(
        text, parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_make_object
    )
    return document


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"repeated key among {[key for key, _ in pairs]}")
    return made


def list_trace_problems(document: dict[str, Any]) -> list[Problem]:
    """List the events that break a rule."""
    events = document["traceEvents"]
    problems = [Problem(rule, place) for place, event in enumerate(events) for rule in _check_event(event)]
    broken = {problem.place for problem in problems}
    sound = {place: event for place, event in enumerate(events) if place not in broken}
    tracks = _group_slices(sound)
    problems += _check_nesting(tracks)
    problems += _check_pairs(sound)
    problems += _check_flows(sound, tracks)
    return problems


def count_trace_problems(path: Path) -> Counter[str]:
    """Count the broken rules of a file by rule."""
    return Counter(problem.rule for problem in list_trace_problems(read_strict_json(path)))


def _check_event(event: Any) -> Iterator[str]:
    """Check the fields of one event."""
    if not isinstance(event, dict):
        yield "event is not an object"
        return
    phase = event.get("ph")
    if phase not in TIMED | {"M"}:
        yield f"unknown phase {phase!r}"
        return
    for key in ("pid", "tid"):
        if not _is_id(event.get(key)) and not (phase == "M" and key == "tid" and key not in event):
            yield f"{key} is neither an unsigned integer nor a text"
    if not isinstance(event.get("name"), str) or not event["name"]:
        yield "no name"
    if "args" in event and not isinstance(event["args"], dict):
        yield "args is not an object"
    elif check := _CHECKS.get(phase):
        yield from check(event)
    if phase in TIMED and _read_ns(event.get("ts")) is None:
        yield "ts is not a time in whole nanoseconds"


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_ID


def _read_ns(value: Any) -> int | None:
    """Read microseconds as nanoseconds; None for another value, a negative one, or a part of a nanosecond."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    nanoseconds = Decimal(value) * 1000
    return int(nanoseconds) if nanoseconds >= 0 and nanoseconds == int(nanoseconds) else None


def _check_complete(event: Event) -> Iterator[str]:
    if _read_ns(event.get("dur")) is None:
        yield "dur is not a time in whole nanoseconds"


def _check_metadata(event: Event) -> Iterator[str]:
    args, name = event.get("args", {}), event.get("name")
    if name in METADATA_TEXTS and not isinstance(args.get(METADATA_TEXTS[name]), str):
        yield f"{name} without a text"
    if name in METADATA_NUMBERS and not isinstance(args.get("sort_index"), int):
        yield f"{name} without a number"


def _check_counter(event: Event) -> Iterator[str]:
    values = list(event.get("args", {}).values())
    if not values or any(isinstance(value, bool) or not isinstance(value, int | Decimal) for value in values):
        yield "a counter has values that are not numbers"


def _check_instant(event: Event) -> Iterator[str]:
    if event.get("s", "t") not in ("t", "p", "g"):
        yield "an instant has an unknown scope"


def _check_flow(event: Event) -> Iterator[str]:
    if _get_flow_id(event) is None:
        yield "the id of a flow is neither a number nor hexadecimal"


_CHECKS: dict[str, Callable[[Event], Iterator[str]]] = {
    "X": _check_complete,
    "M": _check_metadata,
    "C": _check_counter,
    **dict.fromkeys("iI", _check_instant),
    **dict.fromkeys("stf", _check_flow),
}


def _get_flow_id(event: Event) -> int | None:
    value = event.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None


class Slice(NamedTuple):
    """A complete event on its track, in nanoseconds."""

    start: int
    end: int
    place: int


Track = tuple[int | str, int | str]


def _group_slices(events: dict[int, Event]) -> dict[Track, list[Slice]]:
    """Group the complete events by track, outer ones first."""
    tracks: dict[Track, list[Slice]] = defaultdict(list)
    for place, event in events.items():
        if event["ph"] == "X":
            start = _read_ns(event["ts"]) or 0
            end = start + (_read_ns(event["dur"]) or 0)
            tracks[event["pid"], event["tid"]].append(Slice(start, end, place))
    for slices in tracks.values():
        slices.sort(key=lambda one: (one.start, -one.end))
    return tracks


def _check_nesting(tracks: dict[Track, list[Slice]]) -> Iterator[Problem]:
    """Find the slices that end after the one that they begin in."""
    for slices in tracks.values():
        open_ends: list[int] = []
        for one in slices:
            while open_ends and open_ends[-1] <= one.start:
                open_ends.pop()
            if open_ends and one.end > open_ends[-1]:
                yield Problem("overlaps another slice of its track without nesting", one.place)
            else:
                open_ends.append(one.end)


def _check_pairs(events: dict[int, Event]) -> Iterator[Problem]:
    """Find begins without ends and the reverse, in the order of time; async events by category and id."""
    stacks: dict[Any, list[tuple[int, str]]] = defaultdict(list)
    timed = [(place, event) for place, event in events.items() if event["ph"] in "BEbe"]
    for place, event in sorted(timed, key=lambda pair: _read_ns(pair[1]["ts"]) or 0):
        is_async = event["ph"] in "be"
        key = (event["pid"], event.get("cat"), str(event.get("id"))) if is_async else (event["pid"], event["tid"], None)
        if event["ph"] in "Bb":
            stacks[key, is_async].append((place, event["name"]))
        elif not stacks[key, is_async] or stacks[key, is_async].pop()[1] != event["name"]:
            yield Problem("an end without its begin", place)
    for stack in stacks.values():
        yield from (Problem("a begin without its end", place) for place, _ in stack)


def _check_flows(events: dict[int, Event], tracks: dict[Track, list[Slice]]) -> Iterator[Problem]:
    """Find arrows that lack an end, run backwards, or are at no slice."""
    arrows: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for place, event in events.items():
        if event["ph"] in FLOW_PHASES:
            key = (event.get("cat"), event["name"], _get_flow_id(event))
            arrows[key].append((_read_ns(event["ts"]) or 0, place, event["ph"]))
    covers = {track: _Cover(slices) for track, slices in tracks.items()}
    for ends in arrows.values():
        starts = [at for at, _, phase in ends if phase == "s"]
        finals = [at for at, _, phase in ends if phase == "f"]
        for at, place, phase in ends:
            event = events[place]
            cover = covers.get((event["pid"], event["tid"]))
            binds_next = phase == "f" and event.get("bp") != "e"
            if cover is None or not (cover.has_next(at) if binds_next else cover.has_at(at)):
                yield Problem("an end of a flow is at no slice", place)
            if phase == "s":
                if not finals:
                    yield Problem("a flow without its end", place)
                elif max(finals) < at:
                    yield Problem("a flow ends before it begins", place)
            elif not starts:
                yield Problem("a flow without its start", place)


class _Cover:
    """The times that the slices of a track cover, ends included."""

    def __init__(self, slices: list[Slice]) -> None:
        self._starts = [one.start for one in slices]
        self._ends: list[int] = []
        for one in slices:
            self._ends.append(max(one.end, self._ends[-1] if self._ends else one.end))

    def has_at(self, at: int) -> bool:
        """Check whether a slice runs at a time."""
        before = bisect_right(self._starts, at)
        return before > 0 and self._ends[before - 1] >= at

    def has_next(self, at: int) -> bool:
        """Check whether a slice begins at a time or later."""
        return bisect_left(self._starts, at) < len(self._starts)
