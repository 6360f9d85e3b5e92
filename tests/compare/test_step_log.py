"""Step times of logs: the answer is of them, what a profiler adds is told, what does not count is listed."""

import json
import os
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, change_of, made_side, row, step_rows, write_run
from hypothesis import given
from hypothesis import strategies as st

from tracekit.cli import main
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.judge import compare_sides
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.compare.step_log import StepLog, add_step_logs, read_step_table
from tracekit.model.errors import TracekitError
from tracekit.pipeline.comparing import compare_paths, read_step_logs
from tracekit.pipeline.run import Options

REAL = os.environ.get("TRACEKIT_REAL_DATA")
ONE = Options(jobs=1)


def csv_log(path, seconds, first=1):
    lines = ["step,seconds", *(f"{at},{value}" for at, value in enumerate(seconds, first))]
    path.write_text("\n".join(lines) + "\n")
    return path


def verl_log(path, steps):
    """A driver's log: for each step its timers in seconds, by name without prefix, or other numbers."""
    lines = [
        {"step": at, "data": {k if "/" in k else f"timing_s/{k}": v for k, v in values.items()}}
        for at, values in enumerate(steps, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def logs(folder, runs, name="log"):
    """One table a run."""
    return read_step_logs([csv_log(folder / f"{name}{n}.csv", run) for n, run in enumerate(runs)])


def both(base_logs, opt_logs, base=None, opt=None, drop_first=None, **choices):
    """Two sides whose profiles tell 20 s and 10 s a step, with these logs, compared."""
    before = base or made_side("base", step_rows([20.0, 20.0, 20.0]))
    after = opt or made_side("opt", step_rows([10.0, 10.0, 10.0]))
    sides = add_step_logs(before, after, base_logs, opt_logs, drop_first)
    return compare_sides(*sides, ComparisonChoices(**choices))


def test_the_answer_is_of_the_un_profiled_steps(tmp_path):
    found = both(logs(tmp_path, BASE_RUNS), logs(tmp_path, OPT_RUNS, "opt"), drop_first=0)
    # The worked example of four runs a side, of logs; the profiles say 2.
    assert found.headline.name == "unprofiled_step_time"
    assert found.headline.ratio == pytest.approx(1.112979, abs=1e-6)
    assert (found.headline.low, found.headline.high) == pytest.approx((1.096578, 1.129627), abs=1e-6)  # fmt: skip
    assert found.verdict == "improvement"
    assert change_of(found, "step_time").ratio == pytest.approx(2.0)
    assert [change.name for change in found.changes[:2]] == ["unprofiled_step_time", "step_time"]
    assert "un-profiled" in build_comparison_report(found).answer
    assert not any(line.startswith("times include profiler overhead") for line in found.warnings)


def test_what_the_profiler_adds_is_told_for_each_side(tmp_path):
    found = both(logs(tmp_path, [[16.0, 16.0]]), logs(tmp_path, [[8.0, 8.0]], "opt"), drop_first=0)
    assert [(one.side, one.ratio) for one in found.overhead] == [("base", 1.25), ("opt", 1.25)]
    sheets = [sheet for section in build_comparison_report(found).sections for sheet in section.sheets]
    overhead = next(sheet for sheet in sheets if sheet.name == "overhead")
    assert overhead.rows[0] == ("base", 20e9, 16e9, 1.25)


def test_without_logs_nothing_is_said_of_them():
    sides = made_side("base", step_rows([2.0, 2.0])), made_side("opt", step_rows([1.0, 1.0]))
    found = compare_sides(*sides, ComparisonChoices())
    assert found.headline.name == "step_time"
    assert found.overhead == ()
    assert any("times include profiler overhead" in line for line in found.warnings)


def test_the_first_step_of_a_log_is_left_out_and_listed(tmp_path):
    found = both(logs(tmp_path, [[90.0, 4.0, 4.0]]), logs(tmp_path, [[50.0, 2.0, 2.0]], "opt"))
    assert (found.headline.base, found.headline.opt) == (4e9, 2e9)
    gone = [(one.side, one.run, one.step, one.reason) for one in found.dropped]
    assert gone == [("base", "log0", 1, "the first of its log"), ("opt", "opt0", 1, "the first of its log")]  # fmt: skip
    assert "base, un-profiled: 1 log × 2 steps, 1 left out" in found.reading
    alone = both(logs(tmp_path, [[4.0]], "a"), logs(tmp_path, [[2.0]], "b"))
    assert alone.headline.base == 4e9, "a single step is not left out"
    kept = both(logs(tmp_path, [[8.0, 4.0, 3.0]], "c"), logs(tmp_path, [[2.0]], "d"), drop_first=0)
    assert kept.headline.base == 5e9


def test_logs_of_which_nothing_is_left_are_refused(tmp_path):
    with pytest.raises(TracekitError, match="base: no logged step is left"):
        both(logs(tmp_path, [[4.0, 4.0]]), logs(tmp_path, [[2.0]], "b"), drop_first=2)


def profiled_steps(tmp_path, start, stop):
    """Which steps of a log count as profiled: seconds that starting and stopping took, by step."""
    steps = [{"step": 1.0, "start_profile": a, "stop_profile": b} for a, b in zip(start, stop, strict=True)]  # fmt: skip
    (found,) = read_step_logs([verl_log(tmp_path / "metrics.jsonl", steps)], ONE)
    return sorted(found.profiled)


def test_steps_with_a_profiler_are_known_by_what_starting_and_stopping_took(tmp_path):
    none = 0.00006
    assert profiled_steps(tmp_path, [none] * 4, [none] * 4) == []
    assert profiled_steps(tmp_path, [none, 0.004, none, none], [none, 0.3, none, none]) == [2]
    # From a start to the next stop a profiler runs, over the steps between them.
    assert profiled_steps(tmp_path, [none, 0.004, none, none, none], [none, none, none, 0.3, none]) == [2, 3, 4]  # fmt: skip
    # A start without a stop, and a stop without a start, tell of their own step alone.
    assert profiled_steps(tmp_path, [none, 0.004, none], [none] * 3) == [2]
    assert profiled_steps(tmp_path, [none] * 3, [none, none, 0.2]) == [3]


def test_profiled_steps_of_a_log_do_not_count(tmp_path):
    steps = [{"step": s, "start_profile": p, "stop_profile": p} for s, p in ((5.0, 0.0), (9.0, 0.1), (4.0, 0.0))]  # fmt: skip
    base = read_step_logs([verl_log(tmp_path / "metrics.jsonl", steps)], ONE)
    found = both(base, logs(tmp_path, [[3.0, 2.0]]))
    assert found.headline.base == 4e9
    assert ("base", 2, "logged while a profiler ran") in [(one.side, one.step, one.reason) for one in found.dropped]  # fmt: skip


def test_stages_come_from_logs_only_where_no_profile_has_them(tmp_path):
    staged = [
        made_side(name, [*step_rows([20.0, 20.0]), *step_rows([3.0, 3.0], name="stage_time", stage="gen")])
        for name in ("base", "opt")
    ]  # fmt: skip
    base, opt = (
        read_step_logs([verl_log(tmp_path / f"{name}.jsonl", [{"step": 9.0, "gen": 2.0, "reward": r}] * 3)], ONE)
        for name, r in (("a", 4.0), ("b", 2.0))
    )  # fmt: skip
    found = both(base, opt, *staged)
    reward = change_of(found, "unprofiled_stage_time", "reward")
    assert (reward.base, reward.opt, reward.title) == (4e9, 2e9, "reward, un-profiled")
    assert change_of(found, "unprofiled_stage_time", "gen") is None
    assert change_of(found, "stage_time", "gen").base == 3e9


def test_tokens_of_logs_give_time_and_rate_per_token(tmp_path):
    def log(name, seconds, tokens):
        steps = [{"step": s, "perf/total_num_tokens": t} for s, t in zip(seconds, tokens, strict=True)]
        return read_step_logs([verl_log(tmp_path / name, steps)], ONE)

    facts = {"world_size": "4"}
    sides = [made_side(name, step_rows([9.0]), **facts) for name in ("base", "opt")]
    found = both(log("a.jsonl", [1.0, 3.0], [1000, 3000]), log("b.jsonl", [2.0, 2.0], [8000, 8000]), *sides, drop_first=0)  # fmt: skip
    # Σ time / Σ tokens: 4 s / 4,000 = 1 ms, 4 s / 16,000 = 0.25 ms; Σ tokens / Σ time / 4 ranks: 250 and 1,000.
    per = change_of(found, "time_per_token")
    assert (per.base, per.opt, per.ratio) == pytest.approx((1e6, 2.5e5, 4.0))
    rate = change_of(found, "throughput")
    assert (rate.base, rate.opt) == pytest.approx((250.0, 1000.0))
    assert rate.better == "higher"


def test_both_sides_need_logs(tmp_path):
    runs = [write_run(tmp_path / name, [1000, 1000, 1000]) for name in ("one", "two")]
    log = csv_log(tmp_path / "log.csv", [1.0, 1.0])
    with pytest.raises(TracekitError, match="two: no un-profiled steps"):
        compare_paths([runs[0]], [runs[1]], ONE, base_steps=[log])
    found = compare_paths([runs[0]], [runs[1]], ONE, base_steps=[log], opt_steps=[log]).comparison
    assert found.headline.name == "unprofiled_step_time"


def test_equal_names_are_different_runs(tmp_path):
    paths = []
    for folder, last in (("a", 2.0), ("b", 2.5)):
        (tmp_path / folder).mkdir()
        paths.append(csv_log(tmp_path / folder / "steps.csv", [2.0, last]))
    found = both(read_step_logs(paths), read_step_logs(paths))
    assert (found.headline.base_runs, found.headline.base_steps) == (2, 2)
    named = both(read_step_logs([f"x={paths[0]}"]), read_step_logs([f"y={paths[1]}"]))
    assert [one.run for one in named.dropped] == ["x", "y"]


def test_tables_are_read_as_csv_and_as_json_lines(tmp_path):
    path = tmp_path / "steps"
    path.write_text("\ufeffstep , seconds, other\n1, 2.5,x\n2,3\n\n", encoding="utf-8")
    (one,) = read_step_logs([path])
    assert one.recorded.values("value") == [2.5e9, 3e9]
    path.write_text('{"step": 1, "seconds": 2.5}\n\n{"step": 2, "seconds": 3, "loss": null}\n')
    (two,) = read_step_logs([path])
    assert two.recorded.values("value") == [2.5e9, 3e9]
    path.write_text("step,seconds\n1,2\n1,4\n")
    assert read_step_logs([path])[0].recorded.values("value") == [4e9], "what is logged again counts last"


@pytest.mark.parametrize(
    "text",
    [
        "", "step,seconds\n", "a,b\n1,2\n", "step,seconds\n1,x\n", "step,seconds\n1,-2\n", "step,seconds\n1,0\n",
        "step,seconds\n1,inf\n", "step,seconds\n1,nan\n", "step,seconds\n-1,2\n", "step,seconds\n1\n",
        "step,seconds\n1,1e9\n", f"step,seconds\n{10**40},1\n", '{"step": 1}\n', '{"step": null, "seconds": 2}\n',
        '{"step": [1], "seconds": 2}\n', "{\n", "{" * 50_000, "\0",
    ],
)  # fmt: skip
def test_what_is_no_list_of_step_times_is_refused_with_a_hint(tmp_path, text):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(TracekitError) as refused:
        read_step_logs([path])
    assert "step" in refused.value.hint


def test_a_log_that_is_missing_or_times_no_step_is_refused(tmp_path):
    with pytest.raises(TracekitError):
        read_step_logs([tmp_path / "none.csv"])
    path = verl_log(tmp_path / "metrics.jsonl", [{"gen": 1.0}])
    with pytest.raises(TracekitError, match="contains no step times"):
        read_step_logs([path], ONE)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_log_or_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("log") / "steps.csv"
    path.write_bytes(content)
    try:
        found = read_step_table(path, "log")
    except TracekitError:
        return
    assert isinstance(found, StepLog)


def test_the_command_takes_logs(tmp_path, capsys):
    runs = [write_run(tmp_path / name, [1000, 1000, 1000]) for name in ("one", "two")]
    base, opt = csv_log(tmp_path / "b.csv", [4.0] * 6), csv_log(tmp_path / "o.csv", [2.0] * 6)
    args = ["compare", *map(str, runs), "--base-steps", str(base), "--opt-steps", str(opt)]
    assert main.status([*args, "-j", "1"]) == 0
    assert "2.00× faster" in capsys.readouterr().out
    assert main.status([*args[:5], "-j", "1", "-q"]) == 2


def test_a_row_of_a_log_is_no_row_of_the_profile():
    side = made_side("base", [*step_rows([2.0, 2.0]), row("comm_count", 3, run="run1", step=1)])
    assert {key[0] for key in side.samples} == {"step_time", "comm_count"}


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_logs_of_real_drivers():
    folder = Path(REAL) / "chrome" / "verl_cpu"
    (plain,) = read_step_logs([folder / "v091_disabled" / "metrics.jsonl"], ONE)
    assert plain.profiled == frozenset()
    steps = plain.recorded.filter(plain.recorded.equals("name", "unprofiled_step_time"))
    assert steps.values("step") == [1, 2, 3, 4]
    assert steps.values("value")[3] == pytest.approx(80e6, rel=0.02)
    (known,) = read_step_logs([folder / "v091_e2e_continuous" / "metrics.jsonl"], ONE)
    assert known.profiled == frozenset({1, 2, 4}), "started in 1, stopped in 2; both in 4"


def test_a_log_that_does_not_time_its_steps_is_compared_by_the_sum_of_its_timers(tmp_path):
    """AReaL logs no whole step: 50 + 30 s, then 40 + 30 s."""
    for side, rollout in (("base", 50.0), ("opt", 40.0)):
        data = {"timeperf/rollout": rollout, "timeperf/train_step": 30.0}
        lines = [json.dumps({"step": step, "data": data}) + "\n" for step in range(1, 13)]
        (tmp_path / side).mkdir()
        (tmp_path / side / "metrics.jsonl").write_text("".join(lines))
    found = compare_paths([tmp_path / "base"], [tmp_path / "opt"], Options(jobs=1)).comparison
    assert (found.headline.base, found.headline.opt) == (80e9, 70e9)
