"""The summary of a report: run facts, headline, caveats and missing data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from tracekit.discover.arguments import FileCounts, count_found_files, format_unread_counts
from tracekit.discover.sampling import SAMPLED
from tracekit.discover.selection import LEFT_OUT
from tracekit.job import gpu_shares
from tracekit.job.collectives.hangs.conflicts import describe_group_conflicts
from tracekit.job.engines.records import measure_engine_headline
from tracekit.job.frames import (
    ORIGIN_NOTES,
    REPEATING,
    STEP_BOUNDS,
    StepWalls,
    summarize_step_walls,
)
from tracekit.job.memory.pools import has_pausable, pool_notes
from tracekit.job.ray.tasks import measure_ray_headline
from tracekit.job.stages.durations import measure_stage_durations
from tracekit.job.stages.windows import list_undamaged_rows
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.job.steps.warm_up import DroppedStep
from tracekit.model import failed_questions
from tracekit.model.inputs.note_codes import FILTERED_ROWS, INTERLEAVED, LATE_ENDS, NO_EVENTS, NO_TIMES
from tracekit.model.recording.kinds import FOREIGN
from tracekit.model.report import Better, Metric
from tracekit.model.tables.frame import concat, count_rows, sum_of
from tracekit.model.tables.keys import PROCESS
from tracekit.model.text.labels import choose_plural, format_numbered_word, join_first_few, make_natural_key
from tracekit.model.trace import Measurements, Note
from tracekit.model.units import format_quantity, format_ranges
from tracekit.pipeline import question_selection
from tracekit.pipeline.summary.engine_logs import describe_engine_logs, describe_ray_timelines, has_no_profile
from tracekit.pipeline.summary.hang_files import describe_hang_files, has_only_hang_files
from tracekit.pipeline.summary.host_shares import measure_host_shares
from tracekit.pipeline.summary.number_types import list_number_types
from tracekit.pipeline.summary.repeating_names import shorten_repeating_name
from tracekit.pipeline.summary.run_logs import (
    describe_log_disagreements,
    describe_run_logs,
    measure_driver_step,
    measure_run_log_headline,
)

SPLIT_RUNS_CODE = "apart"
"""Code of the notes on directories that were split into several runs."""

MAX_NAMED_RUNS = 3
"""Most runs named with steps that do not count."""

MAX_PIECES = 12
"""Most ranges in a list of ranks or steps."""


def list_run_facts(measured: Measurements, left_out: Sequence[DroppedStep] = ()) -> tuple[str, ...]:
    """List the recorded facts of the first line: tool, ranks, steps, hardware. `left_out` steps do not count."""
    only_logs = failed_questions.judge_if_sound_and_asked(measured, has_no_profile, otherwise=False)
    facts = [
        measured.facts.title,
        "SIMULATED DATA" if measured.facts.simulated else "",
        _make_summary_fact(measured, describe_run_logs),
        _make_summary_fact(measured, _count_summary_runs),
        "" if only_logs else _make_summary_fact(measured, _list_run_ranks),
        _make_summary_fact(measured, _list_run_roles),
        _make_summary_fact(measured, partial(_list_run_steps, left_out=left_out)),
        _format_versions(measured),
        format_numbered_word("only", list_selected_stages(measured) or None),
        question_selection.describe_selection(measured),
        "" if only_logs else _make_summary_fact(measured, _describe_gpus),
        _make_summary_fact(measured, describe_engine_logs),
        _make_summary_fact(measured, describe_hang_files),
        _make_summary_fact(measured, describe_ray_timelines),
        _count_source_files(measured),
        _describe_check(measured),
        measured.facts.engine,
    ]
    return tuple(fact for fact in facts if fact)


def _make_summary_fact(measured: Measurements, part: Callable[[Measurements], str]) -> str:
    """Make one fact; it names its basis if other processes could not be measured, and is empty if none could."""
    phrase = failed_questions.judge_without_faults(
        measured, lambda whom: failed_questions.judge_if_asked(whom, part, "")
    )
    if phrase.value and phrase.faults:
        return f"{phrase.value} (of {failed_questions.describe_sound_captures(measured, phrase.faults)})"
    return phrase.value or ""


def _count_summary_runs(measured: Measurements) -> str:
    runs = _list_capture_values(measured, "run")
    return f"{len(runs)} runs" if len(runs) > 1 else ""


def _list_capture_values(measured: Measurements, column: str) -> list[Any]:
    """List the distinct known values of a column of captures, in order of appearance."""
    values = measured.frame("captures").distinct(column).values(column)
    return [value for value in values if value is not None]


def _list_run_ranks(measured: Measurements) -> str:
    """List ranks as `ranks 0–7 of 8`; gives the world size only if all captures agree."""
    ranks, worlds = sorted(_list_capture_values(measured, "rank")), _list_capture_values(measured, "world_size")
    if not ranks:
        return "" if has_only_hang_files(measured) else "ranks unknown"
    # Dumps of a larger job may lie beside the traces of a smaller one.
    world = f" of {worlds[0]}" if len(worlds) == 1 and ranks[-1] < worlds[0] else ""
    return _phrase_numbers("rank", ranks, world)


def _phrase_numbers(word: str, values: Sequence[int], suffix: str = "") -> str:
    """Format numbers as `ranks 0–7 of 8`, or `64 ranks of 1000: 0, 15, 31 …` if there are too many ranges."""
    short = format_ranges(values, MAX_PIECES)
    if short.endswith("…"):
        return f"{len(values):,} {word}s{suffix}: {short}"
    return f"{choose_plural(len(values), word)} {short}{suffix}"


def _list_run_roles(measured: Measurements) -> str:
    roles = _list_capture_values(measured, "role")
    return f"{len(roles)} roles" if len(roles) > 4 else ", ".join(roles)


def _list_run_steps(measured: Measurements, left_out: Sequence[DroppedStep]) -> str:
    """List steps as `steps 2–6 of 1–6 (1: warm-up step)`, or count captures without steps."""
    walls = summarize_step_walls(measured).walls
    numbered = walls.filter(~walls.is_missing("step"))
    steps = {(run or "", step) for run, step in zip(numbered.values("run"), numbered.values("step"), strict=True)}
    step_numbers = sorted({step for _, step in steps})
    counting = {step for _, step in steps - {(step.run, step.step) for step in left_out}}
    runs = {run for run, _ in steps}
    repeats = len(walls) and walls.is_in("origin", REPEATING).all()
    word = "window" if repeats else "step"
    if step_numbers and counting and left_out:
        return f"{_phrase_numbers(word, sorted(counting))} of {format_ranges(step_numbers, MAX_PIECES)} ({explain_left_out_steps(left_out, runs)})"
    if step_numbers:
        return _phrase_numbers(word, step_numbers)
    count = len(walls)
    return f"{count:,} {choose_plural(count, 'capture')} without a step number" if count else ""


def explain_left_out_steps(left_out: Sequence[DroppedStep], runs: Collection[str] = ()) -> str:
    """Explain why steps do not count, by reason: `1: warm-up step; 6: cut off`.

    Steps that not all of the `runs` leave out are named with their run: `6 in base: cut off`.
    """
    by_reason: dict[str, dict[int, list[str]]] = {}
    for step in left_out:
        by_reason.setdefault(step.reason, {}).setdefault(step.step or 0, []).append(step.run)
    parts = []
    for reason, runs_of in by_reason.items():
        by_runs: dict[tuple[str, ...], list[int]] = {}
        for number, named in sorted(runs_of.items()):
            by_runs.setdefault(tuple(dict.fromkeys(named)), []).append(number)
        for names, numbers in by_runs.items():
            where = "" if len(runs) < 2 or len(names) == len(runs) else f" in {join_first_few(names, MAX_NAMED_RUNS)}"
            parts.append(f"{format_ranges(numbers, MAX_PIECES)}{where}: {reason}")
    return "; ".join(parts)


def _format_versions(measured: Measurements) -> str:
    return _format_named_values(measured.facts.versions)


def _format_named_values(values: Mapping[str, str]) -> str:
    """Format values with their names, sorted by name."""
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _describe_gpus(measured: Measurements) -> str:
    """Describe the GPUs as `8 × H100`, by the number of devices seen, or explain that there are none."""
    if any(note.code == INTERLEAVED for note in measured.notes) or has_only_hang_files(measured):
        return ""
    if not measured.frame("captures").integers("device_op_count").any():
        only = _list_capture_values(measured, "tool") == ["torch_memory"]
        return "only memory was recorded" if only else _explain_missing_gpu(measured)
    devices = measured.frame("gpu_time").distinct(*PROCESS, "device")
    counts = sorted(devices.group_by("run").agg(count=count_rows()).values("count"))
    names = _list_capture_values(measured, "device_name") or ["GPU"]
    model = "mixed GPUs" if len(names) > 1 else names[0]
    if len(counts) < 2:
        return f"{len(devices)} × {model}"
    count = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"
    return f"{count} × {model} per run"


def _explain_missing_gpu(measured: Measurements) -> str:
    """Explain why there is no GPU, if the kind of all recordings shows it; else say that none was recorded."""
    kinds = {*measured.frame("recordings").values("kind")} - {None}
    if kinds == {"unread-accelerator"}:
        return "accelerator rows not read"
    if kinds and kinds <= FOREIGN:
        return "not a PyTorch trace"
    return "no GPU activity recorded"


def _count_source_files(measured: Measurements) -> str:
    """Count the files read: `24 files, 3.1 GiB`."""
    files = {source.name: source.size_bytes for source in measured.sources}
    count = len(files)
    return f"{count:,} {choose_plural(count, 'file')}, {format_quantity(sum(files.values()), 'bytes')}"


def _describe_check(measured: Measurements) -> str:
    """Describe the files of a second tool for the same steps: `checked by nsys: 8 files, 1.2 GiB`."""
    if measured.check is None:
        return ""
    tools = ", ".join(sorted({source.tool for source in measured.check.sources}))
    return f"checked by {tools}: {_count_source_files(measured.check)}"


def make_headline(measured: Measurements) -> tuple[Metric, ...]:
    """Make the metrics of the second line: step time, GPU shares, time outside stages; for snapshots the peaks."""
    step = _label_partial_metrics(measured, _measure_step_time)
    if not step:
        peaks = _label_partial_metrics(measured, _measure_memory_peaks)
        return (
            peaks
            or _label_partial_metrics(measured, measure_run_log_headline)
            or _label_partial_metrics(measured, measure_engine_headline)
            or _label_partial_metrics(measured, measure_ray_headline)
        )
    if has_split_runs(measured):
        return step
    return (
        *step,
        *_label_partial_metrics(measured, measure_driver_step),
        *_label_partial_metrics(measured, _measure_gpu_shares),
        *_label_partial_metrics(measured, measure_host_shares),
        *_label_partial_metrics(measured, _measure_outside_stages),
    )


def _label_partial_metrics(
    measured: Measurements, part: Callable[[Measurements], Sequence[Metric]]
) -> tuple[Metric, ...]:
    """Evaluate some headline metrics; each names its basis if other processes could not be measured."""
    nothing: Sequence[Metric] = ()
    numbers_of_part = failed_questions.judge_without_faults(
        measured, lambda whom: failed_questions.judge_if_asked(whom, part, nothing)
    )
    if not numbers_of_part.faults:
        return tuple(numbers_of_part.value or ())
    whom, metrics = (
        failed_questions.describe_sound_captures(measured, numbers_of_part.faults),
        numbers_of_part.value or (),
    )
    return tuple(replace(metric, label=f"{metric.label} (of {whom})") for metric in metrics)


def _measure_step_time(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the step time; empty if no step is known."""
    steps = summarize_step_walls(measured)
    if steps.step_ns is None:
        return ()
    walls = steps.walls
    if has_split_runs(measured):
        return _measure_run_steps(measured, steps)
    low: float | None = None
    high: float | None = None
    if len(walls) > 1:
        low, high = float(walls["wall_ns"].min()), float(walls["wall_ns"].max())
    runs = len(walls.distinct("run"))
    name = _name_step_unit(steps)
    bounds = "captures" if name == "capture" else STEP_BOUNDS
    if runs > 1:
        name = f"{name}, mean of {runs} runs"
    before_ns, of_start = _measure_start_up(measured)
    if before_ns:
        # Include the start-up: the headline covers the whole capture, rules only the rest.
        wall_ns, low, high = steps.step_ns + before_ns, None, None
        return (Metric("step_wall", wall_ns, "ns", "lower", label=name), *of_start)
    return (Metric("step_wall", steps.step_ns, "ns", "lower", low, high, name, bounds),)


