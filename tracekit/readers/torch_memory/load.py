"""Loading of a pickle that `opcodes.check_pickle` accepted, without resolving any name."""

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
from tracekit.model.errors import make_format_error


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block: millions of new objects would trigger it thousands of times."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _RestrictedUnpickler(_pickle.Unpickler):
    """The C unpickler of the standard library, with all names refused."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse every name: a snapshot needs no classes or functions."""
        raise pickle.UnpicklingError(f"the name {module_name}.{global_name} is not allowed")

    def persistent_load(self, _pid: object, /) -> NoReturn:
        """Refuse persistent ids: a snapshot is self-contained."""
        raise pickle.UnpicklingError("references to other files are not allowed")


def unpickle(data: bytes, path: Path) -> Any:
    """Load the object of a pickle. Raises `TraceFormatError` if it does not load."""
    # A buffered reader returns large blocks even for protocols 2 and 3, which have no frames.
    stream = io.BufferedReader(io.BytesIO(data), 2**17)
    try:
        return _RestrictedUnpickler(stream).load()
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error
    except Exception as error:  # the loader raises whatever its operations raise
        problem = f"the pickle does not load: {type(error).__name__}: {str(error)[:200]}"
        reason = Reason("no-snapshot", " ".join(problem.split()))
        raise make_format_error(path, reason, "the file is damaged") from error
