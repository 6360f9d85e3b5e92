"""What every tool does when a capture starts, stops, moves on and meets a stage; and the tool that does nothing.

A tool may raise: the profiler that calls it logs that, and the training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they bring json, pathlib and socket: half of what importing capture would cost
    from pathlib import Path
    from typing import Protocol

    from capture.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Target:
    """Whose profile a tool takes and where it goes; `config` is the tool's own, `shared` the job's.

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


if TYPE_CHECKING:  # a protocol takes as long to make as all the rest of this

    class Tool(Protocol):
        """What a profiler asks of its tool."""

        can_record: bool

        def start(self, scope: str | None, step: int | None) -> None:
            """Begin the capture of a step."""

        def stop(self) -> None:
            """End it and write what belongs to it; nothing where none was begun."""

        def advance(self) -> None:
            """Go on to the next mini-batch of the update loop."""

        def stage(self, stage: Stage) -> AbstractContextManager[None]:
            """Wrap one call of an annotated function."""

        def finish(self) -> None:
            """Write what waits for further steps: there will be none."""

        def relocate(self, folder: Path) -> None:
            """Move what a framework wrote elsewhere to the folder."""


class NoTool:
    """Captures nothing: no tool is wanted, or it is not known, or it cannot work here."""

    can_record = True
    """Whether a capture can become a file here; a tool that cannot record says why in the log."""

    def start(self, scope: str | None, step: int | None) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def advance(self) -> None:
        """Nothing."""

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Do nothing."""
        del stage
        return nullcontext()

    def finish(self) -> None:
        """Nothing."""

    def relocate(self, folder: Path) -> None:
        """Nothing."""
