"""Growth of memory judged from levels made by hand: who grows, how fast, how severe it is, and what else is said."""

from math import exp

import pytest

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
    assert verdict.reason == "GPU memory: 4 of at least 6 steps after the first, from which levels count"


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
    assert "grows by 2.00 MiB per step; the card is full in 100 steps" in found.claim
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
    assert labels["p"].endswith("without a trend, the least")
    assert {metric.name: metric.label for metric in alone.evidence}["p"].endswith("without a trend")
    assert evidence(only(profiled((rising(8 * MIB), {}))))["floor_growth"] == 8 * MIB


def test_a_short_recording_is_said_to_be_one():
    for steps, short in ((14, True), (15, False)):
        found = only(judged((rising(steps=steps), {})))
        assert any("a slow warm-up cannot be told" in caveat for caveat in found.caveats) is short
        assert "the first 3 steps count as warm-up" in found.caveats
        assert "a cache that fills over many more steps than these looks the same" in found.caveats


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
    assert metric.label == "growth of the least GPU memory per step, median over processes"
