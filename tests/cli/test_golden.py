"""Whole runs of the command line on the examples, as printed. `TRACEKIT_UPDATE_GOLDEN=1 pytest tests/cli` writes them."""

import os
import re
from pathlib import Path

import pytest
from command_line import invoke

from tracekit.analyses.rules import checked

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
        example, kind, marks=() if example == "simulated_gpu" or (example, kind) in QUICK else pytest.mark.slow
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


def check(name, text, parts=None):
    """The text is that of the golden file; with `parts` each part that this has is printed, in its order."""
    path = HERE / "golden" / name
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    assert path.exists(), f"no golden {name}: run with TRACEKIT_UPDATE_GOLDEN=1"
    expected = path.read_bytes().decode("utf-8")
    if parts is None:
        assert text.split("\n") == expected.split("\n")
        return
    titles = [title for title, _ in parts(expected)]
    assert [part for part in parts(text) if part[0] in titles] == parts(expected)


def sections(text):
    """The title and the lines of each section, first what stands before them.

    Without the list of all rules and thresholds: it comes from the records, and a new rule is no change of others.
    """
    first, *others = re.split(r"^(\S.*)\n-{3,}\n", text, flags=re.MULTILINE)
    parts = zip(["", *others[::2]], [first, *others[1::2]], strict=True)
    return [(title, body.split("\n")) for title, body in parts if title != checked.TITLE]


@pytest.mark.parametrize(("example", "kind"), ALL)
def test_a_run_prints_what_it_always_printed(tracekit, example, kind):
    command, *options = (arg.format(step=STEP[example]) for arg in RUNS[kind])
    printed = tracekit(command, EXAMPLES[example], *options).stdout
    assert str(ROOT) not in printed
    check(f"{example}_{kind}.txt", printed, sections if kind == "verbose" else None)


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
