"""Live memory of a device at one time: who allocated it, its purpose, and its age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import (
    Coded,
    Nullable,
    concatenate_parts,
    repeat_number,
    repeat_text,
    select_all_rows,
)
from tracekit.model.tables.keys import group_arrays, look_up_keys, sum_by_group
from tracekit.model.tables.snapshots import BASES, ORIGINS, SITE_KINDS
from tracekit.model.trace import Trace
from tracekit.process.memory.call_sites import build_site_table
from tracekit.process.memory.purposes import find_stack_purposes
from tracekit.process.memory.replay import Replay
from tracekit.process.memory.windows import list_snapshot_stages, list_snapshot_steps
from tracekit.process.name_filters import look_up_name_codes

Ints = npt.NDArray[np.int64]

MAX_SITES = 200
"""Sites listed at one time at most: those with most bytes."""

_BY = ("origin", "kind", "site", "category", "basis")
_NOTHING = ("", "N/A")
"""Texts in a history that mean "none"."""
_UNKNOWN = "unknown"
"""A profiler's category of tensors whose use it does not know."""
_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """Pieces in use at one time: `columns` have a row for each with its origin, site, category and age."""

    columns: dict[str, Any]
    total: int


def list_live_memory(trace: Trace, replay: Replay, entry: int) -> LiveMemory:
    """List the memory in use after an entry of the history (-1: before it)."""
    pieces = replay.pieces
    chosen = pieces.live(entry)
    row, block, born = pieces.row[chosen], pieces.block[chosen], pieces.born[chosen]
    stack = find_allocation_stacks(trace, row, block)
    site, place, kind = look_up_sites(trace, stack)
    category, basis = find_memory_purpose(trace, replay, chosen)
    origin = np.where(row >= 0, 0, np.where(block >= 0, 1, 2))
    # For memory freed in the history only the stack of the free is recorded, so it is not looked up.
    nobody = origin == 2
    now = replay.ts_ns[max(entry, 0)] if len(replay.ts_ns) else 0
    since = replay.ts_ns[born] if len(replay.ts_ns) else np.zeros(len(born), np.int64)
    size = pieces.size[chosen]
    columns = {
        "origin": Coded(origin, ORIGINS),
        "kind": Coded(np.where(nobody, SITE_KINDS.index("unknown"), kind), SITE_KINDS),
        "site": site,
        "place": place,
        "category": category,
        "basis": basis,
        "stack": Nullable(stack.values, stack.missing | nobody),
        "size_bytes": size,
        "oldest_ns": Nullable(now - since, (born < 0) | (not replay.timed)),
    }
    total = int(size.sum())
    assert total == replay.get_requested_bytes(entry), "what is in use is not what the history adds up to"
    return LiveMemory(columns, total)


_SUMS = ("size_bytes", "block_count", "stack_count")


def sum_live_memory_by_site(live_memory: LiveMemory) -> dict[str, Any]:
    """Sum live memory by site, largest first; the smallest share one row `rest`.

    Rows of `live_sites` without key columns. Stack and place are those with most bytes.
    """
    none = np.zeros(len(live_memory.columns["size_bytes"]), np.int64)
    pieces = {**live_memory.columns, "block_count": none + 1, "stack_count": none}
    per_stack = _sum_live_memory(pieces, (*_BY, "stack"))
    per_stack["stack_count"] = np.ones(len(per_stack["size_bytes"]), np.int64)
    per_stack = select_all_rows(per_stack, np.argsort(-per_stack["size_bytes"], kind="stable"))
    table = _sum_live_memory(per_stack, _BY)
    _, rank = np.unique([*table["site"].texts, ""], return_inverse=True)
    table = select_all_rows(table, np.lexsort((rank[table["site"].codes], -table["size_bytes"])))
    count = len(table["size_bytes"])
    if count > MAX_SITES:
        rest = count - MAX_SITES + 1
        texts = {"origin": "rest", "kind": "unknown", "site": None, "category": None, "basis": "none", "place": None}
        smaller = {
            **select_all_rows(table, slice(-rest, None)),
            **{name: repeat_text(text, rest) for name, text in texts.items()},
            "stack": repeat_number(None, rest),
        }
        table = concatenate_parts([select_all_rows(table, slice(-rest)), _sum_live_memory(smaller, _BY)])
    assert int(table["size_bytes"].sum()) == live_memory.total
    return table


