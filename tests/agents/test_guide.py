"""docs/agents.md: the session in it is what the tools say today, and what it says of them is so."""

import json
import os
import re
from pathlib import Path

from mcp_session import session

from tracekit.agents import bounds
from tracekit.agents.tools import TOOLS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "agents.md"
START, END = "<!-- session -->\n", "<!-- end of session -->\n"
CALLS = [
    ("paths", {}),
    ("paths", {"path": "examples/simulated_gpu/outputs/profile"}),
    ("analyze", {"path": "examples/simulated_gpu/outputs/profile", "top": 4}),
    ("findings", {"path": "examples/simulated_gpu/outputs/profile", "limit": 1}),
    (
        "tables",
        {
            "path": "examples/simulated_gpu/outputs/profile",
            "table": "communication.collectives",
            "columns": ["op", "count", "dur_ns", "exposed_ns", "wait_ns"],
        },
    ),
    ("tables", {"path": "examples/simulated_gpu/outputs/profile", "table": "stragglers.ranks"}),
    ("analyze", {"path": "examples/simulated_gpu/../../etc"}),
]


def transcript():
    parts = []
    with session(ROOT / "examples") as opened:
        for tool, arguments in CALLS:
            text = opened.call(tool, **arguments).content[0].text
            parts.append(f"```text\n> {tool} {json.dumps(arguments)}\n{text.rstrip()}\n```\n")
    return "".join(parts)


def test_the_session_is_what_the_tools_say():
    """TRACEKIT_UPDATE_GOLDEN=1 writes it anew."""
    guide = GUIDE.read_text()
    before, _, rest = guide.partition(START)
    shown, _, after = rest.partition(END)
    now = transcript()
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        GUIDE.write_text(before + START + now + END + after)
        return
    assert shown == now


def test_the_numbers_of_the_answer_are_in_the_session():
    session_text, _, answer = GUIDE.read_text().partition(START)[2].partition(END)
    numbers = {"63.7", "62.2–65.2", "59 %", "58.3 %", "58.1 ms", "27 %", "53460552", "48596139", "0.7916"}
    assert all(number in session_text for number in numbers)
    assert all(number in answer for number in ("63.7 ms", "58.1 ms", "53.5 ms against 48.6 ms"))


def test_every_tool_and_every_bound_is_in_the_guide():
    guide = GUIDE.read_text()
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)[: len(TOOLS)] == [tool.name for tool in TOOLS]
    for bound in (bounds.MAX_TEXT_CHARACTERS, bounds.MAX_ANSWER_ROWS, bounds.MAX_ROW_CHARACTERS):
        assert f"{bound:,}" in guide
