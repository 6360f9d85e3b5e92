"""A request that is cancelled ends its work, and does not keep the next one waiting: the lines of the protocol by hand."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracekit.agents.statements import LIMIT_S

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b"


@pytest.fixture
def server():
    """`tracekit mcp` after its handshake."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "mcp", "--root", str(EXAMPLES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    client = {"name": "by-hand", "version": "0"}
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    send(process, "initialize", asked, 0)
    assert answer(process, 0)["result"]["serverInfo"]["name"] == "tracekit"
    send(process, "notifications/initialized", {})
    yield process
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def send(process, method, given, number=None):
    """Nothing; one line of the protocol; without a number nobody answers."""
    line = {"jsonrpc": "2.0", "method": method, "params": given}
    if number is not None:
        line["id"] = number
    process.stdin.write(json.dumps(line) + "\n")


def call(process, number, tool, **arguments):
    """Nothing; asks a tool."""
    send(process, "tools/call", {"name": tool, "arguments": arguments}, number)


def answer(process, number):
    """The answer with this number."""
    while True:
        message = json.loads(process.stdout.readline())
        if message.get("id") == number:
            return message


def workers(process):
    """The ids of the processes that a server started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return children.read_text().split()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes cannot be listed here")  # noqa: PTH112
def test_a_cancelled_request_ends_its_work_and_the_next_is_answered_at_once(server):
    call(server, 1, "paths")
    answer(server, 1)
    (before,) = workers(server)
    call(server, 2, "sql", path="simulated_gpu", statement=ENDLESS)
    call(server, 3, "paths", path="simulated_gpu")
    time.sleep(1)
    assert workers(server) == [before]
    began = time.monotonic()
    send(server, "notifications/cancelled", {"requestId": 2, "reason": "nobody waits any more"})
    listed = answer(server, 3)["result"]["structuredContent"]
    assert time.monotonic() - began < LIMIT_S / 2
    assert listed["entries"]
    (after,) = workers(server)
    assert after != before


def test_a_request_that_waits_for_its_turn_can_be_cancelled_too(server):
    call(server, 1, "sql", path="simulated_gpu", statement="SELECT count(*) AS n FROM device_ops")
    call(server, 2, "analyze", path="simulated_gpu")
    call(server, 3, "paths")
    send(server, "notifications/cancelled", {"requestId": 2})
    assert answer(server, 1)["result"]["structuredContent"]["rows"] == [[3264]]
    assert not answer(server, 3)["result"]["isError"]
