"""What the fixes of findings save: graded, ranked, and refused; worked by hand on a step of 400 µs."""

from dataclasses import replace

import pytest
from chrome_builder import step, write
from replay.graphs import replay_rows
from replay.rules import aten

from tracekit.analyses import load_default_thresholds
from tracekit.model.inputs.note_codes import FILTERED_ROWS
from tracekit.model.report import Finding, Place, Section
from tracekit.model.text.changes import write_change
from tracekit.model.trace import Note
from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.predicting import predict_savings
from tracekit.pipeline.prediction.run_graphs import RunGraph, join_runs
from tracekit.pipeline.run import discover_sources, measure
from tracekit.replay import plan, what_if
from tracekit.replay.steps import list_job_steps

ROWS = [step(1, 0, 400), aten("one", 10, 60), aten("two", 80, 100), aten("three", 200, 20)]
"""`one` 60, `two` 100, `three` 20."""


def graph_of(folder, run=None):
    job = replay_rows(folder, ROWS).job
    return RunGraph(run, job, list_job_steps(job))


def finding(rule, row=None, cost=100_000, severity="high", run=None, **more):
    """A finding whose fix removes a row."""
    changes = () if row is None else (write_change("scale", on="host", row=row, factor=0),)
    places = (Place(run=run),) if run else ()
    return Finding(rule, severity, f"{rule} of {row}", "", cost_ns=cost, cost_ratio=None if cost is None else cost / 400_000, changes=changes, places=places, **more)  # fmt: skip


def predict(graphs, *findings):
    sections = [Section("one", "One", findings=findings[:1]), Section("rest", "Rest", findings=findings[1:])]
    predicted = predict_savings(graphs, sections, load_default_thresholds())
    by_rule = {each.rule: each for section in predicted.sections for each in section.findings}
    return by_rule, predicted


def test_a_finding_is_graded_by_its_saving_and_ranked_by_the_plan(tmp_path):
    found, predicted = predict(
        [graph_of(tmp_path)],
        finding("small", "three", severity="high"),
        finding("large", "two", severity="low", cost=5_000),
    )
    assert [(found[rule].rank, found[rule].severity) for rule in ("large", "small")] == [(1, "high"), (2, "medium")]
    assert (found["large"].saving.alone_ns, found["small"].saving.step_ns) == (100_000, 280_000)
    (replay,) = predicted.replays
    assert (replay.unit, replay.recorded_ns, replay.step_ns, replay.refusal) == ("step", 400_000, 280_000, "")


def test_a_rule_that_grades_itself_lower_stays_lower(tmp_path):
    """Its cost is a quarter of the step: high, but the rule says low."""
    found, _ = predict([graph_of(tmp_path)], finding("careful", "two", severity="low"))
    assert found["careful"].severity == "low"
    found, _ = predict([graph_of(tmp_path)], finding("plain", "two", severity="high"))
    assert found["plain"].severity == "high"


def test_what_saves_little_is_info_but_keeps_its_numbers(tmp_path):
    rows = write_change("scale", on="host", row="two", factor=0.99)
    nothing = Finding("nothing", "high", "", "", cost_ns=100_000, cost_ratio=0.25, changes=(rows,))
    found, _ = predict([graph_of(tmp_path)], nothing, finding("some", "one"))
    assert (found["nothing"].severity, found["nothing"].saving.alone_ns) == ("info", 1_000)
    assert (found["some"].rank, found["nothing"].rank) == (1, 2)


def test_a_fix_that_is_refused_says_why(tmp_path):
    found, _ = predict([graph_of(tmp_path)], finding("lost", "nowhere"))
    assert found["lost"].saving is None
    assert found["lost"].caveats == ("not predicted: nothing in this run matches scale host row=nowhere factor=0",)


def test_the_reason_comes_before_the_rank_that_is_late_by_it(tmp_path):
    """Both bring nearly the same; the second is behind the first."""
    late = Finding("straggler", "high", "", "", cost_ns=110_000, cost_ratio=0.275, changes=(
        write_change("scale", on="host", row="two", factor=0), write_change("scale", on="host", row="three", factor=0.9),
    ))  # fmt: skip
    found, _ = predict([graph_of(tmp_path)], late, finding("reason", "two"))
    assert (found["reason"].rank, found["straggler"].rank) == (1, 2)
    assert (found["straggler"].saving.behind, found["straggler"].saving.after_ns) == (1, 2_000)


