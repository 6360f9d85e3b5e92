"""Why memory ran out, on allocators made to run out of it for one reason each; the figures are by hand."""

from dataclasses import replace

import pytest
from chrome_builder import memory, step, write
from memory_builder import Allocator, DeviceFullError, frame, pickled, snapshot
from snapshot_traces import MIB, report, rows, section, written

from tracekit.pipeline import run as pipeline
from tracekit.process.memory.calls import diagnose_oom_cause as cause_of

QUESTIONS = ("out-of-memory",)


def ask(allocator, size, **more):
    with pytest.raises(DeviceFullError):
        allocator.alloc(size, [frame("gather", "/job/model.py", 7)], **more)
    return allocator


def capacity():
    """40 MiB in use of 48; 10 more asked for."""
    allocator = Allocator(capacity=48 * MIB)
    for _ in range(4):
        allocator.alloc(10 * MIB)
    return ask(allocator, 10 * MIB)


def in_pieces():
    """40 MiB reserved of 48, 12 of them free in three pieces of 4; 12 asked for."""
    allocator = Allocator(capacity=48 * MIB)
    blocks = [allocator.alloc(4 * MIB) for _ in range(10)]
    for block in blocks[1:7:2]:
        allocator.free(block)
    return ask(allocator, 12 * MIB)


def outside():
    """20 MiB in use of 100, of which others hold 70; 20 more asked for."""
    allocator = Allocator(capacity=100 * MIB, elsewhere=70 * MIB)
    allocator.alloc(20 * MIB)
    return ask(allocator, 20 * MIB)


def other_pool():
    """16 of 40 MiB are free, but for another stream; 12 asked for, with nothing left on the device."""
    allocator = Allocator(capacity=40 * MIB)
    blocks = [allocator.alloc(4 * MIB, stream=5) for _ in range(10)]
    for block in (*blocks[:2], *blocks[5:7]):
        allocator.free(block)
    return ask(allocator, 12 * MIB)


def failure(tmp_path, allocator):
    (row,) = rows(section(report(written(tmp_path, {1: allocator})), "out-of-memory"), "out_of_memory")  # fmt: skip
    return row


def test_too_much_in_use_is_capacity(tmp_path):
    row = failure(tmp_path, capacity())
    assert row["cause"] == "capacity"
    assert (row["asked_bytes"], row["requested_bytes"], row["reserved_bytes"]) == (10 * MIB, 40 * MIB, 40 * MIB)  # fmt: skip
    assert (row["device_free_bytes"], row["free_bytes"], row["given_back_bytes"]) == (8 * MIB, 0, 0)
    assert row["site"] == "job/model.py:7 gather"


def test_enough_free_in_pieces_too_small_is_fragmentation(tmp_path):
    row = failure(tmp_path, in_pieces())
    assert row["cause"] == "fragmentation"
    assert (row["free_bytes"], row["largest_free_bytes"]) == (12 * MIB, 4 * MIB)
    assert (row["requested_bytes"], row["reserved_bytes"]) == (28 * MIB, 40 * MIB)


def test_free_memory_of_another_stream_is_fragmentation_too(tmp_path):
    row = failure(tmp_path, other_pool())
    assert row["cause"] == "fragmentation"
    assert (row["free_bytes"], row["requested_bytes"], row["reserved_bytes"]) == (0, 24 * MIB, 40 * MIB)  # fmt: skip


def test_what_others_hold_is_told_from_capacity_where_the_size_of_the_device_is_known(tmp_path):
    assert failure(tmp_path / "alone", outside())["cause"] == "capacity"
    folder = written(tmp_path / "both", {1: outside()})
    sample = memory(10, 1, 20 * MIB, device_type=1)
    sample["args"]["Device Id"] = 0
    write(
        folder / "step1" / "trace_rank0.json", [step(1, 0, 100), sample], rank=0,
        deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": 100 * MIB}],
    )  # fmt: skip
    found = section(report(folder), "out-of-memory")
    (row,) = rows(found, "out_of_memory")
    assert (row["cause"], row["outside_bytes"]) == ("outside", 70 * MIB)
    assert "other users occupied the device's memory" in found.findings[0].claim


def test_capacity_stays_capacity_where_the_device_has_no_more(tmp_path):
    folder = written(tmp_path, {1: capacity()})
    sample = memory(10, 1, 20 * MIB, device_type=1)
    sample["args"]["Device Id"] = 0
    write(
        folder / "step1" / "trace_rank0.json", [step(1, 0, 100), sample], rank=0,
        deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": 49 * MIB}],
    )  # fmt: skip
    (row,) = rows(section(report(folder), "out-of-memory"), "out_of_memory")
    assert (row["cause"], row["outside_bytes"]) == ("capacity", 1 * MIB)


