"""Possible locations of a driver's log, by names alone: how far above the profile, and in which files."""

from __future__ import annotations

import re

MOST_LOGS = 100
"""Most files of one directory that are checked."""

STEPS_UP = 2

_PROFILE_FOLDER = re.compile(r"(?:torch_|nsys_)?(?:profil[a-z]*|traces?)|outputs?|logs?", re.IGNORECASE)
_LOG_NAME = re.compile(r"[^.].*\.(?:jsonl|log|out|txt)(?:\.gz)?\Z", re.DOTALL)


def is_output_folder(folder: str) -> bool:
    """Check whether a directory is named like a run's output, so the log may be above it.

    >>> is_output_folder("outputs"), is_output_folder("torch_profile"), is_output_folder("run1")
    (True, True, False)
    """
    return bool(_PROFILE_FOLDER.fullmatch(folder))


def may_be_log(name: str) -> bool:
    """Check whether a file is named like a driver's log."""
    return bool(_LOG_NAME.match(name))
