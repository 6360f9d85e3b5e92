"""Start-up in the recording: first calls by kind, before the work and inside steps (R38)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    UNIT,
    clear_redundant_parts,
    divide_or_none,
    make_run_heading,
    name_stages,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.idle_time.interruptions import find_costly_interruptions
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_longest_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import (
    NO_STEPS,
    Owner,
    count_gpu_steps,
    find_rows_of_owners,
    list_undamaged_rows,
    sum_column_over_steps,
)
from tracekit.job.steps.start_up import RunStartUp, find_run_start_ups
from tracekit.model.intervals import Ints, measure_coverage
from tracekit.model.report import Finding, Place, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Nullable,
    concatenate_parts,
    repeat_number,
    repeat_text,
    select_rows,
    trim_all_texts,
    trim_texts,
)
from tracekit.model.tables.columns import DEVICE, LONGEST, PLACE, STAGE, TS
from tracekit.model.tables.frame import Frame, sum_of
from tracekit.model.tables.keys import PROCESS, sum_by_keys
from tracekit.model.text.kernel_labels import shorten_kernel_name
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity, format_ranges
from tracekit.process.device.busy import break_down_device_windows, compute_busy_intervals, group_rows_by_device
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import (
    HostPhases,
    HostWindows,
    build_host_windows,
    classify_host_rows,
    measure_uncovered_time,
)
from tracekit.process.name_filters import make_narrow_coded
from tracekit.process.steps.recording_start import EarlyWait, find_early_collective, find_early_wait
from tracekit.process.steps.start_up import KIND_TITLES, KINDS, StartUpCalls, find_start_up_calls, unite_device_time
from tracekit.process.steps.windows import StepWindows, find_steps_and_stages

WAIT, SKEW = "wait", "skew"

START_UP = Table(
    "start_up",
    "the first calls of one name and kind in one place, and calls in progress when the recording began",
    {
        **KEYS,
        "window": Column(
            "category",
            "before (the work of a recording without marks) | within (a step, or outside all).",
            ("before", "within"),
        ),
        "kind": Column(
            "category",
            "context | code | library | compile | graph | memory | other: kind of the call; program: no call yet; wait: a call for work launched before the"
            " recording; skew: a collective for a rank whose recording had not begun.",
            (*KINDS, WAIT, SKEW),
        ),
        **PLACE,
        "stage": STAGE,
        "name": Column("category", "Name as recorded; `no calls` of kind program; `(others)` beyond a cap."),
        "is_rare": Column("bool", "Known by its length or place, not by its name alone."),
        "count": Column("int64", "Calls."),
        "dur_ns": Column("int64", "Their time, overlaps counted once."),
        "idle_ns": Column("Int64", "Part of it with all devices idle; <NA> without a recorded device."),
        "usual_ns": Column("Int64", "Median of the other calls of the name; <NA> for a lone call, or where unused."),
        **LONGEST,
    },
)

START_UP_GPU = Table(
    "start_up_gpu",
    "one device in the start-up of a recording without marks, by time: the parts and idle add up to window_ns",
    {
        **KEYS,
        "device": DEVICE,
        "ts_ns": TS,
        "window_ns": Column("int64", "Length of start-up, ns."),
        "compute_ns": Column("int64", "Compute kernels running."),
        "exposed_comm_ns": Column("int64", "Collectives running, no compute."),
        "exposed_memcpy_ns": Column("int64", "Copies running, neither compute nor collectives."),
        "exposed_memset_ns": Column("int64", "Fills running, nothing else."),
        "idle_ns": Column("int64", "Nothing running."),
        "comm_ns": Column("int64", "Collectives running, overlapped or exposed."),
        "overlap_ns": Column("int64", "Collectives and compute both running."),
        "op_count": Column("int64", "Device ops that touch the window."),
    },
)

MAX_NAMES = 50
"""Maximum number of names per source; shorter ones are summed as `(others)`."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum first calls by step, stage and name, with GPU time during the start-up before the work."""
    if not trace.has("host_ops"):
        return {}
    parts = [_list_start_up_calls(trace), *_list_short_start_up_calls(trace), *_list_waits_before_recording(trace)]
    parts = [part for part in parts if len(part["dur_ns"])]
    tables: dict[str, Mapping[str, Any]] = {"start_up": trim_all_texts(concatenate_parts(parts)) if parts else {}}
    steps = trace.derived(find_steps_and_stages).step_rows
    if steps.start_up_ns is not None and trace.has("device_ops"):
        tables["start_up_gpu"] = _measure_start_up_gpu_time(trace, steps)
    return tables


