"""A real session: a client of the SDK starts `tracekit mcp` and asks it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from command_line import invoke
from mcp.shared.exceptions import MCPError
from mcp_session import session
from strict_schema import validate

import tracekit
from tracekit.agents import bounds
from tracekit.agents.tools import TOOLS
from tracekit.analyses.rules import RULES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def asked():
    with session(EXAMPLES) as opened:
        yield opened


def test_tools_say_that_they_only_read_and_what_their_arguments_mean(asked):
    tools = asked.tools()
    assert list(tools) == [tool.name for tool in TOOLS]
    for tool in tools.values():
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        assert tool.input_schema["additionalProperties"] is False
        for argument in tool.input_schema["properties"].values():
            assert argument["description"]


EACH = {
    "paths": [{}, {"path": "examples/verl_cpu"}],
    "analyze": [{"path": path} for path in ("simulated_gpu", "verl_cpu", "simulated_memory/fixed")],
    "findings": [{"path": "simulated_gpu"}, {"path": "verl_cpu", "severity": "high"}],
    "explain": [{}, {"rule": "R09"}],
    "tables": [{"path": "verl_cpu"}, {"path": "simulated_gpu", "table": "values", "limit": 500}],
    "sql": [
        {"path": "verl_cpu"},
        {"path": "simulated_gpu", "recipe": "copies_by_direction"},
        {"path": "simulated_gpu", "statement": "SELECT * FROM device_ops", "limit": 500},
        {"path": "simulated_gpu", "statement": "SHOW TABLES"},
        {"path": "verl_cpu", "statement": "SELECT name FROM device_ops"},
    ],
    "what_if": [
        {"path": "simulated_gpu", "top": 50},
        {"path": "simulated_gpu", "changes": ["unwait by=aten::item", "graph stage=gen"], "steps": "6"},
    ],
    "compare": [
        {"base": "compare_cpu/base", "opt": "compare_cpu/opt"},
        {"base": "simulated_memory/leaking", "opt": ["simulated_memory/fixed"]},
        {"base": "compare_cpu/base/run1", "opt": "compare_cpu/opt/run1"},
    ],
}
CALLS = [(tool, arguments) for tool, several in EACH.items() for arguments in several]


@pytest.mark.parametrize(("tool", "arguments"), CALLS)
def test_an_answer_is_what_its_schema_says_and_bounded(asked, tool, arguments):
    result = asked.call(tool, **arguments)
    assert not result.is_error
    validate(result.structured_content, asked.tools()[tool].output_schema)
    (content,) = result.content
    assert 0 < len(content.text) <= bounds.MAX_TEXT_CHARACTERS
    assert len(json.dumps(result.structured_content)) < 3 * bounds.MAX_ROW_CHARACTERS
    assert str(ROOT) not in content.text + json.dumps(result.structured_content)


def test_the_text_is_the_first_screen_that_a_person_sees(asked):
    text = asked.call("analyze", path="simulated_gpu/outputs/profile").content[0].text
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "analyze", "examples/simulated_gpu/outputs/profile"],
        cwd=ROOT, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert text.startswith(done.stdout.rstrip("\n"))


def test_a_prediction_is_the_one_of_the_command(asked):
    changes = ["unwait by=aten::item", "equalise device rank=1"]
    data = asked.data("what_if", path="simulated_gpu", changes=changes)
    report = tracekit.whatif(ROOT / "examples/simulated_gpu", changes)
    assert data["answer"] == report.answer
    assert [row[1] for row in data["overview"]["rows"]] == changes
    assert [table["name"] for table in data["tables"]] == ["touched", "stages", "critical_path", "ranks", "ledger"]
    refused = asked.call("what_if", path="simulated_gpu", changes=["unwait by=aten::itme"])
    assert refused.is_error
    assert "did you mean aten::item" in refused.content[0].text


def test_rows_are_those_of_the_table_filtered_and_in_parts(asked):
    every = asked.data("tables", path="simulated_gpu", table="values", limit=500)
    names = [column["name"] for column in every["columns"]]
    rows, offset = [], 0
    while offset is not None:
        part = asked.data("tables", path="simulated_gpu", table="values", limit=97, offset=offset)
        rows += part["rows"]
        offset = part["next_offset"]
    assert len(rows) == every["matching"] == every["tables"][0]["row_count"] > 2 * 97
    assert rows[: len(every["rows"])] == every["rows"]
    wanted = {"rank": 1, "name": "gpu_idle", "stage": None}
    chosen = asked.data("tables", path="simulated_gpu", table="values", where=wanted, columns=["step", "value"])
    expected = [
        [row[names.index("step")], row[names.index("value")]]
        for row in rows
        if all(row[names.index(name)] == value for name, value in wanted.items())
    ]
    assert chosen["rows"] == expected != []
    assert chosen["next_offset"] is None


def test_a_statement_says_whether_there_are_more_rows(asked):
    counting = "SELECT count(*) AS n FROM device_ops"
    count = asked.data("sql", path="simulated_gpu", statement=counting)["rows"][0][0]
    assert count == 2 * 1632
    part = asked.data("sql", path="simulated_gpu", statement="SELECT id FROM device_ops", limit=7)
    assert (len(part["rows"]), part["has_more"]) == (7, True)
    last = f"SELECT id FROM device_ops LIMIT 9 OFFSET {count - 3}"
    part = asked.data("sql", path="simulated_gpu", statement=last)
    assert (len(part["rows"]), part["has_more"]) == (3, False)


def test_what_nobody_recorded_is_named(asked):
    answer = asked.data("sql", path="verl_cpu", statement="SELECT name FROM device_ops")
    assert (answer["rows"], answer["not_recorded"]) == ([], ["device_ops"])


def test_a_list_or_an_object_may_come_as_its_text(asked):
    given = {"path": "simulated_gpu", "table": "values"}
    plain = asked.data("tables", **given, where={"rank": 1}, columns=["value"])
    assert asked.data("tables", **given, where='{"rank": 1}', columns='["value"]') == plain


def test_findings_come_in_parts_and_by_rule(asked):
    every = asked.data("findings", path="simulated_gpu", limit=50)
    assert every["next_offset"] is None
    second = asked.data("findings", path="simulated_gpu", offset=1, limit=1)
    assert second["findings"] == every["findings"][1:2]
    assert second["next_offset"] == 2
    rule = second["findings"][0]["finding"]["rule"]
    one = asked.data("findings", path="simulated_gpu", rule=rule)
    assert {numbered["finding"]["rule"] for numbered in one["findings"]} == {rule}
    assert one["matching"] == len(one["findings"])


def test_documents(asked):
    report = asked.read("tracekit://report/examples/simulated_gpu/outputs/profile")
    assert report.startswith("**examples/simulated_gpu/outputs/profile** · SIMULATED DATA · ")
    assert asked.read("tracekit://report/simulated_gpu%2Foutputs%2Fprofile") == report
    assert len(report) <= bounds.MAX_DOCUMENT_CHARACTERS
    listed = asked.portal.call(asked.client.list_resources).resources
    assert [str(page.uri) for page in listed] == [f"tracekit://rule/{rule.id}" for rule in RULES]
    assert asked.read("tracekit://rule/straggler") == asked.read("tracekit://rule/R09")
    templates = asked.portal.call(asked.client.list_resource_templates).resource_templates
    assert [t.uri_template for t in templates] == ["tracekit://report/{+path}", "tracekit://rule/{name}"]


@pytest.mark.parametrize("path", ["../../etc", "%2e%2e/x", "/etc/passwd", "~/x", "no/such", "file:///etc/passwd"])
def test_no_document_leads_out(asked, path):
    with pytest.raises(MCPError, match="below: examples") as caught:
        asked.read(f"tracekit://report/{path}")
    assert "Traceback" not in str(caught.value)


WRONG = [
    ("analyze", {}, "argument 'path' is missing"),
    ("analyze", {"pth": "x"}, "no argument 'pth'; did you mean 'path'?"),
    ("analyze", {"path": 3}, "argument 'path' is a whole number, not a text"),
    ("analyze", {"path": "simulated_gpu", "top": 0}, "argument 'top' is 0"),
    ("analyze", {"path": "simulated_gpu", "ranks": "x"}, "'x'"),
    ("analyze", {"path": "ci"}, "no profile found in examples/ci"),
    ("analyze", {"path": "simulated_gpuu"}, "'simulated_gpuu': nothing of this name in the roots"),
    ("tables", {"path": "verl_cpu", "table": "kernls"}, "no table 'kernls'"),
    ("tables", {"path": "simulated_gpu", "table": "kernels", "columns": ["totl_ns"]},
     "no column 'totl_ns'; did you mean 'total_ns'?"),
    ("tables", {"path": "simulated_gpu", "table": "kernels", "where": [1]},
     "argument 'where' is a list, not an object or null"),
    ("findings", {"path": "simulated_gpu", "rule": "straglr"}, "no rule 'straglr'; did you mean 'straggler'?"),
    ("findings", {"path": "simulated_gpu", "rule": "R05"}, "no rule 'R05'"),
    ("findings", {"path": "simulated_gpu", "severity": "bad"}, "no severity 'bad'"),
    ("explain", {"rule": "R99"}, "no rule 'R99'"),
    ("sql", {"path": "verl_cpu", "recipe": "filez"}, "no recipe 'filez'; did you mean 'files'?"),
    ("sql", {"path": "verl_cpu", "recipe": "files", "statement": "SELECT 1"}, "both"),
    ("sql", {"path": "verl_cpu", "statement": "SELECT 1; SELECT 2"}, "2 statements are given"),
    ("sql", {"path": "verl_cpu", "statement": "SELECT nme FROM host_ops"}, "no column 'nme'; did you mean 'name'?"),
    ("sql", {"path": "verl_cpu", "statement": "SELECT * FROM read_text('/etc/passwd')"}, "out of reach"),
    ("sql", {"path": "verl_cpu", "statement": "SELECT * FROM '/etc/passwd'"}, ""),
    ("sql", {"path": "verl_cpu", "statement": "COPY (SELECT 1) TO '/tmp/tracekit-never.csv'"}, ""),
    ("sql", {"path": "verl_cpu", "statement": "CREATE TABLE t AS SELECT 1"}, ""),
    ("sql", {"path": "verl_cpu", "statement": "SELECT * FROM missing"}, "no table 'missing'"),
    ("sql", {"path": "../x", "statement": "SELECT 1"}, "leads up"),
    ("compare", {"base": [], "opt": "verl_cpu"}, "a side of the comparison names no path"),
    ("compare", {"base": "compare_cpu/base", "opt": "compare_cpu/opt", "min_effect_percent": -1}, "-1"),
    ("analyse", {"path": "verl_cpu"}, "no tool 'analyse'; did you mean 'analyze'?"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "problem"), WRONG)
def test_what_is_wrong_is_said_in_two_lines(asked, tool, arguments, problem):
    lines = asked.error(tool, **arguments)
    assert problem in lines[0]
    assert len(lines) == 2
    assert re.match(r"try: \S", lines[1])
    # A client calls tools; it has no command line.
    assert not re.search(r"(?<!\w)--?[a-z]|\btracekit [a-z]+ ", lines[1])


def test_a_client_of_the_older_handshake_is_served():
    with session(EXAMPLES, mode="legacy") as opened:
        assert opened.data("paths")["entries"][0]["path"] == "examples"


def test_the_command_refuses_what_is_no_directory():
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "mcp", "--root", "no/such"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "tracekit: no/such: no such directory"
    assert len(done.stderr.splitlines()) == 2


def test_it_ends_when_nobody_asks_any_more():
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "mcp", "--root", str(EXAMPLES)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("tracekit.cli.commands.mcp.find_spec", lambda _: None)
    done = invoke("mcp", "--root", EXAMPLES)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[1].strip() == "try: pip install '.[mcp]' (in a checkout of tracekit)"
