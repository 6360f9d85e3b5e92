"""An error inside tracekit is told as one: in what was measured, in what rests on it, and in every output.

Exceptions are put into every question's `measure`, `fold` and `judge` in turn. What rests on a failed part says
so or fails itself, and everything else is as it was.
"""

import pickle
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from chrome_builder import annotation, launched, op, step, write
from memory_builder import MIB, Allocator, pickled, snapshot, stack
from predictions import drop_predictions

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.gate_rules import GateRules, parse_rule_text
from tracekit.compare.gates.outcomes import apply_gate_rules, summarize_gates
from tracekit.engine import Outcome
from tracekit.model.failed_questions import judge_without_faults
from tracekit.model.tables import TABLES
from tracekit.model.trace import Fault, Measurements, Source
from tracekit.pipeline import comparing
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.measure_source import fold_sources, list_shared_processes, measure_trace
from tracekit.pipeline.run import Options, judge
from tracekit.readers.loading import load
from tracekit.render import RENDERERS, read_report_json, render, write_report_json

ALL = pipeline.ANALYSES
EVERYWHERE = frozenset({"data-quality", "steps"})
"""The questions whose tables nearly every judgement looks at."""

BY_ID = {analysis.id: analysis for analysis in ALL}
MEASURING = [analysis.id for analysis in ALL if analysis.tables]
AT_ONCE = ("gpu-time",)
SOME = "of 1 of 2 ranks"
ABSENT = ("no GPU activity", "was recorded", "is damaged", "ranks unknown", "0 ×")


def explode(*_):
    raise RuntimeError("boom\nsecond line")


def slow_but(few, ids):
    return [id_ if id_ in few else pytest.param(id_, marks=pytest.mark.slow) for id_ in ids]


def rank_rows(rank):
    """Two steps of 100 µs, each with `gen` and `update_actor` that launch one kernel; rank 1 computes longer."""
    rows = []
    for at, number in enumerate((1, 2)):
        zero, link = 100 * at, 10 + 10 * at
        rows += [
            step(number, zero, 100), annotation("gen", zero + 5, 40), op("aten::mm", zero + 6, 10),
            *launched("gemm", zero + 8, zero + 20, 10 + 10 * rank, link + 1),
            annotation("update_actor", zero + 50, 40),
            *launched("ncclDevKernel_AllReduce", zero + 52, zero + 60, 20, link + 2),
        ]  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "profile"
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", rank_rows(rank), rank=rank, world_size=2)
    return folder


@pytest.fixture(scope="module")
def parts(profile):
    """What was measured of each rank, without an error."""
    return [measure_trace(load(profile / f"rank{rank}.json"), ALL) for rank in (0, 1)]


@pytest.fixture(scope="module")
def reduced(profile):
    """A function: the measurements that these parts make together."""
    found = pipeline.discover_sources(profile)

    def of(given):
        outcomes = [Outcome(s, (p,)) for s, p in zip(found.sources, given, strict=True)]
        return pipeline.reduce_outcomes(outcomes, found, Options())

    return of


@pytest.fixture(scope="module")
def good(parts, reduced):
    return judge(reduced(parts))


def broken_part(profile, part, id_):
    """The part of a rank, as it is where measuring one question breaks."""
    path = profile / f"rank{part.source.rank}.json"
    failed = measure_trace(load(path), [replace(BY_ID[id_], measure=explode, any_source=True)])
    rest = {name: frames for name, frames in part.tables.items() if name != id_}
    return replace(part, tables=rest, faults=failed.faults)


@pytest.fixture
def failing(profile, parts, reduced):
    """A function: the measurements where measuring a question breaks on these ranks."""

    def of(id_, ranks):
        return reduced([broken_part(profile, p, id_) if p.source.rank in ranks else p for p in parts])

    return of


def rests_on(id_):
    """The sections that read what a question measures; at least these may change."""
    if id_ in EVERYWHERE:
        return {analysis.id for analysis in ALL}
    (own,) = [analysis.tables for analysis in ALL if analysis.id == id_]
    return {id_, *(analysis.id for analysis in ALL if not {*own}.isdisjoint(analysis.rests_on))}


