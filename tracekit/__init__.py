"""Time and memory of RL training runs: where a step spends them, why, and whether a change helped.

import tracekit
trace = tracekit.load("rank0.pt.trace.json.gz")
trace["device_ops"]                              # the events of one process, as pandas frames
report = tracekit.analyze("outputs/profile")     # a Report; a notebook renders it
report.tables["kernels"]                         # the tables of the report, as pandas frames
measured = tracekit.measure("outputs/profile")
measured.tables["kernels"]                       # the tables behind it: every process and step
print(tracekit.render(report, "md"))
change = tracekit.compare("base/", "opt/")       # a Comparison
print(change.verdict, tracekit.render(change))
what_if = tracekit.whatif("outputs/profile", "unwait by=aten::item")   # the predicted step, as a Report
peak = tracekit.whatif_memory("snapshot.pickle", "expandable")         # the predicted peak memory, as a Report
tracekit.cut("outputs/profile", "small.json.gz", finding=1, anonymize=True)   # to attach to an issue
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.model.display import Display, install_display
from tracekit.model.errors import SchemaError, TraceFormatError, TracekitError
from tracekit.model.system.installed import require_alone
from tracekit.model.version import VERSION

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison
    from tracekit.model.report import Report
    from tracekit.model.trace import Measurements, Trace
    from tracekit.pipeline import analyze, compare, cut, measure, whatif, whatif_memory
    from tracekit.pipeline.options import Options
    from tracekit.readers.loading import load, load_all
    from tracekit.render import render

__version__ = VERSION

_LAZY = {
    "analyze": "tracekit.pipeline",
    "compare": "tracekit.pipeline",
    "cut": "tracekit.pipeline",
    "load": "tracekit.readers.loading",
    "load_all": "tracekit.readers.loading",
    "measure": "tracekit.pipeline",
    "render": "tracekit.render",
    "whatif": "tracekit.pipeline",
    "whatif_memory": "tracekit.pipeline",
    "Comparison": "tracekit.compare.comparison",
    "Options": "tracekit.pipeline.options",
    "Report": "tracekit.model.report",
    "Trace": "tracekit.model.trace",
    "Measurements": "tracekit.model.trace",
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
    "cut",
    "load",
    "load_all",
    "measure",
    "render",
    "whatif",
    "whatif_memory",
]


def _load_display() -> Display:
    """Import the functions that draw values."""
    from tracekit.pipeline import display

    return display


install_display(_load_display)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _LAZY:
        from tracekit.model.text.labels import did_you_mean

        raise AttributeError(f"module 'tracekit' has no attribute {name!r}{did_you_mean(name, __all__)}")
    require_alone()
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """List the public names, which are imported at first use."""
    return sorted({*globals(), *__all__})
