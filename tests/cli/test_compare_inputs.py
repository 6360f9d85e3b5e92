"""What `compare` may be given: logs of step times beside profiles or alone, and the commands of the CI example."""

import json
import os
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, write_run

REAL = os.environ.get("TRACEKIT_REAL_DATA")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A directory without rules above it, and no job of GitHub's."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def log(name, seconds):
    lines = [f"{at},{value}" for at, value in enumerate(seconds, 1)]
    Path(name).write_text("\n".join(["step,seconds", *lines]))
    return name


@pytest.fixture
def sides():
    """Profiles whose steps last the same."""
    return [write_run(Path(name), [1000, 1000, 1000]) for name in ("before", "after")]


@pytest.fixture
def logs():
    """One log a run of the worked example."""
    return [
        [log(f"{side}{number}.csv", run) for number, run in enumerate(runs)]
        for side, runs in (("b", BASE_RUNS), ("o", OPT_RUNS))
    ]


EXPECTED = (1.112979, 1.096578, 1.129627)
"""The worked example of four runs a side."""


def found(call, *args):
    done = call("compare", *args, "--drop-first", "0", "-q", "--export", "json=-", "-j", "1")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def interval(compared):
    step = compared["headline"]
    return pytest.approx((step["ratio"], step["low"], step["high"]), abs=1e-6)


def test_logs_are_of_the_side_that_each_names(call, sides, logs):
    named = [f"--steps-from={side}={name}" for side, names in zip(("base", "opt"), logs, strict=True) for name in names]  # fmt: skip
    compared = found(call, *sides, *named[::-1])
    assert interval(compared) == EXPECTED
    assert compared["headline"]["name"] == "unprofiled_step_time"
    old = [part for name in logs[0] for part in ("--base-steps", name)]
    old += [part for name in logs[1] for part in ("--opt-steps", name)]
    assert found(call, *sides, *old) == compared


def test_of_two_logs_without_a_side_the_first_is_of_base(call, sides):
    slow, fast = log("slow.csv", [4.0] * 6), log("fast.csv", [2.0] * 6)
    compared = found(call, *sides, "--steps-from", slow, "--steps-from", fast)
    assert (compared["headline"]["base"], compared["headline"]["opt"]) == (4e9, 2e9)
    Path("base=x.csv").write_text(Path(slow).read_text())
    bare = found(call, *sides, "--steps-from", "base=x.csv", "--steps-from", fast)
    assert bare["headline"]["base"] == 4e9, "a file may be called so"


@pytest.mark.parametrize(
    "given",
    [("a.csv",), ("a.csv", "base=a.csv"), ("a.csv", "a.csv", "a.csv"), ("before=a.csv", "opt=a.csv"), ("base=a.csv",)],
)
def test_a_log_of_no_known_side_is_refused_with_what_to_type(call, sides, given):
    log("a.csv", [1.0, 1.0])
    done = call("compare", *sides, *(part for one in given for part in ("--steps-from", one)))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "--steps-from base=FILE --steps-from opt=FILE" in done.stderr


def test_logs_alone_are_compared_and_what_they_cannot_tell_is_said(call, logs):
    given = [part for side, names in zip(("--base", "--opt"), logs, strict=True) for name in names for part in (side, name)]  # fmt: skip
    compared = found(call, *given)
    assert interval(compared) == EXPECTED
    assert compared["verdict"] == "improvement"
    assert compared["reading"] == ["base, un-profiled: 4 logs × 3–5 steps", "opt, un-profiled: 4 logs × 2–5 steps"]
    assert any("logs only" in line for line in compared["warnings"])
    assert "a log has the times of steps and stages only" in compared["origin"]["missing"]
    text = call("compare", *given, "--drop-first", "0").stdout
    assert "1.11× faster [1.10×, 1.13×] · step, un-profiled 10.3 s → 9,225 ms" in text


def test_the_same_log_twice_is_told(call):
    one = log("one.csv", [1.0, 1.1, 1.2])
    warnings = found(call, f"a={one}", f"b={one}")["warnings"]
    assert "both sides have the same files: the same log was given twice" in warnings


def test_a_gate_holds_logs_alone(call, logs):
    args = [part for side, names in zip(("--base", "--opt"), logs[::-1], strict=True) for name in names for part in (side, name)]  # fmt: skip
    done = call("compare", *args, "--drop-first", "0", "-q", "--fail-on", "step_time>3%")
    assert done.exit_code == 1
    assert "step_time +11.3 % [+9.66 %, +13 %]" in done.stderr