def _list_start_up_calls(trace: Trace) -> dict[str, Array]:
    """List the first calls of start-up."""
    calls: StartUpCalls = trace.derived(find_start_up_calls)
    usual = Nullable(np.maximum(calls.usual_ns, 0), calls.usual_ns < 0)
    kinds = Coded(calls.kind.astype(np.int8), KINDS)
    return _sum_start_up_calls(trace, kinds, calls.name, calls.ts_ns, calls.dur_ns, usual, is_rare=True)


def _list_short_start_up_calls(trace: Trace) -> Iterator[dict[str, Array]]:
    """List the other calls that load modules, compile, capture graphs or allocate memory, however short."""
    side: HostPhases = trace.derived(classify_host_rows)
    known = np.zeros(len(side.compiling), np.bool_)
    rows = trace.derived(find_start_up_calls).row
    known[rows[rows >= 0]] = True
    for kind, mask in (("code", side.compiling), ("memory", side.allocator), ("graph", side.graph_capture)):
        rows = (mask & ~known).nonzero()[0]
        start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
        names = select_rows(trace.texts("host_ops", "name"), rows)
        unused = repeat_number(None, len(rows))
        kinds = repeat_text(kind, len(rows))
        yield _sum_start_up_calls(trace, kinds, names, start, dur, unused, is_rare=False)


def _list_waits_before_recording(trace: Trace) -> Iterator[dict[str, Array]]:
    """List the waits in progress when the recording began: a host wait, and a collective that waits for a late rank."""
    found: tuple[tuple[str, str, EarlyWait | None], ...] = (
        (WAIT, "host_ops", trace.derived(find_early_wait)),
        (SKEW, "device_ops", trace.derived(find_early_collective)),
    )
    for kind, table, wait in found:
        if wait is not None:
            name = select_rows(trace.texts(table, "name"), np.array([wait.row]))
            usual = Nullable(np.array([max(wait.usual_ns, 0)]), np.array([wait.usual_ns < 0]))
            times = np.array([wait.ts_ns]), np.array([wait.dur_ns])
            yield _sum_start_up_calls(trace, repeat_text(kind, 1), name, *times, usual, is_rare=True)


def _sum_start_up_calls(
    trace: Trace, kinds: Array, names: Coded, start: Ints, dur: Ints, usual: Array, *, is_rare: bool
) -> dict[str, Array]:
    """Sum calls by kind and name, and by the step and stage they begin in."""
    where: HostWindows = trace.derived(build_host_windows)
    steps: StepWindows = trace.derived(find_steps_and_stages).step_rows
    begin = opening = np.iinfo(np.int64).min
    if steps.start_up_ns is not None:
        begin = int(steps.ts_ns[0])
        opening = begin - sum(int(length[0]) for length in steps.before.values())
    # Leave out system activity before the capture begins.
    rows = (start >= opening).nonzero()[0]
    kinds, usual = select_rows(kinds, rows), select_rows(usual, rows)
    names = select_rows(names, rows)
    start, dur = start[rows], dur[rows]
    keys: dict[str, Array] = {
        "window": make_narrow_coded((start >= begin).astype(np.int64), ("before", "within")),
        "kind": kinds,
        **where.steps_of(where.step_at(start)),
        "stage": Coded(np.append(where.stage.codes, -1)[where.stage_at(start)], where.stage.texts),
        "name": _keep_longest_start_up_names(names, dur),
        "usual_ns": usual,
    }
    own_ns, end = measure_uncovered_time(start, start + dur), start + dur
    values = {"count": np.ones(len(start), np.int64), "dur_ns": own_ns, "idle_ns": own_ns}
    if trace.has("device_ops"):
        busy = trace.derived(unite_device_time)
        values["idle_ns"] = own_ns - measure_coverage(busy, end - own_ns, end)
    sums: dict[str, Array] = {**sum_by_keys(keys, values)}
    size = len(sums["dur_ns"])
    if not trace.has("device_ops"):
        sums["idle_ns"] = repeat_number(None, size)
    return {**sums, **find_longest_by_keys(keys, start, dur), "is_rare": np.full(size, is_rare)}


