"""Threads, autograd, start and stop, forks and signals at random moments: under capture every outcome is that of an unprofiled run.

`tests/support/capture_stress.py` has the cases. The same ones under verl's own profiler are printed beside it
(`pytest -s`): it is what capture replaces. The unprofiled run gets no SIGUSR2, which would end it.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import verl_python

PROGRAM = Path(__file__).parents[1] / "support" / "capture_stress.py"
KINDS = {"none": 60, "capture": 60, "verl": 8}
"""The profilers, and how many seconds make a repetition one that hangs."""


def outcomes(folder):
    """The outcome of every case, by profiler; all three run at once."""
    runs = {
        kind: subprocess.Popen(
            [verl_python.PYTHON, PROGRAM, kind, folder / kind, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=verl_python.environment(OMP_NUM_THREADS="1"),
        )
        for kind, seconds in KINDS.items()
    }
    lines = {kind: run.communicate(timeout=900)[0].splitlines() for kind, run in runs.items()}
    return {kind: {tuple(case): outcome for case, outcome in map(json.loads, lines[kind])} for kind in KINDS}


def kind_of(outcome, expected):
    """The outcome in a word."""
    if outcome == expected:
        return "as unprofiled"
    if "hangs" in (outcome["exit"], outcome.get("child")):
        return "hangs"
    return f"exit {outcome['exit']}" if outcome["exit"] != expected["exit"] else "other values"


def table(found):
    """Lines with a count of each kind of outcome, by profiler and signal."""
    for kind in KINDS:
        for sent in ("none", "SIGUSR2", "SIGTERM"):
            cases = [case for case in found[kind] if case[-1] == sent]
            count = Counter(kind_of(found[kind][case], found["none"][case]) for case in cases)
            told = ", ".join(f"{number} {word}" for word, number in sorted(count.items()))
            yield f"{kind:8} signal {sent:8} {len(cases):3} repetitions: {told}"


if verl_python.PYTHON:

    @pytest.mark.slow
    def test_every_outcome_under_capture_is_that_of_an_unprofiled_run(tmp_path):
        found = outcomes(tmp_path)
        print("\n" + "\n".join(table(found)))
        assert [len(cases) for cases in found.values()] == [108, 108, 36]
        assert found["none"] == found["capture"]
        assert not any("differs" in str(outcome) for outcome in found["none"].values())
        assert [*(tmp_path / "capture").glob("*.json.gz")]
