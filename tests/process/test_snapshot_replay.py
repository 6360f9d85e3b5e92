"""The history of an allocator replayed: levels and what is in use, against the model that made it."""

from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_builder import Allocator, stack
from snapshot_traces import MIB, frame_of, loaded

from tracekit.model.tables.arrays import repeat_number, repeat_text, select_all_rows
from tracekit.model.trace import Trace
from tracekit.process.memory import replay as snapshot_replay
from tracekit.process.memory.calls import find_allocation_retries, find_needless_segments
from tracekit.process.memory.live import list_live_memory, sum_live_memory_by_site
from tracekit.process.memory.replay import NEVER, has_allocator_segments, is_synthetic_segments, replay_all_devices
from tracekit.process.memory.space import (
    list_memory_segments,
    measure_free_space_at,
    measure_free_space_at_end,
    round_up_requests,
)
from tracekit.process.slice_trace import slice_trace

SIZES = (1, 511, 512, 70_000, 900_000, 2 * MIB, 4 * MIB, 6 * MIB, 14 * MIB)
"""Whatever a large one leaves of its segment is split off: pieces by addresses are those of blocks."""


def read(tmp_path_factory, *allocators):
    return loaded(tmp_path_factory.mktemp("snapshot"), *allocators)


@st.composite
def programs(draw, lengths=(None, None, 7, 30)):
    """An allocator after a program of some allocations and frees, its history cleared or bounded on the way."""
    allocator = Allocator(most=draw(st.sampled_from(lengths)))
    held = []
    for _ in range(draw(st.integers(1, 40))):
        what = draw(st.integers(0, 19))
        if what < 11 or not held:
            size = draw(st.sampled_from(SIZES))
            held.append(allocator.alloc(size, stack(f"f{size % 7}", "main"), stream=draw(st.sampled_from([0, 0, 5]))))  # fmt: skip
        elif what < 18:
            allocator.free(held.pop(draw(st.integers(0, len(held) - 1))))
        elif what == 18:
            allocator.empty_cache(stack("empty"))
        else:
            allocator.clear_history()
    return allocator


def check_levels(trace, allocator):
    for one in trace.derived(replay_all_devices):
        truth = np.array(allocator.levels, np.int64).reshape(-1, 3)
        assert one.requested.tolist() == truth[:, 0].tolist()
        assert one.reserved.tolist() == truth[:, 2].tolist()
        assert one.get_requested_bytes(-1) == one.base


