"""Tests that need the machine to themselves take turns, whichever worker of pytest runs them."""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


@contextlib.contextmanager
def alone(what):
    """Nothing; while it lasts, every other `alone(what)` of this user waits."""
    path = Path(tempfile.gettempdir()) / f"tracekit-tests-{what}-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
