"""R13, R14, R17 and R31 on hand-made traces, and the numbers they are judged from."""

import json
import os
from pathlib import Path

import pytest
from analyses.rl_report import by_stage, result, rows, section
from chrome_builder import annotation, kernel, launch, launched, memcpy, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import traces_rl
from rules.firing import write_sources
from rules.traces_rl import MIB, batches_of, offload_of, update_of

import tracekit
from tracekit.analyses import load_default_thresholds, rules
from tracekit.model.intervals import merge_interval_sets, merge_intervals
from tracekit.model.tables import TABLES
from tracekit.process.device.transfers import measure_transfers
from tracekit.process.micro_batches import list_micro_batches

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
RULES = sorted(traces_rl.FIRES)


def findings(tmp_path, sources, rule=None):
    found = result(write_sources(tmp_path, sources)).report.findings
    return [f for f in found if rule in (None, f.rule)]


def answers(tmp_path, sources, rule):
    """What the rule says when it abstains."""
    report = result(write_sources(tmp_path, sources)).report
    return [v.answer for s in report.sections for v in s.verdicts if v.rule == rule]


# The rules on their traces


@pytest.mark.parametrize("rule", RULES)
def test_it_fires_with_the_numbers_worked_out_by_hand(tmp_path, rule):
    expected = traces_rl.FIRES[rule]
    (found,) = findings(tmp_path, expected.rows, rule)
    assert (found.claim, found.severity) == (expected.claim, expected.severity)
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert {m.name: m.value for m in found.evidence} == pytest.approx(expected.evidence)
    assert found.advice
    assert found.places


@pytest.mark.parametrize("rule", RULES)
def test_a_near_miss_does_not_fire(tmp_path, rule):
    assert findings(tmp_path, traces_rl.NEAR_MISSES[rule], rule) == []


@pytest.mark.parametrize("rule", RULES)
def test_on_its_trace_no_other_rule_fires(tmp_path, rule):
    assert {f.rule for f in findings(tmp_path, traces_rl.FIRES[rule].rows)} == {rule}


@pytest.mark.parametrize("rule", RULES)
def test_its_page_names_its_thresholds(rule):
    assert all(name in rules.read_rule_page(rule) for name in load_default_thresholds().of(rule))


# Weight sync


