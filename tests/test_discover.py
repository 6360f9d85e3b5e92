"""From paths to sources: inputs, what is passed over, runs, repeats, manifests, filters, real trees."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit import listing
from tracekit.discover import (
    Sniffed,
    complete,
    discover,
    inspect_rows,
    parse_numbers,
    wanted,
)
from tracekit.errors import TraceFormatError, TracekitError
from tracekit.runs import short_names
from tracekit.trace import Source

TRACE = b'{"schemaVersion": 1, "traceEvents": []}'
T1, T2, T3 = "20261120073304048", "20261120073305048", "20261120073306048"
REAL = os.environ.get("TRACEKIT_REAL_DATA")
real = pytest.mark.skipif(
    REAL is None, reason="TRACEKIT_REAL_DATA names no directory of real profiles"
)


def sniff(path):
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"\x1f\x8b"):
        head = zlib.decompressobj(31).decompress(head, 4096)
    found = b'"traceEvents"' in head or b'"schemaVersion"' in head
    return Sniffed("chrome") if found else Sniffed(None, reason="not a trace")


def put(folder, *names, data=TRACE):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def find(*paths, **options):
    return discover(list(paths), sniff=sniff, **options)


def by_run(discovery):
    runs = {}
    for source in discovery.sources:
        runs.setdefault(source.run, []).append(source.name)
    return runs


def codes(source):
    return [note.code for note in source.notes]


def reasons(discovery):
    return {ignored.path.name: ignored.reason for ignored in discovery.ignored}


# Inputs


def test_a_directory_is_searched_to_the_bottom_in_natural_order(tmp_path):
    put(tmp_path, "rank10.json.gz", "rank2.json.gz", "actor_update/x/rank1.json")
    got = find(tmp_path)
    assert [s.name for s in got.sources] == [
        "actor_update/x/rank1.json",
        "rank2.json.gz",
        "rank10.json.gz",
    ]
    assert [s.size_bytes for s in got.sources] == [s.path.stat().st_size for s in got.sources]
    assert (got.title, got.sources[0].reader, got.sources[0].tool) == (
        str(tmp_path),
        "chrome",
        "torch",
    )


def test_one_file_is_one_source_called_by_its_name(tmp_path):
    put(tmp_path, "profile/rank3.json.gz", "profile/rank4.json.gz")
    (source,) = find(tmp_path / "profile" / "rank3.json.gz").sources
    assert (source.name, source.run, source.rank) == ("rank3.json.gz", "profile", 3)


def test_a_file_whose_name_says_nothing_lends_its_name_to_the_run(tmp_path):
    put(tmp_path, "trace.pt.trace.json.gz")
    assert find(tmp_path / "trace.pt.trace.json.gz").sources[0].run == "trace"


def test_a_text_path_alone_is_a_path_not_letters(tmp_path):
    put(tmp_path, "rank0.json")
    assert len(discover(str(tmp_path), sniff=sniff).sources) == 1


def test_a_glob_pattern_is_expanded_when_no_such_path_exists(tmp_path):
    put(tmp_path, "a/rank0.json", "a/rank1.json", "b/rank0.json")
    put(tmp_path, "a/notes.txt", data=b"x")
    assert by_run(find(f"{tmp_path}/a/*.json")) == {"a": ["rank0.json", "rank1.json"]}
    assert by_run(find(f"{tmp_path}/*/rank*")) == {
        "a": ["a/rank0.json", "a/rank1.json"], "b": ["b/rank0.json"],
    }  # fmt: skip
    assert len(find(f"{tmp_path}/**").sources) == 3


def test_a_path_that_exists_is_not_a_pattern_and_not_a_label(tmp_path):
    put(tmp_path, "run[1]*/rank0.json", "lr=0.1/rank0.json", "r1/rank0.json")
    assert by_run(find(f"{tmp_path}/run[1]*")) == {"run[1]*": ["rank0.json"]}
    assert by_run(find(f"{tmp_path}/lr=0.1")) == {"lr=0.1": ["rank0.json"]}
    assert by_run(find(f"{tmp_path}/run[1]*/*.json")) == {"run[1]*": ["rank0.json"]}
    assert by_run(find(f"{tmp_path}/lr=0.*")) == {"lr=0.1": ["rank0.json"]}


def test_a_relative_path_with_an_equals_sign_that_exists_is_taken_as_it_is(tmp_path, monkeypatch):
    put(tmp_path, "a=b/rank0.json", "b/rank1.json")
    monkeypatch.chdir(tmp_path)
    assert by_run(find("a=b")) == {"a=b": ["rank0.json"]}
    assert by_run(find("c=b")) == {"c": ["rank1.json"]}
    assert by_run(find("a=?")) == {"a=b": ["rank0.json"]}
    assert by_run(find("c=[b]")) == {"c": ["rank1.json"]}


def test_a_path_object_is_never_a_label(tmp_path):
    put(tmp_path, "b/rank1.json")
    with pytest.raises(TracekitError, match="no such file"):
        find(Path(f"c={tmp_path}/b"))


def test_labels_name_runs_and_their_sources(tmp_path):
    put(tmp_path, "x/rank0.json", "y/rank0.json")
    got = find(f"base={tmp_path}/x", f"opt={tmp_path}/y/rank0.json")
    assert by_run(got) == {"base": ["base/rank0.json"], "opt": ["opt/rank0.json"]}


def test_a_label_over_several_runs_precedes_their_names(tmp_path):
    put(tmp_path, "x/run1/rank0.json", "x/run2/rank0.json")
    assert list(by_run(find(f"base={tmp_path}/x"))) == ["base/run1", "base/run2"]


def test_the_same_label_twice_gives_two_runs(tmp_path):
    put(tmp_path, "x/rank0.json", "y/rank0.json")
    assert list(by_run(find(f"a={tmp_path}/x", f"a={tmp_path}/y"))) == ["a", "a#2"]


def test_directories_given_separately_are_separate_runs_with_short_unique_names(tmp_path):
    put(tmp_path, "a/outputs/profile/rank0.json", "b/outputs/profile/rank1.json")
    got = find(tmp_path / "a/outputs/profile", tmp_path / "b/outputs/profile")
    assert by_run(got) == {"a": ["a/rank0.json"], "b": ["b/rank1.json"]}


def test_the_same_directory_twice_is_two_runs(tmp_path):
    put(tmp_path, "rank0.json")
    got = find(tmp_path, tmp_path)
    assert list(by_run(got)) == [tmp_path.name, f"{tmp_path.name}#2"]
    assert len({s.name for s in got.sources}) == 2


def test_files_of_one_directory_named_one_by_one_are_one_run_when_names_tell_them_apart(tmp_path):
    put(tmp_path, "rank0.json", "rank1.json", f"e2e/prof_rank-0_1_{T1}.json")
    shell = sorted(str(p) for p in tmp_path.rglob("*.json"))
    assert list(by_run(find(*shell))) == [tmp_path.name]


def test_files_named_one_by_one_that_nothing_tells_apart_are_runs_of_their_own(tmp_path):
    put(tmp_path, "old.json", "new.json", "old_rank0.json", "new_rank0.json")
    assert list(by_run(find(tmp_path / "old.json", tmp_path / "new.json"))) == ["new", "old"]
    runs = by_run(find(tmp_path / "old_rank0.json", tmp_path / "new_rank0.json"))
    assert list(runs) == ["new_rank0", "old_rank0"]


def test_files_of_different_directories_named_one_by_one_are_different_runs(tmp_path):
    put(tmp_path, "a/rank0.json", "b/rank1.json")
    assert list(by_run(find(tmp_path / "a/rank0.json", tmp_path / "b/rank1.json"))) == ["a", "b"]


def test_files_of_unknown_rank_from_several_processes_are_one_run(tmp_path):
    names = [f"node-1_{pid}.1771730291744166997.pt.trace.json" for pid in (11, 12, 13)]
    put(tmp_path, *names)
    assert len(by_run(find(*(tmp_path / n for n in names)))) == 1


@pytest.mark.parametrize("path", ["nowhere", "no*where", "label=nowhere", "a\0b", "x" * 300, ""])
def test_a_path_that_is_not_there_is_named_with_a_hint(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path == "":
        put(tmp_path, "x.txt", data=b"x")
    with pytest.raises(TracekitError) as caught:
        find(path)
    assert caught.value.problem
    assert caught.value.hint


def test_no_path_at_all_is_an_error():
    with pytest.raises(TracekitError, match="no path"):
        discover([], sniff=sniff)


def test_a_directory_without_profiles_is_an_error_that_says_what_is_in_it(tmp_path):
    put(tmp_path, "a.nsys-rep", "b.nsys-rep", "notes.txt", data=b"x")
    with pytest.raises(TracekitError) as caught:
        find(tmp_path)
    assert "2 of: Nsight Systems report: not read yet" in caught.value.hint


def test_one_argument_without_profiles_beside_a_good_one_is_noted(tmp_path):
    put(tmp_path, "a/rank0.json")
    put(tmp_path, "b/x.txt", data=b"x")
    got = find(tmp_path / "a", tmp_path / "b")
    assert [(n.code, n.source) for n in got.notes] == [("nothing", str(tmp_path / "b"))]


# What is passed over


def test_what_no_reader_takes_is_ignored_with_a_plain_reason(tmp_path):
    put(tmp_path, "rank0.json")
    put(
        tmp_path,
        "metrics.jsonl",
        "c.yaml",
        "worker_process_7.nsys-rep",
        "step1/m.pickle",
        data=b"x",
    )
    got = find(tmp_path)
    assert reasons(got) == {
        "metrics.jsonl": "not a trace",
        "c.yaml": "not a trace",
        "worker_process_7.nsys-rep": "Nsight Systems report: not read yet",
        "m.pickle": "pickle (memory snapshot?): not read yet",
    }
    assert got.ignored_counts()["not a trace"] == 2
    assert not got.notes


def test_a_reader_that_takes_a_format_is_believed_whatever_the_suffix(tmp_path):
    put(tmp_path, "step1/m.pickle", data=b"x")
    got = discover([tmp_path], sniff=lambda _: Sniffed("snapshot", "torch_memory"))
    assert (got.sources[0].reader, got.sources[0].tool, got.sources[0].step) == (
        "snapshot",
        "torch_memory",
        1,
    )


def test_hidden_and_temporary_files_are_left_alone(tmp_path):
    put(tmp_path, "rank0.json", ".rank1.json", "rank2.json.tmp", "rank3.json~", ".git/rank4.json")
    got = find(tmp_path)
    assert [s.name for s in got.sources] == ["rank0.json"]
    assert reasons(got)[".git"] == reasons(got)[".rank1.json"] == "hidden"
    assert "temporary" in reasons(got)["rank2.json.tmp"]
    assert ".rank1.json" not in [s.name for s in find(f"{tmp_path}/*").sources]


def test_a_directory_is_not_temporary_by_its_name(tmp_path):
    put(tmp_path, "x.tmp/rank0.json")
    assert len(find(tmp_path).sources) == 1


def test_a_hidden_or_temporary_file_named_by_itself_is_read(tmp_path):
    put(tmp_path, ".rank1.json", "rank2.json.tmp")
    assert find(tmp_path / ".rank1.json").sources[0].rank == 1
    assert find(tmp_path / "rank2.json.tmp").sources


def test_empty_files_and_lfs_pointers_are_named_as_such_and_noted_where_a_trace_was_due(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"
    put(tmp_path, "rank0.json")
    put(tmp_path, "rank1.json", "notes.txt", data=b"")
    put(tmp_path, "rank2.json", data=pointer)
    (tmp_path / "rank3.pt.trace.json.gz").write_bytes(pointer)
    got = find(tmp_path)
    assert reasons(got)["rank1.json"] == reasons(got)["notes.txt"] == "empty file (0 bytes)"
    assert reasons(got)["rank2.json"] == reasons(got)["rank3.pt.trace.json.gz"]
    assert "Git LFS pointer" in reasons(got)["rank2.json"]
    assert {n.source for n in got.notes} == {"rank1.json", "rank2.json", "rank3.pt.trace.json.gz"}
    assert {n.severity for n in got.notes} == {"data_loss"}


def test_exclude_matches_names_and_relative_paths_and_prunes_directories(tmp_path):
    put(tmp_path, "rank0.json", "rank1.json", "old/rank2.json", "new/rank3.json", "new/rank4.json")
    assert [s.rank for s in find(tmp_path, exclude=["rank1*", "old", "new/rank3*"]).sources] == [
        4,
        0,
    ]


def test_links_are_followed_once_and_loops_end(tmp_path):
    put(tmp_path, "tree/run/rank0.json", "else/rank1.json")
    (tmp_path / "tree" / "a_link").symlink_to(tmp_path / "tree" / "run")
    (tmp_path / "tree" / "outside").symlink_to(tmp_path / "else")
    (tmp_path / "tree" / "run" / "loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "latest.json").symlink_to(tmp_path / "tree" / "run" / "rank0.json")
    (tmp_path / "tree" / "gone.json").symlink_to(tmp_path / "nowhere")
    got = find(tmp_path / "tree")
    assert [s.name for s in got.sources] == ["outside/rank1.json", "run/rank0.json"]
    assert "read under its own name" in reasons(got)["latest.json"]
    assert reasons(got)["gone.json"] == "a link to nothing"


def test_a_link_is_called_by_its_own_name(tmp_path):
    put(tmp_path, "runs/4711/rank0.json")
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "4711")
    assert find(tmp_path / "latest").sources[0].run == "latest"


def test_pipes_are_not_opened(tmp_path):
    put(tmp_path, "rank0.json")
    os.mkfifo(tmp_path / "rank1.json")
    assert reasons(find(tmp_path)) == {"rank1.json": "not a regular file"}


def test_what_may_not_be_read_is_noted_and_the_rest_goes_on(tmp_path, monkeypatch):
    put(tmp_path, "rank0.json", "rank1.json", "locked/rank2.json")
    scandir = os.scandir

    def scan(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    def look(path):
        if path.name == "rank1.json":
            raise PermissionError(13, "Permission denied")
        return sniff(path)

    monkeypatch.setattr(listing.os, "scandir", scan)
    got = discover([tmp_path], sniff=look)
    assert [s.name for s in got.sources] == ["rank0.json"]
    assert set(reasons(got).values()) == {"cannot be read: Permission denied"}
    assert [n.code for n in got.notes] == ["unreadable", "not-read"]


def test_a_reader_that_refuses_a_head_gives_the_reason(tmp_path):
    put(tmp_path, "rank0.json", "rank1.json")

    def look(path):
        if path.name == "rank1.json":
            raise TraceFormatError(path, "gzip ends after 12 bytes")
        return sniff(path)

    got = discover([tmp_path], sniff=look)
    assert reasons(got) == {"rank1.json": "gzip ends after 12 bytes"}
    assert [n.source for n in got.notes] == ["rank1.json"]


def test_every_file_is_looked_at_once(tmp_path):
    put(tmp_path, *(f"d{i % 7}/rank{i}.json" for i in range(60)))
    seen = []
    discover([tmp_path], sniff=lambda path: seen.append(path) or Sniffed("chrome"))
    assert len(seen) == len(set(seen)) == 60


def test_a_very_deep_tree_does_not_exhaust_the_stack(tmp_path):
    deep = tmp_path
    try:
        for _ in range(1100):
            deep /= "d"
            deep.mkdir()
        put(deep, "rank1.json")
        put(tmp_path, "rank0.json")
        assert [s.rank for s in find(tmp_path).sources] == [1, 0]
    finally:
        (deep / "rank1.json").unlink()
        while deep != tmp_path:  # removing a deep tree at once is recursive
            deep.rmdir()
            deep = deep.parent


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
    put(
        tmp_path,
        *(f"{side}/{run}/rank0.json" for side in ("base", "opt") for run in ("run1", "run2")),
    )
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
    assert short_names(paths) == names


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4).map(tuple), min_size=1, max_size=8))
def test_short_names_tell_any_paths_apart(paths):
    names = short_names(paths)
    assert len(set(names)) == len(set(paths))
    assert all(names[paths.index(p)] == n for p, n in zip(paths, names, strict=True))


# Captures and duplicates


def test_files_of_one_process_that_differ_in_time_alone_are_successive_captures(tmp_path):
    put(tmp_path, *(f"e2e/prof_rank-{r}_{r}1_{t}.json" for r in (0, 1) for t in (T3, T1, T2)))
    got = find(tmp_path)
    assert [(s.rank, s.part) for s in got.sources] == [
        (0, "capture1"), (0, "capture2"), (0, "capture3"),
        (1, "capture1"), (1, "capture2"), (1, "capture3"),
    ]  # fmt: skip
    assert not any(s.notes for s in got.sources)


def test_cycles_of_several_captures_keep_both_labels(tmp_path):
    stem = "x_e2e_rank0_pid1"
    put(tmp_path, *(f"{stem}_{t}{c}.json" for t in (T1, T2) for c in ("", "_cycle1")))
    parts = {s.part for s in find(tmp_path).sources}
    assert parts == {"capture1", "capture1-cycle1", "capture2", "capture2-cycle1"}


def test_windows_of_one_capture_are_told_apart_by_their_part_alone(tmp_path):
    put(tmp_path, *(f"x_actor-update_step2_rank0_pid1_{T1}_mb{i}.json" for i in (1, 3)))
    assert [s.part for s in find(tmp_path).sources] == ["mb1", "mb3"]


def test_the_same_capture_twice_is_kept_and_noted_on_both(tmp_path):
    put(tmp_path, "rank0.json", "rank0.json.gz", "rank1.json")
    got = find(tmp_path)
    assert [(s.rank, codes(s)) for s in got.sources] == [
        (0, ["duplicate"]),
        (0, ["duplicate"]),
        (1, []),
    ]
    assert got.sources[1].name in got.sources[0].notes[0].message


def test_two_processes_that_claim_one_rank_are_noted(tmp_path):
    put(tmp_path, *(f"x_train_step1_rank0_pid{p}_{t}.json" for p, t in ((1, T1), (2, T2))))
    got = find(tmp_path)
    assert [codes(s) for s in got.sources] == [["shared-rank"], ["shared-rank"]]
    assert "pid 1, 2" in got.sources[0].notes[0].message


def test_files_that_say_nothing_are_neither_captures_nor_duplicates(tmp_path):
    put(tmp_path, "a.json", "b.json")
    assert [(s.part, s.notes) for s in find(tmp_path).sources] == [(None, ()), (None, ())]


# Manifests


def manifest(folder, name="capture_actor_rank1_pid7.json", **changes):
    data = {
        "schema": "capture/1", "run_id": "r1", "role": "actor", "rank": 1, "world_size": 2,
        "host": "node1", "pid": 7, "tool": "torch", "steps": [2], "stages": ["train"],
        "files": [{"path": "trace.json", "step": 2, "stage": "train", "start_unix_ns": 1, "stop_unix_ns": 2}],
        "clock": {"unix_ns": 5, "monotonic_ns": 3}, "versions": {"torch": "2.13"}, "status": "closed",
    }  # fmt: skip
    put(folder, name, data=json.dumps({**data, **changes}).encode())
    return folder


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
    manifest(
        tmp_path, role="actor_rollout_ref", files=[{"path": name, "step": 2, "stage": "train"}]
    )
    assert codes(find(tmp_path).sources[0]) == ["manifest"]


def test_files_of_a_manifest_are_found_after_the_directory_was_moved(tmp_path):
    put(manifest(tmp_path, files=[{"path": "/old/place/trace.json", "step": 4}]), "trace.json")
    assert find(tmp_path).sources[0].step == 4


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
        b'{"schema": "capture/2", "files": []}',
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
    assert "manifest not used" in reasons(got)["capture_x.json"]


def test_wrong_values_in_a_manifest_are_left_out_and_named(tmp_path):
    put(tmp_path, "rank0.json")
    manifest(
        tmp_path, rank="one", pid=True, world_size=-2, steps=7, clock=[], status=3,
        files=[{"path": "rank0.json", "step": "x"}, 5, {"path": None}],
    )  # fmt: skip
    got = find(tmp_path)
    assert (got.sources[0].rank, got.sources[0].role) == (0, "actor")
    message = next(n for n in got.notes if n.code == "manifest").message
    assert all(
        key in message for key in ("rank", "pid", "world_size", "steps", "clock", "files", "step")
    )


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


# Filters


def test_numbers_are_parsed_with_ranges():
    assert parse_numbers("0-3,7") == {0, 1, 2, 3, 7}
    assert parse_numbers(" 5 , 9 - 9 ") == {5, 9}


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "3-1", "1,,2", "1-2-3", "٣", "0-9999999", "9" * 5000]
)
def test_what_is_not_numbers_is_refused_with_a_hint(text):
    with pytest.raises(TracekitError) as caught:
        parse_numbers(text)
    assert caught.value.hint


@given(st.sets(st.integers(0, 500), min_size=1))
def test_parsing_a_list_of_numbers_gives_them_back(numbers):
    assert parse_numbers(",".join(map(str, numbers))) == numbers


def test_filters_leave_out_what_names_tell_and_count_it(tmp_path):
    put(tmp_path, *(f"x_train_step{s}_rank{r}_pid1_{T1}.json" for s in (1, 2) for r in (0, 1, 2)))
    got = find(tmp_path, ranks={0, 2}, steps={2})
    assert [(s.step, s.rank) for s in got.sources] == [(2, 0), (2, 2)]
    assert [(n.code, n.count, n.message) for n in got.notes] == [
        ("left-out", 2, "2 of 6 sources left out by rank"),
        ("left-out", 2, "2 of 4 sources left out by step"),
    ]


def test_sources_of_unknown_rank_and_step_are_kept_for_the_reader_to_decide(tmp_path):
    put(tmp_path, "trace.json", "rank1.json")
    assert [s.name for s in find(tmp_path, ranks=[0], steps=[4]).sources] == ["trace.json"]


def test_stages_are_matched_by_part_and_glob_and_whole_steps_are_kept(tmp_path):
    names = ("actor-update", "actor-compute-log-prob", "ref-compute-log-prob", "train")
    put(
        tmp_path,
        *(f"x_{n}_step1_rank0_pid1_{T1}.json" for n in names),
        f"v_step1_rank0_pid2_{T1}.json",
    )

    def scopes(*stages):
        return {s.scope for s in find(tmp_path, stages=stages).sources}

    assert scopes("log_prob") == {"actor-compute-log-prob", "ref-compute-log-prob", "train", None}
    assert scopes("actor*prob") == {"actor-compute-log-prob", "train", None}
    assert scopes("Actor_Update", "ref-") == {"actor-update", "ref-compute-log-prob", "train", None}


def test_filters_that_leave_nothing_are_an_error_that_says_what_there_is(tmp_path):
    put(tmp_path, f"x_actor-update_step1_rank0_pid1_{T1}.json")
    with pytest.raises(TracekitError) as caught:
        find(tmp_path, steps={2})
    assert "ranks 0; steps 1; stages actor-update" in caught.value.hint


def test_filtering_does_not_change_what_runs_are_called(tmp_path):
    put(tmp_path, "a/rank0.json", "b/rank0.json", "b/rank1.json")
    assert list(by_run(find(tmp_path, ranks=[1]))) == ["b"]


def test_wanted_judges_a_completed_source():
    source = Source(Path("x"), "x", "chrome", rank=3)
    assert wanted(source)
    assert wanted(source, ranks=[3], steps=[1])
    assert not wanted(source, ranks=[2])


def test_an_empty_filter_filters_nothing(tmp_path):
    put(tmp_path, f"x_actor-update_step1_rank0_pid1_{T1}.json")
    assert find(tmp_path, ranks=(), steps=(), stages=()) == find(tmp_path)


def test_a_window_of_steps_is_wanted_for_each_of_its_steps():
    source = Source(Path("x"), "x", "chrome", step=3, part="steps3-5")
    assert [n for n in range(8) if wanted(source, steps=[n])] == [3, 4, 5]


# Completing a source from its content


def plain(**known):
    return Source(Path("x.json"), "x.json", "chrome", **known)


def test_content_fills_what_names_leave_open():
    got = complete(
        plain(), {"distributedInfo": {"rank": 3, "world_size": 8}, "host_name": "n1", "pid": 5}
    )
    assert (got.rank, got.world_size, got.host, got.pid, got.notes) == (3, 8, "n1", 5, ())
    assert complete(plain(), {"rank": None, "distributedInfo": {"rank": 3}}).rank == 3


def test_content_is_believed_before_the_name_and_the_note_says_both():
    got = complete(plain(rank=0, world_size=2), {"rank": 3, "world_size": 2})
    assert got.rank == 3
    assert [n.message for n in got.notes] == ["the name says rank 0, the file says 3: 3 is used"]
    assert (got.notes[0].severity, got.notes[0].source) == ("warning", "x.json")


def test_a_manifest_is_believed_before_the_content_where_it_spoke(tmp_path):
    put(manifest(tmp_path, pid=None), "trace.json")
    got = complete(
        find(tmp_path).sources[0], {"distributedInfo": {"rank": 0, "world_size": 2}, "pid": 9}
    )
    assert (got.rank, got.pid) == (1, 9)
    assert got.notes[-1].message == "the manifest says rank 1, the file says 0: 1 is used"


def test_a_step_that_a_name_states_stays():
    got = complete(plain(step=2), {"step": 40})
    assert (got.step, codes(got)) == (2, ["conflict"])


def test_hosts_agree_with_and_without_their_domain():
    assert complete(plain(host="n1"), {"host_name": "N1.example.org"}) == plain(host="n1")


@pytest.mark.parametrize(
    "facts",
    [{}, {"rank": None}, {"rank": None, "distributedInfo": {}}, {"rank": -1}, {"rank": True}, {"rank": "0"}, {"rank": 1 << 63},
     {"distributedInfo": [0]}, {"distributedInfo": {"rank": 1.0}}, {"host_name": 5}, {"host_name": ""}],
)  # fmt: skip
def test_content_that_is_no_rank_leaves_it_unknown(facts):
    assert complete(plain(), facts) == plain()


# Hostile names


HOSTILE = [
    "rank0\nrank1.json", "%s%n%00rank2.json", "x" * 245 + "_rank3.json"[-10:], "[rank4]*?.json",
    "a=b rank5.json", "\u202erank6.json", "'\"`$(id) rank7.json", "-rank8.json", "rank9 .json",
]  # fmt: skip


def test_hostile_names_are_found_and_shown_on_one_line(tmp_path):
    put(tmp_path, *HOSTILE)
    (tmp_path / os.fsdecode(b"\xff\xferank10.json")).write_bytes(TRACE)
    folder = put(tmp_path / "d[1]*=\n\udcfe", "rank11.json")
    got = find(tmp_path)
    assert len(got.sources) == len(HOSTILE) + 2
    for row in inspect_rows(got):
        text = json.dumps(row, ensure_ascii=False)
        assert "\n" not in text.encode().decode()
        assert len(str(row["file"]).splitlines()) == 1
    assert find(str(folder)).sources[0].rank == 11
    for name in HOSTILE:
        assert len(find(str(tmp_path / name)).sources) == 1


def test_ignored_names_can_be_printed(tmp_path):
    put(tmp_path, "rank0.json")
    (tmp_path / os.fsdecode(b"\xff\n.txt")).write_bytes(b"x")
    (ignored,) = find(tmp_path).ignored
    assert ignored.name == f"{tmp_path}/\\xff\\n.txt"


def test_names_that_look_alike_when_shown_stay_distinct(tmp_path):
    put(tmp_path, "a\n.json", "a\\n.json")
    assert len({s.name for s in find(tmp_path).sources}) == 2


parts = st.text(
    alphabet=st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=20
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(st.lists(parts.filter(lambda p: p not in (".", "..")), min_size=1, max_size=6))
def test_any_tree_is_discovered_the_same_way_twice(tmp_path_factory, names):
    tree = tmp_path_factory.mktemp("tree")
    put(tree, "rank0.json")
    for i, name in enumerate(names):
        folder = tree / f"d{i % 2}" / name[:20]
        folder.mkdir(parents=True, exist_ok=True)
        put(folder, f"{name}.json")
    first, second = find(tree), find(tree)
    assert first == second
    assert len({s.name for s in first.sources}) == len(first.sources)
    assert sum(len(v) for v in by_run(first).values()) == len(first.sources)


# Rows


def test_rows_hold_plain_values_and_unknown_is_none(tmp_path):
    put(tmp_path, "rank0.json")
    (row,) = inspect_rows(find(tmp_path))
    assert (row["file"], row["reader"], row["rank"], row["step"], row["notes"]) == (
        "rank0.json",
        "chrome",
        0,
        None,
        "",
    )
    assert list(row)[:5] == ["file", "reader", "run", "role", "scope"]


# Real trees


def real_tree(*parts):
    return find(Path(REAL or "").joinpath("chrome", *parts))


def kinds(discovery):
    return {(s.role, s.scope, s.step, s.rank, s.part) for s in discovery.sources}


@real
def test_real_verl_091_gives_each_role_rank_and_step_once():
    got = real_tree("verl_cpu", "v091_e2e_all_ranks")
    assert len(got.sources) == 12
    assert kinds(got) == {
        (role, scope, step, rank, None)
        for role, scope in (("actor-rollout-ref", "train"), ("value-model", None))
        for step in (1, 2, 4)
        for rank in (0, 1)
    }
    assert {(s.run, s.world_size, s.notes) for s in got.sources} == {("v091_e2e_all_ranks", 2, ())}
    assert {i.path.name for i in got.ignored} == {
        "config_profiler.yaml", "meta.json", "metrics.jsonl", "overrides.txt", "ray_timeline.json",
    }  # fmt: skip


@real
def test_real_verl_091_schedule_gives_the_windows_as_parts():
    got = real_tree("verl_cpu", "v091_schedule_discrete", "outputs", "profile")
    assert {(s.scope, s.part) for s in got.sources} == {
        ("actor-compute-log-prob", None), ("actor-update", "mb1"), ("actor-update", "mb3"),
        ("ref-compute-log-prob", None), ("rollout-generate", None),
    }  # fmt: skip


@real
@pytest.mark.parametrize(
    ("version", "role"), [("v080_e2e", None), ("v090_e2e", "actor-rollout-ref")]
)
def test_real_verl_folders_give_successive_captures(version, role):
    got = real_tree("verl_cpu", version)
    assert kinds(got) == {
        (role, "e2e", None, rank, f"capture{n}") for rank in (0, 1) for n in (1, 2, 3)
    }
    assert len({s.run for s in got.sources}) == 1


@real
@pytest.mark.parametrize(("version", "joint"), [("v080_discrete", "_"), ("v090_discrete", "-")])
def test_real_verl_stage_folders_are_one_run(version, joint):
    got = real_tree("verl_cpu", version)
    stages = ("actor compute log prob", "actor update", "ref compute log prob", "rollout generate")
    assert {s.scope for s in got.sources} == {s.replace(" ", joint) for s in stages}
    assert {(s.run, s.rank, s.step) for s in got.sources} == {(version, 0, None)}


@real
def test_real_runs_below_one_directory_are_told_apart():
    assert sorted(by_run(real_tree("verl_cpu"))) == [
        "v080_discrete", "v080_e2e", "v090_discrete", "v090_e2e", "v091_contents_default",
        "v091_contents_full", "v091_discrete", "v091_e2e_all_ranks", "v091_e2e_continuous",
        "v091_schedule_discrete", "v091_schedule_e2e", "v091_straggler",
    ]  # fmt: skip
    gloo = {run: len(names) for run, names in by_run(real_tree("gloo_cpu")).items()}
    assert gloo == {
        "base_mem": 1, "base_run1": 4, "base_run2": 4, "base_run3": 4, "fault_leak": 2, "fault_tiny_ops": 1,
        "opt_run1": 4, "opt_run2": 4, "opt_run3": 4, "straggler": 4, "verl_like_perstep": 8,
    }  # fmt: skip
    assert len(by_run(real_tree("hta"))) == 9


@real
def test_real_rl_insight_tree_is_one_run_with_a_rollout_replica():
    got = real_tree("rl_insight")
    assert kinds(got) == {
        *((None, scope, None, rank, None) for scope in ("actor_update", "actor_compute_log_prob") for rank in (0, 1)),
        ("rollout", None, None, None, "capture1"),
        ("rollout", None, None, None, "capture2"),
    }  # fmt: skip
    assert {s.replica for s in got.sources if s.role == "rollout"} == {0}
    assert {s.run for s in got.sources} == {"rl_insight"}


@real
def test_real_tensorboard_directories_are_two_runs_of_two_captures():
    got = real_tree("kineto_tb_plugin")
    assert [(s.run, s.part, s.rank) for s in got.sources] == [
        (f"resnet50_num_workers_{n}", f"capture{c}", None) for n in (0, 4) for c in (1, 2)
    ]


@real
def test_real_reports_and_snapshots_are_ignored_by_name_and_pointers_by_content():
    nsys = discover(
        [Path(REAL or "") / "nsys", Path(REAL or "") / "chrome" / "rl_insight"], sniff=sniff
    )
    assert nsys.ignored_counts()["Nsight Systems report: not read yet"] > 20
    memory = discover([Path(REAL or "") / "memory"], sniff=sniff)
    assert "Git LFS pointer: the file itself was not downloaded" in memory.ignored_counts()
