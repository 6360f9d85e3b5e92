"""Profile capture for Ray training jobs: verl's profiler, and NeMo-RL's, without their defects.

A verl run switches to it by ``VERL_USE_EXTERNAL_MODULES=capture.verl``, with nothing edited, or by importing
`DistProfiler` and `DistProfilerExtension` from here; names, arguments and file names are those of verl
0.9.1. Any other Ray job uses `capture.ray`. `capture.run_config` reads a whole configuration,
`capture.nemo` NeMo-RL's variables, and `capture.metrics` writes logs. What belongs to verl's engines
(NPU, precision debugger, rollout servers) is verl's own, under its name here where verl is installed.

Importing this imports nothing but Python; torch, nvtx and Ray are imported when they are used. The
package writes profiles and tracekit reads them; they share files, never code.

>>> config = ProfilerConfig(tool="torch", enable=True, ranks=[0], save_path="outputs/profile")
>>> config["tool"], config.get("ranks"), "steps" in config
('torch', [0], False)
>>> config.union(ProfilerConfig(tool="torch", ranks=[4])).ranks
[0, 4]
"""

from typing import Any

from capture.config import (
    BaseConfig,
    NsightToolConfig,
    ProfilerConfig,
    TorchMemoryToolConfig,
    TorchProfilerScheduleConfig,
    TorchProfilerToolConfig,
)
from capture.extension import DistProfilerExtension
from capture.marks import mark_annotate, mark_end_range, mark_start_range, marked_timer, simple_timer
from capture.profiler import DistProfiler

__all__ = [
    "BaseConfig",
    "DistProfiler",
    "DistProfilerExtension",
    "NsightToolConfig",
    "ProfilerConfig",
    "TorchMemoryToolConfig",
    "TorchProfilerScheduleConfig",
    "TorchProfilerToolConfig",
    "mark_annotate",
    "mark_end_range",
    "mark_start_range",
    "marked_timer",
    "simple_timer",
]

_OF_VERL = {
    "GPUMemoryLogger": "verl.utils.profiler",
    "NPUToolConfig": "verl.utils.profiler.config",
    "PrecisionDebuggerToolConfig": "verl.utils.profiler.config",
    "build_rollout_dist_profiler": "verl.utils.profiler",
    "build_sglang_profiler_args": "verl.utils.profiler",
    "build_vllm_profiler_args": "verl.utils.profiler",
    "log_gpu_memory_usage": "verl.utils.profiler",
    "relocate_rollout_traces": "verl.utils.profiler",
    "rollout_profiler_global_ranks": "verl.utils.profiler",
    "rollout_trace_dir": "verl.utils.profiler",
    "rollout_trace_local_rank": "verl.utils.profiler",
}
"""Names that verl implements, by the module that defines them."""


def __getattr__(name: str) -> Any:
    module = _OF_VERL.get(name)
    if module is None:
        raise AttributeError(f"module 'capture' has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise AttributeError(f"capture.{name} comes from verl, and verl cannot be imported") from error
