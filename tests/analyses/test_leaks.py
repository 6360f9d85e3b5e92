"""What is allocated and never freed: stacks that only ever hold more, over snapshots and over steps within one."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_builder import MIB, Allocator, pickled, snapshot, stack

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import leaks
from tracekit.discover.names import read_name
from tracekit.job.memory.survivors import count_warm_up, find_kept_stacks
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.trace import Measurements, Source, Want, add_key_columns
from tracekit.pipeline import run as pipeline
from tracekit.readers import torch_memory

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

LIMIT = {"rising_ratio": 0.8, "cohorts": 3, "min_steps": 6, "p_strong": 0.01}
QUESTIONS = ("data-quality", "leaks", "memory-growth")
LEAK, MODEL, BUFFER, CACHE = stack("keep"), stack("build"), stack("forward"), stack("cached")


def write(folder, allocators, number, rank=0, clear=True, pid=1):
    """A snapshot of these devices as verl lays it out."""
    path = folder / f"step{number}" / f"torch_memory_rank{rank}_pid{pid}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickled(snapshot(*allocators, rank=rank)))
    for allocator in allocators:
        if clear:
            allocator.clear_history()
        allocator.annotations.clear()


def run(folder, steps, work, clear=True, rank=0):
    """A snapshot after each of the steps; `work` does what one of them does."""
    device = Allocator()
    device.alloc(8 * MIB + 512 * rank, MODEL)
    for number in range(steps):
        work(device, number)
        write(folder, [device], number, rank=rank, clear=clear)
    return folder


def leaking(device, number, size=MIB):
    """Half a MiB of a step is freed again; what `keep` allocates is not."""
    buffer = device.alloc(MIB // 2, BUFFER)
    device.alloc(size, LEAK)
    device.free(buffer)
    del number


def analyze(folder):
    return pipeline.analyze_uncached(folder, pipeline.Options(jobs=1, questions=QUESTIONS))


def measured(folder):
    """What the snapshots of a folder are measured to, without the rest of an analysis."""
    parts = []
    for path in sorted(folder.glob("**/*.pickle")):
        facts = read_name(path.relative_to(folder).parts)
        source = Source(
            path, str(path.relative_to(folder)), "torch_memory", "torch_memory",
            rank=facts.rank, pid=facts.pid, step=facts.step,
        )  # fmt: skip
        (trace,) = torch_memory.read(source, Want())
        columns = leaks.measure(trace)
        parts.append({n: add_key_columns(TABLES[n], c, trace.source) for n, c in columns.items()})
    joined = {n: concatenate_table_parts(TABLES[n], [part[n] for part in parts]) for n in parts[0]}
    return Measurements(leaks.ANALYSIS.fold(joined), ())


def found_in(folder):
    return list(find_kept_stacks(measured(folder), LIMIT))


def findings(folder):
    return [f for f in analyze(folder).report.findings if f.rule == "memory-growth"]


def test_the_site_that_keeps_a_block_of_every_step_is_named(tmp_path):
    """The first of eight snapshots is warm-up: six more blocks of 1 MiB from the second to the last."""
    (one,) = found_in(run(tmp_path, 8, leaking))
    assert one.site == "job/train.py:4 keep"
    assert (one.growth, one.steps, one.per_step) == (6 * MIB, 6, MIB)
    assert (one.cohorts, one.windows, one.warm_up, one.blocks) == (8, 8, 1, 8)
    assert one.levels == tuple(n * MIB for n in range(2, 9))


def test_the_finding_names_site_growth_and_rank_and_is_the_only_one(tmp_path):
    (found,) = findings(run(tmp_path, 8, leaking))
    assert found.claim == "memory allocated in job/train.py:4 keep is kept: 1.00 MiB more per step"
    assert found.severity == "medium"
    assert [(p.rank, p.device, p.name) for p in found.places] == [(0, 0, "job/train.py:4 keep")]
    evidence = {m.name: m.value for m in found.evidence}
    assert evidence == {"kept": 6 * MIB, "cohorts": 8, "blocks": 8, "growth": MIB}
    assert "not projected: device size unknown, give --device-memory" in found.caveats


def grown_to(folder, size):
    """The finding on a card of this size."""
    options = pipeline.Options(jobs=1, device_memory=size, questions=QUESTIONS)
    (found,) = (f for f in pipeline.analyze_uncached(folder, options).report.findings if f.rule == "memory-growth")  # fmt: skip
    return found


def test_with_the_size_of_the_card_it_says_in_how_many_steps_it_is_full(tmp_path):
    """1 MiB a step of what is not reserved: a segment of 20 MiB for the model, five of 2 MiB for all that is small."""
    folder = run(tmp_path, 8, leaking)
    reserved = 30 * MIB
    found = grown_to(folder, reserved + 200 * MIB)
    assert found.claim.endswith("1.00 MiB more per step; the GPU is full in 200 steps")
    assert found.severity == "medium"
    left = next(m for m in found.evidence if m.name == "steps_left")
    assert (left.value, left.low, left.high) == (200, 200, 200)
    soon = grown_to(folder, reserved + 199 * MIB)
    assert (soon.severity, next(m.value for m in soon.evidence if m.name == "steps_left")) == ("high", 199)  # fmt: skip


def test_a_leak_beside_a_level_that_jumps_is_not_projected(tmp_path):
    """What `keep` holds grows, all memory together is one jump down and then flat: the leak takes its place."""

    def work(device, number):
        device.alloc(MIB, LEAK)
        if held:
            device.free(held.pop())
        held.append(device.alloc((40 - number) * MIB, CACHE))

    held = []
    found = grown_to(run(tmp_path, 8, work), 1024 * MIB)
    assert "steps_left" not in {m.name for m in found.evidence}
    assert any(c.startswith("not projected: all memory together") for c in found.caveats)


def test_files_without_rank_process_or_step_in_their_names_are_not_one_process(tmp_path):
    """Three steps of one program under names that tell nothing: they could be of three programs."""
    run(tmp_path, 3, leaking)
    for number in range(3):
        path = tmp_path / f"step{number}" / "torch_memory_rank0_pid1.pickle"
        shutil.move(path, tmp_path / f"{'abc'[number]}.pickle")
    found = measured(tmp_path)
    assert find_kept_stacks(found, LIMIT) == []
    section = leaks.judge(found, load_default_thresholds())
    assert (section.status, "process and order" in section.reason) == ("skipped", True)


def test_a_leak_too_small_to_matter_is_listed_and_no_finding(tmp_path):
    folder = run(tmp_path, 8, lambda device, n: leaking(device, n, 4096))
    (one,) = found_in(folder)
    assert one.per_step == 4096
    assert findings(folder) == []


def test_missing_steps_make_no_steeper_leak(tmp_path):
    """Steps 0 to 7 without 3 and 4: from step 1 to 7 six blocks, over six steps."""
    run(tmp_path, 8, leaking)
    for number in (3, 4):
        shutil.rmtree(tmp_path / f"step{number}")
    (one,) = found_in(tmp_path)
    assert (one.growth, one.steps, one.per_step, one.windows) == (6 * MIB, 6, MIB, 6)


def test_a_buffer_that_grows_whenever_it_is_allocated_again_is_told_from_kept_blocks(tmp_path):
    """Only one step's block is alive; the first of 8 snapshots is warm-up, so 2 to 8 MiB are compared: 6 rises."""
    held = []

    def work(device, number):
        if held:
            device.free(held.pop())
        held.append(device.alloc(MIB * (number + 1), BUFFER))

    (one,) = found_in(run(tmp_path, 8, work))
    assert (one.is_regrown, one.cohorts, one.growth, one.site) == (True, 1, 6 * MIB, "job/train.py:7 forward")


