"""Which rank the others wait for in collectives that hosts carry out, as an end of what a claim says of a place."""

from __future__ import annotations

import re

import pandas as pd

from tracekit.job.collectives.matching import matched
from tracekit.job.frames import canonical_stages, same_text
from tracekit.job.idle_time.call_tree import MOST, Culprit
from tracekit.job.stages.windows import Owner
from tracekit.model.trace import Measurements

_COLLECTIVE = re.compile(r"c10d::|(?:gloo|mpi|ucc):")


def waiting_for(
    measured: Measurements, culprit: Culprit, owner: Owner, canonical: str | None = None
) -> str:
    """Where a place is such a collective ", waiting for rank 3", if nearly all of the wait is for it; else nothing.

    Counted are those of one run and role, in one stage (None: anywhere), of which it is known who came last.
    """
    if not any(map(_COLLECTIVE.match, culprit.names)) or not measured.row_count("collectives"):
        return ""
    rows = pd.concat([measured["collectives"], matched(measured)], axis=1)
    chosen = rows["device"].isna() & rows["match"].notna() & rows["trusted"]
    chosen &= same_text(rows["run"], owner[0]) & same_text(rows["role"], owner[1])
    if canonical is not None:
        chosen &= canonical_stages(rows) == canonical
    rows = rows[chosen.to_numpy(bool)]
    last = rows[rows["is_last"] & rows["rank"].notna()]
    late_rank = rows["match"].map(last.set_index("match")["rank"])
    wait = rows["wait_ns"].fillna(0)
    waited = wait.groupby(late_rank).sum()
    if not len(waited) or not waited.max() or waited.max() < MOST * wait.sum():
        return ""
    return f", waiting for rank {waited.idxmax()}"
