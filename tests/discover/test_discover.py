"""From paths to sources: inputs, repeats, completing by content, hostile names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from discovered import T1, T2, T3, TRACE, by_run, codes, find, manifest, put, sniff
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.discover import apply_file_facts, discover, list_inspect_rows
from tracekit.model.errors import TracekitError
from tracekit.model.trace import Source

# Inputs


def test_a_directory_is_searched_to_the_bottom_in_natural_order(tmp_path):
    put(tmp_path, "rank10.json.gz", "rank2.json.gz", "actor_update/x/rank1.json")
    got = find(tmp_path)
    assert [s.name for s in got.sources] == ["actor_update/x/rank1.json", "rank2.json.gz", "rank10.json.gz"]
    assert [s.size_bytes for s in got.sources] == [s.path.stat().st_size for s in got.sources]
    assert (got.title, got.sources[0].reader, got.sources[0].tool) == (str(tmp_path), "chrome", "torch")


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


def test_the_same_directory_twice_is_two_runs_where_labels_make_them_two(tmp_path):
    put(tmp_path, "rank0.json")
    got = find(f"a={tmp_path}", f"a={tmp_path}")
    assert list(by_run(got)) == ["a", "a#2"]
    assert len({s.name for s in got.sources}) == 2
    assert len(find(tmp_path, tmp_path).sources) == 1


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
    assert "2 × named like an Nsight Systems report" in caught.value.hint


def test_one_argument_without_profiles_beside_a_good_one_is_noted(tmp_path):
    put(tmp_path, "a/rank0.json")
    put(tmp_path, "b/x.txt", data=b"x")
    got = find(tmp_path / "a", tmp_path / "b")
    assert [(n.code, n.source) for n in got.notes] == [("nothing", str(tmp_path / "b"))]


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
    assert [(s.rank, codes(s)) for s in got.sources] == [(0, ["duplicate"]), (0, ["duplicate"]), (1, [])]
    assert got.sources[1].name in got.sources[0].notes[0].message


def test_two_processes_that_claim_one_rank_are_noted(tmp_path):
    put(tmp_path, *(f"x_train_step1_rank0_pid{p}_{t}.json" for p, t in ((1, T1), (2, T2))))
    got = find(tmp_path)
    assert [codes(s) for s in got.sources] == [["shared-rank"], ["shared-rank"]]
    assert "pid 1, 2" in got.sources[0].notes[0].message


def test_files_that_say_nothing_are_neither_captures_nor_duplicates(tmp_path):
    put(tmp_path, "a.json", "b.json")
    assert [(s.part, s.notes) for s in find(tmp_path).sources] == [(None, ()), (None, ())]


# Completing a source from its content


def plain(**known):
    return Source(Path("x.json"), "x.json", "chrome", **known)


def test_content_fills_what_names_leave_open():
    got = apply_file_facts(plain(), {"distributedInfo": {"rank": 3, "world_size": 8}, "host_name": "n1", "pid": 5})
    assert (got.rank, got.world_size, got.host, got.pid, got.notes) == (3, 8, "n1", 5, ())
    assert apply_file_facts(plain(), {"rank": None, "distributedInfo": {"rank": 3}}).rank == 3


def test_content_is_believed_before_the_name_and_the_note_says_both():
    got = apply_file_facts(plain(rank=0, world_size=2), {"rank": 3, "world_size": 2})
    assert got.rank == 3
    assert [n.message for n in got.notes] == ["the name says rank 0, the file says 3: 3 is used"]
    assert (got.notes[0].severity, got.notes[0].source) == ("warning", "x.json")


def test_a_manifest_is_believed_before_the_content_where_it_spoke(tmp_path):
    put(manifest(tmp_path, pid=None), "trace.json")
    got = apply_file_facts(find(tmp_path).sources[0], {"distributedInfo": {"rank": 0, "world_size": 2}, "pid": 9})
    assert (got.rank, got.pid) == (1, 9)
    assert got.notes[-1].message == "the manifest says rank 1, the file says 0: 1 is used"


def test_a_step_that_a_name_states_stays():
    got = apply_file_facts(plain(step=2), {"step": 40})
    assert (got.step, codes(got)) == (2, ["conflict"])


def test_hosts_agree_with_and_without_their_domain():
    assert apply_file_facts(plain(host="n1"), {"host_name": "N1.example.org"}) == plain(host="n1")


@pytest.mark.parametrize(
    "facts",
    [{}, {"rank": None}, {"rank": None, "distributedInfo": {}}, {"rank": -1}, {"rank": True}, {"rank": "0"}, {"rank": 1 << 63},
     {"distributedInfo": [0]}, {"distributedInfo": {"rank": 1.0}}, {"host_name": 5}, {"host_name": ""}],
)  # fmt: skip
def test_content_that_is_no_rank_leaves_it_unknown(facts):
    assert apply_file_facts(plain(), facts) == plain()


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
    for row in list_inspect_rows(got):
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


parts = st.text(alphabet=st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
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
    (row,) = list_inspect_rows(find(tmp_path))
    assert (row["file"], row["reader"], row["rank"], row["step"], row["notes"]) == ("rank0.json", "chrome", 0, None, "")
    assert list(row)[:5] == ["file", "reader", "run", "role", "scope"]


def test_a_scope_that_is_no_stage_may_contain_the_wanted_one(tmp_path):
    """`actor` names the role of a whole step; `update_actor` and `old_log_prob` are stages."""
    name = "actor-rollout_{}_step4_rank0_pid1_20261127134753862.json"
    put(tmp_path, *(name.format(scope) for scope in ("actor", "update_actor", "old_log_prob")))
    kept = {source.scope for source in find(tmp_path, stages=["old_log_prob"]).sources}
    assert kept == {"actor", "old_log_prob"}
