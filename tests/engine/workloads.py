"""Functions for the engine to run: importable by the workers, which `conftest.py` sees to."""

import os
import signal
import sys
import time
from pathlib import Path

from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.system.capacity import count_own_cores


def name_of(source, advance):
    advance(source.size_bytes)
    return source.name


def name_late_if_first(source, advance):
    time.sleep(0.3 if source.name.startswith("0") else 0)
    return source.name


def fail_if_named(source, advance):
    """Raise what the name of the source says."""
    kind = source.name.partition(".")[0]
    if kind == "format":
        raise TraceFormatError("/somewhere/x.json", "not a trace", "check the copy", where="byte 7")
    if kind == "tracekit":
        raise TracekitError("no such thing", "take another")
    if kind == "value":
        raise ValueError("first line\nsecond\tline" + "x" * 1000)
    if kind == "missing":
        Path("/no/such/file").read_bytes()
    if kind == "exit":
        sys.exit(7)
    return source.name


def note_run(source):
    """How often this source has been run, this time included."""
    count = len(list(source.path.parent.glob(f"{source.path.name}.run*"))) + 1
    source.path.with_name(f"{source.path.name}.run{count}").touch()
    return count


def die_always(source, advance):
    note_run(source)
    if source.name.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return source.name


def die_once(source, advance):
    if note_run(source) == 1 and source.name.startswith("die"):
        advance(source.size_bytes)
        os.kill(os.getpid(), signal.SIGKILL)
    return source.name


def no_memory_once(source, advance):
    if note_run(source) == 1 and source.name.startswith("big"):
        raise MemoryError
    return source.name


def no_memory(source, advance):
    note_run(source)
    raise MemoryError


def running_at_once(source, advance):
    """How many sources were running while this one did, itself included."""
    mine = source.path.with_name(f"{source.path.name}.running")
    mine.touch()
    most = 0
    for _ in range(20):
        most = max(most, len(list(source.path.parent.glob("*.running"))))
        time.sleep(0.01)
    mine.unlink()
    return most


def unsendable(source, advance):
    return lambda: source


def sleep_long(source, advance):
    """Sleep in small steps; the first source is done at once. Says that it has begun."""
    if source.name.startswith("0"):
        return source.name
    source.path.with_name(f"{source.path.name}.begun").touch()
    for _ in range(600):
        time.sleep(0.1)
        advance(1)
    return source.name


def pid(source, advance):
    return os.getpid()


def environment_of(source, advance):
    return os.environ.get("TRACEKIT_TRIED"), os.environ.get(source.name)


def with_its_batch(values):
    """Each value with the first of those that were sent with it."""
    return [f"{value} with {values[0]}" for value in values]


def cores_of(source, advance):
    return count_own_cores()


def sleep_silently(source, advance):
    """Sleep for minutes without a word, unless the name begins with 0; the file `….begun` tells the worker's id."""
    source.path.with_name(f"{source.path.name}.begun").write_text(str(os.getpid()))
    if not source.name.startswith("0"):
        time.sleep(600)
    return source.name