def log_of(folder, steps):
    """A driver's log of {step: {timer: seconds}}."""
    lines = [
        json.dumps({"step": n, "data": {f"timing_s/{k}": v for k, v in timers.items()}}) for n, timers in steps.items()
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def synced(size, dur, whole=10_000):
    """One step whose weight sync of 1000 is one collective; before it a copy of 4 MiB at 8 bytes a ns."""
    return [
        step(1, 0, whole), annotation("update_weights", whole - 1000, 1000),
        *launched("gemm", 0, 0, whole - 1000, 1),
        *launched("ncclDevKernel_Broadcast", whole - 990, whole - 990, dur, 2, stream=9,
                  **{"Collective name": "broadcast", "In msg nelems": size // 4, "Out msg nelems": size // 4,
                     "dtype": "Float", "Group size": 2, "Process Group Name": "0"}),
    ]  # fmt: skip


def test_the_bytes_of_a_sync_over_its_wall_are_its_rate(tmp_path):
    """4 MB in 1 ms of stage: 4 bytes a ns; the collective itself ran at 4,000,000 / 500,000 = 8."""
    report = result(write(tmp_path / "rank0.json", synced(4_000_000, 500))).report
    (row,) = rows(report, "transfers", "weight_sync")
    assert (row["weight sync"], row["collectives"], row["transfers"]) == (1_000_000, 4_000_000, 1)
    assert (row["rate"], row["best seen"]) == (pytest.approx(4.0), pytest.approx(8.0))


@pytest.mark.parametrize(("dur", "fires"), [(249, True), (250, False)])
def test_a_sync_of_little_time_counts_where_it_is_far_slower_than_its_transfers(tmp_path, dur, fires):
    """1 ms of 40 ms; its rate is dur / 1000 of that of the collective."""
    found = findings(tmp_path, synced(4_000_000, dur, whole=40_000), "weight-sync")
    assert bool(found) == fires
    if fires:
        assert "25 % of the fastest transfer" in found[0].claim
        assert found[0].cost_ns == 1_000_000 - dur * 1000


def test_a_sync_that_only_the_driver_timed_is_judged_by_its_log(tmp_path):
    """0.2 s of steps of 2 s, one of 1 s: the median is 0.1."""
    write(tmp_path / "rank0.json", [annotation("actor_update", 0, 50)])
    log_of(tmp_path, {n: {"step": 2.0 if n < 3 else 1.0, "update_weights": 0.2} for n in (1, 2, 3)})
    found = [f for f in result(tmp_path).report.findings if f.rule == "weight-sync"]
    assert [f.claim for f in found] == ["weight sync takes 10 % of the step, as the driver timed it"]
    assert found[0].cost_ns == 200_000_000
    assert found[0].severity == "high"


def test_without_any_weight_sync_the_rule_is_not_applicable(tmp_path):
    assert answers(tmp_path, [annotation("gen", 0, 50)], "weight-sync") == ["not applicable"]


@needs_data
def test_the_real_weight_sync_moves_every_parameter_once():
    folder = Path(REAL) / "chrome/gloo_cpu/base_run1"
    truth = json.loads((folder / "ground_truth.json").read_text())
    (row,) = rows(result(folder).report, "transfers", "weight_sync")
    assert row["collectives"] == truth["param_bytes"] == 4_445_184
    assert row["transfers"] == 29
    assert row["from"] == "trace"


# Copies between device and host


def test_copies_both_ways_at_once_count_once(tmp_path):
    """HtoD 0-40, DtoH 20-60, a kernel 50-100: exposed 40 + 20 apart, 50 together."""
    rows_ = [
        step(1, 0, 100), annotation("gen", 0, 30), launch(0, 1), launch(1, 2), launch(2, 3),
        memcpy("Memcpy HtoD (Pinned -> Device)", 0, 40, MIB, 1),
        memcpy("Memcpy DtoH (Device -> Pageable)", 20, 40, 2 * MIB, 2, stream=21),
        kernel("k", 50, 50, 3),
    ]  # fmt: skip
    trace = tracekit.load(write(tmp_path / "rank0.json", rows_))
    found = TABLES["transfers"].frame(trace.derived(measure_transfers))
    exposed = found.groupby("direction", observed=True)["exposed_ns"].sum()
    assert exposed.to_dict() == {"HtoD": 40_000, "DtoH": 30_000, "any": 50_000}
    mine = found[found["direction"] == "HtoD"].astype({"stage": object}).fillna({"stage": "-"}).set_index("stage")
    assert mine["busy_ns"].to_dict() == {"gen": 30_000, "-": 10_000}
    assert mine["size_bytes"].to_dict() == {"gen": MIB, "-": 0}
    report = result(tmp_path).report
    shares = {(r["stage"], r["direction"]): r["exposed"] for r in rows(report, "transfers", "host_copies")}
    assert shares[("gen", "HtoD")] == 30_000
    (finding,) = [f for f in report.findings if f.rule == "offload"]
    assert finding.cost_ns == 20_000  # without the 30 of the pageable copy
    assert any("pageable" in text for text in finding.caveats)


def test_small_copies_and_copies_behind_compute_are_not_exposed(tmp_path):
    small = [step(1, 0, 100), launch(0, 1), memcpy("Memcpy DtoH (Device -> Pinned)", 1, 90, 64_000, 1)]
    assert findings(tmp_path / "a", small, "offload") == []
    hidden = [*offload_of(10_000), *launched("gemm", 5, 80_000, 20_000, 9)]
    assert findings(tmp_path / "b", hidden, "offload") == []


def test_pinned_memory_is_advised_only_where_copies_are_not_pinned(tmp_path):
    (found,) = findings(tmp_path / "pinned", offload_of(5_000), "offload")
    assert found.advice.startswith("the memory is pinned already")
    rows = offload_of(5_000, memory="Pageable")
    assert findings(tmp_path / "pageable", rows, "offload") == []


def test_the_place_and_the_bytes_are_those_of_copies_that_are_not_pageable(tmp_path):
    """Of a step of 200: 60 of pageable copies alone in gen, 40 of pinned ones alone in ref."""
    rows_ = [
        step(1, 0, 200), annotation("gen", 0, 70), annotation("ref", 80, 60),
        launch(0, 1), launch(81, 2), launch(150, 3),
        memcpy("Memcpy HtoD (Pageable -> Device)", 5, 60, 3 * MIB, 1),
        memcpy("Memcpy HtoD (Pinned -> Device)", 85, 40, MIB, 2), kernel("k", 151, 40, 3),
    ]  # fmt: skip
    (found,) = findings(tmp_path, rows_, "offload")
    assert found.cost_ns == 40_000
    assert found.places[0].stage == "ref"
    assert {m.name: m.value for m in found.evidence}["htod_bytes"] == MIB


def test_one_way_alone_may_be_input_and_is_said_to_be(tmp_path):
    (found,) = findings(tmp_path, offload_of(5_000)[:-2], "offload")
    assert any("input" in text for text in found.caveats)


def test_without_a_gpu_nothing_is_said_of_copies(tmp_path):
    assert answers(tmp_path, [annotation("gen", 0, 50)], "offload") == ["not applicable"]
    report = result(tmp_path).report
    assert section(report, "transfers").status == "skipped"


COPIES = st.lists(
    st.tuples(st.sampled_from(("HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)", "odd")),
              st.integers(0, 200), st.integers(0, 90), st.sampled_from((None, 10, 10**6, 10**8))),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(COPIES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90)), max_size=5))
