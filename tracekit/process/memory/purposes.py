"""Purposes of memory by call stacks: parameters, gradients, optimizer state, activations and temporary memory.

The stack names the part of the program that asked, and the lifetime decides the rest: memory that a backward pass asks for
and that outlives the pass is a gradient; the same of an optimizer's step is its state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Nullable, select_rows
from tracekit.model.tables.keys import look_up_keys
from tracekit.model.trace import Trace
from tracekit.process.memory import frame_purposes as of
from tracekit.process.memory.call_sites import build_site_table
from tracekit.process.memory.replay import NEVER, Replay

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PURPOSES = (
    *("parameter", "gradient", "optimizer_state", "activation", "temporary"),
    *("workspace", "engine_weights", "kv_cache", "graph", "communication"),
)
"""Purposes by stacks and lifetimes. Parameters include buffers of modules; a workspace is a library's."""

_PARAMETER, _GRADIENT, _STATE, _ACTIVATION, _TEMPORARY = range(5)

_DIRECTLY = {
    of.PARAMETER: _PARAMETER,
    of.STATE: _STATE,
    of.GRADIENT: _GRADIENT,
    of.FORWARD: _ACTIVATION,
    of.WORKSPACE: PURPOSES.index("workspace"),
    of.ENGINE: PURPOSES.index("engine_weights"),
    of.KV_CACHE: PURPOSES.index("kv_cache"),
    of.GRAPH: PURPOSES.index("graph"),
    of.TRAFFIC: PURPOSES.index("communication"),
}
_PHASE_OF = {
    of.PARAMETER: of.PARAMETER,
    of.ENGINE: of.PARAMETER,
    of.STATE: of.OPTIMIZER,
    of.OPTIMIZER: of.OPTIMIZER,
    of.GRADIENT: of.BACKWARD,
    of.BACKWARD: of.BACKWARD,
    of.FORWARD: of.FORWARD,
    of.KV_CACHE: of.FORWARD,
    of.ZERO_GRAD: of.ZERO_GRAD,
}
"""Phase of the program in which each part runs. Other parts have none."""

_PHASES = np.array([_PHASE_OF.get(code, of.NOTHING) for code in range(len(of.PARTS))], np.int64)
"""Phase of each part."""


@dataclass(frozen=True, slots=True)
class _Phases:
    """Phases of a history: `own` of each entry, NOTHING if its stack names none; `current` by the last entry with one.

    `ends` is the first entry of another phase after each entry; the length of the history where none follows.
    """

    own: Ints
    current: Ints
    ends: Ints


def find_stack_purposes(trace: Trace, replay: Replay, allocated: Nullable, freed: Nullable) -> Coded:
    """Find the purpose of each piece of a replay by the stacks that allocated and freed it; missing if it is unknown."""
    pieces = replay.pieces
    if not trace.row_count("stacks"):
        return Coded(np.full(len(pieces.size), -1, np.int64), PURPOSES)
    phases = _find_phases(trace, replay)
    inside, part = pieces.born >= 0, _look_up_parts(trace, phases, allocated, pieces.born)
    purpose = np.array([_DIRECTLY.get(code, -1) for code in range(len(of.PARTS))], np.int64)[part]
    # Without an entry, a piece was not born in the history.
    end = np.append(phases.ends, NEVER)[pieces.born]
    outlives = inside & (end < len(phases.own)) & (pieces.died > end)
    for phase, kept in ((of.BACKWARD, _GRADIENT), (of.OPTIMIZER, _STATE)):
        chosen = (part == phase) & inside
        purpose[chosen & outlives] = kept
        purpose[chosen & ~outlives & (pieces.died < NEVER)] = _TEMPORARY
    freed_in = _PHASES[_look_up_parts(trace, phases, freed, np.where(pieces.died < NEVER, pieces.died, -1))]
    purpose[(purpose < 0) & (freed_in == of.ZERO_GRAD)] = _GRADIENT
    is_of_loss = inside & (part == of.NOTHING) & ~allocated.missing & _mark_loss(replay, phases)
    purpose[(purpose < 0) & ((freed_in == of.BACKWARD) | is_of_loss)] = _ACTIVATION
    lines = _StepLines(*(_look_up_site_codes(trace, stack) for stack in (allocated, freed)))
    _follow_replaced_memory(purpose, lines, inside & (part == of.OPTIMIZER), outlives, freed_in == of.OPTIMIZER)
    return Coded(purpose, PURPOSES)


