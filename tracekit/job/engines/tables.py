"""Tables and charts of rollout engines and of the machine's GPUs, by their logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracekit.job.engines.records import Bools, EngineRecord
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Chart, Sheet, Unit
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.trace import Measurements

MAX_SLICES = 5
"""Most rows per engine in the table over time."""

MAX_CHARTED = 8
"""Most engines in one chart."""

MAX_POINTS = 400
"""Most points of one line."""


_BY_ENGINE = """
    engine | engine
    source | log
    span_ns | time | ns | From the first to the last sample.
    samples | samples | count
    tokens_per_s | tokens/s | number | Generated, mean over the time with requests.
    running | running | number | Requests that run, mean over the same time.
    waiting | waiting | number | Requests that wait, mean over the same time.
    kv_ratio | KV cache | ratio | In use, mean over the same time.
    kv_peak_ratio | most | ratio | Highest use of the KV cache.
    hit_ratio | prefix hits | ratio | Last value: vLLM's is over the latest requests.
    preempted | preempted | count | Requests preempted or retracted.
"""


def make_engine_table(measured: Measurements, records: Sequence[EngineRecord]) -> Sheet:
    """Make the table of one row per engine."""
    rows = [(record.run, record.title, record.source, *_summarize_engine(record, record.is_busy)) for record in records]
    headings = (*make_run_heading(measured), *parse_headings(_BY_ENGINE))
    frame = from_rows(("run", *(h.name for h in parse_headings(_BY_ENGINE))), rows)
    return make_sheet("engines", "Rollout engines, by their logs", headings, frame)


def _summarize_engine(record: EngineRecord, among: Bools) -> tuple[float | int | None, ...]:
    """Summarize the samples of an engine: the cells of a row after the engine."""
    kv = record.levels["kv_ratio"][among]
    preempted = record.levels["preemptions"][among | ~record.has_state]
    span = None if record.at_s is None else round(float(record.at_s.max()) * 1e9)
    hit = record.levels["prefix_hit_ratio"]
    hit = hit[~np.isnan(hit)]
    return (
        span,
        int(record.has_state.sum()),
        *(record.average(name, among) for name in _SLICE_LEVELS),
        float(np.nanmax(kv)) if (~np.isnan(kv)).any() else None,
        float(hit[-1]) if len(hit) else None,
        int(np.nansum(preempted)) if (~np.isnan(preempted)).any() else None,
    )


_OVER_TIME = """
    engine | engine
    at_ns | from | ns | Since the first sample of the log.
    tokens_per_s | tokens/s | number | Generated; mean of the time with requests.
    running | running | number
    waiting | waiting | number
    kv_ratio | KV cache | ratio | In use.
    preempted | preempted | count | Requests preempted or retracted.
"""


def make_engine_time_table(measured: Measurements, records: Sequence[EngineRecord]) -> Sheet:
    """Make the table of every engine over time, in at most `MAX_SLICES` equal slices."""
    rows: list[tuple[Any, ...]] = []
    for record in records:
        if record.at_s is None or record.has_state.sum() < 2:
            continue
        length = max(float(record.at_s.max()) / MAX_SLICES, 1.0)
        of_slice = np.minimum((record.at_s // length).astype(np.int64), MAX_SLICES - 1)
        for number in np.unique(of_slice).tolist():
            inside = of_slice == number
            start_ns = round(number * length * 1e9)
            rows.append((record.run, record.title, start_ns, *_summarize_slice(record, inside)))
    headings = (*make_run_heading(measured), *parse_headings(_OVER_TIME))
    if len(records) == 1:
        headings = tuple(heading for heading in headings if heading.name != "engine")
    frame = from_rows(("run", *(h.name for h in parse_headings(_OVER_TIME))), rows)
    return make_sheet("engine_time", "The engine over time", headings, frame)


def _summarize_slice(record: EngineRecord, inside: Bools) -> tuple[float | int | None, ...]:
    """Summarize the samples of an engine within some time: the cells of a row after the time."""
    preempted = record.levels["preemptions"][inside]
    return (
        *(record.average(name, inside & record.is_busy) for name in _SLICE_LEVELS),
        int(np.nansum(preempted)) if (~np.isnan(preempted)).any() else None,
    )


_SLICE_LEVELS = ("generation_tokens_per_s", "running", "waiting", "kv_ratio")


def make_engine_totals_table(measured: Measurements) -> Sheet:
    """Make the table of counters, sleeps and settings: one scrape gives totals only."""
    rows = measured.frame("engine_levels")
    rows = rows.filter(rows.is_in("kind", ("total", "setting")) | rows.is_in("key", _SLEEP_KEYS))
    rows = rows.with_columns(value=rows["last"])
    headings = (*make_run_heading(measured), *parse_headings(_TOTALS))
    return make_sheet(
        "engine_totals", "Counters and settings of the engines", headings, rows.sort("run", "system", "engine", "key")
    )


_TOTALS = """
    system | system
    engine | engine
    key | quantity
    kind | kind | text | total: since the engine's start. setting: configured. count: in one line.
    value | last | number
    high | highest | number
    count | values | count