def test_findings_without_a_change_rank_by_their_cost_after_savings_of_that_severity(tmp_path):
    """The saving is 15 % of the step, high like the cost of 22 %; 9 % is medium."""
    found, _ = predict(
        [graph_of(tmp_path)], finding("predicted", "one"), finding("dear", cost=90_000), finding("cheap", cost=36_000),
        finding("other", cost=399_000, is_catch_all=True), Finding("timeless", "high", "", ""),
    )  # fmt: skip
    assert [rule for rule, _ in sorted(found.items(), key=lambda item: item[1].rank)] == [
        "predicted", "dear", "cheap", "other", "timeless",
    ]  # fmt: skip


@pytest.mark.parametrize(("cost", "is_kept"), [(119_999, False), (120_000, False), (120_001, True)])
def test_a_symptom_of_which_the_plan_saves_half_is_clear(tmp_path, cost, is_kept):
    """The plan saves 60."""
    found, predicted = predict([graph_of(tmp_path)], finding("cause", "one"), finding("low-gpu-utilization", cost=cost))
    assert ("low-gpu-utilization" in found) is is_kept
    verdicts = [(v.rule, v.answer) for section in predicted.sections for v in section.verdicts]
    assert verdicts == ([] if is_kept else [("low-gpu-utilization", "clear")])


def test_findings_without_a_prediction_cover_a_symptom_too(tmp_path):
    found, _ = predict([graph_of(tmp_path)], finding("cause", cost=50_000), finding("step-variance", cost=90_000))
    assert list(found) == ["cause"]


def test_time_in_which_gpus_are_busy_is_no_reason_for_idle_ones(tmp_path):
    """Communication covers steps of unequal length, not the idle time of GPUs, which ranks by all of its cost."""
    busy = finding("exposed-communication", cost=150_000)
    found, _ = predict([graph_of(tmp_path)], busy, finding("low-gpu-utilization", cost=160_000))
    assert [found[rule].rank for rule in ("low-gpu-utilization", "exposed-communication")] == [1, 2]
    found, _ = predict([graph_of(tmp_path)], busy, finding("step-variance", cost=160_000))
    assert list(found) == ["exposed-communication"]


@pytest.mark.parametrize(
    ("severity", "code", "refusal"),
    [
        ("data_loss", "truncated", "rank0.json is incomplete, and with it the dependencies that it recorded"),
        ("warning", FILTERED_ROWS, "rows were removed from rank0.json, and with them dependencies"),
        ("warning", "odd-times", ""),
    ],
)
def test_nothing_is_predicted_of_files_that_lack_rows(tmp_path, severity, code, refusal):
    write(tmp_path / "rank0.json", ROWS, rank=0, world_size=1)
    options = Options(cache=False, jobs=1, graphs=True)
    measured = measure(discover_sources(tmp_path, options), options)
    note = Note(severity, code, "as a reader says it", measured.sources[0].name)
    (graph,) = join_runs(replace(measured, notes=(*measured.notes, note)))
    assert graph.refusal == refusal
    found, predicted = predict([graph], finding("large", "two"))
    assert (found["large"].saving is None, predicted.replays[0].refusal) == (bool(refusal), refusal)


@pytest.mark.parametrize(
    ("incomplete", "processes", "refusal", "caveat"),
    [
        ((), 4, "", ""),
        ((1,), 3, "", "rank1.json is incomplete: fixes are predicted as if it was not recorded"),
        ((0, 2), 4, "rank0.json is incomplete, and with it the dependencies that it recorded", ""),
    ],
)
def test_a_run_is_predicted_from_its_whole_files_if_they_are_most(tmp_path, incomplete, processes, refusal, caveat):
    for rank in range(4):
        write(tmp_path / f"rank{rank}.json", ROWS, rank=rank, world_size=4)
    options = Options(cache=False, jobs=1, graphs=True)
    measured = measure(discover_sources(tmp_path, options), options)
    notes = [
        Note("data_loss", "truncated", "as a reader says it", measured.sources[number].name) for number in incomplete
    ]
    (graph,) = join_runs(replace(measured, notes=(*measured.notes, *notes)))
    assert (len(graph.job.processes), graph.refusal, graph.caveat) == (processes, refusal, caveat)
    found, predicted = predict([graph], finding("large", "two"))
    assert (found["large"].saving is None) == bool(refusal)
    assert [text for text in predicted.replays[0].cautions if "incomplete" in text] == [caveat] * bool(caveat)


