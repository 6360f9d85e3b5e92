"""Overlap of collectives with compute: gathers that begin earlier, and reductions that are awaited later.

A gather needs parameters, which change in the optimizer: it may begin as early as the gather before it, since the last step
of the optimizer. A reduction is needed where the backward pass ends, and only in the last one before a step of the optimizer.
"""

from __future__ import annotations

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import group_arrays
from tracekit.replay.changing.selection import MICRO, JobIndex
from tracekit.replay.edges import STREAM_WAIT, Ints, Mask, Weights
from tracekit.replay.paths import NEVER

HAND_OVER_NS = 1 * MICRO
"""Delay of an op after the collective that it waits for."""


OPTIMIZER = r"^Optimizer\.step"
"""Row of an optimizer, as `torch` names it."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Collectives in the order of their launch, with the one before and after each in its pass; -1 for none."""

    ops: Ints
    before: Ints
    after: Ints


def list_gather_passes(index: JobIndex, ops: Ints) -> Passes:
    """Arrange gathers in passes: those of a stage since a step of the optimizer; where it is not recorded, as reductions."""
    ops = _keep_parameters(index, ops)
    in_optimizer = index.match_within(OPTIMIZER)[index.op_path]
    has_optimizer = np.isin(index.op_process, index.op_process[in_optimizer])
    return _arrange(index, ops, _number_passes(index, np.where(has_optimizer, in_optimizer, index.op_thread)))


def list_reduction_passes(index: JobIndex, ops: Ints) -> Passes:
    """Arrange reductions in passes: those that a thread launched while no other one launched kernels.

    A backward pass has a thread of its own.
    """
    return _arrange(index, _keep_parameters(index, ops), _number_passes(index, index.op_thread))


