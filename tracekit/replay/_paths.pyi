# The passes over a dependency graph: arrays in one piece; the last ones are written to.

import numpy as np
import numpy.typing as npt

# Edges into each instant and a topological order; returns the number of instants that no cycle holds.
def order(
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    first: npt.NDArray[np.int64],
    incoming: npt.NDArray[np.int32],
    order: npt.NDArray[np.int32],
    /,
) -> int: ...

# The longest path to each instant, and the edge that decides it.
def longest(
    order: npt.NDArray[np.int32],
    first: npt.NDArray[np.int64],
    incoming: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    recorded: npt.NDArray[np.int64],
    time: npt.NDArray[np.int64],
    decider: npt.NDArray[np.int32],
    /,
) -> None: ...

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
    first: npt.NDArray[np.int64],
    incoming: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    latest: npt.NDArray[np.int64],
    /,
) -> None: ...
