"""From paths to a report: what is read, what is left out and said to be, what a fault costs."""

import gzip
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from chrome_builder import annotation, kernel, launched, op, step, write
from predictions import drop_predictions

import tracekit
from tracekit import readers
from tracekit.engine import local
from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options, analyze_uncached, judge
from tracekit.pipeline.summary import screen as first_screen
from tracekit.pipeline.summary import stage_table
from tracekit.readers import loading
from tracekit.render import RENDERERS, read_report_json, render, write_report_json

ROOT = Path(__file__).parents[2]
PROFILES = [ROOT / f"examples/{name}/outputs/profile" for name in ("verl_cpu", "simulated_gpu")]


def rank_rows(rank, steps=(1, 2)):
    """Steps of 100 µs, each with `gen` and `update_actor` of 40 µs that launch one kernel."""
    rows = []
    for at, number in enumerate(steps):
        zero, link = 100 * at, 10 + 10 * at
        rows += [
            step(number, zero, 100), annotation("gen", zero + 5, 40), op("aten::mm", zero + 6, 10),
            *launched("gemm", zero + 8, zero + 20, 10 + rank, link + 1),
            annotation("update_actor", zero + 50, 40),
            *launched("ncclDevKernel_AllReduce", zero + 52, zero + 60, 20, link + 2),
        ]  # fmt: skip
    return rows


@pytest.fixture
def profile(tmp_path):
    """A run of two ranks and two steps."""
    folder = tmp_path / "profile"
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", rank_rows(rank), rank=rank, world_size=2)
    return folder


def names(result):
    return [source.name for source in result.measurements.sources]


def codes(result):
    return {remark.code: remark.message for remark in result.report.remarks}


def steps_of(result):
    return sorted({int(n) for n in result.measurements["steps"]["step"].dropna()})


def section(report, id_):
    return next(s for s in report.sections if s.id == id_)


def test_load_takes_one_file(profile):
    trace = tracekit.load(profile / "rank1.json")
    assert trace.source.rank == 1
    assert len(trace["device_ops"]) == 4


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (lambda p: p.mkdir(), "is a directory", "tracekit.analyze"),
        (lambda p: None, "No such file", "tracekit inspect"),
        (lambda p: p.write_bytes(b""), "holds no text", "tracekit inspect"),
        (lambda p: p.write_bytes(b"PK\x03\x04 a zip"), "its zip stream is empty, cut off or damaged", ""),
        (lambda p: p.write_bytes(gzip.compress(b'{"a": 1}')), "not a format", "inspect"),
        (lambda p: p.write_bytes(b'{"traceEvents": [{"ph": "X", "ts"'), "no complete event", ""),
        (lambda p: p.write_bytes(b'{"traceEvents": 5}'), "no array of events", ""),
    ],
    ids=["directory", "missing", "empty", "zip", "other JSON", "cut", "no events"],
)
def test_load_says_in_one_line_why_it_cannot(tmp_path, make, said, hint):
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(TracekitError, match=said) as caught:
        tracekit.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in caught.value.hint


def test_load_limits_tables_and_arguments(profile):
    trace = tracekit.load(profile / "rank0.json", tables=("device_ops",), args=())
    assert set(trace.tables) == {"device_ops"}
    assert set(trace.sparse) == {"correlation", "device", "stream"}


def test_a_file_of_several_processes_is_for_analyze(profile, monkeypatch):
    reader = loading.find_reader("chrome")
    twice = SimpleNamespace(
        name="chrome",
        tool="torch",
        claims=reader.claims,
        read=lambda s, w, b: reader.read(s, w, b) * 2,
        each=lambda s, w, b: [(trace, 0) for trace in reader.read(s, w, b) * 2],
    )
    for module in (readers, loading):
        monkeypatch.setattr(module, "READERS", (twice,))
    with pytest.raises(TracekitError, match="holds 2 processes: rank 0 pid 100; rank 0 pid 100"):
        tracekit.load(profile / "rank0.json")
    assert len(analyze_uncached(profile / "rank0.json").measurements.sources) == 2


