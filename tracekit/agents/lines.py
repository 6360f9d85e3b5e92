"""JSON-RPC lines from a client, and the error responses to malformed ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

LINE_BYTES = 16 << 20
"""Size limit of a line; a longer one is refused and skipped without storing it."""

PARSE_ERROR, INVALID_REQUEST = -32700, -32600

_LONGEST_ID = 200
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]|[^\s{}\[\]:,"]+')


def make_line_error(line: bytes, is_notification: Callable[[bytes], bool]) -> str:
    """Build the error response to a line that is not a JSON-RPC 2.0 message; empty for a message or an empty line.

    `is_notification` parses a line with the protocol library; it raises ValueError if the line is not a message.
    """
    if not line.strip():
        return ""
    if len(line) >= LINE_BYTES:
        problem = INVALID_REQUEST, f"the line is longer than {LINE_BYTES:,} bytes"
    else:
        problem = _find_line_problem(line, is_notification)
    return _format_error_response(*problem, line) if problem[1] else ""


def _find_line_problem(line: bytes, is_notification: Callable[[bytes], bool]) -> tuple[int, str]:
    """Find what is wrong with a line: (error code, message); the message is empty if the line is valid."""
    try:
        is_misread = is_notification(line) and "id" in json.loads(line)
    except ValueError as error:
        kinds = {detail["type"] for detail in getattr(error, "errors", list)()}
        if kinds and "json_invalid" not in kinds:
            return INVALID_REQUEST, "the line is not a message of JSON-RPC 2.0"
        return PARSE_ERROR, "the line is not JSON, or nested too deeply"
    if is_misread:
        return INVALID_REQUEST, "the id is neither a text nor a whole number"
    return INVALID_REQUEST, ""


def _format_error_response(code: int, message: str, line: bytes) -> str:
    """Build an error response with the request's id, if the line contains one."""
    answer = {"jsonrpc": "2.0", "id": find_request_id(line), "error": {"code": code, "message": message}}
    return json.dumps(answer)


def find_request_id(line: bytes) -> int | str | None:
    """Find the id of a request that may be damaged or nested too deeply to parse; None if there is none.

    >>> find_request_id(b'{"params": [[{"id": 1}]], "id": "seven", '), find_request_id(b"[1]"), find_request_id(b'{"id": 1.5}')
    ('seven', None, None)
    """
    depth, key, is_value = 0, "", False
    for match in _TOKEN.finditer(line.decode("utf-8", "replace")):
        part = match[0]
        if depth == 1 and is_value and key == '"id"':
            return _parse_request_id(part)
        if part in "{[":
            depth += 1
        elif part in "}]":
            depth -= 1
        is_value = part == ":"
        key = key if is_value else part
    return None


def _parse_request_id(token: str) -> int | str | None:
    """Parse a JSON token as an id; None if it is neither a string nor an integer."""
    if len(token) > _LONGEST_ID:
        return None
    try:
        value = json.loads(token)
    except ValueError:
        return None
    return value if isinstance(value, str) or type(value) is int else None
