"""Critical paths of two sides: sums by kind and by op, worked out by hand, and those of recorded programs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tracekit.cli import main
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.critical_path import MAX_OPS, PathPart, compare_critical_paths
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.pipeline import comparing
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import replay_run
from tracekit.render.json import write_plain_json
from tracekit.replay.ledger import find_critical_path
from tracekit.replay.path_owners import PathOwners

ROOT = Path(__file__).parents[2]
SIDES = [[ROOT / "examples" / "compare_cpu" / name] for name in ("base", "opt")]
GPU = [[ROOT / "tests" / "data" / "gpu" / "compare" / name] for name in ("base", "opt")]


def path(ns, steps=2, share=0.0):
    return PathOwners(ns, sum(ns.values()), steps, share)


def test_kinds_and_ops_are_means_over_the_runs_and_add_up_to_the_paths():
    base = [
        path({("kernel", "gemm"): 60, ("host", "step"): 30, ("kernel", "add"): 10}, 2, 0.02),
        path({("kernel", "gemm"): 80, ("host", "step"): 20}, 4, 0.04),
    ]
    change = compare_critical_paths(base, [path({("kernel", "gemm"): 40, ("copy", "HtoD"): 9, ("host", None): 1})])
    assert (change.base, change.opt) == (100, 50)
    assert change.kinds == (
        PathPart("kernel", None, 75, 40, -35),
        PathPart("host", None, 25, 1, -24),
        PathPart("copy", None, 0, 9, 9),
    )
    assert change.ops == (
        PathPart("kernel", "gemm", 70, 40, -30),
        PathPart("host", "step", 25, 0, -25),
        PathPart("copy", "HtoD", 0, 9, 9),
        PathPart("kernel", "add", 5, 0, -5),
        PathPart("host", None, 0, 1, 1),
    )
    assert change.base_unexplained == pytest.approx(0.03)
    assert (change.base_runs, change.opt_runs, change.base_steps, change.opt_steps) == (2, 1, 6, 2)


def test_a_side_without_a_run_gives_no_change():
    assert compare_critical_paths([], [path({("host", "step"): 1})]) is None
    assert compare_critical_paths([path({("host", "step"): 1})], []) is None


def test_the_smallest_changes_are_one_row():
    ops = {("kernel", f"k{number}"): 1000 - number for number in range(MAX_OPS + 3)}
    change = compare_critical_paths([path(ops)], [path({("kernel", "other"): 5000})])
    *listed, rest = change.ops
    assert len(listed) == MAX_OPS
    assert listed[0] == PathPart("kernel", "other", 0, 5000, 5000)
    numbers = [1000 - number for number in range(MAX_OPS - 1, MAX_OPS + 3)]
    assert rest == PathPart("other owners", "4 more", sum(numbers), 0, -sum(numbers))


@pytest.fixture(scope="module")
def compared():
    return compare_paths(*SIDES, Options(graphs=True)).comparison


@pytest.mark.parametrize(("sides", "steps"), [(SIDES, "4-8"), (GPU, None)], ids=["cpu", "gpu"])
def test_paths_of_recorded_programs_are_those_of_their_replays(sides, steps):
    """Each side is the mean over its runs of the replay's path per step; the rows of both tables add up to it.

    The comparison leaves out step 3 of the CPU program, its first.
    """
    change = compare_paths(*sides, Options(graphs=True)).comparison.critical
    for (folder,), name in zip(sides, ("base", "opt"), strict=True):
        lengths, counted = [], 0
        for run in sorted(folder.iterdir()):
            replay = replay_run(run, Options(steps=steps))
            found = find_critical_path(replay.job, replay.steps)
            assert found.before_ns == 0
            count = len(set(replay.steps.number.tolist()))
            lengths.append(found.length_ns / count)
            counted += count
        assert getattr(change, name) == pytest.approx(sum(lengths) / len(lengths))
        assert (getattr(change, f"{name}_runs"), getattr(change, f"{name}_steps")) == (len(lengths), counted)
        for parts in (change.kinds, change.ops):
            assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(change, name))
    assert {part.kind for part in change.kinds} >= ({"kernel"} if sides is GPU else {"host"})


def test_the_path_covers_the_steps_that_the_comparison_counts():
    choices = ComparisonChoices(drop_first=3)
    change = compare_paths(*SIDES, Options(graphs=True), choices).comparison.critical
    # Four runs a side with six steps each.
    assert (change.base_steps, change.opt_steps) == (12, 12)


def test_the_report_and_the_json_have_the_path_only_with_graphs(compared):
    report = build_comparison_report(compared)
    (section,) = [section for section in report.sections if section.id == "critical-path"]
    kinds, ops = section.sheets
    assert [row[0] for row in kinds.rows] == [part.kind for part in compared.critical.kinds]
    assert ops.rows[0][:2] == ("host", "aten::addmm")
    assert "The path takes 14.3 ms → 8.85 ms per step" in kinds.caption
    assert json.loads(write_plain_json(compared, "comparison"))["critical"]["kinds"][0]["kind"] == "host"
    plain = compare_paths(*SIDES).comparison
    assert plain.critical is None
    assert plain == replace(compared, critical=None)
    assert all(section.id != "critical-path" for section in build_comparison_report(plain).sections)


@pytest.mark.parametrize(
    ("arguments", "builds"),
    [
        ([], False),
        (["-v"], True),
        (["-o", "x.json"], True),
        (["-o", "x.html"], True),
        (["-o", "x.md"], False),
        (["-v", "--stages", "gen"], False),
    ],
)
def test_only_outputs_that_list_the_path_read_graphs(tmp_path, monkeypatch, arguments, builds):
    asked = []
    measure = comparing.pipeline.measure_all

    def note(paths, options):
        asked.append(options.graphs)
        return measure(paths, options)

    monkeypatch.setattr(comparing.pipeline, "measure_all", note)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["compare", str(SIDES[0][0]), str(SIDES[1][0]), "-q", *arguments])
    assert asked == [builds, builds]


def test_a_fault_leaves_the_verdict_and_a_warning(monkeypatch, compared):
    def fail(*_):
        raise ValueError("no path")

    monkeypatch.setattr(comparing, "measure_path_owners", fail)
    faulty = compare_paths(*SIDES, Options(graphs=True)).comparison
    assert faulty.critical is None
    assert faulty.warnings[-1] == "critical paths could not be compared: ValueError: no path"
    assert faulty.headline == compared.headline