def _keep_longest_start_up_names(names: Coded, dur: Ints) -> Coded:
    """Map each row to its name; names beyond the `MAX_NAMES` with most time become `(others)`."""
    total = np.zeros(len(names.texts) + 1, np.int64)
    np.add.at(total, names.codes, dur)
    largest = np.argsort(-total[:-1], kind="stable")[:MAX_NAMES]
    code = np.full(len(names.texts) + 1, len(names.texts))
    code[largest], code[-1] = largest, -1
    return trim_texts(Coded(code[names.codes], (*names.texts, "(others)")))


def _measure_start_up_gpu_time(trace: Trace, steps: StepWindows) -> Mapping[str, Any]:
    """Break down the time of each device during start-up."""
    parts = []
    begin = steps.ts_ns - steps.before["start_up_ns"]
    for number, rows in group_rows_by_device(trace.nullable("device_ops", "device")):
        start, length = (trace.numbers("device_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
        kind = select_rows(trace.texts("device_ops", "kind"), rows)
        state = compute_busy_intervals(start, length, kind)
        times = break_down_device_windows(state, begin, steps.ts_ns)
        parts.append({"device": repeat_number(number, len(begin)), **times})
    return concatenate_parts(parts) if parts else {}


# Judged


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report start-up before the work, in steps that count and in other steps; judge R38."""
    if not measured.has("start_up"):
        return None
    recorded = measured.recorded or measured
    rows = clear_redundant_parts(recorded.frame("start_up"))
    rows = rows.with_columns(canonical=name_stages(rows))
    findings = [
        *_find_start_up_before_work(measured, rows, thresholds),
        *_find_wait_in_progress(measured, rows),
        *_find_start_skew(measured, rows),
        *_find_start_up_within_steps(measured, rows, thresholds),
        *_find_start_up_in_warm_up(measured, rows, thresholds),
        *_find_start_up_outside_steps(measured, rows, thresholds),
    ]
    if not findings and not rows["is_rare"].any():
        return None
    return ANALYSIS.answered(sheets=lambda: (_make_start_up_table(measured, rows),), findings=tuple(findings))


def _advise_later_recording(measured: Measurements, run: str | None) -> str:
    """Advise how to start recording later, with the tool that recorded."""
    captures = measured.frame("captures")
    tools = set(captures.filter(captures.equals("run", run)).values("tool"))
    if tools - {None} == {"nsys"}:
        return (
            "record later: nsys profile --capture-range=cudaProfilerApi and torch.cuda.profiler.start() after the first"
            " steps; or --delay=SECONDS"
        )
    return "record later: torch.profiler.schedule(wait=1, warmup=1, active=3), with prof.step() after each step"


def _describe_start_up_calls(rows: Frame) -> str:
    """Describe calls by kind with the longest of each: `context creation 981 ms (cudaFree), module loading 1.34 ms (cudaLaunchKernel)`."""
    by_kind = rows.group_by("kind").agg(dur_ns=sum_of("dur_ns")).sort("dur_ns", "kind", descending=["dur_ns"])
    by_name = rows.group_by("kind", "name").agg(dur_ns=sum_of("dur_ns"))
    by_name = by_name.sort("dur_ns", "name", descending=["dur_ns"])
    texts = []
    for kind, dur_ns in (row.values() for row in by_kind.head(3).rows()):
        name = by_name.filter(by_name.equals("kind", kind)).values("name")[0]
        texts.append(f"{KIND_TITLES.get(kind, kind)} {format_quantity(dur_ns, 'ns')} ({name})")
    return ", ".join(texts)


def _find_start_up_before_work(measured: Measurements, rows: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find captures without step marks that begin with start-up."""
    limit = thresholds.of("start-up")
    for prefix in find_run_start_ups(measured):
        calls = _select_prefix_calls(rows, prefix, KINDS)
        if not len(calls) or prefix.ratio < limit["capture_ratio"]:
            continue
        after_ns = prefix.whole_ns - prefix.start_up_ns
        lost_ns = int(calls.integers("idle_ns").sum())
        lost_ratio = lost_ns / prefix.whole_ns
        yield Finding(
            "start-up",
            thresholds.severity(lost_ratio),
            f"the first {format_quantity(prefix.start_up_ns, 'ns')} of {format_quantity(prefix.whole_ns, 'ns')} are start-up;"
            f" first calls take {format_quantity(int(calls['dur_ns'].sum()), 'ns')}: {_describe_start_up_calls(calls)}"
            + phrase_run(measured, prefix.run),
            _advise_later_recording(measured, prefix.run),
            (
                make_evidence_metric("start_up_ns", prefix.start_up_ns, "before the work begins"),
                make_evidence_metric("idle_ns", lost_ns, "GPUs idle during first calls"),
            ),
            _locate_start_up_calls(calls),
            lost_ns,
            lost_ratio,
            (_caveat_time_after_start_up(after_ns),),
            instances=pick_longest_instances(calls),
        )


def _caveat_time_after_start_up(after_ns: int) -> str:
    """State as a caveat that other findings leave out start-up and do not count it in their shares."""
    return f"all other findings and their shares only cover the {format_quantity(after_ns, 'ns')} after start-up"


def _select_prefix_calls(rows: Frame, prefix: RunStartUp, kinds: Sequence[str]) -> Frame:
    """Select the calls of these kinds before the work, in the process with the longest start-up of a run."""
    of_process = rows.equals("run", prefix.run) & rows.equals("source", prefix.source)
    return rows.filter(of_process & rows.equals("window", "before") & rows.is_in("kind", kinds) & rows["is_rare"])


def _find_wait_in_progress(measured: Measurements, rows: Frame) -> Iterator[Finding]:
    """Find captures without step marks that begin within a wait for work launched before them."""
    for prefix in find_run_start_ups(measured):
        waits = _select_prefix_calls(rows, prefix, (WAIT,))
        if not len(waits):
            continue
        name, wait_ns = waits.values("name")[0], waits.values("dur_ns")[0]
        yield Finding(
            "start-up",
            "info",
            f"the first {format_quantity(wait_ns, 'ns')} of {format_quantity(prefix.whole_ns, 'ns')} are a {name} in progress when the recording began: it waits for earlier work{phrase_run(measured, prefix.run)}",
            "ignore that time; start recording a step earlier to see the cause of the wait",
            (make_evidence_metric("wait_ns", wait_ns, "in the call"),),
            _locate_start_up_calls(waits),
            None,
            None,
            (_caveat_time_after_start_up(prefix.whole_ns - prefix.start_up_ns),),
            instances=pick_longest_instances(waits),
        )


def _find_start_skew(measured: Measurements, rows: Frame) -> Iterator[Finding]:
    """Find ranks whose first collective waits for a rank that starts recording later."""
    captures = measured.frame("captures")
    for of_run in rows.filter(rows.equals("kind", SKEW)).group_by("run").frames():
        run = of_run.values("run")[0]
        waiting = set(of_run.values("rank")) - {None}
        late = sorted(set(captures.filter(captures.equals("run", run)).values("rank")) - waiting - {None})
        (longest,) = of_run.sort("dur_ns", descending=["dur_ns"]).head(1).rows()
        # If every rank waits, this may be an ordinary straggler rather than start skew.
        if not late or not waiting:
            continue
        wait_ns, usual, name = longest["dur_ns"], longest["usual_ns"], shorten_kernel_name(longest["name"])
        yield Finding(
            "start-up",
            "info",
            f"one call of {name} takes {format_quantity(wait_ns, 'ns')} on {_format_ranks(sorted(waiting))}, the others"
            f" {format_quantity(usual, 'ns')}: start skew of {_format_ranks(late)}, not communication{phrase_run(measured, run)}",
            "start recording on all ranks after a barrier, and skip the first step",
            (
                make_evidence_metric("wait_ns", wait_ns, "longest wait"),
                make_evidence_metric("usual_ns", usual, "median"),
            ),
            tuple(Place(rank=rank, name=name) for rank in late[:3]),
            None,
            None,
            ("this report excludes that call",),
            instances=pick_longest_instances(of_run),
        )


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format a list of ranks."""
    return f"{choose_plural(len(ranks), 'rank')} {format_ranges(ranks)}"


def _find_start_up_within_steps(measured: Measurements, rows: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find GPU idle time during first calls, in steps that count and after the start-up of a capture."""
    limit, existing = thresholds.of("start-up"), count_gpu_steps(measured)
    is_counted = rows.is_among(clear_redundant_parts(measured.frame("steps")), UNIT, optional=UNIT)
    is_call = rows["is_rare"] & rows.is_in("kind", KINDS)
    chosen = rows.filter(is_counted & is_call & rows.equals("window", "within"))
    for owner, idle_ns in _sum_start_up_idle(measured, thresholds).items():
        steps = existing.get(owner, NO_STEPS)
        lost, ratio = steps.per_step(idle_ns)
        calls = chosen.filter(find_rows_of_owners(chosen, [owner]))
        if ratio is None or ratio < limit["step_ratio"] or not len(calls):
            continue
        yield Finding(
            "start-up",
            thresholds.severity(ratio),
            f"GPUs wait {format_quantity(lost, 'ns')} of {format_quantity(steps.step_ns or 0.0, 'ns')} per step for first calls:"
            f" {_describe_start_up_calls(calls)}{phrase_run(measured, owner[0])}",
            _advise_later_recording(measured, owner[0]),
            (
                make_evidence_metric("idle_ns", round(lost), "idle per step"),
                make_evidence_metric("first_calls_ns", round(steps.mean(int(calls["dur_ns"].sum()))), "in first calls"),
            ),
            _locate_start_up_calls(calls),
            round(lost),
            ratio,
            instances=pick_longest_instances(calls),
        )


def _sum_start_up_idle(measured: Measurements, thresholds: Thresholds) -> dict[Owner, int]:
    """Sum the idle time of first calls over GPU steps, by run and role, without interruptions of steady steps."""
    if not measured.has("idle"):
        return {}
    rows = list_undamaged_rows(measured, "idle")
    sums = sum_column_over_steps(measured, rows.filter(rows.equals("cause", "host_start_up")), "idle_ns")
    for found in find_costly_interruptions(measured, thresholds):
        for row in found.rows.group_by("run", "role").agg(lost_ns=sum_of("lost_ns")).rows():
            run, role, lost_ns = row.values()
            if (run, role) in sums:
                sums[run, role] = max(sums[run, role] - lost_ns, 0)
    return sums


def _find_start_up_in_warm_up(measured: Measurements, rows: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find steps that do not count and spend long in module loading, graph capture or allocation."""
    limit = thresholds.of("start-up")
    is_counted = rows.is_among(clear_redundant_parts(measured.frame("steps")), UNIT, optional=UNIT)
    rows = rows.filter(~rows.is_missing("step") & ~is_counted & rows.is_in("kind", KINDS))
    for of_run in rows.group_by("run").frames():
        run = of_run.values("run")[0]
        each = float(of_run["dur_ns"].sum()) / len(of_run.group_by(*PROCESS, "step", "part"))
        ratio = divide_or_none(each, summarize_step_walls(measured).select_run(run).step_ns)
        if ratio is None or ratio < limit["uncounted_ratio"]:
            continue
        places = _locate_start_up_calls(of_run)
        steps = sorted(set(of_run.values("step")))
        names = ", ".join(str(place.name) for place in places)
        yield Finding(
            "start-up",
            "info",
            f"warm-up: first calls take {format_quantity(each, 'ns')} of {choose_plural(len(steps), 'step')} {format_ranges(set(steps))},"
            f" not counted: {names}{phrase_run(measured, run)}",
            _advise_later_recording(measured, run) + "; load modules, capture graphs and fill caches before the loop",
            (make_evidence_metric("start_up_ns", round(each), "per process and such step"),),
            tuple(replace(place, step=steps[0]) for place in places),
            None,
            None,
            ("this report excludes these steps",),
            instances=pick_longest_instances(of_run),
        )


def _find_start_up_outside_steps(measured: Measurements, rows: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find first calls outside any step of a recording that has steps, mostly context creation before the first step."""
    limit = thresholds.of("start-up")
    steps = measured.frame("steps")
    has_steps = rows.is_among(steps.filter(~steps.is_missing("step")), PROCESS, optional=PROCESS)
    is_call = rows["is_rare"] & rows.is_in("kind", KINDS)
    for of_run in rows.filter(rows.is_missing("step") & is_call & has_steps).group_by("run").frames():
        run = of_run.values("run")[0]
        each_ns = float(of_run["dur_ns"].sum()) / len(of_run.group_by(*PROCESS))
        ratio = divide_or_none(each_ns, summarize_step_walls(measured).select_run(run).step_ns)
        if ratio is None or ratio < limit["uncounted_ratio"]:
            continue
        yield Finding(
            "start-up",
            "info",
            f"start-up takes {format_quantity(each_ns, 'ns')} outside the steps: {_describe_start_up_calls(of_run)}{phrase_run(measured, run)}",
            _advise_later_recording(measured, run),
            (make_evidence_metric("start_up_ns", round(each_ns), "per process"),),
            _locate_start_up_calls(of_run),
            None,
            None,
            ("this report excludes that time",),
            instances=pick_longest_instances(of_run),
        )


def _locate_start_up_calls(rows: Frame) -> tuple[Place, ...]:
    """Locate up to three names and stages with most of the time."""
    by_name = rows.group_by("run", "role", "canonical", "name").agg(dur_ns=sum_of("dur_ns"))
    longest = by_name.sort("dur_ns", "name", descending=["dur_ns"]).head(3)
    return tuple(
        Place(run=row["run"], role=row["role"], stage=row["canonical"], name=row["name"]) for row in longest.rows()
    )


def _make_start_up_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of first calls by kind and name, longest first."""
    by_name = rows.filter(rows["is_rare"]).group_by("run", "window", "kind", "canonical", "name")
    pooled = by_name.agg(**{name: sum_of(name) for name in ("count", "dur_ns", "idle_ns")})
    pooled = pooled.sort("dur_ns", "name", descending=["dur_ns"])
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            window | where
            kind | kind
            name | call
            canonical | stage
            count | calls | count
            dur_ns | time | ns | Σ over processes; overlaps counted once in each.
            idle_ns | GPU idle | ns | Part of it with all GPUs of the process idle.
        """),
    )
    return make_sheet("start_up", "First calls", headings, pooled, max_rows=100)


ANALYSIS = Analysis(
    id="start-up",
    title="How much of the recording is start-up?",
    reads=("host_ops", "device_ops", "python_calls"),
    writes=(START_UP, START_UP_GPU),
    rests_on=("captures", "gpu_time", "idle", "interruptions"),
    rules=("start-up",),
    thresholds={
        "start-up": {
            # Start-up before the work of a capture without marks, as a share of the whole capture.
            "capture_ratio": 0.03,
            # Idle time during first calls in steps that count, as a share of the step.
            "step_ratio": 0.03,
            # First calls in a step that does not count, as a share of the steps that do. Simulated code loading takes 88 % of
            # a step; the first steps of jobs without it have none.
            "uncounted_ratio": 0.10,
        }
    },
    measure=measure,
    judge=judge,
    whole_recording=True,
)
