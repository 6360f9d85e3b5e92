"""The A/A calibration: made of runs, kept in a file that nobody need trust, used by metric."""

import json
import math

import numpy as np
import pytest
from compare.made import BASE_RUNS, OPT_RUNS, change_of, compared, made_side, row, step_rows, write_run
from hypothesis import given
from hypothesis import strategies as st

from tracekit.cli import main
from tracekit.compare.noise import NoiseFile, calibrated, check_noise_fits, read, write_noise_json
from tracekit.compare.reports.noise_report import build_noise_report, find_resolvable_change, list_noise_notes
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.stats.noise import Noise, calibrate_noise
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict
from tracekit.pipeline.comparing import read_side
from tracekit.pipeline.run import Options

STEP, GEN = ("step_time", None, None), ("stage_time", None, "gen")
EIGHT = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)


def four_runs(**facts):
    """Runs of two steps, means 100, 110, 100, 110 s, and a stage of half of it."""
    runs = [[90.0, 110.0], [110.0, 110.0], [100.0, 100.0], [100.0, 120.0]]
    half = [[value / 2 for value in run] for run in runs]
    rows = [*step_rows(*runs), *step_rows(*half, name="stage_time", stage="gen")]
    return made_side("noise", rows, **facts)


def test_noise_is_the_spread_of_the_logarithms_of_run_means_by_metric():
    found = calibrated(four_runs(gpu="H100", world_size="8"))
    # ±ln(1.1)/2 around the mean: √(4 (ln 1.1 / 2)² / 3) = ln 1.1 / √3 = 0.0550274
    assert found.find_noise(STEP).sd == pytest.approx(math.log(1.1) / math.sqrt(3), rel=1e-12)
    assert found.find_noise(STEP).sd == pytest.approx(0.0550274, abs=1e-7)
    assert found.find_noise(GEN).sd == pytest.approx(found.find_noise(STEP).sd), "half of every value spreads alike"
    assert (found.find_noise(STEP).runs, found.find_noise(STEP).df, found.find_noise(STEP).steps) == (4, 3.0, 2)
    assert found.runs == ("run1", "run2", "run3", "run4")
    assert found.fingerprint == {"gpu": "H100", "world_size": "8"}
    assert found.find_noise(("stage_time", None, "ref")) is None


def test_a_metric_that_one_run_lacks_or_that_is_zero_has_no_noise():
    rows = step_rows([1.0, 1.0], [1.1, 1.1])
    rows += [row("stage_time", 5e8, run="run1", step=1, stage="adv")]
    rows += [row("stage_time", v, run=r, step=1, stage="ref") for r, v in (("run1", 0), ("run2", 1e8))]  # fmt: skip
    assert set(calibrated(made_side("noise", rows)).metrics) == {STEP}


def test_one_run_tells_nothing():
    with pytest.raises(TracekitError, match=r"at least 2 runs of the same setting.*1 run"):
        calibrated(made_side("noise", step_rows([1.0, 1.1])))
    with pytest.raises(TracekitError, match="0 runs"):
        calibrated(made_side("noise", [row("comm_count", 3, run="a", step=1)]))


def test_a_file_holds_what_was_written_byte_for_byte(tmp_path):
    found = calibrated(four_runs(gpu="H100"), ("the runs span 3 s",))
    path = tmp_path / "noise.json"
    path.write_text(write_noise_json(found), encoding="utf-8")
    assert read(path) == found
    turned = NoiseFile(dict(reversed(found.metrics.items())), found.fingerprint, found.runs, found.notes, found.tool_version)  # fmt: skip
    assert write_noise_json(turned) == write_noise_json(found)


def good(**changed):
    document = json.loads(write_noise_json(NoiseFile({STEP: EIGHT}, {"gpu": "H100"}, ("a", "b"))))
    return document | changed


def metric(**changed):
    return [good()["metrics"][0] | changed]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "is not a JSON object"),
        ({}, "its schema is None"),
        (good(schema="tracekit.noise/2"), "not tracekit.noise/1"),
        (good(metrics=[]), "no list of metrics"),
        (good(metrics={"name": "step_time"}), "no list of metrics"),
        (good(metrics=["step_time"]), "unknown metric"),
        (good(metrics=metric(name="nothing")), "unknown metric"),
        (good(metrics=metric(name=["step_time"])), "unknown metric"),
        (good(metrics=metric() * 2), "twice"),
        (good(metrics=metric(sd=-1.0)), "below zero"),
        (good(metrics=metric(sd="0.1")), "not a number"),
        (good(metrics=metric(sd=True)), "not a number"),
        (good(metrics=metric(runs=2.5)), "not a whole number"),
        (good(metrics=metric(df=3)), "not one less than 8 runs"),
        (good(metrics=metric(stage=3)), "not a string"),
        (good(metrics=metric(sd=float("nan"))), "not a number"),
        (good(fingerprint={"gpu": 3}), "fingerprint"),
        (good(fingerprint=[]), "fingerprint"),
        (good(runs="ab"), "runs are not a list"),
        (good(notes=[1]), "notes are not a list"),
    ],
)
def test_what_is_no_calibration_is_refused_with_a_hint(tmp_path, document, said):
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=said) as refused:
        read(path)
    assert "tracekit noise" in refused.value.hint


