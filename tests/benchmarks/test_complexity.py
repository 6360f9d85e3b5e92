"""The benchmark of how cost grows makes the runs that it says, and judges them; what it led to stays so. No timings."""

import importlib
import json
import sys
from collections import Counter
from gzip import decompress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracekit.job.frames import list_stage_ranges, measure_step_walls
from tracekit.job.idle_time import launching
from tracekit.job.rank_groups import list_rank_groups
from tracekit.model.tables.keys import group_arrays
from tracekit.model.trace import Source, Want
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options
from tracekit.pipeline.summary.stage_table import _find_slowest_ranks
from tracekit.process.impossible_times import find_late_stream_ends
from tracekit.readers import chrome

HERE = Path(__file__).resolve().parent


@pytest.fixture
def complexity(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("complexity")


OF_PANDAS_2 = frozenset(
    str(Path(pd.__file__).parent / "core" / place)
    for place in ("dtypes/missing.py", "internals/concat.py", "arrays/masked.py")
    if int(pd.__version__.partition(".")[0]) < 3
)
"""Where pandas 2 looks at the missing values of columns that it joins, one by one: not our doing."""


def calls_of(function, *given):
    """How many Python functions it calls: one a step shows, however fast the machine is."""
    count = 0

    def on_call(frame, event, _arg):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename not in OF_PANDAS_2

    sys.setprofile(on_call)
    try:
        function(*given)
    finally:
        sys.setprofile(None)
    return count


def test_walls_of_steps_take_as_many_calls_for_few_steps_as_for_many(complexity, tmp_path):
    calls = []
    for count in (10, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        found = pipeline.discover_sources(complexity.write(folder, complexity.KINDS["steps"], count))
        measured = pipeline.measure(found, Options(jobs=1))
        assert len(measure_step_walls(measured)) == count
        calls.append(calls_of(measure_step_walls, measured))
    assert calls[1] < 1.2 * calls[0] + 50


def test_late_ends_take_as_many_calls_for_few_streams_as_for_many(complexity, tmp_path):
    calls = []
    for count in (10, 500):
        folder = tmp_path / str(count)
        folder.mkdir()
        complexity.write(folder, complexity.KINDS["bare_streams"], count)
        (path,) = folder.iterdir()
        (trace,) = chrome.read(Source(path, path.name, "chrome"), Want())
        assert trace["device_ops"]["stream"].nunique() == count
        calls.append(calls_of(_late_ends, trace))
    assert calls[1] < 1.2 * calls[0] + 50


def _late_ends(trace):
    start = trace.numbers("device_ops", "ts_ns")
    end = start + 10 * trace.numbers("device_ops", "dur_ns")
    number, _ = group_arrays([trace.nullable("device_ops", "stream")])
    rows = np.arange(len(start))
    may_overlap = np.zeros(len(start), np.bool_)
    return find_late_stream_ends(start, end, number, rows, may_overlap=may_overlap, is_in_order=True)


@pytest.fixture
def measured_of_stages(complexity, tmp_path):
    """The measurements of runs of few stages and of many."""
    runs = []
    for count in (10, 300):
        folder = tmp_path / str(count)
        folder.mkdir()
        found = pipeline.discover_sources(complexity.write(folder, complexity.KINDS["stages"], count))
        runs.append(pipeline.measure(found, Options(jobs=1)))
        assert len(list_stage_ranges(runs[-1])) == count  # their names take a call each, once
    return runs


def test_pooled_launches_take_as_many_calls_for_few_stages_as_for_many(measured_of_stages):
    few, many = (calls_of(launching.pool_launch_counts, measured) for measured in measured_of_stages)
    assert [len(launching.pool_launch_counts(measured)) for measured in measured_of_stages] == [11, 301]
    assert many - few < 10 * 290  # to name a stage takes six calls, to pool one by itself would take hundreds


def test_the_rank_with_most_own_work_takes_as_many_calls_for_few_stages_as_for_many(measured_of_stages):
    few, many = (calls_of(_find_slowest_ranks, list_rank_groups(measured)[0], 0.0) for measured in measured_of_stages)
    assert many < 1.2 * few + 50


@pytest.mark.parametrize(
    ("kind", "event", "key"),
    [
        ("steps", "user_annotation", lambda row: row["name"] if "#" in row["name"] else None),
        ("streams", "kernel", lambda row: row["tid"]),
        ("threads", "cpu_op", lambda row: row["tid"]),
        ("names", "kernel", lambda row: row["name"]),
        ("groups", "kernel", lambda row: row["args"]["Process Group Name"]),
        ("stages", "user_annotation", lambda row: None if "#" in row["name"] else row["name"]),
    ],
)
def test_a_run_holds_as_many_as_it_says(complexity, tmp_path, kind, event, key):
    complexity.write(tmp_path, complexity.KINDS[kind], 9)
    (path,) = tmp_path.iterdir()
    document = json.loads(decompress(path.read_bytes()))
    assert document["simulated"].startswith("SIMULATED")
    rows = [row for row in document["traceEvents"] if row["cat"] == event]
    assert len(set(map(key, rows)) - {None}) == 9


def test_files_are_of_ranks_and_processes_of_their_own(complexity, tmp_path):
    complexity.write(tmp_path, complexity.KINDS["files"], 3)
    documents = [json.loads(decompress(path.read_bytes())) for path in tmp_path.iterdir()]
    assert sorted(each["distributedInfo"]["rank"] for each in documents) == [0, 1, 2]
    pids = Counter(row["pid"] for each in documents for row in each["traceEvents"] if row["pid"])
    assert len(pids) == 3


def test_what_takes_more_than_five_times_as_much_is_missed_unless_it_is_noise(complexity):
    assert complexity.is_too_steep([1.0, 2.5, 5.1])
    assert not complexity.is_too_steep([1.0, 2.0, 5.0])
    assert not complexity.is_too_steep([0.0, 0.0, 0.09])
    assert complexity.is_too_steep([0.01, 0.04, 0.16])
    seconds = {"analyze": [1.0, 2.0, 4.0], "judge x": [0.1, 0.3, 0.9], "judge y": [0.0, 0.0, 0.09]}
    lines = complexity.table("steps", [1, 2, 4], seconds, everything=True)
    assert lines[2:] == [
        "| analyze | 1.00 | 2.00 | 4.00 | 4.0 | pass |",
        "| judge x | 0.10 | 0.30 | 0.90 | 9.0 | MISSED |",
        "| judge y | 0.00 | 0.00 | 0.09 | nan | too short to say |",
    ]
    told = complexity.table("steps", [1, 2, 4], seconds, everything=False)
    assert told == lines[:-1]


@pytest.mark.slow
def test_every_kind_runs_and_every_question_is_timed(complexity, capsys):
    # What so little takes is noise: the verdict is for the benchmark itself.
    assert complexity.main(["--scale", "0.01", "--rounds", "1", "--all"]) in (0, 1)
    printed = capsys.readouterr().out
    for kind in complexity.KINDS:
        assert f"| {kind} | " in printed
    assert "| judge steps | " in printed
    assert "| measure gpu-time | " in printed