@pytest.mark.parametrize("form", ["file", "directory", "glob", "label", "both"])
def test_a_profile_is_named_in_every_way(profile, form):
    file = profile / "rank0.json"
    paths, ranks, runs = {
        "file": (file, [0], 1),
        "directory": (profile, [0, 1], 1),
        "glob": (str(profile / "*1.json"), [1], 1),
        "label": (f"base={profile}", [0, 1], 1),
        "both": ([f"base={profile}", f"new={profile}"], [0, 0, 1, 1], 2),
    }[form]
    captures = analyze_uncached(paths).measurements["captures"]
    assert sorted(captures["rank"]) == ranks
    assert captures["run"].nunique() == runs
    if form in ("label", "both"):
        assert set(captures["run"]) <= {"base", "new"}


@pytest.mark.parametrize("paths", [[], "nowhere", "*.nothing", "label=nowhere"])
def test_what_is_not_there_is_an_error(paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TracekitError):
        analyze_uncached(paths)


def test_figures_of_the_steps_are_those_worked_by_hand(profile):
    steps = analyze_uncached(profile).measurements["steps"].sort_values(["rank", "step"])
    assert steps["step"].tolist() == [1, 2, 1, 2]
    assert steps["dur_ns"].tolist() == [100_000] * 4
    assert steps["launch_count"].tolist() == [2] * 4
    assert steps["work_ns"].tolist() == [30_000, 30_000, 31_000, 31_000]


def test_ranks_that_were_not_asked_for_are_left_out_and_that_is_said(profile):
    result = analyze_uncached(profile, Options(ranks="1"))
    assert names(result) == ["rank1.json"]
    assert codes(result)["left-out"] == "1 of 2 sources left out by rank"


def test_a_rank_known_only_from_the_content_is_filtered_as_well(tmp_path):
    for name, rank in (("a.json", 0), ("b.json", 1)):
        write(tmp_path / name, rank_rows(rank), rank=rank, world_size=2)
    result = analyze_uncached(tmp_path, Options(ranks="1"))
    assert [source.rank for source in result.measurements.sources] == [1]
    assert codes(result)["left-out"] == "1 of 2 sources left out: they contain nothing of the selection"


def test_steps_are_cut_out_of_a_longer_capture(profile):
    result = analyze_uncached(profile, Options(steps="2"))
    assert steps_of(result) == [2]
    assert result.measurements["steps"]["launch_count"].tolist() == [2, 2]
    whole, part = (analyze_uncached(profile, Options(steps=s)).measurements for s in (None, "2"))
    second = whole["stages"][whole["stages"]["step"] == 2]
    for column in ("stage", "dur_ns", "work_ns", "launch_count"):
        assert second[column].tolist() == part["stages"][column].tolist()
    assert part["kernels"]["count"].sum() * 2 == whole["kernels"]["count"].sum()


def test_work_of_before_the_recording_left_out_by_a_cut_is_said(profile):
    rows = [*rank_rows(0), kernel("orphan", 15, 5, 9)]  # the first recorded call has id 11
    write(profile / "rank0.json", rows, rank=0, world_size=2)
    result = analyze_uncached(profile, Options(steps="2"))
    assert "unlinked-left-out" in codes(result)
    assert "orphan" not in set(result.measurements["kernels"]["name"])
    assert "orphan" in set(analyze_uncached(profile).measurements["kernels"]["name"])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (Options(steps="9"), "step"),
        (Options(stages=("nope",)), "stage"),
        (Options(steps="1", stages=("ref",)), "stage"),
    ],
)
def test_what_no_source_holds_is_an_error_not_an_empty_answer(profile, options, what):
    with pytest.raises(TracekitError, match=f"none of 2 profiles has a {what} that was") as caught:
        analyze_uncached(profile, options)
    assert caught.value.hint == "there are ranks 0, 1; steps 1, 2; stages gen, update_actor"