def _sum_live_memory(rows: Mapping[str, Any], by: Sequence[str]) -> dict[str, Any]:
    """Sum live memory by these keys, in order of appearance; other columns are those of the first row."""
    group, first = group_arrays([rows[name] for name in by])
    count, age = len(first), rows["oldest_ns"]
    known = (~age.missing).nonzero()[0]
    oldest = np.full(count, _LOWEST)
    np.maximum.at(oldest, group[known], age.values[known])
    return {
        **select_all_rows(rows, first),
        **{name: sum_by_group(group, rows[name], count) for name in _SUMS},
        "oldest_ns": Nullable(oldest, oldest == _LOWEST),
    }


def look_up_sites(trace: Trace, stack: Nullable) -> tuple[Coded, Coded, Ints]:
    """Look up the sites of stacks: (texts of site and of place, missing if unknown; code of its kind in SITE_KINDS)."""
    table = trace.derived(build_site_table)
    unnamed = np.where(stack.missing, SITE_KINDS.index("unknown"), SITE_KINDS.index("empty"))
    if not len(table.stack):
        none = Coded(np.full(len(unnamed), -1, np.int64), ())
        return none, none, unnamed
    place, is_there = look_up_keys(table.stack, stack.values)
    is_known = is_there & ~stack.missing
    site, of_place = (
        Coded(np.where(is_known, text.codes[place], -1), text.texts) for text in (table.site, table.place)
    )
    return site, of_place, np.where(is_known, table.kind[place], unnamed)


def find_allocation_stacks(trace: Trace, row: Ints, block: Ints) -> Nullable:
    """Find the stacks that allocated pieces; missing for pieces without a recorded stack."""
    stack, missing = np.zeros(len(row), np.int64), np.ones(len(row), np.bool_)
    for name, rows_there in (("blocks", block), ("allocations", row)):
        recorded = trace.nullable(name, "stack")
        rows = (rows_there >= 0).nonzero()[0]
        rows = rows[~recorded.missing[rows_there[rows]]]
        stack[rows], missing[rows] = recorded.values[rows_there[rows]], False
    return Nullable(stack, missing)


def find_memory_purpose(trace: Trace, replay: Replay, chosen: Ints) -> tuple[Coded, Coded]:
    """Find the purpose of chosen pieces: (category or missing, basis of that knowledge).

    Records of a profiler or the program precede call stacks. A profiler's `unknown` is kept where all other sources are silent.
    """
    pieces = replay.pieces
    row, block, born = pieces.row[chosen], pieces.block[chosen], pieces.born[chosen]
    codes = np.full(len(row), -1, np.int64)
    basis = np.full(len(row), BASES.index("none"), np.int64)
    code_of: dict[str, int] = {}

    def fill(texts: Coded, text_codes: Ints, how: str, *nothing: str) -> None:
        """Fill in the pieces without a purpose so far."""
        known = [-1 if text in nothing else code_of.setdefault(text, len(code_of)) for text in texts.texts]
        of_piece = np.array([*known, -1], np.int64)[text_codes]
        new = (codes < 0) & (of_piece >= 0)
        codes[new], basis[new] = of_piece[new], BASES.index(how)

    def fill_recorded(column: str, how: str, *nothing: str) -> None:
        """Fill in the texts of a column of allocations and blocks."""
        for name, rows in (("allocations", row), ("blocks", block)):
            texts = trace.texts(name, column)
            fill(texts, look_up_name_codes(texts, rows), how, *nothing)

    fill_recorded("category", "recorded", *_NOTHING, _UNKNOWN)
    fill_recorded("user_metadata", "metadata", *_NOTHING)
    by_stack = _find_purposes_by_stack(trace, replay)
    fill(by_stack, by_stack.codes[chosen], "stack")
    fill_recorded("compile_context", "compiled", *_NOTHING)
    stages = list_snapshot_stages(trace, list_snapshot_steps(trace, replay))
    if len(stages) and replay.timed and len(replay.ts_ns):
        inside = stages.row_at(replay.ts_ns[born])
        at_birth = np.where((born >= 0) & (inside >= 0), stages.stage.codes[inside], -1)
        fill(stages.stage, at_birth, "stage")
    fill_recorded("category", "recorded", *_NOTHING)
    return Coded(codes, tuple(code_of)), Coded(basis, BASES)


def _find_purposes_by_stack(trace: Trace, replay: Replay) -> Coded:
    """Find the purpose of every piece of a replay by its stacks."""
    pieces = replay.pieces
    none = np.full(len(pieces.row), -1, np.int64)
    allocated = find_allocation_stacks(trace, pieces.row, pieces.block)
    freed = find_allocation_stacks(trace, pieces.freed, none)
    return find_stack_purposes(trace, replay, allocated, freed)
