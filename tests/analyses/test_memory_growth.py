"""Growth of memory from step to step: what is compared, what is called a leak and what is not; finding R19."""

from math import exp

import pytest
from analyses.memory_sections import analyze, real, sections, sheet, verdicts
from chrome_builder import annotation, step, write
from rules.firing import write_sources
from rules.traces_memory import FIRES, MIB, card, leak, sample, steps_at

from tracekit.job.memory.trend import list_profiled_series
from tracekit.model.stats.trend import GrowthLimits

QUESTIONS = ("memory", "memory-growth")

LIMITS = GrowthLimits(6, 262_144, 1e-5, MIB, 0.05, 0.01, 0.5)


def grown(tmp_path, files):
    return list(list_profiled_series(analyze(write_sources(tmp_path, files)).measurements, LIMITS))


def with_stage(levels, stage="actor_update", end=50):
    """Steps of 100; the level is reached before the stage ends, and gone before the step does."""
    rows = []
    for number, level in enumerate(levels):
        at = 100 * number
        rows += [step(number, at, 100), annotation(stage, at, end)]
        rows += [sample(at + 10, level), sample(at + 80, 1000 + number)]
    return rows


def test_levels_are_compared_at_the_end_of_the_update(tmp_path):
    (one,) = grown(tmp_path, with_stage([50, 70, 90]))
    assert one.phase == "end of update_actor"
    assert one.level.tolist() == [50, 70, 90]
    assert one.point.per_x == 20
    # The least level of a step: 50, then what the steps before left, 1000 and 1001; or 70 and 90 below it.
    assert one.floor.per_x == 20


def test_a_stage_that_one_step_lacks_is_no_point_to_compare(tmp_path):
    rows = [r for r in with_stage([50, 70, 90]) if r["name"] != "actor_update" or r["ts"] != 100]
    (one,) = grown(tmp_path, rows)
    assert one.phase == "floor of the step"


def test_without_an_update_the_last_stage_of_all_steps_is_taken(tmp_path):
    rows = with_stage([50, 70, 90], "gen") + [annotation("ref", 100 * n + 60, 10) for n in range(3)]
    (one,) = grown(tmp_path, rows)
    assert one.phase == "end of ref"


def test_missing_steps_do_not_make_the_slope_steeper(tmp_path):
    """Steps 0, 2 and 6 at 10, 30 and 70: ten a step."""
    rows = [row for n, level in ((0, 10), (2, 30), (6, 70)) for row in (step(n, 100 * n, 100), sample(100 * n, level))]  # fmt: skip
    (one,) = grown(tmp_path, rows)
    assert one.floor.per_x == 10


def test_levels_from_the_start_of_the_recording_lose_its_first_step(tmp_path):
    (one,) = grown(tmp_path, steps_at([8, 20, 40, 60], device_type=0, size=8))
    assert one.relative
    # The least of steps 1, 2 and 3 is what the step before left.
    assert one.level.tolist() == [8, 20, 40]


def test_hosts_are_compared_within_one_recording_only(tmp_path):
    """What a host allocates between two recordings is in neither."""
    name = "actor_train_step{}_rank0-of-1_pid7_20260101000000000.json"
    files = {
        name.format(n): [annotation("actor_update", 100 * n, 50), sample(100 * n + 1, 10 * n, device_type=kind)]
        for kind in (0,)
        for n in range(3)
    }  # fmt: skip
    assert [len(one.x) for one in grown(tmp_path / "cpu", files)] == [1]
    files = {n: [r | {"args": r["args"] | {"Device Type": 1}} if "args" in r else r for r in rows] for n, rows in files.items()}  # fmt: skip
    assert [len(one.x) for one in grown(tmp_path / "gpu", files)] == [3]