def test_what_is_exposed_is_what_the_intervals_say_in_stages_and_between(tmp_path_factory, copies, kernels):
    """Over stages and the rest of the step it adds up to the exposed part of the union."""
    rows_ = [op("a", 0, 300), annotation("gen", 20, 100), annotation("mine", 150, 60)]
    rows_ += [memcpy(f"Memcpy {way}", at, dur, size, None) for way, at, dur, size in copies]
    rows_ += [kernel("k", at, dur) for at, dur in kernels]
    trace = tracekit.load(write(tmp_path_factory.mktemp("any") / "rank0.json", rows_))
    found = TABLES["transfers"].frame(trace.derived(measure_transfers))
    ops = trace["device_ops"]
    large = ops[(ops["kind"] == "memcpy") & (ops["size_bytes"] > 64_000).fillna(value=False)]
    large = large[large["name"].astype(str).str.contains("HtoD|DtoH")]
    work = ops[ops["kind"] == "kernel"]
    spans = [merge_intervals(f["ts_ns"].to_numpy(), (f["ts_ns"] + f["dur_ns"]).to_numpy()) for f in (large, work)]
    both = merge_interval_sets(spans)
    mine = found[found["direction"] == "any"]
    assert int(mine["busy_ns"].sum()) == spans[0].total
    assert int(mine["exposed_ns"].sum()) == both.total - spans[1].total
    assert int(mine["count"].sum()) == len(large)


# Log-probs and micro-batches


def test_two_epochs_over_one_mini_batch_are_two_updates(tmp_path):
    """Ranges of the same name, one after the other."""
    epochs = [r | {"name": "mini_batch0"} if r["name"] == "mini_batch1" else r for r in update_of(2)]
    assert findings(tmp_path, epochs, "redundant-log-prob") == []


def test_an_update_without_mini_batches_or_captured_in_part_says_nothing(tmp_path):
    plain = [r for r in update_of(1) if not r["name"].startswith("mini")]
    assert answers(tmp_path / "a", plain, "redundant-log-prob") == ["insufficient data"]
    names = ("train_step2_rank0-of-1_pid7_20260101000000000.json", "actor-update_step2_rank0-of-1_pid7_20260101000000001_mb1.json")  # fmt: skip
    for name, rows_ in zip(names, (update_of(1)[1:], [annotation("mini_batch1", 0, 50)]), strict=True):
        write(tmp_path / "b" / f"actor-rollout-ref_{name}", rows_)
    report = result(tmp_path / "b").report
    told = [v.answer for s in report.sections for v in s.verdicts if v.rule == "redundant-log-prob"]
    assert told == ["insufficient data"]


def test_mini_batches_of_seven_and_one_vary(tmp_path):
    """Deviation 3√2 of mean 4."""
    (found,) = findings(tmp_path, batches_of(7_000, 1_000, kind="mini"), "ragged-micro-batches")
    assert found.claim.startswith("mini-batches of update_actor: vary by 106 %")
    assert found.cost_ns == 0


@pytest.mark.parametrize(("longer", "fires"), [(1_430, True), (1_429, False)])
def test_a_variation_of_a_quarter_is_where_it_begins(tmp_path, longer, fires):
    """Of two lengths it is √2 (b - a) / (a + b): 0.25025 of 1000 and 1430, 0.24978 of 1000 and 1429."""
    found = findings(tmp_path, batches_of(1_000, longer), "ragged-micro-batches")
    assert bool(found) == fires


def test_without_a_gpu_lengths_are_shown_but_not_judged(tmp_path):
    rows_ = [step(1, 0, 100), annotation("actor_update", 0, 100)]
    rows_ += [annotation("micro_batch0", 0, 60), annotation("micro_batch1", 60, 5)]
    assert findings(tmp_path, rows_, "ragged-micro-batches") == []
    assert answers(tmp_path, rows_, "ragged-micro-batches") == ["insufficient data"]
    report = result(tmp_path).report
    assert by_stage(report, "micro-batches", "batches", "lengths are") == {"update_actor": "host time"}
    assert by_stage(report, "micro-batches", "batches", "nearly empty") == {"update_actor": 1}


def test_kernels_count_where_they_were_launched_and_collectives_do_not(tmp_path):
    """The second batch launches 30 of kernels and a collective of 100; each kernel runs after its batch."""
    rows_ = [
        step(1, 0, 1000), annotation("actor_update", 0, 100),
        annotation("mini_batch0", 0, 90), annotation("micro_batch0", 0, 40), annotation("micro_batch1", 40, 40),
        *launched("k", 10, 200, 20, 1), *launched("k", 50, 300, 30, 2), *launched("ncclKernel", 60, 400, 100, 3, stream=9),
    ]  # fmt: skip
    trace = tracekit.load(write(tmp_path / "rank0.json", rows_))
    found = TABLES["micro_batches"].frame(trace.derived(list_micro_batches))
    assert list(zip(found["kind"], found["own_ns"], found["stage"], strict=True)) == [
        ("mini", 50_000, "actor_update"), ("micro", 20_000, "actor_update"), ("micro", 30_000, "actor_update"),
    ]  # fmt: skip


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("run", ["base_run1", "opt_run1", "straggler", "fault_leak"])
def test_real_runs_with_two_mini_batches_need_their_log_prob_pass(run):
    found = result(Path(REAL) / "chrome/gloo_cpu" / run).report.findings
    assert not {f.rule for f in found} & {"redundant-log-prob", "ragged-micro-batches", "offload"}
