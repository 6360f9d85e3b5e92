"""Memory snapshots before and after: what compare answers, beside times and without them, and what gates hold of it."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from chrome_builder import op, step, write
from command_line import invoke
from compare.made import made_side, row, step_rows
from compare.memory_sides import holding, measured, memory_side, of_one
from memory_builder import Allocator, DeviceFullError, frame, pickled, snapshot

import tracekit
from tracekit.analyses.memory import fragmentation, out_of_memory
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import SCHEMA, Comparison
from tracekit.compare.gate_rules import GateRules, make_gate_rule, parse_rule_text
from tracekit.compare.gates.outcomes import apply_gate_rules, summarize_gates
from tracekit.compare.gates.self_test import run_gate_self_test
from tracekit.compare.judge import compare_sides
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.job.steps.step_values import list_values_of_job
from tracekit.model.errors import NothingComparableError
from tracekit.model.tables import TABLES
from tracekit.pipeline.summary.notes import list_value_rows
from tracekit.render.json import read_schema_json

MIB = 2**20


def compared(base, opt, **choices):
    return compare_sides(base, opt, ComparisonChoices(**choices))


def sheet(report, name):
    found = {one.name: one for section in report.sections for one in section.sheets}
    names = [heading.name for heading in found[name].headings]
    return [dict(zip(names, cells, strict=True)) for cells in found[name].rows]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two snapshots and nothing else: 40 MiB fewer activations, and a cache that is new."""
    folder = tmp_path_factory.mktemp("files")
    base = holding((60 * MIB, "forward"), (4 * MIB, "load", "/job/data.py", 3))
    opt = holding((20 * MIB, "forward", "/job/train.py", 11), (4 * MIB, "load", "/job/data.py", 3),
                  (2 * MIB, "cached", "/job/data.py", 9))  # fmt: skip
    for name, made in (("a", base), ("b", opt)):
        (folder / f"{name}.pickle").write_bytes(pickled(snapshot(made)))
    return folder


@pytest.fixture(scope="module")
def printed(files):
    """What the command line prints of both; `kept.json` holds the comparison then."""
    paths = [str(files / name) for name in ("a.pickle", "b.pickle")]
    options = ["-j", "1", "--export", "text=-", "-o", str(files / "kept.json")]
    return invoke("compare", *paths, *options)


@pytest.fixture(scope="module")
def found(files, printed):
    """The comparison as it was saved."""
    assert printed.exit_code == 0, printed.output
    return read_schema_json((files / "kept.json").read_text(), {SCHEMA: Comparison})


def test_two_snapshots_are_compared_without_any_step(printed):
    done = printed
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    # 60 MiB get a segment of their own, 4 and 2 one of 20 together; of these 14 MiB stay free beside them.
    assert lines[2:] == [
        "memory: peak 64.0 MiB → 26.0 MiB (−59 %)",
        "exact: one snapshot per side is enough",
        "change −38.0 MiB  change of the peak reserved −40.0 MiB",
        "",
        "Memory before and after        before MiB  after MiB  change MiB  change, share  size",
        "peak requested                      64.00      26.00      −38.00        −59.4 %  ███████▋",
        "peak reserved                       80.00      40.00      −40.00        −50.0 %  ████████",
        "requested at the end                64.00      26.00      −38.00        −59.4 %  ███████▋",
        "allocated at the end                64.00      26.00      −38.00        −59.4 %  ███████▋",
        "reserved at the end                 80.00      40.00      −40.00        −50.0 %  ████████",
        "stranded at the end                 16.00      14.00       −2.00        −12.5 %  ▍",
        "largest free piece at the end       16.00      14.00       −2.00        −12.5 %  ▍",
        "GPU 0: a.pickle → b.pickle",
    ]


