"""Memory snapshots of every version and writer become the same tables."""

import numpy as np
import pytest
from memory_builder import (
    FIRST_US,
    MIB,
    VERSIONS,
    Allocator,
    as_written_by,
    page,
    pickled,
    segments_of,
    snapshot,
    stack,
    written_by_cpp,
    zipped,
)
from memory_reading import curve, notes_of, same, small_program

from tracekit.model.trace import Want

TABLES = {"allocations", "memory_segments", "blocks", "stacks", "annotations"}


def test_the_tables_say_what_the_allocator_did(tables_of):
    trace = tables_of(snapshot(small_program()))
    rows = trace["allocations"]
    at = 0x7F00_0000_0000
    assert rows["action"].tolist() == [
        *("segment_alloc", "alloc", "alloc", "segment_alloc", "alloc"),
        *("free_requested", "free_completed"),
    ]
    assert rows["size_bytes"].tolist() == [2 * MIB, 1000, 700, 20 * MIB, 3 * MIB, 700, 700]
    # 1,000 bytes occupy two times 512, so the next block begins 1,024 further.
    large = at + 2 * MIB
    assert rows["address"].tolist() == [at, at, at + 1024, large, large, at + 1024, at + 1024]
    first = (FIRST_US + 20) * 1000
    assert rows["ts_ns"].tolist() == [first + 10_000 * i for i in range(7)]
    assert rows["user_metadata"].tolist() == ["", "", "", "", "kv cache", "", ""]
    assert set(rows["pool"]) == {"0,0"}
    assert set(rows["compile_context"]) == {"N/A"}
    assert set(rows["memory"]) == {"device"}
    assert rows["device_free_bytes"].isna().all()

    segments, blocks = trace["memory_segments"], trace["blocks"]
    assert segments["size_bytes"].tolist() == [2 * MIB, 20 * MIB]
    assert segments["allocated_bytes"].tolist() == [1024, 3 * MIB]
    assert segments["requested_bytes"].tolist() == [1000, 3 * MIB]
    assert segments["kind"].tolist() == ["small", "large"]
    assert segments["expandable"].tolist() == [0, 0]
    assert blocks["segment"].tolist() == [0, 0, 1, 1]
    assert blocks["state"].tolist() == ["active", "inactive", "active", "inactive"]
    assert blocks["size_bytes"].tolist() == [1024, 2 * MIB - 1024, 3 * MIB, 17 * MIB]
    assert blocks["requested_bytes"].tolist() == [1000, 0, 3 * MIB, 0]
    marks = trace["annotations"]
    assert marks["stage"].tolist() == ["start", "end"]
    assert marks["name"].tolist() == ["step", "step"]
    assert trace.meta["absolute_time"] is True
    assert trace.meta["allocator_settings"]["max_split_size"] == -1
    assert trace.notes == ()


def test_stacks_are_one_by_content_with_the_innermost_frame_first(tables_of):
    trace = tables_of(snapshot(small_program()))
    ids = trace["allocations"]["stack"].tolist()
    assert ids[1] == ids[4] == trace["blocks"]["stack"][0]
    assert ids[5] == ids[6]
    assert len({ids[1], ids[2], ids[5]}) == 3
    frames = trace["stacks"]
    mine = frames[frames["stack"] == ids[1]]
    assert mine["depth"].tolist() == [0, 1]
    assert mine["name"].tolist() == ["inner", "outer"]
    assert mine["file"].tolist() == ["/job/train.py"] * 2
    assert mine["line"].tolist() == [5, 5]


def test_a_stack_has_one_hash_in_every_file(tables_of):
    one = tables_of(snapshot(small_program()))["allocations"]["stack"].tolist()
    made = Allocator()
    made.alloc(5, stack("somewhere"))
    made.alloc(1, stack("inner", "outer"))
    assert tables_of(snapshot(made))["allocations"]["stack"].tolist()[2] == one[1]


def test_a_stack_that_was_not_recorded_is_unknown_and_an_empty_one_is_not(tables_of):
    made = snapshot(small_program())
    del made["device_traces"][0][1]["frames"]
    made["device_traces"][0][2]["frames"] = []
    trace = tables_of(made)
    assert trace["allocations"]["stack"].isna().tolist() == [False, True, *[False] * 5]
    empty = trace["allocations"]["stack"][2]
    assert empty not in set(trace["stacks"]["stack"])


