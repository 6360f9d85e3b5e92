"""Lines that are no requests are answered with an error, never passed over and never the end of the server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tracekit.agents import lines
from tracekit.agents.server import is_notification

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by-hand", "version": "0"}}


def calling(path):
    """A call of the tool `paths` with this text of JSON as its path."""
    call = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"paths","arguments":{"path":'
    return call + path + b"}}}"


MALFORMED = {
    "no JSON": (b"not json", None, lines.PARSE_ERROR),
    "torn": (b'{"jsonrpc":"2.0","id":7,"method":"pi', 7, lines.PARSE_ERROR),
    "torn in its id": (b'{"jsonrpc":"2.0","id":"ab', None, lines.PARSE_ERROR),
    "20,000 lists": (b"[" * 20_000 + b"]" * 20_000, None, lines.PARSE_ERROR),
    "20,000 lists in a call": (calling(b"[" * 20_000 + b"]" * 20_000), 5, lines.PARSE_ERROR),
    "20,000 objects in a call": (calling(b'{"id":' * 20_000 + b"1" + b"}" * 20_000), 5, lines.PARSE_ERROR),
    "a number": (b"5", None, lines.INVALID_REQUEST),
    "null": (b"null", None, lines.INVALID_REQUEST),
    "no method": (b'{"jsonrpc":"2.0","id":9}', 9, lines.INVALID_REQUEST),
    "another version": (b'{"jsonrpc":"1.0","id":"x","method":"ping"}', "x", lines.INVALID_REQUEST),
    "a batch": (b'[{"jsonrpc":"2.0","id":9,"method":"ping"}]', None, lines.INVALID_REQUEST),
    "an id that is a fraction": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, lines.INVALID_REQUEST),
    "an id that is an object": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None, lines.INVALID_REQUEST),
    "parameters in a list": (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":[1]}', 9, lines.INVALID_REQUEST),
    "no UTF-8": (b'{"jsonrpc":"2.0","id":9,"method":"\xff"}', 9, lines.PARSE_ERROR),
    "half a surrogate": (b'{"jsonrpc":"2.0","id":9,"method":"\\ud800"}', 9, lines.PARSE_ERROR),
    "a null byte": (b"\0", None, lines.PARSE_ERROR),
    "a number of 5,000 digits": (b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"ping"}', None, lines.PARSE_ERROR),
    "an endless line": (b'{"id":3,' + b" " * lines.LINE_BYTES, 3, lines.INVALID_REQUEST),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_line_is_refused_with_its_id_where_that_can_be_found(name):
    line, number, code = MALFORMED[name]
    answer = json.loads(lines.make_line_error(line + b"\n", is_notification))
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == number
    assert answer["error"]["code"] == code
    assert len(answer["error"]["message"]) < 100


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":9,"method":"ping"}',
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","id":9,"result":{}}',
        b"",
        b"  \n",
    ],
)
def test_messages_and_empty_lines_are_not_refused(line):
    assert lines.make_line_error(line, is_notification) == ""


@pytest.fixture
def server():
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "mcp", "--root", str(EXAMPLES)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == 0
    yield process
    process.kill()
    process.communicate()


def test_a_server_answers_every_malformed_line_and_the_request_after_it(server):
    for place, (line, number, code) in enumerate(MALFORMED.values(), 100):
        ping = {"jsonrpc": "2.0", "id": place, "method": "ping"}
        server.stdin.write(line + b"\n" + json.dumps(ping).encode() + b"\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert (answer["id"], answer["error"]["code"]) == (number, code)
        assert json.loads(server.stdout.readline()) == {"jsonrpc": "2.0", "id": place, "result": {}}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_server_whose_client_keeps_silent(server, number, status):
    server.send_signal(number)
    assert server.wait(5) == status
