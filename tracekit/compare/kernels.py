"""Which kernels changed, once chance and a machine that is slower as a whole are taken off?

Of sources without a device the host ops are looked at instead.
"""

from __future__ import annotations

import re
from math import exp, expm1

import numpy as np
import numpy.typing as npt

from tracekit.compare.origins import KernelChange, KernelChanges, Presence
from tracekit.compare.renames import SEPARATOR
from tracekit.compare.slots_of import Half, SlotTable
from tracekit.compare.spreads import run_means
from tracekit.model.stats.estimate import Floats
from tracekit.model.stats.many import KernelTests, Limits, Shift, compare_kernels
from tracekit.model.tables.slots import NO_OP, OTHER, UNLINKED
from tracekit.process.kernel_names import is_gemm

Ints = npt.NDArray[np.int64]

LEAST_SHIFT = 0.005
"""A shift that all have in common is told from this on."""

_SIGN = 3.3
"""So many standard deviations more of them have to move one way than the other (about one in a thousand)."""

_COMPUTE = re.compile(
    r"fmha|flash|attention|attn|conv|cudnn_\d|winograd|wgrad|dgrad", re.IGNORECASE
)

CLASSES = {
    "compute": "compute kernels",
    "memory": "memory-bound kernels and copies",
    "comm": "communication kernels",
    "host": "host ops",
}
"""Classes within which a common shift is looked for, as people read them."""


def kernel_changes(table: SlotTable) -> KernelChanges:
    """The kernels of both sides compared (`tracekit.model.stats.many`), and those that one side alone runs."""
    names, kinds, sums, on_host = _by_name(table)
    halves = (table.base, table.opt)
    steps = [float(half.wall @ half.weights) for half in halves]
    if not names or not all(step > 0 for step in steps):
        return KernelChanges(on_host=on_host)
    several = all(half.run.max() > 0 for half in halves)
    values = [
        run_means(own, half.run) if several else own for own, half in zip(sums, halves, strict=True)
    ]
    limits = Limits()
    found = compare_kernels(
        values[0], values[1], kinds, base_step=steps[0], opt_step=steps[1], limits=limits
    )
    weighed = [own @ half.weights for own, half in zip(sums, halves, strict=True)]
    rows = []
    for at, test in enumerate(found.kernels):
        alone: Presence | None = (
            "new" if test.presence == "new" else "gone" if test.presence == "removed" else None
        )
        before, after = float(weighed[0][at]), float(weighed[1][at])
        large = abs(after - before) >= limits.least_difference * steps[0]
        if not (test.changed or (alone and large)):
            continue
        rows.append(
            KernelChange(
                names[at], kinds[at], before, after, after - before, _ratio(test.change),
                _ratio(test.corrected), test.q_corrected, alone or "both",
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (-abs(row.difference), row.name, row.kind))
    return KernelChanges(
        tuple(rows), found.tested, len(names), "run" if several else "step", on_host,
        tuple(_warning(shift, found, kinds) for shift in found.shifts if _matters(shift, found, kinds)),
    )  # fmt: skip


def _ratio(log: float | None) -> float | None:
    """Before over after of a change on the log scale."""
    return None if log is None else exp(-log)


def _by_name(table: SlotTable) -> tuple[list[str], list[str], tuple[Floats, Floats], bool]:
    """(names, their classes, time of each in every step of both sides, whether they are host ops)."""
    keys = table.keys
    on_device = keys["class"].isin(["compute", "collective", "memcpy", "memset"]) & (
        keys["kernel"] != ""
    )
    on_host = not on_device.any()
    chosen = keys["class"].isin(["host", "collective"]) if on_host else on_device
    text = keys["op"].str.rpartition(SEPARATOR)[2] if on_host else keys["kernel"]
    mine = (chosen & ~text.isin([OTHER, NO_OP, UNLINKED, ""])).to_numpy(bool)
    rows = np.flatnonzero(mine)
    classes = keys["class"].to_numpy(object)
    pairs = [(str(text.iloc[at]), _kind(str(classes[at]), str(text.iloc[at]))) for at in rows]
    order = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
    group = np.array([order[pair] for pair in pairs], np.int64)
    sums = (_sum(table.base, rows, group, len(order)), _sum(table.opt, rows, group, len(order)))
    return [name for name, _ in order], [kind for _, kind in order], sums, on_host


def _sum(half: Half, rows: Ints, group: Ints, size: int) -> Floats:
    out = np.zeros((size, half.ns.shape[1]))
    np.add.at(out, group, half.ns[rows])
    return out


def _kind(name_class: str, name: str) -> str:
    """The class within which a kernel shares a shift with others: by what bounds it."""
    if name_class in ("host", "collective"):
        return "host" if name_class == "host" else "comm"
    heavy = name_class == "compute" and (is_gemm(name) or _COMPUTE.search(name) is not None)
    return "compute" if heavy else "memory"


def _matters(shift: Shift, found: KernelTests, kinds: list[str]) -> bool:
    """Whether a shift was taken off, is large enough to tell, and most kernels moved its way."""
    if shift.not_applied is not None or shift.value is None:
        return False
    moved = _moved(shift, found, kinds)
    same = sum(1 for value in moved if value * shift.value > 0)
    sure = 2 * same - len(moved) >= _SIGN * len(moved) ** 0.5
    return sure and abs(expm1(shift.value)) >= LEAST_SHIFT


def _moved(shift: Shift, found: KernelTests, kinds: list[str]) -> list[float]:
    return [
        test.change
        for test, kind in zip(found.kernels, kinds, strict=True)
        if kind == shift.kind and test.change is not None
    ]


def _warning(shift: Shift, found: KernelTests, kinds: list[str]) -> str:
    """The shift in words: 1.1 % slower, and what that may be."""
    value = expm1(shift.value or 0.0)
    moved = _moved(shift, found, kinds)
    same = sum(1 for change in moved if change * value > 0)
    cause = (
        "load of the machine, clocks, another node?"
        if shift.kind == "host"
        else "clocks, temperature, another node?"
    )
    way = f"take {abs(value):.1%} {'more' if value > 0 else 'less'} time".replace("%", " %")
    return f"{CLASSES[shift.kind]} uniformly {way} ({same} of {len(moved)}): {cause}"
