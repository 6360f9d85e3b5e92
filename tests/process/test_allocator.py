"""The allocator replayed: worked by hand, against its twin in Python, and with options against an independent model."""

from dataclasses import replace

import numpy as np
import pytest
from allocator_model import MIB, Model, Setting, train
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_builder import pickled
from memory_reading import read

from tracekit.process.memory.allocator import run as runs
from tracekit.process.memory.allocator.beginning import UnreplayableError
from tracekit.process.memory.allocator.history import build_program
from tracekit.process.memory.allocator.identity import compare_with_history, replay_history
from tracekit.process.memory.allocator.plain import ALLOC, COMPLETE, EMPTY, REQUEST
from tracekit.process.memory.allocator.rules import (
    AllocatorOptions,
    compute_segment_bytes,
    read_allocator_options,
    round_requests,
)
from tracekit.process.memory.allocator.run import AllocatorProgram, run_program
from tracekit.process.memory.replay import replay_all_devices

COMPILED = runs.native

KIB = 1024
FIRST = 2**40


@pytest.fixture(params=["compiled", "plain"])
def both_passes(request, monkeypatch):
    """Run a test with the compiled passes and with those in Python."""
    assert COMPILED is not None
    if request.param == "plain":
        monkeypatch.setattr(runs, "native", None)


DEFAULT = AllocatorOptions()


def program_of(ops, options=DEFAULT, lanes=1, grows=0):
    """A program from its beginning: rows of (operation, owner, size, lane)."""
    table = np.array(ops, np.int64).reshape(-1, 4)
    none = np.empty((0, 5), np.int64), np.empty((0, 3), np.int64)
    pools = np.zeros(lanes, np.int64), np.array([grows], np.int64)
    owners = int(table[:, 1].max(initial=-1)) + 1
    return AllocatorProgram(table, np.arange(len(table)), owners, ("0,0",), *pools, *none, FIRST, options)


EMPTY_CACHE = (EMPTY, 0, 0, 0)


def alloc(owner, mib, lane=0):
    return ALLOC, owner, mib * MIB, lane


def free(owner):
    return COMPLETE, owner, 0, 0


def in_mib(values):
    return (np.asarray(values) / MIB).tolist()


# Worked by hand


def test_small_requests_share_a_segment_of_2_mib_and_larger_ones_one_of_20(both_passes):
    run = run_program(program_of([(ALLOC, 0, 1, 0), alloc(1, 1), (ALLOC, 2, MIB + 1, 0), alloc(3, 21)]))
    assert in_mib(run.reserved) == [2, 2, 22, 44]
    assert run.active.tolist() == [512, 512 + MIB, 1024 + 2 * MIB, 1024 + 24 * MIB]
    assert (run.placed - FIRST).tolist() == [0, 512, 2 * MIB, 22 * MIB]


def test_the_smallest_free_block_is_taken_and_its_neighbours_merge(both_passes):
    """Of 20 MiB, blocks of 4, 6 and 3 MiB leave 7. Freed, the 6 are next to nothing free; a request of 5 takes them."""
    ops = [alloc(0, 4), alloc(1, 6), alloc(2, 3), free(1), alloc(3, 5)]
    ops += [free(2), alloc(4, 10)]
    run = run_program(program_of(ops))
    # What is left of the 6 MiB is 1 MiB, which is not split off: the block keeps all 6.
    assert in_mib(run.active) == [4, 10, 13, 7, 13, 10, 20]
    assert in_mib(run.placed - FIRST) == [0, 4, 10, 4, 10]
    assert run.peak_reserved == 20 * MIB


def test_a_free_that_waits_holds_its_block_and_ends_before_the_cache_is_given_back(both_passes):
    ops = [alloc(0, 30), (REQUEST, 0, 0, 0), alloc(1, 30), free(1), EMPTY_CACHE]
    run = run_program(program_of([*ops, free(0)]))
    assert in_mib(run.active) == [30, 30, 60, 30, 0, 0]
    assert in_mib(run.reserved) == [30, 30, 60, 60, 0, 0]


def test_streams_do_not_share_free_blocks(both_passes):
    run = run_program(program_of([alloc(0, 30), free(0), alloc(1, 30, lane=1)], lanes=2))
    assert in_mib(run.reserved) == [30, 30, 60]


