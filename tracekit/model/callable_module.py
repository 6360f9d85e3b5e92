"""Packages that are callable as the public function of the same name: `tracekit.render` and `tracekit.compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_module_callable(name: str, function: Callable[..., Any]) -> None:
    """Make the package `name` callable as `function`.

    Importing a package binds it to the attribute of its parent where the function of that name would be.
    """
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function)})
    sys.modules[name].__class__ = kind
