"""Questions with known answers, answered by a client that knows the tools alone, in a real session."""

import gzip
import json
import tomllib
from functools import cache
from pathlib import Path

import pytest
from mcp_session import session

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text())["question"]


@pytest.fixture(scope="module")
def asked():
    with session(EXAMPLES) as opened:
        yield opened


def by_column(value):
    """The data with rows of tables by the names of their columns."""
    if isinstance(value, list):
        return list(map(by_column, value))
    if not isinstance(value, dict):
        return value
    value = {name: by_column(inner) for name, inner in value.items()}
    if value.get("columns") and isinstance(value["columns"][0], dict):
        names = [column["name"] for column in value["columns"]]
        value["rows"] = [dict(zip(names, row, strict=True)) for row in value["rows"]]
    return value


def taken(value, path):
    """What stands at a place of the data."""
    for part in path.split("/"):
        name, equals, wanted = part.partition("=")
        if equals:
            value = next(item for item in value if item[name] == wanted)
        elif isinstance(value, list):
            value = len(value) if part == "length" else value[int(part)]
        else:
            value = value[part]
    return value


def answered(asked, question):
    """The answer that the calls of a question lead to."""
    data = None
    for call in question["calls"]:
        arguments = {}
        for name, value in call.get("arguments", {}).items():
            is_reference = isinstance(value, str) and value.startswith("$")
            arguments[name] = taken(data, value[1:]) if is_reference else value
        data = by_column(asked.data(call["tool"], **arguments))
    return taken(data, question["take"])


def test_there_are_enough_questions_of_every_tool():
    from tracekit.agents.tools import TOOLS

    assert len(QUESTIONS) >= 20
    assert len({question["ask"] for question in QUESTIONS}) == len(QUESTIONS)
    tools = {call["tool"] for question in QUESTIONS for call in question["calls"]}
    assert tools == {tool.name for tool in TOOLS}
    assert all(question["known"] for question in QUESTIONS)


def _of_questions():
    """The first question of every list of tools; the others at night."""
    seen = set()
    for question in QUESTIONS:
        tools = tuple(call["tool"] for call in question["calls"])
        marks = pytest.mark.slow if tools in seen else ()
        seen.add(tools)
        yield pytest.param(question, id=question["ask"], marks=marks)


@pytest.mark.parametrize("question", list(_of_questions()))
def test_the_tools_answer(asked, question):
    answer, expected = answered(asked, question), question["expected"]
    if "tolerance" in question:
        assert answer == pytest.approx(expected, rel=question["tolerance"])
    else:
        assert answer == expected
        assert type(answer) in (type(expected), float)


TRUTH = json.loads((EXAMPLES / "simulated_gpu" / "truth.json").read_text())


@cache
def expected(ask):
    return next(question["expected"] for question in QUESTIONS if question["ask"].startswith(ask))


def test_answers_are_those_of_what_was_simulated():
    ranks = TRUTH["ranks"].values()
    steps = [[rank["steps"][step]["by_time"] for rank in ranks] for step in "67"]
    assert expected("How long is a step") == sum(max(r["wall_ns"] for r in s) for s in steps) / 2
    idle, wall = (sum(r[n] for s in steps for r in s) for n in ("idle_ns", "wall_ns"))
    assert expected("Which share of the step are") == pytest.approx(idle / wall, rel=1e-3)
    assert expected("How much of step 6 was rank 1's") == steps[0][1]["idle_ns"]
    gen = [rank["steps"]["6"]["stages"]["rollout_generate"] for rank in ranks]
    assert expected("How long was the generation") == max(g["by_time"]["wall_ns"] for g in gen)
    assert expected("Why is generation slow") == gen[0]["by_launch"]["compute_count"]
    copies = [rank["copies"] for rank in ranks]
    pageable = "Memcpy HtoD (Pageable -> Device)"
    assert expected("How many bytes were copied") == sum(c[pageable]["bytes"] for c in copies)
    within = "Memcpy DtoD (Device -> Device)"
    assert expected("How many device-to-device") == sum(c[within]["count"] for c in copies)
    peaks = [rank["memory"]["peak_allocated_bytes"] for rank in ranks]
    assert expected("What is the most memory") == max(peaks)
    unlinked = [rank["unlinked"] for rank in ranks]
    counts = [u["compute_count"] + u["memset_count"] for u in unlinked]
    assert expected("How much device work was launched before") == sum(counts)
    exposed = [
        TRUTH["ranks"]["1"]["steps"][step]["stages"]["actor_update"]["by_time"]["exposed_comm_ns"] for step in "67"
    ]
    assert expected("How much of a step is the exposed communication") == pytest.approx(sum(exposed) / 2, rel=0.01)


def test_answers_are_those_of_raw_rows():
    count = 0
    for path in (EXAMPLES / "verl_cpu" / "outputs" / "profile").glob("*.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        count += sum(event.get("name") == "aten::mm" for event in events)
    assert expected("How many times was aten::mm") == count
    means = []
    for side in ("base", "opt"):
        of_runs = []
        for path in sorted((EXAMPLES / "compare_cpu" / side).glob("*/*.gz")):
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep#")]
            steps = sorted((e for e in steps if e["cat"] == "user_annotation"), key=lambda e: e["ts"])
            of_runs.append(sum(e["dur"] for e in steps[1:]) / len(steps[1:]))
        means.append(sum(of_runs) / len(of_runs))
    # The ratio of tracekit is of geometric means over runs: near that of plain means.
    assert expected("How many times faster") == pytest.approx(means[0] / means[1], rel=0.02)
