"""What a file holds is known by a digest, from where it is measured to the saved forms."""

import json
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from chrome_builder import step, write

from tracekit.discover.contents import digest_content
from tracekit.model.trace import Source
from tracekit.pipeline import measure_source
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.measure_source import add_content_digest
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.run_grouping import merge as merging
from tracekit.render import read_report_json, write_report_json

QUESTIONS = ("kernels",)


@pytest.fixture
def profile(tmp_path):
    folder = tmp_path / "profile"
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", [step(1, 0, 100 + rank)], rank=rank, world_size=2)
    return folder


def digests(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_every_source_that_was_measured_says_what_its_file_held(profile):
    result = analyze_uncached(profile, Options(questions=QUESTIONS))
    assert {s.name: s.content for s in result.measurements.sources} == digests(profile)
    assert result.report.contents == tuple(sorted(("profile", digest) for digest in digests(profile).values()))


def test_workers_tell_it_as_this_process_does(profile, monkeypatch):
    monkeypatch.setattr("tracekit.engine.local.SMALL_BYTES", 0)
    assert (
        analyze_uncached(profile, Options(jobs=2, questions=QUESTIONS)).report.contents
        == analyze_uncached(profile, Options(questions=QUESTIONS)).report.contents
    )


def test_it_is_kept_in_what_is_saved_and_when_its_run_gets_another_name(profile, tmp_path):
    result = analyze_uncached(profile, Options(questions=QUESTIONS))
    saved_measurements.save(result.measurements, tmp_path / "a.tkm")
    renamed = merging.label_runs(saved_measurements.load(tmp_path / "a.tkm"), "base")
    assert [(s.run, s.content) for s in renamed.sources] == [("base", digest) for digest in digests(profile).values()]
    assert read_report_json(write_report_json(result.report)).contents == result.report.contents


def test_what_was_saved_before_there_were_digests_is_loaded_without(profile, tmp_path):
    saved_measurements.save(analyze_uncached(profile, Options(questions=QUESTIONS)).measurements, tmp_path / "new.tkm")
    with zipfile.ZipFile(tmp_path / "new.tkm") as new, zipfile.ZipFile(tmp_path / "old.tkm", "w") as old:
        for entry in new.infolist():
            data = new.read(entry)
            if entry.filename == "manifest.json":
                manifest = json.loads(data)
                for source in manifest["sources"]:
                    del source["content"]
                data = json.dumps(manifest).encode()
            old.writestr(entry.filename, data)
    result = analyze_uncached(tmp_path / "old.tkm", Options(questions=QUESTIONS))
    assert [s.content for s in result.measurements.sources] == [None, None]
    assert result.report.contents == ()


def test_a_file_that_cannot_be_read_has_none_and_one_that_is_known_is_not_read_again(tmp_path):
    gone = Source(Path(tmp_path / "gone.json"), "gone.json", "chrome")
    assert add_content_digest(gone) == gone
    with pytest.raises(FileNotFoundError):
        digest_content(gone.path)
    known = Source(gone.path, "gone.json", "chrome", content="abc")
    assert add_content_digest(known).content == "abc"


def test_without_being_asked_no_digest_is_made_and_all_else_is_the_same(profile, monkeypatch):
    told = analyze_uncached(profile, Options(questions=QUESTIONS, cache=False)).report
    monkeypatch.setattr(measure_source, "digest_content", None)
    untold = analyze_uncached(profile, Options(questions=QUESTIONS, cache=False, details=False)).report
    assert len(told.contents) == 2
    assert untold == replace(told, contents=(), values=None)
