"""Whole runs of the command line on the examples, as printed. `TRACEKIT_UPDATE_GOLDEN=1 pytest tests/cli` writes them."""

import os
from pathlib import Path

import pytest
from command_line import invoke

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES = {name: f"examples/{name}/outputs/profile" for name in ("verl_cpu", "simulated_gpu")}
RUNS = {
    "text": ["analyze"],
    "verbose": ["analyze", "-v"],
    "step": ["analyze", "--steps", "{step}"],
    "stage": ["analyze", "--stages", "update*"],
    "inspect": ["inspect"],
}
STEP = {"verl_cpu": "2", "simulated_gpu": "6"}
QUICK = {("verl_cpu", "text"), ("verl_cpu", "inspect")}
"""Of the larger example what every run of the tests looks at; of the smaller one that is all."""

ALL = [
    pytest.param(
        example,
        kind,
        marks=() if example == "simulated_gpu" or (example, kind) in QUICK else pytest.mark.slow,
    )
    for example in EXAMPLES
    for kind in RUNS
]


@pytest.fixture
def tracekit(monkeypatch, made_once):
    """Run the command line from the root of the tree, on a page of the usual width."""
    monkeypatch.chdir(ROOT)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TRACEKIT_PURE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args):
        result = invoke(*args)
        assert result.exit_code == 0, result.output
        return result

    return run


def check(name, text):
    path = HERE / "golden" / name
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    assert path.exists(), f"no golden {name}: run with TRACEKIT_UPDATE_GOLDEN=1"
    assert text.split("\n") == path.read_bytes().decode("utf-8").split("\n")


@pytest.mark.parametrize(("example", "kind"), ALL)
def test_a_run_prints_what_it_always_printed(tracekit, example, kind):
    command, *options = (arg.format(step=STEP[example]) for arg in RUNS[kind])
    printed = tracekit(command, EXAMPLES[example], *options).stdout
    assert str(ROOT) not in printed
    check(f"{example}_{kind}.txt", printed)


def test_two_examples_at_once_are_two_runs(tracekit):
    paths = [f"{name}={path}" for name, path in EXAMPLES.items()]
    check("both_text.txt", tracekit("analyze", *paths).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_saved_run_prints_the_same_as_the_profile(tracekit, example, tmp_path):
    kept, suffixes = tmp_path / "run.tkm", ("html", "json", "md")
    outputs = [option for s in suffixes for option in ("-o", str(tmp_path / f"a.{s}"))]
    first = tracekit("analyze", EXAMPLES[example], "--save", str(kept), *outputs).stdout
    assert tracekit("analyze", str(kept)).stdout == first
    for suffix in suffixes:
        again = tmp_path / f"b.{suffix}"
        tracekit("render", str(kept), "-o", str(again))
        assert again.read_bytes() == (tmp_path / f"a.{suffix}").read_bytes()