def test_stages_recorded_one_by_one_make_one_step(tmp_path):
    name = "actor_{}_step{}_rank0-of-1_pid7_20260101000000000.json"
    files = {}
    for n in range(2):
        for at, scope, stage, level in ((0, "actor-update", "actor_update", 5), (50, "ref-compute-log-prob", "ref_compute_log_prob", 9)):  # fmt: skip
            rows = [annotation(stage, 100 * n + at, 40), sample(100 * n + at + 1, level + n)]
            files[name.format(scope, n)] = rows
    (one,) = grown(tmp_path, files)
    assert one.phase == "end of update_actor"
    assert one.level.tolist() == [5, 6]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_fewer_than_six_steps_are_insufficient_but_their_slope_is_printed(tmp_path, count):
    rows = steps_at([1024 * MIB + 100 * MIB * n for n in range(count)])
    found = sections(write(tmp_path / "r.json", rows))["memory-growth"]
    assert found.findings == ()
    assert verdicts(found)["memory-growth"] == (
        "insufficient data", f"GPU memory: {count} of at least 6 steps",
    )  # fmt: skip
    (row,) = sheet(found, "memory_trend")
    assert row.get("slope") == (None if count < 2 else {2: 0, 5: 100 * MIB}[count])


def test_one_step_that_counts_from_nothing_is_insufficient(tmp_path):
    found = sections(write(tmp_path / "r.json", steps_at([5], device_type=0, size=5)))
    assert found["memory-growth"].status == "skipped"
    assert verdicts(found["memory-growth"])["memory-growth"][0] == "insufficient data"


def findings(path):
    return sections(path)["memory-growth"].findings


@pytest.mark.parametrize(
    "levels",
    [
        [1024 * MIB] * 12,
        [1024 * MIB + 500 * MIB * (n >= 6) for n in range(12)],  # one jump
        [1024 * MIB + 100 * MIB * (n % 3) for n in range(12)],  # a sawtooth
        [1024 * MIB + 100 * MIB * min(n, 4) for n in range(14)],  # caches that fill up
        [1024 * MIB - 20 * MIB * n for n in range(12)],
    ],
)
def test_what_is_no_leak_is_not_called_one(tmp_path, levels):
    assert findings(write(tmp_path / "r.json", steps_at(levels))) == ()


def trend(path):
    (row,) = sheet(sections(path)["memory-growth"], "memory_trend")
    return row["answer"]


def test_a_jump_has_its_step_and_its_size(tmp_path):
    levels = [1024 * MIB + 500 * MIB * (n >= 9) + MIB * (n % 2) for n in range(16)]
    # The least of a step is what the one before left: the jump is seen in the step after it.
    rows = steps_at(levels)
    assert trend(write(tmp_path / "r.json", rows)) == "one jump at step 10 by 500 MiB"


def test_a_sawtooth_is_hinted_at_beside_no_growth(tmp_path):
    # The least of a step is what the one before left, or what it falls back to: 0, 100, 200, 0 above a GiB.
    levels = [1024 * MIB + 100 * MIB * (n % 4) for n in range(20)]
    assert trend(write(tmp_path / "r.json", steps_at(levels))) == (
        "no steady growth; falls back 4 times by 200 MiB, every 4 steps"
    )
    noise = [1024 * MIB + MIB * (7 * n * n % 31) for n in range(20)]
    assert trend(write(tmp_path / "n.json", steps_at(noise))) == "no steady growth"


def test_a_stage_that_keeps_more_and_more_at_its_end_but_frees_it_is_no_leak(tmp_path):
    levels = [2000 * MIB + 20 * MIB * n for n in range(12)]
    rows = with_stage(levels)
    assert findings(write(tmp_path / "r.json", rows)) == ()


def test_growth_that_fills_the_card_soon_is_high(tmp_path):
    """8 MiB a step with 1112 MiB held: a card of 2712 MiB lasts 200 steps more, a smaller one less."""
    for size, severity in ((2712 * MIB, "medium"), (2711 * MIB, "high")):
        (found,) = findings(write(tmp_path / "r.json", card(leak(), 0), **card(leak(), size).meta))
        assert found.severity == severity
        (left,) = (m for m in found.evidence if m.name == "steps_left")
        # All pairs of steps rise by 8 MiB a step: the interval has no width.
        steps = (size - 1112 * MIB) // (8 * MIB)
        assert (left.low, left.value, left.high) == (steps, steps, steps)


