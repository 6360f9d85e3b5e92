"""Functions that run on Ray nodes: one call on one source, and folding several values."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from tracekit.engine.attempts import Attempt, attempt_call, make_internal_failure, make_oom_attempt, throttle_progress
from tracekit.model.trace import Source

_TELL_EVERY_S = 0.5
"""Reporting interval: long, because on a large cluster many tasks report to one actor."""


class ProgressBoard:
    """A Ray actor next to the driver that collects the bytes each task has read."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}

    def add(self, index: int, count: int) -> None:
        """Add bytes read of one source."""
        self._read[index] = self._read.get(index, 0) + count

    def take(self) -> dict[int, int]:
        """Take the bytes counted since the last call, by source."""
        counts, self._read = self._read, {}
        return counts


def call_on_node(
    payload: bytes, index: int, source: Source, board: Any
) -> tuple[Attempt[frozenset[Hashable]], bytes | None]:
    """Call the function on a source; return (attempt with the value's fold keys, value as bytes).

    Ray moves the bytes only on request. `payload` is the pickled pair (function, function that lists a value's keys).
    """
    values: list[bytes] = []

    def work(source: Source, advance: Callable[[int], None]) -> frozenset[Hashable]:
        # Unpickled within the attempt: a function that cannot be imported here becomes a failure.
        function, keys_of = pickle.loads(payload)  # noqa: S301 - written by our own driver
        value = function(source, advance)
        values.append(compress_value(value))
        keys: frozenset[Hashable] = keys_of(value)
        return keys

    def tell(count: int) -> None:
        if board is not None:
            board.add.remote(index, count)

    try:
        ended = attempt_call(work, source, throttle_progress(tell, _TELL_EVERY_S))
    except MemoryError:
        ended = make_oom_attempt(source)
    except SystemExit as error:
        ended = make_internal_failure(source, error)
    return (ended, values[0]) if ended.failure is None else (replace(ended, value=None), None)


def fold_on_node(payload: bytes, *values: bytes) -> bytes:
    """Apply the function in `payload` to these values; it returns as many, in the same order."""
    function = pickle.loads(payload)  # noqa: S301 - written by our own driver
    return compress_value(function([decompress_value(value) for value in values]))


def compress_value(value: Any) -> bytes:
    """Compress a pickled value for transfer and for Ray's shared memory."""
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), 1)


def decompress_value(value: bytes) -> Any:
    """Restore a value from `compress_value`."""
    return pickle.loads(zlib.decompress(value))  # noqa: S301 - written by our own worker
