"""Updates whose ranges do not say which model they train: verl's `train_batch`, in a `mini_batch<n>` or alone."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.stages import canonical
from tracekit.process.by_name import is_named
from tracekit.process.nesting import Nesting

Ints = npt.NDArray[np.int64]

BATCH = "train_batch"
OF_THE_CRITIC = f"critic/{BATCH}"

_MINI_BATCH = re.compile(r"mini_batch\d*\Z")


def stage_codes(
    host: pd.DataFrame, within: Nesting, rows: Ints, parent: Ints
) -> tuple[Ints, pd.Index]:
    """(the code of each host row's name, the names) as stages; `rows` are ranges, in the ranges `parent` or -1.

    A training batch that no update of the actor holds is the update of another model. It is as long as the
    mini-batch around it, where nothing is around that; and it is the critic's where the process names the
    updates of its actor.
    """
    names, codes = host["name"].cat.categories, host["name"].cat.codes.to_numpy().astype(np.int64)
    is_range = (host["kind"] == "range").to_numpy()
    updates = is_range & is_named(host["name"], lambda name: canonical(name) == "update_actor")
    batches = np.flatnonzero(is_named(host["name"], lambda name: name == BATCH)[rows])
    batches = batches[within.nearest(updates, rows[batches]) < 0]
    if not len(batches):
        return codes, names
    name = OF_THE_CRITIC if updates.any() else BATCH
    if name not in names:
        names = names.append(pd.Index([name]))
    code = int(names.get_indexer(pd.Index([name]))[0])
    is_outermost = np.zeros(len(host), np.bool_)
    is_outermost[rows[parent < 0]] = True
    is_outermost &= is_named(host["name"], _MINI_BATCH.match)
    around = parent[batches]
    codes[rows[batches]] = code
    codes[around[(around >= 0) & is_outermost[around]]] = code
    return codes, names
