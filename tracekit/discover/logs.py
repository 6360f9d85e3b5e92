"""Search for the driver's log of a profile: next to its directory, or next to the `outputs` around it."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tracekit.discover.arguments import FoundFile, PathArgument, is_outside_folders
from tracekit.discover.log_places import MOST_LOGS, STEPS_UP, is_output_folder, may_be_log
from tracekit.model.inputs.note_codes import Data
from tracekit.model.inputs.sources import Note
from tracekit.model.text.labels import make_displayable, make_natural_key

T = TypeVar("T")


def find_nearest_log(
    argument: PathArgument, exclude: Sequence[str], look: Callable[[FoundFile], T | None], within: Sequence[str] = ()
) -> tuple[FoundFile, T] | Note | None:
    """Find the only log above the argument's directory, with the result of `look`. Returns a note if it is ambiguous.

    The search moves up only from a directory named like a run's output. `look` returns
    None for files that are not logs; a single JSON-lines log is preferred to console logs of the same run. With `within`,
    the search and links never leave these directories.
    """
    folder, up = argument.base, tuple[str, ...]()
    while len(argument.entries) == 1 and len(up) < STEPS_UP and is_output_folder(folder.name):
        folder, up = folder.parent, (*up, "..")
        if is_outside_folders(folder, within):
            return None
        logs: list[tuple[FoundFile, T]] = []
        for file in _list_log_candidates(folder, up, exclude):
            if is_outside_folders(file.path, within):
                continue
            sight = look(file)
            if sight is not None:
                logs.append((file, sight))
        json_lines = [log for log in logs if ".jsonl" in log[0].path.suffixes]
        for candidates in (json_lines, logs):
            if len(candidates) == 1:
                return candidates[0]
        if logs:
            message = f"{len(logs)} driver logs lie here: name the one that belongs to the profile"
            return Note("info", "log", message, make_displayable(str(folder)), data=Data(files=len(logs)))
    return None


def _list_log_candidates(folder: Path, up: tuple[str, ...], exclude: Sequence[str]) -> list[FoundFile]:
    """List the files of a directory named like logs, in natural order. Empty if it cannot be read."""
    files: list[FoundFile] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                excluded = any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in exclude)
                if may_be_log(entry.name) and entry.is_file() and not excluded:
                    status = entry.stat()
                    identity = (status.st_size, status.st_mtime_ns, status.st_ino)
                    files.append(FoundFile(folder / entry.name, (*up, entry.name), *identity))
    except OSError:
        return []
    return sorted(files, key=lambda file: make_natural_key(file.parts[-1]))[:MOST_LOGS]
