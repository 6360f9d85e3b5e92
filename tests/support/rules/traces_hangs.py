"""Flight-recorder dumps on which the rule about hangs fires, and near misses."""

from __future__ import annotations

from flight_dumps import job, pending, record
from rules.firing import Firing, Sources

FIRES: dict[str, Firing] = {
    # Ranks 0 and 2 enqueued the third all_reduce after 3 s; rank 1 completed the second and nothing more.
    "hang": Firing(
        job([record(1), record(2), pending(3)], [record(1), record(2)], [record(1), record(2), pending(3)]),
        "rank 1 did not reach all_reduce #3 of default_pg; ranks 0, 2 have waited in it since 2025-09-16 05:20:03 UTC; "
        "it last completed all_reduce #2 (sure)",
        "high", None, None, {"waiting_ranks": 2},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # Rank 2 completed the third: all ranks had arrived, and the dump of rank 1 is older.
    "hang": job(
        [record(1), record(2), pending(3)], [record(1), record(2)], [record(1), record(2), record(3)]
    ),
}  # fmt: skip
