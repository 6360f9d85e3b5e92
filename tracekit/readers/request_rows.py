"""Rows of the table `engine_requests`, collected while a file is read. No text of a prompt or a response is kept."""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, make_nullable_numbers

MAX_REQUESTS = 200_000
"""Most requests, tools and agents kept from one file: ten numbers each stay below 2 million values."""

MAX_NS = 2**53
"""Longest time kept, ns: 104 days."""

KINDS = ("request", "tool", "agent")

TIMES = ("dur_ns", "queue_ns", "prefill_ns", "decode_ns", "forward_ns", "preempted_ns", "tool_ns")
_NUMBERS = ("trajectory", "step", "ts_ns", *TIMES, "preemption_count", "prompt_tokens", "response_tokens")


@dataclass(slots=True)
class RequestRows:
    """Requests parsed so far, as columns, and the count of those beyond the limit."""

    line: list[int] = field(default_factory=list[int])
    kind: list[int] = field(default_factory=list[int])
    columns: dict[str, list[int | None]] = field(default_factory=lambda: {name: [] for name in _NUMBERS})
    over: int = 0

    def add(self, line: int, kind: str, **values: int | None) -> None:
        """Add one row; times that are negative or longer than `MAX_NS` are unknown."""
        if len(self.line) >= MAX_REQUESTS:
            self.over += 1
            return
        self.line.append(line)
        self.kind.append(KINDS.index(kind))
        for name, column in self.columns.items():
            value = values.get(name)
            if value is not None and not 0 <= value < (MAX_NS if name in TIMES else 2**62):
                value = None
            column.append(value)

    def make_table(self) -> Columns:
        """Make the table `engine_requests`."""
        columns = {name: make_nullable_numbers(values) for name, values in self.columns.items()}
        kind = Coded(np.array(self.kind, np.int8), KINDS)
        return TABLES["engine_requests"].cast(
            {"line": np.array(self.line, np.int64), "kind": kind, **columns}, len(self.line)
        )


def convert_seconds(value: float | None) -> int | None:
    """Convert seconds to ns; None for what is unknown, not finite or too long.

    >>> convert_seconds(0.25), convert_seconds(float("nan")), convert_seconds(None)
    (250000000, None, None)
    """
    if value is None or not math.isfinite(value) or not 0 <= value * 1e9 < MAX_NS:
        return None
    return round(value * 1e9)
