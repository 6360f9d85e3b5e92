"""Where the driver's log of a profile may lie, by names alone: how far above it, and in which files."""

from __future__ import annotations

import re

MOST_LOGS = 100
"""So many files of one directory are looked at."""

STEPS_UP = 2

_PROFILE_FOLDER = re.compile(
    r"(?:torch_|nsys_)?(?:profil[a-z]*|traces?)|outputs?|logs?", re.IGNORECASE
)
_LOG_NAME = re.compile(r"[^.].*\.(?:jsonl|log|out|txt)(?:\.gz)?\Z", re.DOTALL)


def holds_output(folder: str) -> bool:
    """Whether the name of a directory says that it holds output of a run, so that the log may lie above it.

    >>> holds_output("outputs"), holds_output("torch_profile"), holds_output("run1")
    (True, True, False)
    """
    return bool(_PROFILE_FOLDER.fullmatch(folder))


def may_be_log(name: str) -> bool:
    """Whether a file of this name may be a driver's log."""
    return bool(_LOG_NAME.match(name))
