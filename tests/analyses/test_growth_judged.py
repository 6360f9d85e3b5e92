"""Growth of memory judged from levels made by hand: who grows, how fast, how severe it is, and what else is said."""

from math import exp

import pytest
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import memory_growth
from tracekit.model.inputs.facts import Facts
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

THRESHOLDS = load_default_thresholds()
MIB, GIB = 2**20, 2**30
OWNER = {"run": "r", "source": "a", "rank": 0, "device": 0}
LOGGED = {**OWNER, "tool": "log", "quantity": "allocated"}
STEP = {
    **OWNER, "tool": "torch", "device_type": 1, "occurrence": 0, "dur_ns": 100, "relative": False,
}  # fmt: skip
PEAK = {
    **OWNER, "tool": "torch", "device_type": 1, "sample_count": 1, "unsound_count": 0, "relative": False,
    "peak_bytes": GIB, "peak_ts_ns": 0, "omitted_stage_count": 0,
}  # fmt: skip


def table(name, rows, defaults):
    full = [defaults | row for row in rows]
    names = list(dict.fromkeys(key for row in full for key in row))
    return TABLES[name].cast({key: [row.get(key) for row in full] for key in names}, len(full))


def judged(*series, device_memory=None):
    """The section on series of logged levels, each (levels, whose)."""
    rows = [
        {"step": step, "position": step, "level_bytes": round(level), **whose}
        for levels, whose in series
        for step, level in enumerate(levels)
    ]
    tables = {"step_levels": table("step_levels", rows, LOGGED)}
    return memory_growth.judge(Measurements(tables, (), facts=Facts(device_memory=device_memory)), THRESHOLDS)


def profiled(*series):
    """The section on series of profiled levels."""
    rows = [
        {"step": step, "ts_ns": step, "floor_bytes": level, **whose}
        for levels, whose in series
        for step, level in enumerate(levels)
    ]
    tables = {
        "memory_steps": table("memory_steps", rows, STEP),
        "memory_peaks": table("memory_peaks", [whose for _, whose in series], PEAK),
    }
    return memory_growth.judge(Measurements(tables, ()), THRESHOLDS)


def rising(by=MIB, steps=12):
    return [GIB + by * step for step in range(steps)]


def only(section):
    (found,) = section.findings
    return found


def evidence(found):
    return {metric.name: metric.value for metric in found.evidence}


FLAT = [GIB] * 12


def test_without_levels_nothing_is_judged():
    section = memory_growth.judge(Measurements({}, ()), THRESHOLDS)
    assert (section.status, section.findings, section.verdicts) == ("skipped", (), ())
    assert judged().status == "skipped"


def test_the_number_of_steps_of_the_longest_series_is_told_where_it_is_too_small():
    section = judged((rising(steps=3), {}), (rising(steps=5), {"rank": 1}))
    (verdict,) = section.verdicts
    assert (verdict.answer, verdict.reason) == ("insufficient data", "GPU memory: 5 of at least 6 steps")
    section = judged((rising(steps=5), {"role": "actor"}), (FLAT, {"role": "critic"}))
    assert [verdict.reason for verdict in section.verdicts] == ["GPU memory of actor: 5 of at least 6 steps"]
    assert judged((rising(steps=5), {}), (FLAT, {"rank": 1})).verdicts == ()


def test_steps_of_a_series_that_counts_from_nothing_are_those_after_the_first():
    (verdict,) = profiled((rising(steps=5), {"relative": True})).verdicts
    assert verdict.reason == "GPU memory: 4 of at least 6 steps after the first, where levels start"
    (verdict,) = profiled((rising(steps=5), {}), (rising(steps=5), {"relative": True, "rank": 1})).verdicts
    assert verdict.reason == "GPU memory: 5 of at least 6 steps after the first, where levels start"


@pytest.mark.parametrize(
    ("series", "claim"),
    [
        ([(rising(), {})], "GPU memory of rank 0 grows by 1.00 MiB per step"),
        ([(rising(), {"role": "actor"})], "GPU memory of rank 0 actor grows by 1.00 MiB per step"),
        ([(rising(), {}), (FLAT, {"rank": 1})], "GPU memory of rank 0 grows by 1.00 MiB per step"),
        (
            [(rising(), {}), (rising(3 * MIB), {"rank": 1}), (FLAT, {"rank": 2})],
            "GPU memory, 2 of 3 devices, grows by 3.00 MiB per step",
        ),
        (
            [(rising(), {"role": "actor"}), (rising(), {"role": "actor", "rank": 1})],
            "GPU memory of actor, 2 of 2 devices, grows by 1.00 MiB per step",
        ),
    ],
)
def test_the_series_that_grow_are_named_with_the_fastest_growth(series, claim):
    assert only(judged(*series)).claim == claim


