"""Profile on demand: a running job follows a request for a profile at one of its next steps.

    python -m capture.trigger outputs/profile --ranks 0,4

writes a request into that directory; so do `trigger` and the signal SIGUSR2 (`capture.on_signal`). A job
looks for it once a step: the driver of a Ray job tells its workers (`capture.ray.profiling(…, watch=…)`, a
verl run that switched does so by itself); ranks without a driver agree on the step by a file beside it:

    watch = capture.trigger.Watch("outputs/profile")
    for step in range(1, last + 1):
        with watch.profiling(profiler, step):
            train()

No daemon, no port, no thread; a step without a request costs one look at the directory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from capture import on_signal as signals
from capture.request import HIDDEN, SCHEMA, TOOLS, request_path, trigger
from capture.warn import warn

AHEAD = 2
"""Ranks without a driver start this many steps after the first rank saw the request, so that all have seen it."""

_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a profile: the tool, its settings, ranks (None: all) and the number of consecutive steps."""

    id: str
    folder: str
    tool: str = "torch"
    ranks: list[int] | None = field(default_factory=lambda: [0])
    steps: int = 1
    tool_config: dict[str, Any] = field(default_factory=dict[str, Any])

    def settings(self) -> dict[str, Any]:
        """Return plain values, passed to workers as `on_demand`."""
        return asdict(self)


class Watch:
    """Watcher of requests in a directory, which it checks once per step.

    A request that exists when the watch starts is outdated. With `alone`, as for a driver, a request
    starts at the step that sees it; otherwise at the step that all ranks agree on. SIGUSR2 to this process
    writes a request here for rank 0, unless the program handles that signal itself.
    """

    def __init__(self, folder: str | os.PathLike[str], *, alone: bool = False, on_signal: bool = True) -> None:
        self._folder = Path(folder).absolute()
        self._path = str(request_path(self._folder))
        self._alone = alone
        self._request: Request | None = None
        self._first = 0
        self._seen = _stamp(self._path)
        if on_signal:
            signals.watch(self._folder)

    @property
    def folder(self) -> Path:
        """The watched directory."""
        return self._folder

    def due(self, step: int) -> Request | None:
        """Return the request to follow in this step, or None. Never raises."""
        stamp = _stamp(self._path)
        if stamp is not None and stamp != self._seen:
            self._seen = stamp
            try:
                self._take(step)
            except Exception as error:  # noqa: BLE001 - a request is never worth the training
                warn("request for a profile not followed: %s: %s", type(error).__name__, error)
            else:
                self._tell()
        request = self._request
        if request is None or step < self._first:
            return None
        if step >= self._first + request.steps:
            self._request = None
            return None
        return request

    @contextmanager
    def profiling(self, profiler: Any, step: int, role: str | None = "train") -> Iterator[None]:
        """Profile the body as one step of a rank without a driver, if a request asks for it."""
        request = self.due(step)
        if request is not None:
            profiler.start(role=role, profile_step=step, on_demand=request.settings())
        try:
            yield
        finally:
            if request is not None:
                profiler.stop()

    def _tell(self) -> None:
        """Log that a request is followed, where the whole job is seen, or on the first rank that it asks for."""
        request = self._request
        if request is None or not (self._alone or _get_torchrun_rank() == min(request.ranks or [0])):
            return
        ranks = "all ranks" if request.ranks is None else f"ranks {request.ranks}"
        steps = f"step {self._first}" if request.steps == 1 else f"{request.steps} steps from {self._first}"
        warn("profiling on request: %s, %s, tool %s, into %s", steps, ranks, request.tool, self._folder)

    def _take(self, step: int) -> None:
        """Read the request and choose its first step."""
        request = _read(Path(self._path), self._folder)
        first = step if self._alone else _agreed(self._folder, request.id, step + AHEAD)
        if first < step:
            warn("request for a profile from step %s came too late: this is step %s; ask again", *(first, step))
            return
        self._request, self._first = request, first


def _get_torchrun_rank() -> int:
    """Get the rank of this process under torchrun; 0 if there is none."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


def _stamp(path: str) -> tuple[int, int] | None:
    """Return a value that differs between requests; None without a request."""
    try:
        status = os.stat(path)  # noqa: PTH116 - all that a step costs
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read(path: Path, folder: Path) -> Request:
    """Read the request in a file. Raises `OSError` and `ValueError` if there is none."""
    with path.open(encoding="utf-8") as stream:
        request = json.loads(stream.read(_LONGEST))
    if not isinstance(request, dict) or request.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a request: write it with python -m capture.trigger")
    ranks, config = request.get("ranks"), request.get("tool_config")
    return Request(
        id=str(request["id"]),
        folder=str(folder),
        tool=str(request.get("tool", "torch")),
        ranks=None if ranks is None else [int(rank) for rank in ranks],
        steps=max(int(request.get("steps", 1)), 1),
        tool_config=config if isinstance(config, dict) else {},
    )


def _agreed(folder: Path, request: str, first: int) -> int:
    """Agree on the step at which all ranks start: the first rank writes it, the others read it."""
    name = "".join(letter for letter in request if letter.isalnum() or letter == "-")[:64]
    path = folder / HIDDEN / f"step-{name}"
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_text(str(first), encoding="utf-8")
    try:
        with suppress(FileExistsError):
            os.link(draft, path)  # atomic, and never replaces an existing file
    finally:
        draft.unlink(missing_ok=True)
    return int(path.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> int:
    """Leave the request that the command line describes; exit status 2 where it cannot be written."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m capture.trigger", description="Ask a running job for a profile of one of its next steps."
    )
    parser.add_argument("folder", help="the directory that the job watches: its save_path")
    parser.add_argument("--tool", choices=TOOLS, default="torch", help="default: torch")
    parser.add_argument("--ranks", default="0", help="0,4 or: all (default: 0)")
    parser.add_argument("--steps", type=int, default=1, help="steps in a row (default: 1)")
    parser.add_argument(
        "--contents", default="", help="what torch records: cpu,cuda,memory,shapes,stack (default: cpu,cuda)"
    )
    options = parser.parse_args(arguments)
    try:
        ranks = None if options.ranks == "all" else [int(rank) for rank in options.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks {options.ranks!r}: give numbers separated by commas, or: all")
    config = {"contents": options.contents.split(",")} if options.contents else {}
    folder = Path(options.folder).absolute()
    is_new = not folder.exists()
    try:
        path = trigger(folder, tool=options.tool, ranks=ranks, steps=options.steps, **config)
    except ValueError as error:
        sys.stderr.write(f"capture.trigger: {error}\n")
        return 2
    except OSError as error:
        problem = f"cannot leave a request in {folder}: {error.strerror or error}"
        sys.stderr.write(f"capture.trigger: {problem}; name the save_path of the job\n")
        return 2
    sys.stdout.write(f"{path}\n")
    if is_new:
        sys.stderr.write(f"created {folder}: check that it is the save_path of the job\n")
    sys.stderr.write(f"the job profiles its next step into {folder}, and its log names that step\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
