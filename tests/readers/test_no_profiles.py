"""Traces that are no profiles are told by what they hold, left aside, and said to be so."""

import gzip
import json
import os
from pathlib import Path

import pytest
from chrome_builder import annotation, op, step, write

from tracekit import load
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.pipeline.run import Options, analyze_uncached, discover_sources
from tracekit.readers.foreign import RAY_TASKS, identify_non_profile


def task(name="execute", **more):
    """One row as `ray timeline` writes it."""
    row = {
        "cat": f"task:{name}", "name": name, "pid": "10.0.0.1", "tid": "worker:0cbb", "ts": 1.0, "dur": 2.0,
        "ph": "X", "cname": "rail_load", "args": {},
    }  # fmt: skip
    return row | more


TIMELINE = [task(), task(":Worker.update_actor"), task(cat="submit_task")]


def text(rows, **options):
    return json.dumps(rows, **options).encode()


@pytest.mark.parametrize("head", [
    text(TIMELINE), text(TIMELINE, indent=1), text(TIMELINE)[:200], b"\xef\xbb\xbf\n " + text(TIMELINE),
    text(TIMELINE, separators=(",", ":")), text([{"ph": "M", "name": "process_name"}, *TIMELINE]),
])  # fmt: skip
def test_a_timeline_of_tasks_is_told_by_its_categories(head):
    assert identify_non_profile(head) == RAY_TASKS


@pytest.mark.parametrize("head", [
    b"", b"[", b"[]", b"\x00\xff",
    text([op("a", 0, 1)]),
    text([{"ph": "X", "name": "task:execute", "ts": 0, "dur": 1}]),
    text([*TIMELINE, op("a", 0, 1)]),
    text([*TIMELINE, {"cat": "Kernel", "ph": "X"}]),
    text({"traceEvents": TIMELINE}),
    text([task(cat="subtask:x")]),
])  # fmt: skip
def test_everything_else_is_left_to_the_readers(head):
    assert identify_non_profile(head) is None


@pytest.fixture
def outputs(tmp_path):
    """One step of 100 µs, and beside it a timeline of 8 s."""
    write(tmp_path / "profile" / "rank0.json", [step(1, 0, 100), annotation("gen", 0, 40)])
    (tmp_path / "odd name.json.gz").write_bytes(gzip.compress(text([*TIMELINE, task(dur=8e6)])))
    return tmp_path


def test_in_a_folder_it_is_ignored_and_listed(outputs):
    found = discover_sources(outputs)
    assert [source.name for source in found.sources] == ["profile/rank0.json"]
    assert [(i.path.name, i.reason) for i in found.ignored] == [("odd name.json.gz", RAY_TASKS)]
    report = analyze_uncached(outputs, Options(jobs=1)).report
    assert report.headline[0].value == 100_000
    assert f"1 file: {RAY_TASKS.text}" in report.unseen


def test_named_by_itself_it_is_said_what_it_is(outputs):
    path = outputs / "odd name.json.gz"
    with pytest.raises(TracekitError) as refused:
        discover_sources(path)
    assert "1 Ray timeline: when tasks ran" in str(refused.value)
    with pytest.raises(TraceFormatError, match=RAY_TASKS.text):
        load(path)


REAL = Path(os.environ.get("TRACEKIT_REAL_DATA", "missing")) / "chrome" / "verl_cpu"


@pytest.mark.skipif(not REAL.is_dir(), reason="TRACEKIT_REAL_DATA is not set")
def test_real_timelines_of_ray_are_ignored_and_no_profile_is():
    whole = discover_sources(REAL)
    left = {i.path.name for i in whole.ignored if i.reason == RAY_TASKS}
    assert left == {"ray_timeline.json"}
    assert not [s.name for s in whole.sources if "ray_timeline" in s.name]
