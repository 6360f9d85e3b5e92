"""Log of a run's steps: their times, utilisation of the machine, and values of the caller."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

from capture.metrics.json_lines import JsonLines

log = logging.getLogger("capture")


class MetricsLogger:
    """Logs a row a step: `{"step", "time", "data": {"timing_s/step", "cpu/…", "gpu/0/…", "training/…"}}`.

    The CPU is read through psutil and all GPUs through NVML, where they are installed; what cannot be
    read is left out. `path`: the JSON lines to append to, None for none.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._file = JsonLines(path)
        self._lock = threading.Lock()
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._steps: set[int] = set()
        self._cpu = _cpu()
        self._begun = self._last = time.perf_counter()

    def log_metrics(
        self,
        step: int,
        *,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        num_parameters: int | None = None,
        trainable_parameters: int | None = None,
        timings: Mapping[str, float] | None = None,
        **more: float | None,
    ) -> dict[str, float]:
        """Log the numbers of the step that ends now. Never raises.

        `timing_s/step` is the time since the last call, or since this object was created. `timings` are seconds
        by stage (such as the dictionary of a `marked_timer`); `more` keep their own names.
        """
        with self._lock:
            now = time.perf_counter()
            numbers: dict[str, float | None] = {"timing_s/step": now - self._last}
            self._last = now
            numbers |= {f"timing_s/{name}": value for name, value in (timings or {}).items()}
            numbers |= {
                "training/learning_rate": learning_rate,
                "training/batch_size": batch_size,
                "training/num_parameters": num_parameters,
                "training/trainable_parameters": trainable_parameters,
            }
            numbers |= dict(self._read()) | more
            finite: dict[str, float] = {}
            for name, value in numbers.items():
                if _is_finite(value):
                    finite[name] = value
                    self._seen[name].append(value)
            self._steps.add(step)
        self._file.append({"step": step, "time": time.time(), "data": finite})
        return finite

    def generate_report(self) -> dict[str, Any]:
        """`total_steps`, `total_time` in seconds, and of every number its mean and greatest value by name."""
        with self._lock:
            return {
                "total_steps": len(self._steps),
                "total_time": self._last - self._begun,
                "avg": {name: math.fsum(seen) / len(seen) for name, seen in self._seen.items()},
                "max": {name: max(seen) for name, seen in self._seen.items()},
            }

    def _read(self) -> Iterator[tuple[str, float]]:
        """Read the current machine metrics."""
        if self._cpu is not None:
            with suppress(Exception):  # a container may hide any of it
                yield "cpu/utilisation_percent", self._cpu.cpu_percent()
                memory = self._cpu.virtual_memory()
                yield "cpu/memory_used_percent", memory.percent
                yield "cpu/memory_used_bytes", memory.total - memory.available
        yield from _gpus()


def _is_finite(value: object) -> TypeGuard[float]:
    """Check whether a value is a number that a log can contain."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _cpu() -> Any:
    """Import psutil and start its CPU measurement; None if it is not installed."""
    try:
        psutil: Any = import_module("psutil")
    except ImportError:
        return None
    psutil.cpu_percent()  # the first value is always 0.0
    return psutil


def _gpus() -> Iterator[tuple[str, float]]:
    """Yield utilisation and memory of every GPU that NVML knows; empty without NVML."""
    try:
        pynvml: Any = import_module("pynvml")
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception:  # noqa: BLE001 - not installed, or no driver
        return
    try:
        for number in range(count):
            with suppress(Exception):  # a GPU in MIG mode has no utilisation
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                yield f"gpu/{number}/memory_used_bytes", memory.used
                busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                yield f"gpu/{number}/utilisation_percent", busy
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()
