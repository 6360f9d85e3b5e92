"""The fix that a finding proposes, carried out in the simulation and not in the replay.

The fix of a finding may differ from the repair of a fault: a finding about a slow network proposes to overlap collectives, which
saves less than a fast network does. A job with a `Proposal` shows what the proposed fix saves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FreeCall:
    """Calls that no longer wait for the device: in a stage (None: anywhere), within a row, or of a name."""

    stage: str | None
    by: re.Pattern[str] | None
    row: re.Pattern[str] | None

    def covers(self, stage: str, call: str, rows: Iterable[str]) -> bool:
        """Whether a call within these rows is one of them."""
        if self.stage not in (None, stage) or (self.row and not self.row.search(call)):
            return False
        return not self.by or any(map(self.by.search, rows))


@dataclass
class Proposal:
    """Fixes of a job: what it does in another way. Sets contain stages; None in them is all stages."""

    free_calls: list[FreeCall] = field(default_factory=list)
    silences: list[tuple[str | None, float]] = field(default_factory=list)
    """(Stage, ns): time without any host activity of this length is gone."""
    graphs: set[str | None] = field(default_factory=set)
    """All ops of these stages are launched with one call."""
    prefetching: set[str | None] = field(default_factory=set)
    """Parameters are gathered a layer earlier; new weights beside the copy of those before."""
    hiding: set[str | None] = field(default_factory=set)
    """Reduced gradients are awaited at the end of the backward pass."""
    accumulating: set[str | None] = field(default_factory=set)
    """Gradients are reduced in the last micro-batch only."""
    full_batches_from: float = 0.0
    """Requests that would be generated in smaller batches are generated in full ones."""
    weights_at_once: bool = False
    """New weights are sent in one message, and nothing waits for their copies."""

    def frees(self, stage: str, call: str, rows: Iterable[str]) -> bool:
        """Whether a call no longer waits for the device."""
        if self.weights_at_once and stage == "update_weights":
            return True
        return any(each.covers(stage, call, rows) for each in self.free_calls)

    def ends_silence(self, stage: str, ns: float) -> bool:
        """Whether a silence of the host is gone."""
        return any(where in (None, stage) and ns >= least for where, least in self.silences)


def is_in(stages: set[str | None], stage: str) -> bool:
    """Whether a set of stages contains this one or all."""
    return None in stages or stage in stages


def read_proposal(changes: Iterable[str]) -> Proposal | None:
    """Read the changes of findings; None if the simulation cannot carry out one of them.

    A factor is the finding's guess of the effect. It is not read: the simulation carries out the fix behind it.
    """
    proposal = Proposal()
    for text in changes:
        change = json.loads(text)
        key = (change["do"], change.get("on", ""))
        if key not in READERS or not READERS[key](proposal, change):
            return None
    return proposal


def _has_only(change: dict[str, Any], *names: str) -> bool:
    return change.keys() <= {"do", "on", *names}


def _read_free_calls(proposal: Proposal, change: dict[str, Any]) -> bool:
    patterns = [re.compile(change[name]) if name in change else None for name in ("by", "row")]
    proposal.free_calls.append(FreeCall(change.get("stage"), *patterns))
    return _has_only(change, "stage", "by", "row")


def _read_silence(proposal: Proposal, change: dict[str, Any]) -> bool:
    proposal.silences.append((change.get("stage"), 1_000 * change.get("at_least_us", 0)))
    return bool(change.get("silent")) and not change["to_us"] and _has_only(change, "stage", "silent", "at_least_us", "to_us")  # fmt: skip


def _read_graph(proposal: Proposal, change: dict[str, Any]) -> bool:
    proposal.graphs.add(change.get("stage"))
    return _has_only(change, "stage")


def _read_overlap(name: str, op: str) -> Callable[[Proposal, dict[str, Any]], bool]:
    def read(proposal: Proposal, change: dict[str, Any]) -> bool:
        getattr(proposal, name).add(change.get("stage"))
        return change.get("op") == op and _has_only(change, "stage", "op")

    return read


def _read_batches(proposal: Proposal, change: dict[str, Any]) -> bool:
    proposal.full_batches_from = change.get("requests_below", 0)
    return "requests_below" in change and _has_only(change, "requests_below", "factor")


def _read_weights(proposal: Proposal, change: dict[str, Any]) -> bool:
    proposal.weights_at_once = True
    return change.get("stage") == "update_weights" and _has_only(change, "stage", "op", "factor")


READERS: dict[tuple[str, str], Callable[[Proposal, dict[str, Any]], bool]] = {
    ("unwait", ""): _read_free_calls,
    ("set", "host"): _read_silence,
    ("graph", ""): _read_graph,
    ("prefetch", "collective"): _read_overlap("prefetching", "AllGather"),
    ("hide", "collective"): _read_overlap("hiding", "ReduceScatter"),
    ("accumulate", "collective"): _read_overlap("accumulating", "ReduceScatter"),
    ("scale", "range"): _read_batches,
    ("scale", "host"): _read_weights,
    ("scale", "collective"): _read_weights,
    ("scale", "device"): _read_weights,
}
"""(Verb, target) → the reader of such changes."""
