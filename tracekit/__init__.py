"""Where the time and the memory of a run went, why, and whether a change helped.

import tracekit
trace = tracekit.load("rank0.pt.trace.json.gz")
trace["device_ops"]                              # a pandas frame
report = tracekit.analyze("outputs/profile")     # a Report
print(tracekit.render(report, "md"))
found = tracekit.compare("base/", "opt/")        # a Comparison
print(found.verdict, tracekit.render(found))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.errors import SchemaError, TraceFormatError, TracekitError
from tracekit.version import VERSION

if TYPE_CHECKING:
    from tracekit.api import analyze, compare
    from tracekit.compare.comparison import Comparison
    from tracekit.loading import load
    from tracekit.pipeline import Options
    from tracekit.render import render
    from tracekit.report import Report
    from tracekit.trace import Measurements, Trace

__version__ = VERSION

_LAZY = {
    "analyze": "tracekit.api",
    "compare": "tracekit.compare",
    "load": "tracekit.loading",
    "render": "tracekit.render",
    "Comparison": "tracekit.compare.comparison",
    "Options": "tracekit.pipeline",
    "Report": "tracekit.report",
    "Trace": "tracekit.trace",
    "Measurements": "tracekit.trace",
}
"""Public names by module: imported at first use, so that `tracekit --version` needs no pandas."""

__all__ = [
    "Comparison",
    "Measurements",
    "Options",
    "Report",
    "SchemaError",
    "Trace",
    "TraceFormatError",
    "TracekitError",
    "__version__",
    "analyze",
    "compare",
    "load",
    "render",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
