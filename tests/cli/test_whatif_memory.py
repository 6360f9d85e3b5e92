"""`tracekit whatif --memory`: its report, its errors, and the page that explains it."""

import json
import re
from pathlib import Path

import pytest
from command_line import invoke

from tracekit.replay.memory.memory_changes import MEMORY_VERBS

ROOT = Path(__file__).parents[2]
LEAKING = str(ROOT / "examples/simulated_memory/leaking")
SNAPSHOT = str(ROOT / "tests/data/gpu/snapshots/fragmented.pickle")
PAGE = (ROOT / "docs/whatif-memory.md").read_text()


def test_each_change_is_listed_by_the_page_and_the_help():
    rows = re.findall(r"^\| `([a-z_]+[=@]?[^`]*)` \|", PAGE.partition("## Your own changes")[2], re.MULTILINE)
    forms = [record.form for record in MEMORY_VERBS.values()]
    assert rows == forms
    help_text = invoke("whatif", "--help").output
    assert [form for form in forms if not re.search(rf"^ +{re.escape(form)}  ", help_text, re.MULTILINE)] == []


def test_without_a_change_all_that_apply_are_predicted():
    result = invoke("whatif", "--memory", LEAKING)
    assert result.exit_code == 0
    assert "peak reserved memory with 1 change: 666 MiB → 434 MiB (−232 MiB, −35 %)" in result.output
    assert "micro_batch=0.5" in result.output


def test_a_change_is_predicted_as_json():
    result = invoke("whatif", "--memory", SNAPSHOT, "-c", "scale=snapshots:0.5", "--json")
    report = json.loads(result.output)
    (section,) = report["sections"]
    assert section["id"] == "histories"
    assert report["overview"]["rows"][0][1:3] == ["scale=snapshots:0.5", "300 allocations"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", SNAPSHOT, "-c", "expandible"), "did you mean 'expandable'?"),
        (("--memory", SNAPSHOT, "-c", "gc=0.8"), "give --device-memory 80GiB"),
        (("--memory", SNAPSHOT, "--steps", "3"), "--steps selects no part"),
        (("--memory", SNAPSHOT, "--micro-batch", "0"), "one number of samples from 1 on, or two"),
        ((SNAPSHOT, "--micro-batch", "4"), "--micro-batch needs --memory"),
        (("--memory", str(ROOT / "examples/simulated_gpu/outputs/profile")), "no memory snapshot is here"),
        (("--memory", str(ROOT / "tests/data/cases/m1_no_history")), "no history of allocations was recorded"),
    ],
)
def test_an_error_says_what_to_do(arguments, message):
    result = invoke("whatif", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
