"""Memory timelines of torch.profiler: both forms by hand, what is lost of damaged ones, what is none."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from timeline_files import CHANGES, LEVELS, OURS, TIMES, US, T, codes, held, put, read, rows, walked

from tracekit import load
from tracekit.model.errors import TracekitError
from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.model.trace import Want
from tracekit.pipeline.run import discover_sources
from tracekit.readers import READERS
from tracekit.readers.foreign import PICTURE
from tracekit.readers.loading import sniff as claimed
from tracekit.readers.torch_memory import timeline as memory_timeline

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def test_changes_by_hand(tmp_path):
    # Of one time and category only the sum is left: 1000 + 24, and nothing of a new version of the same kind.
    trace = read(put(tmp_path, CHANGES, "a.raw.json.gz"))
    assert rows(trace) == [
        (None, "parameter", 1024, 1024), (None, "optimizer_state", 300, 300),
        (T, "input", 500, 500),
        (T + 913, "parameter", -1000, 24), (T + 913, "unknown", 1000, 1000),
        (T + 9000, "input", -500, 0),
    ]  # fmt: skip
    assert trace.notes == ()
    assert trace.meta["absolute_time"]
    assert trace.meta["element_count"] == 9


def test_levels_by_hand_are_the_same_table_in_microseconds(tmp_path):
    trace = read(put(tmp_path, [TIMES, LEVELS]))
    assert rows(trace) == [
        (None, "parameter", 1024, 1024), (None, "optimizer_state", 300, 300),
        (US * 1000, "input", 500, 500),
        (US * 1000 + 1000, "parameter", -1000, 24), (US * 1000 + 1000, "unknown", 1000, 1000),
        (US * 1000 + 9000, "input", -500, 0),
    ]  # fmt: skip
    assert trace.notes == ()


def test_levels_without_anything_before_the_recording_begin_at_nothing(tmp_path):
    trace = read(put(tmp_path, [TIMES[1:], [[0] * 9, *LEVELS[2:]]]))
    assert rows(trace)[0] == (US * 1000 + 1000, "parameter", 24, 24)


def test_what_was_there_before_and_never_changed_has_no_time(tmp_path):
    for made in ([[-1], LEVELS[:1]], CHANGES[:3]):
        trace = read(put(tmp_path, made))
        assert [row[0] for row in rows(trace)] == [None, None]
        assert not trace.meta["absolute_time"]


@pytest.mark.parametrize("made", [[], [[], []]])
def test_a_timeline_of_a_device_that_did_nothing_is_empty(tmp_path, made):
    trace = read(put(tmp_path, made))
    assert rows(trace) == []
    assert codes(trace) == {"timeline-empty"}


def test_categories_and_actions_of_later_versions_are_unknown_and_counted(tmp_path):
    trace = read(put(tmp_path, [*CHANGES, [T + 9001, 2, 7, 8], [T + 9002, 5, -7, 99]]))
    assert rows(trace)[-2:] == [(T + 9001, "unknown", 7, 1007), (T + 9002, "unknown", -7, 1000)]
    assert [(n.code, n.count) for n in trace.notes] == [("not-understood", 2)]


def test_only_what_is_wanted_is_given(tmp_path):
    path = put(tmp_path, CHANGES)
    assert not read(path, Want(frozenset({"host_ops"}))).tables


def without_repeats(levels):
    """Only where something changed."""
    kept, last = {}, (0,) * 8
    for time, level in levels.items():
        if level != last:
            kept[time] = last = level
    return kept


def test_both_forms_of_one_profile_agree_with_each_other_and_with_a_walk_over_the_file():
    raw, levels = read(OURS / "tl.raw.json.gz"), read(OURS / "tl.json.gz")
    by_raw, by_levels = held("tl.raw.json.gz"), held("tl.json.gz")
    assert by_raw == by_levels
    assert without_repeats(walked(raw)) == without_repeats(by_raw)
    assert walked(levels) == without_repeats(by_levels)
    for trace in (raw, levels):
        levels_of = walked(trace)
        assert max(map(sum, levels_of.values())) == 29_599_912
        assert sum(levels_of[None]) == 15_851_640
        assert sum(list(levels_of.values())[-1]) == 21_141_656


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_the_trace_of_the_same_profile_counts_all_but_what_was_there_before():
    memory = load(Path(REAL, "memory", "CPU_torch2.13", "trace.json.gz"))["memory_ops"]
    assert int(memory["allocated_bytes"].max()) == 29_599_912 - 15_851_640


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_a_real_gpu_timeline():
    path = Path(REAL, "memory", "facebookresearch+HolisticTraceAnalysis", "memory_timeline.raw.gz")
    trace = load(path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    level, sums, total = Counter(), {}, 0
    for ns, _, size, category in data:
        level[category] += size
        total += size
        sums[ns] = total
    assert max(sums.values()) == 3_082_832_104
    assert trace["memory_categories"]["change_bytes"].cumsum().max() >= max(sums.values())
    last = trace["memory_categories"].groupby("category", observed=True)["level_bytes"].last()
    assert {CATEGORIES.index(name): int(size) for name, size in last.items() if size} == +level
    assert (trace.meta["element_count"], trace.notes) == (16_845, ())


# what is claimed


def claims(data):
    return [r.name for r in READERS if r.claims(data[: 2**16])]


def test_timelines_are_told_by_their_numbers_whatever_they_are_called(tmp_path):
    long_times = [T // 1000 + i for i in range(9_000)]
    for made in (
        CHANGES, CHANGES[:3], CHANGES[:1], CHANGES[3:], [TIMES, LEVELS], [[], []], [[-1], LEVELS[:1]],
        [long_times, [[0] * 9] * 9_000],
    ):  # fmt: skip
        for text in (json.dumps(made), json.dumps(made, indent=1), json.dumps(made, separators=(",", ":"))):  # fmt: skip
            assert claims(text.encode()) == ["memory_timeline"], text[:100]
    assert claimed(put(tmp_path, CHANGES, "odd.gz")).reader == "memory_timeline"


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[[", "[[1", "[]", "[[]]", "{}", "[[1, 2], [3, 4]]", "[[1, 2, 3, 4], [5, 6, 7, 8]]", "[[10, 2, 30, 4]]",
        "[[0, 1], [[1, 2], [3, 4]]]", "[[1, 2, 3], [[0, 1, 2, 3, 4, 5, 6, 7]]]", "[[5, 3, 2, 1, 9, 8, 7]]",
        "[[1.5, 2], [[0, 1, 2, 3, 4, 5, 6, 7, 8]]]", '[["a", "b"], []]', '[{"ph": "X", "name": "a", "ts": 1}]',
        '{"schema": "capture/1"}', '{"step": 1, "allocated_gb": 2}', "[[-1, 2, 5, 0]]", "[[-1, 1, 5, 8]]", "[[true, 1, 5, 0]]",
        "[" * 1000, "[[" + "9" * 10**5, "[[" + " " * 10**5 + "]]", "1,2,3\n4,5,6\n",
    ],
)  # fmt: skip
def test_other_lists_of_numbers_are_none(text):
    assert not memory_timeline.sniff(text.encode()[: 2**16])


def test_a_directory_gives_its_timelines_and_leaves_other_files_aside(tmp_path):
    put(tmp_path, CHANGES, "rank3_step2_memory.raw.json.gz")
    put(tmp_path, [TIMES, LEVELS], "rank4_step2_memory.json.gz")
    put(tmp_path, [[1, 2], [3, 4]], "boxes.json")
    put(tmp_path, {"lr": 1}, "config.json")
    page = b"<html>\n<head><meta charset=\"utf-8\" /><title>GPU Memory Timeline HTML</title></head>\n<body>\n  <img src='data:image/png;base64,AA=='>"
    put(tmp_path, page, "rank3_memory.html")
    found = discover_sources(tmp_path)
    assert [(s.reader, s.tool, s.rank, s.step) for s in found.sources] == [
        ("memory_timeline", "torch_memory", 3, 2), ("memory_timeline", "torch_memory", 4, 2)
    ]  # fmt: skip
    reasons = {i.path.name: i.reason for i in found.ignored}
    assert reasons["rank3_memory.html"] == PICTURE
    assert set(reasons) == {"boxes.json", "config.json", "rank3_memory.html"}


def test_load_says_what_a_file_is_that_it_does_not_read(tmp_path):
    with pytest.raises(TracekitError, match="not a format"):
        load(put(tmp_path, [[1, 2], [3, 4]]))
