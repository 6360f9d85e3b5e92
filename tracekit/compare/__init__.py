"""Two sides, each one or more runs: what became faster or slower, how surely, and where it came from."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison

__all__ = ["compare"]


def compare(base: Any, opt: Any, **options: Any) -> Comparison:
    """As `tracekit.pipeline.compare`, which is looked up now: the paths are read by what stands above this package."""
    return cast("Comparison", import_module("tracekit.pipeline").compare(base, opt, **options))


class _CallableModule(ModuleType):
    """This module, which can be called: `tracekit.compare` is the package and the public function."""

    def __call__(self, base: Any, opt: Any, **options: Any) -> Comparison:
        """As `compare`: importing the package puts it where `tracekit.compare(base, opt)` looks."""
        return compare(base, opt, **options)


sys.modules[__name__].__class__ = _CallableModule
