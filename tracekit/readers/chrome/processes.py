"""Files with several processes: merged ranks are split, ranks that overwrote each other are detected.

SGLang's `merge_profiles` prefixes each pid with a label: `[TP00]`, `[TP01-DP02-PP03-EP04]` … Ids of
launches, devices and streams repeat between ranks, so each rank becomes a trace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import INTERLEAVED, MERGED_RANKS, Data
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.keys import find_distinct
from tracekit.model.text.labels import join_first_few
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Note
from tracekit.readers.chrome.classes import CLASS_CODE
from tracekit.readers.chrome.scan import Codes, Sparse
from tracekit.readers.chrome.tables import ChromeRows
from tracekit.readers.device_times import KERNEL_LAUNCH, LaunchCalls

Mask = npt.NDArray[np.bool_]

_LABELLED = compile_lazily(r"\[((?:[A-Z]{2,4}[0-9]{1,6})(?:-[A-Z]{2,4}[0-9]{1,6})*)\] ?(.*)")
_PART = compile_lazily(r"([A-Z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class MergedRank:
    """One rank of a merged file: its label as written, its number, and its position in the parallel layout."""

    label: str
    number: int
    topology: str


@dataclass(frozen=True, slots=True)
class MergedPids:
    """Ranks of a merged file, the index of the rank of each pid code (-1: none), and the pids without labels."""

    ranks: tuple[MergedRank, ...]
    rank_of_pid: npt.NDArray[np.int64]
    pids: tuple[Any, ...]


def find_rank_labels(pid: Codes) -> MergedPids | None:
    """Parse the rank labels of pids; None for a file of one rank, whose pids have none."""
    matches = [_LABELLED.fullmatch(value) if isinstance(value, str) else None for value in pid.values]
    labels = sorted({match[1] for match in matches if match is not None})
    if not labels:
        return None
    places = {label: place for place, label in enumerate(labels)}
    rank_of_pid = [places[match[1]] if match is not None else -1 for match in matches]
    pids = [value if match is None else match[2] for value, match in zip(pid.values, matches, strict=True)]
    return MergedPids(_number_merged_ranks(labels), np.array([*rank_of_pid, -1], np.int64), tuple(pids))


def _number_merged_ranks(labels: Sequence[str]) -> tuple[MergedRank, ...]:
    """Assign a number to each labelled rank.

    The number is the tensor rank if these differ. Otherwise ranks are counted in the order of the engines:
    pipeline, data, then tensor rank.
    """
    layouts = [{dim: int(number) for dim, number in _PART.findall(label)} for label in labels]
    tensor_ranks = [layout.get("TP", -1) for layout in layouts]
    if len(set(tensor_ranks)) == len(labels) and min(tensor_ranks) >= 0:
        numbers = tensor_ranks
    else:
        keys = [[layout.get(dim, 0) for dim in ("PP", "DP", "TP", "CP", "EP")] for layout in layouts]
        order = sorted(range(len(labels)), key=keys.__getitem__)
        numbers = [number for _, number in sorted(zip(order, range(len(order)), strict=True))]
    topologies = ["-".join(f"{dim.lower()}{place}" for dim, place in layout.items()) for layout in layouts]
    return tuple(MergedRank(*rank) for rank in zip(labels, numbers, topologies, strict=True))


def select_rank_rows(rows: ChromeRows, is_kept: Mask) -> ChromeRows:
    """Select the rows of one rank: ignore all others, and drop their threads and arguments."""
    classes = np.where(is_kept, rows.classes, np.int8(CLASS_CODE["ignored"])).astype(np.int8)
    used = np.zeros(len(rows.thread_process), np.bool_)
    used[rows.thread[is_kept]] = True
    renumber = np.zeros(len(used), rows.thread.dtype)
    renumber[used] = np.arange(np.count_nonzero(used))
    threads = used.nonzero()[0]
    return replace(
        rows,
        times=dict(rows.times),
        labels=dict(rows.labels),
        made={},
        classes=classes,
        thread=renumber[rows.thread],
        thread_pid=select_rows(rows.thread_pid, threads),
        thread_tid=select_rows(rows.thread_tid, threads),
        thread_process=rows.thread_process[threads],
        args=_filter_sparse_columns(rows.args, is_kept),
        fields=_filter_sparse_columns(rows.fields, is_kept),
    )


def note_merged_ranks(ranks: Sequence[MergedRank], source: str) -> Note:
    """Make the note on a file that was split into these ranks."""
    labels = tuple(rank.label for rank in ranks)
    message = f"holds {len(ranks):,} merged ranks, read as one process each: {join_first_few(labels, 8)}"
    return Note("info", MERGED_RANKS, message, source, len(ranks), data=Data(ranks=labels))


MOST_REPEATED = 0.01
"""Largest share of repeated launch ids that damage may explain: it can turn one id into another."""


def find_interleaved_processes(calls: LaunchCalls, source: str) -> Note | None:
    """Make the note on a damaged file whose launches come from two processes; None for one process.

    A process numbers its launches. Two processes that write to one file leave the same ids twice, or two pids.
    """
    is_launch = calls.named(KERNEL_LAUNCH)
    ids, pids = calls.correlation[is_launch], calls.pid()[is_launch]
    repeated = len(ids) - len(find_distinct(ids))
    if repeated <= MOST_REPEATED * len(ids) and len(find_distinct(pids)) < 2:
        return None
    message = f"two processes wrote this file at the same time: {repeated:,} launch ids occur twice, no figure is sound"
    return Note("data_loss", INTERLEAVED, message, source, data=Data(repeated=repeated))


def _filter_sparse_columns(columns: Mapping[str, Sparse], is_kept: Mask) -> dict[str, Sparse]:
    """Filter sparse columns by row; columns that become empty are left out."""
    chosen: dict[str, Sparse] = {}
    for name, column in columns.items():
        places = is_kept[column.rows].nonzero()[0]
        if len(places):
            chosen[name] = replace(column, rows=column.rows[places], values=column.values[places])
    return chosen
