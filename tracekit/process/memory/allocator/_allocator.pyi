# PyTorch's caching allocator over a program: arrays in one piece; the last five are written to.

import numpy as np
import numpy.typing as npt

# `ops` are rows of (operation, owner, size or address, lane); `blocks` rows of (address, size, shelf, owner or -1, flags);
# `recorded` and `segments` rows of (address, size, shelf), the latter behind the number of their operation.
def run(
    ops: npt.NDArray[np.int64],
    pool_of_lane: npt.NDArray[np.int64],
    pool_grows: npt.NDArray[np.int64],
    settings: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    recorded: npt.NDArray[np.int64],
    reserved: npt.NDArray[np.int64],
    active: npt.NDArray[np.int64],
    placed: npt.NDArray[np.int64],
    segments: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    /,
) -> None: ...
