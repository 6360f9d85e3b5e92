# The passes over a dependency graph: arrays in one piece; the last ones are written to.

import numpy as np
import numpy.typing as npt

# Edges into each instant and a topological order; returns the number of instants that no cycle holds.
def order(
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    incoming: npt.NDArray[np.int32],
    order: npt.NDArray[np.int32],
    /,
) -> int: ...

# A topological order with added edges; returns the number of instants that no cycle holds.
def reorder(
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    added_source: npt.NDArray[np.int32],
    added_target: npt.NDArray[np.int32],
    order: npt.NDArray[np.int32],
    /,
) -> int: ...

# The longest path to each instant, and the edge that decides it. Instants that an edge decided before (`decided`, which may be
# empty) do not keep their recorded time without one.
def longest(
    order: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    incoming: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    recorded: npt.NDArray[np.int64],
    decided: npt.NDArray[np.int32],
    added_source: npt.NDArray[np.int32],
    added_target: npt.NDArray[np.int32],
    added_weight: npt.NDArray[np.int64],
    added_number: npt.NDArray[np.int32],
    time: npt.NDArray[np.int64],
    decider: npt.NDArray[np.int32],
    /,
) -> None: ...

# Weights for which the times are the longest paths; returns how many edges were lengthened, which it lists.
def settle(
    first: npt.NDArray[np.int32],
    incoming: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    time: npt.NDArray[np.int64],
    weight: npt.NDArray[np.int64],
    lengthened: npt.NDArray[np.int32],
    lengthened_by: npt.NDArray[np.int64],
    /,
) -> int: ...

# Edges on the way back from instants, each with its time within the limits of its walk; returns how many there are, also
# beyond the room for them.
def walk(
    at: npt.NDArray[np.int32],
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    time: npt.NDArray[np.int64],
    decider: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    edge: npt.NDArray[np.int32],
    spent: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    /,
) -> int: ...

# The latest time of each instant that delays no limited one: `latest` has 2**62 for instants without a limit of their own.
def limit(
    order: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    incoming: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    latest: npt.NDArray[np.int64],
    /,
) -> None: ...
