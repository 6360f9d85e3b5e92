"""Timelines of Ray: both forms, whose they are, what is left out, and what nothing can break."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from chrome_builder import annotation, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from ray_timelines import DRIVER, call, dashboard, row, task, worker

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.pipeline.run import Options, analyze_uncached, discover_sources
from tracekit.readers import READERS, ray_timeline
from tracekit.readers.loading import load

FIRST = 1_795_865_732_428_164.0
"""A start as Ray writes it: µs since the Unix epoch."""


def put(folder, rows, name="timeline.json"):
    path = folder / name
    path.write_text(json.dumps(rows))
    return path


def claimed(text):
    return next((reader.name for reader in READERS if reader.claims(text)), None)


def test_the_rows_of_one_task_have_their_kinds_times_and_places(tmp_path):
    rows = [
        call("submit_task", DRIVER, FIRST - 10, 5.5),
        *task("Worker.gen", worker(1), FIRST, arguments=0.5, execute=100, outputs=1.25),
        call("ray.get", DRIVER, FIRST, 110),
        call("my range", worker(1), FIRST + 2, 3),
    ]
    trace = load(put(tmp_path, rows))
    assert (trace.source.reader, trace.source.tool, trace.notes) == ("ray_timeline", "log", ())
    found = trace["ray_rows"]
    assert found["kind"].tolist() == ["submit", "arguments", "execute", "outputs", "task", "get", "other"]
    assert found["name"].tolist()[4:] == ["Worker.gen", "ray.get", "my range"]
    at = int(FIRST) * 1000
    assert found["ts_ns"].tolist() == [at - 10_000, at, at + 500, at + 100_500, at, at, at + 2_000]
    assert found["dur_ns"].tolist() == [5_500, 500, 100_000, 1_250, 101_750, 110_000, 3_000]
    assert set(found["node"]) == {"10.0.0.1"}
    assert found["worker"].tolist()[4:6] == [worker(1), DRIVER]


def test_only_the_creation_names_the_actor_and_colons_belong_to_it(tmp_path):
    rows = [*task("pool_0:1:Worker.__init__", worker(1), FIRST), *task("Worker.gen", worker(1), FIRST + 10)]
    found = load(put(tmp_path, rows))["ray_rows"]
    tasks = found[found["kind"] == "task"]
    assert tasks["name"].tolist() == ["Worker.__init__", "Worker.gen"]
    assert tasks["actor"].astype(object).where(tasks["actor"].notna(), None).tolist() == ["pool_0:1", None]


def test_the_dashboards_form_gives_the_same_rows(tmp_path):
    rows = [call("submit_task", DRIVER, FIRST, 5), *task("Worker.gen", worker(1), FIRST, node="10.0.0.2")]
    plain = load(put(tmp_path, rows))["ray_rows"]
    numbered = load(put(tmp_path, dashboard(rows), "numbered.json"))["ray_rows"]
    assert numbered.astype(str).equals(plain.astype(str))
    assert set(numbered["node"]) == {"10.0.0.1", "10.0.0.2"}


def text(rows, **options):
    return json.dumps(rows, **options).encode()


TASKS = [*task("Worker.gen", worker(1), FIRST), call("submit_task", DRIVER, FIRST, 1)]


@pytest.mark.parametrize("head", [
    text(TASKS), text(TASKS, indent=1), text(TASKS)[:200], b"\xef\xbb\xbf\n " + text(TASKS),
    text(TASKS, separators=(",", ":")), text([{"ph": "M", "name": "process_name"}, *TASKS]),
    # The driver's submissions alone, before any task.
    text([call("submit_task", DRIVER, FIRST + n, 1) for n in range(400)])[:2**16],
    text(dashboard([call("submit_task", DRIVER, FIRST, 1)])),
])  # fmt: skip
def test_a_timeline_is_recognized_by_its_categories(head):
    assert claimed(head) == "ray_timeline"


@pytest.mark.parametrize("head", [
    b"", b"[", b"[]", b"\x00\xff",
    text([op("a", 0, 1)]),
    text([{"ph": "X", "name": "task:execute", "ts": 0, "dur": 1}]),
    text([*TASKS, op("a", 0, 1)]),
    text([*TASKS, {"cat": "Kernel", "ph": "X"}]),
    text({"traceEvents": TASKS}),
    text([row("subtask:x", worker(1), FIRST, 1)]),
    text([{"cat": "submit_task", "ph": "X", "ts": 0, "dur": 1, "pid": 1, "tid": 2}]),
])  # fmt: skip
def test_everything_else_is_left_to_the_other_readers(head):
    assert claimed(head) != "ray_timeline"


def test_next_to_profiles_it_changes_no_number_of_theirs(tmp_path):
    write(tmp_path / "profile" / "rank0.json", [step(1, 0, 100), annotation("gen", 0, 40)])
    before = analyze_uncached(tmp_path, Options(jobs=1)).report
    long = task("Worker.gen", worker(1), 1.0, execute=8e6)
    (tmp_path / "odd name.json.gz").write_bytes(gzip.compress(text(long)))
    found = discover_sources(tmp_path)
    assert [(source.name, source.reader) for source in found.sources] == [
        ("odd name.json.gz", "ray_timeline"), ("profile/rank0.json", "chrome"),
    ]  # fmt: skip
    report = analyze_uncached(tmp_path, Options(jobs=1)).report
    assert report.headline == before.headline
    assert report.headline[0].value == 100_000
    assert "ray-tasks" in {section.id for section in report.sections if section.status == "ok"}


def test_next_to_profiles_the_drivers_log_above_is_still_found(tmp_path):
    write(tmp_path / "outputs" / "rank0.json", [step(1, 0, 100), annotation("gen", 0, 40)])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"timing_s/gen": 1.0, "timing_s/step": 2.0}}\n')
    put(tmp_path / "outputs", TASKS)
    readers = {source.reader for source in discover_sources(tmp_path / "outputs").sources}
    assert readers == {"chrome", "driver_log", "ray_timeline"}


def test_rows_without_usable_times_are_counted(tmp_path):
    rows = [*TASKS, row("task:execute", worker(1), FIRST, -4), {**row("task::a", worker(1), 0, 1), "ts": "x"}]
    trace = load(put(tmp_path, rows))
    assert len(trace["ray_rows"]) == len(TASKS)
    assert [(note.code, note.count) for note in trace.notes] == [("no-time", 2)]


def test_a_truncated_timeline_gives_every_complete_row(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_bytes(text(TASKS)[:-30])
    trace = load(path)
    assert len(trace["ray_rows"]) == len(TASKS) - 1
    assert [note.code for note in trace.notes] == ["truncated"]


REAL = Path(os.environ.get("TRACEKIT_REAL_DATA", "missing")) / "chrome" / "verl_cpu"


@pytest.mark.skipif(not REAL.is_dir(), reason="TRACEKIT_REAL_DATA is not set")
def test_a_real_timeline_of_verl():
    found = discover_sources(REAL)
    assert {s.name.rpartition("/")[2] for s in found.sources if s.reader == "ray_timeline"} == {"ray_timeline.json"}
    rows = load(REAL / "v091_e2e_all_ranks" / "ray_timeline.json")["ray_rows"]
    counts = rows["kind"].value_counts()
    assert [counts[kind] for kind in ("task", "arguments", "execute", "outputs", "submit")] == [94] * 5


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_damaged_timelines_give_rows_or_the_documented_error(tmp_path_factory, seed):
    rng = random.Random(seed)
    rows = [*TASKS, *task("a:b:C.__init__", worker(2), FIRST), call("ray.wait", worker(2), FIRST, 4)]
    data = bytearray(text(rng.choice([rows, dashboard(rows)])))
    pieces = [b"", b"\0", b"\xff", b"9" * 400, b"-", b"{", b'"', b"null", b"e999", b"[", b"task::", b'"M"', b"1e300"]
    for _ in range(rng.randrange(12)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(4)] = rng.choice(pieces)
    path = tmp_path_factory.mktemp("fuzz") / "timeline.json"
    path.write_bytes(bytes(data))
    try:
        (trace,) = ray_timeline.read(Source(path, path.name, "ray_timeline", "log"), Want(frozenset({"ray_rows"})))
    except TraceFormatError:
        return
    if not trace.has("ray_rows"):
        assert trace.notes, "no row is explained"
        return
    rows = trace["ray_rows"]
    assert rows["dur_ns"].ge(0).all()
    assert rows["name"].dropna().astype(str).str.len().le(ray_timeline.MAX_NAME).all()