def test_a_source_that_holds_nothing_of_what_was_asked_for_is_left_out_and_that_is_said(profile):
    write(profile / "rank1.json", rank_rows(1, (3, 4)), rank=1, world_size=2)
    result = analyze_uncached(profile, Options(steps="1,4"))
    assert steps_of(result) == [1, 4]
    one = analyze_uncached(profile, Options(steps="1"))
    assert names(one) == ["rank0.json"]
    assert codes(one)["left-out"] == "1 of 2 sources left out: they contain nothing of the selection"


def test_one_stage_is_cut_out_by_its_recorded_its_canonical_name_or_a_pattern(profile):
    for pattern in ("update_actor", "update*", "*actor"):
        measured = analyze_uncached(profile / "rank0.json", Options(stages=(pattern,))).measurements
        assert set(measured["stages"]["stage"]) == {"update_actor"}
        assert set(measured["kernels"]["name"]) == {"ncclDevKernel_AllReduce"}


def test_a_failing_source_is_named_and_the_others_stand(profile):
    alone = analyze_uncached(profile / "rank0.json").measurements
    (profile / "rank1.json").write_bytes(b'{"traceEvents": [{"ph": "X", "ts"')
    result = analyze_uncached(profile)
    (failure,) = result.measurements.failures
    assert failure.source == "rank1.json"
    assert "no complete event" in failure.problem
    assert names(result) == ["rank0.json"]
    assert result.measurements["steps"]["work_ns"].tolist() == alone["steps"]["work_ns"].tolist()
    assert ("error", "unreadable", "rank1.json") in {(r.severity, r.code, r.source) for r in result.report.remarks}
    assert any("rank1.json" in line for line in result.report.unseen)


def test_when_every_source_fails_there_is_no_report(profile):
    for path in profile.iterdir():
        path.write_bytes(b'{"traceEvents": [{"name": "%b", "ph": "X", "ts"' % path.name.encode())
    with pytest.raises(TracekitError, match=r"no source could be read: rank0\.json: .*\(and 1 more\)"):
        analyze_uncached(profile)


def test_a_damaged_source_is_read_and_its_loss_is_shown(profile):
    path = profile / "rank1.json"
    path.write_bytes(path.read_bytes()[:-40])
    result = analyze_uncached(profile)
    assert len(names(result)) == 2
    assert "truncated" in codes(result)
    assert any("rank1.json" in line for line in result.report.unseen)


def broken(analysis, **functions):
    """The analyses with functions of one of them replaced."""
    return tuple(
        replace(a, **functions) if a.id == analysis else a for a in pipeline.ANALYSES
    )  # fmt: skip


