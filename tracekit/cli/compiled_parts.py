"""Find the optional C parts that could not be built or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

COMPILED_PARTS: Mapping[str, str] = {
    "tracekit.model._sweeps": "sums over intervals",
    "tracekit.process.memory.allocator._allocator": "what-ifs about memory",
    "tracekit.readers.chrome._scan": "torch traces",
    "tracekit.readers.nsys._pages": "nsys databases",
    "tracekit.readers.torch_memory._harmless": "memory snapshots",
    "tracekit.readers.torch_memory._records": "memory snapshots",
    "tracekit.replay._paths": "what-if predictions",
}
"""The compiled modules and the work each speeds up; Python code replaces a missing one."""

REMEDY = "install a C compiler and Python's headers, then install tracekit again"


def find_missing_parts() -> dict[str, str]:
    """Return the compiled modules that cannot be loaded, with reasons."""
    missing: dict[str, str] = {}
    for name in COMPILED_PARTS:
        try:
            import_module(name)
        except ImportError as error:
            is_absent = isinstance(error, ModuleNotFoundError)
            missing[name] = "not built" if is_absent else f"cannot be loaded: {error}"
    return missing


def describe_missing_parts() -> str:
    """Name the missing compiled parts and the work they slow down in one sentence; empty where none is missing."""
    missing = find_missing_parts()
    if not missing:
        return ""
    slower = ", ".join(dict.fromkeys(COMPILED_PARTS[name] for name in missing))
    reasons = "; ".join(f"{name} {reason}" for name, reason in missing.items())
    return f"{len(missing)} of {len(COMPILED_PARTS)} compiled parts are missing, so {slower} take longer: {reasons}"
