"""pandas, imported when it is first used: the import takes longer than a short run, and most runs need no frame.

`from tracekit.model.system.lazy_pandas import pd` reads like `import pandas as pd`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pd"]

if TYPE_CHECKING:
    import pandas as pd
else:

    class _LazyPandas:
        """The names of pandas."""

        def __getattr__(self, name: str) -> Any:
            """Get a name of pandas; imports it."""
            return getattr(import_module("pandas"), name)

    pd = _LazyPandas()
