"""The report of files that lie on three nodes is that of the same files in one directory."""

import re
import threading
import time

import pytest
from memory_builder import MIB, Allocator, pickled, snapshot, stack

from tracekit.engine import ray as engine
from tracekit.engine import ray_cluster
from tracekit.engine import ray_discover as on_nodes
from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options
from tracekit.render import render

pytestmark = pytest.mark.slow

FORMATS = ("json", "md", "text")
LINE = "read by Ray on 3 nodes"


def on_ray(pattern, **more):
    return pipeline.analyze_uncached([], Options(engine="ray", on_every_node=(pattern,), **more))


def shown(report):
    """The report in every format, without the words that say how it was read."""
    texts = {name: render(report, name) for name in FORMATS}
    texts["json"] = re.sub(rf',\s+"{LINE}"', "", texts["json"])
    # In a terminal it has a line of its own where the one before is full.
    return {name: re.sub(rf"( · |\n){LINE}", "", texts[name]) for name in FORMATS}


def same(pattern, result):
    here = pipeline.analyze_uncached(pattern)
    assert LINE in result.report.identity
    for name, text in shown(result.report).items():
        assert text.splitlines() == shown(here.report)[name].splitlines()
    assert result.report.title == pattern


def snapshots():
    """Snapshots of three processes after each of four steps; of the last one the third lies elsewhere."""
    files = {}
    for rank in range(3):
        device = Allocator()
        device.alloc((8 + rank) * MIB, stack("build"))
        for number in range(4):
            node = ("one", "two", "three" if number == 2 else "one")[rank]
            name = f"outputs/profile/step{number}/torch_memory_rank{rank}_pid{rank + 1}.pickle"
            files[name] = (node, pickled(snapshot(device)))
            device.alloc(MIB, stack("keep"))
    return files


def test_three_nodes_are_asked(nodes):
    with ray_cluster.connect_cluster() as cluster:
        ids = {node.id for node in cluster.nodes}
    assert ids == {nodes.id(name) for name in ("one", "two", "three")}
    assert len(ids) == 3


def test_the_report_equals_that_of_all_files_in_one_directory(spread, example):
    pattern = spread(example)
    same(pattern, on_ray(pattern))


def test_snapshots_of_one_process_are_folded_where_they_lie_and_across_nodes(spread):
    pattern = spread(snapshots())
    result = on_ray(pattern)
    same(pattern, result)
    assert len(result.measurements["snapshot_windows"]) == 12


def test_a_worker_that_is_killed_costs_nothing(spread, example, nodes, work, monkeypatch):
    pattern = spread(example)
    victim = max(nodes.root("two").glob("*/outputs/profile/*"), key=lambda p: p.stat().st_size)
    nodes.mark("two", victim, "fatal").touch()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "measure_source", work.die_once)
        result = on_ray(pattern)
    assert nodes.mark("two", victim, "died").exists()
    same(pattern, result)


def kill_when_begun(nodes, name, marked):
    """Kills a node once the function has begun on a file there."""

    def watch():
        begun = nodes.mark(name, marked, "begun")
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        nodes.kill(name)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_node_that_is_killed_is_a_hole_with_a_name(spread, example, nodes, work, monkeypatch, call):
    pattern = spread(example)
    mine = {name.rpartition("/")[2] for name, (node, _) in example.items() if node == "three"}
    held = [next(nodes.root("three").glob(f"*/outputs/profile/{name}")) for name in mine]
    for path in held:
        nodes.mark("three", path, "held").touch()
    monkeypatch.setattr(pipeline, "measure_source", work.hold)
    lost_id = nodes.id("three")
    killer = kill_when_begun(nodes, "three", min(held, key=lambda path: -path.stat().st_size))
    result = on_ray(pattern)
    killer.join()
    assert {failure.source for failure in result.measurements.failures} == mine
    assert all("lost with its node" in f.problem for f in result.measurements.failures)
    assert {source.node for source in result.measurements.sources} <= set(map(nodes.id, ("one", "two")))
    assert lost_id not in {source.node for source in result.measurements.sources}
    text = render(result.report, "md")
    assert all(name.replace("_", "\\_") in text or name in text for name in mine)


