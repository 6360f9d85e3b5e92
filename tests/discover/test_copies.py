"""The same content counts once, whatever its files are called and wherever they lie; and that is told."""

import gzip
import json
import os
import shutil

import pytest
from chrome_builder import BASE_NS, step, write
from pipeline.test_pipeline import rank_rows

from tracekit.discover import contents
from tracekit.discover.contents import find_same_contents
from tracekit.model.errors import TracekitError
from tracekit.pipeline import doctor
from tracekit.pipeline.run import Options, analyze_uncached, discover_sources

QUESTIONS = ("gpu-time", "kernels")


@pytest.fixture
def profile(tmp_path):
    folder = tmp_path / "profile"
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", rank_rows(rank), rank=rank, world_size=2)
    return folder


def compress(path, target, level=9):
    with gzip.open(target, "wb", compresslevel=level) as out:
        out.write(path.read_bytes())


def names(found):
    return [source.name for source in found.sources]


def copies(found):
    return [note for note in found.notes if note.code == "same-content"]


COPIES = {
    "beside": lambda f: shutil.copy(f / "rank1.json", f / "rank1 (1).json"),
    "before it in the alphabet": lambda f: shutil.copy(f / "rank1.json", f / "copy.json"),
    "in a directory": lambda f: shutil.copytree(f, f / "backup", ignore=lambda *_: ["backup", "rank0.json"]),
    "compressed": lambda f: compress(f / "rank1.json", f / "rank1.json.gz"),
    "a hard link": lambda f: os.link(f / "rank1.json", f / "rank1_again.json"),
    "a link": lambda f: (f / "rank1_again.json").symlink_to(f / "rank1.json"),
    "claims another rank": lambda f: shutil.copy(f / "rank1.json", f / "rank7_copied_from_1.json"),
}  # fmt: skip


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_counts_once_and_is_told(profile, make):
    alone = analyze_uncached(profile, Options(questions=QUESTIONS))
    make(profile)
    found = discover_sources(profile)
    assert found.state_counts() == {"duplicate": 1}
    result = analyze_uncached(profile, Options(questions=QUESTIONS))
    assert len(result.measurements.sources) == 2
    assert result.report.headline == alone.report.headline
    assert {s.run for s in result.measurements.sources} == {"profile"}


def test_the_note_names_both_files(profile):
    shutil.copy(profile / "rank1.json", profile / "a copy.json")
    (note,) = copies(discover_sources(profile))
    assert note.severity == "warning"
    assert (note.source, note.message) == ("a copy.json", "the same content as rank1.json, which counts")


def test_a_copied_directory_is_no_second_run_and_one_note(profile):
    shutil.copytree(profile, profile.parent / "all" / "run1")
    shutil.copytree(profile, profile.parent / "all" / "run1 copy")
    found = discover_sources(profile.parent / "all")
    assert names(found) == ["run1/rank0.json", "run1/rank1.json"]
    (note,) = copies(found)
    assert note.message == "the same content as run1/rank0.json, which counts; so with 1 more beside it"
    assert (note.source, note.count) == ("run1 copy/rank0.json", 2)


def test_two_compressions_of_one_text_are_one_content_and_two_texts_of_one_length_are_two(tmp_path):
    write(tmp_path / "rank0.json", [step(1, 0, 100)], rank=0)
    write(tmp_path / "rank1.json", [step(1, 0, 100)], rank=1)
    assert (tmp_path / "rank0.json").stat().st_size == (tmp_path / "rank1.json").stat().st_size
    for rank in (0, 1):
        compress(tmp_path / f"rank{rank}.json", tmp_path / f"rank{rank}.fast.json.gz", level=1)
        compress(tmp_path / f"rank{rank}.json", tmp_path / f"rank{rank}.json.gz", level=9)
    same = find_same_contents(sorted(tmp_path.iterdir()))
    assert len(same) == 6
    assert len(set(same.values())) == 2
    assert names(discover_sources(tmp_path)) == ["rank0.json", "rank1.json"]


def test_two_damaged_copies_are_one_content(tmp_path):
    write(tmp_path / "whole.json.gz", rank_rows(0), rank=0)
    data = (tmp_path / "whole.json.gz").read_bytes()
    for name in ("rank0.json.gz", "rank0_copy.json.gz"):
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    assert names(discover_sources(tmp_path)) == ["rank0.json.gz", "whole.json.gz"]