def _measure_start_up(measured: Measurements) -> tuple[float, tuple[Metric, ...]]:
    """Measure the mean start-up of captures without step marks: (ns, the headline metric); (0, ()) without any."""
    of_runs = find_run_start_ups(measured)
    if not of_runs or not (measured.has("start_up_gpu") and measured.row_count("start_up_gpu")):
        return 0.0, ()
    runs = len(summarize_step_walls(measured).walls.distinct("run"))
    before_ns = sum(prefix.start_up_ns for prefix in of_runs) / max(runs, 1)
    calls = measured.frame("start_up")
    is_wait = calls.equals("window", "before") & calls.equals("kind", "wait")
    label = "start of recording" if is_wait.any() else "start-up"
    return before_ns, (Metric("start_up", before_ns, "ns", "lower", label=label),)


def _measure_outside_stages(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the share of steps outside any stage; empty if no stage is known."""
    walls = summarize_step_walls(measured).walls
    attributed = walls.filter(~walls.is_missing("attributed_ns") & ~walls.equals("origin", "stage"))
    wall_ns = float(attributed["wall_ns"].sum())
    if wall_ns <= 0 or list_selected_stages(measured):
        return ()
    gap = 1 - float(attributed.integers("attributed_ns").sum()) / wall_ns
    return (Metric("unattributed_ratio", gap, "ratio", "lower", label="outside any stage"),)


def has_split_runs(measured: Measurements) -> bool:
    """Check whether files of one directory were split into several runs."""
    return any(note.code == SPLIT_RUNS_CODE for note in measured.notes)


def _measure_run_steps(measured: Measurements, steps: StepWalls) -> tuple[Metric, ...]:
    """Measure the step time of each run, longest first; runs that do not belong together have no common mean."""
    metrics: list[Metric] = []
    before = {prefix.run: prefix.start_up_ns for prefix in find_run_start_ups(measured)}
    for run in steps.walls.distinct("run").values("run"):
        of_run = steps.select_run(run)
        if of_run.step_ns is not None:
            label = f"{_name_step_unit(of_run)} of {run}"
            wall_ns = of_run.step_ns + before.get(run, 0)
            metrics.append(Metric("step_wall", wall_ns, "ns", "lower", label=label))
    return tuple(sorted(metrics, key=attrgetter("value"), reverse=True)[:MAX_RUN_STEPS])


def _name_step_unit(steps: StepWalls) -> str:
    """Name the windows measured as steps, by their origin."""
    walls = steps.walls
    origins, is_numbered = walls.distinct("origin").values("origin"), not walls.is_missing("step").all()
    if not is_numbered and (len(origins) > 1 or origins == ["file"]):
        return "capture"
    if len(origins) > 1:
        return "step"
    names = sorted({shorten_repeating_name(name) for name in walls.values("name") if name is not None})
    listed = ", ".join(names[:1]) + (", …" if len(names) > 1 else "")
    return ORIGIN_NOTES[origins[0]].format(name=listed)


MAX_RUN_STEPS = 6
"""Most runs of one directory with a step time in the headline."""


def _measure_memory_peaks(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the highest memory level of any GPU, from snapshots or else timelines; empty without both."""
    levels = measured.frame("snapshot_levels")
    levels = levels.filter(levels.equals("memory", "device"))
    rows = levels
    columns = [
        ("peak_requested", "peak_bytes", "peak requested on one GPU"),
        ("peak_reserved", "reserved_peak_bytes", "peak reserved on one GPU"),
    ]
    if not len(rows):
        rows = measured.frame("category_peaks")
        columns = [("peak_tensors", "peak_bytes", "peak of tensors on one device")]
    counted_in = ""
    if failed_questions.judge_if_sound_and_asked(
        measured, lambda whom: bool(has_pausable(whom, levels).any()), otherwise=False
    ):
        counted_in = " (with pools that may be unmapped)"
    return tuple(
        Metric(name, int(rows.integers(column).max()), "bytes", "lower", label=f"{label}{counted_in}")
        for name, column, label in columns
        if not rows.is_missing(column).all()
    )


def list_selected_stages(measured: Measurements) -> str:
    """List the stages of a selection; empty if all were requested."""
    return ", ".join(measured.facts.stages)


_GPU_SHARES: tuple[tuple[str, str, Better], ...] = (
    ("compute_ratio", "compute", "higher"),
    ("exposed_comm_ratio", "exposed comm", "lower"),
    ("copy_ratio", "copies", "lower"),
    ("idle_ratio", "idle", "lower"),
)


def _measure_gpu_shares(measured: Measurements) -> list[Metric]:
    """Measure GPU shares of the steps, summed over devices; of the whole capture if no step is known."""
    if not measured.row_count("gpu_time"):
        return []
    rows = list_undamaged_rows(measured, "gpu_time")
    if not len(rows):
        return []
    window = "stage" if list_selected_stages(measured) else "step"
    if not rows.equals("window", window).any():
        window = "capture"
    rows = rows.filter(rows.equals("window", window))
    if window == "step" and _measure_start_up(measured)[0]:
        before = list_undamaged_rows(measured, "start_up_gpu")
        rows = concat([part.select(*gpu_shares.GPU_TIME_SUMS) for part in (rows, before)])
    total = rows.group_by().agg(**{name: sum_of(name) for name in gpu_shares.GPU_TIME_SUMS})
    shares = next(gpu_shares.append_gpu_time_shares(total).rows())
    copies = shares["exposed_memcpy_ratio"], shares["exposed_memset_ratio"]
    shares["copy_ratio"] = None if None in copies else sum(copies)
    return [Metric(name, shares.get(name), "ratio", better, label=label) for name, label, better in _GPU_SHARES]


def count_files_by_state(measured: Measurements) -> FileCounts:
    """Count the files read and, by state, those not read; see `discover.arguments.counted`."""
    read = {source.name for source in measured.sources}
    failed = {failure.source for failure in measured.failures}
    return count_found_files(len(read), len(failed), measured.facts.files)


def list_caveats(measured: Measurements) -> tuple[str, ...]:
    """List caveats on all numbers: split runs, removed rows, truncated late ends, files that disagree, unmapped pools."""
    nothing: tuple[str, ...] = ()
    parts = describe_log_disagreements, describe_group_conflicts, lambda whom: tuple(pool_notes(whom))
    apart = (note.message for note in measured.notes if note.code == SPLIT_RUNS_CODE)
    filtered, late = ([note for note in measured.notes if note.code == code] for code in (FILTERED_ROWS, LATE_ENDS))
    judged = (caveat for part in parts for caveat in failed_questions.judge_if_sound_and_asked(measured, part, nothing))
    return (*apart, *_describe_removed_rows(filtered), *_describe_cut_ends(late), *judged)


def _describe_removed_rows(notes: Sequence[Note]) -> Iterator[str]:
    """Describe the sources with removed rows in one sentence; empty without any."""
    if not notes:
        return
    left = sum(kept for note in notes if isinstance(kept := note.data.get("left"), int))
    recorded = left + sum(note.count for note in notes)
    yield (
        f"rows were removed after the recording ({format_quantity(left / recorded, 'ratio')} of the operators are left): "
        "idle time, counts and shares are not those of the run"
    )


def _describe_cut_ends(notes: Sequence[Note]) -> Iterator[str]:
    """Describe the device ops with truncated late ends in one sentence, over all sources; empty without any."""
    if not notes:
        return
    count = sum(note.count for note in notes)
    ops = f"{count:,} device {choose_plural(count, 'op')} ended after the next op of the same stream"
    yield f"{ops} (a late time stamp, as on ROCm); they were cut to end before it"


def list_unseen(measured: Measurements) -> tuple[str, ...]:
    """List the data missing from the numbers: failed, damaged or ignored sources, samples and selections."""
    sources = [f"{failure.source} ({failure.problem})" for failure in measured.failures]
    choices: list[str] = []
    # The recording kind already reports files that two processes wrote.
    mixed = {note.source for note in measured.notes if note.code == INTERLEAVED}
    for note in measured.notes:
        if note.source in mixed:
            continue
        if note.severity == "data_loss" or note.code in (NO_EVENTS, NO_TIMES):
            sources.append(f"{note.source} ({note.message})")
        if note.code in (SAMPLED, LEFT_OUT):
            choices.append(note.message)
    if len(sources) > MAX_UNSEEN:
        sources[MAX_UNSEEN:] = [f"{len(sources) - MAX_UNSEEN:,} more such sources"]
    counts = count_files_by_state(measured)
    if len(counts) > 1:
        sources.insert(0, format_unread_counts(counts))
    return (*sources, *choices, *measured.facts.ignored)


MAX_UNSEEN = 8
"""Most sources named one by one in the summary; the remarks list all."""


def list_comparable_facts(measured: Measurements) -> tuple[tuple[str, str], ...]:
    """List the facts that two comparable reports share: hardware, world size, roles, stages, versions, options."""
    pairs = (
        (name, failed_questions.judge_if_sound_and_asked(measured, part, ""))
        for name, part in _COMPARABLE_FACTS.items()
    )
    return tuple((name, value) for name, value in pairs if value)


def _make_capture_lister(column: str) -> Callable[[Measurements], str]:
    """Make a function that lists the distinct values of a column of captures."""
    return lambda measured: _join_sorted_distinct(_list_capture_values(measured, column))


def _list_compared_ranks(measured: Measurements) -> str:
    """List the ranks in the order of their numbers."""
    return ", ".join(sorted({str(rank) for rank in _list_capture_values(measured, "rank")}, key=make_natural_key))


def _list_compared_stages(measured: Measurements) -> str:
    return _join_sorted_distinct(measure_stage_durations(measured).values("canonical"))


def _join_sorted_distinct(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


_COMPARABLE_FACTS: Mapping[str, Callable[[Measurements], str]] = {
    "gpu": _make_capture_lister("device_name"),
    "world_size": _make_capture_lister("world_size"),
    "ranks": _list_compared_ranks,
    "roles": _make_capture_lister("role"),
    "backend": _make_capture_lister("backend"),
    "stages": _list_compared_stages,
    "versions": _format_versions,
    "profiler options": lambda measured: _format_named_values(measured.facts.options),
    "number types": list_number_types,
}
"""The functions behind a fingerprint; a part that failed is left out."""
