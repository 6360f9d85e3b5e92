"""What discovery leaves out: files that are passed over, and those that filters do not want."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from discovered import T1, by_run, find, put, reasons, sniff
from hypothesis import given
from hypothesis import strategies as st

from tracekit.discover import Sniffed, discover, may_match_filters, parse_numbers
from tracekit.discover import arguments as listing
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.trace import Source

# What is passed over


def test_what_no_reader_takes_is_ignored_with_a_plain_reason(tmp_path):
    put(tmp_path, "rank0.json")
    put(tmp_path, "metrics.jsonl", "c.yaml", "step1/m.pickle", data=b"x")
    got = find(tmp_path)
    assert reasons(got) == {"metrics.jsonl": "no-format", "c.yaml": "no-format", "m.pickle": "no-snapshot"}
    assert got.ignored_counts()["not a trace"] == 2
    assert not got.notes


def test_a_reader_that_takes_a_format_is_believed_whatever_the_suffix(tmp_path):
    put(tmp_path, "step1/m.pickle", data=b"x")
    got = discover([tmp_path], sniff=lambda _: Sniffed("snapshot", "torch_memory"))
    assert (got.sources[0].reader, got.sources[0].tool, got.sources[0].step) == ("snapshot", "torch_memory", 1)


def test_hidden_and_temporary_files_are_left_alone(tmp_path):
    put(tmp_path, "rank0.json", ".rank1.json", "rank2.json.tmp", "rank3.json~", ".git/rank4.json")
    got = find(tmp_path)
    assert [s.name for s in got.sources] == ["rank0.json"]
    assert reasons(got)[".git"] == reasons(got)[".rank1.json"] == "hidden"
    assert reasons(got)["rank2.json.tmp"] == "temporary"
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
    assert reasons(got)["rank1.json"] == reasons(got)["notes.txt"] == "empty-file"
    assert reasons(got)["rank2.json"] == reasons(got)["rank3.pt.trace.json.gz"] == "lfs-pointer"
    assert {n.data["why"] for n in got.notes} == {"empty-file", "lfs-pointer"}
    assert {n.source for n in got.notes} == {"rank1.json", "rank2.json", "rank3.pt.trace.json.gz"}
    assert {n.severity for n in got.notes} == {"data_loss"}


def test_exclude_matches_names_and_relative_paths_and_prunes_directories(tmp_path):
    put(tmp_path, "rank0.json", "rank1.json", "old/rank2.json", "new/rank3.json", "new/rank4.json")
    assert [s.rank for s in find(tmp_path, exclude=["rank1*", "old", "new/rank3*"]).sources] == [4, 0]


def test_links_are_followed_once_and_loops_end(tmp_path):
    put(tmp_path, "tree/run/rank0.json", "else/rank1.json")
    (tmp_path / "tree" / "a_link").symlink_to(tmp_path / "tree" / "run")
    (tmp_path / "tree" / "outside").symlink_to(tmp_path / "else")
    (tmp_path / "tree" / "run" / "loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "latest.json").symlink_to(tmp_path / "tree" / "run" / "rank0.json")
    (tmp_path / "tree" / "gone.json").symlink_to(tmp_path / "nowhere")
    got = find(tmp_path / "tree")
    assert [s.name for s in got.sources] == ["outside/rank1.json", "run/rank0.json"]
    assert reasons(got)["latest.json"] == reasons(got)["gone.json"] == "link"
    assert {i.reason.text for i in got.ignored if i.path.name == "gone.json"} == {"a link to nothing"}


def test_a_link_is_called_by_its_own_name(tmp_path):
    put(tmp_path, "runs/4711/rank0.json")
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "4711")
    assert find(tmp_path / "latest").sources[0].run == "latest"


def test_pipes_are_not_opened(tmp_path):
    put(tmp_path, "rank0.json")
    os.mkfifo(tmp_path / "rank1.json")
    assert reasons(find(tmp_path)) == {"rank1.json": "not-a-file"}


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
    assert set(reasons(got).values()) == {"forbidden"}
    assert [n.code for n in got.notes] == ["unreadable", "unreadable"]
    assert got.state_counts() == {"unreadable": 2}


def test_a_reader_that_refuses_a_head_gives_the_reason(tmp_path):
    put(tmp_path, "rank0.json", "rank1.json")

    def look(path):
        if path.name == "rank1.json":
            raise TraceFormatError(path, "gzip ends after 12 bytes", code="cut-stream")
        return sniff(path)

    got = discover([tmp_path], sniff=look)
    assert reasons(got) == {"rank1.json": "cut-stream"}
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


# Filters


def test_numbers_are_parsed_with_ranges():
    assert parse_numbers("0-3,7") == {0, 1, 2, 3, 7}
    assert parse_numbers(" 5 , 9 - 9 ") == {5, 9}


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "1-2-3", "٣", "0-9999999", "9" * 5000])
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


def test_stages_are_matched_by_glob_as_recorded_or_as_known_and_whole_steps_are_kept(tmp_path):
    names = ("actor-update", "actor-compute-log-prob", "ref-compute-log-prob", "train")
    put(tmp_path, *(f"x_{n}_step1_rank0_pid1_{T1}.json" for n in names), f"v_step1_rank0_pid2_{T1}.json")

    def scopes(*stages):
        return {s.scope for s in find(tmp_path, stages=stages).sources}

    assert scopes("*log_prob") == {"actor-compute-log-prob", "ref-compute-log-prob", "train", None}
    assert scopes("actor*prob") == {"actor-compute-log-prob", "train", None}
    assert scopes("Actor_Update", "ref-*") == {"actor-update", "ref-compute-log-prob", "train", None}
    assert scopes("update_actor", "ref") == {"actor-update", "ref-compute-log-prob", "train", None}
    assert scopes("log_prob", "actor", "date") == {"train", None}


def test_filters_that_leave_nothing_are_an_error_that_says_what_there_is(tmp_path):
    put(tmp_path, f"x_actor-update_step1_rank0_pid1_{T1}.json")
    with pytest.raises(TracekitError) as caught:
        find(tmp_path, steps={2})
    assert "ranks 0; steps 1; stages update_actor" in caught.value.hint


def test_filtering_does_not_change_what_runs_are_called(tmp_path):
    put(tmp_path, "a/rank0.json", "b/rank0.json", "b/rank1.json")
    assert list(by_run(find(tmp_path, ranks=[1]))) == ["b"]


def test_wanted_judges_a_completed_source():
    source = Source(Path("x"), "x", "chrome", rank=3)
    assert may_match_filters(source)
    assert may_match_filters(source, ranks=[3], steps=[1])
    assert not may_match_filters(source, ranks=[2])


def test_an_empty_filter_filters_nothing(tmp_path):
    put(tmp_path, f"x_actor-update_step1_rank0_pid1_{T1}.json")
    assert find(tmp_path, ranks=(), steps=(), stages=()) == find(tmp_path)


def test_a_window_of_steps_is_wanted_for_each_of_its_steps():
    source = Source(Path("x"), "x", "chrome", step=3, part="steps3-5")
    assert [n for n in range(8) if may_match_filters(source, steps=[n])] == [3, 4, 5]
