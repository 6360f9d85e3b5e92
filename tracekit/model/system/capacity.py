"""CPU cores and memory available to this process, including container limits (cgroup v1 and v2).

Each function takes the root of the file system, so a test can lay out any machine.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as the largest multiple of a page; any value from here on means no limit."""


LARGE_FILE_BYTES = 2**20
"""File size from which several cores save more time than threads cost."""

_SHARE: ContextVar[int | None] = ContextVar("_SHARE", default=None)


def count_own_cores() -> int:
    """Count the cores that work on one file may use: this process's cores, or its share of them."""
    share = _SHARE.get()
    if share == 1:
        return 1
    return count_cores() if share is None else min(share, count_cores())


@contextmanager
def limit_cores(count: int) -> Iterator[None]:
    """Limit work on one file within the context to `count` cores."""
    before = _SHARE.set(count)
    try:
        yield
    finally:
        _SHARE.reset(before)


def count_cores(root: Path = _ROOT) -> int:
    """Count the cores this process may run on: its affinity mask, capped by the CPU quota of its container."""
    count = getattr(os, "process_cpu_count", _count_affinity_cores)() or 1
    for group in _list_control_groups(root, "cpu"):
        quota = _read_cpu_quota(group)
        if quota is not None:
            count = min(count, math.ceil(quota))
    return max(1, int(count))


def read_available_memory(root: Path = _ROOT) -> int | None:
    """Compute the memory this process can still take without swapping or being killed; None if unknown."""
    free = _read_meminfo_available(root)
    if free is None:
        free = _read_sysconf_memory()
    limits = (free, *(_compute_memory_headroom(group) for group in _list_control_groups(root, "memory")))
    return min((limit for limit in limits if limit is not None), default=None)


def _count_affinity_cores() -> int:
    """Count the cores in the affinity mask, or all cores if the system has no such mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _list_control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups (v2 and v1) that limit this process, innermost first.

    In a container the recorded path may be outside of the mount; its ancestors still count.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read_small_file(root / "proc/self/cgroup").splitlines():
        _, _, fields = line.partition(":")
        names, _, path = fields.partition(":")
        if names == "":
            bases = [mount, mount / "unified"]
        elif controller in names.split(","):
            bases = [mount / controller, mount / names]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for base in bases:
            for folder in (inner, *inner.parents):
                if ".." not in folder.parts and (base / folder).is_dir():
                    yield base / folder


def _read_cpu_quota(group: Path) -> float | None:
    """Read the CPU quota of a control group, in cores; None if it sets no limit."""
    parts = _read_small_file(group / "cpu.max").split()
    if len(parts) != 2:
        parts = [
            *_read_small_file(group / "cpu.cfs_quota_us").split(),
            *_read_small_file(group / "cpu.cfs_period_us").split(),
        ]
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _compute_memory_headroom(group: Path) -> int | None:
    """Compute the bytes left below a control group's memory limit; reclaimable file pages do not count as used."""
    limit = _read_first_integer(group / "memory.max", group / "memory.limit_in_bytes")
    used = _read_first_integer(group / "memory.current", group / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _UNLIMITED:
        return None
    stat = _read_small_file(group / "memory.stat")
    cached = re.search(r"^total_inactive_file (\d+)$", stat, re.MULTILINE) or re.search(
        r"^inactive_file (\d+)$", stat, re.MULTILINE
    )
    if cached:
        used = max(0, used - int(cached[1]))
    return max(0, limit - used)


def _read_meminfo_available(root: Path) -> int | None:
    """Read `MemAvailable` from /proc/meminfo in bytes; None on other systems."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read_small_file(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _read_sysconf_memory() -> int | None:
    """Read the free physical memory from sysconf, else the total; None if the system reports neither."""
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            pages, size = os.sysconf(name), os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
        if pages > 0 and size > 0:
            return pages * size
    return None


def _read_first_integer(*paths: Path) -> int | None:
    """Read the integer in the first of `paths` that contains one."""
    for path in paths:
        text = _read_small_file(path).strip()
        if text.isdigit():
            return int(text)
    return None


def _read_small_file(path: Path) -> str:
    """Read a small file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