def check_sections(report, good, id_):
    """Every section is as it was, or says that an error in tracekit is why it is not; no rule of the latter is clear."""
    before = {section.id: section for section in good.sections}
    changed = set()
    for section in report.sections:
        was = before.get(section.id)
        if section.id == "rules" or (was and drop_predictions(section) == drop_predictions(was)):
            continue
        changed.add(section.id)
        told = section.reason if section.status == "failed" else " ".join(section.caveats)
        assert "an error in tracekit" in told, section
        fired = {finding.rule for finding in section.findings}
        if section.id in ("repeats", "steps") and SOME not in told and section.status == "ok":
            continue  # only metrics or a chart are left out, and that is said
        if section.status == "failed":
            assert (section.findings, section.sheets, section.metrics) == ((), (), ())
            assert not any(word in section.reason for word in ABSENT)
        assert all(SOME in finding.caveats[0] for finding in section.findings)
        answers = {v.rule: v.answer for v in section.verdicts if v.rule not in fired}
        assert set(answers.values()) <= {"failed"}
        (rules,) = [s for s in report.sections if s.id == "rules"]
        told_of = {row[1]: row[2] for row in rules.sheets[0].rows}
        for rule in BY_ID[section.id].rules:
            assert told_of[rule] == ("fired" if rule in fired else "failed")
    assert id_ in changed
    assert changed <= rests_on(id_) | {"repeats"}
    assert {s.id for s in good.sections} <= {s.id for s in report.sections}


def check_first_screen(report, good, id_):
    assert any(id_ in line and "an error in tracekit" in line for line in report.cautions)
    for fact in report.identity:
        assert fact in good.identity or fact.endswith(f"({SOME})"), fact
    before = {metric.name: metric for metric in good.headline}
    for metric in report.headline:
        assert metric == before[metric.name] or metric.label.endswith(f"({SOME})"), metric
    assert set(report.fingerprint) <= set(good.fingerprint)
    if report.values is not None:
        assert set(report.values.rows) <= set(good.values.rows)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one rank", "every rank"])
@pytest.mark.parametrize("id_", slow_but(AT_ONCE, MEASURING))
def test_a_question_that_could_not_be_measured_is_failed_and_nothing_else_changes(
    failing, good, monkeypatch, id_, ranks
):
    measurements = failing(id_, ranks)
    if id_ != "gpu-time":
        # Only what may change is judged again, and two that may not: judging all takes seconds.
        chosen = {*rests_on(id_), "kernels", "copies"} if id_ not in EVERYWHERE else {id_, "kernels"}
        monkeypatch.setattr(pipeline, "ANALYSES", tuple(a for a in ALL if a.id in chosen))
        good = replace(good, sections=tuple(s for s in good.sections if s.id in chosen or s.id == "rules"))
    report = judge(measurements)
    check_sections(report, good, id_)
    check_first_screen(report, good, id_)
    assert pipeline.RunResult(report, measurements).failed
    pages = {renderer.name: render(report, renderer.name) for renderer in RENDERERS}
    for name in ("text", "md", "html", "json"):
        assert f"an error in tracekit, not in the run: {id_}" in " ".join(pages[name].split())


@pytest.fixture
def first_screen_only(monkeypatch):
    """No question is judged: the first screen and the values for a later compare do not need them."""
    monkeypatch.setattr(pipeline, "ANALYSES", ())


@pytest.mark.usefixtures("first_screen_only")
def test_a_headline_of_some_ranks_says_of_which(failing, good):
    """Rank 0 computes 10 of 100 µs, rank 1 20: 15 % of both, 10 % of rank 0."""
    whole = {metric.name: metric for metric in good.headline}
    some = {metric.name: metric for metric in judge(failing("gpu-time", (1,))).headline}
    assert whole["compute_ratio"].value == pytest.approx(0.15)
    assert whole["compute_ratio"].label == "compute"
    assert some["compute_ratio"].value == pytest.approx(0.10)
    assert some["compute_ratio"].label == "compute (of 1 of 2 ranks)"
    assert some["step_wall"] == whole["step_wall"]


