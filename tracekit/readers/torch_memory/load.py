"""The objects of a pickle that `snapshot_opcodes.check` has passed, loaded without naming any code."""

from __future__ import annotations

import _pickle
import gc
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tracekit.model.codes import TOO_LARGE, Reason
from tracekit.model.errors import refused


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing; inside, the cyclic collector rests: millions of new objects would call it thousands of times."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Restricted(_pickle.Unpickler):
    """The unpickler of the standard library, written in C, that refuses every name."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Nothing: a snapshot has no use for classes or functions."""
        raise pickle.UnpicklingError(f"the name {module_name}.{global_name} is not allowed")

    def persistent_load(self, _pid: object, /) -> NoReturn:
        """Nothing: a snapshot refers to nothing outside itself."""
        raise pickle.UnpicklingError("references to other files are not allowed")


def unpickle(data: bytes, path: Path) -> Any:
    """The object that a pickle stands for; `TraceFormatError` where it stands for none."""
    # A buffered reader hands over many bytes at a time also where protocols 2 and 3 have no frames.
    stream = io.BufferedReader(io.BytesIO(data), 2**17)
    try:
        return _Restricted(stream).load()
    except MemoryError as error:
        raise refused(path, TOO_LARGE) from error
    except Exception as error:  # the loader raises whatever the objects at hand raise
        problem = f"the pickle does not load: {type(error).__name__}: {str(error)[:200]}"
        reason = Reason("no-snapshot", " ".join(problem.split()))
        raise refused(path, reason, "the file is damaged") from error
