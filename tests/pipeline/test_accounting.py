"""Every file of a directory is accounted for: read, refused, unreadable, a duplicate, or no profile."""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
from chrome_builder import step, write
from click.testing import CliRunner

from tracekit.cli import main
from tracekit.model.inputs.note_codes import explain_os_error
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached, discover_sources
from tracekit.pipeline.run_grouping import merge as merging
from tracekit.render import read_report_json, render, write_report_json

QUESTIONS = ("kernels",)
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2
ACCOUNT = "3 of 5 files: 1 refused, 1 unreadable, 1 duplicate"


def bound_by_permissions():
    """Runs in a child before its program starts: root then is denied what the mode of a file denies."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def call_denied(*args):
    command = [sys.executable, "-m", "tracekit", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=bound_by_permissions, check=False)


@pytest.fixture
def profile(tmp_path):
    """Two ranks that are read, and beside them no profile."""
    folder = tmp_path / "profile"
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", [step(1, 0, 100 + rank)], rank=rank, world_size=2)
    (folder / "notes.txt").write_text("rank 1 was slow")
    return folder


@pytest.fixture
def locked(profile):
    """And a file and a directory that may not be read."""
    write(profile / "rank2.json.gz", [step(1, 0, 100)], rank=2, world_size=3)
    write(profile / "more" / "rank3.json", [step(1, 0, 100)], rank=3, world_size=4)
    for name in ("rank2.json.gz", "more"):
        (profile / name).chmod(0)
    yield profile
    (profile / "more").chmod(0o700)


@pytest.fixture
def mixed(profile):
    """One file in every state; the unreadable one is a directory in the place of what a link leads to."""
    shutil.copy(profile / "rank1.json", profile / "rank1 (1).json")
    (profile / "rank7.json").write_text("junk")
    return profile


def with_unreadable(monkeypatch, name):
    """Let the system not read files of that name."""
    import tracekit.discover.surveys

    real = tracekit.discover.surveys._classify_file

    def read_head(found, sniff):
        if found.path.name == name:
            return tracekit.discover.surveys.UnreadableFile(explain_os_error(OSError(errno.EIO, "")))
        return real(found, sniff)

    monkeypatch.setattr(tracekit.discover.surveys, "_classify_file", read_head)


def test_what_may_not_be_read_is_said_and_strict_ends_with_2(locked, tmp_path):
    strict = call_denied("analyze", "--strict", "-o", tmp_path / "r.json", locked)
    assert strict.returncode == 2
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["files"] == [["read", 2], ["unreadable", 2]]
    assert report["unseen"][0] == "2 of 4 files: 2 unreadable"
    unreadable = {r["source"]: r["message"] for r in report["remarks"] if r["code"] == "unreadable"}
    assert unreadable["rank2.json.gz"] == "cannot be read: Permission denied"
    assert f"{locked / 'more'} cannot be read: Permission denied" in unreadable[""]


def test_doctor_names_what_may_not_be_read_and_ends_with_2(locked):
    doctor = call_denied("doctor", "--json", locked)
    assert doctor.returncode == 2
    told = json.loads(doctor.stdout)
    assert told["files"] == {"read": 2, "unreadable": 2}
    forbidden = next(d for d in told["diagnoses"] if d["code"] == "forbidden")
    assert "rank2.json.gz" in forbidden["places"]


@pytest.mark.parametrize("kind", ["text", "md", "html", "json"])
def test_the_first_screen_counts_the_files_of_every_state(mixed, monkeypatch, kind):
    write(mixed / "rank9.json", [step(1, 0, 100)], rank=9)
    with_unreadable(monkeypatch, "rank9.json")
    report = analyze_uncached(mixed, Options(questions=QUESTIONS)).report
    assert report.files == (("read", 2), ("refused", 1), ("unreadable", 1), ("duplicate", 1))
    assert report.unseen[0] == ACCOUNT
    lines = [line for line in render(report, kind).splitlines() if ACCOUNT in line]
    assert len(lines) == 1


def test_where_every_profile_was_read_nothing_is_counted(profile):
    report = analyze_uncached(profile, Options(questions=QUESTIONS)).report
    assert report.files == (("read", 2),)
    assert not [line for line in report.unseen if line.startswith("2 files")]


def test_a_source_whose_reader_fails_is_refused(profile):
    (profile / "rank3.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": 5}')
    report = analyze_uncached(profile, Options(questions=QUESTIONS)).report
    assert report.files == (("read", 2), ("refused", 1))


@pytest.mark.parametrize("command", [("analyze", "--strict"), ("doctor",)])
def test_a_refused_profile_ends_with_2_and_a_copy_does_not(profile, command):
    shutil.copy(profile / "rank1.json", profile / "copy of rank1.json")
    assert CliRunner().invoke(main, [*command, str(profile)]).exit_code == 0
    (profile / "rank7.json").write_text("junk")
    assert CliRunner().invoke(main, [*command, str(profile)]).exit_code == 2
    assert CliRunner().invoke(main, ["analyze", str(profile)]).exit_code == 0


def test_the_account_is_kept_by_what_is_saved_merged_and_written(mixed, tmp_path):
    result = analyze_uncached(mixed, Options(questions=QUESTIONS))
    assert read_report_json(write_report_json(result.report)).files == result.report.files
    saved_measurements.save(result.measurements, tmp_path / "a.tkm")
    assert analyze_uncached(tmp_path / "a.tkm", Options(questions=QUESTIONS)).report.files == result.report.files
    part = saved_measurements.load(tmp_path / "a.tkm")
    facts = merging.merge([part, part], ["a", "b"]).facts
    assert facts.files == {"refused": 2, "duplicate": 2}


def test_a_manifest_that_may_not_be_read_is_unreadable_too(profile, monkeypatch):
    (profile / "capture.json").write_text('{"schema": "capture/1"}')
    with_unreadable(monkeypatch, "capture.json")
    assert discover_sources(profile).state_counts() == {"unreadable": 1}
