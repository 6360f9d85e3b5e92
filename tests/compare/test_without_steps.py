"""Recordings without step marks: compared per unit of work that both sides hold, else not at all."""

import json
import os
from pathlib import Path

import pytest
from chrome_builder import annotation, kernel, op, step, write

REAL = os.environ.get("TRACEKIT_REAL_DATA")
RULE = ("--fail-on", "step_time>3%")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A directory without rules above it."""
    monkeypatch.chdir(tmp_path)


def window(path, every_us, *, length_us=30_000, name="flash_fwd_kernel", ranges=None, number=0):
    """A recording of so long in which a kernel comes again and again, `number` µs later every third time."""
    rows = [op("aten::loop", 0, length_us)]
    at, count = 10, 0
    while at < length_us - 500:
        rows.append(kernel(name, at, 300))
        rows += [kernel("elementwise_kernel", at + after, 50) for after in (310, 410)]
        if ranges:
            rows.append(annotation(ranges.format(count), at, 200))
        at += every_us + (number if count % 3 == 0 else 0)
        count += 1
    write(Path(path), rows)
    return path


def compared(call, *args):
    """(exit status, the comparison) of a run that writes JSON."""
    done = call("compare", *args, "-q", "-j", "1", "-o", "out.json")
    return done.exit_code, json.loads(Path("out.json").read_text())


def sides(*lasting, **more):
    """Options of both sides with four recordings each."""
    given = []
    for side, every_us in zip(("base", "opt"), lasting, strict=True):
        for run in (1, 2, 3, 4):
            given += [f"--{side}", window(f"{side}{run}.json", every_us, number=run, **more)]
    return given


def test_a_recording_is_no_step(call):
    """Of one length on both sides, the kernel coming every 1,000 and every 1,117 µs."""
    status, found = compared(call, window("a.json", 1000), window("b.json", 1117))
    assert status == 0
    step = found["headline"]
    assert (step["name"], step["title"]) == ("launch_cadence", "launch of attention (flash_fwd_kernel)")
    assert (step["base"], step["opt"]) == (1_000_000, 1_117_000)
    assert found["verdict"] == "inconclusive"
    assert not any(change["name"] == "step_time" for change in found["changes"])
    text = call("compare", "a.json", "b.json", "-j", "1").stdout
    assert "launch of attention (flash_fwd_kernel) 1.00 ms → 1.12 ms" in " ".join(text.split())
    assert "a.json: 1 run, 30.0 ms recorded without step marks" in " ".join(text.split())


def test_four_recordings_a_side_break_a_gate(call):
    given = sides(1000, 1117)
    status, found = compared(call, *given, *RULE)
    assert status == 1
    (gate,) = found["gates"]
    assert gate["claim"].startswith("step_time (launch of attention (flash_fwd_kernel)) +11.7 %")
    assert found["verdict"] == "regression"
    back = ["--opt" if one == "--base" else "--base" if one == "--opt" else one for one in given]
    assert compared(call, *back, *RULE)[0] == 0


def test_ranges_that_count_their_calls_are_one_unit(call):
    base = window("a.json", 1000, ranges="update {} of a mini-batch")
    opt = window("b.json", 900, ranges="update {} of a mini-batch")
    step = compared(call, base, opt)[1]["headline"]
    assert step["title"] == "range update # of a mini-batch"
    assert (step["base"], step["opt"]) == (1_000_000, 900_000)


def test_iterations_of_an_engine_are_steps(call):
    base = window("a.json", 1000, ranges="execute_context_{}(0)")
    opt = window("b.json", 900, ranges="execute_context_{}(0)")
    step = compared(call, base, opt)[1]["headline"]
    assert (step["name"], step["title"]) == ("step_time", "step")


def test_a_stage_that_both_hold_is_a_unit(call):
    for name, lasting in (("a.json", 400), ("b.json", 300)):
        write(Path(name), [op("aten::loop", 0, 1000), annotation("update_actor", 100, lasting)])
    step = compared(call, "a.json", "b.json")[1]["headline"]
    assert (step["name"], step["stage"], step["base"], step["opt"]) == (
        "stage_time", "update_actor", 400_000, 300_000,
    )  # fmt: skip
    origin = compared(call, "a.json", "b.json")[1]["origin"]
    assert {row["stage"] for row in origin["ops"]} == {"update_actor"}
    assert sum(row["difference"] for row in origin["ops"]) == -100_000


def test_where_nothing_recurs_on_both_sides_nothing_is_compared(call):
    base, opt = window("a.json", 12_000), window("b.json", 11_000)  # three times each
    done = call("compare", base, opt, "-j", "1")
    assert done.exit_code == 2
    assert "not comparable: no step marks, and nothing recurs on both sides" in done.stderr
    assert "--samples N,N" in done.stderr
    assert call("compare", base, opt, "-j", "1", *RULE).exit_code == 3
    status, found = compared(call, base, opt, "--samples", "10,20")
    assert (status, found["headline"]["title"]) == (0, "time per sample")
    assert found["headline"]["ratio"] == pytest.approx(2.0)
    assert compared(call, base, opt, "--force")[1]["headline"]["title"] == "recording"


def test_what_recurs_in_other_proportions_is_other_work(call):
    """The second kernel comes with every launch of the first on one side, with every second on the other."""
    base, opt = window("a.json", 1000), window("b.json", 1000)
    rows = json.loads(Path(opt).read_text())["traceEvents"]
    often = [row for row in rows if row.get("name") == "elementwise_kernel"]
    rows = [row for row in rows if row not in often[1::2]]
    Path(opt).write_text(json.dumps({"traceEvents": rows}))
    done = call("compare", base, opt, "-j", "1")
    assert done.exit_code == 2
    assert "in different proportions: the recordings contain different work" in done.stderr


def test_a_side_with_steps_is_not_compared_with_one_without(call):
    write(Path("a.json"), [step(n, 1000 * n, 1000) for n in range(5)])
    done = call("compare", "a.json", window("b.json", 1000), "-j", "1")
    assert done.exit_code == 2
    assert "b.json: no step marks, but a.json has steps" in done.stderr


def test_a_saved_report_holds_what_recurs(call):
    status, straight = compared(call, window("a.json", 1000), window("b.json", 1117))
    assert status == 0
    for name in ("a", "b"):
        assert call("analyze", f"{name}.json", "-q", "-o", f"{name}.report.json").exit_code == 0
    saved = compared(call, "a.report.json", "b.report.json")[1]
    for name in ("title", "base", "opt", "ratio", "low", "high"):
        assert saved["headline"][name] == straight["headline"][name]


def test_budgets_of_steps_are_not_held_against_what_is_none(call):
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax = "1s"\n')
    assert call("gate", window("a.json", 1000), "-j", "1").exit_code == 3
    paths = [window(f"{n}.json", 1000, number=n) for n in (1, 2, 3, 4)]
    tested = call("gate", "--self-test", *paths, "--isolated", *RULE, "-j", "1")
    assert tested.exit_code == 0, tested.stderr
    few = call("gate", "--self-test", *paths[:3], "--isolated", *RULE, "-j", "1")
    assert few.exit_code == 2
    assert "fewer than 4 runs" in few.stderr


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_two_cuts_of_a_real_run_are_compared_by_what_recurs_in_them(call):
    """Worked out from the rows of both files: 34 launches a device before, 30 after, on two devices."""
    folder = Path(REAL) / "nsys" / "GindaChen_nsys-ai"
    status, found = compared(call, *(folder / f"mfu_2gpu_{side}.sqlite" for side in ("before", "after")))
    assert (status, found["verdict"]) == (0, "inconclusive")
    assert found["headline"]["title"].startswith("range FSDP::pre_forward")
    flash = next(c for c in found["changes"] if "flash_fwd_kernel" in (c["stage"] or ""))
    # (60,408,097,621 − 60,112,602,299) / 33 and (60,404,454,935 − 60,112,574,998) / 33, and likewise after.
    before = (295_495_322 / 33 + 291_879_937 / 33) / 2
    after = (287_833_147 / 29 + 288_515_178 / 29) / 2
    assert (flash["base"], flash["opt"]) == pytest.approx((before, after), rel=1e-12)
    assert flash["opt"] / flash["base"] - 1 == pytest.approx(0.1166, abs=5e-5)
    origin, headline = found["origin"], found["headline"]
    assert not origin["missing"]
    assert (origin["base"], origin["opt"]) == pytest.approx((headline["base"], headline["opt"]), rel=1e-9)
    for level in ("stages", "ops", "leaves"):
        assert sum(row["difference"] for row in origin[level]) == pytest.approx(headline["difference"], abs=1e3)
    kernels = [row["name"] for row in origin["kernels"]["largest"]]
    assert "SendRecv" in kernels[0]
    assert "flash_fwd" in kernels[1]


@pytest.mark.parametrize(("before", "after"), [(1000, 1117), (800, 800)])
def test_the_change_of_what_recurs_is_attributed(call, before, after):
    found = compared(call, window("a.json", before), window("b.json", after))[1]
    origin, headline = found["origin"], found["headline"]
    assert (origin["base"], origin["opt"]) == pytest.approx((headline["base"], headline["opt"]))
    for level in ("stages", "ops", "leaves"):
        assert sum(row["difference"] for row in origin[level]) == pytest.approx(headline["difference"], abs=1)
    assert origin["kernels"]["largest"]


def test_recordings_compared_by_force_are_attributed_whole(call):
    found = compared(call, window("a.json", 1000, number=2), window("b.json", 1117, number=2), "--force")[1]
    assert sum(row["base"] for row in found["origin"]["ops"]) == pytest.approx(found["headline"]["base"], abs=1)