def check_live(trace):
    for one in trace.derived(replay_all_devices):
        for at in {-1, (len(one.rows) - 1) // 2, len(one.rows) - 1}:
            found = list_live_memory(trace, one, at)
            assert found.total == one.get_requested_bytes(at) == sum_live_memory_by_site(found)["size_bytes"].sum()


def check_free_pieces(trace):
    for one in trace.derived(replay_all_devices):
        by_blocks = frame_of(measure_free_space_at_end(trace, one)).drop(columns="internal_bytes")
        by_address = frame_of(measure_free_space_at(trace, one, list_memory_segments(trace, one), len(one.rows) - 1))
        keys = ["pool", "stream", "kind"]
        pd.testing.assert_frame_equal(
            by_blocks.sort_values(keys, ignore_index=True),
            by_address.sort_values(keys, ignore_index=True)[list(by_blocks)],
            check_dtype=False,
        )


def check_earlier(tmp_path_factory, first, more):
    """Free pieces at an earlier time are those of a snapshot taken then."""
    first.clear_history()
    early = read(tmp_path_factory, first)
    held = [first.alloc(size) for size in more]
    for address in held[::2]:
        first.free(address)
    first.empty_cache()
    late = read(tmp_path_factory, first)
    for then, one in zip(early.derived(replay_all_devices), late.derived(replay_all_devices), strict=True):
        keys = ["pool", "stream", "kind"]
        want = frame_of(measure_free_space_at_end(early, then)).drop(columns="internal_bytes").sort_values(keys)
        have = frame_of(measure_free_space_at(late, one, list_memory_segments(late, one), -1)).sort_values(keys)
        assert want.to_dict("list") == have[list(want)].to_dict("list")


@pytest.mark.slow
@given(allocator=programs())
@settings(max_examples=80, deadline=None)
def test_any_history_gives_levels_and_pieces_as_they_were(tmp_path_factory, allocator):
    trace = read(tmp_path_factory, allocator)
    check_levels(trace, allocator)
    check_live(trace)
    check_free_pieces(trace)


@pytest.mark.slow
@given(first=programs((None,)), more=st.lists(st.sampled_from(SIZES), max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_history_gives_the_free_pieces_of_an_earlier_time(tmp_path_factory, first, more):
    check_earlier(tmp_path_factory, first, more)


def program(seed, most=None):
    """An allocator after 60 actions; the history begins anew after a third of them."""
    random, allocator, held = Random(seed), Allocator(most=most), []
    for at in range(60):
        if not held or random.random() < 0.6:
            size = random.choice(SIZES)
            frames = stack(f"f{size % 7}", "main")
            held.append(allocator.alloc(size, frames, stream=random.choice((0, 0, 5))))
        else:
            allocator.free(held.pop(random.randrange(len(held))))
        if at == 20:
            allocator.clear_history()
            allocator.empty_cache()
    return allocator


@pytest.mark.parametrize(("seed", "most"), [(0, None), (1, 25)])
def test_levels_and_pieces_are_those_of_the_allocator(tmp_path, seed, most):
    allocator = program(seed, most)
    trace = loaded(tmp_path, allocator)
    assert trace.derived(replay_all_devices)[0].base > 0
    check_levels(trace, allocator)
    check_live(trace)
    check_free_pieces(trace)


def test_free_pieces_at_an_earlier_time_are_those_of_a_snapshot_taken_then(tmp_path_factory):
    check_earlier(tmp_path_factory, program(2), SIZES)


def test_pieces_know_their_entries_and_blocks(tmp_path):
    allocator = Allocator()
    old, gone = allocator.alloc(4096), allocator.alloc(2048)
    allocator.clear_history()
    allocator.alloc(1024)  # entry 0
    allocator.free(gone)  # entries 1 and 2
    trace = loaded(tmp_path, allocator)
    (one,) = trace.derived(replay_all_devices)
    by_size = {int(s): i for i, s in enumerate(one.pieces.size)}
    assert one.base == 4096 + 2048
    assert one.requested.tolist() == [7168, 7168, 5120]
    new, freed, stays = by_size[1024], by_size[2048], by_size[4096]
    assert (one.pieces.born[new], one.pieces.died[new], one.pieces.row[new]) == (0, NEVER, 0)
    assert (one.pieces.born[freed], one.pieces.died[freed], one.pieces.freed[freed]) == (-1, 2, 2)
    assert (one.pieces.row[freed], one.pieces.block[freed]) == (-1, -1)
    assert (one.pieces.freed[new], one.pieces.freed[stays]) == (-1, -1)
    in_use = trace["blocks"]["requested_bytes"].tolist()
    assert one.pieces.block[[new, stays]].tolist() == [in_use.index(1024), in_use.index(4096)]
    assert (one.pieces.born[stays], one.pieces.row[stays]) == (-1, -1)
    assert one.pieces.address[stays] == old
    assert one.peak() == 0
    assert one.pieces.live(2).tolist() == sorted([new, stays])


def test_the_highest_level_may_lie_before_the_history(tmp_path):
    allocator = Allocator()
    block = allocator.alloc(4096)
    allocator.clear_history()
    allocator.free(block)
    allocator.alloc(512)
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)
    # free_requested changes nothing: the level before the history is that of its first entry.
    assert (one.base, one.peak(), one.requested.tolist()) == (4096, 0, [4096, 0, 512])


def test_a_block_that_waits_for_another_stream_counts_until_it_is_free(tmp_path):
    allocator = Allocator()
    block = allocator.alloc(4096)
    allocator.free(block, wait=True)
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)
    assert one.requested.tolist()[-1] == 4096
    allocator.synchronize()
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)
    assert one.requested.tolist()[-1] == 0


