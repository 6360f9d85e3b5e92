"""Zstandard, xz, bzip2 and zip of one file are read as gzip is: whole, cut off, damaged, or too much of it."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import zipfile
import zlib

import pytest
from chrome_builder import annotation, kernel, op, step
from chrome_builder import text as trace_text
from memory_builder import pickled, snapshot

import tracekit
from tracekit.model.errors import TraceFormatError
from tracekit.model.inputs import unpacked_size
from tracekit.readers import unpack
from tracekit.readers.foreign import explain_unsupported_format
from tracekit.readers.loading import sniff
from tracekit.readers.loss import DataLoss

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"".join(b'{"ph": "X", "ts": %d.%03d},\n' % (i, i * 7 % 1000) for i in range(4000))


def zipped(text, method=zipfile.ZIP_DEFLATED, *, names=("rank0.json",), stream=False):
    """A zip archive of files with this text, seekable or as a stream (sizes behind the data)."""
    held = io.BytesIO()
    target = Stream(held) if stream else held
    with zipfile.ZipFile(target, "w", method) as archive:
        for name in names:
            archive.writestr(name, text)
    return held.getvalue()


class Stream:
    """Something that can be written and not gone back in."""

    def __init__(self, file):
        self.write, self.flush = file.write, file.flush


LONG = b"".join(b'{"ph": "X", "ts": %d.%03d},\n' % (i, i * 7 % 1000) for i in range(20_000))
"""Several blocks of every form: Zstandard has 128 KiB in one, bzip2 100,000 bytes or more."""

PACKED = {
    "zst": zstd.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zip": zipped,
    "zip-stored": lambda text: zipped(text, zipfile.ZIP_STORED),
    "zip-stream": lambda text: zipped(text, stream=True),
}
FORMS = pytest.mark.parametrize("form", PACKED)


def read(path, data, *, careful=True, **options):
    """The text that a file with these bytes gives, and the kinds of its faults."""
    path.write_bytes(data)
    losses: list[DataLoss] = []
    found = b"".join(unpack.unpack_blocks(path, losses, careful=careful, **options))
    return found, [loss.kind for loss in losses]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@FORMS
@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 2**20])
def test_a_whole_file_gives_its_text_in_blocks_of_any_size(path, form, careful, size):
    text = TEXT[:3000] if size == 1 else TEXT
    path.write_bytes(PACKED[form](text))
    losses: list[DataLoss] = []
    pieces = list(unpack.unpack_blocks(path, losses, size=size, careful=careful))
    assert b"".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces)
    assert losses == []


@pytest.mark.parametrize("form", ["zst", "xz", "bz2"])
def test_streams_one_after_another_are_one_text(path, form):
    pack = PACKED[form]
    assert read(path, pack(TEXT) + pack(b"") + pack(TEXT)) == (TEXT * 2, [])
    if form == "xz":
        assert read(path, pack(TEXT) + b"\0" * 8 + pack(TEXT)) == (TEXT * 2, [])
    if form == "zst":
        skipped = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
        assert read(path, skipped + pack(TEXT) + skipped) == (TEXT, [])


@pytest.mark.parametrize("form", ["zst", "xz", "bz2"])
def test_what_follows_and_is_no_stream_is_a_fault(path, form):
    assert read(path, PACKED[form](TEXT) + b"rest") == (TEXT, ["packed-damaged"])


def in_blocks(form, text):
    """The text packed so that it has several blocks, with a checksum of all."""
    if form == "bz2":
        return bz2.compress(text, 1)
    if form == "zst":
        return zstd.compress(text, options={zstd.CompressionParameter.checksum_flag: 1})
    return PACKED[form](text)


@FORMS
def test_a_file_that_is_cut_off_gives_what_was_before(path, form):
    data = in_blocks(form, LONG)
    before = 0
    for end in (len(data) // 3, len(data) // 2, len(data) * 9 // 10):
        found, faults = read(path, data[:end])
        assert faults == ["packed-truncated"]
        assert LONG.startswith(found)
        assert len(found) >= before
        before = len(found)
    assert before > len(LONG) // 2
    with pytest.raises(unpack.Unproven):
        read(path, data[: len(data) // 2], careful=False)


@FORMS
def test_a_flipped_bit_never_goes_unnoticed_and_never_costs_what_was_before(path, form):
    data = in_blocks(form, LONG)
    middle = len(data) // 2
    found, faults = read(path, data[:middle] + bytes((data[middle] ^ 4,)) + data[middle + 1 :])
    assert faults
    assert set(faults) <= {"packed-damaged", "packed-crc", "packed-truncated"}
    pairs = enumerate(zip(found, LONG, strict=False))
    same = next((place for place, (new, old) in pairs if new != old), len(found))
    cut_off, _ = read(path, data[: middle - 16])
    assert len(cut_off) > 0
    assert same >= len(cut_off)


def test_a_fault_costs_the_same_whatever_the_size_of_the_blocks(path):
    text = bytes(random.Random(1).choices(b"0123456789abcdef", k=60_000))
    data = bytearray(lzma.compress(text))
    data[len(data) // 2] ^= 255
    found = {size: read(path, bytes(data), size=size) for size in (4096, 2**16, 2**20)}
    assert len(set(map(str, found.values()))) == 1
    assert len(found[4096][0]) > 25_000


@pytest.mark.parametrize(
    "form", ["gz", *(pytest.param(f, marks=pytest.mark.slow) for f in ("zst", "xz", "bz2", "zip"))]
)
def test_what_unpacks_to_too_many_times_its_size_is_not_read_to_its_end(path, form, monkeypatch):
    monkeypatch.setattr(unpacked_size, "FREE_BYTES", 2**20)
    data = {**PACKED, "gz": gzip.compress}[form](bytes(2**23))
    most = max(2**20, 200 * len(data))
    assert most < 2**23
    found, faults = read(path, data)
    assert faults == ["packed-bomb"]
    assert most - 2**20 <= len(found) <= most
    with pytest.raises(unpack.Unproven):
        read(path, data, careful=False)


EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1.0,"dur":1.0},'
PEAK = """
import sys, tracekit
from pathlib import Path
report = tracekit.analyze(sys.argv[1])
# Not ru_maxrss, which counts what the test's own process held when it started this one.
status = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM")))
print([remark.message for remark in report.remarks])
"""


@pytest.mark.parametrize(
    "form", ["gz", *(pytest.param(f, marks=pytest.mark.slow) for f in ("zst", "xz", "bz2", "zip"))]
)
def test_a_bomb_of_events_takes_little_memory_and_is_named(form, tmp_path):
    # 160 MB of events in at most 450 kB: read as a whole they take 1.1 GB.
    text = b'{"traceEvents":[' + EVENT * 2_000_000 + EVENT[:-1] + b"]}"
    path = tmp_path / f"bomb.json.{form}"
    path.write_bytes({**PACKED, "gz": gzip.compress}[form](text))
    small = tmp_path / "small.json"
    small.write_bytes(b'{"traceEvents":[' + EVENT[:-1] + b"]}")
    peaks = []
    for each in (small, path):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, each],
            env={**os.environ, "TRACEKIT_NO_CACHE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        peak, said = done.stdout.splitlines()
        peaks.append(int(peak))
    allowed = unpacked_size.limit_unpacked_bytes(path.stat().st_size)
    assert "it unpacks to more than 200 times its size: the rest was not read" in said
    assert peaks[1] - peaks[0] < 8 * allowed / 1e6 + 40


@pytest.mark.parametrize("form", ["gz", *sorted(PACKED.keys() - {"zip-stored"})])
def test_a_bomb_without_an_event_is_refused_as_a_bomb(form, tmp_path, call):
    path = tmp_path / f"bomb.json.{form}"
    text = b'{"traceEvents":[' + b" " * 40_000_000 + b"]}"
    path.write_bytes({**PACKED, "gz": gzip.compress}[form](text))
    said = call("doctor", path).output
    assert "it unpacks to more than 200 times its size" in said
    assert "unpack it first" in said
    assert "is not what its name says" not in said


def test_a_packed_trace_that_is_cut_before_its_first_event_is_refused_for_that(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + EVENT + EVENT[:-1] + b"]}", 0)[:40])
    with pytest.raises(TraceFormatError, match="no complete event: the gzip stream ends early"):
        tracekit.load(path)


def test_no_public_trace_is_near_the_limit():
    # Of those of one kernel in a loop, which are the most repetitive, too.
    rows = [kernel("ampere_sgemm_128x64_nn", 10 * n, 8, n) for n in range(20_000)]
    text = trace_text(rows)
    for pack in (gzip.compress, zstd.compress, lzma.compress, bz2.compress):
        assert len(text) / len(pack(text)) < unpacked_size.MAX_EXPANSION / 2


def test_a_decoder_may_not_ask_for_gigabytes(path):
    wide = {zstd.CompressionParameter.window_log: 30, zstd.CompressionParameter.enable_long_distance_matching: 1}
    compressor = zstd.ZstdCompressor(options=wide)
    path.write_bytes(compressor.compress(TEXT) + compressor.flush())
    with pytest.raises(OSError, match="more memory to unpack"):
        list(unpack.unpack_blocks(path, []))
    assert sniff(path).reason.code == "archive"
    assert sniff(path).reason.data["remedy"] == "decompress it first"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**30, "preset": 0}]
    head = bytearray(lzma.compress(TEXT, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]))
    assert head[16] == 16, filters  # the code of 1 MiB in the block header
    head[16] = 36  # that of 1 GiB
    head[20:24] = zlib.crc32(bytes(head[12:20])).to_bytes(4, "little")
    path.write_bytes(bytes(head))
    with pytest.raises(OSError, match="more memory to unpack"):
        list(unpack.unpack_blocks(path, []))


# Archives and texts that are named and not read


def tar(folder, mode):
    import tarfile

    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:
        info = tarfile.TarInfo("rank0.json")
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    return held.getvalue()


FOREIGN = {
    "several": (lambda: zipped(TEXT, names=("a.json", "b.json")), "a zip archive of 2 files: unpack it first"),
    "none": (lambda: zipped(TEXT, names=()), "a zip archive of no file"),
    "tar": (lambda: tar(None, "w"), "a tar archive: unpack it first"),
    "tar.gz": (lambda: tar(None, "w:gz"), "a compressed tar archive: unpack it first"),
    "tar.xz": (lambda: tar(None, "w:xz"), "a compressed tar archive: unpack it first"),
    "tar.zst": (lambda: zstd.compress(tar(None, "w")), "a compressed tar archive: unpack it first"),
    "7z": (lambda: b"7z\xbc\xaf\x27\x1c\0\4" + bytes(40), "a 7z archive: unpack it first"),
    "rar": (lambda: b"Rar!\x1a\x07\x01\0" + bytes(40), "a rar archive: unpack it first"),
    "twice": (lambda: zstd.compress(bz2.compress(TEXT)), "compressed twice"),
    "utf-16": (lambda: trace_text([]).decode().encode("utf-16"), "text in UTF-16"),
    "utf-16-le": (lambda: trace_text([]).decode().encode("utf-16-le"), "text in UTF-16"),
    "utf-16-be": (lambda: trace_text([]).decode().encode("utf-16-be"), "text in UTF-16"),
    "utf-32": (lambda: trace_text([]).decode().encode("utf-32"), "text in UTF-32"),
    "utf-16.zst": (lambda: zstd.compress(trace_text([]).decode().encode("utf-16")), "text in UTF-16"),
    "sqlite.zst": (lambda: zstd.compress(b"SQLite format 3\0" + bytes(4096)), "decompress it first"),
    "report.xz": (
        lambda: lzma.compress(b"NVIDIA Tegra Profiler Report 2024@2@3@38-1v0"),
        "decompress it first",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *((what, "rank0.json") for what in FOREIGN),
        *(("several", name) for name in ("x.bin", "a.pickle", "a.nsys-rep", "a.sqlite")),
    ],
)
def test_what_is_not_read_is_named_for_what_it_is_whatever_it_is_called(tmp_path, what, name, call):
    make, said = FOREIGN[what]
    (tmp_path / name).write_bytes(make())
    reason = sniff(tmp_path / name).reason
    assert said in reason.text
    assert reason.code == ("other-text" if what.startswith("utf") else "archive")
    with pytest.raises(TraceFormatError) as caught:
        tracekit.load(tmp_path / name)
    assert said in caught.value.problem
    assert (caught.value.code, caught.value.data) == (reason.code, reason.data)
    for command in ("inspect", "analyze"):
        done = call(command, tmp_path)
        assert done.exit_code == 2
        assert said in done.stderr
    done = call("doctor", "-q", "-j", 1, tmp_path)
    assert done.exit_code == 2
    assert said.partition(":")[0].partition(" it ")[0] in done.stdout
    assert "was not switched on" not in done.stdout
    assert "nothing wrong" not in done.stdout


@pytest.mark.parametrize("head", [b"{}", b'[{"ph"', b"", b"\xff\xd8\xff", b"text", b"{\n\t"])
def test_plain_heads_are_not_refused(head):
    assert explain_unsupported_format(head) is None


# What lies in them


def rows(count=400):
    found = [step(1, 0, 100 * count)]
    for number in range(count):
        found += [annotation("gen", 100 * number, 50), op("aten::mm", 100 * number + 5, 10)]
        found += [kernel("gemm", 100 * number + 20, 7, number)]
    return found


@FORMS
def test_a_trace_a_snapshot_and_a_log_are_read_alike(tmp_path, form):
    trace = trace_text(rows(), rank=0, world_size=1)
    log = b"step:1 - timing_s/gen:1.5 - timing_s/step:3.0\n" * 3
    held = {"rank0.json": trace, "a.pickle": pickled(snapshot()), "driver.log": log}
    for stem, data in held.items():
        (tmp_path / stem).write_bytes(data)
        (tmp_path / f"{stem}.{form}").write_bytes(PACKED[form](data))
        plain, packed = (tracekit.load(tmp_path / n) for n in (stem, f"{stem}.{form}"))
        assert set(plain.tables) == set(packed.tables)
        for name in plain.tables:
            assert plain[name].equals(packed[name]), name
        assert plain.source.rank == packed.source.rank
        assert packed.notes == () or [n.code for n in packed.notes] == [n.code for n in plain.notes]


@FORMS
def test_a_damaged_trace_gives_its_events_and_says_what_was_lost(tmp_path, form, call):
    data = in_blocks(form, trace_text(rows(1500), rank=0, world_size=1))
    (tmp_path / "rank0.json").write_bytes(data[: len(data) * 4 // 5])
    told = tracekit.load(tmp_path / "rank0.json")
    assert len(told["device_ops"]) > 500
    assert "packed-truncated" in [note.code for note in told.notes]
    done = call("doctor", "-q", "-j", 1, tmp_path)
    assert "cut off or damaged" in done.stdout
    assert call("inspect", tmp_path).exit_code == 0


def spoil(data, draw, trial):
    """The bytes cut off, with a bit flipped, or with a part replaced."""
    bad = bytearray(data)
    place = draw.randrange(len(bad))
    if trial % 3 == 0:
        del bad[place:]
    elif trial % 3 == 1:
        bad[place] ^= 1 << draw.randrange(8)
    else:
        bad[place : place + draw.randrange(40)] = draw.randbytes(draw.randrange(40))
    return bytes(bad)


KINDS = {
    "trace": lambda: trace_text(rows(20), rank=0, world_size=1),
    "snapshot": lambda: pickled(snapshot()),
    "log": lambda: b"step:1 - timing_s/gen:1.5 - timing_s/step:3.0\n" * 30,
}


def fuzz(path, form, kind, trials):
    data = KINDS[kind]()
    packed = zlib.compress(data, wbits=31) if form == "gz" else in_blocks(form, data)
    draw = random.Random(f"{form} {kind}")
    for trial in range(trials):
        path.write_bytes(spoil(packed, draw, trial))
        with contextlib.suppress(TraceFormatError):
            tracekit.load(path)


@pytest.mark.parametrize("form", [*PACKED, "gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_and_no_flipped_bit_raises_anything_but_a_format_error(path, form, kind):
    fuzz(path, form, kind, 12)


@pytest.mark.slow
@pytest.mark.parametrize("form", [*PACKED, "gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_many_cuts_and_flipped_bits_none_raises_anything_else(path, form, kind):
    fuzz(path, form, kind, 150)