"""

_SLEEP_KEYS = ("sleep_freed_bytes", "sleep_in_use_bytes", "fall_asleep_s", "wake_up_s")


def make_sampled_gpu_table(measured: Measurements) -> Sheet:
    """Make the table of every GPU that nvidia-smi or dcgmi sampled."""
    rows = measured.frame("engine_levels")
    rows = rows.filter(rows.is_in("system", ("nvidia-smi", "dcgm")))
    cells = [_summarize_gpu(of_gpu) for of_gpu in rows.group_by("run", "source", "system", "engine").frames()]
    headings = (*make_run_heading(measured), *parse_headings(_BY_GPU))
    frame = from_rows(("run", *(heading.name for heading in parse_headings(_BY_GPU))), cells)
    caption = "Busy: the share of time with any kernel, however small. SMs active: the share of busy SMs (dcgmi 1002)."
    return make_sheet("machine_gpus", "GPUs of the machine, as sampled", headings, frame, caption=caption)


def make_sampled_process_table(measured: Measurements) -> Sheet:
    """Make the table of every process on a GPU that `nvidia-smi pmon` sampled."""
    rows = measured.frame("engine_levels")
    rows = rows.filter(rows.equals("system", "nvidia-smi pmon"))
    cells = [_summarize_process(of_process) for of_process in rows.group_by("run", "source", "engine").frames()]
    headings = parse_headings(_BY_PROCESS)
    frame = from_rows(("run", *(heading.name for heading in headings)), cells)
    caption = "Busy: mean of the active samples, in which nvidia-smi prints a share."
    return make_sheet(
        "machine_processes",
        "Processes on the GPUs, as sampled",
        (*make_run_heading(measured), *headings),
        frame,
        caption=caption,
    )


_BY_PROCESS = """
    process | GPU and process | text | Its command and process id.
    samples | samples | count
    active_samples | active | count | Samples with a share of time: nvidia-smi prints `-` for a process that ran nothing.
    busy_ratio | busy | ratio | Share of time with a kernel of the process, mean of the active samples.
    busy_most_ratio | most busy | ratio | Highest sample.
    memory_busy_ratio | memory traffic | ratio | Mean.
    memory_bytes | memory used | bytes | Mean.
    memory_peak_bytes | most | bytes | Highest sample.
"""

_PROCESS_CELLS = (
    *(("gpu_busy_ratio", "count"), ("gpu_busy_ratio", "mean"), ("gpu_busy_ratio", "high")),
    *(("memory_busy_ratio", "mean"), ("memory_used_bytes", "mean"), ("memory_used_bytes", "high")),
)


def _summarize_process(levels: Frame) -> tuple[Any, ...]:
    """Summarize the levels of one process on one GPU: the cells of its row."""
    return _summarize_sampled(levels, _PROCESS_CELLS)


_BY_GPU = """
    gpu | GPU
    samples | samples | count
    busy_ratio | busy | ratio | utilization.gpu, mean.
    idle_most_ratio | least busy | ratio | Lowest sample.
    active_ratio | SMs active | ratio | Mean.
    tensor_ratio | tensor cores | ratio | Mean.
    dram_ratio | DRAM | ratio | Mean.
    memory_bytes | memory used | bytes | Mean.
    memory_peak_bytes | most | bytes | Highest sample.
    memory_total_bytes | of | bytes
    power_w | power W | number | Mean.