def test_entries_without_a_size_are_left_out_and_counted(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096)
    allocator.alloc(8192)  # the third entry
    trace = loaded(tmp_path, allocator)
    history = trace["allocations"].copy()
    history.loc[2, "size_bytes"] = pd.NA
    (one,) = Trace(trace.source, {**trace.tables, "allocations": history}).derived(replay_all_devices)
    assert one.unsound == 1
    # Its block is still there at the end: it counts as allocated before the history.
    assert one.requested.tolist() == [8192, 12288, 12288]


def test_a_free_ends_what_was_allocated_whatever_size_it_names(tmp_path):
    allocator = Allocator()
    allocator.free(allocator.alloc(4096))
    trace = loaded(tmp_path, allocator)
    history = trace["allocations"].copy()
    history.loc[history["action"] == "free_completed", "size_bytes"] = 5000
    (one,) = Trace(trace.source, {**trace.tables, "allocations": history}).derived(replay_all_devices)
    assert one.requested.tolist() == [0, 4096, 4096, 0]


def test_blocks_that_overlap_are_counted_once(tmp_path):
    allocator = Allocator()
    first, second = allocator.alloc(4 * MIB), allocator.alloc(4 * MIB)
    trace = loaded(tmp_path, allocator)
    blocks = trace["blocks"].copy()
    history = trace["allocations"].copy()
    # The second block now lies upon the second half of the first.
    for frame in (blocks, history):
        frame["address"] = frame["address"].where(frame["address"] != second, first + 2 * MIB)
    odd = Trace(trace.source, {**trace.tables, "allocations": history, "blocks": blocks})
    (one,) = odd.derived(replay_all_devices)
    row = measure_free_space_at(odd, one, list_memory_segments(odd, one), len(one.rows) - 1)
    assert len(row["free_bytes"]) == 1
    assert (row["reserved_bytes"][0], row["free_bytes"][0]) == (20 * MIB, 14 * MIB)
    assert row["largest_free_bytes"][0] == 14 * MIB


@pytest.mark.parametrize(("steps", "kept"), [({1}, 1), ({2, 3}, 0), (None, 1)])
def test_a_snapshot_is_cut_whole(tmp_path, steps, kept):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator, step=1)
    chosen = None if steps is None else frozenset(steps)
    assert (slice_trace(trace, chosen, None) is trace) == bool(kept)
    nameless = loaded(tmp_path, allocator)
    assert slice_trace(nameless, chosen, None) is nameless