def test_a_host_s_memory_is_of_processes():
    host = {"device_type": 0, "device": -1}
    section = profiled((rising(8 * MIB), host), (rising(8 * MIB), {**host, "rank": 1}))
    found = only(section)
    assert found.claim == "CPU memory, 2 of 2 processes, grows by 8.00 MiB per step"
    assert [(place.rank, place.device) for place in found.places] == [(0, None), (1, None)]


@pytest.mark.parametrize(
    ("by", "room", "severity"),
    [
        (MIB, None, "low"),  # 8 MiB after warm-up, the last of 9 steps less the first
        (8 * MIB, None, "medium"),  # 64 MiB
        (8 * MIB - 1024, None, "low"),
        (MIB, 200 * MIB, "low"),  # full in 200 steps
        (MIB, 199 * MIB, "high"),
        (8 * MIB, 200 * 8 * MIB, "medium"),
    ],
)
def test_growth_is_severe_where_it_is_large_or_the_device_is_soon_full(by, room, severity):
    memory = None if room is None else max(rising(by)) + room
    assert only(judged((rising(by), {}), device_memory=memory)).severity == severity


def test_the_device_that_is_full_first_decides():
    """Rank 0 grows by 1 MiB with 100 MiB left, rank 1 by 2 MiB with 400 MiB left."""
    one, two = rising(), [level - 311 * MIB for level in rising(2 * MIB)]
    found = only(judged((one, {}), (two, {"rank": 1}), device_memory=max(one) + 100 * MIB))
    assert "grows by 2.00 MiB per step; the GPU is full in 100 steps" in found.claim
    assert evidence(found)["steps_left"] == 100


def test_the_evidence_is_of_the_fastest_and_p_the_least_of_all():
    noisy = [GIB + 16 * MIB * step + MIB * (7 * step * step % 10) for step in range(14)]
    found = only(judged((rising(steps=14), {}), (noisy, {"rank": 1})))
    alone = only(judged((rising(steps=14), {})))
    values = evidence(found)
    assert values["p"] == pytest.approx(2 * evidence(alone)["p"], rel=0.5)
    assert values["steps"] == 11
    assert values["growth"] == pytest.approx(16 * MIB, rel=0.1)
    assert "floor_growth" not in values
    labels = {metric.name: metric.label for metric in found.evidence}
    assert labels["p"].endswith("by chance, the least")
    assert {metric.name: metric.label for metric in alone.evidence}["p"].endswith("by chance")
    assert evidence(only(profiled((rising(8 * MIB), {}))))["floor_growth"] == 8 * MIB


def test_a_short_recording_is_said_to_be_one():
    for steps, short in ((14, True), (15, False)):
        found = only(judged((rising(steps=steps), {})))
        assert any("a slow warm-up cannot be separated" in caveat for caveat in found.caveats) is short
        assert "the first 3 steps count as warm-up" in found.caveats
        assert "a cache that fills over many more steps looks the same" in found.caveats


def test_at_most_eight_places_are_named():
    found = only(judged(*((rising(), {"rank": rank}) for rank in range(9))))
    assert "9 of 9 devices" in found.claim
    assert [place.rank for place in found.places] == list(range(8))


def test_growth_that_slows_down_may_be_a_cache():
    levels = [GIB + 400 * MIB * (1 - exp(-step / 6)) for step in range(12)]
    found = only(judged((levels, {}), device_memory=2 * GIB))
    assert found.severity == "info"
    assert found.claim.endswith("; still growing, may be filling: record 12 more steps")
    found = only(judged((levels, {}), (rising(), {"rank": 1})))
    assert found.claim.startswith("GPU memory of rank 1 grows by 1.00 MiB per step")


def test_growth_of_all_devices_together_is_told_where_none_grows_alone():
    """Each goes up and down by far more than it grows, half of them when the others go down."""
    series = [
        ([40_000 * MIB + 10 * MIB * step + 100 * MIB * (-1) ** (step + rank) for step in range(12)], {"rank": rank})
        for rank in range(8)
    ]
    found = only(judged(*series))
    assert "GPU memory, all 8 devices together, grows by" in found.claim
    assert found.severity == "low"
    assert "growth that levels off later, or a sawtooth longer than the capture, looks the same" in found.caveats


def test_what_is_not_judged_has_no_finding():
    assert judged((rising(), {"quantity": "reserved"}), (rising(), {"quantity": "peak allocated"})).findings == ()


