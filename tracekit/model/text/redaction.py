"""Remove credentials from text: one function for every output.

Two rules work together. URLs lose their user information and, on the web, their query (a signed address is a key).
The secret parts of addresses given as arguments are removed wherever they appear, because exceptions of other
packages quote them decoded and inside sentences.
"""

from __future__ import annotations

import os
import re
import traceback

from tracekit.model.text.patterns import compile_lazily

REDACTION_MARK = "…"

_SCHEME = compile_lazily(r"[A-Za-z][A-Za-z0-9+.-]*://")
_RUN = compile_lazily(r"(?:(?!::[A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>`])*")
"""The rest of a URL in running text; `simplecache::https://…` chains two."""

_AUTHORITY = compile_lazily(r"[^/?#\\]*")
_WEB = ("http", "https")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Stores whose addresses name a container before the `@`."""

_KEYED = compile_lazily(r"[?#][^\s=]*=.*", re.DOTALL)
_ENVIRONMENT = compile_lazily(r"(?i).*(?:TOKEN|SECRET|PASSWORD|PASSWD|ACCESS_KEY|API_KEY|PRIVATE_KEY)")
_LEAST = 8
"""Shorter secrets are removed only with the `@`, `?` or `#` beside them: `me` is part of many words."""

_remembered: set[str] = set()


def redact(text: str) -> str:
    """Remove credentials from a text.

    >>> redact("ssh://me:secret@host/runs and s3://runs/a@b:c")
    'ssh://…@host/runs and s3://runs/a@b:c'
    >>> redact("simplecache::https://token@host/rank0.json.gz?signature=x")
    'simplecache::https://…@host/rank0.json.gz?…'
    """
    for secret in _list_secrets():
        if secret in text:
            text = text.replace(secret, REDACTION_MARK)
    if "://" not in text:
        return text
    pieces, end = [], 0
    while start := _SCHEME.search(text, end):
        run = _RUN.match(text, start.end())
        rest = run[0] if run else ""
        pieces += [text[end : start.end()], _redact_address(start[0][:-3].lower(), rest)]
        end = start.end() + len(rest)
    return "".join([*pieces, text[end:]])


def remember_secrets(argument: str) -> None:
    """Remember the secret parts of an address or of a chain, to remove them from later texts."""
    if "://" not in argument:
        return
    end = 0
    while start := _SCHEME.search(argument, end):
        chained = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)").search(argument, start.end())
        end = chained.start() if chained else len(argument)
        _remember_address_parts(start[0][:-3].lower(), argument[start.end() : end])
    _known_cache.clear()


def get_safe_cause(error: BaseException) -> BaseException | None:
    """Return the error as a cause to chain, or None where its stack would show credentials."""
    text = "".join(traceback.format_exception(error))
    return error if redact(text) == text else None


def _remember_address_parts(scheme: str, address: str) -> None:
    """Remember the user information, the query and the fragment of one address."""
    cut = _find_user_end(scheme, address)
    user = address[:cut]
    if user:
        _remember_spellings(user[:-1], "@")
        name, _, password = user[:-1].partition(":")
        _remember_spellings(password or name)
    tail = address[cut:]
    for mark in "?#":
        head, _, secret = tail.partition(mark)
        if secret and (scheme in _WEB or "=" in secret):
            _remember_spellings(secret, before=mark)
            for part in re.split("[&;#]", secret):
                _remember_spellings(part.partition("=")[2] or part)
            tail = head


def _remember_spellings(secret: str, after: str = "", before: str = "") -> None:
    """Remember a secret in all spellings: encoded, decoded, escaped."""
    from urllib.parse import quote, unquote

    spellings = {secret, unquote(secret), quote(secret), quote(secret, safe="")}
    spellings |= {repr(spelling)[1:-1] for spelling in list(spellings)}
    for spelling in spellings - {""}:
        if len(spelling) >= _LEAST:
            _remembered.add(spelling)
        elif after or before:
            _remembered.add(f"{before}{spelling}{after}")


_known_cache: list[tuple[str, ...]] = []


def _list_secrets() -> tuple[str, ...]:
    """Known secrets of arguments and of the environment, longest first."""
    if not _known_cache:
        values = {
            value
            for name, value in os.environ.items()
            if len(value) >= _LEAST and _ENVIRONMENT.fullmatch(name) and not os.path.isabs(value)  # noqa: PTH117
        }
        _known_cache.append(tuple(sorted(_remembered | values, key=len, reverse=True)))
    return _known_cache[0]


def _redact_address(scheme: str, address: str) -> str:
    """Remove credentials from the part of a URL after `scheme://`."""
    cut = _find_user_end(scheme, address)
    tail = address[cut:]
    if scheme in _WEB and "?" in tail:
        tail = f"{tail.partition('?')[0]}?{REDACTION_MARK}"
    elif keyed := _KEYED.search(tail):
        tail = f"{tail[: keyed.start() + 1]}{REDACTION_MARK}"
    return f"{REDACTION_MARK}@{tail}" if cut else tail


def _find_user_end(scheme: str, address: str) -> int:
    """Find the end of the user information, after its `@`; 0 where there is none.

    A password may contain any character, also `@` and `/`: with a colon before the first `/`, cut at the last `@`.
    This can hide the host before a path with an `@`; cutting earlier could show half a password.
    """
    match = _AUTHORITY.match(address)
    authority = match[0] if match else ""
    if scheme in _CONTAINERS and authority.count("@") == 1 and ":" not in authority:
        return 0
    if "@" in authority or ":" in authority.rpartition("]")[2]:
        return address.rfind("@") + 1
    return 0
