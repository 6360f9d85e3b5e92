"""Logs that a run writes about itself, as in the NeMo-RL guide, with its errors corrected.

`MemoryProfiler` logs the memory of every GPU, `MetricsLogger` step times and utilisation of the
machine, `PerformanceCounter` measures named pieces of code, and `profile_model` traces a few batches. The
logs are JSON lines, which `tracekit analyze` reads together with the traces.
"""

from capture.metrics.counters import PerformanceCounter
from capture.metrics.memory_log import MemoryProfiler
from capture.metrics.model_trace import profile_model
from capture.metrics.step_log import MetricsLogger

__all__ = ["MemoryProfiler", "MetricsLogger", "PerformanceCounter", "profile_model"]
