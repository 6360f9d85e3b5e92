"""Whether two runs are one is told by what their files hold, never by how long their steps took."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, compared, report, step_rows, write_run

from tracekit.compare.sides import ComparedInput, build_side
from tracekit.render import write_report_json


def made(name, *runs, contents):
    """A side of one report a run, the files of each holding what the digest says."""
    inputs = [
        ComparedInput(f"{name}{n}", replace(report(step_rows(run)), contents=(("run1", digest),)), None)
        for n, (run, digest) in enumerate(zip(runs, contents, strict=True), 1)
    ]
    return build_side(name, inputs, 0)


def said(base, opt):
    return " | ".join(compared(base, opt).warnings)


def test_equal_step_times_of_different_files_are_no_copy():
    sides = [made(name, BASE_RUNS[0], BASE_RUNS[1], contents=(name, name * 2)) for name in "ab"]
    assert "step times are equal on both sides, to the nanosecond" in said(*sides)
    assert "twice" not in said(*sides)


def test_equal_step_times_of_files_that_are_not_known_are_no_copy():
    text = said(step_rows(*BASE_RUNS), step_rows(*BASE_RUNS))
    assert "step times are equal on both sides" in text
    assert "twice" not in text


def test_the_same_files_on_both_sides_are_told():
    one, two = (made(name, *BASE_RUNS, contents="wxyz") for name in "ab")
    assert "both sides have the same files: the same profile was given twice" in said(one, two)
    other = made("b", BASE_RUNS[0], OPT_RUNS[1], contents="xv")
    assert "1 run is the same on both sides" in said(one, other)


def test_copies_of_a_run_are_one_run():
    """Three copies would look like three runs that do not differ at all."""
    base = made("base", BASE_RUNS[0], BASE_RUNS[0], BASE_RUNS[0], contents="xxx")
    opt = made("opt", OPT_RUNS[0], OPT_RUNS[0], OPT_RUNS[0], contents="yyy")
    found = compared(base, opt)
    assert (found.headline.base_runs, found.headline.opt_runs) == (1, 1)
    assert found.verdict == "inconclusive"
    notes = [line for line in found.warnings if "copies of one run count as one run" in line]
    assert len(notes) == 2
    assert notes[0].startswith("base: base2, base3 hold the same files as base1")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run, a copy of its files under another name, and another run."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(name).mkdir()
        write_run(Path(name), [1000, 1010, 990, 1005, 995])
    shutil.rmtree("two")
    shutil.copytree("one", "two")
    Path("three").mkdir()
    write_run(Path("three"), [1000, 1010, 990, 1005, 995], note="another file with equal times")
    return ("one", "two", "three")


def headline(call, *args):
    done = call("compare", *args, "-q", "-j", "1", "-o", "out.json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(Path("out.json").read_text())
    return found["headline"], " | ".join(found["warnings"])


@pytest.mark.parametrize("saved", [False, True])
def test_copies_of_files_are_one_run_however_they_are_given(call, runs, saved):
    if saved:
        for name in runs:
            assert call("analyze", name, "-q", "-o", f"{name}.json").exit_code == 0
        runs = [f"{name}.json" for name in runs]
    one, two, three = runs
    step, _ = headline(call, "--base", one, "--base", two, "--opt", three, "--opt", one)
    assert (step["base_runs"], step["opt_runs"]) == (1, 2)
    assert "given twice" in headline(call, one, two)[1]
    text = headline(call, one, three)[1]
    assert "step times are equal" in text
    assert "given twice" not in text


def test_copies_of_a_log_are_one_run(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, last in (("a", 1.2), ("b", 1.2), ("c", 1.3)):
        lines = [f"{n},{s}\n" for n, s in enumerate((1.0, 1.1, 1.0, last))]
        Path(f"{name}.csv").write_text("step,seconds\n" + "".join(lines))
    step, text = headline(call, "--base", "a.csv", "--base", "b.csv", "--opt", "c.csv")
    assert step["base_runs"] == 1
    assert "copies of one run count as one run" in text
    assert "the same log was given twice" in headline(call, "x=a.csv", "y=b.csv")[1]


def test_a_saved_report_carries_what_its_files_hold():
    assert json.loads(write_report_json(replace(report([]), contents=(("run1", "ab"),))))["contents"]
