"""NVTX ranges and timers for a driver's or a worker's own code; without nvtx only the timers work.

Names and arguments are verl's. Unlike verl's, ranges are closed and times are kept if the body raises, and
no colour name makes nvtx raise: it knows ten names, and others only if matplotlib is installed.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from capture.warn import warn

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = {
    "black": 0x000000,
    "brown": 0xA52A2A,
    "gold": 0xFFD700,
    "gray": 0x808080,
    "grey": 0x808080,
    "lime": 0x00FF00,
    "magenta": 0xFF00FF,
    "navy": 0x000080,
    "olive": 0x808000,
    "pink": 0xFFC0CB,
    "salmon": 0xFA8072,
    "teal": 0x008080,
    "violet": 0xEE82EE,
}
"""Colours that nvtx takes as numbers only."""

_NAMED = frozenset({*("blue", "cyan", "darkgreen", "green", "orange", "purple", "rapids", "red", "white", "yellow")})


@functools.cache
def _nvtx() -> Any:
    """Import the module nvtx; None if it is not installed."""
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx


def mark_start_range(
    message: str | None = None,
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
) -> Any:
    """Open an NVTX range and get its id for `mark_end_range`; None without nvtx. Never raises."""
    nvtx = _nvtx()
    if nvtx is None:
        return None
    if isinstance(color, str) and color not in _NAMED:
        color = COLOURS.get(color)
    try:
        return nvtx.start_range(message=message, color=color, domain=domain, category=category)
    except Exception as error:  # noqa: BLE001 - a mark is not worth the training
        warn("cannot open an NVTX range for %s: %s", message, error)
        return None


def mark_end_range(range_id: Any) -> None:
    """End the range; nothing for None."""
    if range_id is not None:
        _nvtx().end_range(range_id)


@contextmanager
def marked(
    message: str, color: str | int | None = None, domain: str | None = None, category: str | int | None = None
) -> Iterator[None]:
    """Put the body into an NVTX range, closed even if the body raises."""
    range_id = mark_start_range(message, color, domain, category)
    try:
        yield
    finally:
        mark_end_range(range_id)


def mark_annotate(
    message: str | None = None,
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to put every call into an NVTX range, named after the function by default."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = message or function.__name__

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with marked(name, color, domain, category):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value] # R is the coroutine that it returns

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            with marked(name, color, domain, category):
                return function(*args, **kwargs)

        return called

    return decorate


@contextmanager
def simple_timer(name: str, timing_raw: MutableMapping[str, float]) -> Iterator[None]:
    """Add the seconds of the body to `timing_raw[name]`, even if it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - start


@contextmanager
def marked_timer(
    name: str,
    timing_raw: MutableMapping[str, float],
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
) -> Iterator[None]:
    """Time the body as `simple_timer` does, in an NVTX range."""
    range_id = mark_start_range(name, color, domain, category)
    start = time.perf_counter()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - start
        mark_end_range(range_id)
