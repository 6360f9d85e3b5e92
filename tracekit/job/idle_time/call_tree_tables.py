"""Tables and chart of the call tree of idle time: nested places, and shares by kind."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import make_label_headings, to_text_or_none
from tracekit.job.idle_time.call_tree import (
    IdleBlame,
    blame_idle_time,
    format_python_frame,
    layout_idle_icicle,
    list_idle_branches,
)
from tracekit.job.stages.windows import NO_STEPS, Owner, count_gpu_steps, number_stage_owners
from tracekit.job.tables import make_sheet, parse_headings
from tracekit.model.keys import sum_by_group
from tracekit.model.report import Chart, Heading, Sheet
from tracekit.model.tables.slots import HOLDER_TITLES, HOLDERS
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

LEAST_SHOWN, LEAST_DRAWN = 0.01, 0.002
"""Smallest share of the idle time of a place in the table, and in the chart."""

MAX_BRANCHES = 60
"""Most places of one role in the table."""


def make_idle_call_tree_sheets(measured: Measurements) -> tuple[Sheet, Sheet]:
    """Make (the table of the call tree, the table of shares by kind), per step and GPU of the judged windows."""
    of = blame_idle_time(measured)
    owners, number = number_stage_owners(of.rows)
    tree_rows, kind_rows = [], []
    for place, owner in enumerate(owners):
        chosen = np.flatnonzero((number == place) & (of.node >= 0))
        if of.idle_ns[chosen].any():
            tree_rows += _list_idle_branch_rows(measured, of, chosen, owner)
            kind_rows.append(_make_idle_kind_row(measured, of, chosen, owner))
    labels = make_label_headings(measured)
    by_place = make_sheet(
        "idle_blame",
        "What held the GPU back",
        (
            *labels,
            *parse_headings("""
                frame | where | text | What the thread was in that launched the next work; inner places are indented.
                kind | what
                share | of idle | ratio | Of the idle time of what is judged, with what lies below.
                idle_ns | idle | ns | With what lies below it, per step and GPU.
                own_ns | itself | ns | With nothing recorded below it, per step and GPU.
            """),
        ),
        pd.DataFrame(tree_rows, columns=["run", "role", *_BRANCH]),
        caption="Every idle nanosecond counts once: for the deepest thing recorded of the thread that launched the next"
        " work, until its launch returned. Places that only lead to one other are left out, and those below 1 %.",
    )
    kinds = [kind for kind in HOLDERS if any(row.get(kind) for row in kind_rows)]
    headings = [Heading(kind, HOLDER_TITLES[kind][0], "ratio", HOLDER_TITLES[kind][1]) for kind in kinds]
    by_kind = make_sheet(
        "idle_blame_kinds",
        "What held the GPU back, by kind",
        (*labels, *parse_headings("idle_ns | idle | ns | Per step and GPU; the kinds add up to it."), *headings),
        pd.DataFrame(kind_rows, columns=["run", "role", "idle_ns", *kinds]),
    )
    return by_place, by_kind


_BRANCH = ("frame", "kind", "share", "idle_ns", "own_ns")


def _list_idle_branch_rows(
    measured: Measurements, idle_blame: IdleBlame, chosen: Ints, owner: Owner
) -> list[dict[str, object]]:
    """List the rows of one role."""
    own = sum_by_group(idle_blame.node[chosen], idle_blame.idle_ns[chosen], len(idle_blame.tree.parent))
    steps = count_gpu_steps(measured).get(owner, NO_STEPS)
    rows: list[dict[str, object]] = []
    for branch in list_idle_branches(idle_blame.tree, own, LEAST_SHOWN):
        rows.append(
            {
                "run": owner[0],
                "role": to_text_or_none(owner[1]),
                "frame": "· " * branch.depth + format_python_frame(idle_blame.tree.frame[branch.node]),
                "kind": HOLDER_TITLES[HOLDERS[idle_blame.tree.holder[branch.node]]][0],
                "share": branch.idle_ns / int(own.sum()),
                "idle_ns": round(steps.mean(branch.idle_ns)),
                "own_ns": round(steps.mean(branch.own_ns)),
            }
        )
    return rows[:MAX_BRANCHES]


def _make_idle_kind_row(measured: Measurements, idle_blame: IdleBlame, chosen: Ints, owner: Owner) -> dict[str, object]:
    """Make the row of shares of one role."""
    sums = sum_by_group(idle_blame.holder[chosen], idle_blame.idle_ns[chosen], len(HOLDERS))
    total = int(sums.sum())
    row: dict[str, object] = {kind: value / total for kind, value in zip(HOLDERS, sums.tolist(), strict=True)}
    steps = count_gpu_steps(measured).get(owner, NO_STEPS)
    keys: dict[str, object] = {"run": owner[0], "role": to_text_or_none(owner[1])}
    return keys | row | {"idle_ns": round(steps.mean(total))}


def draw_idle_call_tree(measured: Measurements) -> Chart:
    """Draw the call tree of idle time over all judged windows."""
    of = blame_idle_time(measured)
    chosen = np.flatnonzero(of.node >= 0)
    own = sum_by_group(of.node[chosen], of.idle_ns[chosen], len(of.tree.parent))
    marks = layout_idle_icicle(of.tree, own, LEAST_DRAWN)
    names = {text: place for place, text in enumerate(dict.fromkeys(of.tree.frame[m[1]] for m in marks))}
    depths = 1 + max((depth for depth, *_ in marks), default=0)
    return Chart(
        "idle-blame",
        "What held the GPU back",
        "icicle",
        tuple((depth, names[of.tree.frame[node]], low, high) for depth, node, low, high in marks),
        tuple(names),
        ("outermost", *map(str, range(1, depths))),
        caption="Idle time of what is judged, Σ over GPUs and steps: the width is the time below a place.",
    )
