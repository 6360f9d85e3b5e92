"""A package that is also the public function of its name: `tracekit.render` and `tracekit.compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Nothing; afterwards the module of that name can be called as the function.

    Importing a package puts it where its parent's function of that name would be looked up.
    """
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function)})
    sys.modules[name].__class__ = kind
