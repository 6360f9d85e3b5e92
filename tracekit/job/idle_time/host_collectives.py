"""The last rank to reach a host-side collective (gloo, MPI, UCC), phrased as the end of a claim."""

from __future__ import annotations

import re

import pandas as pd

from tracekit.job.collectives.matching import match_collectives
from tracekit.job.frames import find_canonical_stages, find_equal_rows
from tracekit.job.idle_time.call_tree import MAJORITY_SHARE, IdleCulprit
from tracekit.job.stages.windows import Owner
from tracekit.model.trace import Measurements

_COLLECTIVE = re.compile(r"c10d::|(?:gloo|mpi|ucc):")


def phrase_awaited_rank(
    measured: Measurements, culprit: IdleCulprit, owner: Owner, canonical: str | None = None
) -> str:
    """Phrase the rank that causes nearly all of the wait at a host-side collective: `, waiting for rank 3`.

    Counts collectives of one run and role, in one stage (None: any), with a known last rank. Empty otherwise.
    """
    if not any(map(_COLLECTIVE.match, culprit.names)) or not measured.row_count("collectives"):
        return ""
    rows = pd.concat([measured["collectives"], match_collectives(measured)], axis=1)
    chosen = rows["device"].isna() & rows["match"].notna() & rows["trusted"]
    chosen &= find_equal_rows(rows["run"], owner[0]) & find_equal_rows(rows["role"], owner[1])
    if canonical is not None:
        chosen &= find_canonical_stages(rows) == canonical
    rows = rows[chosen.to_numpy(bool)]
    last = rows[rows["is_last"] & rows["rank"].notna()]
    late_rank = rows["match"].map(last.set_index("match")["rank"])
    wait = rows["wait_ns"].fillna(0)
    waited = wait.groupby(late_rank).sum()
    if not len(waited) or not waited.max() or waited.max() < MAJORITY_SHARE * wait.sum():
        return ""
    return f", waiting for rank {waited.idxmax()}"