def test_files_that_are_the_same_at_both_ends_and_differ_between_are_two(tmp_path):
    block = contents._ENDS_BYTES * 3
    for place in (0, 1):
        data = bytearray(block)
        data[block // 2] = place
        (tmp_path / f"{place}").write_bytes(data)
    assert find_same_contents(tmp_path.iterdir()) == {}


def test_a_thousand_different_files_of_one_length_are_not_read_whole(tmp_path, monkeypatch):
    for number in range(1000):
        (tmp_path / f"{number}").write_bytes(b"%08d" % number + bytes(1000))

    def whole(path):
        raise AssertionError(path)

    monkeypatch.setattr(contents, "_digest_inflated", whole)
    assert find_same_contents(tmp_path.iterdir()) == {}


def test_a_path_that_is_named_twice_counts_once(profile):
    one, both = discover_sources([profile]), discover_sources([profile, profile])
    assert [(s.path, s.run) for s in both.sources] == [(s.path, s.run) for s in one.sources]
    assert [n.message for n in copies(both)] == ["2 files were named more than once, and counted once"]
    inside = discover_sources([profile, profile / "rank1.json"])
    assert len(inside.sources) == 2
    loose = discover_sources([profile / "rank1.json", profile / "rank1.json"])
    assert len(loose.sources) == 1


def test_what_a_person_names_as_two_runs_stays_two_and_it_is_told(profile):
    shutil.copytree(profile, profile.parent / "copy")
    for given in (
        [f"a={profile}", f"b={profile.parent / 'copy'}"],
        [f"a={profile}", f"b={profile}"],
        [profile, profile.parent / "copy"],
    ):
        found = discover_sources(given)
        assert len({s.run for s in found.sources}) == 2
        (note,) = copies(found)
        assert note.message.startswith("2 files hold the same as in ")
        assert "the same recording twice" in note.message


def test_a_log_copied_beside_itself_counts_once_and_those_of_two_runs_are_kept(tmp_path):
    line = json.dumps({"step": 1, "data": {"timing_s/step": 1.0}}) + "\n"
    for run in ("one", "two"):
        for rank in (0, 1):
            rows = [step(1, 0, 100 + rank + len(run) * (run == "two"))]
            write(tmp_path / run / f"rank{rank}.json", rows, rank=rank)
        for name in ("metrics.jsonl", "metrics copy.jsonl"):
            (tmp_path / run / name).write_text(line)
    found = discover_sources(tmp_path)
    logs = [source.name for source in found.sources if source.tool == "log"]
    assert logs == ["one/metrics.jsonl", "two/metrics.jsonl"]


def test_doctor_tells_of_copies_and_reads_each_content_once(profile):
    shutil.copy(profile / "rank1.json", profile / "rank1 (1).json")
    examination = doctor.examine_captures([profile], Options(questions=QUESTIONS))
    (told,) = (d for d in examination.diagnoses if d.code == "same-content")
    assert told.places == ("rank1 (1).json",)
    assert told.what == "the same content as rank1.json, which counts"
    assert examination.file_counts == (("read", 2), ("duplicate", 1))


def test_where_only_copies_are_left_out_there_is_still_a_profile(profile):
    with pytest.raises(TracekitError, match="no profile"):
        discover_sources(profile, Options(exclude=("*.json",), questions=QUESTIONS))
    assert discover_sources([profile, profile]).notes
    assert not [n for n in discover_sources([profile, profile]).notes if n.code == "nothing"]


def cut_off(folder):
    data = (folder / "rank1.json").read_bytes()
    (folder / "cut_rank1.json").write_bytes(data[: int(len(data) * 0.8)])


def with_more_behind(folder):
    data = (folder / "rank1.json").read_bytes()
    (folder / "again_rank1.json").write_bytes(data + b"\n\0\0 and so on")


ALMOST = {"cut off": cut_off, "with more behind": with_more_behind}


@pytest.mark.parametrize("make", ALMOST.values(), ids=ALMOST)
def test_a_copy_that_is_cut_off_or_longer_is_the_same_recording_and_counts_once(profile, make):
    alone = analyze_uncached(profile, Options(questions=QUESTIONS))
    make(profile)
    result = analyze_uncached(profile, Options(questions=QUESTIONS))
    assert [source.name for source in result.measurements.sources] == ["rank0.json", "rank1.json"]
    assert result.report.headline == alone.report.headline
    assert result.report.files == (("read", 2), ("duplicate", 1))
    for table, frame in result.measurements.arrays.items():
        assert len(frame) == len(alone.measurements.arrays[table]), table
    (note,) = [n for n in result.measurements.notes if n.code == "same-recording"]
    assert note.source in ("cut_rank1.json", "again_rank1.json")
    assert note.message.startswith("the same recording as rank1.json")
    assert not [n for n in result.measurements.notes if n.code == "duplicate"]


OTHERS = {
    "a later capture": {"rank": 1, "base_ns": BASE_NS + 3600 * 10**9},
    "one beside it in time": {"rank": 1, "base_ns": BASE_NS + 7_000},
    "another rank at that very time": {"rank": 2},
    "a clock without an epoch": {"rank": 1, "base_ns": None},
}


@pytest.mark.parametrize("meta", OTHERS.values(), ids=OTHERS)
def test_another_recording_of_a_process_of_that_name_counts(profile, meta):
    write(profile / "again.json", [*rank_rows(1), step(9, 9_000, 10)], world_size=4, **meta)
    result = analyze_uncached(profile, Options(questions=QUESTIONS))
    assert len(result.measurements.sources) == 3
    assert result.report.files == (("read", 3),)


def test_what_a_person_names_as_two_runs_stays_two_where_one_is_cut_off(profile, tmp_path):
    cut_off(profile)
    (tmp_path / "b").mkdir()
    (profile / "cut_rank1.json").rename(tmp_path / "b" / "rank1.json")
    result = analyze_uncached([f"a={profile}", f"b={tmp_path / 'b'}"], Options(questions=QUESTIONS))
    assert len(result.measurements.sources) == 3
