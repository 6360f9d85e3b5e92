"""Model of update ranges whose names do not tell it: verl's `train_batch`, in a `mini_batch<n>` or alone."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import get_canonical_stage
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]

BATCH = "train_batch"
OF_THE_CRITIC = f"critic/{BATCH}"

_MINI_BATCH = re.compile(r"mini_batch\d*\Z")


def name_stage_ranges(trace: Trace, rows: Ints, parent: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Name ranges as stages: (name code of each host row, names); `rows` are ranges inside ranges `parent`, or -1.

    A training batch outside any update of the actor updates another model: the critic, if the process names
    the updates of its actor. The mini-batch around it gets the same name if nothing encloses the mini-batch.
    """
    names = trace.texts("host_ops", "name")
    codes, texts = names.codes.astype(np.int64), names.texts
    if BATCH not in texts:
        return codes, texts
    is_range = mark_rows_of_kind(trace, "host_ops", "range")
    updates = is_range & mark_wanted_names(names, lambda name: get_canonical_stage(name) == "update_actor")
    batches = (codes[rows] == texts.index(BATCH)).nonzero()[0]
    batches = batches[trace.derived(build_call_tree).nearest(updates, rows[batches]) < 0]
    if not len(batches):
        return codes, texts
    name = OF_THE_CRITIC if updates.any() else BATCH
    if name not in texts:
        texts = (*texts, name)
    code = texts.index(name)
    is_outermost = np.zeros(len(codes), np.bool_)
    is_outermost[rows[parent < 0]] = True
    is_outermost &= mark_wanted_names(names, _MINI_BATCH.match)
    around = parent[batches]
    codes[rows[batches]] = code
    codes[around[(around >= 0) & is_outermost[around]]] = code
    return codes, texts