def test_without_any_stack_there_is_no_table_of_them(tables_of):
    made = snapshot(small_program())
    rows = [*made["device_traces"][0], *made["segments"]]
    for row in [*rows, *(b for s in made["segments"] for b in s["blocks"])]:
        del row["frames"]
    trace = tables_of(made)
    assert set(trace.tables) == TABLES - {"stacks"}
    assert trace["allocations"]["stack"].isna().all()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_reads_the_same(tables_of, protocol):
    made = snapshot(small_program())
    same(tables_of(pickled(made)), tables_of(pickled(made, protocol)))


@pytest.mark.parametrize("form", [written_by_cpp, lambda m: page(pickled(m)), lambda m: zipped(pickled(m))])
def test_every_form_reads_the_same(tables_of, form):
    made = snapshot(small_program(), color=None)
    made["allocator_settings"]["garbage_collection_threshold"] = 0.5
    same(tables_of(made), tables_of(form(made)))


def test_many_texts_and_containers_of_the_cpp_writer_are_read(tables_of):
    made = Allocator()
    for i in range(600):
        made.alloc(1000 + i, stack(f"function_{i}"))
    same(tables_of(snapshot(made)), tables_of(written_by_cpp(snapshot(made))))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_the_same_but_for_what_it_did_not_record(tables_of, version):
    new = tables_of(snapshot(small_program()))
    old = tables_of(as_written_by(version, snapshot(small_program())))
    assert curve(old) == curve(new)
    assert old["blocks"]["address"].tolist() == new["blocks"]["address"].tolist()
    used = (new["blocks"]["state"] == "active").to_numpy()
    assert old["blocks"]["stack"][used].tolist() == new["blocks"]["stack"][used].tolist()
    timed = VERSIONS.index(version) >= VERSIONS.index("2.2")
    assert old["allocations"]["ts_ns"].notna().all() == timed
    assert old.meta["absolute_time"] is timed
    assert ("annotations" in old.tables) == (VERSIONS.index(version) >= VERSIONS.index("2.5"))
    assert old["allocations"]["pool"].notna().all() == (version == "2.12")
    assert old.notes == ()


def test_annotations_of_torch_2_4_are_no_actions(tables_of):
    made = as_written_by("2.2", snapshot(small_program()))
    for place, (stage, time_us) in ((0, ("START", 5)), (9, ("END", 9))):
        made["device_traces"][0].insert(
            place,
            {
                "action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": time_us,
                "frames": [{"name": stage, "filename": "optimizer", "line": 0}],
            },
        )  # fmt: skip
    trace = tables_of(made)
    assert len(trace["allocations"]) == 7
    marks = trace["annotations"]
    assert marks["name"].tolist() == ["optimizer", "optimizer"]
    assert marks["stage"].tolist() == ["start", "end"]
    assert marks["ts_ns"].tolist() == [5000, 9000]
    assert marks["device"].tolist() == [0, 0]
    assert trace.notes == ()


@pytest.mark.parametrize(("told", "meant"), [("SIMULATED: by hand", "SIMULATED: by hand"), (True, "SIMULATED")])
def test_what_says_that_it_is_simulated_is_and_nothing_else_is(tables_of, told, meant):
    assert tables_of(snapshot(small_program(), simulated=told)).meta["simulated"] == meant
    for real in (False, None, "", 0, {"simulated": True}, ["yes"]):
        assert "simulated" not in tables_of(snapshot(small_program(), simulated=real)).meta
    made = snapshot(small_program())
    del made["simulated"]
    assert "simulated" not in tables_of(made).meta
    assert tables_of(segments_of(small_program())).meta.get("simulated") is None


def test_devices_are_kept_apart_and_unused_ones_have_no_rows(tables_of):
    trace = tables_of(snapshot(small_program(0), small_program(3)))
    assert trace["allocations"]["device"].tolist() == [0] * 7 + [3] * 7
    assert sorted(set(trace["memory_segments"]["device"])) == [0, 3]
    assert sorted(set(trace["blocks"]["device"])) == [0, 3]
    assert [b["device"] for b in trace.meta["balances"]] == [0, 3]
    assert [b["off_bytes"] for b in trace.meta["balances"]] == [0, 0]


def test_pinned_host_memory_is_not_a_devices(tables_of):
    host = snapshot(small_program())
    made = snapshot(small_program(), host_segments=host["segments"], host_traces=host["device_traces"][0])
    trace = tables_of(made)
    for name in ("allocations", "memory_segments", "blocks"):
        counts = trace[name]["memory"].value_counts()
        assert counts["host"] == counts["device"]
    assert trace["allocations"]["device"].isna().sum() == 7
    assert len(trace.meta["balances"]) == 1


