"""Saved measurements that cannot be read: one line, a remedy, and exit status 2."""

import json
import zipfile

import pytest

from tracekit.model.trace import Measurements
from tracekit.pipeline.cache import saved_measurements


@pytest.fixture
def path(tmp_path):
    saved_measurements.save(Measurements({}, ()), tmp_path / "x.tkm")
    return tmp_path / "x.tkm"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def newer(path):
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in entries:
            if info.filename == "manifest.json":
                changed = json.loads(data) | {"schema": "tracekit.measurements/9"}
                archive.writestr(info, json.dumps(changed))
            else:
                archive.writestr(info, data)


@pytest.mark.parametrize("command", ["analyze", "render", "compare"])
@pytest.mark.parametrize(("spoil", "told"), [(cut, "x.tkm: "), (newer, "tracekit.measurements/9")])
def test_what_is_cut_or_of_a_newer_version_is_refused_in_one_line(call, path, monkeypatch, command, spoil, told):
    monkeypatch.chdir(path.parent)
    (path.parent / "same.tkm").write_bytes(path.read_bytes())
    spoil(path)
    done = call(command, "x.tkm", *(["same.tkm"] if command == "compare" else []))
    assert done.exit_code == 2
    assert not done.stdout
    problem, *remedy = done.stderr.strip().splitlines()
    assert problem.startswith("tracekit: ")
    assert "x.tkm" in problem
    assert told in problem
    assert len(remedy) <= 1
    assert all("try: " in line for line in remedy)
