"""What are the tensors for that fill memory at its peak? (memory timelines of torch.profiler)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import from_epoch, run_heading, stage_rows, text_or_none
from tracekit.job.memory.trend import Allocator
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.intervals import window_at
from tracekit.model.keys import CAPTURE, PROCESS, joined, row_dicts
from tracekit.model.report import Chart, Heading, Metric, Ranked, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import TS
from tracekit.model.tables.snapshots import CATEGORIES, TORCH_CATEGORY
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.categories import highest, levels_at, moments

CATEGORY_PEAKS = Table(
    "category_peaks",
    "what one memory timeline tells of all categories together",
    {
        **KEYS,
        "change_count": Column("int64", "Rows of memory_categories."),
        "begin_ns": Column("Int64", "First change, ns on the clock of ts_ns."),
        "end_ns": Column("Int64", "Last change."),
        "peak_bytes": Column("int64", "Most held at one time."),
        "peak_ts_ns": Column("Int64", "When first; <NA>: before the recording began."),
    },
)

CATEGORY_LEVELS = Table(
    "category_levels",
    "what one category of a memory timeline holds",
    {
        **KEYS,
        "category": TORCH_CATEGORY,
        "start_bytes": Column("int64", "Held before the recording began."),
        "peak_bytes": Column("int64", "Held when all categories together held most."),
        "end_bytes": Column("int64", "Held at the end."),
        "most_bytes": Column("int64", "Most of it alone held at one time."),
        "least_bytes": Column("int64", "Least of it; below 0 the timeline contradicts itself."),
    },
)

CATEGORY_CURVE = Table(
    "category_curve",
    "what one category holds when, in one stretch of time, all hold most: at most 400 stretches a source",
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

GUESSED = (
    "categories are what torch's profiler made out of how tensors are used, with heuristics that can be wrong; "
    "unknown is what it could not place"
)
_SIZES = (
    "bytes are those of tensors' storage as the allocator told the profiler, of tensors older than the recording "
    "by their shapes; older ones that no profiled op touched, and what lies outside PyTorch's allocator, are missing"
)
_DEVICE = "a timeline is of one device, and does not say of which: torch takes GPU 0 unless it is told another, or the CPU where there is no GPU"
_OWNER = (*PROCESS, "replica")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What every category holds before the recording, at the peak of all together, at the end, and over time."""
    if not trace.has("memory_categories") or not len(trace["memory_categories"]):
        return {}
    rows = trace["memory_categories"]
    moment_levels = trace.derived(moments)
    peak_entry, last = moment_levels.peak(), len(moment_levels.row) - 1
    start, peak, end = levels_at(rows, moment_levels.row[[0, peak_entry, last]])
    assert int(peak.sum()) == int(moment_levels.total[peak_entry])
    timed = last > 0
    level, code = rows["level_bytes"].to_numpy(), rows["category"].cat.codes.to_numpy()
    by_category = [np.append(start[c], level[code == c]) for c in range(len(CATEGORIES))]
    begin, length, chosen = highest(moment_levels, CURVE_POINTS)
    curve = levels_at(rows, moment_levels.row[chosen])
    used = np.flatnonzero(curve.any(axis=0))
    return {
        "category_peaks": {
            "change_count": [len(rows)],
            "begin_ns": pd.array([int(moment_levels.ts_ns[0]) if timed else pd.NA], dtype="Int64"),
            "end_ns": pd.array([int(moment_levels.ts_ns[last]) if timed else pd.NA], dtype="Int64"),
            "peak_bytes": moment_levels.total[[peak_entry]],
            "peak_ts_ns": pd.array(
                [int(moment_levels.ts_ns[peak_entry]) if peak_entry else pd.NA], dtype="Int64"
            ),
        },
        "category_levels": {
            "category": _named(np.arange(len(CATEGORIES))),
            "start_bytes": start,
            "peak_bytes": peak,
            "end_bytes": end,
            "most_bytes": np.array([values.max() for values in by_category]),
            "least_bytes": np.array([values.min() for values in by_category]),
        },
        "category_curve": {
            "ts_ns": np.repeat(begin, len(used)),
            "dur_ns": np.repeat(length, len(used)),
            "category": _named(np.tile(used, len(begin))),
            "level_bytes": curve[:, used].ravel(),
        },
    }


def _named(codes: Any) -> pd.Categorical:
    """Categories by their numbers."""
    return pd.Categorical.from_codes(codes, categories=pd.Index(list(CATEGORIES), dtype="str"))


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """The categories at the peak of every timeline; None where none was read."""
    if not measured.row_count("category_peaks"):
        return None
    peaks = _peaks(measured)
    levels = _levels(measured, peaks)
    top = peaks.iloc[0]
    return ANALYSIS.answered(
        metrics=lambda: _headline(top, levels),
        sheets=lambda: with_rows(
            _peak_sheet(measured, peaks),
            _level_sheet(measured, levels),
            _stage_sheet(measured, peaks),
        ),
        caveats=lambda: _caveats(levels),
        charts=lambda: _charts(measured, top),
    )


