"""Enable cheap extra recording of torch.profiler, where this torch supports it.

The options are keywords of `_ExperimentalConfig`. They differ between torch versions, and so does their order, so each is
tried once by name.
"""

from __future__ import annotations

import functools
from collections.abc import Set as AbstractSet
from typing import Any


def extra_recording(contents: AbstractSet[str], *, all_threads: bool) -> dict[str, bool]:
    """Return the keywords that this torch accepts and that suit the contents of a trace.

    `enable_cuda_sync_events` adds rows for waits of streams, events and the host. `record_python_gc_info` adds
    garbage collections, and has no effect without stacks.
    """
    wanted = {
        "profile_all_threads": all_threads,
        "enable_cuda_sync_events": not contents or "cuda" in contents,
        "record_python_gc_info": "stack" in contents,
    }
    return {name: True for name, is_wanted in wanted.items() if is_wanted and _is_known(name)}


def experimental_config(options: dict[str, bool]) -> dict[str, Any]:
    """Return the options as an argument of `torch.profiler.profile`; empty without options."""
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
