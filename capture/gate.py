"""Hold back stages while a capture of all threads ends; otherwise torch 2.13 corrupts the heap.

A profile of all threads records into buffers that are freed at its end. An operator running on another thread then
writes to freed memory (`malloc(): unsorted double linked list corrupted`). So the capture waits until no other
thread is in a stage, and new stages wait for the capture. Both waits are limited, so they cannot deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 10.0
"""Longest wait of a capture for running stages, and of a stage for an ending capture."""


class Gate:
    """The running stages of this process, by thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stages: dict[int, int] = {}
        self._closer: int | None = None

    def enter(self) -> int:
        """Begin a stage on this thread; return the token for `leave`.

        A stage inside another one never waits: the capture waits for the outer one.
        """
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._stages and thread != self._closer:
                self._changed.wait_for(lambda: self._closer is None, WAIT_S)
            self._stages[thread] = self._stages.get(thread, 0) + 1
        return thread

    def leave(self, thread: int) -> None:
        """End the stage that `enter` started; any thread may call this."""
        with self._changed:
            left = self._stages.get(thread, 0) - 1
            if left > 0:
                self._stages[thread] = left
            else:
                self._stages.pop(thread, None)
            self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[bool]:
        """Hold back new stages; yield whether no other thread is in a stage."""
        thread = threading.get_ident()
        with self._changed:
            self._closer = thread
            alone = self._changed.wait_for(lambda: not self._stages.keys() - {thread}, WAIT_S)
        try:
            yield alone
        finally:
            with self._changed:
                self._closer = None
                self._changed.notify_all()