def _mark_loss(replay: Replay, phases: _Phases) -> Mask:
    """Mark the pieces born between a forward and a backward pass that are freed before the backward pass ends."""
    pieces = replay.pieces
    count = len(phases.own)
    ends, current = np.append(phases.ends, count), np.append(phases.current, of.NOTHING)
    after_forward = ends[pieces.born]
    to_backward = (current[pieces.born] == of.FORWARD) & (current[after_forward] == of.BACKWARD)
    is_loss: Mask = to_backward & (pieces.died < NEVER) & (pieces.died <= ends[after_forward])
    return is_loss


def _find_phases(trace: Trace, replay: Replay) -> _Phases:
    """Find the phase of each entry of a history."""
    part, is_empty = _find_recorded_parts(trace, select_rows(trace.nullable("allocations", "stack"), replay.rows))
    own, count = _PHASES[part], len(part)
    known = (own != of.NOTHING).nonzero()[0]
    if not len(known):
        return _Phases(own, own, np.full(count, count))
    last = np.maximum.accumulate(np.where(own != of.NOTHING, np.arange(count), -1))
    current = np.where(last >= 0, own[last], of.NOTHING)
    # After the last phase, the program's own calls end it. Threads of a backward pass have no Python frames.
    others = (~is_empty & (np.arange(count) > known[-1])).nonzero()[0]
    changes = known[1:][own[known[1:]] != own[known[:-1]]]
    after = np.concatenate((changes, others[:1], [count]))
    return _Phases(own, current, after[np.searchsorted(after[:-1], np.arange(count), side="right")])


def _find_recorded_parts(trace: Trace, stack: Nullable) -> tuple[Ints, Mask]:
    """Find the part of each stack: (index in PARTS, whether the stack has no frame or was not recorded)."""
    parts = trace.derived(of.find_stack_parts)
    place, is_there = look_up_keys(parts.stack, stack.values)
    is_known = is_there & ~stack.missing
    return np.where(is_known, parts.part[place], of.NOTHING), ~is_known


def _look_up_parts(trace: Trace, phases: _Phases, stack: Nullable, entry: Ints) -> Ints:
    """Look up the part of the stack of each piece at an entry (-1: before the history)."""
    part, is_empty = _find_recorded_parts(trace, stack)
    in_backward = np.append(phases.current, of.NOTHING)[entry] == of.BACKWARD
    # The threads of a backward pass have no Python frames: their stacks may be empty.
    return np.where(is_empty & ~stack.missing & (entry >= 0) & in_backward, of.BACKWARD, part)


@dataclass(frozen=True, slots=True)
class _StepLines:
    """Codes of the lines that allocated and freed each piece; -1 where unknown."""

    born_at: Ints
    freed_at: Ints


def _follow_replaced_memory(purpose: Ints, lines: _StepLines, is_born: Mask, outlives: Mask, is_freed: Mask) -> None:
    """Find parameters that an optimizer's step replaces, and name the memory from before the recording that it frees.

    `p.data = p - update` makes a new parameter on the line that frees the old one. The new one may be replaced on
    another line of the step. Pieces born or freed in a step are marked.
    """
    is_passed_on = is_born & (lines.born_at >= 0) & (lines.born_at != lines.freed_at)
    replacing = lines.freed_at[is_freed & (purpose == _PARAMETER)]
    while True:
        successors = is_passed_on & np.isin(lines.born_at, replacing)
        more = np.setdiff1d(lines.freed_at[successors & is_freed], replacing)
        if not len(more):
            break
        replacing = np.append(replacing, more)
    purpose[successors & outlives] = _PARAMETER
    old = is_freed & (purpose < 0)
    purpose[old] = np.where(np.isin(lines.freed_at[old], replacing), _PARAMETER, _STATE)


def _look_up_site_codes(trace: Trace, stack: Nullable) -> Ints:
    """Look up the code of the site of each stack; -1 without one."""
    sites = trace.derived(build_site_table)
    place, is_there = look_up_keys(sites.stack, stack.values)
    return np.where(is_there & ~stack.missing, sites.site.codes[place], -1)