def test_the_comparison_carries_what_became_of_memory(found):
    assert (found.verdict, found.headline.name, found.headline.unit) == (
        "improvement", "device_peak_requested", "bytes",
    )  # fmt: skip
    assert found.memory.headline.difference == -38 * MIB
    assert found.memory.failed == (0, 0)
    report = build_comparison_report(found)
    assert report.answer == "memory: peak 64.0 MiB → 26.0 MiB (−59 %)"
    assert [(row["site"], row["state"], row["difference"]) for row in sheet(report, "memory-sites-peak")] == [
        ("train.py forward", "shrunk", -40 * MIB),
        ("data.py cached", "new", 2 * MIB),
        ("data.py load", None, 0),
    ]  # fmt: skip
    (chart,) = next(s for s in report.sections if s.id == "memory").charts
    assert (chart.kind, chart.unit, chart.marks[-1][3]) == ("waterfall", "bytes", 26 * MIB)


def test_a_saved_comparison_of_memory_is_shown_as_it_was(call, files, found):
    kept, shown = files / "kept.json", {}
    for kind in ("html", "md", "json", "text"):
        done = call("render", kept, "-f", kind)
        assert done.exit_code == 0, done.stderr
        shown[kind] = done.stdout
    assert json.loads(shown["json"])["memory"]["headline"]["opt"] == 26 * MIB
    assert "memory: peak 64.0 MiB → 26.0 MiB" in shown["md"]
    assert "Memory by allocation site at the peak" in shown["html"]


def test_what_was_saved_may_take_the_place_of_a_snapshot(tmp_path):
    made = (
        {"a.pickle": (holding((3 * MIB, "f")), {"rank": 0, "step": 1})},
        {"a.pickle": (holding((5 * MIB, "f")), {"rank": 0, "step": 1})},
    )
    base = memory_side(tmp_path / "base", made[0])
    whole = compared(base, memory_side(tmp_path / "opt", made[1]))
    levels = compared(base, memory_side(tmp_path / "opt", made[1], kept=False))
    assert levels.headline == whole.headline
    assert levels.memory.sites == ()
    assert len(whole.memory.sites) == 2
    assert [(one.name, one.base, one.opt) for one in levels.memory.pairs[0].levels[:6]] == [
        (one.name, one.base, one.opt) for one in whole.memory.pairs[0].levels[:6]
    ]
    report = build_comparison_report(levels)
    assert any("saved report has levels" in caution for caution in report.cautions)


def test_beside_times_memory_is_a_line_and_a_section(tmp_path):
    for name, lasting, size in (("base", 1000, 8), ("opt", 900, 6)):
        rows = [event for at in range(1, 7) for event in (step(at, at * 2000, lasting + at), op("aten::mm", at * 2000 + 1, 100))]  # fmt: skip
        write(tmp_path / name / "rank0.json", rows, rank=0)
        (tmp_path / name / "step1").mkdir()
        held = holding((size * MIB, "forward"))
        (tmp_path / name / "step1" / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(held)))  # fmt: skip
    both = tracekit.compare(tmp_path / "base", tmp_path / "opt", jobs=1)
    assert both.headline.name == "step_time"
    assert both.memory.headline.difference == -2 * MIB
    report = build_comparison_report(both)
    assert "faster" in report.answer or "inconclusive" in report.answer
    assert "memory" not in report.answer
    assert "memory: peak 8.00 MiB → 6.00 MiB (−25 %)" in report.basis
    assert "memory" in {section.id for section in report.sections}
    alone = tracekit.compare(tmp_path / "base", tmp_path / "opt" / "step1", jobs=1)
    assert alone.headline.name == "device_peak_requested"
    assert "step1 recorded no step: only memory is compared" in alone.warnings


def test_another_number_of_ranks_forbids_a_verdict_on_memory(tmp_path):
    sides = [of_one(tmp_path / name, holding((size, "f"))) for name, size in (("a", 100), ("b", 50))]  # fmt: skip
    sides = [replace(one, fingerprint={"world_size": world, "gpu": gpu}) for one, world, gpu in zip(sides, "84", ("H100", "H200"), strict=True)]  # fmt: skip
    held = GateRules((parse_rule_text("memory.peak_requested>1"),))
    found = compared(*sides, gate=held)
    assert (found.verdict, found.gates[0].outcome) == ("not comparable", "not comparable")
    assert build_comparison_report(found).answer.startswith("memory: not comparable · peak")
    assert compared(*sides, force=True).verdict == "no change"
    same = [replace(one, fingerprint={**one.fingerprint, "world_size": "8"}) for one in sides]
    assert compared(*same).verdict == "no change", "another GPU holds the same bytes"


