"""Logs that a run writes about itself, as the NeMo-RL guide sketches them and in their correct form.

`MemoryProfiler` logs the memory of every GPU, `MetricsLogger` a step's times and how busy the machine
was, `PerformanceCounter` measures named pieces of code, and `profile_model` traces a few batches. The
logs are JSON lines, which `tracekit analyze` reads beside the traces.
"""

from capture.metrics.counters import PerformanceCounter
from capture.metrics.memory_log import MemoryProfiler
from capture.metrics.model_trace import profile_model
from capture.metrics.step_log import MetricsLogger

__all__ = ["MemoryProfiler", "MetricsLogger", "PerformanceCounter", "profile_model"]
