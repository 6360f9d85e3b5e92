"""Mark Python's garbage collections as ranges: a collection stops every thread that runs Python.

torch records collections itself (`record_python_gc_info`), but only together with stacks. These ranges need no stacks,
and their names include the generation: `gc gen2`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

OLDEST_UNMARKED = 0
"""Oldest generation without ranges: its collections are frequent and take microseconds."""


class GcRanges:
    """Mark each collection between `start` and `stop`; `mark` makes a range from a name."""

    def __init__(self, mark: Callable[[str], Any]) -> None:
        self._mark = mark
        self._open: dict[int, Any] = {}

    def start(self) -> None:
        """Start marking collections."""
        gc.callbacks.append(self._collects)

    def stop(self) -> None:
        """Stop marking, and end the range of a collection that is running on another thread."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        while self._open:
            self._open.popitem()[1].__exit__(None, None, None)

    def drop(self) -> None:
        """Stop marking in a forked process; open ranges belong to the parent."""
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
