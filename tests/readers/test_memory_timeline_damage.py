"""Damaged memory timelines: all that stands whole before the damage is read, and the rest is told."""

import gzip
import json
import random
from collections import Counter

import pytest
from timeline_files import CHANGES, LEVELS, OURS, PARAMETER, TIMES, US, T, codes, put, read, rows, walked

from tracekit.model.errors import TraceFormatError
from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.readers.torch_memory import timeline as memory_timeline
from tracekit.readers.torch_memory.timeline import ArrayText


def whole_rows(data):
    """How many changes stand whole in the beginning of a raw timeline."""
    return data.count(b"]") - (data.rstrip().endswith(b"]]"))


def test_of_a_raw_timeline_that_was_cut_off_every_whole_change_is_read(tmp_path):
    data = gzip.decompress((OURS / "tl.raw.json.gz").read_bytes())
    every = json.loads(data)
    for at in (*range(20, len(data), len(data) // 40), len(data) - 2, len(data) - 1):
        part = data[:at]
        count = whole_rows(part)
        path = put(tmp_path, part)
        if not count:
            with pytest.raises(TraceFormatError, match="nothing whole"):
                read(path)
            continue
        trace = read(path)
        assert trace.meta["element_count"] == count
        assert codes(trace) == {"truncated"}
        total = Counter()
        for _, _, size, category in every[:count]:
            total[CATEGORIES[category]] += size
        last = trace["memory_categories"].groupby("category", observed=True)["level_bytes"].last()
        assert {name: int(size) for name, size in last.items() if size} == +total


def test_of_levels_that_were_cut_off_every_whole_row_is_read_if_all_times_are_there(tmp_path):
    data = gzip.decompress((OURS / "tl.json.gz").read_bytes())
    whole = rows(read(OURS / "tl.json.gz"))
    times, levels = json.loads(data)
    begin = data.index(b"]") + 1
    for at in (*range(20, len(data), len(data) // 40), len(data) - 2, len(data) - 1):
        path = put(tmp_path, data[:at])
        count = data[begin:at].count(b"]") - data[:at].endswith(b"]]")
        if count < 1:
            with pytest.raises(TraceFormatError, match="truncated before the first level"):
                read(path)
            continue
        trace = read(path)
        assert trace.meta["element_count"] == count
        assert codes(trace) == {"truncated"} | ({"no-level"} if count < len(times) else set())
        mine = rows(trace)
        assert mine == whole[: len(mine)]
        assert sum(change for _, _, change, _ in mine) == sum(levels[count - 1])


def test_gzip_that_was_cut_off_gives_what_it_holds(tmp_path):
    data = (OURS / "tl.raw.json.gz").read_bytes()
    path = tmp_path / "cut.raw.json.gz"
    counts = []
    for at in (200, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:at])
        trace = read(path)
        counts.append(trace.meta["element_count"])
        assert "gzip-truncated" in codes(trace)
    assert counts == sorted(counts)
    assert counts[-1] == 879
    path.write_bytes(data[:-8] + bytes(4) + data[-4:])
    assert codes(read(path)) == {"gzip-crc"}


def test_times_without_a_level_are_counted(tmp_path):
    trace = read(put(tmp_path, [[*TIMES, US + 10, US + 11], LEVELS]))
    assert len(rows(trace)) == 6
    assert [(n.code, n.count) for n in trace.notes][-1] == ("no-level", 2)
    trace = read(put(tmp_path, [TIMES[:3], LEVELS]))
    assert len(rows(trace)) == 5
    assert codes(trace) == {"damaged"}


BEFORE = json.dumps(CHANGES)[:-1].encode()


@pytest.mark.parametrize(
    "odd",
    [
        b"[%s, 2, 5, 0]" % (b"9" * 10**6), b"[%d, 2, %s, 0]" % (T * 2, b"1" * 10**6), b"[" * 10**5, b"[%d, 2, 5.0, 0]" % (T * 2),
        b"[%d.0, 2, 5, 0]" % (T * 2), b"[%d, 2, true, 0]" % (T * 2), b"[%d, 2, NaN, 0]" % (T * 2), b"[%d, 2, Infinity, 0]" % (T * 2),
        b"[%d, 2, 5, 100]" % (T * 2), b"[%d, 2, 5, -1]" % (T * 2), b"[%d, 2, 5]" % (T * 2), b"[%d, 2, 5, 0, 0]" % (T * 2),
        b"[%d, 2, 1e3, 0]" % (T * 2), b"[%d, 2, 05, 0]" % (T * 2), b'["a", 2, 5, 0]', b"null", b"{}", b"\xff\xfe", b"" , b" " * 10**5,
        b"[%d, 2, 5, 0]" % (T - 1), b"[-1, 1, 5, 0]", b"[-2, 1, 5, 0]", b"[%d, 2, %d, 0]" % (T * 2, 2**50), b"[%d, 2, -%d, 0]" % (T * 2, 2**63),
        b"[%d, 2, 5, 0]" % 2**62, b"[9999999999999999999, 2, 5, 0]",
    ],
)  # fmt: skip
def test_a_change_that_is_none_ends_the_reading_with_all_before_it(tmp_path, odd):
    trace = read(put(tmp_path, BEFORE + b", " + odd + b", [%d, 2, 5, 0]]" % (T * 2)))
    assert rows(trace) == rows(read(put(tmp_path, CHANGES)))
    assert codes(trace) == {"damaged"}


def test_changes_that_add_up_to_more_than_any_memory_end_the_reading(tmp_path):
    most = 2**50 - 2000
    trace = read(put(tmp_path, [*CHANGES, *([T * 2, 2, most, PARAMETER] for _ in range(20_000))]))
    assert rows(trace)[-1] == (T * 2, "parameter", most, most + 24)
    assert codes(trace) == {"damaged"}


@pytest.mark.parametrize(
    "odd",
    [
        [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, 2**50], [0, 1.5, 0, 0, 0, 0, 0, 0, 0],
        [0, True, 0, 0, 0, 0, 0, 0, 0], [0, None, 0, 0, 0, 0, 0, 0, 0], [0, float("nan"), 0, 0, 0, 0, 0, 0, 0], [0, -(2**63), 0, 0, 0, 0, 0, 0, 0], [], 5,
    ],
)  # fmt: skip
def test_a_level_that_is_none_ends_the_reading_with_all_before_it(tmp_path, odd):
    trace = read(put(tmp_path, [[*TIMES, US + 10, US + 11], [*LEVELS, odd, LEVELS[0]]]))
    assert len(rows(trace)) == 6
    assert codes(trace) == {"damaged", "no-level"}


def test_levels_below_nothing_are_given_as_they_are(tmp_path):
    trace = read(put(tmp_path, [TIMES[1:3], [[0, -5, 0, 0, 0, 0, 0, 0, 0], [0] * 9]]))
    assert [row[2:] for row in rows(trace)] == [(-5, -5), (5, 0)]


def test_times_that_go_back_end_the_reading(tmp_path):
    trace = read(put(tmp_path, [[*TIMES, US, US + 11], [*LEVELS, *LEVELS[:2]]]))
    assert len(rows(trace)) == 6
    assert codes(trace) == {"damaged", "no-level"}


def test_more_than_the_cap_is_left_out_and_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_timeline, "MAX_CHANGES", 5)
    raw = read(put(tmp_path, CHANGES))
    assert raw.meta["element_count"] == 5
    assert codes(raw) == {"timeline-cut"}
    levels = read(put(tmp_path, [TIMES, LEVELS]))
    assert rows(levels)[-1] == (US * 1000 + 1000, "unknown", 1000, 1000)
    with pytest.raises(TraceFormatError, match="over 5 times"):
        read(put(tmp_path, [[*TIMES, US + 9, US + 9], LEVELS]))


@pytest.mark.parametrize("name", ["tl.raw.json.gz", "tl.json.gz"])
def test_how_the_text_comes_in_pieces_does_not_matter(name):
    data = gzip.decompress((OURS / name).read_bytes())
    whole = memory_timeline._make_categories_table(memory_timeline._read_timeline(ArrayText(iter([data])), OURS))
    for size in (1, 7, 4096):
        pieces = (data[i : i + size] for i in range(0, len(data), size))
        found = memory_timeline._read_timeline(ArrayText(pieces), OURS)
        assert not found.ended
        assert memory_timeline._make_categories_table(found).frame().equals(whole.frame())


def test_no_file_and_no_timeline_are_errors_that_say_so(tmp_path):
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read(tmp_path / "absent.json")
    for text in (b"", b"x", b"{}", b"[1]", b'[{"a": 1}]', b"\x00" * 100):
        with pytest.raises(TraceFormatError, match="no memory timeline"):
            read(put(tmp_path, text))


def damaged(data, chance):
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at, length = chance.randrange(len(made)), chance.choice((1, 1, 2, 8, 60))
        kind = chance.randrange(6)
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at : at + length] = chance.randbytes(length)
        elif kind == 2:
            del made[at : at + length]
        elif kind == 3:
            made[at:at] = made[chance.randrange(len(made)) :][:length]
        elif kind == 4:
            made[at] = chance.choice(b"[], -0123456789eE.\n")
        else:
            made[at:at] = chance.choice((b"9" * 30, b"-", b"[[", b"]]", b"null", b" " * 40, b"1e9"))
    return bytes(made)


def survives(tmp_path, cases, seed):
    chance = random.Random(seed)
    files = [(OURS / name).read_bytes() for name in ("tl.raw.json.gz", "tl.json.gz")]
    files += [gzip.decompress(data)[:5000] for data in files]
    files += [json.dumps(CHANGES).encode(), json.dumps([TIMES, LEVELS]).encode()]
    path, seen = tmp_path / "m.json", Counter()
    for _ in range(cases):
        path.write_bytes(damaged(chance.choice(files), chance))
        try:
            trace = read(path)
        except TraceFormatError:
            seen["refused"] += 1
            continue
        seen["noted" if trace.notes else "read"] += 1
        levels = walked(trace)  # asserts that every level follows from the changes
        assert all(abs(level) < 2**50 for each in levels.values() for level in each)
    assert len(seen) == 3, seen


def test_damaged_copies_give_a_trace_or_an_error(tmp_path):
    survives(tmp_path, 100, seed=5)


@pytest.mark.slow
def test_many_damaged_copies_give_a_trace_or_an_error(tmp_path):
    survives(tmp_path, 2_000, seed=6)