def test_without_steps_and_without_memory_on_both_sides_nothing_is_comparable(tmp_path):
    one = of_one(tmp_path / "a", holding((100, "f")))
    for other in (made_side("b", [row("host_ops", 5, step=1)]), made_side("b", step_rows([1.0]))):
        with pytest.raises(NothingComparableError, match="a: no step was recorded"):
            compared(one, other)


def test_names_in_snapshots_control_no_output(tmp_path):
    name = "</script>|`\x1b[31m=cmd()\n"
    sides = [of_one(tmp_path / side, holding((size, name, f"/x/{name}.py", 1))) for side, size in (("a", 100), ("b", 90))]  # fmt: skip
    found = compared(*sides)
    for kind in ("text", "md", "html"):
        text = tracekit.render(found, kind, verbose=True)
        assert "\x1b[31m" not in text
        assert "cmd" in text
    assert "</script>|" not in tracekit.render(found, "html")


# --- what memory is held to -----------------------------------------------------------------------


def full(times=1, capacity=100 * MIB):
    """An allocator that could not meet so many requests."""
    made = Allocator(capacity=capacity)
    for _ in range(times):
        with pytest.raises(DeviceFullError):
            made.alloc(2 * capacity, [frame("forward")])
    made.alloc(MIB)
    return made


@pytest.fixture(scope="module")
def ran_out(tmp_path_factory):
    """Sides whose memory never ran out, did once, did twice; and one without a history."""
    folder = tmp_path_factory.mktemp("ran_out")
    bare = snapshot(holding((MIB, "f")))
    del bare["device_traces"]
    made = {"never": holding((MIB, "f")), "once": full(), "twice": full(2), "bare": bare}
    return {name: of_one(folder / name, held, out_of_memory, rank=0) for name, held in made.items()}


@pytest.mark.parametrize(
    ("base", "opt", "expected"),
    [
        ("never", "never", "pass"),
        ("never", "once", "fail"),
        ("once", "never", "pass"),
        ("once", "once", "pass"),
        ("once", "twice", "fail"),
        ("never", "bare", "not tested"),
        ("bare", "bare", "not tested"),
    ],
)
def test_the_second_side_may_not_run_out_of_memory_where_the_first_did_not(ran_out, base, opt, expected):
    rules = GateRules((make_gate_rule("new-oom", "0", "change", rise=True),))
    (gate,) = apply_gate_rules(rules, ran_out[base], ran_out[opt], ComparisonChoices())
    assert gate.outcome == expected
    if expected == "fail":
        assert gate.claim.startswith("new-oom +1, ")
    assert summarize_gates([gate]) == expected


def test_a_rule_on_running_out_of_memory_can_fail_where_a_history_was_read(ran_out):
    rules = GateRules((make_gate_rule("new-oom", "0", "change", rise=True),))
    for name, can_fail in (("never", True), ("bare", False)):
        (tested,) = run_gate_self_test(rules, ran_out[name], ComparisonChoices()).rules
        assert tested.can_fail is can_fail


def test_a_run_that_ran_out_is_not_made_up_for_by_others(ran_out, tmp_path):
    runs = {
        f"{n}.pickle": (full() if n == 2 else holding((MIB, "f")), {"run": f"r{n}"}) for n in (1, 2, 3)
    }  # fmt: skip
    side = memory_side(tmp_path / "runs", runs, out_of_memory)
    rules = GateRules((make_gate_rule("new-oom", "0", "change", rise=True),))
    (gate,) = apply_gate_rules(rules, ran_out["never"], side, ComparisonChoices())
    assert (gate.outcome, gate.base, gate.opt) == ("fail", 0, 1)


def test_that_memory_ran_out_is_the_first_thing_said(ran_out):
    found = compared(ran_out["never"], ran_out["twice"])
    assert found.memory.failed == (0, 2)
    assert build_comparison_report(found).cautions[0] == "memory ran out 2 times in twice, 0 times in never"