def test_without_memory_the_cache_is_given_back_and_only_then_a_request_fails(both_passes):
    options = AllocatorOptions(limit=64 * MIB)
    ops = [alloc(0, 30), free(0), alloc(1, 40), alloc(2, 30), alloc(3, 20)]
    run = run_program(program_of(ops, options))
    assert in_mib(run.reserved) == [30, 30, 40, 40, 60]
    assert (run.failed, run.first_failed, run.retries) == (1, 3, 2)
    assert run.placed[2] == -1


def test_max_split_keeps_large_segments_whole(both_passes):
    """64 MiB are free. A request of 40 MiB is below 50: it may not use the oversize block. One of 50 MiB takes it whole."""
    ops = [alloc(0, 64), free(0), alloc(1, 40), alloc(2, 50)]
    assert in_mib(run_program(program_of(ops)).reserved) == [64, 64, 64, 114]
    run = run_program(program_of(ops, AllocatorOptions(max_split=50 * MIB)))
    assert in_mib(run.reserved) == [64, 64, 104, 104]
    assert in_mib(run.active) == [64, 0, 40, 104]


def test_max_split_gives_back_oversize_segments_before_the_whole_cache(both_passes):
    """At a limit of 100 MiB a request of 60 MiB gives back the oversize 50, and leaves the 20 in the cache."""
    ops = [alloc(0, 20), alloc(1, 50), free(0), free(1), alloc(2, 76)]
    options = AllocatorOptions(max_split=32 * MIB, limit=100 * MIB)
    run = run_program(program_of(ops, options))
    assert in_mib(run.reserved) == [20, 70, 70, 70, 76]
    ops[4] = alloc(2, 44)
    ops.insert(4, alloc(3, 40))
    run = run_program(program_of(ops, options))
    # 40 MiB take the free 50 whole; 44 MiB more do not fit, and nothing oversize is free: the 20 go back too.
    assert in_mib(run.reserved) == [20, 70, 70, 70, 70, 94]


def test_garbage_collection_gives_back_what_was_unused_for_longest(both_passes):
    """Of two unused segments, the one freed first has the higher age; both ages have a mean of 1.5."""
    ops = [alloc(0, 40), alloc(1, 60), free(0)]
    ops += [alloc(2, 70), free(1), alloc(3, 90)]
    run = run_program(program_of(ops, AllocatorOptions(collect_above=150 * MIB)))
    assert in_mib(run.reserved) == [40, 100, 100, 170, 170, 220]
    assert run.segments[-2:, 2].tolist() == [-40 * MIB, 90 * MIB]
    assert run.collected == 1


def test_an_expandable_segment_grows_by_pages_and_gives_whole_free_pages_back(both_passes):
    """15 MiB map one page of 20; 8 more need 3 beyond it: a second page. Freed, the second page is unmapped, not the first."""
    ops = [alloc(0, 15), alloc(1, 8), free(1), EMPTY_CACHE, alloc(2, 6)]
    run = run_program(program_of(ops, grows=1))
    assert in_mib(run.reserved) == [20, 40, 40, 20, 40]
    assert in_mib(run.placed - FIRST) == [0, 15, 15]
    assert run.segments[:, 2].tolist() == [20 * MIB, 20 * MIB, -20 * MIB, 20 * MIB]


def test_sizes_are_rounded_to_parts_of_a_power_of_two():
    """PyTorch's documentation: with 4 divisions, 1,200 becomes 1,280; below 512 × divisions, 512 bytes are the step."""
    divisions = (4,) * 16
    assert round_requests(np.array([1200 * MIB, 1024 * MIB, 1000, 2048, 2049]), divisions).tolist() == [
        1280 * MIB,
        1024 * MIB,
        1024,
        2048,
        2560,
    ]
    assert round_requests(np.array([0, 1, 512, 513])).tolist() == [512, 512, 512, 1024]


def test_options_are_read_from_the_settings_of_a_snapshot():
    read_options = read_allocator_options(
        {"max_split_size": 64 * MIB, "expandable_segments": True, "roundup_power2_divisions": {"1": 0, "64": 4}}
    )
    assert read_options.max_split == 64 * MIB
    assert read_options.expandable
    assert read_options.divisions[6] == 4
    assert read_allocator_options({"max_split_size": -1}) == AllocatorOptions()