def _peaks(measured: Measurements) -> pd.DataFrame:
    """The rows of `category_peaks`, plain, the highest first, with `who` and the `stage` and `step` then."""
    rows = measured["category_peaks"]
    order = ["peak_bytes", "source"]
    rows = rows.sort_values(order, ascending=[False, True], kind="stable", ignore_index=True)
    places = [_place(measured, row) for row in row_dicts(rows)]
    return rows.assign(
        who=[_process(row) for row in row_dicts(rows)],
        stage=np.array([stage for stage, _ in places], object),
        step=pd.array([step for _, step in places], dtype="Int64"),
    )


def _process(row: Mapping[Any, Any]) -> str:
    """Whose timeline it is: `rank 3 actor`."""
    process: dict[str, Any] = {name: None if pd.isna(row[name]) else row[name] for name in _OWNER}
    return Allocator(**process, device_type=None, device=None).process


def _place(measured: Measurements, row: Mapping[Any, Any]) -> tuple[str | None, Any]:
    """(the stage, the step) of the peak of a timeline, as another profile of its process tells."""
    if pd.isna(row["peak_ts_ns"]):
        return None, pd.NA
    names: list[Any] = []
    for windows, name in ((stage_rows(measured), "canonical"), (measured["steps"], "step")):
        of_process = _of_process(measured, windows, row)
        start = of_process["ts_ns"].to_numpy()
        end = start + of_process["dur_ns"].to_numpy()
        inside = window_at(start, end, np.array([row["peak_ts_ns"]], np.int64))
        names.append(of_process[name].iloc[int(inside[0])] if inside[0] >= 0 else pd.NA)
    return text_or_none(names[0]), names[1]


def _of_process(
    measured: Measurements, windows: pd.DataFrame, row: Mapping[Any, Any]
) -> pd.DataFrame:
    """The windows, in order, of the process of a timeline: of its rank, or of the only process there is.

    None where the clocks of the two are not known to be one.
    """
    of_process: pd.DataFrame = windows[windows["run"] == row["run"]]
    if pd.isna(row["rank"]):
        several = len(of_process[["rank", "host", "pid"]].drop_duplicates()) > 1
        of_process = of_process.iloc[:0] if several else of_process
    for name in ("rank", "role", "replica"):
        if not pd.isna(row[name]):
            of_process = of_process[of_process[name].eq(row[name]).fillna(value=False)]
    keys = [{name: row[name] for name in CAPTURE}, *row_dicts(of_process[[*CAPTURE]])]
    if not from_epoch(measured, pd.DataFrame(keys, dtype=object)):
        of_process = of_process.iloc[:0]
    return of_process.sort_values("ts_ns", kind="stable")


def _levels(measured: Measurements, peaks: pd.DataFrame) -> pd.DataFrame:
    """The rows of `category_levels`, plain, in the order of peaks, the largest category first, with shares."""
    rows = measured["category_levels"]
    totals = peaks[["source", "who", "peak_bytes"]].rename(columns={"peak_bytes": "total_bytes"})
    rows = joined(rows, totals.reset_index(names="place"), ["source"])
    assert (rows.groupby("place")["peak_bytes"].sum() == peaks["peak_bytes"]).all()
    rows = rows.sort_values(["place", "peak_bytes"], ascending=[True, False], kind="stable")
    total = rows["total_bytes"].where(rows["total_bytes"] > 0)
    return rows.assign(share_ratio=(rows["peak_bytes"] / total).astype("Float64"))


def _headline(top: pd.Series[Any], levels: pd.DataFrame) -> Iterator[Metric]:
    """The highest peak, and how much of it torch could place."""
    total = int(top["peak_bytes"])
    yield Metric(
        "peak_tensors", total, "bytes", "lower", label="most held by tensors on one device"
    )
    if total > 0:
        of_source = levels[levels["source"] == top["source"]]
        known_bytes = int(
            of_source.loc[of_source["category"] != CATEGORIES[-1], "peak_bytes"].sum()
        )
        yield evidence("placed_ratio", known_bytes / total, "of it in a category", better="higher")


def _caveats(levels: pd.DataFrame) -> Iterator[str]:
    yield GUESSED
    yield _SIZES
    yield _DEVICE
    below = levels["least_bytes"] < 0
    if below.any():
        yield (
            f"{levels.loc[below, 'source'].nunique():,} timelines let a category fall below nothing: "
            "more was taken from it than was put in"
        )


