"""Stacks of the threads of one process: `py-spy dump`, as text or JSON, and Python's faulthandler.

Local variables, which py-spy may add, are never read. Command lines, which may contain line breaks and secrets, are
passed over. A file may contain the dumps of several processes; each becomes a Trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, Frames
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers.chrome.values import is_too_deep, join_surrogates
from tracekit.readers.hangs.file_text import add_named_process, read_whole_file
from tracekit.readers.hangs.frames import MAX_FRAMES, CodeFrame, make_code_frame, write_stack

MAX_THREADS, MAX_TEXT = 100_000, 200
"""Most threads of one file, and the longest name of a thread."""

_PROCESS = re.compile(r"Process ([0-9]{1,10}): ")
_VERSION = re.compile(r"Python v[0-9]")
_THREAD = re.compile(r'Thread (?:0x[0-9A-Fa-f]+|([0-9]{1,20})) \(([a-z+]{1,20})\)(?:: "(.*)")?\s*\Z')
_FRAME = re.compile(r"    (.{1,2000}?) \((.{1,2000}?):([0-9]{1,9})\)\s*\Z")
_FAULT_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):\s*\Z")
_FAULT_FRAME = re.compile(r'  File "(.{1,2000})", line ([0-9]{1,9}) in (.{1,2000}?)\s*\Z')
_RANK_PREFIX = re.compile(r"\[(?:rank|default)?([0-9]{1,6})\]:\s?")
_JSON_HEAD = re.compile(rb'\s*\[\s*\{\s*"pid"\s*:')


def sniff(head: bytes) -> bool:
    r"""Check whether text begins like stacks of threads.

    >>> sniff(b'Process 7: python x.py\nPython v3.11.7 (/usr/bin/python)\n\nThread 7 (idle): "MainThread"\n')
    True
    """
    if _JSON_HEAD.match(head):
        return b'"os_thread_id"' in head or b'"owns_gil"' in head
    if not head or b"\0" in head:
        return False
    text = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    lines = [_RANK_PREFIX.sub("", line, count=1) for line in text.splitlines()]
    if text.startswith("Process "):
        return any(map(_VERSION.match, lines)) and any(map(_THREAD.match, lines))
    return _starts_with_fault(lines)


def _starts_with_fault(lines: list[str]) -> bool:
    """Check whether a file begins with a thread of faulthandler, after at most the lines of its reason."""
    place = next((n for n, line in enumerate(lines[:5]) if _FAULT_THREAD.match(line)), None)
    return place is not None and any(map(_FAULT_FRAME.match, lines[place + 1 : place + 2]))


@dataclass(slots=True)
class _ThreadStack:
    """One thread and its frames, innermost first."""

    name: str
    is_main: bool = False
    state: str | None = None
    frames: list[CodeFrame] = field(default_factory=list[CodeFrame])


@dataclass(slots=True)
class _ProcessStacks:
    """The threads of one process."""

    pid: int | None = None
    threads: list[_ThreadStack] = field(default_factory=list[_ThreadStack])


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the stacks of each process as one Trace. Raises only `TraceFormatError`."""
    data = read_whole_file(Path(source.path), on_bytes)
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    is_json = text.lstrip()[:1] == "["
    processes = _parse_json_stacks(text, source.path) if is_json else _parse_stack_lines(text.split("\n"))
    processes = [process for process in processes if process.threads] or [_ProcessStacks()]
    source = add_named_process(source)
    return [_make_stack_trace(source, process, want, is_alone=len(processes) == 1) for process in processes]


def _make_stack_trace(source: Source, process: _ProcessStacks, want: Want, *, is_alone: bool) -> Trace:
    """Make the Trace of one process. The rank in the name of a file counts only for a file of one process."""
    pid = process.pid if process.pid is not None else source.pid
    source = replace(source, pid=pid, rank=source.rank if is_alone else None)
    notes = () if process.threads else (Note("info", "log-empty", "a dump of stacks without any thread", source.name),)
    tables = {"thread_stacks": _make_stack_table(process.threads)} if want.table("thread_stacks") else {}
    meta = {"element_count": len(process.threads), "absolute_time": False}
    return Trace(source, Frames(tables), notes, meta)