def test_no_question_looks_at_a_shared_table_in_another_s_rows():
    """Of `quality` each question reads its own rows; who reads `metrics` asks for those that did not fail."""
    tables = [table for analysis in ALL for table in analysis.tables]
    assert {table for table in tables if tables.count(table) > 1} == {"metrics", "quality"}


@pytest.mark.parametrize("strict", [False, True])
def test_strict_fails_on_an_error_of_tracekit(profile, monkeypatch, call, strict):
    few = tuple(
        replace(a, measure=explode) if a.id == "kernels" else a
        for a in ALL
        if a.id in ("steps", "kernels", "data-quality")
    )
    monkeypatch.setattr(pipeline, "ANALYSES", few)
    run = call("analyze", profile, "-j", "1", *(["--strict"] if strict else []))
    assert run.exit_code == (2 if strict else 0)
    said = " ".join(run.stdout.split())
    assert "kernels could not be measured of 2 of 2 ranks (ranks 0, 1): RuntimeError: boom" in said


@pytest.mark.parametrize("strict", [False, True])
def test_strict_fails_on_an_error_when_judging(profile, monkeypatch, call, strict):
    few = tuple(
        replace(a, judge=explode) if a.id == "kernels" else a
        for a in ALL
        if a.id in ("steps", "kernels", "data-quality")
    )
    monkeypatch.setattr(pipeline, "ANALYSES", few)
    run = call("analyze", profile, "-j", "1", *(["--strict"] if strict else []))
    assert run.exit_code == (2 if strict else 0)
    assert "kernels could not be judged: RuntimeError: boom" in " ".join(run.stdout.split())


def test_saved_measurements_carry_what_failed(failing, tmp_path):
    measurements = failing("gpu-time", (1,))
    saved_measurements.save(measurements, tmp_path / "x.tkm")
    again = saved_measurements.load(tmp_path / "x.tkm")
    assert again.faults == measurements.faults
    (fault,) = again.faults
    assert (fault.question, fault.action) == ("gpu-time", "measured")
    assert fault.source.endswith("rank1.json")
    assert fault.tables == BY_ID["gpu-time"].tables
    assert fault.metrics == BY_ID["gpu-time"].metrics


def test_what_was_saved_without_errors_holds_nothing_of_them(parts, reduced, tmp_path):
    saved_measurements.save(reduced(parts), tmp_path / "x.tkm")
    assert b'"faults"' not in (tmp_path / "x.tkm").read_bytes()
    assert saved_measurements.load(tmp_path / "x.tkm").faults == ()


# --- folding ---------------------------------------------------------------------------------------


LEAKS = BY_ID["leaks"]
FEW = [LEAKS, BY_ID["data-quality"]]


@pytest.fixture
def snapshots(tmp_path):
    """Two snapshots of process 1 and one of process 2."""
    device = Allocator()
    device.alloc(8 * MIB, stack("build"))
    traces = []
    for number, pid in enumerate((1, 1, 2)):
        device.alloc(MIB, stack("keep"))
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(pickled(snapshot(device)))
        trace = load(path)
        source = replace(trace.source, name=path.name, run="", pid=pid, host="a")
        traces.append(replace(trace, source=source))
    return traces


def test_a_fold_that_breaks_fails_for_that_process_alone(snapshots):
    def breaks_on_process_1(frames):
        if (frames["snapshot_windows"]["pid"].values == 1).any():
            raise ValueError("boom")
        return frames

    sources = [(measure_trace(trace, FEW),) for trace in snapshots]
    few = [replace(LEAKS, fold=breaks_on_process_1)]
    first, second, other = (part for (part,) in fold_sources(sources, few))
    for part in (first, second):
        (fault,) = part.faults
        assert (fault.question, fault.action, fault.error) == ("leaks", "folded", "ValueError: boom")
        assert (fault.source, fault.pid, fault.tables) == (part.source.name, 1, LEAKS.tables)
        assert set(part.tables) == {"data-quality"}
    assert not other.faults
    assert set(other.tables) == {"data-quality", "leaks"}


