"""The file of the timeline: the same bytes again, whole or not there; and what the command says."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from chrome_builder import launched, write
from cli.exports import exported, named, rows_of, two_ranks, with_collectives

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.system import files
from tracekit.pipeline.timeline import document


def test_the_same_input_gives_the_same_bytes(tmp_path):
    folder = two_ranks(tmp_path / "in")
    for name in ("one.json.gz", "two.json.gz"):
        exported(folder, tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


@pytest.mark.parametrize("kind", ["itself", "link", "hard link"])
def test_no_input_is_overwritten(tmp_path, kind):
    folder = two_ranks(tmp_path / "in")
    given, target = folder / "rank0.json.gz", tmp_path / "out.json.gz"
    before = given.read_bytes()
    if kind == "itself":
        target = given
    elif kind == "link":
        target.symlink_to(given)
    else:
        target.hardlink_to(given)
    with pytest.raises(TracekitError, match="one of the files to be read"):
        exported(folder, target)
    assert given.read_bytes() == before


def test_a_cut_file_gives_every_whole_row(tmp_path):
    rows = [row for k in range(200) for row in launched(f"k{k}", 10 * k, 10 * k + 5, 3, k + 1)]
    whole = write(tmp_path / "rank0.json.gz", rows, rank=0, world_size=1).read_bytes()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rank0.json.gz").write_bytes(whole[: len(whole) * 3 // 4])
    done = exported(folder, tmp_path / "out.json.gz")
    given = tracekit.load(folder / "rank0.json.gz")
    assert 0 < len(given["device_ops"]) < 200
    assert done.rows["device_ops"] == len(given["device_ops"])
    merged = tracekit.load(tmp_path / "out.json.gz")
    assert merged["device_ops"]["name"].tolist() == given["device_ops"]["name"].tolist()


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    folder = two_ranks(tmp_path / "in")
    target = tmp_path / "out.json.gz"
    target.write_bytes(b"before")
    monkeypatch.setattr(document, "format_trace", lambda *_, **__: iter(["broken"]))
    with pytest.raises(TracekitError, match="no trace could be written out"):
        exported(folder, target)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.json.gz"]


@pytest.mark.parametrize("fits", [0, 1, 2])
def test_a_disk_that_fills_up_ends_the_export_whatever_part_it_was(call, tmp_path, monkeypatch, fits):
    """Of two ranks none, one or both still fit: no timeline may lack a rank because of the disk."""

    def write_all(descriptor, piece):
        begun.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        if len(begun) > fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(descriptor, piece)

    really, begun = files.write_all_bytes, set()
    monkeypatch.setattr(document, "write_all_bytes", write_all)
    monkeypatch.setattr(files, "write_all_bytes", write_all)
    target = tmp_path / "out.json.gz"
    result = call("export", two_ranks(tmp_path / "in"), "--perfetto", target)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"tracekit: {target}: cannot be written: No space left on device",
        "          try: free some space there, or write it elsewhere",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_full_place_for_the_parts_is_named(call, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "room"))
    (tmp_path / "room").mkdir()

    def write_all(descriptor, piece):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(document, "write_all_bytes", write_all)
    result = call("export", two_ranks(tmp_path / "in"), "--perfetto", "/dev/null")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == (
        f"tracekit: /dev/null, whose parts wait in {tmp_path / 'room'}: cannot be written: No space left on device"
    )


def test_the_command_says_what_it_wrote(call, tmp_path):
    folder = two_ranks(tmp_path / "in")
    result = call("export", folder, "--perfetto", tmp_path / "out.json.gz", "-j", "1")
    assert result.exit_code == 0
    assert "14 rows of 2 processes" in result.stderr
    assert f"wrote {tmp_path / 'out.json.gz'}" in result.stderr
    assert result.stdout == ""
    again = call("export", folder, "--perfetto", folder / "out.json.gz", "-j", "1")
    assert "it lies among the profiles" in again.stderr


def test_standard_output_is_no_place_for_it(call, tmp_path):
    result = call("export", tmp_path, "--perfetto", "-")
    assert result.exit_code == 2
    assert "needs a file" in result.stderr


def test_a_clock_that_was_corrected_is_told(call, tmp_path):
    folder = with_collectives(tmp_path / "in", 5000)
    result = call("export", folder, "--perfetto", tmp_path / "out.json", "-j", "1")
    assert "clock of rank 1 corrected by −5.00 ms (± 0 ns)" in result.stderr


def test_a_file_that_cannot_be_read_is_named_and_strict_says_so(call, tmp_path):
    folder = two_ranks(tmp_path / "in")
    (folder / "rank2.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": [')
    for more, status in ((), 0), (("--strict",), 2):
        result = call("export", folder, "--perfetto", tmp_path / "out.json", "-j", "1", *more)
        assert result.exit_code == status
        assert "rank2.json" in result.stderr
        assert len(named(rows_of(tmp_path / "out.json")[1], "gemm")) == 4
