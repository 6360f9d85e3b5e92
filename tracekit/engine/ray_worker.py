"""What runs on the nodes of a cluster: one call on one source, and the folding of what several gave."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from tracekit.engine.attempts import Attempt, attempt, broken, out_of_memory, throttled
from tracekit.model.trace import Source

_TELL_EVERY_S = 0.5
"""Seldom: on a large cluster very many tell one place."""


class Board:
    """Where tasks write how many bytes they have read; a process of its own, beside the driver."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}

    def add(self, index: int, count: int) -> None:
        """Count bytes read of one source."""
        self._read[index] = self._read.get(index, 0) + count

    def take(self) -> dict[int, int]:
        """What was counted since the last time, by source."""
        counts, self._read = self._read, {}
        return counts


def call(
    payload: bytes, index: int, source: Source, board: Any
) -> tuple[Attempt[frozenset[Hashable]], bytes | None]:
    """How a call ended, giving what its value belongs to; and the value: as bytes, which travel only where they are asked for.

    `payload` is (function, the keys of a value), pickled by the driver.
    """
    values: list[bytes] = []

    def work(source: Source, advance: Callable[[int], None]) -> frozenset[Hashable]:
        # Loaded within the attempt: a function that cannot be imported here is then a failure.
        function, keys_of = pickle.loads(payload)  # noqa: S301 - written by our own driver
        value = function(source, advance)
        values.append(packed(value))
        keys: frozenset[Hashable] = keys_of(value)
        return keys

    def tell(count: int) -> None:
        if board is not None:
            board.add.remote(index, count)

    try:
        ended = attempt(work, source, throttled(tell, _TELL_EVERY_S))
    except MemoryError:
        ended = out_of_memory(source)
    except SystemExit as error:
        ended = broken(source, error)
    return (ended, values[0]) if ended.failure is None else (replace(ended, value=None), None)


def fold(payload: bytes, *values: bytes) -> bytes:
    """What the function in `payload` makes of these values together: as many, in their order."""
    function = pickle.loads(payload)  # noqa: S301 - written by our own driver
    return packed(function([unpacked(value) for value in values]))


def packed(value: Any) -> bytes:
    """A value as it travels and waits in the memory that the processes of a node share: a small part of its size."""
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), 1)


def unpacked(value: bytes) -> Any:
    """What `packed` was given."""
    return pickle.loads(zlib.decompress(value))  # noqa: S301 - written by our own worker