def test_the_headline_is_the_median_slope_of_a_kind_with_its_widest_interval():
    section = judged(
        (rising(), {}), (rising(2 * MIB), {"rank": 1}), (rising(6 * MIB), {"rank": 2, "quantity": "reserved"})
    )
    (metric,) = section.metrics
    assert (metric.name, metric.value, metric.low, metric.high) == ("gpu_floor_slope", 1.5 * MIB, MIB, 2 * MIB)
    assert metric.label == "growth of GPU memory per step, median over processes"
    (metric,) = profiled((rising(), {})).metrics
    assert metric.label == "growth of minimum GPU memory per step, median over processes"


SNAPSHOTS = {**OWNER, "pid": 7, "tool": "torch_memory"}
STACK = {**SNAPSHOTS, "basis": "snapshot", "stack": 1, "site": "train.py:1 f", "frames": "f < main", "live_count": 7}


def holding(*levels, first=1, apart=1, **more):
    """A stack that holds so many MiB at the windows 0, 1 and so on, which are steps one after the other."""
    return [
        {**STACK, "window": window, "step": first + apart * window, "live_bytes": round(level * MIB), "cohort_count": 4}
        | more
        for window, level in enumerate(levels)
    ]


def requested(*levels, **more):
    """All that is in use at the end of each step, in MiB."""
    return [
        {**SNAPSHOTS, "step": step, "position": step, "level_bytes": level * MIB, "quantity": "requested", **more}
        for step, level in enumerate(levels, 1)
    ]


def kept(*stacks, levels=(), device_memory=None, **tables):
    """The section on these stacks, and on all that is in use."""
    survivors = [row for stack in stacks for row in stack]
    facts = Facts(device_memory=device_memory)
    measured = make_measured(facts=facts, survivors=survivors, step_levels=list(levels) or requested(5, 5), **tables)
    return memory_growth.judge(measured, THRESHOLDS)


UNTOLD = "a cache or buffer that is still being filled looks like a leak"


def test_a_stack_that_holds_more_at_every_step_is_named():
    """The first of five steps is warm-up: from 2 to 5 MiB in three steps."""
    found = only(kept(holding(0, 2, 3, 4, 5)))
    assert found.claim == "memory allocated in train.py:1 f is kept: 1.00 MiB more per step"
    assert found.severity == "medium"
    assert {name: evidence(found)[name] for name in ("kept", "cohorts", "blocks")} == {
        "kept": 3 * MIB, "cohorts": 4, "blocks": 7,
    }  # fmt: skip
    labels = {metric.name: metric.label for metric in found.evidence}
    assert labels["cohorts"] == "snapshots with live blocks, of 5"
    (place,) = found.places
    assert (place.run, place.rank, place.device, place.name) == ("r", 0, 0, "f < main")
    assert found.caveats[0] == UNTOLD


def test_a_stack_has_to_grow_by_a_quarter_of_a_mib_per_step():
    assert only(kept(holding(0, 1, 1.25, 1.5, 1.75))).rule == "memory-growth"
    slower = holding(0, 1, 1.25, 1.5, 1.75)
    slower[-1]["live_bytes"] -= 1
    assert kept(slower).findings == ()
    assert kept(holding(0, 4, 5, 6, 7, apart=4)).findings != ()
    assert kept(holding(0, 4, 5, 6, 7, apart=5)).findings == ()


def test_with_three_snapshots_growth_is_low_and_no_warm_up_is_left_out():
    found = only(kept(holding(1, 2, 3)))
    assert found.severity == "low"
    assert found.caveats[:2] == (UNTOLD, "with three snapshots no warm-up is left out")
    assert all("warm-up" not in caveat for caveat in only(kept(holding(0, 1, 2, 3))).caveats)


def test_snapshots_without_steps_are_counted_as_snapshots():
    found = only(kept(holding(0, 2, 3, 4, 5, step=None)))
    assert found.claim == "memory allocated in train.py:1 f is kept: 1.00 MiB more per snapshot"
    found = only(kept(holding(0, 2, 3, 4, 5, step=None, basis="step")))
    assert found.claim.endswith("1.00 MiB more per step")
    assert {m.name: m.label for m in found.evidence}["cohorts"] == "steps with live blocks, of 5"


def test_a_site_on_several_devices_is_one_finding_with_the_numbers_of_the_fastest():
    other = {"rank": 1, "pid": 8}
    found = only(kept(holding(0, 2, 3, 4, 5), holding(0, 10, 13, 16, 19, **other), holding(1, 2, 3, 4, 5, rank=2)))
    assert found.claim == "memory allocated in train.py:1 f is kept: 3.00 MiB more per step, on 3 devices"
    assert evidence(found)["kept"] == 9 * MIB
    assert [place.rank for place in found.places] == [1, 0, 2]
    many = only(kept(*(holding(0, 2, 3, 4, 5, rank=rank) for rank in range(9))))
    assert len(many.places) == 8
    two = kept(holding(0, 2, 3, 4, 5), holding(0, 2, 3, 4, 5, stack=2, site="data.py:1 g", role="actor"))
    assert len(two.findings) == 2