def test_segments_alone_are_read(tables_of):
    trace = tables_of(segments_of(small_program()))
    assert set(trace.tables) == {"memory_segments", "blocks", "stacks"}
    assert list(notes_of(trace)) == ["no-history"]
    same_blocks = tables_of(snapshot(small_program()))["blocks"]
    assert trace["blocks"].equals(same_blocks)


def test_a_light_snapshot_has_no_history(tables_of):
    made = snapshot(small_program())
    del made["device_traces"]
    trace = tables_of(made)
    assert not trace.has("allocations")
    assert trace.meta["entry_count"] == 0
    assert "recording was off" in notes_of(trace)["no-history"]


def test_an_empty_history_counts_as_none(tables_of):
    made = snapshot(small_program())
    made["device_traces"] = [[], []]
    assert not tables_of(made).has("allocations")


def test_without_segments_there_is_the_history_alone(tables_of):
    made = snapshot(small_program())
    del made["segments"]
    trace = tables_of(made)
    assert set(trace.tables) == {"allocations", "stacks", "annotations"}
    assert trace.meta["balances"] == []
    assert trace.notes == ()


def test_no_segments_are_empty_tables(tables_of):
    trace = tables_of({"segments": [], "device_traces": []})
    assert len(trace["memory_segments"]) == len(trace["blocks"]) == 0


def test_the_newest_keys_are_understood(tables_of):
    made = snapshot(small_program())
    entry = made["device_traces"][0][4]
    entry |= {"forward_frames": ["model.py:3 forward", "train.py:9 main"], "internal_metadata": "x"}
    base = entry["addr"]
    note = {"action": "annotate", "addr": base, "size": 0, "stream": 0, "user_metadata": "weights"}
    made["device_traces"][0].append(note)
    made["segments"][0]["blocks"][0]["forward_frames"] = ["train.py:9 main"]
    trace = tables_of(made)
    rows = trace["allocations"]
    assert rows["action"].tolist()[-1] == "annotate"
    assert rows["user_metadata"].tolist()[-1] == "weights"
    frames = trace["stacks"]
    forward = frames[frames["stack"] == rows["forward_stack"][4]]
    assert forward["name"].tolist() == ["model.py:3 forward", "train.py:9 main"]
    assert forward["file"].isna().all()
    assert trace["blocks"]["forward_stack"].notna().tolist() == [True, False, False, False]
    assert trace.notes == ()


def test_addresses_of_64_bits_keep_their_pattern(tables_of):
    made = snapshot(small_program())
    high = 0xFFFF_8000_0000_0000
    shift = high - made["segments"][0]["address"]
    rows = [*made["device_traces"][0], *made["segments"]]
    for row in [*rows, *(b for s in made["segments"] for b in s["blocks"])]:
        row["addr" if "addr" in row else "address"] += shift
    trace = tables_of(made)
    assert trace["memory_segments"]["address"][0] == high - 2**64
    assert trace["allocations"]["address"].to_numpy(np.int64).view(np.uint64)[0] == high
    assert trace.notes == ()
    same(trace, tables_of(written_by_cpp(made)))


def test_pools_may_be_lists_and_others_than_the_default(tables_of):
    made = Allocator()
    made.alloc(100, pool=(0, 3))
    whole = snapshot(made)
    whole["segments"][0]["segment_pool_id"] = [0, 3]
    trace = tables_of(whole)
    assert trace["memory_segments"]["pool"].tolist() == ["0,3"]
    assert trace["allocations"]["pool"].tolist() == ["0,3", "0,3"]


def test_names_that_no_file_can_hold_are_made_writable(tables_of):
    made = Allocator()
    made.alloc(5, stack("a\ud800b"), metadata="\udfff<script>")
    made.alloc(6, stack("a\udbffb"), metadata="\udffe<script>")
    trace = tables_of(snapshot(made, **{"odd\ud800key": 1}))
    assert "a\ufffdb" in set(trace["stacks"]["name"])
    assert trace["allocations"]["user_metadata"].tolist()[1:] == ["\ufffd<script>"] * 2
    for name, frame in trace.tables.items():
        frame.to_csv().encode(), name
    notes_of(trace)["not-understood"].encode()


def test_only_wanted_tables_are_kept(tables_of):
    trace = tables_of(snapshot(small_program()), want=Want(frozenset({"blocks"})))
    assert set(trace.tables) == {"blocks"}
    assert trace.meta["balances"][0]["off_bytes"] == 0