def test_what_is_folded_has_failed_where_a_part_of_it_could_not_be_measured(snapshots):
    """What lives on from the first snapshot of a process is not told without the second."""
    questions = [FEW, [replace(LEAKS, measure=explode), *FEW[1:]], FEW]
    parts = [measure_trace(*each) for each in zip(snapshots, questions, strict=True)]
    assert list_shared_processes([parts[1]], FEW) == list_shared_processes([parts[0]], FEW)
    first, second, other = (part for (part,) in fold_sources([(part,) for part in parts], FEW))
    assert [fault.action for fault in first.faults] == ["folded"]
    assert [fault.action for fault in second.faults] == ["measured"]
    assert first.faults[0].error == second.faults[0].error == "RuntimeError: boom\nsecond line"
    assert set(first.tables) == set(second.tables) == {"data-quality"}
    assert not other.faults


def test_faults_travel_from_the_nodes_of_a_cluster(snapshots, profile):
    """What Ray's nodes send is pickled, and was folded there."""
    sources = [(measure_trace(trace, FEW),) for trace in snapshots]
    there = pickle.loads(pickle.dumps(fold_sources(sources, [replace(LEAKS, fold=explode)])))
    outcomes = [Outcome(part.source, (part,)) for (part,) in there]
    found = pipeline.discover_sources(profile)
    measurements = pipeline.reduce_outcomes(outcomes, found, Options(), already_folded=True)
    assert [(f.question, f.action) for f in measurements.faults] == [("leaks", "folded")] * 3
    assert measurements.has("captures")
    assert not measurements.has("survivors")


# --- comparing -------------------------------------------------------------------------------------


def side_of(name, measurements):
    report = read_report_json(write_report_json(judge(measurements)))
    return comparing.build_side(name, [comparing.ComparedInput(name, report, measurements)])


RULES = GateRules(tuple(map(parse_rule_text, ("gpu_busy>3%", "host_ops>3%", "step_time>point:3%"))))


@pytest.mark.usefixtures("first_screen_only")
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one rank", "every rank"])
def test_a_gate_does_not_pass_on_what_failed(parts, reduced, failing, ranks):
    base, opt = side_of("base", reduced(parts)), side_of("opt", failing("gpu-time", ranks))
    busy, ops, step_time = apply_gate_rules(RULES, base, opt, ComparisonChoices())
    assert busy.outcome == "not tested"
    assert "opt: gpu-time could not be measured" in busy.claim
    assert (ops.outcome, step_time.outcome) == ("pass", "pass")
    assert summarize_gates((busy, ops, step_time)) == "not tested"
    assert any("an error in tracekit" in note for note in opt.notes)
    assert not opt.measured


@pytest.mark.parametrize(("failed", "left"), [(1, [2, None]), (2, [1, None]), (None, [1, 2])])
def test_of_several_processes_in_one_source_only_the_rows_of_the_failed_one_are_left_out(failed, left):
    """One of them has no number."""
    pids = [1, 2, None]
    known = {"source": ["f"] * 3, "pid": pids, "ts_ns": [0] * 3, "dur_ns": [1] * 3, "synchronising": [True] * 3}
    columns = {name: [None] * 3 for name in TABLES["collectives"].columns} | known
    rows = TABLES["collectives"].cast(columns)
    whole = Measurements(
        {"collectives": rows},
        tuple(Source(Path("f"), "f", "chrome", pid=pid) for pid in pids),
        faults=(Fault("communication", "measured", "boom", "f", failed, ("collectives",)),),
    )
    told = judge_without_faults(whole, lambda some: some["collectives"]["pid"].tolist())
    assert [None if pd.isna(pid) else pid for pid in told.value] == left
