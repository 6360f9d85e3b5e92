"""Workers in threads of this process: for functions that spend their time outside the interpreter."""

from __future__ import annotations

import queue
import threading
from typing import Generic

from tracekit.engine import Advance, R, Work
from tracekit.engine.attempts import Message, attempt, broken, throttled
from tracekit.model.trace import Source


class _StoppedError(BaseException):
    """Raised inside a call when nobody wants its result any more."""


class Threads(Generic[R]):
    """A growing set of threads; a call that nobody waits for ends at its next step."""

    def __init__(self, function: Work[R]) -> None:
        self._function = function
        self._todo: queue.SimpleQueue[tuple[int, Source] | None] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[tuple[int, Message[R]]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread_count = 0
        self._busy_count = 0

    def start(self, index: int, source: Source) -> None:
        """Begin the call for `source`, in a new thread if all are busy."""
        if self._busy_count == self._thread_count:
            # Daemons: a thread deep in a call cannot be stopped, and must not keep the program alive.
            threading.Thread(target=self._serve, daemon=True).start()
            self._thread_count += 1
        self._busy_count += 1
        self._todo.put((index, source))

    def wait(self) -> list[tuple[int, Message[R]]]:
        """The next message of any thread."""
        index, message = self._said.get()
        self._busy_count -= not isinstance(message, int)
        return [(index, message)]

    def shrink(self) -> None:
        """Nothing: idle threads hold no memory."""

    def close(self) -> None:
        """Stop every call at its next step; threads are not waited for."""
        self._stopped.set()
        for _ in range(self._thread_count):
            self._todo.put(None)

    def _serve(self) -> None:
        """Take sources until told to stop."""
        while (task := self._todo.get()) is not None:
            index, source = task
            try:
                ended = attempt(self._function, source, self._advance(index))
            except _StoppedError:
                return
            except BaseException as error:  # noqa: BLE001 - the caller waits for an answer
                ended = broken(source, error)
            self._said.put((index, ended))

    def _advance(self, index: int) -> Advance:
        """An `Advance` that ends the call once nobody waits for it."""
        tell = throttled(lambda count: self._said.put((index, count)))

        def advance(count: int) -> None:
            if self._stopped.is_set():
                raise _StoppedError
            tell(count)

        return advance
