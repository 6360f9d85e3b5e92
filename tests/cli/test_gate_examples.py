"""Every rule of a gate that README, docs, help or an example shows is held by a real run, and can fail."""

import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

_RULE = re.compile(r"['\"`](?:--fail-on )?((?:[a-z][\w.]*>[^'\"`\s]+)|new-oom|regression)['\"`]")


def shown(call):
    """Every rule that a text shows: `metric>limit`, and the words of `--fail-on`."""
    written = (ROOT / "docs").rglob("*.md"), EXAMPLES.rglob("*.md"), EXAMPLES.rglob("*.yml")
    files = [ROOT / "README.md", *chain.from_iterable(written)]
    texts = [path.read_text(encoding="utf-8") for path in files]
    texts += [call(name, "--help").stdout for name in ("compare", "gate")]
    return sorted({rule for text in texts for rule in _RULE.findall(text)})


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A directory without rules above it."""
    monkeypatch.chdir(tmp_path)


def outcomes(call, *args):
    """(exit status, the outcome by rule) of a comparison."""
    done = call("compare", *args, "-q", "-j", "1", "-o", "out.json")
    gates = json.loads(Path("out.json").read_text())["gates"]
    return done.exit_code, {gate["rule"]: gate["outcome"] for gate in gates}


def test_rules_that_are_taught_test_something(call):
    rules = shown(call)
    assert {"step_time>3%", "step_time>point:5%", "memory.peak_allocated>256MiB", "new-oom"} <= {*rules}
    of_memory = [rule for rule in rules if rule.startswith("memory.") or rule == "new-oom"]
    of_engines = [rule for rule in rules if rule.startswith("engine.")]
    of_time = [rule for rule in rules if rule not in (*of_memory, *of_engines)]
    snapshots = [
        EXAMPLES / "simulated_memory" / side / "step1" / "torch_memory_rank0_pid4000.pickle"
        for side in ("leaking", "fixed")
    ]
    traces = [EXAMPLES / "compare_cpu" / side for side in ("base", "opt")]
    engines = [EXAMPLES / "engine_log"] * 2
    # One log a side leaves the noise between runs unknown.
    cases = ((snapshots, of_memory, "pass"), (traces, of_time, "pass"), (engines, of_engines, "inconclusive"))
    for sides, told, outcome in cases:
        asked = [part for rule in told for part in ("--fail-on", rule)]
        status, found = outcomes(call, *sides, *asked)
        assert status == 0
        assert set(found.values()) == {outcome}, found


def test_the_rules_of_the_example_file_test_something(call):
    toml = EXAMPLES / "ci" / "tracekit.toml"
    run = EXAMPLES / "simulated_gpu" / "outputs"
    status, found = outcomes(call, run, run, "--config", toml)
    rules = tomllib.loads(toml.read_text())["gate"]["rule"]
    assert len(found) == sum(len({"max-increase", "max"} & rule.keys()) for rule in rules)
    assert status == 0
    assert "not tested" not in found.values()
