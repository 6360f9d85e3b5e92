"""What one step holds where ranks recorded different steps: sums are divided by the steps that exist, in every rule and table."""

from collections.abc import Mapping

import pytest
from chrome_builder import launched, step, write
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rules.firing import Document
from rules.traces import FIRES

from tracekit.analyses import ANALYSES, load_default_thresholds
from tracekit.engine import Outcome
from tracekit.job.stages.windows import ExistingSteps, count_gpu_steps
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
    assert (found.recoverable_ns, found.recoverable_ratio) == (780_000, 0.78)


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
    assert sum(one.recoverable_ns for one in found) == 3_588_000
    assert sum(one.recoverable_ratio for one in found) == pytest.approx(0.78)


def test_a_gpu_counts_only_in_the_steps_of_files_that_tell_of_it(tmp_path):
    """One process: GPU 0 in the files of steps 1 and 2, GPU 1 in that of step 2 only: 3 GPU-steps of 780 µs."""
    write(tmp_path / "a" / "rank0.json", idle_for_780((1,)))
    both = [*idle_for_780((2,)), *launched("gemm", 2000, 2000, 220, 77, device=1)]
    write(tmp_path / "a" / "rank0_part2.json", both)
    result = pipeline.analyze_uncached([tmp_path / "a"], pipeline.Options(questions=("gpu-time",)))
    (steps,) = count_gpu_steps(result.measurements).values()
    assert steps == ExistingSteps(3, 1_000_000)
    assert finding(result.report, "low-gpu-utilization").recoverable_ns == 780_000


ONE_STEP = sorted(
    name
    for name, firing in FIRES.items()
    if not isinstance(firing.rows, Mapping)
    and [row["name"] for row in firing.rows if row["name"].startswith("ProfilerStep")] == ["ProfilerStep#1"]
    and firing.recoverable_ns is not None
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
    assert found.recoverable_ns == firing.recoverable_ns
    assert found.recoverable_ratio == pytest.approx(firing.recoverable_ratio)
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
    assert told.recoverable_ratio <= 1


def at_any_share(name):
    """Limits at which the rule speaks whatever share of the step it is."""
    values = {rule: dict(block) for rule, block in load_default_thresholds().values.items()}
    values[name] |= {key: 0.0 for key in values[name] if key.endswith("_ratio") and key != "call_ratio"}
    return Thresholds(values)