@pytest.mark.parametrize(("steps", "others", "is_found"), [(6, 0, False), (7, 2, True), (7, 3, False)])
def test_growth_of_replaced_blocks_needs_enough_steps_for_its_number_of_stacks(tmp_path, steps, others, is_found):
    """Of the 360 orders of 6 levels that end higher one rises all the time: up to 3 such stacks at a probability of 0.01."""
    held = []

    def work(device, number):
        while held:
            device.free(held.pop())
        held.append(device.alloc(MIB * (number + 1), BUFFER))
        for other in range(others):
            held.append(device.alloc(MIB // 2 * (2 - number % 2), stack(f"other_{'x' * other}")))

    assert bool(found_in(run(tmp_path, steps, work))) == is_found


def test_what_is_allocated_once_in_the_first_steps_is_no_leak(tmp_path):
    """The optimizer's state, and a cache that is full after three steps."""

    def work(device, number):
        if number == 1:
            device.alloc(16 * MIB, stack("optimizer"))
        if number < 3:
            device.alloc(MIB, CACHE)

    assert found_in(run(tmp_path, 8, work)) == []


def test_what_is_freed_at_times_is_no_leak(tmp_path):
    held = []

    def work(device, number):
        held.append(device.alloc(MIB, CACHE))
        if number == 5:
            device.free(held.pop(0))
            device.free(held.pop(0))

    assert found_in(run(tmp_path, 8, work)) == []


@pytest.mark.parametrize(("rises", "named"), [(4, 0), (5, 1), (6, 1)])
def test_it_has_to_rise_in_four_of_five_steps(tmp_path, rises, named):
    """Of the six intervals after warm-up 5 are more than 80 %, 4 are less."""

    def work(device, number):
        if number < 2 or number >= 8 - rises:
            device.alloc(MIB, LEAK)

    assert len(found_in(run(tmp_path, 8, work))) == named


@pytest.mark.parametrize(("count", "named"), [(2, 0), (3, 1), (4, 1)])
def test_at_least_three_snapshots_are_needed(tmp_path, count, named):
    folder = run(tmp_path, count, leaking)
    found = measured(folder)
    assert [one.warm_up for one in find_kept_stacks(found, LIMIT)] == [0 if count == 3 else 1] * named
    section = leaks.judge(found, load_default_thresholds())
    assert (section.status == "skipped") == (count == 2)


def test_a_history_that_is_not_cleared_counts_nothing_twice(tmp_path):
    """Every snapshot tells of all steps so far; the blocks of each count as of the step that made them."""
    found = measured(run(tmp_path, 8, leaking, clear=False))
    (one,) = find_kept_stacks(found, LIMIT)
    assert (one.growth, one.cohorts, one.blocks) == (6 * MIB, 8, 8)
    caveats = leaks.judge(found, load_default_thresholds()).caveats
    assert any("overlap" in caveat for caveat in caveats)


def test_a_place_that_is_freed_and_taken_again_is_a_new_block(tmp_path):
    """The only old block is always the model's: two are alive at any end, of this step and the one before."""
    held = []

    def work(device, number):
        held.append(device.alloc(MIB + number * 512, BUFFER))
        if len(held) > 2:
            device.free(held.pop(0))

    found = measured(run(tmp_path, 6, work))
    assert found["survivors"]["cohort_count"].dropna().max() == 2
    assert find_kept_stacks(found, LIMIT) == []


@pytest.mark.parametrize("first", [0, 3])
def test_what_is_kept_in_every_fourth_step_is_found_in_twelve(tmp_path, first):
    def work(device, number):
        if number % 4 == first:
            device.alloc(10 * MIB, LEAK)

    (one,) = found_in(run(tmp_path, 12, work))
    assert (one.site, one.growth, one.cohorts) == ("job/train.py:4 keep", (20 + 10 * (first > 0)) * MIB, 3)  # fmt: skip


def test_two_jumps_are_not_kept_step_after_step(tmp_path):
    def work(device, number):
        if number in (0, 5, 11):
            device.alloc(10 * MIB, LEAK)

    assert found_in(run(tmp_path, 12, work)) == []


def test_a_cache_that_fills_more_and_more_slowly_is_no_leak_yet(tmp_path):
    def work(device, number):
        device.alloc(512 * int(2**14 * 0.7**number), CACHE)

    (found,) = findings(run(tmp_path, 8, work))
    assert found.severity == "info"
    assert found.claim.endswith("per step; still growing, may be filling: record 8 more snapshots")
    assert "not projected: growth slows down" in found.caveats


def test_ranks_are_apart_and_share_one_finding(tmp_path):
    for rank in range(3):
        run(tmp_path, 4, leaking, rank=rank)
    (found,) = findings(tmp_path)
    assert found.claim.endswith("1.00 MiB more per step, on 3 devices")
    assert sorted(place.rank for place in found.places) == [0, 1, 2]


def test_a_copy_of_a_snapshot_changes_nothing(tmp_path):
    run(tmp_path / "a", 8, leaking)
    first = found_in(tmp_path / "a")
    source = tmp_path / "a" / "step3" / "torch_memory_rank0_pid1.pickle"
    shutil.copy(source, source.with_name("copy_torch_memory_rank0_pid1.pickle"))
    assert [(o.growth, o.cohorts) for o in found_in(tmp_path / "a")] == [(o.growth, o.cohorts) for o in first]


def stepping(device, steps, name="ProfilerStep#{}"):
    for number in range(steps):
        device.annotate(name.format(number), "START")
        leaking(device, number)
        device.annotate(name.format(number), "END")


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "step {}", "Optimizer.step#AdamW.step"])
def test_steps_marked_within_one_snapshot_are_compared(tmp_path, name):
    device = Allocator()
    device.alloc(8 * MIB, MODEL)
    stepping(device, 8, name)
    (tmp_path / "snapshot.pickle").write_bytes(pickled(snapshot(device)))
    (one,) = found_in(tmp_path)
    assert (one.basis, one.site, one.growth, one.cohorts) == ("step", "job/train.py:4 keep", 6 * MIB, 8)  # fmt: skip
    assert one.per_step == MIB


