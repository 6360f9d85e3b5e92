"""What several nodes see of one pattern, put together; directories of this machine stand for their disks."""

import json
import pickle

import pytest
from discovered import TRACE, manifest, put, reasons, sniff

from tracekit.discover import Sniffed, discover
from tracekit.engine.ray_discover import Sighting, merge_sightings, survey_node


@pytest.fixture
def see(tmp_path, monkeypatch):
    """A function that gives the union of what nodes see of a pattern; `$NODE` is the node's own directory."""

    def seen(pattern, *nodes, sniff=sniff):
        sightings = {}
        for node in nodes:
            monkeypatch.setenv("NODE", str(tmp_path / node))
            # As it travels: what a node saw must not ask its disk again.
            sighting = pickle.loads(pickle.dumps(survey_node(pattern, (), sniff)))
            assert isinstance(sighting, Sighting), sighting
            sightings[node] = sighting
        monkeypatch.delenv("NODE")
        names = {node: f"{node} (10.0.0.1)" for node in nodes}
        return merge_sightings(pattern, sightings, names, {node: node for node in nodes})

    return seen


def find(survey):
    return discover([], sniff=sniff, elsewhere=[survey])


def names(found):
    return [source.name for source in found.sources]


def test_the_union_is_found_like_one_directory(tmp_path, see, monkeypatch):
    put(tmp_path / "a", "outputs/profile/rank0.json", "outputs/profile/rank2.json")
    put(tmp_path / "b", "outputs/profile/rank1.json", "outputs/profile/rank10.json")
    both = tmp_path / "$NODE"
    put(both, *(f"outputs/profile/rank{n}.json" for n in (0, 1, 2, 10)))
    found = find(see("$NODE/outputs/profile", "a", "b"))
    monkeypatch.chdir(tmp_path)
    here = discover(["$NODE/outputs/profile"], sniff=sniff)
    assert names(found) == names(here) == ["rank0.json", "rank1.json", "rank2.json", "rank10.json"]
    assert [s.run for s in found.sources] == [s.run for s in here.sources]
    assert found.title == here.title == "$NODE/outputs/profile"
    assert [s.node for s in found.sources] == ["a", "b", "a", "b"]


def test_files_of_one_name_get_a_directory_of_their_host(tmp_path, see):
    put(tmp_path / "a", "p/step1/rank0.json", "p/step1/rank1.json")
    put(tmp_path / "b", "p/step1/rank0.json")
    found = find(see("$NODE/p", "a", "b"))
    assert names(found) == ["step1/host=a/rank0.json", "step1/host=b/rank0.json", "step1/rank1.json"]
    assert [s.host for s in found.sources] == ["a", "b", None]
    assert len({s.run for s in found.sources}) == 1


def test_a_file_that_several_nodes_see_is_one(tmp_path, see):
    folder = put(tmp_path / "shared", "rank0.json", "rank1.json", ".hidden")
    found = find(see(str(folder), "a", "b"))
    assert names(found) == ["rank0.json", "rank1.json"]
    assert found.seen_by == {"rank0.json": ("a", "b"), "rank1.json": ("a", "b")}
    assert [ignored.nodes for ignored in found.ignored] == [("a", "b")]


def test_a_copy_of_a_file_is_not_the_same_file(tmp_path, see):
    put(tmp_path / "a", "p/rank0.json")
    put(tmp_path / "b", "p/rank0.json")
    assert len(find(see("$NODE/p", "a", "b")).sources) == 2
    assert find(see("$NODE/p", "a", "b")).seen_by == {}


@pytest.mark.parametrize(
    ("there", "expected"), [(("x1", "x2"), ["x1/rank0.json", "x2/rank0.json"]), (("x1", "x1"), None)]
)
def test_a_pattern_is_relative_to_what_it_means_on_all_nodes(tmp_path, see, there, expected):
    put(tmp_path / "a", f"logs/{there[0]}/rank0.json")
    put(tmp_path / "b", f"logs/{there[1]}/rank0.json")
    found = find(see("$NODE/logs/x*", "a", "b"))
    assert names(found) == (expected or ["host=a/rank0.json", "host=b/rank0.json"])


def test_a_manifest_describes_the_files_of_its_own_node(tmp_path, see):
    for node, rank in (("a", 1), ("b", 2)):
        folder = put(tmp_path / node / "p", "trace.json")
        manifest(folder, rank=rank, host=node)
    found = find(see("$NODE/p", "a", "b"))
    assert [(s.node, s.rank, s.host) for s in found.sources] == [("a", 1, "a"), ("b", 2, "b")]
    assert not [note for note in found.notes if note.code in ("missing", "conflict")]


def sniff_logs(path):
    return Sniffed("driver_log", "log") if path.suffix == ".jsonl" else sniff(path)


@pytest.mark.parametrize(("holders", "logs"), [(["a"], ["../../metrics.jsonl"]), (["a", "b"], [])])
def test_the_one_log_above_the_profiles_is_the_log_of_all(tmp_path, see, holders, logs):
    put(tmp_path / "a", "outputs/profile/rank0.json")
    put(tmp_path / "b", "outputs/profile/rank1.json")
    for node in holders:
        (tmp_path / node / "metrics.jsonl").write_text(json.dumps({"step": 1, "node": node}))
    found = find(see("$NODE/outputs/profile", "a", "b", sniff=sniff_logs))
    assert [name for name in names(found) if name.startswith("..")] == logs
    assert [note.message for note in found.notes if note.code == "log"] == (
        [] if logs else ["2 driver logs lie here: name the one that belongs to the profile"]
    )


def test_what_is_passed_over_on_any_node_is_told(tmp_path, see):
    put(tmp_path / "a", "p/rank0.json")
    put(tmp_path / "b", "p/rank1.json", data=b"no trace")
    found = find(see("$NODE/p", "a", "b"))
    assert reasons(found) == {"rank1.json": "no-format"}
    assert [note.source for note in found.notes if note.code == "not-read"] == ["rank1.json"]


@pytest.mark.parametrize("pattern", ["$NODE/absent", "$UNKNOWN_VARIABLE/p", "$NODE/none*"])
def test_a_node_without_any_of_it_says_so(tmp_path, monkeypatch, pattern):
    monkeypatch.setenv("NODE", str(tmp_path))
    assert "no such file or directory" in survey_node(pattern, (), sniff)


def test_a_label_and_a_home_are_those_of_the_node(tmp_path, see, monkeypatch):
    put(tmp_path / "a", "p/rank0.json", data=TRACE)
    monkeypatch.setenv("HOME", str(tmp_path / "a"))
    found = find(see("base=~/p", "a"))
    assert [s.run for s in found.sources] == ["base"]