def _peak_sheet(measured: Measurements, peaks: pd.DataFrame) -> Sheet:
    sums = measured["category_levels"].groupby("source")[["start_bytes", "end_bytes"]].sum()
    peak_rows = joined(peaks, sums.reset_index(), ["source"]).assign(
        span_ns=(peaks["end_ns"] - peaks["begin_ns"]).astype("Int64"),
        after_ns=(peaks["peak_ts_ns"] - peaks["begin_ns"]).astype("Int64"),
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            source | timeline
            peak_bytes | peak | bytes | Most held by tensors at one time.
            step | in step | id | As another profile of the process tells.
            stage | in stage | text | As another profile of the process tells.
            after_ns | after | ns | From the first change to the peak.
            start_bytes | before the recording | bytes
            end_bytes | at the end | bytes
            span_ns | recorded | ns | From the first change to the last.
            change_count | changes | count
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run",))
    return sheet(
        "category_peaks", "Peaks of each memory timeline", headings, peak_rows, ranked=ranked
    )


def _level_sheet(measured: Measurements, levels: pd.DataFrame) -> Sheet:
    level_rows = levels[(levels[["most_bytes", "least_bytes", "peak_bytes"]] != 0).any(axis=1)]
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            source | timeline
            category | category | text | As torch's profiler guessed it.
            peak_bytes | at the peak | bytes | Held when all categories together held most.
            share_ratio | share | ratio
            most_bytes | its own peak | bytes | Most of it alone at any time.
            start_bytes | before the recording | bytes
            end_bytes | at the end | bytes
        """),
    )
    caption = "Shares of each timeline sum to 100 %."
    return sheet(
        "category_levels", "What fills memory at the peak", headings, level_rows, caption=caption
    )


def _stage_sheet(measured: Measurements, peaks: pd.DataFrame) -> Sheet:
    """What each stage holds when it holds most, as far as the points of the curve tell."""
    stretches = dict(iter(measured["category_curve"].groupby("source", sort=False)))
    parts = []
    for row in row_dicts(peaks):
        stages = _of_process(measured, stage_rows(measured), row)
        if row["source"] not in stretches or not len(stages):
            continue
        wide = _wide(stretches[row["source"]])
        start = stages["ts_ns"].to_numpy()
        inside = window_at(
            start, start + stages["dur_ns"].to_numpy(), wide.index.to_numpy(np.int64)
        )
        wide = wide[inside >= 0].assign(
            total_bytes=lambda frame: frame.sum(axis=1),
            stage=stages["canonical"].to_numpy(object)[inside[inside >= 0]],
        )
        best = wide.sort_values("total_bytes", ascending=False, kind="stable")
        best = best.drop_duplicates("stage")
        parts.append(best.assign(who=row["who"], source=row["source"], run=row["run"]))
    if not parts:
        return Sheet("category_stages", "", (), ())
    stage_peaks = pd.concat(parts, ignore_index=True)
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            source | timeline
            stage | stage
            total_bytes | peak | bytes
        """),
        *(Heading(name, name.replace("_", " "), "bytes") for name in CATEGORIES),
    )
    caption = (
        f"Stages as another profile of the process tells. Of a timeline {CURVE_POINTS} points at most are kept: "
        "beside a higher one in the next stage a peak may be missed."
    )
    return sheet(
        "category_stages", "Memory by stage and category", headings, stage_peaks, caption=caption
    )


def _wide(curve: pd.DataFrame) -> pd.DataFrame:
    """One row a stretch of time of one timeline, one column a category: one that is not there held nothing."""
    wide = curve.pivot_table(index="ts_ns", columns="category", values="level_bytes", aggfunc="sum")
    return wide.reindex(columns=list(CATEGORIES)).fillna(0).astype(np.int64)


def _charts(measured: Measurements, top: pd.Series[Any]) -> Iterator[Chart]:
    """The categories over time, stacked."""
    curve = measured["category_curve"]
    curve = curve[(curve["source"] == top["source"]).to_numpy()]
    if not len(curve):
        return
    wide = _wide(curve)
    length = int(curve["dur_ns"].iloc[0])
    joined_count = -(-len(wide) // MAX_DRAWN)
    number = np.arange(len(wide)) // joined_count
    order = np.lexsort((-wide.sum(axis=1).to_numpy(), number))
    drawn = wide.iloc[order[np.unique(number, return_index=True)[1]]]
    names = [name for name in CATEGORIES if wide[name].any()]
    begin = (wide.index.to_numpy(np.int64)[::joined_count] - int(wide.index[0])).tolist()
    end = [*begin[1:], len(wide) * length]
    marks = [
        (series, low, high, int(value))
        for series, name in enumerate(names)
        for low, high, value in zip(begin, end, drawn[name], strict=True)
        if value
    ]
    yield Chart(
        "category-curve",
        f"Memory of {top['who']} by category over time",
        "histogram",
        tuple(marks),
        tuple(name.replace("_", " ") for name in names),
        unit="bytes",
        caption="Each bar shows the moment of its stretch of time at which all categories together held most. "
        "Categories are torch's guess.",
    )


ANALYSIS = Analysis(
    id="memory-categories",
    title="What are the tensors for that fill memory at its peak?",
    reads=("memory_categories",),
    writes=(CATEGORY_PEAKS, CATEGORY_LEVELS, CATEGORY_CURVE),
    measure=measure,
    judge=judge,
)