def _make_stack_table(threads: list[_ThreadStack]) -> Columns:
    """Make the table of threads."""
    stacks = [write_stack(thread.frames) for thread in threads]
    columns: dict[str, Any] = {
        "thread": [thread.name for thread in threads],
        "is_main": np.array([thread.is_main for thread in threads], np.bool_),
        "state": [thread.state for thread in threads],
        "frame": [frame for frame, _ in stacks],
        "stack": [stack for _, stack in stacks],
    }
    return TABLES["thread_stacks"].cast(columns, len(threads))


def _parse_stack_lines(lines: Iterable[str]) -> list[_ProcessStacks]:
    """Parse the text of py-spy and of faulthandler. A line that is neither belongs to a command line, or is foreign."""
    processes = [_ProcessStacks()]
    count = 0
    for raw in lines:
        line = _RANK_PREFIX.sub("", raw.rstrip("\r"), count=1)
        if started := _PROCESS.match(line):
            processes.append(_ProcessStacks(int(started[1])))
            continue
        thread = _parse_thread(line, processes[-1])
        if thread is not None:
            count += 1
            if count > MAX_THREADS:
                break
            processes[-1].threads.append(thread)
        elif processes[-1].threads:
            _add_frame_line(line, processes[-1].threads[-1])
    return processes


def _parse_thread(line: str, process: _ProcessStacks) -> _ThreadStack | None:
    """Parse the heading of a thread; None for any other line."""
    if match := _THREAD.match(line):
        name = join_surrogates((match[3] or match[1] or "thread")[:MAX_TEXT])
        is_main = name == "MainThread" or (process.pid is not None and match[1] == str(process.pid))
        return _ThreadStack(name, is_main, match[2])
    if match := _FAULT_THREAD.match(line):
        return _ThreadStack(join_surrogates((match[3] or match[2])[:MAX_TEXT]), match[3] == "MainThread")
    return None


def _add_frame_line(line: str, thread: _ThreadStack) -> None:
    """Add the frame of a line to its thread; other lines are passed over."""
    if len(thread.frames) >= MAX_FRAMES:
        return
    if match := _FRAME.match(line):
        thread.frames.append(make_code_frame(match[1], match[2], int(match[3])))
    elif match := _FAULT_FRAME.match(line):
        thread.frames.append(make_code_frame(match[3], match[1], int(match[2])))


def _parse_json_stacks(text: str, path: Path) -> list[_ProcessStacks]:
    """Parse `py-spy dump --json`. Raises `TraceFormatError`."""
    if is_too_deep(text):
        raise make_format_error(path, Reason("no-dump", "nested too deeply", Data(offset=0)))
    try:
        threads = json.loads(text)
    except (MemoryError, RecursionError) as error:
        raise make_format_error(path, TOO_LARGE) from error
    except ValueError as error:
        raise make_format_error(path, Reason("cut-dump", "the JSON ends early or is damaged"), "dump again") from error
    by_pid: dict[int | None, _ProcessStacks] = {}
    for thread in threads[:MAX_THREADS] if isinstance(threads, list) else ():
        if isinstance(thread, Mapping):
            pid = _get_whole_number(thread.get("pid"))
            process = by_pid.setdefault(pid, _ProcessStacks(pid))
            process.threads.append(_convert_json_thread(thread, pid))
    return list(by_pid.values())


def _convert_json_thread(thread: Mapping[str, Any], pid: int | None) -> _ThreadStack:
    """Convert one thread of py-spy's JSON; its local variables are not read."""
    name, number = thread.get("thread_name"), _get_whole_number(thread.get("os_thread_id"))
    title = name if isinstance(name, str) and name else str(number or "thread")
    state = "active" if thread.get("active") is True else "idle"
    if thread.get("owns_gil") is True:
        state += "+gil"
    is_main = title == "MainThread" or (pid is not None and number == pid)
    frames = thread.get("frames")
    listed = list(_convert_json_frames(frames[:MAX_FRAMES] if isinstance(frames, list) else []))
    return _ThreadStack(join_surrogates(title[:MAX_TEXT]), is_main, state, listed)


def _convert_json_frames(frames: Iterable[object]) -> Iterator[CodeFrame]:
    """Convert the frames of one thread."""
    for frame in frames:
        if isinstance(frame, Mapping):
            name, file = frame.get("name"), frame.get("filename")
            if isinstance(name, str) and isinstance(file, str):
                yield make_code_frame(name, file, _get_whole_number(frame.get("line")) or 0)


def _get_whole_number(value: object) -> int | None:
    """Get a whole number of at least 0; None for other values."""
    is_sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
    return value if is_sound and isinstance(value, int) else None
