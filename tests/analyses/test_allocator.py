"""What the caching allocator does by step: calls of the driver, retries, churn and lifetimes; R21 for snapshots."""

import pandas as pd
import pytest
from memory_builder import Allocator, stack
from snapshot_traces import MIB, loaded, report, rows, section, table, written

from tracekit.analyses.memory import allocator as analysis
from tracekit.model.tables import TABLES

QUESTIONS = ("allocator", "fragmentation", "interruptions")


def steady(calls, step=3):
    """A step in which so many segments are got from the driver or given back."""
    one = Allocator()
    for at in range(calls):
        if at % 2 == 0:
            one.free(one.alloc(30 * MIB))
        else:
            one.empty_cache()
    return {step: one}


def found(tmp_path, made):
    return [f for f in report(written(tmp_path, made)).findings if f.rule == "allocator-calls"]


def test_a_step_counts_allocations_and_calls_of_the_driver(tmp_path):
    one = Allocator()
    one.annotate("ProfilerStep#1", "START")
    one.free(one.alloc(30 * MIB))
    one.annotate("ProfilerStep#1", "END")
    one.annotate("ProfilerStep#2", "START")
    one.alloc(3 * MIB)
    one.empty_cache()
    one.annotate("ProfilerStep#2", "END")
    made = table(analysis.measure(loaded(tmp_path, one)), "allocator_steps")
    columns = ["step", "alloc_count", "alloc_bytes", "driver_alloc_count", "driver_alloc_bytes", "driver_free_count", "driver_free_bytes"]  # fmt: skip
    # The 3 MiB come from the segment of 30, which is then in use.
    assert made[columns].to_numpy().tolist() == [[1, 1, 30 * MIB, 1, 30 * MIB, 0, 0], [2, 1, 3 * MIB, 0, 0, 0, 0]]


def test_five_calls_in_a_steady_step_are_a_finding(tmp_path):
    (one,) = found(tmp_path, steady(5))
    assert one.severity == "low"
    assert {m.name: m.value for m in one.evidence} == {
        "calls": 5, "driver_bytes": 90 * MIB, "retries": 0, "steps": 1
    }  # fmt: skip
    assert one.places[0].step == 3


@pytest.mark.parametrize("made", [steady(4), steady(9, step=2)], ids=["four", "first-steps"])
def test_fewer_calls_and_first_steps_are_none(tmp_path, made):
    assert found(tmp_path, made) == []


def test_one_retry_is_a_finding(tmp_path):
    one = Allocator(capacity=20 * MIB)
    one.free(one.alloc(12 * MIB, stack("a")))
    one.alloc(14 * MIB, stack("b"))
    (told,) = found(tmp_path, {3: one})
    assert {m.name: m.value for m in told.evidence}["retries"] == 1
    assert "1 times after releasing its cache for one request" in told.claim


def test_without_a_steady_step_the_rule_abstains(tmp_path):
    one = section(report(written(tmp_path, steady(9, step=1))), "allocator")
    assert [(v.answer, v.reason) for v in one.verdicts] == [("insufficient data", "no snapshot of a step above 2")]


def test_calls_are_a_mean_over_steps_and_processes(tmp_path):
    written(tmp_path, steady(10, step=3))
    (one,) = found(tmp_path, steady(2, step=4))
    assert {m.name: m.value for m in one.evidence}["calls"] == 6


def test_churn_is_what_was_requested_over_the_peak(tmp_path):
    one = Allocator()
    for _ in range(6):
        one.free(one.alloc(2 * MIB))
    one.alloc(4 * MIB)
    (row,) = rows(section(report(written(tmp_path, {1: one})), "allocator"), "churn")
    assert (row["alloc_bytes"], row["churn"], row["alloc_count"]) == (16 * MIB, 4, 7)


def test_lifetimes_are_told_by_powers_of_ten(tmp_path):
    one = Allocator()
    one.alloc(512)  # entries are 10 µs apart
    short = one.alloc(1024)
    one.free(short)  # freed two entries later: 20 µs
    long = one.alloc(2048)
    for _ in range(5):
        one.free(one.alloc(4096))
    one.free(long)
    made = table(analysis.measure(loaded(tmp_path, one)), "lifetimes").astype(object)
    made = made.where(made.notna(), None)
    columns = ["low_ns", "high_ns", "block_count", "size_bytes"]
    # 170 µs: 15 entries of the five between, and the two of its own free.
    assert made[columns].to_numpy().tolist() == [
        [10_000, 100_000, 6, 1024 + 5 * 4096],
        [100_000, 1_000_000, 1, 2048],
        [None, None, 1, 512],
    ]


def test_measured_tables_are_those_of_the_schema(tmp_path):
    measured = analysis.measure(loaded(tmp_path, steady(5)[3]))
    assert measured
    for name, columns in measured.items():
        extra = set(columns) - set(TABLES[name].columns)
        assert not extra
        assert len(pd.DataFrame(dict(columns)))
