"""List the CPU cores that this process may use, for its manifest: ranks that share cores slow each other down."""

from __future__ import annotations

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def list_cores(groups: Path = _GROUPS) -> str | None:
    """List the cores of the affinity mask (`0-3,8`), as many as the CPU quota of the container allows; None if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    quota = _read_quota(groups)
    # All processes of a container share its quota: each lists the same cores.
    return format_cores(cores if quota is None else cores[: max(1, math.ceil(quota))])


def format_cores(cores: list[int]) -> str:
    """Format sorted numbers as ranges.

    >>> format_cores([0, 1, 2, 8])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _read_quota(groups: Path) -> float | None:
    """Read the CPU quota at the root of the mounted control groups, in cores; None without a limit."""
    for names in _QUOTAS:
        try:
            words = " ".join((groups / name).read_text(encoding="utf-8") for name in names).split()
            quota, period = (int(word) for word in words)
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
