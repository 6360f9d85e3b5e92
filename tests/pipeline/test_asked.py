"""Few questions asked: what is measured for them, what they say, and that nothing is said of the others."""

from dataclasses import replace
from pathlib import Path

import pytest
from chrome_builder import annotation, launched, step, write
from predictions import drop_predictions

import tracekit
from tracekit.analyses import ANALYSES, load_default_thresholds
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.facts import parse_facts
from tracekit.model.tables import SHARED
from tracekit.pipeline import question_selection
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.run_grouping.primary_tool import select_primary_tool
from tracekit.render import render

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS = [analysis.id for analysis in ANALYSES]


@pytest.fixture
def profile(tmp_path):
    """Two ranks of a step of 100 µs, its stage `gen` of 80 µs and a kernel of 10 µs."""
    rows = [step(1, 0, 100), annotation("gen", 10, 80), *launched("gemm", 12, 20, 10, 1)]
    for rank in (0, 1):
        write(tmp_path / "profile" / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return tmp_path / "profile"


@pytest.fixture(scope="module", params=["simulated_gpu/outputs/profile", "simulated_memory"])
def every_table(request):
    """All that is measured of an example, each step told by one tool."""
    return select_primary_tool(analyze_uncached(EXAMPLES / request.param, Options(jobs=1)).measurements)


@pytest.mark.parametrize("id_", IDS)
def test_a_question_says_the_same_from_the_tables_that_are_measured_for_it(every_table, id_):
    (analysis,) = [analysis for analysis in ANALYSES if analysis.id == id_]
    measured = question_selection.select_measured_questions([id_], (), ANALYSES)
    names = {table for one in measured for table in one.tables}
    few = {name: frame for name, frame in every_table.arrays.items() if name in names}
    alone = replace(every_table, arrays=few)
    with alone.watched() as looked_at:
        section = analysis.judge(alone, load_default_thresholds())
    assert looked_at <= names
    assert section == analysis.judge(replace(every_table), load_default_thresholds())


@pytest.mark.slow
@pytest.mark.parametrize("id_", IDS)
def test_a_question_says_the_same_when_only_what_it_reads_is_read(id_):
    path = EXAMPLES / "simulated_gpu/outputs/profile"
    alone = tracekit.analyze(path, questions=id_)
    every_section = {section.id: section for section in tracekit.analyze(path).sections}
    sections = [section for section in alone.sections if section.id != "rules"]
    every = [drop_predictions(every_section[section.id]) for section in sections]
    assert [drop_predictions(section) for section in sections] == every


def test_every_measured_table_is_written_by_a_question():
    written = {table for analysis in ANALYSES for table in analysis.tables}
    assert {table.name for table in SHARED} <= written


@pytest.mark.parametrize("example", ["simulated_gpu/outputs/profile", "simulated_memory"])
def test_a_question_measures_the_tables_and_metrics_of_its_record_and_no_others(example):
    source = pipeline.discover_sources(EXAMPLES / example).sources[0]
    of = {analysis.id: analysis for analysis in ANALYSES}
    (part,) = pipeline.measure_source(source, lambda _: None)
    assert part.tables
    for id_, tables in part.tables.items():
        assert set(tables) <= set(of[id_].tables)
        if "metrics" in tables:
            assert {*tables["metrics"].texts("name")} <= set(of[id_].metrics)


def test_only_the_questions_asked_are_in_the_report(profile):
    report = tracekit.analyze(profile, questions=["kernels", "gpu-time"])
    assert {section.id for section in report.sections} == {"kernels", "gpu-time", "rules"}
    (rules,) = [section for section in report.sections if section.id == "rules"]
    told, limits = rules.sheets
    assert [row[1] for row in told.rows] == ["low-gpu-utilization"]
    assert {row[0] for row in limits.rows} == {"severity", "low-gpu-utilization"}


def test_where_no_question_has_a_rule_there_is_nothing_to_say_of_rules(profile):
    assert [section.id for section in tracekit.analyze(profile, questions="kernels").sections] == ["kernels"]


def test_the_first_screen_says_what_was_asked_and_nothing_that_was_not_measured(profile):
    text = render(tracekit.analyze(profile, questions="kernels"), "text")
    assert "only asked: kernels" in text
    assert "ranks 0, 1 of 2" in text
    assert "step 100 µs" in text
    assert "Where the step goes" in text
    assert "idle 90 %" in text  # the rules on warm-up steps need the time of the GPUs
    assert "slowest rank" not in text  # who waits for whom was not measured
    every_text = render(tracekit.analyze(profile), "text")
    assert all(measured in every_text for measured in ("idle", "2 × GPU", "GPU busy"))
    assert "only asked" not in every_text


def test_of_few_that_are_skipped_the_first_screen_names_these(profile):
    report = tracekit.analyze(profile, skip=("kernels", "leaks"))
    assert "not asked: kernels, leaks" in report.identity
    assert "kernels" not in {section.id for section in report.sections}
    assert "operators" in {section.id for section in report.sections}


def test_only_what_the_questions_need_is_measured_and_read(profile):
    tables = analyze_uncached(profile, Options(questions=("kernels",))).measurements.tables
    assert {"kernels", "steps", "captures"} <= set(tables)
    assert not {"operators", "slots", "collectives"} & set(tables)
    few = pipeline.list_wanted_inputs(question_selection.select_measured_questions(["kernels"], (), ANALYSES))
    assert not {"allocations", "syncs"} & few.tables
    assert "Input Dims" not in few.args
    snapshot = pipeline.list_wanted_inputs(question_selection.select_measured_questions(["memory-peak"], (), ANALYSES))
    assert "allocations" in snapshot.tables


@pytest.mark.parametrize("options", [{"questions": ("kernels",)}, {"skip": ("idle", "gpu-time")}, {}])
def test_the_same_steps_count_whatever_is_asked(options):
    """Five periods of `Optimizer.step`: the last has next to no device work, and takes 1.4 ms instead of 12.7 ms."""
    report = tracekit.analyze(Path(__file__).parents[1] / "data/gpu/no_marks/plain_fused.pt.trace.json.xz", **options)
    step = next(metric for metric in report.headline if metric.name == "step_wall")
    assert step.value == pytest.approx(12.7e6, rel=0.01)


def test_a_question_that_rests_on_another_s_table_has_it_measured_and_not_judged(profile):
    result = analyze_uncached(profile, Options(questions=("idle",)))
    assert "gpu_time" in result.measurements.tables
    assert [section.id for section in result.report.sections] == ["idle", "rules"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(questions=("kernel",)), "no question 'kernel'; did you mean 'kernels'?"),
        (Options(skip=("memory-peek",)), "no question 'memory-peek'; did you mean 'memory-peak'?"),
        (Options(questions=("kernels",), skip=("kernels",)), "no question is left to be asked"),
    ],
)
def test_what_no_question_is_called_is_an_error_that_lists_them(profile, options, problem):
    with pytest.raises(TracekitError) as caught:
        analyze_uncached(profile, options)
    assert caught.value.problem == problem
    assert "kernels" in caught.value.hint or "skip fewer" in caught.value.hint