def test_segments_for_requests():
    sizes = np.array([MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 11 * MIB + 512])
    assert in_mib(compute_segment_bytes(sizes)) == [2, 20, 20, 10, 12]


# The twin, and properties

OPTIONS = st.builds(
    AllocatorOptions,
    max_split=st.sampled_from([2**63 - 1, 24 * MIB, 40 * MIB]),
    collect_above=st.sampled_from([None, None, 60 * MIB]),
    limit=st.sampled_from([None, 150 * MIB, 60 * MIB]),
)
SIZES = st.sampled_from([1, 700, 300 * KIB, MIB, MIB + 1, 3 * MIB, 9 * MIB, 11 * MIB, 26 * MIB, 45 * MIB])


@st.composite
def programs(draw):
    """A program of allocations and frees on two streams, some of which wait, with the cache emptied on the way."""
    ops, held, waiting = [], [], []
    for owner in range(draw(st.integers(1, 60))):
        ops.append((ALLOC, owner, draw(SIZES), draw(st.sampled_from([0, 0, 1]))))
        held.append(owner)
        while held and draw(st.integers(0, 9)) < 5:
            gone = held.pop(draw(st.integers(0, len(held) - 1)))
            waits = draw(st.integers(0, 4)) == 0
            ops.append((REQUEST if waits else COMPLETE, gone, 0, 0))
            if waits:
                waiting.append(gone)
        if waiting and draw(st.integers(0, 4)) == 0:
            ops += [(COMPLETE, gone, 0, 0) for gone in waiting]
            waiting = []
        if draw(st.integers(0, 14)) == 0:
            ops.append((EMPTY, 0, 0, 0))
    return program_of(ops, draw(OPTIONS), lanes=2, grows=draw(st.integers(0, 1)))


def fields_of(run):
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


def fields_equal(run, other):
    one, two = fields_of(run), fields_of(other)
    return all(np.array_equal(value, two[name]) for name, value in one.items())


def run_plainly(program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "native", None)
        return run_program(program)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_compiled_passes_and_those_in_python_agree(program):
    compiled, plain = fields_of(run_program(program)), fields_of(run_plainly(program))
    for name, value in compiled.items():
        assert np.array_equal(value, plain[name]), name


@settings(max_examples=100, deadline=None)
@given(programs())
def test_segments_add_up_to_reserved_memory_which_holds_all_blocks(program):
    run = run_program(program)
    sums = np.zeros(len(program.ops), np.int64)
    np.add.at(sums, run.segments[:, 0], run.segments[:, 2])
    assert np.cumsum(sums).tolist() == run.reserved.tolist()
    assert (run.reserved >= run.active).all()
    assert run.peak_reserved >= run.peak_active
    if program.options.limit is not None:
        assert run.peak_reserved <= program.options.limit


# Histories, and options against the independent model

SETTINGS = {
    "expandable": (Setting(expandable=True), {"grows": True}),
    "max_split": (Setting(max_split=24 * MIB), {"max_split": 24 * MIB}),
    "gc": (Setting(collect_above=150 * MIB), {"collect_above": 150 * MIB}),
    "limit": (Setting(limit=240 * MIB), {"limit": 240 * MIB}),
    "together": (
        Setting(max_split=30 * MIB, collect_above=180 * MIB, limit=260 * MIB),
        {"max_split": 30 * MIB, "collect_above": 180 * MIB, "limit": 260 * MIB},
    ),
    "limited pages": (Setting(expandable=True, limit=240 * MIB), {"grows": True, "limit": 240 * MIB}),
}


def load_history(tmp_path, model):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickled(model.snapshot()))
    trace = read(path)
    (replay,) = trace.derived(replay_all_devices)
    return trace, replay


def load(tmp_path, model):
    trace, replay = load_history(tmp_path, model)
    return replay, build_program(trace, replay)


def match(tmp_path, model):
    replay, program = load(tmp_path, model)
    return compare_with_history(replay, program, run_program(program))


