"""What torch.profiler records beside operators and kernels, where this torch can: little cost, many explanations.

torch has these as keywords of `_ExperimentalConfig`. Its versions know different ones, and their order changes: each is
tried by its name, once.
"""

from __future__ import annotations

import functools
from collections.abc import Set as AbstractSet
from typing import Any


def extra_recording(contents: AbstractSet[str], *, all_threads: bool) -> dict[str, bool]:
    """The keywords that this torch accepts, of those that suit the contents of a trace.

    `enable_cuda_sync_events` adds rows for what a stream, an event or the host waits for. `record_python_gc_info` adds
    garbage collections, and does nothing without stacks.
    """
    wanted = {
        "profile_all_threads": all_threads,
        "enable_cuda_sync_events": not contents or "cuda" in contents,
        "record_python_gc_info": "stack" in contents,
    }
    return {name: True for name, is_wanted in wanted.items() if is_wanted and _is_known(name)}


def experimental_config(options: dict[str, bool]) -> dict[str, Any]:
    """The argument of `torch.profiler.profile` that asks for them; empty where nothing is asked for."""
    return {"experimental_config": _config_class()(**options)} if options else {}


@functools.cache
def _is_known(name: str) -> bool:
    """Whether this torch has the keyword."""
    try:
        _config_class()(**{name: True})
    except (ImportError, TypeError):
        return False
    return True


def _config_class() -> Any:
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig
