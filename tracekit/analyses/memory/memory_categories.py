"""Memory timelines of torch.profiler: the purpose of the tensors that fill memory at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import has_epoch_times, list_stage_ranges, make_run_heading
from tracekit.job.memory.trend import Allocator
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.intervals import find_window_at
from tracekit.model.report import Chart, Heading, Metric, Ranked, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, Nullable, make_nullable_numbers
from tracekit.model.tables.columns import TS
from tracekit.model.tables.frame import Frame, Ints, divide, from_rows, sum_of, texts
from tracekit.model.tables.keys import CAPTURE, PROCESS
from tracekit.model.tables.snapshots import CATEGORIES, TORCH_CATEGORY
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.categories import compute_category_levels, compute_category_moments, find_peak_per_bin

CATEGORY_PEAKS = Table(
    "category_peaks",
    "the sum of all categories of one memory timeline",
    {
        **KEYS,
        "change_count": Column("int64", "Rows of memory_categories."),
        "begin_ns": Column("Int64", "First change, ns on the clock of ts_ns."),
        "end_ns": Column("Int64", "Last change."),
        "peak_bytes": Column("int64", "Peak."),
        "peak_ts_ns": Column("Int64", "When first; <NA>: before the recording began."),
    },
)

CATEGORY_LEVELS = Table(
    "category_levels",
    "one category of a memory timeline",
    {
        **KEYS,
        "category": TORCH_CATEGORY,
        "start_bytes": Column("int64", "Before the recording began."),
        "peak_bytes": Column("int64", "At the peak of all categories together."),
        "end_bytes": Column("int64", "At the end."),
        "most_bytes": Column("int64", "Its own peak."),
        "least_bytes": Column("int64", "Its minimum; below 0 the timeline contradicts itself."),
    },
)

CATEGORY_CURVE = Table(
    "category_curve",
    "one category at the peak of all categories in one stretch of time: at most 400 stretches per source",
    {
        **KEYS,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Length of the stretch, ns."),
        "category": TORCH_CATEGORY,
        "level_bytes": Column("int64", "Held then."),
    },
)


CURVE_POINTS, MAX_DRAWN = 400, 150
"""Most stretches of time that are kept of one timeline, and that are drawn."""

GUESSED = "torch's profiler derives categories from the use of tensors, with heuristics that can be wrong; unknown is the rest"
_SIZES = "bytes are tensors' storage by the profiler's allocator records; tensors older than the recording count by their shapes; older tensors that no profiled op touched, and memory outside PyTorch's allocator, are missing"
_DEVICE = "a timeline covers one device without naming it: torch takes GPU 0 by default, or the CPU if there is no GPU"
_OWNER = (*PROCESS, "replica")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure every category before the recording, at the peak of all together, at the end, and over time."""
    if not trace.row_count("memory_categories"):
        return {}
    moment_levels = trace.derived(compute_category_moments)
    peak_entry, last = moment_levels.peak(), len(moment_levels.row) - 1
    start, peak, end = compute_category_levels(trace, moment_levels.row[[0, peak_entry, last]])
    assert int(peak.sum()) == int(moment_levels.total[peak_entry])
    timed = last > 0
    level, code = trace.numbers("memory_categories", "level_bytes"), trace.texts("memory_categories", "category").codes
    by_category = [np.append(start[c], level[code == c]) for c in range(len(CATEGORIES))]
    begin, length, chosen = find_peak_per_bin(moment_levels, CURVE_POINTS)
    curve = compute_category_levels(trace, moment_levels.row[chosen])
    used = np.flatnonzero(curve.any(axis=0))
    return {
        "category_peaks": {
            "change_count": [len(level)],
            "begin_ns": [int(moment_levels.ts_ns[0]) if timed else None],
            "end_ns": [int(moment_levels.ts_ns[last]) if timed else None],
            "peak_bytes": moment_levels.total[[peak_entry]],
            "peak_ts_ns": [int(moment_levels.ts_ns[peak_entry]) if peak_entry else None],
        },
        "category_levels": {
            "category": Coded(np.arange(len(CATEGORIES)), CATEGORIES),
            "start_bytes": start,
            "peak_bytes": peak,
            "end_bytes": end,
            "most_bytes": np.array([values.max() for values in by_category]),
            "least_bytes": np.array([values.min() for values in by_category]),
        },
        "category_curve": {
            "ts_ns": np.repeat(begin, len(used)),
            "dur_ns": np.repeat(length, len(used)),
            "category": Coded(np.tile(used, len(begin)), CATEGORIES),
            "level_bytes": curve[:, used].ravel(),
        },
    }


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Show the categories at the peak of every timeline; None without timelines."""
    if not measured.row_count("category_peaks"):
        return None
    peaks = _sort_category_peaks(measured)
    levels = _sort_category_levels(measured, peaks)
    top = next(peaks.rows())
    return ANALYSIS.answered(
        metrics=lambda: _headline_categories(top, levels),
        sheets=lambda: select_filled_sheets(
            _make_timeline_table(measured, peaks),
            _make_category_table(measured, levels),
            _make_category_stage_table(measured, peaks),
        ),
        caveats=lambda: _list_category_caveats(levels),
        charts=lambda: _draw_categories(measured, top),
    )


def _sort_category_peaks(measured: Measurements) -> Frame:
    """Sort `category_peaks`, the highest first, with `who` and the `stage` and `step` of the peak."""
    peaks = measured.frame("category_peaks")
    peaks = peaks.sort("peak_bytes", "source", descending=["peak_bytes"])
    owners = [Allocator(**row, device_type=None, device=None) for row in peaks.rows(*_OWNER)]
    places = [_find_peak_place(measured, row) for row in peaks.rows()]
    return peaks.with_columns(
        who=texts([owner.process for owner in owners]),
        stage=texts([stage for stage, _ in places]),
        step=make_nullable_numbers([step for _, step in places]),
    )


def _find_peak_place(measured: Measurements, peak: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Find (the stage, the step) of the peak of a timeline in another profile of its process."""
    places: list[Any] = [None, None]
    if peak["peak_ts_ns"] is not None:
        tables = (list_stage_ranges(measured), "canonical"), (measured.frame("steps"), "step")
        for number, (rows, name) in enumerate(tables):
            windows = _select_windows(measured, rows, peak)
            begin = windows["ts_ns"]
            when = np.array([peak["peak_ts_ns"]], np.int64)
            (inside,) = find_window_at(begin, begin + windows["dur_ns"], when).tolist()
            if inside >= 0:
                places[number] = windows.values(name)[inside]
    return places[0], places[1]


def _select_windows(measured: Measurements, windows: Frame, peak: Mapping[str, Any]) -> Frame:
    """Select the windows of the process of a timeline, in order: of its rank, or of the only process there is.

    None where their clocks may differ.
    """
    windows = windows.filter(windows.equals("run", peak["run"]))
    if peak["rank"] is None and len(windows.distinct("rank", "host", "pid")) > 1:
        windows = windows.head(0)
    for name in ("rank", "role", "replica"):
        if peak[name] is not None:
            windows = windows.filter(windows.equals(name, peak[name]))
    captures = [tuple(row.values()) for row in windows.rows(*CAPTURE)]
    captures.append(tuple(peak[name] for name in CAPTURE))
    if not has_epoch_times(measured, from_rows(CAPTURE, captures)):
        windows = windows.head(0)
    return windows.sort("ts_ns")


def _sort_category_levels(measured: Measurements, peaks: Frame) -> Frame:
    """Sort `category_levels` in the order of peaks, the largest category first, with shares."""
    totals = peaks.select("source", "who").with_columns(place=np.arange(len(peaks)), total_bytes=peaks["peak_bytes"])
    levels = measured.frame("category_levels").join(totals, ["source"])
    levels = levels.sort("place", "peak_bytes", descending=["peak_bytes"])
    sums = levels.group_by("place").agg(peak_bytes=sum_of("peak_bytes"))
    assert sums["peak_bytes"].tolist() == peaks["peak_bytes"].tolist()
    return levels.with_columns(share_ratio=divide(levels["peak_bytes"], levels["total_bytes"]))


def _headline_categories(top: Mapping[str, Any], levels: Frame) -> Iterator[Metric]:
    """Report the highest peak, and the share of it that torch could place."""
    total, label = top["peak_bytes"], "peak of tensors on one device"
    yield Metric("peak_tensors", total, "bytes", "lower", label=label)
    if total > 0:
        is_known = levels.equals("source", top["source"]) & ~levels.equals("category", CATEGORIES[-1])
        known_ratio = int(levels["peak_bytes"][is_known].sum()) / total
        yield make_evidence_metric("placed_ratio", known_ratio, "share with a category", better="higher")


def _list_category_caveats(levels: Frame) -> Iterator[str]:
    yield GUESSED
    yield _SIZES
    yield _DEVICE
    below = levels.filter(levels["least_bytes"] < 0)
    if len(below):
        yield (f"{len(below.distinct('source')):,} timelines have a category below 0: more was removed than added")


def _make_timeline_table(measured: Measurements, peaks: Frame) -> Sheet:
    by_source = measured.frame("category_levels").group_by("source")
    sums = by_source.agg(start_bytes=sum_of("start_bytes"), end_bytes=sum_of("end_bytes"))
    begin, end, peak = (peaks[name] for name in ("begin_ns", "end_ns", "peak_ts_ns"))
    timelines = peaks.with_columns(
        span_ns=Nullable(end.values - begin.values, end.missing | begin.missing),
        after_ns=Nullable(peak.values - begin.values, peak.missing | begin.missing),
    ).join(sums, ["source"])
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | timeline
            peak_bytes | peak | bytes | Peak of tensors.
            step | in step | id | By another profile of the process.
            stage | in stage | text | By another profile of the process.
            after_ns | after | ns | From the first change to the peak.
            start_bytes | before the recording | bytes
            end_bytes | at the end | bytes
            span_ns | recorded | ns | From the first change to the last.
            change_count | changes | count
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run",))
    return make_sheet("category_peaks", "Peaks of each memory timeline", headings, timelines, ranked=ranked)


def _make_category_table(measured: Measurements, levels: Frame) -> Sheet:
    is_used = levels["most_bytes"] | levels["least_bytes"] | levels["peak_bytes"]
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | timeline
            category | category | text | As guessed by torch's profiler.
            peak_bytes | at the peak | bytes | At the peak of all categories together.
            share_ratio | share | ratio
            most_bytes | its own peak | bytes | Its own peak.
            start_bytes | before the recording | bytes
            end_bytes | at the end | bytes
        """),
    )
    caption = "Shares of each timeline sum to 100 %."
    rows = levels.filter(is_used != 0)
    return make_sheet("category_levels", "Memory at the peak by category", headings, rows, caption=caption)


def _make_category_stage_table(measured: Measurements, peaks: Frame) -> Sheet:
    """List the peak of each stage by category, as far as the points of the curve show it."""
    curve, rows = measured.frame("category_curve"), []
    for peak in peaks.rows():
        stages = _select_windows(measured, list_stage_ranges(measured), peak)
        ts, levels = _spread_categories(curve.filter(curve.equals("source", peak["source"])))
        begin, names = stages["ts_ns"], stages.values("canonical")
        inside = find_window_at(begin, begin + stages["dur_ns"], ts).tolist()
        total = levels.sum(axis=1)
        highest: dict[str, int] = {}
        for place in np.argsort(-total, kind="stable").tolist():
            if inside[place] >= 0:
                highest.setdefault(names[inside[place]], place)
        for stage, place in highest.items():
            owner = (peak["run"], peak["who"], peak["source"])
            rows.append((*owner, stage, int(total[place]), *levels[place].tolist()))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | timeline
            stage | stage
            total_bytes | peak | bytes
        """),
        *(Heading(name, name.replace("_", " "), "bytes") for name in CATEGORIES),
    )
    caption = f"The stages are from another profile of the process. At most {CURVE_POINTS} points of a timeline are kept, so a peak next to a higher one of the next stage may be missed."
    table = from_rows(["run", "who", "source", "stage", "total_bytes", *CATEGORIES], rows)
    return make_sheet("category_stages", "Memory by stage and category", headings, table, caption=caption)


def _spread_categories(curve: Frame) -> tuple[Ints, Ints]:
    """Return (the stretches of time of one timeline in order, the bytes of each category in each)."""
    ts, stretch = np.unique(curve["ts_ns"], return_inverse=True)
    category = np.array([CATEGORIES.index(name) for name in curve.values("category")], np.int64)
    levels = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    np.add.at(levels, (stretch, category), curve["level_bytes"])
    return ts, levels


def _draw_categories(measured: Measurements, top: Mapping[str, Any]) -> Iterator[Chart]:
    """Draw the categories over time, stacked."""
    curve = measured.frame("category_curve")
    curve = curve.filter(curve.equals("source", top["source"]))
    if not len(curve):
        return
    ts, levels = _spread_categories(curve)
    joined_count = -(-len(ts) // MAX_DRAWN)
    bar = np.arange(len(ts)) // joined_count
    order = np.lexsort((-levels.sum(axis=1), bar))
    levels_drawn = levels[order[np.unique(bar, return_index=True)[1]]]
    used = np.flatnonzero(levels.any(axis=0)).tolist()
    begin = (ts[::joined_count] - ts[0]).tolist()
    end = [*begin[1:], len(ts) * int(curve["dur_ns"][0])]
    marks = [
        (series, low, high, level)
        for series, category in enumerate(used)
        for low, high, level in zip(begin, end, levels_drawn[:, category].tolist(), strict=True)
        if level
    ]
    yield Chart(
        "category-curve",
        f"Memory of {top['who']} by category over time",
        "histogram",
        tuple(marks),
        tuple(CATEGORIES[category].replace("_", " ") for category in used),
        unit="bytes",
        caption="Each bar shows the peak of all categories in its stretch of time. Categories are torch's guess.",
    )


ANALYSIS = Analysis(
    id="memory-categories",
    title="Which kinds of tensors use memory at its peak?",
    reads=("memory_categories",),
    writes=(CATEGORY_PEAKS, CATEGORY_LEVELS, CATEGORY_CURVE),
    measure=measure,
    judge=judge,
)
