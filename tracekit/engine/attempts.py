"""One call of the work function and its result, and the protocol that every kind of worker implements.

No exception leaves a call: an error in one source is reported next to the results of the others.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tracekit.engine import Advance, R, Work
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.inputs.note_codes import UNREADABLE, Data, Reason, explain_os_error
from tracekit.model.records import dataclass
from tracekit.model.system.capacity import limit_cores
from tracekit.model.trace import Failure, Source

R_co = TypeVar("R_co", covariant=True)

_TELL_EVERY_S = 0.1
_LONGEST = 300
MEMORY_HINT = "give it more memory, read fewer at once with --jobs 1, or leave it out with --exclude"
REPORT_HINT = "please report it with the file, if you can; -v shows the stack"


@dataclass(frozen=True, slots=True)
class Attempt(Generic[R_co]):
    """The result of one call; `lost` if a second call, with all the memory to itself, may succeed."""

    value: R_co | None = None
    failure: Failure | None = None
    stack: str = ""
    lost: bool = False


Message = int | Attempt[R]
"""A worker's message about its source: bytes read since its last message, or the finished attempt."""


class Workers(Protocol[R]):
    """A set of workers. It starts a call whenever `start` is called; the caller limits how many run at once."""

    def start(self, index: int, source: Source) -> None:
        """Start the call for `source` on a free worker, or on a new one if none is free."""

    def wait(self) -> list[tuple[int, Message[R]]]:
        """Wait for messages of busy workers; list at least one as (index passed to `start`, message)."""

    def shrink(self) -> None:
        """Stop idle workers to free their memory."""

    def close(self) -> None:
        """Stop all workers, busy or idle."""


def attempt_call(function: Work[R], source: Source, advance: Advance) -> Attempt[R]:
    """Call `function(source, advance)` and turn any exception into a one-line failure."""
    try:
        return Attempt(function(source, advance))
    except MemoryError:
        return make_oom_attempt(source)
    except TraceFormatError as error:
        where = f"{error.where}: " if error.where else ""
        reason = Reason(error.code, where + error.problem, error.data)
        return make_failed_attempt(source, reason, error.hint)
    except TracekitError as error:
        return make_failed_attempt(source, Reason(UNREADABLE, error.problem), error.hint)
    except OSError as error:
        return make_failed_attempt(source, explain_os_error(error), "check that it exists and that you may read it")
    except Exception as error:  # noqa: BLE001 - one source must not end the others, whatever it does
        return make_internal_failure(source, error)


def call_with_cores(count: int, function: Work[R], source: Source, advance: Advance) -> R:
    """Call `function(source, advance)` and let it use `count` cores."""
    with limit_cores(count):
        return function(source, advance)


def make_internal_failure(source: Source, error: BaseException) -> Attempt[Any]:
    """Build the failed attempt of an internal error, with the stack of `error`, which is being handled."""
    name = type(error).__name__
    reason = Reason("internal-error", f"internal error: {name}: {error}", Data(error=name))
    return make_failed_attempt(source, reason, REPORT_HINT)


def make_oom_attempt(source: Source) -> Attempt[Any]:
    """Build the lost attempt of a source that ran out of memory."""
    return Attempt(None, Failure(source.name, "memory ran out", MEMORY_HINT, "out-of-memory"), lost=True)


def make_failed_attempt(source: Source, reason: Reason, hint: str) -> Attempt[Any]:
    """Build a failed attempt with a one-line problem and hint, and the stack of the exception being handled."""
    problem = _truncate_to_line(reason.text)
    failure = Failure(source.name, problem, _truncate_to_line(hint), reason.code, reason.data)
    return Attempt(None, failure, traceback.format_exc())


def _truncate_to_line(text: str) -> str:
    """Join the lines of a text and truncate it to 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def throttle_progress(tell: Callable[[int], None], every_s: float = _TELL_EVERY_S) -> Advance:
    """Make an `Advance` that sums small steps and passes the sum to `tell` at most every `every_s` seconds."""
    untold, told_at = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal untold, told_at
        untold += count
        now = time.monotonic()
        if now - told_at >= every_s:
            tell(untold)
            untold, told_at = 0, now

    return advance
