"""Kernels that changed beyond chance and beyond a shift that the whole machine shares.

Host ops are compared if the sources have no device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import exp, expm1

import numpy as np

from tracekit.compare.wall_time.attribution_rows import KernelChange, KernelChanges, Presence
from tracekit.compare.wall_time.difference_intervals import average_steps_by_run
from tracekit.compare.wall_time.replaced_names import SEPARATOR
from tracekit.compare.wall_time.slot_table import SlotTable, sum_rows_by_group
from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import Floats
from tracekit.model.stats.many import CommonShift, KernelLimits, KernelTests, compare_kernels
from tracekit.model.tables.slots import NO_OP, OTHER, UNLINKED
from tracekit.process.ops.kernel_names import is_gemm_kernel

MAX_LARGEST = 100
"""Kernels that are listed whether they changed beyond chance or not."""

LEAST_SHIFT = 0.005
"""Smallest common shift that is reported."""

_SIGN = 3.3
"""Standard deviations by which one direction must prevail among kernels (about 1 in 1,000 by chance)."""

_COMPUTE = re.compile(r"fmha|flash|attention|attn|conv|cudnn_\d|winograd|wgrad|dgrad", re.IGNORECASE)

SHIFT_CLASSES = {
    "compute": "compute kernels",
    "memory": "memory-bound kernels and copies",
    "comm": "communication kernels",
    "host": "host ops",
}
"""Titles of the kernel classes whose common shift is estimated."""


_ON_DEVICE = ("compute", "collective", "memcpy", "memset")
"""Classes of slots on a device."""

_PRESENCE: dict[str, Presence] = {"new": "new", "removed": "gone"}
"""Presence of kernels on one side only; all others are on both."""


@dataclass(frozen=True, slots=True)
class _KernelTimes:
    """Kernels, or host ops without a device, ordered by (name, class), with the time of each per step."""

    names: list[str]
    kinds: list[str]
    base: Floats
    opt: Floats
    on_host: bool


def find_kernel_changes(table: SlotTable) -> KernelChanges:
    """Compare the kernels of both sides (`tracekit.model.stats.many`), including those on one side only."""
    times = _sum_times_by_kernel(table)
    base_step = float(table.base.wall @ table.base.weights)
    opt_step = float(table.opt.wall @ table.opt.weights)
    if not times.names or not (base_step > 0 and opt_step > 0):
        return KernelChanges(on_host=times.on_host)
    by_run = bool(table.base.run.max() > 0 and table.opt.run.max() > 0)
    base, opt = times.base, times.opt
    if by_run:
        base, opt = (average_steps_by_run(base, table.base.run), average_steps_by_run(opt, table.opt.run))
    tests = compare_kernels(base, opt, times.kinds, base_step=base_step, opt_step=opt_step)
    rows = sorted(_list_kernel_changes(table, times, tests), key=lambda row: (-abs(row.difference), row.name, row.kind))
    least_difference = KernelLimits().least_difference * base_step
    certain = {(times.names[row], times.kinds[row]) for row, test in enumerate(tests.kernels) if test.changed}
    return KernelChanges(
        tuple(row for row in rows if (row.name, row.kind) in certain or _is_large_on_one_side(row, least_difference)),
        largest=tuple(rows[:MAX_LARGEST]),
        tested=tests.tested,
        seen=len(times.names),
        unit="run" if by_run else "step",
        on_host=times.on_host,
        warnings=tuple(_list_shift_warnings(tests, times.kinds)),
    )


def _is_large_on_one_side(row: KernelChange, least_difference: float) -> bool:
    """Check whether a kernel exists on one side only and matters to the step."""
    return row.presence != "both" and abs(row.difference) >= least_difference


def _list_kernel_changes(table: SlotTable, times: _KernelTimes, tests: KernelTests) -> Iterator[KernelChange]:
    """List the change of every kernel with the result of its test."""
    before = times.base @ table.base.weights
    after = times.opt @ table.opt.weights
    for row, test in enumerate(tests.kernels):
        base_ns, opt_ns = float(before[row]), float(after[row])
        yield KernelChange(
            times.names[row],
            times.kinds[row],
            base_ns,
            opt_ns,
            opt_ns - base_ns,
            _ratio_of_log(test.change),
            _ratio_of_log(test.corrected),
            test.q_corrected,
            _PRESENCE.get(test.presence, "both"),
        )


def _ratio_of_log(log: float | None) -> float | None:
    """Convert a change on the log scale to before over after."""
    return None if log is None else exp(-log)


def _sum_times_by_kernel(table: SlotTable) -> _KernelTimes:
    """Sum the time of every kernel in each step of both sides; of host ops if no kernel was recorded."""
    keys = list(table.keys.rows("class", "op", "kernel"))
    on_host = not any(key["class"] in _ON_DEVICE and key["kernel"] for key in keys)
    rows, pairs = [], []
    for row, key in enumerate(keys):
        name = key["op"].rpartition(SEPARATOR)[2] if on_host else key["kernel"]
        is_timed = key["class"] in (("host", "collective") if on_host else _ON_DEVICE)
        if is_timed and name not in (OTHER, NO_OP, UNLINKED, ""):
            rows.append(row)
            pairs.append((name, _classify_shift_class(key["class"], name)))
    order = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
    group = np.array([order[pair] for pair in pairs], np.int64)
    return _KernelTimes(
        names=[key[0] for key in order],
        kinds=[key[1] for key in order],
        base=sum_rows_by_group(table.base.ns[rows], group, len(order)),
        opt=sum_rows_by_group(table.opt.ns[rows], group, len(order)),
        on_host=on_host,
    )


def _classify_shift_class(slot_class: str, name: str) -> str:
    """Classify a kernel by its bottleneck; kernels of a class share a shift."""
    if slot_class == "host":
        return "host"
    if slot_class == "collective":
        return "comm"
    heavy = slot_class == "compute" and (is_gemm_kernel(name) or _COMPUTE.search(name) is not None)
    return "compute" if heavy else "memory"


def _list_shift_warnings(tests: KernelTests, kinds: list[str]) -> Iterator[str]:
    """Describe each shift that was removed, matters, and was followed by most kernels."""
    for shift in tests.shifts:
        if shift.not_applied is not None or shift.value is None:
            continue
        moves = _list_shift_changes(shift, tests, kinds)
        same_way = sum(1 for move in moves if move * shift.value > 0)
        clear = 2 * same_way - len(moves) >= _SIGN * len(moves) ** 0.5
        if clear and abs(expm1(shift.value)) >= LEAST_SHIFT:
            yield _describe_shift(shift.kind, expm1(shift.value), f"{same_way} of {len(moves)}")


def _list_shift_changes(shift: CommonShift, tests: KernelTests, kinds: list[str]) -> list[float]:
    """List the changes of all kernels of a shift's class, on the log scale."""
    return [
        test.change
        for test, kind in zip(tests.kernels, kinds, strict=True)
        if kind == shift.kind and test.change is not None
    ]


def _describe_shift(kind: str, change: float, same_way: str) -> str:
    """Describe a shift (1.1 % slower) and its possible cause."""
    cause = "clocks, temperature, another node?"
    if kind == "host":
        cause = "load of the machine, clocks, another node?"
    size = f"{abs(change):.1%}".replace("%", " %")
    way = "more" if change > 0 else "less"
    return f"{SHIFT_CLASSES[kind]} uniformly take {size} {way} time ({same_way}): {cause}"
