"""The JSON Schemas: what is published is what the dataclasses say, and all that is written meets it."""

import copy
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jsonschema
import pytest
from command_line import invoke
from recorded import SNAPSHOTS, TRACES
from strict_schema import validate

from tracekit.cli.json_contracts import CONTRACTS
from tracekit.render.schema import make_schema

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PUBLISHED = ROOT / "docs" / "schema"
NAMES = [contract.name for contract in CONTRACTS]
REAL = Path(os.environ.get("TRACEKIT_REAL_DATA", ""))
SMALL_BYTES = 3_000_000


def published(name):
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def printed(*args):
    done = invoke(*args)
    assert done.exit_code in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_what_the_dataclasses_say(name):
    """A field more or less, or of another type, fails here: TRACEKIT_UPDATE_GOLDEN=1 writes the schemas anew."""
    text = invoke("schema", name).stdout
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        PUBLISHED.mkdir(exist_ok=True, parents=True)
        (PUBLISHED / f"{name}.json").write_text(text)
    assert text == (PUBLISHED / f"{name}.json").read_text()


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_a_schema_is_valid_and_names_its_version_without_a_host(contract):
    schema = published(contract.name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == "urn:" + contract.version.replace(".", ":").replace("/", ":")
    assert schema["properties"]["schema"] == {"const": contract.version}
    assert "schema" in schema["required"]
    assert {path.stem for path in PUBLISHED.iterdir()} == set(NAMES)


RUNS = ["simulated_gpu", "verl_cpu", "simulated_memory/leaking", "simulated_memory/fixed"]
RUNS += ["compare_cpu/base", "compare_cpu/opt/run1"]


@pytest.mark.parametrize("run", RUNS)
def test_reports_of_the_examples(run):
    report = printed("analyze", EXAMPLES / run, "--export", "json=-", "-q")
    validate(report, published("report"))


def real_files():
    """The smallest files of each folder of real profiles."""
    if not REAL.parts:
        return [*TRACES[::2], *SNAPSHOTS]
    folders = ("chrome", "nsys", "memory")
    files = []
    for folder in folders:
        found = [p for p in (REAL / folder).rglob("*") if REAL.parts and p.is_file()]
        profiles = [p for p in found if p.suffix in (".gz", ".json", ".sqlite", ".pickle")]
        small = [p for p in profiles if 20_000 < p.stat().st_size < SMALL_BYTES]
        files += sorted(small, key=lambda p: (p.stat().st_size, p.name))[:12]
    return files


def test_reports_of_real_profiles():
    schema, read = published("report"), 0
    for path in real_files():
        done = invoke("analyze", path, "--export", "json=-", "-q")
        if done.exit_code == 0:
            validate(json.loads(done.stdout), schema)
            read += 1
    assert read >= 20


PAIRS = [
    ("compare_cpu/base", "compare_cpu/opt"),
    ("compare_cpu/base/run1", "compare_cpu/opt/run1"),
    ("simulated_memory/leaking", "simulated_memory/fixed"),
    ("verl_cpu", "compare_cpu/opt"),
]


@pytest.mark.parametrize(("base", "opt"), PAIRS)
def test_comparisons_of_the_examples(base, opt):
    done = invoke("compare", EXAMPLES / base, EXAMPLES / opt, "--export", "json=-", "-q")
    validate(json.loads(done.stdout), published("compare"))


def test_a_gate_within_a_comparison_and_alone():
    sides = (EXAMPLES / "compare_cpu/base", EXAMPLES / "compare_cpu/opt")
    rules = ("--fail-on", "step_time>3%", "-q", "--export", "json=-")
    comparison = printed("compare", *sides, *rules)
    assert comparison["gates"]
    validate(comparison, published("compare"))
    rule = ("--isolated", "--fail-on", "step_time>point:3%")
    alone = printed("gate", sides[0], *rule, "--self-test", "-q", "--export", "json=-")
    validate(alone, published("report"))


@pytest.mark.parametrize("name", ["inspect", "doctor"])
@pytest.mark.parametrize("run", ["verl_cpu", "simulated_gpu", "simulated_memory/fixed"])
def test_what_inspect_and_doctor_print(name, run, tmp_path):
    done = invoke(name, EXAMPLES / run, "--json")
    value = json.loads(done.stdout)
    validate(value, published(name))
    assert json.loads(invoke(name, EXAMPLES / run, "--export", "json=-").stdout) == value
    target = tmp_path / "x.json"
    beside = invoke(name, EXAMPLES / run, "--export", f"json={target}")
    assert json.loads(target.read_text()) == value
    assert beside.stdout == invoke(name, EXAMPLES / run).stdout
    assert invoke(name, EXAMPLES / run, "--export", "html=-").exit_code == 2


def test_what_noise_prints(tmp_path):
    runs = sorted((EXAMPLES / "compare_cpu" / "base").iterdir())
    value = printed("noise", *runs, "--export", "json=-")
    validate(value, published("noise"))
    assert printed("noise", *runs, "-o", "-") == value
    target = tmp_path / "noise.json"
    assert invoke("noise", *runs, "-q", "-o", target).stdout == ""
    assert json.loads(target.read_text()) == value


@pytest.fixture(scope="module")
def report():
    return printed("analyze", EXAMPLES / "simulated_gpu", "--export", "json=-", "-q")


def spoiled(report, change):
    value = copy.deepcopy(report)
    change(value)
    return value


WRONG = {
    "another version": lambda r: r.update(schema="tracekit.report/3"),
    "no version": lambda r: r.pop("schema"),
    "no title": lambda r: r.pop("title"),
    "a number for a text": lambda r: r.update(title=3),
    "a status that is none": lambda r: r["sections"][0].update(status="fine"),
    "a text for a number": lambda r: r["headline"][0].update(value="3"),
    "a unit that is none": lambda r: r["headline"][0].update(unit="ms"),
    "a pair of one": lambda r: r.update(fingerprint=[["gpu"]]),
    "no list": lambda r: r.update(sections={}),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(report, change):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoiled(report, change), published("report"))


def test_what_is_new_is_let_pass_and_what_has_a_default_may_be_missing(report):
    schema = published("report")
    jsonschema.validate(spoiled(report, lambda r: r.update(later=1)), schema)
    jsonschema.validate(spoiled(report, lambda r: r.pop("cautions")), schema)
    with pytest.raises(jsonschema.ValidationError):
        validate(spoiled(report, lambda r: r.update(later=1)), schema)


def test_a_field_that_is_added_is_not_in_the_schema_of_before():
    @dataclass
    class Thing:
        """A thing."""

        name: str

    before = make_schema(Thing)

    @dataclass
    class Thing:
        """A thing."""

        name: str
        size_bytes: Annotated[int | None, "How large.", range(1, 10)] = None

    assert make_schema(Thing) != before
    with pytest.raises(jsonschema.ValidationError):
        validate({"name": "a", "size_bytes": 1}, before)
    validate({"name": "a", "size_bytes": 1}, make_schema(Thing))
    assert make_schema(Thing)["properties"]["size_bytes"] == {
        "type": ["integer", "null"], "description": "How large.", "minimum": 1, "maximum": 9,
    }  # fmt: skip


def test_the_command_lists_them_and_names_the_nearest():
    assert [line.split()[0] for line in invoke("schema").stdout.splitlines()[1:]] == NAMES
    wrong = invoke("schema", "reprot")
    assert wrong.exit_code == 2
    assert "did you mean 'report'?" in str(wrong.stderr)
