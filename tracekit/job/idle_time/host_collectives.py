"""The last rank to reach a host-side collective (gloo, MPI, UCC), phrased as the end of a claim."""

from __future__ import annotations

import re

from tracekit.job.collectives.matching import list_matched_collectives
from tracekit.job.frames import name_stages
from tracekit.job.idle_time.call_tree import MAJORITY_SHARE, IdleCulprit
from tracekit.job.stages.windows import Owner, find_rows_of_owners
from tracekit.model.tables.frame import sum_of
from tracekit.model.trace import Measurements

_COLLECTIVE = re.compile(r"c10d::|(?:gloo|mpi|ucc):")


def phrase_awaited_rank(
    measured: Measurements, culprit: IdleCulprit, owner: Owner, canonical: str | None = None
) -> str:
    """Phrase the rank that causes nearly all of the wait at a host-side collective: `, waiting for rank 3`.

    Counts collectives of one run and role, in one stage (None: any), with a known last rank. Empty otherwise.
    """
    if not any(_COLLECTIVE.match(name) for name in culprit.names) or not measured.row_count("collectives"):
        return ""
    rows = list_matched_collectives(measured)
    rows = rows.with_columns(canonical=name_stages(rows), wait_ns=rows.integers("wait_ns"))
    chosen = rows.is_missing("device") & ~rows.is_missing("match") & rows["trusted"]
    chosen &= find_rows_of_owners(rows, [owner])
    if canonical is not None:
        chosen &= rows.equals("canonical", canonical)
    rows = rows.filter(chosen)
    last = rows.filter(rows["is_last"] & ~rows.is_missing("rank"))
    last = last.select("match").with_columns(late_rank=last["rank"])
    waits = rows.select("match", "wait_ns").join(last, ["match"]).group_by("late_rank").agg(wait_ns=sum_of("wait_ns"))
    is_most = (waits["wait_ns"] > 0) & (waits["wait_ns"] >= MAJORITY_SHARE * rows["wait_ns"].sum())
    late = waits.filter(is_most).values("late_rank")
    return f", waiting for rank {late[0]}" if late else ""
