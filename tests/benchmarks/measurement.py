"""What one timed call took, printed as one JSON line: shared by the Python peers.

Standard library only, because each peer runs it in an environment of its own. MB are 1e6 bytes.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def memory_mb(field: str) -> float:
    """A size of this process in MB: `VmRSS` is resident now, `VmHWM` the most it ever was."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(field)


def forget_peak() -> None:
    """Let `VmHWM` start again at what is resident now, so that imports do not count."""
    with contextlib.suppress(OSError):  # kernels without it: the peak of the imports stays in
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def cpu_seconds() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(call: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """What `call` returned, and its wall seconds, CPU seconds and peak memory above the start."""
    forget_peak()
    resident = memory_mb("VmRSS")
    cpu = cpu_seconds()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    return result, {
        "seconds": round(seconds, 4),
        "cpu": round(cpu_seconds() - cpu, 4),
        "peak_mb_net_of_imports": round(memory_mb("VmHWM") - resident, 1),
    }


def write_line(figures: dict[str, float], **check: object) -> None:
    """Print figures and check values as one line of JSON."""
    sys.stdout.write(json.dumps(figures | check) + "\n")
