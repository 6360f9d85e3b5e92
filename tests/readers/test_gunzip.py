"""Inflating with every fault of the gzip layer reported: rule 1 of RECOVERY.md."""

import gzip
import random
import zlib

import pytest

from tracekit.readers import gunzip, unpack
from tracekit.readers.loss import DataLoss

TEXT = b"".join(b'{"ph": "X", "ts": %d.%03d},\n' % (i, i * 7 % 1000) for i in range(400))
HEADER = b"\x1f\x8b\x08%c\0\0\0\0\0\xff"


def read(path, data, *, careful=True, **options):
    """The text that a file with these bytes gives, and its faults."""
    path.write_bytes(data)
    losses: list[DataLoss] = []
    return b"".join(unpack.unpack_blocks(path, losses, careful=careful, **options)), losses


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def body_and_trailer(text):
    return gzip.compress(text)[10:]


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 2**20])
def test_a_whole_file_gives_its_text_in_blocks_of_any_size(path, careful, size):
    path.write_bytes(gzip.compress(TEXT))
    losses: list[DataLoss] = []
    pieces = list(unpack.unpack_blocks(path, losses, size=size, careful=careful))
    assert b"".join(pieces) == TEXT
    assert all(0 < len(piece) <= size for piece in pieces)
    assert losses == []


def test_plain_text_is_told_by_its_content_not_its_name(tmp_path):
    assert read(tmp_path / "a.gz", TEXT) == (TEXT, [])
    assert read(tmp_path / "a.json", gzip.compress(TEXT)) == (TEXT, [])


@pytest.mark.parametrize("data", [b"", b"\x1f", b"x", b"\x1fx"])
def test_very_short_files_are_plain(path, data):
    assert read(path, data) == (data, [])


@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        (0, b""),
        (gunzip.FLAG_EXTRA, b"\x03\x00abc"),
        (gunzip.FLAG_NAME, b"name\0"),
        (gunzip.FLAG_COMMENT, b"comment\0"),
        (gunzip.FLAG_HEADER_CRC, b"\x12\x34"),
        (gunzip.FLAG_NAME, b"n" * 200000 + b"\0"),
        (31, b"\x02\x00ab" + b"name\0" + b"comment\0" + b"\x12\x34"),
    ],
)
@pytest.mark.parametrize("careful", [False, True])
def test_optional_header_fields_are_passed_over(path, flags, extra, careful):
    data = HEADER % flags + extra + body_and_trailer(TEXT)
    assert read(path, data, careful=careful) == (TEXT, [])


@pytest.mark.parametrize("padding", [0, 1, 100000])
@pytest.mark.parametrize("careful", [False, True])
def test_members_follow_one_another_with_zero_padding(path, padding, careful):
    zeros = b"\0" * padding
    data = gzip.compress(TEXT) + zeros + gzip.compress(b"") + gzip.compress(b"second") + zeros
    assert read(path, data, careful=careful) == (TEXT + b"second", [])


def test_a_file_cut_anywhere_gives_the_text_before_the_cut(path):
    data = gzip.compress(TEXT)
    longest = 0
    for cut in range(2, len(data)):
        text, losses = read(path, data[:cut])
        assert TEXT.startswith(text)
        assert len(text) >= longest
        assert losses == [DataLoss("gzip-truncated", len(text), 1, 0)]
        longest = len(text)
    assert longest == len(TEXT)


def test_a_cut_delivers_what_zlib_can_decode_of_it(path):
    data = gzip.compress(TEXT)
    for cut in range(20, len(data) - 8, 97):
        decoder = zlib.decompressobj(31)
        assert read(path, data[:cut])[0] == decoder.decompress(data[:cut])


def test_a_wrong_checksum_is_reported_and_the_next_member_read(path):
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    expected = [DataLoss("gzip-crc", len(TEXT), 1, 0)]
    assert read(path, bytes(data) + gzip.compress(b"next")) == (TEXT + b"next", expected)


def test_a_wrong_length_is_a_checksum_fault(path):
    data = bytearray(gzip.compress(TEXT))
    data[-1] ^= 1
    assert read(path, bytes(data)) == (TEXT, [DataLoss("gzip-crc", len(TEXT), 1, 0)])


@pytest.mark.parametrize("rest", [b"x", b"\0\0x", b"{}", b"\x1fx"])
def test_other_bytes_after_a_member_are_damage(path, rest):
    expected = [DataLoss("gzip-damaged", len(TEXT), 1, 0)]
    assert read(path, gzip.compress(TEXT) + rest) == (TEXT, expected)


@pytest.mark.parametrize("header", [b"\x1f\x8b\x07" + b"\0" * 20, b"\x1f\x8b\x08\x80" + b"\0" * 20])
def test_an_unknown_method_or_flag_is_damage(path, header):
    assert read(path, header) == (b"", [DataLoss("gzip-damaged", 0, 1, 0)])


def test_text_before_a_broken_place_is_delivered(path):
    stored = zlib.compressobj(0, wbits=-15)  # stored blocks: the text lies bare in the file
    data = HEADER % 0 + stored.compress(TEXT) + stored.flush(zlib.Z_FULL_FLUSH)
    broken = data + b"\x07" + b"x" * 100  # a block of the reserved type
    assert read(path, broken) == (TEXT, [DataLoss("gzip-damaged", len(TEXT), 1, 0)])


def test_text_before_a_fault_does_not_depend_on_the_block_size(path):
    rng = random.Random(0)
    data = gzip.compress(TEXT)
    for _ in range(200):
        broken = bytearray(data)
        broken[rng.randrange(10, len(data))] ^= 1 << rng.randrange(8)
        whole = read(path, bytes(broken))
        assert whole == read(path, bytes(broken), size=rng.choice((1, 13, 300)))
        if not whole[1]:  # the flipped bit is in padding
            assert whole[0] == TEXT


@pytest.mark.skipif(gunzip.fast_zlib is None, reason="isal is not installed")
def test_the_fast_library_asks_for_care_at_any_fault(path):
    data = gzip.compress(TEXT)
    for broken in (data[:-1], data[:100], data[:-6] + b"\0" * 6, data + b"x", data[:50] + data[60:]):
        with pytest.raises(unpack.Unproven):
            read(path, broken, careful=False)


def test_a_bomb_comes_in_bounded_blocks(path):
    path.write_bytes(gzip.compress(b"\0" * 30_000_000))
    losses = []
    sizes = [len(piece) for piece in unpack.unpack_blocks(path, losses, size=2**16, careful=True)]
    assert 2**24 - 2**16 <= sum(sizes) <= 2**24
    assert max(sizes) <= 2**16
    assert [loss.kind for loss in losses] == ["packed-bomb"]


def test_progress_counts_the_bytes_of_the_file(path):
    noise = random.Random(0).randbytes(300_000)
    data = gzip.compress(noise)
    seen: list[int] = []
    assert read(path, data, careful=False, on_bytes=seen.append)[0] == noise
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == len(data)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(unpack.unpack_blocks(tmp_path / "none", []))
