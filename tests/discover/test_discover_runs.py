"""Which files are one run, and what manifests say of them."""

from __future__ import annotations

import lzma

import pytest
from discovered import T1, T2, by_run, codes, find, manifest, put, reasons
from hypothesis import given
from hypothesis import strategies as st

from tracekit.discover.runs import shorten_run_names

# Runs


def test_siblings_that_hold_the_same_rank_are_runs(tmp_path):
    put(tmp_path, "base/rank0.json", "base/rank1.json", "opt/rank0.json", "opt/rank1.json")
    assert by_run(find(tmp_path)) == {
        "base": ["base/rank0.json", "base/rank1.json"],
        "opt": ["opt/rank0.json", "opt/rank1.json"],
    }


def test_siblings_that_say_nothing_hold_the_same_and_are_runs(tmp_path):
    put(tmp_path, "a/trace.json", "b/trace.json")
    assert list(by_run(find(tmp_path))) == ["a", "b"]


def test_pid_and_time_do_not_make_two_runs_one(tmp_path):
    put(tmp_path, f"a/x_train_step1_rank0_pid1_{T1}.json", f"b/x_train_step1_rank0_pid2_{T2}.json")
    assert list(by_run(find(tmp_path))) == ["a", "b"]


@pytest.mark.parametrize(
    "names",
    [
        ("actor/rank0.json", "critic/rank0.json"),
        ("actor_update/prof_rank-0_031847.json", "ref_compute_log_prob/prof_rank-0_031847.json"),
        ("node1/rank0.json", "node2/rank1.json"),
        ("step1/rank0.json", "step2/rank0.json"),
        ("agent_loop_rollout_replica_0/1771730291.5-TP-0.trace.json",
         "agent_loop_rollout_replica_1/1771730291.5-TP-0.trace.json",
         "reward_model/agent_loop_rollout_replica_0/1771730291.5-TP-0.trace.json",
         "actor_rank0.json"),
        ("oom_1/torch_memory_oom_rank0_pid1.json", "oom_2/torch_memory_oom_rank0_pid1.json"),
        ("dtensor_policy_worker/0/trace.json", "dtensor_policy_worker/1/trace.json"),
        ("actor_train-0-G0/train_step/t.json", "actor_train-1-G1/train_step/t.json"),
    ],
)  # fmt: skip
def test_role_stage_step_and_replica_folders_belong_to_one_run(tmp_path, names):
    put(tmp_path, *names)
    assert list(by_run(find(tmp_path))) == [tmp_path.name]


def test_runs_within_runs_are_called_by_the_shortest_unique_end_of_their_path(tmp_path):
    put(tmp_path, *(f"{side}/{run}/rank0.json" for side in ("base", "opt") for run in ("run1", "run2")))
    assert sorted(by_run(find(tmp_path))) == ["base/run1", "base/run2", "opt/run1", "opt/run2"]


def test_a_neutral_directory_among_runs_is_a_run_and_a_stage_folder_is_not(tmp_path):
    put(tmp_path, "r1/rank0.json", "r2/rank0.json", "r3/rank7.json", "e2e/rank9.json")
    assert by_run(find(tmp_path)) == {
        tmp_path.name: ["e2e/rank9.json"], "r1": ["r1/rank0.json"], "r2": ["r2/rank0.json"],
        "r3": ["r3/rank7.json"],
    }  # fmt: skip


def test_a_directory_that_repeats_the_files_beside_it_is_a_run(tmp_path):
    put(tmp_path, "rank0.json", "old/rank0.json")
    assert by_run(find(tmp_path)) == {tmp_path.name: ["rank0.json"], "old": ["old/rank0.json"]}


def test_a_role_directory_given_itself_still_says_its_role(tmp_path):
    put(tmp_path, "outputs/e2e/prof_rank-0_031847.json", "outputs/critic/rank1.json")
    assert find(tmp_path / "outputs" / "e2e").sources[0].scope == "e2e"
    assert find(tmp_path / "outputs" / "critic").sources[0].role == "critic"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([("a",)], ["a"]),
        ([()], ["/"]),
        ([("x", "a"), ("x", "b")], ["a", "b"]),
        ([("a", "p"), ("b", "p")], ["a", "b"]),
        ([("p",), ("b", "p")], ["p", "b/p"]),
        ([("a", "b", "p"), ("c", "b", "p"), ("c", "b", "q")], ["a/b/p", "c/b/p", "q"]),
        ([("a", "p"), ("a", "p")], ["p", "p"]),
    ],
)
def test_short_names_are_unique_and_the_same_for_the_same_path(paths, names):
    assert shorten_run_names(paths) == names


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4).map(tuple), min_size=1, max_size=8))
def test_short_names_tell_any_paths_apart(paths):
    names = shorten_run_names(paths)
    assert len(set(names)) == len(set(paths))
    assert all(names[paths.index(p)] == n for p, n in zip(paths, names, strict=True))


# Manifests


def test_a_manifest_describes_files_whose_names_say_nothing(tmp_path):
    put(manifest(tmp_path), "trace.json")
    got = find(tmp_path)
    (source,) = got.sources
    assert (source.role, source.scope, source.step, source.rank, source.world_size, source.host, source.pid) == (
        "actor", "train", 2, 1, 2, "node1", 7,
    )  # fmt: skip
    assert codes(source) == ["manifest"]
    assert not got.ignored
    assert got.manifests[0].clock == {"unix_ns": 5, "monotonic_ns": 3}


