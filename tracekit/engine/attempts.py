"""One call of the function and how it ended; and what every kind of worker has to offer.

No exception leaves a call: whatever goes wrong with one source is data for the others' report.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tracekit.engine import Advance, R, Work
from tracekit.model.capacity import share_of_cores
from tracekit.model.codes import UNREADABLE, Data, Reason, why_unread
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.records import dataclass
from tracekit.model.trace import Failure, Source

R_co = TypeVar("R_co", covariant=True)

_TELL_EVERY_S = 0.1
_LONGEST = 300
MEMORY_HINT = (
    "give it more memory, read fewer at once with --jobs 1, or leave it out with --exclude"
)
REPORT_HINT = "please report it with the file, if you can; -v shows the stack"


@dataclass(frozen=True, slots=True)
class Attempt(Generic[R_co]):
    """How one call ended; `lost` if a second one, with all the memory to itself, may end better."""

    value: R_co | None = None
    failure: Failure | None = None
    stack: str = ""
    lost: bool = False


Message = int | Attempt[R]
"""What a worker says about its source: bytes read since it last spoke, and in the end how it went."""


class Workers(Protocol[R]):
    """A set of workers: starts what it is told, never more than the caller allows."""

    def start(self, index: int, source: Source) -> None:
        """Begin the call for `source` on a free worker, a new one if none is free."""

    def wait(self) -> list[tuple[int, Message[R]]]:
        """What busy workers have said, by the index that `start` was given; at least one message."""

    def shrink(self) -> None:
        """Let idle workers go, and with them the memory that they hold."""

    def close(self) -> None:
        """Stop everything, finished or not."""


def attempt(function: Work[R], source: Source, advance: Advance) -> Attempt[R]:
    """How `function(source, advance)` ended; every exception becomes a failure of one line."""
    try:
        return Attempt(function(source, advance))
    except MemoryError:
        return out_of_memory(source)
    except TraceFormatError as error:
        where = f"{error.where}: " if error.where else ""
        reason = Reason(error.code, where + error.problem, error.data)
        return failed(source, reason, error.hint)
    except TracekitError as error:
        return failed(source, Reason(UNREADABLE, error.problem), error.hint)
    except OSError as error:
        return failed(source, why_unread(error), "check that it exists and that you may read it")
    except Exception as error:  # noqa: BLE001 - one source must not end the others, whatever it does
        return broken(source, error)


def with_cores(count: int, function: Work[R], source: Source, advance: Advance) -> R:
    """`function(source, advance)`, which may use so many cores."""
    with share_of_cores(count):
        return function(source, advance)


def broken(source: Source, error: BaseException) -> Attempt[Any]:
    """A failed attempt that is tracekit's fault, with the stack of `error`, which is being handled."""
    name = type(error).__name__
    reason = Reason("internal-error", f"internal error: {name}: {error}", Data(error=name))
    return failed(source, reason, REPORT_HINT)


def out_of_memory(source: Source) -> Attempt[Any]:
    """A lost attempt."""
    return Attempt(
        None, Failure(source.name, "memory ran out", MEMORY_HINT, "out-of-memory"), lost=True
    )


def failed(source: Source, reason: Reason, hint: str) -> Attempt[Any]:
    """A failed attempt that says why in one line, with the stack of the exception being handled."""
    problem = _one_line(reason.text)
    failure = Failure(source.name, problem, _one_line(hint), reason.code, reason.data)
    return Attempt(None, failure, traceback.format_exc())


def _one_line(text: str) -> str:
    """The text without line breaks, cut where it is longer than a person reads."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def throttled(tell: Callable[[int], None], every_s: float = _TELL_EVERY_S) -> Advance:
    """An `Advance` that adds up small steps and tells of them a few times a second."""
    untold, told_at = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal untold, told_at
        untold += count
        now = time.monotonic()
        if now - told_at >= every_s:
            tell(untold)
            untold, told_at = 0, now

    return advance
