"""Comparison of two sides, each one or more runs: speedups, their confidence, and their causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tracekit.model.display import import_display, make_module_callable

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison

__all__ = ["compare"]


def compare(base: Any, opt: Any, **options: Any) -> Comparison:
    """Compare two sides with `tracekit.pipeline.compare`.

    The function is looked up at call time, because the pipeline that reads paths depends on this package.
    """
    return cast("Comparison", import_display().compare(base, opt, **options))


make_module_callable(__name__, compare)