def list_early_reductions(index: JobIndex, ops: Ints) -> Ints:
    """List the reductions of gradients that later ones repeat before the next step of the optimizer."""
    ops = _keep_parameters(index, ops)
    in_optimizer = index.match_within(OPTIMIZER)[index.op_path]
    ops = ops[np.isin(index.op_process[ops], index.op_process[in_optimizer]) & (index.op_thread[ops] >= 0)]
    passes, updates = (_number_passes(index, kind)[ops] for kind in (index.op_thread, in_optimizer))
    name = index.number_names(lambda graph: graph.ops.name)[ops]
    work = np.unique(np.stack((updates, name)), axis=1, return_inverse=True)[1].reshape(-1)
    last = np.full(int(work.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, work, passes)
    return ops[passes < last[work]]


def _keep_parameters(index: JobIndex, ops: Ints) -> Ints:
    """Keep the collectives of parameters and gradients, and leave out those of activations, which are needed at once."""
    return ops[~index.recall("activations", lambda: _mark_activations(index))[ops]]


def _mark_activations(index: JobIndex) -> Mask:
    """Mark the ops of groups whose collectives are of activations.

    Sequence parallelism gathers and reduces in the forward and in the backward pass: every thread that gathers in such a group
    also reduces. Gradients are reduced in the backward pass only.
    """
    kinds = [index.match_ops(pattern) & (index.op_thread >= 0) for pattern in ("AllGather", "ReduceScatter")]
    group, groups = group_arrays([index.op_process, index.group])
    thread, first = group_arrays([group, index.op_thread])
    gathers, reduces = np.zeros((2, len(first)), np.bool_)
    gathers[thread[kinds[0]]] = reduces[thread[kinds[1]]] = True
    of_activations = np.zeros(len(groups), np.bool_)
    of_activations[group[first[gathers & reduces]]] = True
    of_activations[group[first[gathers & ~reduces]]] = False
    return of_activations[group]


def _arrange(index: JobIndex, ops: Ints, number: Ints) -> Passes:
    """Order collectives of a name and a pass by their launch; those with an unknown launch are in no pass."""
    ops = ops[number[ops] >= 0]
    name = index.number_names(lambda graph: graph.ops.name)
    ops = ops[np.lexsort((index.op_at_ns[ops], name[ops], number[ops]))]
    follows = (number[ops][1:] == number[ops][:-1]) & (name[ops][1:] == name[ops][:-1])
    none = np.full(min(len(ops), 1), -1, np.int64)
    return Passes(
        ops, np.append(none, np.where(follows, ops[:-1], -1)), np.append(np.where(follows, ops[1:], -1), none)
    )


def _number_passes(index: JobIndex, kind: Ints) -> Ints:
    """Number the passes of all processes: a new one begins with another kind of launch, or in another stage.

    Copies do not count: other threads may launch them meanwhile.
    """
    number = np.full(len(kind), -1, np.int64)
    rows = np.flatnonzero((index.op_thread >= 0) & ~index.is_copy)
    rows = rows[np.lexsort((index.op_at_ns[rows], index.op_process[rows]))]
    if len(rows):
        stage = index.stage_at(index.op_process[rows], index.op_at_ns[rows])
        columns = np.stack((index.op_process[rows], stage, kind[rows]))
        number[rows] = np.cumsum(np.append(False, (columns[:, 1:] != columns[:, :-1]).any(axis=0)))
    return number


def _list_compute_waits(index: JobIndex, weights: Weights) -> tuple[Ints, Ints, Ints]:
    """List the waits of compute for collectives, and of collectives for compute: (edge, waiting op, op waited for)."""
    edges, rows = index.job.edges, index.list_edges(STREAM_WAIT)
    rows = rows[weights.weight[rows] > NEVER]
    waiting, source = edges.owner[rows], index.find_ops_ending_at(edges.source[rows])
    crosses = (source >= 0) & (index.is_collective[waiting] != index.is_collective[source])
    return rows[crosses], waiting[crosses], source[crosses]


def start_earlier(index: JobIndex, weights: Weights, passes: Passes) -> tuple[Ints, Ints, Ints]:
    """Let each collective of a pass wait for what the one before it waits for: it begins one collective earlier.

    Returns the edges to add.
    """
    edges, total = index.job.edges, len(index.op_start)
    rows, waiting, _ = _list_compute_waits(index, weights)
    of_collective = index.is_collective[waiting]
    rows, waiting = rows[of_collective], waiting[of_collective]
    has_before, later = np.zeros(total, np.bool_), np.full(total, -1, np.int64)
    pairs = passes.before >= 0
    has_before[passes.ops[pairs]] = True
    later[passes.before[pairs]] = passes.ops[pairs]
    moved = rows[later[waiting] >= 0]
    targets = index.op_start[later[edges.owner[moved]]]
    added = edges.source[moved].astype(np.int64), targets, weights.weight[moved]
    weights.put(rows[has_before[waiting]], NEVER)
    return added


def wait_later(index: JobIndex, weights: Weights, passes: Passes) -> tuple[Ints, Ints, Ints]:
    """Let compute wait for the collectives of a pass only where the last one is awaited: at the end of the pass.

    Where nothing is known to wait for the last one, the first kernel of another thread after it does. Returns the edges to add.
    """
    hidden = np.zeros(len(index.op_start), np.bool_)
    hidden[passes.ops[passes.after >= 0]] = True
    rows, _, source = _list_compute_waits(index, weights)
    weights.put(rows[hidden[source]], NEVER)
    last = passes.ops[(passes.after < 0) & (passes.before >= 0)]
    last = last[~np.isin(last, source)]
    target = _find_next_of_other_thread(index, last)
    last, target = last[target >= 0], target[target >= 0]
    return index.op_start[last] + 1, index.op_start[target], np.full(len(last), HAND_OVER_NS)


def _find_next_of_other_thread(index: JobIndex, ops: Ints) -> Ints:
    """Find the first kernel that another thread of the process launched after each op; -1 for none."""
    found = np.full(len(ops), -1, np.int64)
    for process in np.unique(index.op_process[ops]).tolist():
        mine = np.flatnonzero(index.op_process[ops] == process)
        is_kernel = (index.op_thread >= 0) & ~index.is_collective & ~index.is_copy
        kernels = np.flatnonzero(is_kernel & (index.op_process == process))
        kernels = kernels[np.argsort(index.op_at_ns[kernels], kind="stable")]
        thread = index.op_thread[kernels]
        changes = np.append(np.flatnonzero(thread[1:] != thread[:-1]) + 1, len(kernels))
        first = np.searchsorted(index.op_at_ns[kernels], index.op_at_ns[ops[mine]], side="right")
        is_own = np.append(thread, -1)[first] == index.op_thread[ops[mine]]
        # Past the last kernel a search among the changes of thread finds the end, too.
        after = np.append(changes, len(kernels))[np.searchsorted(changes, first, side="right")]
        found[mine] = np.append(kernels, -1)[np.where(is_own, after, first)]
    return found