def switch(program, grows=False, **options):
    pool_grows = np.maximum(program.pool_grows, int(grows))
    return replace(program, pool_grows=pool_grows, options=replace(program.options, **options))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "setting",
    [Setting(), Setting(expandable=True), Setting(max_split=24 * MIB)],
    ids=["default", "expandable", "max_split"],
)
def test_a_history_replays_exactly(tmp_path, seed, setting):
    model = Model(setting).run(train(seed, streams=(0, 7), later=0.2, empties=0.4))
    matched = match(tmp_path, model)
    assert matched.is_exact, matched
    assert matched.recorded_segments > 10
    assert matched.peak_bytes == model.peaks[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cut", [40, 200, 333])
@pytest.mark.parametrize("expandable", [False, True])
def test_the_rest_of_a_history_replays_exactly(tmp_path, seed, cut, expandable):
    """Entries before `cut` are lost: the memory then is wound back from the end."""
    model = Model(Setting(expandable=expandable)).run(train(seed, streams=(0, 7), later=0.2, empties=0.5))
    del model.history[:cut]
    matched = match(tmp_path, model)
    assert matched.is_exact, matched


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("option", ["limit", "gc", "together"])
def test_a_history_in_which_memory_ran_out_or_was_collected_replays_exactly(tmp_path, option, seed):
    """Its releases of the cache are the recorded ones; the limits that caused them are not in the snapshot."""
    model = Model(SETTINGS[option][0]).run(train(seed, later=0.1))
    program, run, matched = replay_history(*load_history(tmp_path, model))
    assert matched.is_exact, matched
    assert run.segments[:, 2].min() < 0
    assert fields_equal(run, run_plainly(program))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("option", SETTINGS)
def test_an_option_gives_the_memory_of_a_run_with_it(tmp_path, option, seed):
    """The history of a run without the option, replayed with it, equals the model's own run with it after every step."""
    setting, switched = SETTINGS[option]
    work = train(seed, later=0.1)
    _, program = load(tmp_path, Model().run(work))
    truth = Model(setting).run(work)
    run = run_program(switch(program, **switched))
    assert run.failed == truth.failed
    assert (run.peak_reserved, run.peak_active) == truth.peaks
    assert run.reserved[-1] == truth.levels[-1][0]


def test_a_limit_is_met_in_the_truth_of_these_programs():
    """Otherwise the tests above would compare nothing."""
    free = [Model().run(train(seed, later=0.1)) for seed in range(5)]
    for option, (setting, _) in SETTINGS.items():
        changed = [Model(setting).run(train(seed, later=0.1)).peaks[0] for seed in range(5)]
        assert any(new != one.peaks[0] for new, one in zip(changed, free, strict=True)), option


def test_a_history_that_cannot_be_replayed_gives_the_reason(tmp_path):
    model = Model().run([("alloc", 1, 700), ("alloc", 2, 30 * MIB)])
    model.history.append({**model.history[-2], "action": "segment_map", "addr": 2**41, "size": 2 * MIB})
    with pytest.raises(UnreplayableError, match="switched on or off"):
        load(tmp_path, model)
    model = Model().run([("alloc", 1, 700)])
    del model.history[:]
    with pytest.raises(UnreplayableError, match="no history"):
        load(tmp_path, model)


def test_segments_that_contradict_the_history_are_not_replayed(tmp_path):
    """The history got 30 MiB from the driver, of which the end has nothing but a segment of 2."""
    model = Model().run([("alloc", 1, 700), ("alloc", 2, 30 * MIB)])
    del model.segments[1]
    with pytest.raises(UnreplayableError, match="contradict the history"):
        load(tmp_path, model)


def test_a_history_that_does_not_add_up_is_not_exact(tmp_path):
    """The recorded segment is twice as large as the allocator gets for the request."""
    model = Model().run([("alloc", 1, 30 * MIB)])
    model.segments[0].pieces.append(type(model.segments[0].pieces[0])(0, 30 * MIB))
    model.segments[0].pieces[1].address = model.segments[0].pieces[0].end
    model.history[0]["size"] = 60 * MIB
    matched = match(tmp_path, model)
    assert not matched.is_exact
    assert (matched.largest_bytes, matched.peak_bytes) == (30 * MIB, 60 * MIB)
    assert not matched.is_sufficient
