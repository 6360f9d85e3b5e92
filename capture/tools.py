"""Interface of all tools, whose captures start, stop, advance and meet stages; and the no-op tool.

A tool may raise: the profiler that calls it logs the error, and the training continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these import json, pathlib and socket: half the import time of capture
    from pathlib import Path
    from typing import Protocol

    from capture.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Target:
    """Rank, worker and folder of a profile; `config` is the tool's own, `shared` the job's.

    `on_demand`: for one request (`capture.trigger`); the tool leaves nothing switched on after it.
    """

    rank: int
    worker: str | None
    folder: Path
    config: Any
    manifest: Manifest
    shared: Mapping[str, Any] = field(default_factory=dict)
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One annotated function: its name, the scope its files are named by, and how it is marked."""

    name: str
    scope: str | None = None
    scheduled: bool = False
    color: str | int | None = None
    domain: str | None = None
    category: str | int | None = None


if TYPE_CHECKING:  # creating a protocol takes as long as the rest of this module

    class Tool(Protocol):
        """Interface between a profiler and its tool."""

        can_record: bool

        def start(self, scope: str | None, step: int | None) -> None:
            """Begin the capture of a step."""

        def stop(self) -> None:
            """End the capture and write its files; do nothing if none was started."""

        def advance(self) -> None:
            """Go on to the next mini-batch of the update loop."""

        def stage(self, stage: Stage) -> AbstractContextManager[None]:
            """Wrap one call of an annotated function."""

        def finish(self) -> None:
            """Write what waits for further steps: there will be none."""

        def relocate(self, folder: Path) -> None:
            """Move files that a framework wrote elsewhere to the folder."""


class NoTool:
    """A tool that captures nothing: none is requested, it is unknown, or it cannot work here."""

    can_record = True
    """Whether a capture can become a file here; a tool that cannot record logs the reason."""

    def start(self, scope: str | None, step: int | None) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """Do nothing."""

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Do nothing."""
        del stage
        return nullcontext()

    def finish(self) -> None:
        """Do nothing."""

    def relocate(self, folder: Path) -> None:
        """Do nothing."""
