"""Two sides, each one or more runs: what became faster or slower, how surely, and where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tracekit.model.callable_module import make_callable
from tracekit.model.display import display

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison

__all__ = ["compare"]


def compare(base: Any, opt: Any, **options: Any) -> Comparison:
    """As `tracekit.pipeline.compare`, which is looked up now: the paths are read by what stands above this package."""
    return cast("Comparison", display().compare(base, opt, **options))


make_callable(__name__, compare)