def test_a_stack_that_grows_by_less_and_less_may_be_filling():
    slowing = [0, 100, 150, 175, 187, 193, 196, 197.5]
    found = only(kept(holding(*slowing)))
    assert found.severity == "info"
    assert found.claim.endswith("; still growing, may be filling: record 8 more snapshots")
    assert found.caveats == (UNTOLD, "not projected: growth slows down")
    failed = [{**SNAPSHOTS, "memory": "device"}]
    assert only(kept(holding(*slowing), out_of_memory=failed)).severity == "info"


def test_a_stack_that_grew_until_memory_ran_out_is_high():
    failed = [{**SNAPSHOTS, "memory": "device"}]
    assert only(kept(holding(0, 2, 3, 4, 5), out_of_memory=failed)).severity == "high"
    assert only(kept(holding(1, 2, 3), out_of_memory=failed)).severity == "low"
    assert only(kept(holding(0, 2, 3, 4, 5), out_of_memory=[failed[0] | {"rank": 1}])).severity == "medium"
    both = [failed[0] | {"rank": 1}, *failed]
    assert only(kept(holding(0, 2, 3, 4, 5), out_of_memory=both)).severity == "high"


GROWING = range(100, 110)
"""MiB in use at the ends of ten steps: 1 more in each."""


@pytest.mark.parametrize(("room", "severity"), [(199, "high"), (200, "medium")])
def test_a_kept_stack_is_high_where_the_device_is_soon_full(room, severity):
    section = kept(holding(0, *range(2, 11)), levels=requested(*GROWING), device_memory=(109 + room) * MIB)
    found = only(section)
    assert found.severity == severity
    assert f"; the GPU is full in {room} steps" in found.claim
    assert (evidence(found)["growth"], evidence(found)["steps_left"]) == (MIB, room)
    labels = {metric.name: metric.label for metric in found.evidence}
    assert labels["growth"].startswith("per step, all memory (")


def test_snapshots_without_steps_tell_nothing_of_how_many_steps_are_left():
    section = kept(holding(0, *range(2, 11), step=None), levels=requested(*GROWING), device_memory=120 * MIB)
    assert only(section).severity == "medium"


def test_the_memory_of_other_processes_tells_nothing_of_a_stack():
    """The process itself is flat; another one grows, which is a finding of its own."""
    levels = [*requested(*[100] * 10), *requested(*range(100, 200, 10), rank=1)]
    stack, other = kept(holding(0, *range(2, 11)), levels=levels, device_memory=250 * MIB).findings
    assert evidence(stack)["growth"] == 0
    assert stack.caveats[-1] == "not projected: all memory together is flat"
    assert other.claim.startswith("GPU (snapshot) memory of rank 1 grows by 10.0 MiB per step")


def test_of_two_counts_of_a_process_the_one_that_grows_tells_of_its_stack():
    flat, growing = requested(*[100] * 10, quantity="allocated"), requested(*GROWING)
    for levels in ([*flat, *growing], [*growing, *flat]):
        (found, *_) = kept(holding(0, *range(2, 11)), levels=levels).findings
        assert evidence(found)["growth"] == MIB


def test_growth_that_a_kept_stack_explains_is_told_once():
    section = kept(holding(0, *range(2, 11)), levels=requested(*GROWING))
    assert "memory allocated in train.py:1 f" in only(section).claim
    (alone,) = kept(levels=requested(*GROWING)).findings
    assert "grows by 1.00 MiB per step" in alone.claim


@pytest.mark.parametrize(("height", "severity"), [(16, "low"), (32, "medium")])
def test_growth_in_stairs_is_told_with_its_period(height, severity):
    """Three rises, at the steps 4, 8 and 12: 48 or 96 MiB."""
    found = only(judged(([GIB + height * MIB * (step // 4) for step in range(13)], {})))
    assert f"grows by {height}.0 MiB every 4 steps" in found.claim
    assert found.severity == severity
    assert "a cache that fills over many more steps looks the same" in found.caveats


def test_of_devices_that_grow_the_fastest_gives_the_words():
    """Rank 0 grows in stairs of 16 MiB, rank 1 by about 1 MiB per step, up and down."""
    stairs = [GIB + 16 * MIB * (step // 4) for step in range(13)]
    noisy = [GIB + MIB * level for level in (-1, 5, 0, 4, 7, 2, 2, 10, 8, 13, 9, 10, 15)]
    for series in ([(stairs, {}), (noisy, {"rank": 1})], [(noisy, {}), (stairs, {"rank": 1})]):
        assert only(judged(*series)).claim == "GPU memory, 2 of 2 devices, grows by 16.0 MiB every 4 steps"