def test_a_snapshot_without_steps_tells_of_no_leak(tmp_path):
    device = Allocator()
    for number in range(8):
        leaking(device, number)
    (tmp_path / "snapshot.pickle").write_bytes(pickled(snapshot(device)))
    assert found_in(tmp_path) == []


def test_devices_without_stacks_are_told_as_such(tmp_path):
    folder = run(tmp_path, 8, lambda device, _: device.alloc(MIB))
    (one,) = found_in(folder)
    assert one.site == "no frame was recorded"


def test_profiles_without_snapshots_have_no_such_section(tmp_path):
    from chrome_builder import op
    from chrome_builder import write as trace

    report = analyze(trace(tmp_path / "r.json", [op("aten::mm", 0, 10)])).report
    assert [s.id for s in report.sections if s.id == "leaks"] == []


@pytest.mark.slow
@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6), min_size=3, max_size=6))
def test_cohorts_are_those_of_the_model(tmp_path_factory, steps):
    """Whatever is allocated and freed: the number of steps whose blocks are alive is what the allocator knows."""
    folder = tmp_path_factory.mktemp("run")
    device, alive = Allocator(), {}
    truth = []
    for number, actions in enumerate(steps):
        for which, frees in actions:
            mine = [a for a, (w, _) in alive.items() if w == which]
            if frees and mine:
                device.free(mine[0])
                del alive[mine[0]]
            else:
                alive[device.alloc(512 * (which + 1), stack("abcd"[which]))] = (which, number)
        truth.append(pd.DataFrame([*alive.values()], columns=["which", "born"]))
        write(folder, [device], number)
    if not truth[0].size and not device.history:
        return
    rows = measured(folder)["survivors"]
    rows = rows[rows["cohort_count"].notna()]
    for site, window, cohorts, count in zip(
        rows["site"], rows["window"], rows["cohort_count"], rows["live_count"], strict=True
    ):
        mine = truth[window][truth[window]["which"] == "abcd".index(site[-1])]
        assert (mine["born"].nunique(), len(mine)) == (cohorts, count)


def test_warm_up_is_one_snapshot_unless_there_are_three():
    assert [int(count_warm_up(count)) for count in (1, 3, 4, 100)] == [0, 0, 1, 1]


@needs_data
@pytest.mark.parametrize(("folders", "growth", "windows"), [("step*", 2_973_696, 8), ("*", 3_586_048, 9)])
def test_of_the_simulated_run_exactly_the_planted_site_is_named(tmp_path, folders, growth, windows):
    """Each file is what one step of a real run on the CPU would leave of a GPU; with `init` one step more counts."""
    for folder in Path(REAL, "memory", "SIMULATED_cpu_allocsim").glob(folders):
        shutil.copytree(folder, tmp_path / folder.name)
    (one,) = found_in(tmp_path)
    assert one.site == "simgen.py:13 leak"
    assert (one.growth, one.cohorts, one.windows) == (growth, 8, windows)
    (found,) = findings(tmp_path)
    assert "simgen.py:13 leak" in found.claim


@needs_data
def test_real_snapshots_of_single_moments_name_no_leak():
    for folder in ("bcrafton+assignment2-systems", "MAGMA27+assignment2-systems"):
        assert found_in(Path(REAL, "memory", folder)) == []