def test_the_projection_has_the_interval_of_the_slope(tmp_path):
    """Levels rise by 16 MiB a step, and by up to 9 more or less: slopes of pairs differ."""
    levels = [1024 * MIB + 16 * MIB * n + MIB * (7 * n * n % 10) for n in range(14)]
    (found,) = findings(write(tmp_path / "r.json", steps_at(levels), **card([], 8192 * MIB).meta))
    growth, left = (next(m for m in found.evidence if m.name == name) for name in ("growth", "steps_left"))  # fmt: skip
    assert growth.low < growth.value < growth.high
    assert left.low < left.value < left.high
    room = 8192 * MIB - max(levels)
    assert (left.low, left.high) == (int(room / growth.high), int(room / growth.low))


def test_growth_below_one_per_cent_of_the_card_is_not_worth_a_finding(tmp_path):
    rows = leak()
    for size, fires in ((6400 * MIB, True), (6401 * MIB, False)):
        found = findings(write(tmp_path / "r.json", rows, **card(rows, size).meta))
        assert bool(found) == fires


def test_a_leak_on_one_rank_of_many_is_found_and_named(tmp_path):
    files = {rank: leak() if rank == 2 else steps_at([1024 * MIB] * 12) for rank in range(4)}
    (found,) = sections(write_sources(tmp_path, files))["memory-growth"].findings
    assert found.claim == "GPU memory of rank 2 grows by 8.00 MiB per step"
    assert [place.rank for place in found.places] == [2]


def test_a_leak_on_all_ranks_is_one_finding(tmp_path):
    (found,) = sections(write_sources(tmp_path, dict.fromkeys(range(4), leak())))["memory-growth"].findings  # fmt: skip
    assert found.claim == "GPU memory, 4 of 4 devices, grows by 8.00 MiB per step"


def test_a_later_clock_and_another_order_of_files_change_nothing(tmp_path):
    rows = [row | {"ts": row["ts"] + 10**9} for row in leak()]
    (found,) = findings(write(tmp_path / "r.json", rows[::-1]))
    assert found.claim == FIRES["memory-growth"].claim.replace("rank 0", "process 100")


def test_a_leak_of_every_fourth_step_is_told_by_its_rises(tmp_path):
    """The level at which each of the steps 1 to 11 begins: up by 40 MiB at steps 3, 7 and 11."""
    rows = steps_at([1024 * MIB + 40 * MIB * ((n + 2) // 4) for n in range(12)])
    (found,) = findings(write(tmp_path / "r.json", rows))
    assert found.severity == "medium"
    assert found.claim == "GPU memory of process 100 grows by 40.0 MiB every 4 steps"


def test_a_cache_that_fills_more_and_more_slowly_may_be_filling(tmp_path):
    """Of 400 MiB 1 − 1/e are there after 6 or 12 steps; what the card has left is not projected."""
    for constant in (6, 12):
        levels = [1024 * MIB + round(400 * MIB * (1 - exp(-n / constant))) for n in range(12)]
        rows = steps_at(levels)
        (found,) = findings(write(tmp_path / "r.json", rows, **card(rows, 2048 * MIB).meta))
        assert found.severity == "info"
        assert found.claim.endswith("per step; still growing, may be filling: record 12 more steps")
        assert "not projected: growth slows down" in found.caveats
        assert trend(tmp_path / "r.json") == "grows more slowly: may be filling"


def test_a_real_leak_of_three_steps_is_insufficient_and_its_slope_is_printed():
    """2 MiB were kept in each step."""
    found = sections(real("gloo_cpu", "fault_leak"))["memory-growth"]
    assert found.findings == ()
    assert verdicts(found)["memory-growth"][0] == "insufficient data"
    (slope,) = (m for m in found.metrics if m.name == "cpu_floor_slope")
    assert slope.value / MIB == pytest.approx(2.0, abs=0.05)
    rows = sheet(found, "memory_trend")
    assert [row["phase"] for row in rows] == ["end of update_actor"] * 2
    assert [row["slope"] / MIB for row in rows] == pytest.approx([2.0, 2.0], abs=0.1)


def test_a_real_run_without_a_leak_is_flat():
    found = sections(real("gloo_cpu", "base_mem"))
    assert all(s.findings == () for s in found.values())
    (row,) = sheet(found["memory-growth"], "memory_trend")
    assert (row["floor"], row["slope"]) == (0, 0)