def test_sums_beyond_64_bits_give_no_replay(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    history = trace["allocations"].iloc[np.arange(8194) % 2].reset_index(drop=True)
    history["size_bytes"] = pd.array([2**50 - 1] * len(history), dtype="Int64")
    huge = Trace(trace.source, {**trace.tables, "allocations": history})
    assert huge.derived(replay_all_devices) == ()


def test_without_times_entries_are_in_order_and_positions_stand_for_times(tmp_path):
    allocator = Allocator()
    allocator.free(allocator.alloc(4096))
    trace = loaded(tmp_path, allocator)
    history = trace["allocations"].assign(ts_ns=pd.array([pd.NA] * 4, dtype="Int64"))
    (one,) = Trace(trace.source, {**trace.tables, "allocations": history}).derived(replay_all_devices)
    assert not one.timed
    assert one.ts_ns.tolist() == [0, 1, 2, 3]


def test_devices_are_replayed_apart(tmp_path):
    first, second = Allocator(0), Allocator(1)
    first.alloc(1024)
    second.alloc(2048)
    second.alloc(4096)
    found = {one.device: one for one in loaded(tmp_path, first, second).derived(replay_all_devices)}
    assert {device: int(one.requested[-1]) for device, one in found.items()} == {0: 1024, 1: 6144}


def test_requests_are_rounded_up_as_the_allocator_does():
    assert round_up_requests(np.array([0, 1, 512, 513])).tolist() == [512, 512, 512, 1024]


def test_a_segment_got_although_as_much_was_free_is_needless(tmp_path):
    allocator = Allocator()
    blocks = [allocator.alloc(4 * MIB) for _ in range(5)]  # a segment of 20 MiB
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    allocator.alloc(8 * MIB + 1)  # 8 MiB are free: not enough
    trace = loaded(tmp_path, allocator)
    (one,) = trace.derived(replay_all_devices)
    assert find_needless_segments(trace, one, list_memory_segments(trace, one)).tolist() == []
    allocator = Allocator()
    blocks = [allocator.alloc(4 * MIB) for _ in range(5)]
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    allocator.alloc(8 * MIB, stream=5)  # another stream has nothing free
    allocator.alloc(8 * MIB)
    trace = loaded(tmp_path, allocator)
    (one,) = trace.derived(replay_all_devices)
    got = one.during("segment_alloc")
    assert find_needless_segments(trace, one, list_memory_segments(trace, one)).tolist() == [got[-1]]


def test_a_retry_is_told_from_a_cache_that_the_program_emptied(tmp_path):
    retried = Allocator(capacity=20 * MIB)
    retried.free(retried.alloc(12 * MIB, stack("a")))
    retried.alloc(14 * MIB, stack("b"))  # gives 12 back, gets 14
    emptied = Allocator(1)
    emptied.free(emptied.alloc(12 * MIB, stack("a")))
    emptied.empty_cache(stack("c"))
    emptied.alloc(14 * MIB, stack("b"))
    trace = loaded(tmp_path, retried, emptied)
    found = {one.device: len(find_allocation_retries(trace, one)) for one in trace.derived(replay_all_devices)}
    assert found == {0: 1, 1: 0}


def with_table(trace, name, **columns):
    """The trace with columns of one table replaced."""
    frame = trace[name].assign(**columns)
    return Trace(trace.source, {**trace.tables, name: frame})


def test_what_was_reserved_before_is_what_the_history_gives_back(tmp_path):
    allocator = Allocator()
    for address in [allocator.alloc(4096), allocator.alloc(4 * MIB)]:
        allocator.free(address)
    allocator.clear_history()
    allocator.empty_cache()  # gives back 2 MiB, then 20 MiB
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)
    assert one.reserved.tolist() == [20 * MIB, 0]
    assert one.reserved_before == 22 * MIB


def test_less_than_nothing_reserved_is_a_contradiction_and_says_nothing(tmp_path):
    """Got 2 and 20 MiB: with 2 MiB at the end there were -18 MiB after the first."""
    allocator = Allocator()
    allocator.alloc(4096)
    allocator.alloc(4 * MIB)
    trace = loaded(tmp_path, allocator)
    (one,) = trace.derived(replay_all_devices)
    assert one.reserved.tolist() == [2 * MIB, 2 * MIB, 22 * MIB, 22 * MIB]
    assert one.reserved_before == 0
    sizes = pd.array([MIB, MIB], "Int64")
    (one,) = with_table(trace, "memory_segments", size_bytes=sizes).derived(replay_all_devices)
    assert one.reserved is None
    assert one.reserved_before == 0