def test_a_manifest_is_believed_before_the_name_and_the_conflict_is_noted(tmp_path):
    put(tmp_path, "step2_rank0.json")
    manifest(tmp_path, files=[{"path": "step2_rank0.json", "step": 2, "stage": None}])
    (source,) = find(tmp_path).sources
    assert source.rank == 1
    assert codes(source) == ["manifest", "conflict"]
    assert "the name says rank 0" in source.notes[1].message


def test_labels_that_differ_only_in_their_hyphens_are_no_conflict(tmp_path):
    name = f"actor-rollout-ref_train_step2_rank1-of-2_pid7_{T1}.json"
    put(tmp_path, name)
    manifest(tmp_path, role="actor_rollout_ref", files=[{"path": name, "step": 2, "stage": "train"}])
    assert codes(find(tmp_path).sources[0]) == ["manifest"]


def test_files_of_a_manifest_are_found_after_the_directory_was_moved(tmp_path):
    put(manifest(tmp_path, files=[{"path": "/old/place/trace.json", "step": 4}]), "trace.json")
    assert find(tmp_path).sources[0].step == 4


def test_steps_may_be_text(tmp_path):
    put(manifest(tmp_path, steps=["4", "x", "9" * 40], files=[{"path": "trace.json", "step": "4"}]), "trace.json")
    got = find(tmp_path)
    assert got.sources[0].step == 4
    assert got.manifests[0].steps == (4,)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_files_that_were_packed_after_the_run_are_those_of_the_manifest(tmp_path, suffix):
    text = b'{"traceEvents": []}'
    if suffix == ".zst":
        text = pytest.importorskip("backports.zstd").compress(text)
    elif suffix != ".gz":  # `put` packs `.gz` itself
        text = lzma.compress(text)
    put(manifest(tmp_path, files=[{"path": "trace.json", "step": 4}]), f"trace.json{suffix}", data=text)
    got = find(tmp_path)
    assert [note.code for note in got.notes] == []
    assert (got.sources[0].step, got.sources[0].rank) == (4, 1)


def test_missing_files_and_a_process_that_died_are_noted(tmp_path):
    put(tmp_path, "rank0.json")
    manifest(tmp_path, status="open", files=[{"path": "gone1.json"}, {"path": "gone2.json"}])
    notes = {n.code: n for n in find(tmp_path).notes}
    assert notes["missing"].count == 2
    assert "gone1.json, gone2.json" in notes["missing"].message
    assert "actor rank 1 (pid 7 on node1) never finished" in notes["open"].message


@pytest.mark.parametrize(
    "data",
    [
        b'{"schema": "capture/1", "rank":',
        b'{"schema": "capture/3", "files": []}',
        b'{"schema": "capture/1"' + b"[" * 100_000,
        b'[{"schema": "capture/1"}]',
        b'{"schema": "capture/1", "role": "\xff\xfe"}',
    ],
)
def test_an_unusable_manifest_is_noted_and_the_sources_stay(tmp_path, data):
    put(tmp_path, "rank0.json")
    put(tmp_path, "capture_x.json", data=data)
    got = find(tmp_path)
    assert [n.code for n in got.notes] == ["manifest"]
    assert [s.rank for s in got.sources] == [0]
    assert reasons(got)["capture_x.json"] == "manifest"


def test_wrong_values_in_a_manifest_are_left_out_and_named(tmp_path):
    put(tmp_path, "rank0.json")
    manifest(
        tmp_path, rank="one", pid=True, world_size=-2, steps=7, clock=[], status=3,
        files=[{"path": "rank0.json", "step": "x"}, 5, {"path": None}],
    )  # fmt: skip
    got = find(tmp_path)
    assert (got.sources[0].rank, got.sources[0].role) == (0, "actor")
    message = next(n for n in got.notes if n.code == "manifest").message
    assert all(key in message for key in ("rank", "pid", "world_size", "steps", "clock", "files", "step"))


def test_a_json_file_that_mentions_the_schema_elsewhere_is_not_a_manifest(tmp_path):
    put(tmp_path, "rank0.json", data=b'{"traceEvents": [], "made_by": "capture/1"}')
    assert len(find(tmp_path).sources) == 1


def test_one_file_in_two_manifests_is_noted(tmp_path):
    put(manifest(manifest(tmp_path), "capture_b.json", rank=0), "trace.json")
    got = find(tmp_path)
    assert [n.code for n in got.notes] == ["conflict"]
    assert got.sources[0].rank == 1


def test_run_ids_separate_runs_in_one_directory(tmp_path):
    put(tmp_path, "a.json", "b.json")
    manifest(tmp_path, "capture_a.json", run_id="mon", files=[{"path": "a.json"}])
    manifest(tmp_path, "capture_b.json", run_id="tue", files=[{"path": "b.json"}])
    assert by_run(find(tmp_path)) == {"mon": ["a.json"], "tue": ["b.json"]}


def test_one_run_id_keeps_directories_together(tmp_path):
    for node in ("n1", "n2"):
        put(manifest(tmp_path / node), "trace.json")
    assert len(by_run(find(tmp_path))) == 1
