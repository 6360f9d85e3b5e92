"""Ranges around Python's garbage collections: every thread that runs Python waits for one.

torch records collections itself (`record_python_gc_info`), but only together with stacks. These need none, and their
name has the generation: `gc gen2`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

OLDEST_UNMARKED = 0
"""Collections of this generation have no range: they are many and take microseconds."""


class GcRanges:
    """A range for each collection, between `start` and `stop`; `mark` makes a range of a name."""

    def __init__(self, mark: Callable[[str], Any]) -> None:
        self._mark = mark
        self._open: dict[int, Any] = {}

    def start(self) -> None:
        """Begin to mark collections."""
        gc.callbacks.append(self._collects)

    def stop(self) -> None:
        """Mark no more, and end the range of a collection under way on another thread."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        while self._open:
            self._open.popitem()[1].__exit__(None, None, None)

    def drop(self) -> None:
        """Mark no more in a forked process; open ranges are the parent's."""
        self._open.clear()
        self.stop()

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] <= OLDEST_UNMARKED:
            return
        thread = threading.get_ident()
        if phase == "start":
            mark = self._mark(f"gc gen{info['generation']}")
            mark.__enter__()
            self._open[thread] = mark
        else:
            mark = self._open.pop(thread, None)
            if mark is not None:
                mark.__exit__(None, None, None)
