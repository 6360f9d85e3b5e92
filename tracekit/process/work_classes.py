"""Classes of work by the stage that launched them: rows of `work_classes` and `unfused_work`.

On the device where one was recorded: unions per device. On the host otherwise: unions per thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import union_totals
from tracekit.model.keys import numbered, summed
from tracekit.model.trace import Trace
from tracekit.process.placement import Placement, placement
from tracekit.process.sound import sound_dur_ns
from tracekit.process.stage_at import outermost_stages, stage_at, stage_names
from tracekit.process.steps import Windows, windows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def work_stages(trace: Trace) -> Ints:
    """Per device op the code of the outermost stage that it belongs to, by its launch if known; -1 outside."""
    place: Placement = trace.derived(placement)
    return np.where(place.known, stage_at(trace, place.ts_ns), -1)


def on_device(trace: Trace, classes: Mapping[str, Bools]) -> dict[str, Any]:
    """Columns stage, class, device, count, busy_ns, top, capability; a device op may be of several classes."""
    device = trace["device_ops"]
    stage = trace.derived(work_stages)
    number, keys = pd.factorize(device["device"], use_na_sentinel=False)
    rows = [np.flatnonzero(mask) for mask in classes.values()]
    every = np.concatenate(rows) if rows else np.empty(0, np.int64)
    kind = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    start = device["ts_ns"].to_numpy()[every]
    dur = trace.derived(sound_dur_ns)[every]
    width, stages = max(len(keys), 1), len(stage_names(trace)) + 1
    key = (kind * stages + stage[every] + 1) * width + number[every]
    found, group = numbered(key)
    names = device["name"].cat.categories.to_numpy(object)
    return {
        **_who(trace, list(classes), found // width),
        "device": pd.array(list(keys), dtype="Int64")[found % width],
        "count": np.bincount(group, minlength=len(found)),
        "busy_ns": union_totals(start, start + dur, group, len(found)),
        "top": _top(group, device["name"].cat.codes.to_numpy()[every], dur, len(found), names),
        "capability": _capabilities(trace, [keys[k] for k in (found % width).tolist()]),
    }


class Spans(NamedTuple):
    """Intervals on threads, and the name of each as a code of the names of `host_ops`."""

    thread: npt.NDArray[Any]
    start: Ints
    end: Ints
    name: npt.NDArray[Any]


def on_host(trace: Trace, classes: Mapping[str, Spans]) -> dict[str, Any]:
    """The same columns for intervals on the host; `all` is the wall of each stage, of the steps without stages."""
    walls, wall_stage = _walls(trace)
    begin = walls["ts_ns"].to_numpy()
    none = np.zeros(len(begin), np.int64)
    every = [Spans(none, begin, begin + walls["dur_ns"].to_numpy(), none - 1), *classes.values()]
    start = np.concatenate([spans.start for spans in every])
    end = np.concatenate([spans.end for spans in every])
    thread = np.concatenate([spans.thread for spans in every]).astype(np.int64)
    codes = np.concatenate([spans.name for spans in every])
    kind = np.repeat(np.arange(len(every)), [len(spans.start) for spans in every])
    stage = np.concatenate((wall_stage, stage_at(trace, start[len(begin) :])))
    found, group = np.unique(kind * (len(stage_names(trace)) + 1) + stage + 1, return_inverse=True)
    width = int(thread.max(initial=0)) + 1
    pairs, pair = numbered(group * width + thread)
    totals = summed(pairs // width, union_totals(start, end, pair, len(pairs)), len(found))
    names = trace.get("host_ops")["name"].cat.categories.to_numpy(object)
    unknown = pd.array([pd.NA] * len(found), dtype="Int64")
    return {
        **_who(trace, ["all", *classes], found),
        "device": unknown,
        "count": np.bincount(group, minlength=len(found)),
        "busy_ns": totals,
        "top": _top(group, codes, end - start, len(found), names),
        "capability": unknown,
    }


def _walls(trace: Trace) -> tuple[pd.DataFrame, Ints]:
    """(the outermost stages, else the steps; the code of the stage of each, -1 for a step)."""
    stages = trace.derived(outermost_stages)
    if len(stages):
        return stages, stages["stage"].cat.codes.to_numpy().astype(np.int64)
    found: Windows = trace.derived(windows)
    return found.steps, np.full(len(found.steps), -1, np.int64)


def _who(trace: Trace, classes: list[str], key: Ints) -> dict[str, Any]:
    """Class and stage of keys class × stages + stage + 1."""
    names = [*stage_names(trace), None]
    stages = len(names)
    return {
        "class": [classes[k] for k in (key // stages).tolist()],
        "stage": np.array(names, object)[key % stages - 1],
    }


def _top(group: Ints, codes: npt.NDArray[Any], dur: Ints, count: int, names: Any) -> Any:
    """The name with most Σ duration in each group; the first of equals, None for an empty group."""
    width = len(names) + 1
    pairs, pair = numbered(group * width + codes + 1)
    sums = summed(pair, dur, len(pairs))
    order = np.lexsort((pairs, -sums, pairs // width))
    of = pairs[order] // width
    first = np.flatnonzero(np.concatenate((of[:1] == of[:1], of[1:] != of[:-1])))
    out = np.full(count, None, object)
    out[of[first]] = np.array([*names, None], object)[pairs[order][first] % width - 1]
    return out


def _capabilities(trace: Trace, devices: list[Any]) -> Any:
    """Compute capability × 10 of each of these devices; NA where `deviceProperties` does not tell it."""
    told = trace.meta.get("deviceProperties")
    found: dict[Any, int] = {}
    for entry in told if isinstance(told, list) else ():
        if not isinstance(entry, dict):
            continue
        major, minor = _small(entry.get("computeMajor")), _small(entry.get("computeMinor"))
        if major is not None and minor is not None:
            found[entry.get("id") if isinstance(entry.get("id"), int) else None] = (
                10 * major + minor
            )
    if (
        len(set(found.values())) == 1
    ):  # ordinals may not fit (renumbered devices): one model is one answer
        same = next(iter(found.values()))
        return pd.array([same] * len(devices), dtype="Int64")
    return pd.array([found.get(device, pd.NA) for device in devices], dtype="Int64")


def _small(value: object) -> int | None:
    """A whole number from 0 to 99; None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100
    return value if whole and isinstance(value, int) else None