"""

_GPU_CELLS = (
    *(("gpu_busy_ratio", "mean"), ("gpu_busy_ratio", "low"), ("sm_active_ratio", "mean")),
    *(("tensor_active_ratio", "mean"), ("dram_active_ratio", "mean"), ("memory_used_bytes", "mean")),
    *(("memory_used_bytes", "high"), ("memory_total_bytes", "high"), ("power_w", "mean")),
)


def _summarize_gpu(levels: Frame) -> tuple[Any, ...]:
    """Summarize the levels of one GPU: the cells of its row."""
    return _summarize_sampled(levels, _GPU_CELLS)


def _summarize_sampled(levels: Frame, names: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Summarize the levels of one GPU or process: run, name, samples, and the values by (key, summary)."""
    values = {(row["key"], name): row[name] for row in levels.rows("key", *_SUMMARIES) for name in _SUMMARIES}
    cells = (values.get(name) for name in names)
    return levels.values("run")[0], levels.values("engine")[0], int(levels.integers("count").max()), *cells


_SUMMARIES = ("mean", "low", "high", "count")


def list_engine_caveats(records: Sequence[EngineRecord]) -> Iterator[str]:
    """List the caveats on the samples."""
    if any(record.at_s is None for record in records):
        yield "scrapes without times: shares are of the scrapes, and counters give no rates"
    if any(record.system == "vllm" and record.at_s is not None for record in records):
        yield "vLLM logs nothing while it is idle: gaps between lines are idle time, not lost lines"
    if any(record.system == "sglang" for record in records):
        yield "SGLang's throughput is tokens over the wall between decode logs: prefills in between lower it"


def draw_engines(records: Sequence[EngineRecord]) -> Iterator[Chart]:
    """Draw requests, KV cache and throughput of the engines over time, on the log's clock."""
    timed = [record for record in records if record.at_s is not None and record.has_state.sum() > 1]
    chosen = sorted(timed, key=lambda record: -(record.average("waiting") or 0.0))[:MAX_CHARTED]
    lines: tuple[tuple[str, str, tuple[str, ...], Unit], ...] = (
        ("engine-requests", "Running and waiting requests", ("running", "waiting"), "count"),
        ("engine-kv", "KV cache in use", ("kv_ratio",), "ratio"),
        ("engine-throughput", "Generated tokens per second", ("generation_tokens_per_s",), ""),
    )
    for name, title, levels, unit in lines:
        marks: list[tuple[float, ...]] = []
        series: list[str] = []
        for record in chosen:
            for level in levels:
                marks += [(len(series), *point) for point in _thin_line(record, level)]
                series.append(f"{record.title} {level}" if len(levels) > 1 else record.title)
        if marks:
            yield Chart(name, title, "lines", tuple(marks), tuple(series), unit=unit, caption=_CHART_CAPTION)


_CHART_CAPTION = "Mean of neighbouring samples; every engine from the first line of its log."


def _thin_line(record: EngineRecord, level: str) -> list[tuple[int, float]]:
    """Thin the points of a line to `MAX_POINTS`: means of neighbouring samples."""
    assert record.at_s is not None, "only timed records are drawn"
    known = ~np.isnan(record.levels[level]) & record.has_state
    at, values = record.at_s[known], record.levels[level][known]
    if not len(at):
        return []
    bins = np.arange(len(at)) * MAX_POINTS // max(len(at), MAX_POINTS)
    begin = np.flatnonzero(np.diff(bins, prepend=-1))
    size = np.diff(np.append(begin, len(at)))
    means = np.add.reduceat(values, begin) / size
    return list(zip(np.rint(at[begin] * 1e9).astype(np.int64).tolist(), means.tolist(), strict=True))