def test_a_log_on_one_side_alone_is_refused(call, sides):
    done = call("compare", log("a.csv", [1.0, 1.0]), sides[1])
    assert done.exit_code == 2
    assert "after: no un-profiled steps" in done.stderr


def test_a_table_that_tells_no_steps_is_refused(call):
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("loss,epoch\n1,2\n")
    done = call("compare", "a.csv", "b.csv")
    assert done.exit_code == 2
    assert "lacks the columns step and seconds" in done.stderr


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_logs_of_real_drivers_alone(call):
    folder = Path(REAL) / "chrome" / "verl_cpu"
    names = [folder / name / "metrics.jsonl" for name in ("v091_disabled", "v091_straggler")]
    done = call("compare", f"plain={names[0]}", f"again={names[0]}", "-j", "1")
    assert done.exit_code == 0
    assert "plain, un-profiled: 1 log × 3 steps, 1 left out" in " ".join(done.stdout.split())


def test_logs_alone_make_a_page_with_their_interval(call, logs):
    given = [part for side, names in zip(("--base", "--opt"), logs, strict=True) for name in names for part in (side, name)]  # fmt: skip
    call("compare", *given, "--drop-first", "0", "-q", "-o", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "1.11× faster [1.10×, 1.13×]" in page
    assert '"sides":["base","opt"]' in page


def test_noise_is_of_logs_alone_as_well(call, logs):
    asked = ("--drop-first", "0", "-o", "-")
    plain, named = (call("noise", *given, *asked) for given in (logs[0], [f"--steps-from={name}" for name in logs[0]]))  # fmt: skip
    assert plain.exit_code == 0
    assert plain.stdout == named.stdout
    assert "unprofiled_step_time" in plain.stdout


def test_a_third_variant_is_told_how_to_be_compared(call):
    assert "compare each with the base" in call("compare", "a", "b", "c").stderr
    assert "variants" not in call("compare", "a").stderr


@pytest.mark.parametrize(("log_count", "said"), [(3, "3 logs of step times for 2"), (1, "1 log of step times for 2")])
def test_noise_refuses_logs_that_do_not_match_the_profiled_runs(call, log_count, said):
    runs = [write_run(Path(f"run{number}"), [1000, 1100 + number, 1000]) for number in range(2)]
    given = [f"--steps-from={log(f'{n}.csv', [1.0, 1.1, 1.0 + n / 10])}" for n in range(log_count)]
    done = call("noise", *runs, *given, "-j", "1")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{said} profiled runs" in done.stderr
    assert "give one log per profiled run" in done.stderr


def test_noise_takes_one_log_per_run_and_any_logs_next_to_one_profile(call):
    runs = [write_run(Path(f"run{number}"), [1000, 1100 + number, 1000]) for number in range(2)]
    logs = [f"--steps-from={log(f'{n}.csv', [1.0, 1.1, 1.0 + n / 10])}" for n in range(2)]
    for given in (runs, runs[:1]):
        done = call("noise", *given, *logs, "-j", "1", "--json")
        assert done.exit_code == 0, done.stderr
        assert "unprofiled_step_time" in {row["name"] for row in json.loads(done.stdout)["metrics"]}


def test_noise_names_a_log_that_was_given_twice(call):
    one, other = log("one.csv", [1.0, 1.1, 1.2]), log("other.csv", [1.0, 1.1, 1.3])
    copies = "one (2) holds the same files as one (1)"
    assert copies in " ".join(call("noise", one, one).stderr.split())
    third = "one (3) holds the same files as one (1)"
    assert third in " ".join(call("noise", one, other, one).stdout.split())


def test_a_log_is_named_by_its_path_in_errors_and_by_its_directory_where_names_collide(call):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        log(f"{folder}/steps.csv", [1.0, 1.1, 1.2 if folder == "a" else 1.3])
    Path("a/bad.csv").write_text("loss,epoch\n1,2\n")
    Path("a/binary.csv").write_bytes(b"\xff\xfe")
    assert "tracekit: a/bad.csv: lacks the columns" in call("noise", "--steps-from", "a/bad.csv").stderr
    assert "tracekit: a/binary.csv: is not UTF-8 text" in call("noise", "--steps-from", "a/binary.csv").stderr
    assert json.loads(call("noise", "a/steps.csv", "b/steps.csv", "--json").stdout)["runs"] == ["a/steps", "b/steps"]