def test_a_request_that_two_snapshots_tell_of_failed_once(tmp_path):
    made = full()
    early = snapshot(made)
    with pytest.raises(DeviceFullError):
        made.alloc(300 * MIB)
    later = snapshot(made)  # the history was not cleared
    held = {"1.pickle": (early, {"step": 1, "pid": 7}), "2.pickle": (later, {"step": 2, "pid": 7})}
    values = list_values_of_job(measured(tmp_path / "run", held, out_of_memory))
    rows = values.filter(values.equals("name", "out_of_memory")).rows("run", "step", "value")
    assert list(rows) == [{"run": "run", "step": None, "value": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory.peak_requested>256MiB", "pass"),
        ("memory.peak_requested>255MiB", "fail"),
        ("memory.peak_reserved>256MiB", "pass"),
        ("memory.end_allocated>255MiB", "fail"),
        ("memory.end_requested>10%", "fail"),
        ("memory.stranded>0MiB", "fail"),
        ("memory.peak_allocated>256MiB", "pass"),
        ("memory.peak_allocated>255MiB", "fail"),
        ("memory.host_peak_allocated>1MiB", "not tested"),
    ],
)
def test_levels_of_one_snapshot_a_side_decide_a_gate(grown, text, expected):
    (gate,) = apply_gate_rules(GateRules((parse_rule_text(text),)), *grown, ComparisonChoices())
    assert gate.outcome == expected


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Two ranks, of which the worse needs 256 MiB more in its second step, though not in the first."""
    folder = tmp_path_factory.mktemp("grown")

    def side(name, *sizes):
        made = {
            f"{rank}{step}.pickle": (holding(*((s * MIB, "f") for s in held)), {"rank": rank, "step": step})
            for rank, step, *held in sizes
        }  # fmt: skip
        return memory_side(folder / name, made, fragmentation)

    # Blocks from 10 MiB on have a segment of their own; the one of 9 MiB strands 11 in a segment of 20.
    return (
        side("base", (0, 1, 500), (0, 2, 500), (1, 1, 100), (1, 2, 120)),
        side("opt", (0, 1, 500), (0, 2, 746, 10), (1, 1, 100), (1, 2, 110, 9)),
    )


def test_every_rank_and_step_has_a_row_the_worst_first(grown):
    found = compared(*grown)
    report = build_comparison_report(found)
    assert report.answer == "memory: peak 500 MiB → 756 MiB (+51 %)"
    rows = sheet(report, "memory-pairs")
    assert [(r["who"], r["step"], r["peak_requested_opt"], r["peak_requested_difference"]) for r in rows] == [
        ("rank 0, GPU 0", 2, 756 * MIB, 256 * MIB),
        ("rank 0, GPU 0", 1, 500 * MIB, 0),
        ("rank 1, GPU 0", 2, 119 * MIB, -MIB),
        ("rank 1, GPU 0", 1, 100 * MIB, 0),
    ]  # fmt: skip
    assert "memory of the median device: 310 MiB → 438 MiB (+41 %)" in report.basis
    section = next(s for s in report.sections if s.id == "memory")
    assert "the same steps of both sides are compared: 1, 2" in section.caveats


def test_a_snapshot_and_a_trace_of_one_process_are_not_put_together(tmp_path):
    found = measured(tmp_path / "run", {"a.pickle": (holding((MIB, "f")), {"rank": 0})})
    rows = found["metrics"].astype({"name": object, "tool": object})
    rows = rows[rows["name"].str.startswith("device_peak_")]
    traced = rows[rows["name"] == "device_peak_reserved"].assign(tool="torch", value=5.0)
    both = pd.concat([rows, traced, rows.assign(rank=1)], ignore_index=True)
    metrics = TABLES["metrics"].cast({name: both[name].to_numpy(object) for name in both})
    values = list_value_rows(replace(found, arrays={**found.arrays, "metrics": metrics}))
    told = [list(row.values()) for row in values.filter(~values["whole"]).rows("rank", "name", "value")]
    assert sorted(told) == [
        [0, "device_peak_allocated", MIB],
        [0, "device_peak_requested", MIB],
        [0, "device_peak_reserved", 5.0],
        [1, "device_peak_allocated", MIB],
        [1, "device_peak_requested", MIB],
        [1, "device_peak_reserved", 2 * MIB],
    ]
