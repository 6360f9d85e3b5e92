"""Optional C extensions: which are in use, and which are missing and why."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

PARTS: Mapping[str, str] = {
    "tracekit.model._sweeps": "sums over intervals",
    "tracekit.readers.chrome._scan": "torch traces",
    "tracekit.readers.nsys._pages": "nsys databases",
    "tracekit.readers.torch_memory._harmless": "memory snapshots",
    "tracekit.readers.torch_memory._records": "memory snapshots",
}
"""The compiled modules and what each accelerates; without one, Python code does the same."""

REMEDY = "install a C compiler and Python's headers, then install tracekit again"


def missing_parts() -> dict[str, str]:
    """Find the compiled modules that cannot be loaded, with reasons."""
    missing: dict[str, str] = {}
    for name in PARTS:
        try:
            import_module(name)
        except ImportError as error:
            is_absent = isinstance(error, ModuleNotFoundError)
            missing[name] = "not built" if is_absent else f"cannot be loaded: {error}"
    return missing


def missing_phrase() -> str:
    """Describe the missing compiled modules and their effect in one sentence; empty if all are in use."""
    missing = missing_parts()
    if not missing:
        return ""
    slower = ", ".join(dict.fromkeys(PARTS[name] for name in missing))
    reasons = "; ".join(f"{name} {reason}" for name, reason in missing.items())
    return f"{len(missing)} of {len(PARTS)} compiled parts are missing, so {slower} take longer: {reasons}"
