"""What one step holds where ranks recorded different steps: sums are divided by the steps that exist, in every rule and table."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from chrome_builder import launched, step, write
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_tables import make_measured
from rules.firing import Document
from rules.traces import FIRES

from tracekit.analyses import ANALYSES, load_default_thresholds
from tracekit.engine import Outcome
from tracekit.job.stages.windows import (
    NO_STEPS,
    ExistingSteps,
    StageWindow,
    count_gpu_steps,
    count_gpu_steps_of_processes,
    count_recorded_steps_of_processes,
    count_steps_of_processes,
    divide_by_gpu_steps,
    list_judged_windows,
    list_stage_windows,
    sum_column_over_steps,
    sum_gpu_time_by_stage,
)
from tracekit.model.tables.frame import from_rows
from tracekit.model.tables.keys import PROCESS
from tracekit.model.thresholds import Thresholds
from tracekit.pipeline import run as pipeline


def report_of(folder, rule="low-gpu-utilization"):
    """The report of the questions that judge a rule."""
    questions = tuple(analysis.id for analysis in ANALYSES if rule in analysis.rules)
    return pipeline.analyze_uncached([folder], pipeline.Options(questions=questions)).report


def finding(report, rule):
    (found,) = [f for section in report.sections for f in section.findings if f.rule == rule]
    return found


def evidence(found):
    return {metric.name: metric.value for metric in found.evidence}


def shifted(rows, by, number):
    """The rows of a step `by` µs later, as step `number`, with correlations of their own."""
    moved = []
    for row in rows:
        args = {**row["args"]} if "args" in row else None
        if args and "correlation" in args:
            args["correlation"] += 1_000_000 * number
        name = f"ProfilerStep#{number}" if row["name"].startswith("ProfilerStep") else row["name"]
        moved.append({**row, "ts": row["ts"] + by, "name": name, **({} if args is None else {"args": args})})
    return moved


def repeated(rows, times):
    """The rows of step 1 in steps 1 to `times`, one after the other."""
    (whole,) = [row for row in rows if row["name"] == "ProfilerStep#1"]
    last = max(row["ts"] + row.get("dur", 0) for row in rows)
    period = max(whole["ts"] + whole["dur"], last) + 1000
    copies = [row for n in range(times) for row in shifted(rows, n * period, n + 1)]
    return Document(copies, **rows.meta) if isinstance(rows, Document) else copies


def idle_for_780(steps):
    """Steps of 1,000 µs in each of which a kernel runs for the first 220."""
    return [
        row
        for number in steps
        for row in (step(number, 1000 * number, 1000), *launched("gemm", 1000 * number, 1000 * number, 220, number))
    ]


def test_each_gpu_is_idle_for_780_of_the_steps_that_it_recorded(tmp_path):
    """Rank 0 has steps 1 to 4 and rank 1 step 1: 5 × 780 µs over 5 steps of single GPUs, not over 2 × 4."""
    write(tmp_path / "rank0.json", idle_for_780((1, 2, 3, 4)))
    write(tmp_path / "rank1.json", idle_for_780((1,)))
    found = finding(report_of(tmp_path), "low-gpu-utilization")
    assert evidence(found)["idle_ns"] == 780_000
    assert (found.cost_ns, found.cost_ratio) == (780_000, 0.78)


def test_a_share_of_the_step_is_one_of_the_steps_that_the_time_is_from(tmp_path):
    """Both ranks have a step of 10 ms, rank 0 three of 1 ms besides: idle for 78 % of each, so 78 % in all.

    Σ idle 2 × 7.8 + 3 × 0.78 = 17.94 ms over 5 GPU-steps is 3.588 ms, of 23 / 5 = 4.6 ms. Over the mean step of
    the run, (10 + 3 × 1) / 4 = 3.25 ms, it would be 110 %.
    """
    long_step = [step(1, 0, 10_000), *launched("gemm", 0, 0, 2_200, 99)]
    later = [{**row, "ts": row["ts"] + 9_000} for row in idle_for_780((2, 3, 4))]
    write(tmp_path / "rank0.json", [*long_step, *later])
    write(tmp_path / "rank1.json", long_step)
    report = pipeline.analyze_uncached([tmp_path]).report
    # The pauses of 7.8 ms are told by their own rule; each nanosecond counts once.
    found = [finding(report, rule) for rule in ("low-gpu-utilization", "host-silence")]
    assert sum(one.cost_ns for one in found) == 3_588_000
    assert sum(one.cost_ratio for one in found) == pytest.approx(0.78)


def test_a_gpu_counts_only_in_the_steps_of_files_that_tell_of_it(tmp_path):
    """One process: GPU 0 in the files of steps 1 and 2, GPU 1 in that of step 2 only: 3 GPU-steps of 780 µs."""
    write(tmp_path / "a" / "rank0.json", idle_for_780((1,)))
    both = [*idle_for_780((2,)), *launched("gemm", 2000, 2000, 220, 77, device=1)]
    write(tmp_path / "a" / "rank0_part2.json", both)
    result = pipeline.analyze_uncached([tmp_path / "a"], pipeline.Options(questions=("gpu-time",)))
    (steps,) = count_gpu_steps(result.measurements).values()
    assert steps == ExistingSteps(3, 1_000_000)
    assert finding(result.report, "low-gpu-utilization").cost_ns == 780_000


ONE_STEP = sorted(
    name
    for name, firing in FIRES.items()
    if not isinstance(firing.rows, Mapping)
    and [row["name"] for row in firing.rows if row["name"].startswith("ProfilerStep")] == ["ProfilerStep#1"]
    and firing.cost_ns is not None
)
"""Rules with a trace of one step that tell what a step would give back."""

SUMS = {"plain_kernels", "nearly_empty", "batches", "calls"}
"""Evidence that is counted over all steps and says so."""


def test_there_are_rules_of_one_step():
    assert len(ONE_STEP) >= 13


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_rule_says_of_unevenly_many_equal_steps_what_it_says_of_one(tmp_path, name):
    """Rank 0 has the step three times and rank 1 once: nothing per step changes."""
    firing = FIRES[name]
    meta = firing.rows.meta if isinstance(firing.rows, Document) else {}
    for rank, times in ((0, 3), (1, 1)):
        write(tmp_path / f"rank{rank}.json", repeated(firing.rows, times), **meta)
    found = finding(report_of(tmp_path, name), name)
    assert found.cost_ns == firing.cost_ns
    assert found.cost_ratio == pytest.approx(firing.cost_ratio)
    numbers = evidence(found)
    expected = {key: value for key, value in firing.evidence.items() if key not in SUMS}
    assert {key: numbers[key] for key in expected} == pytest.approx(expected)


def on_two_gpus(rows):
    """The rows, with all that the GPU did on a second one as well."""
    second = [
        {**row, "pid": 1, "args": {**row["args"], "device": 1}} for row in rows if "device" in row.get("args", {})
    ]
    return [*rows, *second]


def column(rows, name, **where):
    """The sum of a column of the rows of a table that hold these values."""
    return sum(row[name] for row in rows if all(row[k] == v for k, v in where.items()))


TOLD_TWICE = {
    "host-sync-stalls": (
        "sync_calls",
        lambda rows: {
            "sync_count": column(rows, "count"),
            "stall_count": column(rows, "stall_count"),
            "idle_ns": column(rows, "idle_ns"),
        },
    ),
    "stage-edge-idle": (
        "stage_edges",
        lambda rows: {"edge_idle_ns": column(rows, "host_ns") + column(rows, "unseen_ns")},
    ),
    "launch-bound": ("host_counts", lambda rows: {"kernels": column(rows, "kernel_count_each", canonical="gen")}),
    "unfused-optimizer": ("optimizer", lambda rows: {"dur_ns": column(rows, "dur_each_ns")}),
    "offload": (
        "host_copies",
        lambda rows: {
            "htod_bytes": column(rows, "size_bytes", direction="HtoD"),
            "dtoh_bytes": column(rows, "size_bytes", direction="DtoH"),
        },
    ),
    "small-collectives": (
        "collectives_by_stage",
        lambda rows: {"small_count": column(rows, "count") * 0.2},  # 2 of 10 are small
    ),
}
"""For rules the table that tells the same per step, and the numbers of its evidence as the table has them."""


@pytest.mark.slow
@settings(max_examples=25, phases=(Phase.explicit, Phase.generate))
@given(
    st.sampled_from(sorted(TOLD_TWICE)), st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=3)
)
def test_what_a_finding_says_of_a_step_its_table_says_too(tmp_path_factory, name, ranks):
    """On ranks of unevenly many steps and GPUs."""
    folder = tmp_path_factory.mktemp("t")
    firing = FIRES[name]
    for rank, (times, two_gpus) in enumerate(ranks):
        rows = repeated(firing.rows, times)
        write(folder / f"rank{rank}.json", on_two_gpus(rows) if two_gpus else rows)
    (analysis,) = [one for one in ANALYSES if name in one.rules]
    found = pipeline.discover_sources(folder)
    outcomes = [Outcome(s, pipeline.measure_source(s, lambda _: None)) for s in found.sources]
    measured = pipeline.reduce_outcomes(outcomes, found, pipeline.Options())
    section = analysis.judge(measured, at_any_share(name))
    (told,) = [finding for finding in section.findings if finding.rule == name]
    sheet, numbers = TOLD_TWICE[name]
    (shown,) = [one for one in section.sheets if one.name == sheet]
    names = [heading.name for heading in shown.headings]
    expected = numbers([dict(zip(names, row, strict=True)) for row in shown.rows])
    assert {key: evidence(told)[key] for key in expected} == pytest.approx(expected, abs=1)
    assert told.cost_ratio <= 1


def at_any_share(name):
    """Limits at which the rule speaks whatever share of the step it is."""
    values = {rule: dict(block) for rule, block in load_default_thresholds().values.items()}
    values[name] |= {key: 0.0 for key in values[name] if key.endswith("_ratio") and key != "call_ratio"}
    return Thresholds(values)


WHOSE = {"run": "r", "source": "rank0", "rank": 0, "pid": 0}


def process(rank, **more):
    """The keys of the rows of one process."""
    return {**WHOSE, "source": f"rank{rank}", "rank": rank, "pid": rank} | more


def gpu_step(number, window_ns=100, device=0, **more):
    """The GPU time of a step that is idle for a quarter of it."""
    return {
        **WHOSE, "device": device, "window": "step", "step": number, "ts_ns": 1000 * (number or 0),
        "window_ns": window_ns, "idle_ns": window_ns // 4, "op_count": 3,
    } | more  # fmt: skip


def gpu_stage(number, stage, window_ns, **more):
    return gpu_step(number, window_ns, window="stage", stage=stage, **more)


def recorded_step(number, dur_ns=100, **more):
    return {**WHOSE, "step": number, "ts_ns": 1000 * (number or 0), "dur_ns": dur_ns} | more


def test_sums_are_averaged_over_the_recorded_steps_and_are_0_without_any():
    steps = ExistingSteps(4, 50.0)
    assert steps.mean(100) == 25
    assert steps.per_step(100) == (25, 0.5)
    assert NO_STEPS.per_step(100) == (100, None)
    window = StageWindow("r", "actor", "gen", "gen", steps, 200)
    assert (window.share(50), window.share(0), window.per_step(100)) == (0.25, 0, (25, 0.5))
    assert (window.owner, window.key, window.works) == (("r", "actor"), ("r", "actor", "gen"), True)
    assert StageWindow("r", None, None, "the step", steps).share(50) == 0


def capture(stage_ns, whole_ns, **more):
    """A capture without steps, with a stage of this length in it."""
    return make_measured(
        steps=[recorded_step(None, whole_ns, origin="file", **more)],
        gpu_time=[gpu_step(None, whole_ns), gpu_stage(None, "gen", stage_ns)],
    )


def test_stages_of_half_of_a_capture_are_judged_and_of_less_it_is_the_capture():
    (stage,) = list_stage_windows(capture(50, 100))
    assert (stage.canonical, stage.name, stage.window_ns, stage.origin) == ("gen", "gen", 50, None)
    (whole,) = list_stage_windows(capture(49, 100))
    assert (whole.canonical, whole.name, whole.window_ns, whole.origin) == (None, "the capture", 100, "file")
    assert (whole.share(25), whole.steps) == (0.25, ExistingSteps(1, 100))
    assert sum_gpu_time_by_stage(capture(49, 100)).values("canonical") == []
    (row,) = sum_gpu_time_by_stage(capture(60, 100)).rows()
    assert (row["canonical"], row["window_ns"], row["idle_ratio"]) == ("gen", 60, 0.25)


def test_a_capture_after_a_start_up_is_named_so():
    (whole,) = list_stage_windows(capture(49, 100, start_up_ns=10))
    assert whole.name == "the time after start-up"


def test_stages_of_steps_are_judged_however_short_they_are():
    """10 or 0 of 100 in a step that is marked, and in one of a file that has its number; a collective is no stage."""
    for origin, stage_ns in (("profiler", 10), ("file", 10), ("profiler", 0)):
        measured = make_measured(
            steps=[recorded_step(1, origin=origin)],
            gpu_time=[gpu_step(1), gpu_stage(1, "gen", stage_ns), gpu_stage(1, "nccl:all_reduce", 50)],
        )
        (stage,) = list_stage_windows(measured)
        assert (stage.canonical, stage.window_ns, stage.steps) == ("gen", stage_ns, ExistingSteps(1, 100))


def test_the_step_is_judged_where_no_stage_is_annotated():
    """Two steps of two roles, the actor with stages: these longest first, then the step of the critic."""
    actor, critic = process(0, role="actor"), process(1, role="critic")
    gpu_time = [gpu_step(n, **who) for who in (actor, critic) for n in (1, 2)]
    gpu_time += [gpu_stage(n, stage, ns, **actor) for stage, ns in (("gen", 30), ("ref", 40)) for n in (1, 2)]
    measured = make_measured(
        steps=[recorded_step(n, **who) for who in (actor, critic) for n in (1, 2)], gpu_time=gpu_time
    )
    windows = list_judged_windows(measured)
    assert [(w.role, w.canonical, w.name, w.window_ns) for w in windows] == [
        ("actor", "ref", "ref", 80), ("actor", "gen", "gen", 60), ("critic", None, "the step", 200),
    ]  # fmt: skip
    assert [w.canonical for w in list_stage_windows(measured)] == [None, "ref", "gen"]
    assert {w.steps for w in windows} == {ExistingSteps(2, 100)}
    assert sum_column_over_steps(measured, measured.frame("gpu_time"), "idle_ns") == {
        ("r", "actor"): 50, ("r", "critic"): 50,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ops", "launches", "works"), [(3, 2, True), (3, None, True), (3, 0, False), (0, 2, False), (0, 0, False)]
)
def test_a_stage_works_if_it_launches_and_the_gpu_runs_something(ops, launches, works):
    """Launches that nobody recorded may have been."""
    measured = make_measured(
        steps=[recorded_step(1)],
        stages=[{**WHOSE, "step": 1, "stage": "gen", "ts_ns": 1000, "dur_ns": 60, "launch_count": launches}],
        gpu_time=[gpu_step(1), gpu_stage(1, "gen", 60, op_count=ops)],
    )
    (window,) = list_stage_windows(measured)
    assert window.works is works


def test_only_the_surest_steps_of_a_role_without_stages_count():
    """Rank 0 marks two steps; of rank 1 only the file is known."""
    one, other = process(0), process(1)
    steps = [recorded_step(1, **one), recorded_step(2, **one), recorded_step(None, 700, **other, origin="file")]
    gpu_time = [gpu_step(1, **one), gpu_step(2, **one), gpu_step(None, 700, **other)]
    for rows in (steps, steps[::-1]):
        measured = make_measured(steps=rows, gpu_time=gpu_time)
        (window,) = list_stage_windows(measured)
        assert (window.window_ns, window.origin, window.steps) == (200, "profiler", ExistingSteps(2, 100))
        assert count_gpu_steps(measured) == {("r", None): ExistingSteps(2, 100)}


def test_files_of_single_stages_are_no_steps():
    measured = make_measured(steps=[recorded_step(1, origin="stage", scope="gen")], gpu_time=[gpu_step(1, scope="gen")])
    assert list_stage_windows(measured) == []


def test_without_gpu_time_there_are_no_windows():
    assert list_stage_windows(make_measured(steps=[recorded_step(1)])) == []


@pytest.fixture
def two_gpus_and_a_host():
    """Rank 0 with two GPUs and steps of 100 and 300, rank 1 without a GPU and a step of 500 of its own number."""
    one, host = process(0), process(1)
    steps = [recorded_step(1, **one), recorded_step(2, 300, **one), recorded_step(3, 500, **host)]
    gpu_time = [gpu_step(n, ns, device, **one) for n, ns in ((1, 100), (2, 300)) for device in (0, 1)]
    return make_measured(steps=steps, gpu_time=gpu_time)


def rows_of_processes(*ranks, **more):
    who = [process(rank) for rank in ranks]
    return from_rows((*PROCESS, *more), [(*(of.get(key) for key in PROCESS), *more.values()) for of in who])


def test_steps_are_counted_once_per_gpu_and_once_per_process_without_one(two_gpus_and_a_host):
    measured = two_gpus_and_a_host
    assert count_gpu_steps(measured) == {("r", None): ExistingSteps(4, 200)}
    assert count_gpu_steps_of_processes(measured, rows_of_processes(0)) == ExistingSteps(4, 200)
    assert count_gpu_steps_of_processes(measured, rows_of_processes(0, 1)) == ExistingSteps(5, 260)
    assert count_gpu_steps_of_processes(measured, rows_of_processes(1)) == ExistingSteps(1, 500)
    assert count_gpu_steps_of_processes(measured, rows_of_processes(7)) == ExistingSteps(0, None)


def test_steps_of_processes_are_those_of_the_gpus_that_rows_name(two_gpus_and_a_host):
    measured = two_gpus_and_a_host
    assert count_steps_of_processes(measured, rows_of_processes(0)) == ExistingSteps(2, 200)
    assert count_steps_of_processes(measured, rows_of_processes(0, device=1)) == ExistingSteps(2, 200)
    assert count_steps_of_processes(measured, rows_of_processes(0, 1, device=1)) == ExistingSteps(3, 300)
    assert count_recorded_steps_of_processes(measured, rows_of_processes(0)) == ExistingSteps(2, 200)


def test_everything_recorded_is_divided_by_steps_that_do_not_count_too(two_gpus_and_a_host):
    """A step of 900 was left out: 3 steps, of which the mean wall is that of the two that count."""
    whole = make_measured(steps=[recorded_step(n, ns, **process(0)) for n, ns in ((1, 100), (2, 300), (9, 900))])
    measured = replace(two_gpus_and_a_host, recorded=whole)
    assert count_recorded_steps_of_processes(measured, rows_of_processes(0)) == ExistingSteps(3, 200)


def test_sums_are_divided_by_the_steps_of_single_gpus(two_gpus_and_a_host):
    """4 of them in run r; a run without any keeps its sums."""
    table = from_rows(("run", "role", "ns", "bytes"), [("r", None, 100, 8), ("other", None, 100, 8)])
    divided = divide_by_gpu_steps(two_gpus_and_a_host, table, ("ns",))
    assert divided.values("ns") == [25, 100]
    assert divided.values("bytes") == [8, 8]