@given(st.one_of(st.binary(max_size=200), st.text(max_size=60).map(str.encode)))
def test_any_bytes_are_refused_and_nothing_else_is_raised(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("noise") / "noise.json"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError):
        read(path)


def test_deep_nesting_large_files_and_missing_ones_are_refused(tmp_path):
    path = tmp_path / "noise.json"
    with pytest.raises(TraceFormatError, match="no such file"):
        read(path)
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read(tmp_path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(TraceFormatError):
        read(path)
    path.write_bytes(b" " * (4 * 2**20 + 1))
    with pytest.raises(TraceFormatError, match="too large"):
        read(path)


def one_run_each(noise, base=None, opt=None):
    """One run a side of the worked example, with a stage of the same times."""
    sides = [
        made_side(name, [*step_rows(run), *step_rows(run, name="stage_time", stage="gen")], **facts)
        for name, run, facts in (("base", BASE_RUNS[0], base or {}), ("opt", OPT_RUNS[0], opt or {}))
    ]  # fmt: skip
    return compared(*sides, noise=noise)


def test_each_metric_is_widened_by_its_own_noise():
    found = one_run_each(NoiseFile({STEP: EIGHT}, {}, ()))
    # The golden value of one run each with sd 0.01 of 8 runs: half-width t(7) · √2 · 0.01.
    assert found.headline.label == "run-to-run (A/A noise)"
    assert (found.headline.low, found.headline.high) == pytest.approx((1.084848, 1.159885), abs=1e-6)
    gen = change_of(found, "stage_time", "gen")
    assert gen.label == "within-run"
    assert (gen.low, gen.high) == pytest.approx((1.092758, 1.151489), abs=1e-6)
    # Beyond 3 %, but one run per side may be a slow one: 1/2 · 1/2 of equal runs on two levels look like this.
    assert found.verdict == gen.word == "inconclusive"
    assert found.headline.notes[-1] == (
        "one run may be a slow one by chance: up to 25 % of comparisons of 1 v 1 equal runs look like this; record 4 runs"
        " per side"
    )


def test_noise_of_the_base_is_part_of_the_spread_of_several_runs():
    # Σu² .000294 and .28 of base on 3 + 7 degrees, .0000877 of opt on 3: one spread, for opt is known on fewer and varies
    # less. √(.280382 / 13 · (1/4 + 1/4)) = .103846, t(13) = 2.160369: e^(.107041 ± .224345).
    loud = NoiseFile({STEP: Noise(0.2, 7.0, 8, 5, None)}, {}, ())
    found = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS), noise=loud)
    assert (found.verdict, found.headline.label) == ("inconclusive", "run-to-run (A/A noise)")
    assert (found.headline.low, found.headline.high) == pytest.approx((0.889314, 1.392897), abs=2e-6)
    assert compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS)).verdict == "improvement"


def test_three_runs_show_a_change_with_six_earlier_ones_of_the_base():
    def history(runs):
        return NoiseFile({STEP: calibrate_noise([[10.2 + 0.05 * (run % 3)] for run in range(runs)])}, {}, ())

    base, opt = step_rows([10.2], [10.3], [10.25]), step_rows([9.2], [9.3], [9.25])
    words = [compared(base, opt, noise=history(runs)).verdict for runs in (5, 6)]
    assert words == ["inconclusive", "improvement"]
    old = Noise(0.005, 5.0, 6, 1, None)
    found = compared(base, opt, noise=NoiseFile({STEP: old}, {}, ()))
    assert found.verdict == "inconclusive", "a file of an older version holds no run values"


def test_noise_of_fewer_than_four_runs_is_not_used_and_that_is_said():
    found = one_run_each(NoiseFile({STEP: Noise(0.01, 2.0, 3, 5, None)}, {}, ()))
    assert found.headline.label == "within-run"
    assert any("fewer than 4 runs" in line for line in found.warnings)