def test_a_segment_of_unknown_size_is_unsound_and_was_there_before(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    (one,) = with_table(trace, "allocations", size_bytes=pd.array([pd.NA, 4096], "Int64")).derived(replay_all_devices)
    assert (one.unsound, one.size.tolist()) == (1, [0, 4096])
    assert (one.reserved.tolist(), one.reserved_before) == ([2 * MIB, 2 * MIB], 2 * MIB)


@pytest.mark.parametrize(("size", "unsound"), [(0, 0), (2**50 - 1, 0), (2**50, 1), (-1, 1)])
def test_no_bytes_are_a_size_and_a_pebibyte_is_none(tmp_path, size, unsound):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    sizes = pd.array([2 * MIB, size], "Int64")
    (one,) = with_table(trace, "allocations", size_bytes=sizes).derived(replay_all_devices)
    assert one.unsound == unsound


def test_a_block_in_use_where_the_history_ends_with_a_free_was_there_before(tmp_path):
    allocator = Allocator()
    allocator.free(allocator.alloc(4096))
    allocator.alloc(4096)  # at the same address, but of unknown size
    trace = loaded(tmp_path, allocator)
    sizes = pd.array([2 * MIB, 4096, 4096, 4096, pd.NA], "Int64")
    (one,) = with_table(trace, "allocations", size_bytes=sizes).derived(replay_all_devices)
    assert (one.base, one.requested.tolist()) == (4096, [4096, 8192, 8192, 4096, 4096])


def test_the_level_before_a_history_of_one_free_is_its_peak(tmp_path):
    allocator = Allocator()
    allocator.free(allocator.alloc(4096), wait=True)
    allocator.clear_history()
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)  # no history at all
    assert (one.peak(), one.get_requested_bytes(-1), one.reserved_before) == (-1, 4096, 0)
    allocator.synchronize()
    (one,) = loaded(tmp_path, allocator).derived(replay_all_devices)
    assert (one.peak(), one.get_requested_bytes(-1), one.get_requested_bytes(0)) == (-1, 4096, 0)
    assert one.pieces.block.tolist() == [-1]


@pytest.mark.parametrize(
    ("times", "timed", "expected"), [([50, 30, 80], True, [50, 50, 80]), ([50, None, 80], False, [0, 1, 2])]
)
def test_times_never_go_back_and_are_all_known_or_none(tmp_path, times, timed, expected):
    allocator = Allocator()
    allocator.alloc(4096)
    allocator.alloc(4096)
    trace = with_table(loaded(tmp_path, allocator), "allocations", ts_ns=pd.array(times, "Int64"))
    (one,) = trace.derived(replay_all_devices)
    assert (one.timed, one.ts_ns.tolist()) == (timed, expected)


def test_bytes_of_history_and_blocks_are_bounded_together(tmp_path):
    """2,100 entries and 2,100 blocks of a pebibyte less one: each below 2**62 = 4,096 pebibytes, both beyond."""
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    most = pd.array([2**50 - 1] * 2100, "Int64")
    tables = {name: trace[name].iloc[[0] * 2100].reset_index(drop=True) for name in ("allocations", "blocks")}
    history = tables["allocations"].assign(size_bytes=most)
    blocks = tables["blocks"].assign(requested_bytes=most, state=trace["blocks"]["state"].iloc[[0] * 2100].array)
    few = Trace(trace.source, {**trace.tables, "allocations": history})
    assert len(few.derived(replay_all_devices)) == 1
    both = Trace(trace.source, {**trace.tables, "allocations": history, "blocks": blocks})
    assert both.derived(replay_all_devices) == ()


def test_of_many_devices_those_with_the_longest_histories_are_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_replay, "MAX_DEVICES", 1)
    first, second = Allocator(0), Allocator(1)
    first.alloc(1024)
    second.alloc(2048)
    second.alloc(4096)
    (one,) = loaded(tmp_path, first, second).derived(replay_all_devices)
    assert one.device == 1


