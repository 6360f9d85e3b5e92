"""Rows appended to a file of JSON lines; what cannot be written is logged, once, and lost."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("capture")


class JsonLines:
    """A file that rows are appended to, whole lines at a time, from any thread; None keeps nothing."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._told = False

    def append(self, row: Mapping[str, object]) -> None:
        """Add a row. Values that are unknown (None) are left out; raises nothing."""
        if self._path is None:
            return
        values = {key: value for key, value in row.items() if value is not None}
        try:
            line = json.dumps(values) + "\n"
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(line)
        except (OSError, TypeError, ValueError) as error:
            if not self._told:
                log.warning("%s is not written: %s", self._path, error)
            self._told = True