@pytest.mark.parametrize("strict", [False, True])
def test_a_hole_is_status_0_and_2_with_strict(spread, example, nodes, work, monkeypatch, call, strict):
    pattern = spread(example)
    held = max(nodes.root("three").glob("*/outputs/profile/*"), key=lambda p: p.stat().st_size)
    nodes.mark("three", held, "held").touch()
    monkeypatch.setattr(pipeline, "measure_source", work.hold)
    killer = kill_when_begun(nodes, "three", held)
    done = call("analyze", "--engine", "ray", "--on-every-node", pattern, *["--strict"] * strict)
    killer.join()
    assert done.exit_code == (2 if strict else 0)
    assert held.name in done.stderr
    assert "lost with its node" in done.stderr


def test_a_node_that_is_lost_before_its_files_are_known_is_a_hole_too(spread, example, nodes, monkeypatch, call):
    pattern = spread(example)
    look, lost = on_nodes.survey_cluster, nodes.id("three")

    def kill_and_look(*args):
        nodes.kill("three")
        return look(*args)

    monkeypatch.setattr(on_nodes, "survey_cluster", kill_and_look)
    done = call("analyze", "--engine", "ray", "--on-every-node", pattern, "--strict")
    assert done.exit_code == 2
    (told,) = [line for line in done.stderr.splitlines() if "the node was not looked at" in line]
    assert lost[:8] in told


def test_what_a_node_measured_is_lost_with_it_before_it_is_folded(spread, nodes, monkeypatch):
    pattern = spread(snapshots())
    fold = engine._fold_on_nodes

    def kill_and_fold(*args):
        nodes.kill("two")
        return fold(*args)

    monkeypatch.setattr(engine, "_fold_on_nodes", kill_and_fold)
    measured = on_ray(pattern).measurements
    kept, lost = {s.name for s in measured.sources}, {f.source for f in measured.failures}
    assert all("lost with its node" in failure.problem for failure in measured.failures)
    assert {name for name in kept | lost if "rank0" in name or "rank2" in name} <= kept
    assert len(kept) + len(lost) == 12
    assert len(measured["snapshot_windows"]) == len(kept)


def test_a_file_that_every_node_sees_is_read_once(spread, example, nodes, tmp_path):
    spread(example)
    (folder,) = (tmp_path / "$NODE_ROOT").rename(tmp_path / "shared").glob("*/outputs/profile")
    here = pipeline.analyze_uncached(folder)
    result = on_ray(str(folder))
    assert len(result.measurements.sources) == 13
    assert shown(result.report) == shown(here.report)
    # The same path given as files of the driver: whichever node sees them may read them.
    named = pipeline.analyze_uncached(folder, Options(engine="ray"))
    assert shown(named.report) == shown(here.report)
    assert named.report.title == str(folder)


def test_files_of_one_name_stay_apart_by_their_hosts(spread, example, nodes):
    pattern = spread({name: ("one", data) for name, (_, data) in example.items() if "step1" in name})
    (first, *_) = nodes.root("one").glob("*/outputs/profile/value*")
    other = nodes.root("two") / first.relative_to(nodes.root("one"))
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(first.read_bytes())
    result = on_ray(pattern)
    names = [s.name for s in result.measurements.sources if s.name.endswith(first.name)]
    assert len(set(names)) == 2
    assert all(name.startswith("host=") for name in names)


def test_a_node_that_has_nothing_is_noted(spread, example):
    pattern = spread({n: ("one", data) for n, (_, data) in example.items() if "step1" in n})
    result = on_ray(pattern)
    notes = [note for note in result.measurements.notes if note.code == "node"]
    assert len(notes) == 2
    assert all("no such file or directory" in note.message for note in notes)


def test_a_pattern_that_no_node_finds_anything_at_is_an_error(nodes):
    with pytest.raises(TracekitError, match="found on none of 3 nodes"):
        on_ray("$NODE_ROOT/nothing")


@pytest.mark.parametrize(
    ("module", "said"),
    [("VERSION = '9.9.9'", "it has tracekit 9.9.9, and here is"), ("1 / 0", "cannot be imported there")],
)
def test_a_node_with_another_tracekit_is_named_before_anything_is_read(nodes, tmp_path, monkeypatch, module, said):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # Ray's workers import from where the driver stands
    fake = tmp_path / "tracekit" / "model"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").touch()
    (fake / "__init__.py").touch()
    (fake / "version.py").write_text(module)
    nodes.add("other", PYTHONPATH=str(tmp_path))
    try:
        with pytest.raises(TracekitError, match=said) as raised:
            on_ray("$NODE_ROOT")
    finally:
        nodes.kill("other")
    assert nodes.cluster.head_node.node_ip_address in str(raised.value)
