"""What a memory snapshot says of itself: its balance to the byte, what was lost, what is not understood."""

import random
import time

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_builder import (
    MIB,
    VERSIONS,
    Allocator,
    DeviceFullError,
    as_written_by,
    pickled,
    snapshot,
    stack,
    written_by_cpp,
)
from memory_reading import curve, notes_of, read, same, small_program


def test_a_history_that_began_late_has_ghosts_and_orphans(tables_of):
    made = Allocator()
    kept, freed = made.alloc(1000), made.alloc(5000)
    made.clear_history()
    made.free(freed)
    made.alloc(300)
    trace = tables_of(snapshot(made))
    (balance,) = trace.meta["balances"]
    assert balance == {
        "device": 0, "ghost_bytes": 1000, "orphan_bytes": 5000, "net_bytes": -4700, "active_bytes": 1300,
        "ghost_count": 1, "orphan_count": 1, "unlike_count": 0, "off_bytes": 0,
    }  # fmt: skip
    assert curve(trace) == [6000, 1000, 1300]
    assert kept == 0x7F00_0000_0000


def test_a_history_that_disagrees_with_the_blocks_is_said_with_numbers(tables_of):
    made = snapshot(small_program())
    made["segments"][0]["blocks"][0]["requested_size"] = 990
    trace = tables_of(made)
    told = notes_of(trace)
    assert set(told) == {"unbalanced", "unlike-blocks"}
    assert "are +10 against the 3,146,718 of the blocks" in told["unbalanced"]
    assert "1 allocations" in told["unlike-blocks"]
    assert trace.meta["balances"][0]["off_bytes"] == 10


def test_segments_that_are_not_the_sum_of_their_blocks_are_said(tables_of):
    made = snapshot(small_program())
    made["segments"][1]["blocks"][1]["size"] -= 1
    told = notes_of(tables_of(made))
    assert told == {"odd-segments": "1 of 2 segments are not the sum of their blocks"}


def test_frees_that_wait_for_another_stream_are_held_and_said(tables_of):
    made = Allocator()
    address = made.alloc(2000)
    made.free(address, wait=True)
    trace = tables_of(snapshot(made))
    assert curve(trace) == [0, 2000, 2000]
    assert trace["blocks"]["state"].tolist() == ["pending_free", "inactive"]
    told = notes_of(trace)
    assert told == {"pending-free": "1 blocks (2,048 bytes) were freed but wait for other streams (record_stream)"}
    docs_word = snapshot(made)
    docs_word["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    same(tables_of(docs_word), trace)


def test_memory_that_ran_out_is_recorded_with_what_was_free(tables_of):
    made = Allocator(capacity=64 * MIB, elsewhere=10 * MIB)
    made.alloc(40 * MIB)
    with pytest.raises(DeviceFullError):
        made.alloc(15 * MIB, stack("too much"))
    trace = tables_of(snapshot(made))
    last = trace["allocations"].iloc[-1]
    assert (last["action"], last["size_bytes"], last["device_free_bytes"]) == ("oom", 15 * MIB, 14 * MIB)
    assert pd.isna(last["address"])
    assert trace.notes == ()


@pytest.mark.parametrize("most", [1000, 1037])
def test_a_ring_buffer_keeps_the_curve_and_says_what_was_lost(tables_of, most):
    made = Allocator(most=most)
    chance, live = random.Random(0), []
    for _ in range(1500):
        live.append(made.alloc(chance.randrange(1, 5 * MIB)))
        if len(live) > 40:
            made.free(live.pop(chance.randrange(len(live))))
    trace = tables_of(snapshot(made))
    assert curve(trace) == [requested for requested, _, _ in made.levels]
    told = notes_of(trace)
    assert told.get("ring-buffer") == (
        "device 0: the history has 1,000 entries, a round number: older ones were probably dropped"
        if most == 1000
        else None
    )
    settings_of = {"trace_alloc_max_entries": most, "trace_alloc_overflowed": True}
    for told_so in (
        snapshot(made, **settings_of),
        snapshot(made, allocator_settings=settings_of),
        snapshot(made, trace_alloc_overflowed=[True]),
    ):
        (note,) = tables_of(told_so).notes
        assert (note.severity, note.code) == ("data_loss", "ring-buffer")
    assert tables_of(snapshot(made, trace_alloc_overflowed=False)).notes == ()
    (note,) = tables_of(snapshot(made, trace_alloc_max_entries=most)).notes
    assert "as many as it can hold" in note.message


def test_what_is_not_understood_is_counted_and_kept_out(tables_of):
    made = snapshot(small_program(), color="red")
    made["device_traces"][0][3]["mood"] = {"deep": [1]}
    made["device_traces"][0][4]["mood"] = 1
    made["device_traces"][0][6]["action"] = "teleport"
    made["segments"][0]["shape"] = made["segments"][0]["blocks"][0]["taste"] = 2
    made["device_traces"][0][1]["frames"][0]["smell"] = 3
    trace = tables_of(made)
    told = notes_of(trace)["not-understood"]
    for what in (
        *("color (1)", "device_traces[][].mood (2)", "action teleport (1)", "segments[].shape (1)"),
        *("segments[].blocks[].taste (1)", "frames[].smell (1)"),
    ):
        assert what in told
    assert trace["allocations"]["action"].tolist()[6] == "other"


def test_many_things_that_are_not_understood_take_no_time(tables_of):
    made = snapshot(small_program())
    made["device_traces"][0] += [{"action": f"a{i}", f"k{i}": 0} for i in range(20_000)]
    start = time.process_time()
    told = notes_of(tables_of(made))["not-understood"]
    assert time.process_time() - start < 2
    assert "action * (others) (19,980)" in told
    assert "and 30 more" in told


def test_time_that_goes_back_is_said(tables_of):
    made = snapshot(small_program())
    made["device_traces"][0][3]["time_us"] -= 1000
    assert "goes back 1 times" in notes_of(tables_of(made))["time-order"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "free", "wait", "sync", "trim", "clear"]),
        st.integers(0, 12 * MIB) | st.integers(1, 3000),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(steps, st.sampled_from(VERSIONS), st.sampled_from(["python", "cpp"]))
@settings(max_examples=25, deadline=None)
def test_any_program_balances_to_the_byte_and_gives_its_true_curve(tmp_path_factory, program, version, writer):
    made, live = Allocator(), []
    for what, size, stream in program:
        if what == "alloc":
            live.append(made.alloc(size, stack(f"f{size % 5}"), stream))
        elif what in ("free", "wait") and live:
            made.free(live.pop(size % len(live)), wait=what == "wait")
        elif what == "sync":
            made.synchronize()
        elif what == "trim":
            made.empty_cache()
        elif what == "clear":
            made.clear_history()
    path = tmp_path_factory.getbasetemp() / "program.pickle"
    whole = as_written_by(version, snapshot(made))
    path.write_bytes(pickled(whole) if writer == "python" else written_by_cpp(whole))
    trace = read(path)
    codes = set(notes_of(trace))
    assert codes <= {"no-history", "pending-free"}
    assert trace.has("allocations") == bool(made.history)
    if made.history:
        assert curve(trace) == [requested for requested, _, _ in made.levels]
        assert trace.meta["balances"][0]["off_bytes"] == 0
    assert trace["memory_segments"]["size_bytes"].sum() == made.reserved
    used = trace["blocks"]["state"] == "active"
    assert trace["blocks"]["size_bytes"][used].sum() == made.allocated
