"""Logs of several runs in one directory: a file per seed, which discovery takes for one run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tracekit.discover import Discovery
from tracekit.discover.runs import number_repeated_names
from tracekit.job.log_files import LogGroup, group_log_files
from tracekit.model.inputs.note_codes import Data
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.frame import Frame
from tracekit.model.text.labels import choose_plural, join_first_few, make_displayable
from tracekit.model.trace import Note
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource

LOGGED_RUNS_CODE = "log-runs"
_MAX_NAMED_RUNS = 4
_LOG_SUFFIX = re.compile(r"(?<=.)\.(?:jsonl|log|out|txt|wandb)(?:\.gz|\.zst)?\Z")


def split_logged_runs(discovery: Discovery, parts: Sequence[MeasuredSource]) -> tuple[dict[str, str], list[Note]]:
    """Split directories with logs of several runs: (new run of each source that changes its run, notes).

    Directories that also have profiles, and runs labelled by the user, stay as they are.
    """
    new_runs: dict[str, str] = {}
    notes: list[Note] = []
    used = list(dict.fromkeys(part.source.run for part in parts))
    for run in _list_runs_of_logs(discovery, parts):
        logged = _concatenate_logged_rows(parts)
        groups = group_log_files(logged.filter(logged.equals("run", run)))
        for group in groups:
            if len(group.parts) > 1:
                notes.append(_note_restart(run, group))
        if len(groups) < 2:
            continue
        names = [make_displayable(_LOG_SUFFIX.sub("", group.parts[0].rpartition("/")[2])) for group in groups]
        names = number_repeated_names([*used, *names])[len(used) :]
        used += names
        for name, group in zip(names, groups, strict=True):
            new_runs.update(dict.fromkeys(group.sources, name))
        notes.append(_note_logged_runs(run, groups, names))
    return new_runs, notes


def _list_runs_of_logs(discovery: Discovery, parts: Sequence[MeasuredSource]) -> list[str]:
    """List the runs of several logs and no profile, unless the user labelled them."""
    profiled = {part.source.run for part in parts if part.source.tool != "log"} | discovery.labelled
    counts = Counter(part.source.run for part in parts)
    return [run for run, count in counts.items() if count > 1 and run not in profiled]


def _concatenate_logged_rows(parts: Sequence[MeasuredSource]) -> Frame:
    """Concatenate the logged values of all sources."""
    rows: list[Columns] = [tables["logged"] for part in parts for tables in part.tables.values() if "logged" in tables]
    return Frame.from_columns(concatenate_table_parts(TABLES["logged"], rows))


def _note_restart(run: str, group: LogGroup) -> Note:
    """Make the note on a restarted run with a file per start."""
    count = len(group.parts)
    message = f"{count:,} logs of {run} are starts of one run: joined as parts, the last of each step counts"
    return Note("info", "log-joined", message, group.parts[0], count)


def _note_logged_runs(run: str, groups: Sequence[LogGroup], names: Sequence[str]) -> Note:
    """Make the note on a directory with logs of several runs."""
    count = sum(len(group.sources) for group in groups)
    message = (
        f"{count:,} {choose_plural(count, 'log')} of {run} have other values in the same steps: shown as {len(names):,} runs "
        f"({join_first_few(names, _MAX_NAMED_RUNS)})"
    )
    return Note("info", LOGGED_RUNS_CODE, message, run, count, data=Data(runs=tuple(names)))
