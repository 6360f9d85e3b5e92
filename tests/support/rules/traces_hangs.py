"""Flight-recorder dumps on which the rule about hangs fires, and near misses."""

from __future__ import annotations

from flight_dumps import job, pending, record, timed
from rules.firing import Firing, Sources

FIRES: dict[str, Firing] = {
    # Ranks 0 and 2 enqueued the third all_reduce after 3 s; rank 1 completed the second and nothing more.
    "hang": Firing(
        job([record(1), record(2), pending(3)], [record(1), record(2)], [record(1), record(2), pending(3)]),
        "rank 1 did not reach all_reduce #3 of default_pg; ranks 0, 2 have waited in it since 2025-09-16 05:20:03 UTC; "
        "it last completed all_reduce #2 (sure)",
        "high", None, None, {"waiting_ranks": 2},
    ),
    # Calls are 1 s apart. Rank 2 takes 2 ms, rank 1 42 and rank 0 50: rank 2 arrives 40 ms after rank 1, in 11 of 11 calls.
    "late-rank": Firing(
        job(*([timed(seq, ms) for seq in range(1, 12)] for ms in (50, 42, 2))),
        "rank 2 arrives last at all_reduce of default_pg: 40.0 ms (median) after the rank before it, in 11 of 11 calls",
        "medium", None, None, {"late": 40_000_000, "waited": 440_000_000, "wait_ratio": 0.044},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # Rank 2 completed the third: all ranks had arrived, and the dump of rank 1 is older.
    "hang": job(
        [record(1), record(2), pending(3)], [record(1), record(2)], [record(1), record(2), record(3)]
    ),
    # Ranks 1 and 2 take turns: each is last by 40 ms in half of the calls.
    "late-rank": job(
        [timed(seq, 50) for seq in range(1, 13)],
        [timed(seq, 2 if seq % 2 else 42) for seq in range(1, 13)],
        [timed(seq, 42 if seq % 2 else 2) for seq in range(1, 13)],
    ),
}  # fmt: skip