def explode(*_):
    raise RuntimeError("boom\nsecond line")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The result for one rank."""
    path = tmp_path_factory.mktemp("good") / "rank0.json"
    return analyze_uncached(write(path, rank_rows(0), rank=0, world_size=2))


AT_ONCE = ("steps", "stragglers", "gpu-time", "memory", "data-quality")
BY_QUESTION = [a.id if a.id in AT_ONCE else pytest.param(a.id, marks=pytest.mark.slow) for a in pipeline.ANALYSES]


@pytest.mark.parametrize("id_", BY_QUESTION)
def test_a_question_that_breaks_when_judged_loses_only_its_section(good, monkeypatch, id_):
    monkeypatch.setattr(pipeline, "ANALYSES", broken(id_, judge=explode))
    report = judge(good.measurements)
    assert section(report, id_).status == "failed"
    assert "RuntimeError: boom" in section(report, id_).reason
    assert any(f"{id_} could not be judged: RuntimeError: boom" in c for c in report.cautions)
    assert pipeline.RunResult(report, good.measurements).failed
    assert not pipeline.RunResult(good.report, good.measurements).failed
    own = {id_, "rules"}  # the latter tells what became of the rules
    others = [drop_predictions(s) for s in report.sections if s.id not in own]
    assert others == [drop_predictions(s) for s in good.report.sections if s.id not in own]
    for renderer in RENDERERS:
        render(report, renderer.name)


@pytest.mark.parametrize("part", ["list_run_facts", "make_headline", "make_stage_table", "list_comparable_facts"])
def test_a_part_of_the_first_screen_that_breaks_loses_only_itself(good, monkeypatch, part):
    def broken_part(measured, *left_out):
        raise KeyError("gone")

    monkeypatch.setattr(stage_table if hasattr(stage_table, part) else first_screen, part, broken_part)
    report = judge(good.measurements)
    assert report.sections == good.report.sections
    (remark,) = [r for r in report.remarks if r.code == "failed:overview"]
    assert "KeyError: 'gone'" in remark.message
    assert any(remark.message in caution for caution in report.cautions)
    for renderer in RENDERERS:
        render(report, renderer.name)


def test_measured_columns_that_break_the_schema_lose_only_their_question(profile, monkeypatch):
    wrong = broken("kernels", measure=lambda trace: {"kernels": {"nonsense": [1]}})
    monkeypatch.setattr(pipeline, "ANALYSES", wrong)
    result = analyze_uncached(profile)
    assert "SchemaError" in codes(result)["failed:kernels"]
    assert section(result.report, "steps").status == "ok"


@pytest.fixture(params=["small", pytest.param("example", marks=pytest.mark.slow)])
def some_profile(request, profile):
    return profile if request.param == "small" else PROFILES[1]


def test_the_same_profile_gives_the_same_report_whatever_the_workers(monkeypatch, some_profile):
    monkeypatch.setattr(local, "SMALL_BYTES", 0)  # or so little would be read without any workers
    one, two = (analyze_uncached(some_profile, Options(jobs=jobs)).report for jobs in (1, 2))
    assert write_report_json(one) == write_report_json(two)


def test_the_order_in_which_files_were_made_does_not_matter(tmp_path, some_profile):
    def copied(order):
        folder = tmp_path / "run" / "profile"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in order:
            shutil.copy(path, folder)
        return analyze_uncached(folder).report

    files = sorted(some_profile.iterdir())
    assert copied(files) == copied(files[::-1])


def test_files_named_one_by_one_are_read_in_any_order(profile):
    one, two = profile / "rank0.json", profile / "rank1.json"
    forth, back = (analyze_uncached([one, two]).measurements, analyze_uncached([two, one]).measurements)
    key = ["rank", "step"]
    columns = [*key, "dur_ns", "work_ns", "launch_count"]
    assert forth["steps"].sort_values(key)[columns].astype("str").values.tolist() == (
        back["steps"].sort_values(key)[columns].astype("str").values.tolist()
    )


@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda r: r.name)
@pytest.mark.parametrize(
    "path", [pytest.param(PROFILES[0], marks=pytest.mark.slow), PROFILES[1]], ids=lambda p: p.parts[-3]
)
def test_every_output_of_an_example_is_the_same_after_its_json_form(path, renderer, reports):
    report, again = reports(path)
    assert again == report
    for verbose in (False, True):
        assert render(again, renderer.name, verbose=verbose) == render(report, renderer.name, verbose=verbose)


@pytest.fixture(scope="module")
def reports():
    known = {}

    def of(path):
        if path not in known:
            report = analyze_uncached(path).report
            known[path] = report, read_report_json(write_report_json(report))
        return known[path]

    return of


PURE = """
import hashlib, os, sys
from tracekit.pipeline.run import analyze_uncached
from tracekit.render import write_report_json
for path in sys.argv[1:]:
    print(hashlib.sha256(write_report_json(analyze_uncached(path).report).encode()).hexdigest())
print([name for name in sys.modules if name.startswith("tracekit.readers.chrome._scan")])
"""


def test_without_the_extension_the_report_is_the_same_and_the_extension_is_not_even_looked_at(some_profile):
    found = []
    for pure in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", PURE, str(some_profile)],
            env={**os.environ, "TRACEKIT_PURE": pure, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(run.stdout.splitlines())
    (*native, extension), (*pure, nothing) = found
    assert native == pure
    assert extension != "[]"
    assert nothing == "[]"