def test_the_number_of_incomplete_files_is_reported(tmp_path):
    for rank in range(5):
        write(tmp_path / f"rank{rank}.json", ROWS, rank=rank, world_size=5)
    options = Options(cache=False, jobs=1, graphs=True)
    measured = measure(discover_sources(tmp_path, options), options)
    notes = [Note("data_loss", "truncated", "as a reader says it", measured.sources[number].name) for number in (0, 3)]
    (graph,) = join_runs(replace(measured, notes=(*measured.notes, *notes)))
    assert graph.caveat == "2 of 5 files are incomplete: fixes are predicted as if they were not recorded"


def test_nothing_is_predicted_where_too_much_is_unexplained(tmp_path, monkeypatch):
    monkeypatch.setattr(what_if, "MOST_RESIDUAL", -1.0)
    found, predicted = predict([graph_of(tmp_path)], finding("large", "two"))
    (replay,) = predicted.replays
    assert (found["large"].saving, found["large"].severity, found["large"].rank) == (None, "high", 1)
    assert (replay.step_ns, replay.refusal.partition(" of ")[2]) == (
        None,
        "the critical path is unexplained, more than −100 %",
    )


def test_a_fix_after_which_too_much_is_unexplained_is_not_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "MOST_RESIDUAL", -1.0)
    found, _ = predict([graph_of(tmp_path)], finding("large", "two"))
    assert (found["large"].saving, found["large"].severity) == (None, "high")
    assert found["large"].caveats == ("not predicted: 0 % of the critical path after the fix is unexplained",)


def test_each_run_has_its_own_plan(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    graphs = [graph_of(tmp_path / "a", "a"), graph_of(tmp_path / "b", "b")]
    found, predicted = predict(
        graphs, finding("in_a", "one", run="a"), finding("in_b", "two", run="b"), finding("nowhere", "two")
    )
    assert [(r.run, r.step_ns) for r in predicted.replays] == [("a", 340_000), ("b", 300_000)]
    assert (found["in_a"].saving.number, found["in_b"].saving.number, found["nowhere"].saving) == (1, 1, None)
    assert (found["in_b"].rank, found["in_a"].rank) == (1, 2)
    assert found["nowhere"].rank == 3


def test_without_a_graph_the_cost_ranks(tmp_path):
    found, predicted = predict([], finding("cheap", "one", cost=1_000), finding("dear", "two"))
    assert (predicted.replays, found["dear"].rank, found["cheap"].rank) == ((), 1, 2)
    assert found["dear"].saving is None


@pytest.mark.parametrize(
    ("cost", "order"),
    [
        # The fix saves 20 of 400 µs: 5 %, medium. An unknown saving of at most 8 % is of that severity, too, ...
        (32_000, ["predicted", "unknown"]),
        # ... one of at most 11 % is high.
        (44_000, ["unknown", "predicted"]),
    ],
)
def test_of_one_severity_a_predicted_saving_is_before_the_cost_of_an_unknown_one(tmp_path, cost, order):
    found, _ = predict([graph_of(tmp_path)], finding("unknown", cost=cost), finding("predicted", "three"))
    assert found["unknown"].saving is None
    assert sorted(found, key=lambda rule: found[rule].rank) == order


def test_a_small_finding_that_is_not_predicted_is_after_a_small_saving(tmp_path):
    """0.6 % saved of 1 % of cost are before a cost of 0.9 %, which is not worth a prediction."""
    change = write_change("scale", on="host", row="three", factor=0.88)
    found, _ = predict(
        [graph_of(tmp_path)],
        finding("unknown", "one", cost=3_600, severity="info"),
        replace(finding("predicted", cost=4_000, severity="low"), changes=(change,)),
    )
    assert found["predicted"].saving.alone_ns == 2_400
    assert (found["predicted"].rank, found["unknown"].rank, found["unknown"].saving) == (1, 2, None)


def test_a_hang_is_first_and_other_findings_without_time_are_last(tmp_path):
    found, _ = predict(
        [graph_of(tmp_path)],
        finding("predicted", "one"), finding("unknown", cost=240_000), finding("leak", cost=None), finding("hang", cost=None),
    )  # fmt: skip
    assert sorted(found, key=lambda rule: found[rule].rank) == ["hang", "predicted", "unknown", "leak"]


def test_findings_about_the_recording_rank_by_their_cost(tmp_path):
    """Start-up of 60 % of the capture is before a saving of 15 %, a cost of the same share is not."""
    found, _ = predict(
        [graph_of(tmp_path)],
        finding("predicted", "one"), finding("unknown", cost=240_000), finding("start-up", cost=240_000),
    )  # fmt: skip
    assert sorted(found, key=lambda rule: found[rule].rank) == ["start-up", "predicted", "unknown"]
