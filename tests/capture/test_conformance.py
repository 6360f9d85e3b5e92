"""capture answers every probe as verl 0.9.1 does, but where it means to differ.

`verl-0.9.1.json` holds what verl itself answered (`python tests/capture_probes.py verl.utils.profiler
FILE`, on a CPU). Here capture is asked with a fake torch and nvtx; with a Python that has verl
(`TRACEKIT_VERL_PYTHON`), both are asked with the real ones.
"""

import json
from pathlib import Path

import capture_probes
import pytest
import verl_python

STORED = json.loads(Path(__file__).with_name("verl-0.9.1.json").read_text(encoding="utf-8"))

INTENDED = {
    "TorchProfilerToolConfig{'contents': 'cpu'}": "the type is told, not the first letter",
    "TorchProfilerToolConfig{'contents': None}": "refused as a wrong type, not by accident",
    "torch enable=True without tool_config": "the tool's defaults hold: no run ends of it",
    "nsys enable=True without tool_config": "the tool's defaults hold: no run ends of it",
    "nsys enable=False without tool_config": "a disabled profiler needs no tool_config",
    "torch enable=False without tool_config": "a disabled profiler needs no tool_config",
    "nsys discrete=False, stage fails": "the range of a stage that raises is ended",
    "nsys discrete=True, stage fails": "the range and the capture range are ended",
    "timer, body fails": "the range is ended and the time kept",
    "snapshots disabled": "no history is recorded where profiling is off",
    "snapshots of another rank": "no history is recorded on ranks that are not profiled",
    "snapshots": "Python stacks only: a snapshot with C++ frames can take minutes to write",
    "snapshots of all ranks": "Python stacks only, as above",
    "snapshots of windows": "Python stacks only, as above",
    "trace by stage, a window just begun": "no trace of a window without any mini-batch",
    "trace by stage, schedule 0": "that trace would replace the last window, of the same name",
    "trace by stage, schedule 1": "that trace would replace the last window, of the same name",
    "trace where none can be written": "the training goes on",
    "traces of a+ b+ b- a-": "whoever did not open the trace does not close it",
}
"""The probes that capture answers otherwise, each with the reason."""


def differing(one, other):
    """The probes with different answers, and those that only one was asked."""
    return {key for key in one.keys() | other.keys() if one.get(key, "-") != other.get(key, "-")}


def test_capture_differs_from_verl_only_where_it_means_to(torch, nvtx):
    assert STORED["versions"]["verl"] == "0.9.1"
    facts = capture_probes.collect("capture")
    assert differing(facts, STORED["facts"]) == set(INTENDED)
    assert len(facts) > 150


def test_no_probe_of_capture_fails_for_want_of_a_name(torch, nvtx):
    missing = {key: fact for key, fact in STORED["facts"].items() if "StopIteration" in str(fact)}
    assert missing == {}


if verl_python.PYTHON:

    def asked(module, folder, attempts=1):
        path = folder / f"{module}.json"
        for _ in range(attempts):
            done = verl_python.run(capture_probes.__file__, module, path, check=False)
            if done.returncode == 0:
                return json.loads(path.read_text())
        pytest.fail(f"{module} ended with {done.returncode}: {done.stderr[-2000:]}")

    @pytest.mark.slow
    def test_with_the_real_packages_too(tmp_path):
        # verl leaves a stage's range open over several windows, and torch crashes of it now and again.
        verl = asked("verl.utils.profiler", tmp_path, attempts=24)
        assert differing(asked("capture", tmp_path)["facts"], verl["facts"]) == set(INTENDED)
        if verl["versions"]["verl"] == STORED["versions"]["verl"]:
            assert differing(verl["facts"], STORED["facts"]) == set()
