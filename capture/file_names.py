"""File names of a profile, as in verl 0.9.1, so that tools for verl's files read these.

A trace is `[<worker>_][<scope>_][step<S>_]rank<r>[-of-<world>][_tp<i>-pp<i>-dp<i>-cp<i>]_pid<pid>_<time>`,
with `_mb<i>[-<j>]` or `_part<k>` if one capture gives several files. No file replaces another of the same process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, count
from pathlib import Path

_DIMENSIONS = ("tp", "pp", "dp", "cp")
_MOMENTS: set[str] = set()  # used in names of this process


def label(text: object) -> str:
    """Make `text` a part of a file name: invalid characters become hyphens.

    >>> label("actor_rollout/ref")
    'actor-rollout-ref'
    """
    return re.sub(r"[^0-9A-Za-z.=+-]+", "-", str(text)).strip("-")


def topology() -> dict[str, int]:
    """Collect this process's rank, world size and parallel ranks from torch.distributed and Megatron.

    Neither is imported: a process that has not loaded it has no group either.
    """
    place: dict[str, int] = {}
    dist = sys.modules.get("torch.distributed")
    if dist is not None:
        with contextlib.suppress(Exception):  # on any error, name the trace without it
            if dist.is_available() and dist.is_initialized():
                place |= {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None:
        with contextlib.suppress(Exception):
            if megatron.model_parallel_is_initialized():
                place["tp"] = megatron.get_tensor_model_parallel_rank()
                place["pp"] = megatron.get_pipeline_model_parallel_rank()
                place["dp"] = megatron.get_data_parallel_rank()
                place["cp"] = megatron.get_context_parallel_rank()
    return place


def trace_stem(
    rank: int,
    scope: str | None = None,
    worker: str | None = None,
    step: int | None = None,
    place: Mapping[str, int] | None = None,
) -> str:
    """Make the name of a torch trace without window and suffix; `place` defaults to the `topology`."""
    place = topology() if place is None else place
    parts = [label(text) for text in (worker, scope) if text]
    parts += [] if step is None else [f"step{label(step)}"]
    world = place.get("world_size")
    parts.append(f"rank{place.get('rank', rank)}" + (f"-of-{world}" if world else ""))
    grid = "-".join(f"{name}{place[name]}" for name in _DIMENSIONS if name in place)
    parts += [grid] if grid else []
    return "_".join([*parts, f"pid{os.getpid()}", _moment()])


def _moment() -> str:
    """Get this millisecond, or the next one unused in this process: two traces may start within one."""
    now = datetime.now().astimezone()
    while (text := now.strftime("%Y%m%d%H%M%S%f")[:-3]) in _MOMENTS:
        now += timedelta(milliseconds=1)
    _MOMENTS.add(text)
    return text


def manifest_name(tool: str, rank: int, worker: str | None) -> str:
    """Make the name of a process's manifest, with a suffix that no trace has."""
    parts = ["capture", label(tool), *([label(worker)] if worker else [])]
    return "_".join([*parts, f"rank{rank}", f"pid{os.getpid()}"]) + ".manifest"


def unused(path: Path) -> Path:
    """`path`, or with `_part<k>` for the first k from 1 where there is a file already."""
    names = (path.with_name(f"{path.stem}_part{k}{path.suffix}") for k in count(1))
    return next(name for name in chain([path], names) if not name.exists())


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden name to write a file under; rename it when complete, delete it on failure.

    Readers ignore hidden files, so they never read half a trace.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file has the folder's name
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", error.filename) from None
    partial = path.with_name(f".{path.name}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