@pytest.mark.parametrize(
    ("size", "cause", "outside"),
    [
        (49, "capacity", 1),  # 40 in use and 10 asked for are more than there is
        (53, "capacity", 5),  # 9.4 % of the card
        (54, "outside", 6),  # 11.1 %
        (47, "capacity", None),  # less than what is reserved and free: no size of this card
    ],
)
def test_what_others_hold_is_named_from_a_tenth_of_the_card_on_if_the_request_would_fit(full, size, cause, outside):
    """40 MiB reserved and 8 free: of the card others hold the rest."""
    given = replace(full, facts=replace(full.facts, device_memory=size * MIB))
    found = section(pipeline.judge(given), "out-of-memory")
    (row,) = rows(found, "out_of_memory")
    assert (row["cause"], row.get("outside_bytes")) == (cause, outside and outside * MIB)
    assert (row["card_bytes"], row["card_origin"]) == (size * MIB, "given")
    told = {m.name: m.label for m in found.findings[0].evidence}
    assert told["card_bytes"] == "GPU memory, given"


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = written(tmp_path_factory.mktemp("full"), {1: capacity()})
    return pipeline.analyze_uncached(folder, pipeline.Options(jobs=1, questions=QUESTIONS)).measurements


def test_without_the_size_of_the_card_the_report_says_how_to_tell_it(full):
    caveats = section(pipeline.judge(full), "out-of-memory").caveats
    assert any("give --device-memory" in caveat for caveat in caveats)


@pytest.mark.parametrize("make", [in_pieces, other_pool])
def test_fragmentation_stays_fragmentation_whatever_others_hold(tmp_path, make):
    folder = written(tmp_path, {1: make()})
    done = pipeline.analyze_uncached(folder, pipeline.Options(jobs=1, device_memory=1024 * MIB, questions=QUESTIONS))
    (row,) = rows(section(done.report, "out-of-memory"), "out_of_memory")
    assert (row["cause"], row["outside_bytes"] > 900 * MIB) == ("fragmentation", True)


def test_segments_that_grow_in_place_leave_the_pieces_untold(tmp_path):
    made = snapshot(in_pieces())
    for segment in made["segments"]:
        segment["is_expandable"] = True
    (row,) = rows(section(report(written(tmp_path, {1: pickled(made)})), "out-of-memory"), "out_of_memory")  # fmt: skip
    assert row["cause"] == "unknown"
    assert "largest_free_bytes" not in row


def test_cache_that_was_given_back_before_is_told(tmp_path):
    allocator = Allocator(capacity=50 * MIB)
    allocator.alloc(20 * MIB)
    allocator.free(allocator.alloc(30 * MIB))
    ask(allocator, 40 * MIB)
    row = failure(tmp_path, allocator)
    assert (row["cause"], row["given_back_bytes"]) == ("capacity", 30 * MIB)
    assert (row["reserved_bytes"], row["device_free_bytes"]) == (20 * MIB, 30 * MIB)


def test_the_last_twenty_entries_are_shown_the_nearest_first(tmp_path):
    allocator = Allocator(capacity=48 * MIB)
    for line in range(1, 31):
        allocator.alloc(512 * line, [frame("f", "/job/a.py", line)])
    ask(allocator, 60 * MIB)
    found = section(report(written(tmp_path, {1: allocator})), "out-of-memory")
    last = rows(found, "last_actions")
    assert [r["before"] for r in last] == list(range(1, 21))
    assert (last[0]["action"], last[0]["size_bytes"], last[0]["site"]) == ("alloc", 512 * 30, "job/a.py:30 f")  # fmt: skip


def test_a_finding_says_which_stage_and_how_often(tmp_path):
    allocator = Allocator(capacity=48 * MIB)
    allocator.alloc(40 * MIB)
    allocator.annotate("actor_update", "START")
    ask(allocator, 10 * MIB)
    ask(allocator, 12 * MIB)
    allocator.annotate("actor_update", "END")
    (found,) = section(report(written(tmp_path, {1: allocator})), "out-of-memory").findings
    assert found.claim == (
        "rank 0, GPU 0 ran out of memory (OOM) during update_actor, 2 times: 12.0 MiB were requested, and too much was in use"
    )
    assert (found.severity, found.places[0].stage, found.places[0].step) == ("high", "update_actor", 1)  # fmt: skip


def test_where_nothing_failed_the_section_says_so(tmp_path):
    allocator = Allocator()
    allocator.alloc(512)
    found = section(report(written(tmp_path, {1: allocator})), "out-of-memory")
    assert (found.status, found.reason) == ("skipped", "no request failed in the recorded histories")  # fmt: skip


TOLD = {
    "asked_bytes": 9 * MIB, "requested_bytes": 60 * MIB, "reserved_bytes": 60 * MIB,
    "device_free_bytes": 10 * MIB, "free_bytes": 0, "largest_free_bytes": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # 10 MiB would do for 9, but no segment of 20 can be got, and nothing else is free.
        ({}, "capacity"),
        ({"requested_bytes": 50 * MIB}, "fragmentation"),
        ({"device_free_bytes": None}, "unknown"),
        ({"reserved_bytes": None}, "unknown"),
        ({"largest_free_bytes": None, "free_bytes": None}, "unknown"),
        ({"largest_free_bytes": None, "free_bytes": None, "device_free_bytes": 8 * MIB}, "capacity"),
        ({"free_bytes": 20 * MIB, "largest_free_bytes": 10 * MIB}, "unknown"),
    ],
)  # fmt: skip
def test_causes_of_numbers(change, expected):
    assert cause_of({**TOLD, **change}) == expected