def test_the_command_line_takes_several(profile, call):
    done = call("analyze", profile, "--only", "kernels", "--only", "steps", "--skip", "steps")
    assert "only asked: kernels" in done.stdout
    refused = call("analyze", profile, "--only", "gpu-tme")
    assert refused.exit_code == 2
    assert "did you mean 'gpu-time'?" in refused.stderr
    assert "data-quality" in refused.stderr


def test_saved_for_few_questions_is_asked_these_again_and_no_others(profile, tmp_path):
    result = analyze_uncached(profile, Options(questions=("kernels", "steps")))
    saved_measurements.save(result.measurements, tmp_path / "few.tkm")
    assert analyze_uncached(tmp_path / "few.tkm").report == result.report
    one = analyze_uncached(tmp_path / "few.tkm", Options(questions=("kernels",))).report
    assert [section.id for section in one.sections] == ["kernels"]
    with pytest.raises(TracekitError, match="without idle") as caught:
        analyze_uncached(tmp_path / "few.tkm", Options(questions=("idle",)))
    assert "it contains steps, kernels" in caught.value.hint
    with pytest.raises(TracekitError, match=r"few\.tkm: it was saved for other questions"):
        tracekit.compare(tmp_path / "few.tkm", tmp_path / "few.tkm")


def test_what_was_saved_for_all_can_be_asked_less(profile, tmp_path):
    saved_measurements.save(analyze_uncached(profile).measurements, tmp_path / "all.tkm")
    report = analyze_uncached(tmp_path / "all.tkm", Options(questions=("kernels",))).report
    assert [section.id for section in report.sections] == ["kernels"]
    assert "only asked: kernels" in report.identity


def test_what_is_put_together_is_asked_what_all_parts_hold(profile, tmp_path):
    for name, questions in (("a", ("kernels", "steps")), ("b", ("kernels", "host"))):
        saved_measurements.save(
            analyze_uncached(profile, Options(questions=questions)).measurements, tmp_path / f"{name}.tkm"
        )
    several = [tmp_path / "a.tkm", tmp_path / "b.tkm", f"c={profile}"]
    result = analyze_uncached(several)
    assert [section.id for section in result.report.sections] == ["kernels"]
    assert "host_counts" in result.measurements.facts.unasked
    assert len(result.measurements["kernels"]["run"].unique()) == 3


def test_a_report_on_few_questions_is_no_baseline(profile, tmp_path):
    """It lacks values that a later compare would take for not recorded."""
    report = tracekit.analyze(profile, questions="kernels")
    assert report.values is None
    assert tracekit.analyze(profile).values is not None


def test_facts_of_a_saved_file_may_be_anything(profile, tmp_path):
    measured = analyze_uncached(profile).measurements
    odd = replace(measured, facts=parse_facts({"questions": "kernels", "unasked": 3, "work": [1]}))
    assert len(pipeline.judge(odd).sections) == len(pipeline.judge(measured).sections)
