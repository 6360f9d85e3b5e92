"""Profile capture for Ray training jobs, configured as verl is.

What stands so far is the configuration: the dataclasses of ``verl.utils.profiler.config`` with
the same names, fields, defaults and checks, see `capture.config`. They need nothing but Python,
so a driver that only reads its configuration pays for neither torch nor Ray.

The package writes profiles and tracekit reads them; they share files, never code.

>>> config = ProfilerConfig(tool="torch", enable=True, ranks=[0], save_path="outputs/profile")
>>> config["tool"], config.get("ranks"), "steps" in config
('torch', [0], False)
>>> config.union(ProfilerConfig(tool="torch", ranks=[4])).ranks
[0, 4]
"""

from capture.config import (
    BaseConfig,
    NsightToolConfig,
    ProfilerConfig,
    TorchMemoryToolConfig,
    TorchProfilerScheduleConfig,
    TorchProfilerToolConfig,
)

__all__ = [
    "BaseConfig",
    "NsightToolConfig",
    "ProfilerConfig",
    "TorchMemoryToolConfig",
    "TorchProfilerScheduleConfig",
    "TorchProfilerToolConfig",
]
