"""pandas, imported when it is first used: the import takes longer than a short run, and most runs need no frame.

`from tracekit.model.system.lazy_pandas import pd` reads like `import pandas as pd`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pd", "use_python_strings"]

if TYPE_CHECKING:
    import pandas as pd
else:

    class _LazyPandas:
        """The names of pandas."""

        def __getattr__(self, name: str) -> Any:
            """Get a name of pandas; imports it."""
            return getattr(_import_pandas(), name)

    pd = _LazyPandas()

_waiting: list[ExitStack] = []
"""Contexts of `use_python_strings` that were entered before pandas was imported."""


@cache
def _import_pandas() -> Any:
    pandas = import_module("pandas")
    for stack in _waiting:
        stack.enter_context(pandas.option_context("mode.string_storage", "python"))
    return pandas


@contextmanager
def use_python_strings() -> Iterator[None]:
    """Store column names and other small texts as Python strings in pandas; converting them took a third of judging."""
    with ExitStack() as stack:
        if "pandas" in sys.modules:
            stack.enter_context(pd.option_context("mode.string_storage", "python"))
            yield
            return
        _waiting.append(stack)
        try:
            yield
        finally:
            _waiting.remove(stack)
