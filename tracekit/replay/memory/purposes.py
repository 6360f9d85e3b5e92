"""Purpose of each piece of memory, as far as a what-if needs it: optimizer state, KV cache, scaling with the micro-batch."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.trace import Trace
from tracekit.process.memory.live import find_allocation_stacks, look_up_sites
from tracekit.process.memory.pools import classify_stacks
from tracekit.process.memory.replay import NEVER, Replay
from tracekit.process.name_filters import look_up_name_codes, mark_wanted_names

Mask = npt.NDArray[np.bool_]

_OF_OPTIMIZER = re.compile(r"(?:^|[/\\])optim(?:izer)?s?[/\\][^/\\]*\.py$")
"""Files of optimizers: torch/optim/adamw.py, megatron/core/optimizer/optimizer.py."""

_SCALING = ("activation", "input")
_FIXED = ("parameter", "optimizer_state", "gradient")
"""Categories of a profiler that scale with the micro-batch, and that do not; others may."""


@dataclass(frozen=True, slots=True, eq=False)
class ScalingPieces:
    """Pieces allocated in the history that scale with the micro-batch: surely, and those that may."""

    sure: Mask
    possible: Mask


def find_pieces_of_site(trace: Trace, replay: Replay, pattern: str) -> Mask:
    """Mark the pieces whose site matches a pattern."""
    site, _, _ = look_up_sites(trace, _find_stacks(trace, replay))
    return mark_wanted_names(site, lambda name: re.search(pattern, name) is not None)


def list_sites(trace: Trace, replay: Replay) -> list[str]:
    """List the sites of a history, that of most bytes first."""
    site, _, _ = look_up_sites(trace, _find_stacks(trace, replay))
    known = site.codes >= 0
    weights = np.bincount(site.codes[known], weights=replay.pieces.size[known], minlength=len(site.texts))
    return [site.texts[code] for code in np.argsort(-weights, kind="stable").tolist() if weights[code] > 0]


def find_optimizer_state(trace: Trace, replay: Replay) -> Mask:
    """Mark the state of optimizers: memory that an optimizer allocated and kept, or that a profiler calls so."""
    stays: Mask = replay.pieces.died == NEVER
    is_state: Mask = _mark_optimizer_stacks(trace, replay) | _mark_categories(trace, replay, ("optimizer_state",))
    return stays & is_state


def find_kv_cache(trace: Trace, replay: Replay) -> Mask:
    """Mark the KV cache of engines, by the frames that allocated it."""
    purposes = trace.derived(classify_stacks)
    of_cache = np.array([stack for stack, purpose in purposes.items() if purpose == "engine KV cache"], np.int64)
    stack = _find_stacks(trace, replay)
    is_cache: Mask = ~stack.missing & np.isin(stack.values, of_cache)
    return is_cache


def find_scaling_pieces(trace: Trace, replay: Replay) -> ScalingPieces:
    """Find the pieces that scale with the micro-batch.

    By category where a profiler recorded one. Without, memory that was freed again, and not for an optimizer, scales; it may be a
    gradient if memory that stays has the same size. After an out-of-memory error, all memory of the history may.
    """
    pieces = replay.pieces
    is_own, stays = pieces.born >= 0, pieces.died == NEVER
    named, fixed = (_mark_categories(trace, replay, names) for names in (_SCALING, _FIXED))
    has_category = named | fixed | _mark_categories(trace, replay, ("temporary", "autograd_detail"))
    is_candidate = is_own & ~fixed & ~_mark_optimizer_stacks(trace, replay)
    if not len(replay.during("oom")):
        is_candidate &= ~stays | named
    is_like_kept = np.isin(pieces.size, np.unique(pieces.size[stays & ~named]))
    sure = is_candidate & (named | (~has_category & ~is_like_kept & ~stays))
    return ScalingPieces(sure, is_candidate & ~sure)


def _find_stacks(trace: Trace, replay: Replay) -> Nullable:
    """Find the stack that allocated each piece."""
    return find_allocation_stacks(trace, replay.pieces.row, replay.pieces.block)


def _mark_optimizer_stacks(trace: Trace, replay: Replay) -> Mask:
    """Mark the pieces that a function of an optimizer allocated."""
    is_frame = mark_wanted_names(trace.texts("stacks", "file"), lambda file: _OF_OPTIMIZER.search(file) is not None)
    of_optimizer = np.unique(trace.numbers("stacks", "stack")[is_frame])
    stack = _find_stacks(trace, replay)
    is_own: Mask = ~stack.missing & np.isin(stack.values, of_optimizer)
    return is_own


def _mark_categories(trace: Trace, replay: Replay, names: tuple[str, ...]) -> Mask:
    """Mark the pieces with a recorded category in `names`."""
    found = np.zeros(len(replay.pieces.born), np.bool_)
    for table, rows in (("allocations", replay.pieces.row), ("blocks", replay.pieces.block)):
        texts = trace.texts(table, "category")
        wanted = [code for code, text in enumerate(texts.texts) if text in names]
        found |= np.isin(look_up_name_codes(texts, rows), wanted) & (rows >= 0)
    return found


def mark_memory_at_peak(replay: Replay) -> Mask:
    """Mark the pieces in use at the recorded peak."""
    at_peak = np.zeros(len(replay.pieces.born), np.bool_)
    at_peak[replay.pieces.live(replay.peak())] = True
    return at_peak


def mark_named_ranges(names: Coded, wanted: str) -> Mask:
    """Mark the annotated ranges of a stage: of this name, or of this name with a number behind `#`."""
    return mark_wanted_names(names, lambda name: name == wanted or name.startswith(f"{wanted}#"))
