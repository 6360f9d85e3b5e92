"""Classes of work by the stage that launched them: rows of `work_classes` and `unfused_work`.

On the device if one was recorded: unions per device. Otherwise on the host: unions per thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import measure_group_unions
from tracekit.model.tables.arrays import Nullable, make_nullable_numbers, select_rows
from tracekit.model.tables.keys import number_keys, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.device.devices import number_devices
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.extremes import find_longest_and_median
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names, select_outer_stages
from tracekit.process.steps.windows import StageWindows, StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def find_work_stages(trace: Trace) -> Ints:
    """Find the outermost stage (code) of each device op, by its launch if known; -1 outside all stages."""
    place: Placement = trace.derived(place_device_ops)
    return np.where(place.is_placed, find_stage_codes_at(trace, place.ts_ns), -1)


def sum_device_work_classes(trace: Trace, classes: Mapping[str, Bools]) -> dict[str, Any]:
    """Sum classes of device work: stage, class, device, count, busy_ns, top, capability.

    An op may be in several classes.
    """
    stage, of_trace = trace.derived(find_work_stages), trace.derived(number_devices)
    rows = [mask.nonzero()[0] for mask in classes.values()]
    ops = np.concatenate(rows) if rows else np.empty(0, np.int64)
    kind = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    start = trace.numbers("device_ops", "ts_ns")[ops]
    dur = trace.numbers("device_ops", "dur_ns")[ops]
    width, stages = max(len(of_trace), 1), len(list_outer_stage_names(trace)) + 1
    key = (kind * stages + stage[ops] + 1) * width + of_trace.number[ops]
    group_keys, group = number_keys(key)
    device = select_rows(of_trace.ordinal, group_keys % width)
    names = trace.texts("device_ops", "name")
    return {
        **_decode_class_and_stage(trace, list(classes), group_keys // width),
        "device": device,
        "count": np.bincount(group, minlength=len(group_keys)),
        "busy_ns": measure_group_unions(start, start + dur, group, len(group_keys)),
        "top": find_top_names(group, names.codes[ops], dur, len(group_keys), names.texts),
        "capability": _look_up_compute_capabilities(trace, device),
        **_find_extremes(list(classes), (kind, group), start, dur, len(group_keys)),
    }


WHOLES = ("all", "gemm", "pass", "products")
"""Classes that only serve as wholes: their longest op stays unknown."""


def _find_extremes(
    classes: list[str], kind_and_group: tuple[Ints, Ints], start: Ints, dur: Ints, count: int
) -> dict[str, Any]:
    """Find the longest and the median op of each group, except those of `WHOLES`."""
    kind, group = kind_and_group
    is_part = np.array([name not in WHOLES for name in classes], np.bool_)[kind]
    return find_longest_and_median(group[is_part], start[is_part], dur[is_part], count)


class NamedThreadSpans(NamedTuple):
    """Intervals on threads, and the name of each as a code of the names of `host_ops`."""

    thread: npt.NDArray[Any]
    start: Ints
    end: Ints
    name: npt.NDArray[Any]


def sum_host_work_classes(trace: Trace, classes: Mapping[str, NamedThreadSpans]) -> dict[str, Any]:
    """Sum classes of host work, same columns; `all` is the wall time of each stage, or of the steps without stages."""
    walls, wall_stage = _select_wall_windows(trace)
    begin = walls.ts_ns
    none = np.zeros(len(begin), np.int64)
    all_spans = [NamedThreadSpans(none, begin, walls.end_ns, none - 1), *classes.values()]
    start = np.concatenate([spans.start for spans in all_spans])
    end = np.concatenate([spans.end for spans in all_spans])
    thread = np.concatenate([spans.thread for spans in all_spans]).astype(np.int64)
    codes = np.concatenate([spans.name for spans in all_spans])
    kind = np.repeat(np.arange(len(all_spans)), [len(spans.start) for spans in all_spans])
    stage = np.concatenate((wall_stage, find_stage_codes_at(trace, start[len(begin) :])))
    keys, group = number_keys(kind * (len(list_outer_stage_names(trace)) + 1) + stage + 1)
    width = int(thread.max(initial=0)) + 1
    pairs, pair = number_keys(group * width + thread)
    totals = sum_by_group(pairs // width, measure_group_unions(start, end, pair, len(pairs)), len(keys))
    names = trace.texts("host_ops", "name").texts
    return {
        **_decode_class_and_stage(trace, ["all", *classes], keys),
        "count": np.bincount(group, minlength=len(keys)),
        "busy_ns": totals,
        "top": find_top_names(group, codes, end - start, len(keys), names),
        **_find_extremes(["all", *classes], (kind, group), start, end - start, len(keys)),
    }


def _select_wall_windows(trace: Trace) -> tuple[StageWindows | StepWindows, Ints]:
    """Select the outermost stages, else the steps: (windows, stage code of each, -1 for a step)."""
    stages = trace.derived(select_outer_stages)
    if len(stages):
        return stages, stages.stage.codes.astype(np.int64)
    steps = trace.derived(find_steps_and_stages).step_rows
    return steps, np.full(len(steps), -1, np.int64)


def _decode_class_and_stage(trace: Trace, classes: list[str], key: Ints) -> dict[str, Any]:
    """Decode keys class × stages + stage + 1 to class and stage."""
    names = [*list_outer_stage_names(trace), None]
    stages = len(names)
    return {"class": [classes[k] for k in (key // stages).tolist()], "stage": np.array(names, object)[key % stages - 1]}


def find_top_names(group: Ints, codes: npt.NDArray[Any], dur: Ints, count: int, names: Any) -> Any:
    """Find the name with most total duration in each group; the first of equals, None for an empty group."""
    width = len(names) + 1
    pairs, pair = number_keys(group * width + codes + 1)
    sums = sum_by_group(pair, dur, len(pairs))
    order = np.lexsort((pairs, -sums, pairs // width))
    group_of_pair = pairs[order] // width
    first = np.concatenate((group_of_pair[:1] == group_of_pair[:1], group_of_pair[1:] != group_of_pair[:-1])).nonzero()[
        0
    ]
    out = np.full(count, None, object)
    out[group_of_pair[first]] = np.array([*names, None], object)[pairs[order][first] % width - 1]
    return out


def _look_up_compute_capabilities(trace: Trace, device: Nullable) -> Nullable:
    """Look up compute capability × 10 of each of these devices; missing if `deviceProperties` lacks it."""
    properties = trace.meta.get("deviceProperties")
    capabilities: dict[Any, int] = {}
    for entry in properties if isinstance(properties, list) else ():
        if not isinstance(entry, dict):
            continue
        major, minor = (
            _parse_capability_part(entry.get("computeMajor")),
            _parse_capability_part(entry.get("computeMinor")),
        )
        if major is not None and minor is not None:
            capabilities[entry.get("id") if isinstance(entry.get("id"), int) else None] = 10 * major + minor
    same = set(capabilities.values())
    if len(same) == 1:  # Ordinals may not match (renumbered devices), but one model gives one answer.
        return Nullable(np.full(len(device), same.pop()), np.zeros(len(device), np.bool_))
    recorded = make_nullable_numbers([capabilities.get(number) for number in device.values.tolist()])
    return Nullable(recorded.values, recorded.missing | device.missing)


def _parse_capability_part(value: object) -> int | None:
    """Accept a whole number from 0 to 99; None for anything else."""
    is_small = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100
    return value if is_small and isinstance(value, int) else None