@pytest.mark.parametrize("name", ["gpu", "world_size"])
def test_noise_of_other_hardware_is_not_used_and_that_is_said(name):
    noise = NoiseFile({STEP: EIGHT}, {name: "one"}, ())
    same, other = {name: "one"}, {name: "two"}
    assert one_run_each(noise, same, same).headline.label == "run-to-run (A/A noise)"
    assert one_run_each(noise).headline.label == "run-to-run (A/A noise)", "unknown is not other"
    found = one_run_each(noise, other, other)
    assert found.headline.label == "within-run"
    assert any(line.startswith("A/A noise was not used: it was measured on") and "two" in line for line in found.warnings)  # fmt: skip
    assert check_noise_fits(None, made_side("base", step_rows([1.0])), None) == (None, "")


def test_a_small_table_says_what_can_be_seen():
    side = four_runs(gpu="H100", world_size="8")
    found = calibrated(side)
    report = build_noise_report(found, side)
    assert report.identity == ("4 runs of one setting", "H100", "world size 8")
    assert report.answer.startswith("runs differ by 5.5 % in step")
    shown = find_resolvable_change(found.find_noise(STEP))
    assert report.answer.endswith(f"4 runs per side detect changes of {shown:.0%} or more".replace("%", " %"))
    titles = [heading.name for heading in report.overview.headings]
    assert [line[titles.index("title")] for line in report.overview.rows] == ["step", "gen"]
    few = build_noise_report(calibrated(made_side("n", step_rows([1.0], [1.1]))), made_side("n", step_rows([1.0], [1.1])))  # fmt: skip
    assert "from 4 runs on" in few.answer
    assert find_resolvable_change(Noise(0.0, 3.0, 4, 2, None)) is None


def test_nothing_above_100_percent_is_detectable():
    side = made_side("n", step_rows([1.0], [1.6], [0.9], [1.3]))
    report = build_noise_report(calibrated(side), side)
    assert report.answer.endswith("4 runs per side cannot detect changes below 100 %")
    assert "resolves" not in [heading.name for heading in report.overview.headings]


@pytest.mark.slow
def test_the_smallest_change_of_the_table_is_shown_in_four_of_five_comparisons():
    """By simulated comparisons with this noise, 4 v 4: the true spread is as large as three degrees leave possible."""
    noise = calibrated(four_runs()).find_noise(STEP)
    shown = find_resolvable_change(noise)
    random = np.random.default_rng(3)
    words = []
    for _ in range(1_500):
        spread = noise.sd * (3 / random.chisquare(3)) ** 0.5
        base, opt = ([[math.exp(spread * log)] for log in random.standard_normal(4)] for _ in range(2))
        slower = [[(1 + shown) * value] for (value,) in opt]
        words.append(choose_verdict(compute_speedup(base, slower, noise=noise)).word)
    share = words.count("regression") / len(words)
    print(shown, share)
    assert share == pytest.approx(0.8, abs=0.04)


def write_runs(folder, gap_us, lasting=(1000, 1100, 1050, 1150)):
    """Runs of four steps, that many µs apart from start to start."""
    for number, dur in enumerate(lasting):
        write_run(folder / f"run{number}", [dur] * 4, origin_us=number * gap_us)
    return [folder / f"run{number}" for number in range(len(lasting))]


def test_the_times_of_the_runs_tell_how_they_were_made(tmp_path):
    apart = read_side("n", write_runs(tmp_path / "a", 1_000_000), Options(jobs=1))
    assert [line.split(":")[0] for line in list_noise_notes(apart)] == ["the runs span 3,005 ms"]
    together = read_side("n", write_runs(tmp_path / "b", 1_000), Options(jobs=1))
    assert "overlap" in next(list_noise_notes(together))


def test_the_command_writes_what_compare_uses(tmp_path, capsys):
    runs = [str(run) for run in write_runs(tmp_path, 1_000_000)]
    path = tmp_path / "noise.json"
    assert main.status(["noise", *runs, "-o", str(path), "-j", "1"]) == 0
    shown = capsys.readouterr()
    assert "runs differ by 6.0 %" in shown.out
    assert f"wrote {path}" in shown.err
    # Means 1000, 1100, 1050, 1150 µs: the standard deviation of their logarithms is 0.0601.
    assert read(path).find_noise(STEP).sd == pytest.approx(0.060149, abs=1e-5)
    assert main.status(["compare", runs[0], runs[1], "--noise", str(path), "-j", "1", "-q"]) == 0
    assert main.status(["noise", *runs, "-o", "-", "-j", "1", "-q"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main.status(["compare", runs[0], runs[1], "--noise", runs[0], "-q"]) == 2
    assert main.status(["noise", runs[0], "-q", "-j", "1"]) == 2
    assert main.status(["noise"]) == 2