def test_only_what_tells_nothing_of_an_allocator_is_made_up(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    names = ("allocated_bytes", "active_bytes", "kind")
    segment = {name: trace.array("memory_segments", name) for name in names}
    partly = {**segment, "active_bytes": repeat_number(None, 1)}
    unknown = {**partly, "allocated_bytes": repeat_number(None, 1), "kind": repeat_text(None, 1)}
    none = select_all_rows(unknown, slice(0))
    assert [is_synthetic_segments(s) for s in (none, segment, partly, unknown)] == [False, False, False, True]


def test_segments_that_are_made_up_or_not_recorded_are_no_allocators(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    segment = trace["memory_segments"]
    unknown = {name: segment[name].mask([True]) for name in ("allocated_bytes", "active_bytes", "kind")}
    made_up = with_table(trace, "memory_segments", **unknown)
    tables = {name: frame for name, frame in trace.tables.items() if name != "memory_segments"}
    found = [has_allocator_segments(one) for one in (trace, made_up, Trace(trace.source, tables))]
    assert found == [True, False, False]


def test_memories_without_a_device_are_apart_and_all_come_in_order(tmp_path):
    """Device 1 is recorded first, then device 0; the third and fourth have no number, one being the host's."""
    allocators = [Allocator(device) for device in range(4)]
    for number, allocator in enumerate(allocators, 1):
        allocator.alloc(1024 * number)
    trace = loaded(tmp_path, *allocators)
    changed = {}
    for name in ("allocations", "blocks", "memory_segments"):
        frame = trace[name]
        order = frame["device"].map({1: 0, 0: 1, 2: 2, 3: 3}).argsort(kind="stable")
        frame = frame.iloc[order].reset_index(drop=True)
        memory = np.where(frame["device"] == 3, "host", "device")
        frame["memory"] = pd.Categorical(memory, ["device", "host"])
        frame["device"] = frame["device"].mask(frame["device"] > 1)
        changed[name] = frame
    found = Trace(trace.source, {**trace.tables, **changed}).derived(replay_all_devices)
    assert [(one.memory, one.device, int(one.requested[-1])) for one in found] == [
        ("device", 0, 1024), ("device", 1, 2048), ("device", None, 3072), ("host", None, 4096),
    ]  # fmt: skip


def test_a_block_is_that_of_the_last_that_was_allocated_at_its_address(tmp_path):
    """The first at this address was freed: the block in use there is not its own."""
    allocator = Allocator()
    address = allocator.alloc(4096)
    allocator.free(address)
    assert allocator.alloc(4096) == address
    trace = loaded(tmp_path, allocator)
    (one,) = trace.derived(replay_all_devices)
    in_use = trace["blocks"]["requested_bytes"].tolist().index(4096)
    assert one.pieces.block.tolist() == [-1, in_use]


def test_what_is_kept_has_no_block_where_none_or_only_others_were_recorded(tmp_path):
    allocator = Allocator()
    kept, other = allocator.alloc(4096), allocator.alloc(8192)
    trace = loaded(tmp_path, allocator)
    for left, expected in (({other}, [-1, 0]), (set(), [-1, -1])):
        blocks = trace["blocks"]
        blocks = blocks[blocks["address"].isin(left)].reset_index(drop=True)
        (one,) = Trace(trace.source, {**trace.tables, "blocks": blocks}).derived(replay_all_devices)
        assert one.pieces.address.tolist() == [kept, other]
        assert one.pieces.block.tolist() == expected


@pytest.mark.parametrize(("rows", "known"), [(8192, True), (8193, False)])
def test_sums_may_be_just_what_fits(tmp_path, rows, known):
    """8,192 times 2**49 bytes are 2**62."""
    allocator = Allocator()
    allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    most = {"size_bytes": pd.array([2**49] * rows, "Int64")}
    segments = trace["memory_segments"].iloc[[0] * rows].reset_index(drop=True).assign(**most)
    (one,) = Trace(trace.source, {**trace.tables, "memory_segments": segments}).derived(replay_all_devices)
    assert (one.reserved is not None) == known
    history = trace["allocations"].iloc[[0] * rows].reset_index(drop=True).assign(**most)
    tables = {"allocations": history, "blocks": trace["blocks"].iloc[:0]}
    assert len(Trace(trace.source, {**trace.tables, **tables}).derived(replay_all_devices)) == known


def test_an_address_that_is_not_known_is_told_as_0(tmp_path):
    allocator = Allocator()
    address = allocator.alloc(4096)
    trace = loaded(tmp_path, allocator)
    unknown = pd.array([pd.NA, address], "Int64")
    (one,) = with_table(trace, "allocations", address=unknown).derived(replay_all_devices)
    assert one.address.tolist() == [0, address]
