"""Values of raw texts in a trace: the section "Values" of `RECOVERY.md`.

Both scanners call these functions once per distinct text, so they are written for clarity, not speed.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

from tracekit.model.text.labels import truncate_with_hash
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.chrome.scan import Json, Scalar

MAX_DEPTH = 100
TOO_DEEP = Json('"nested deeper than 100"')
"""Value of an array nested deeper: the fixed limit makes results independent of the stack size."""

MAX_PARSED_LENGTH = 2**20
"""Longest array or object parsed, in characters; a longer one stays text.

Parsing would take fifty times its size in memory.
"""

MAX_REMEMBERED = 500
"""Longest array or object that is cached, in characters: the files of a run repeat the same shapes."""

MAX_LABEL = 8_192
"""Most characters kept of a label.

Real kernel names have up to 5,000. A hostile compressed trace of 1 MB may contain a thousand labels of 1 MB.
"""

INT_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1

_ESCAPE = compile_lazily(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = compile_lazily("[\ud800-\udfff]")
_PAIR = compile_lazily("[\ud800-\udbff][\udc00-\udfff]")
_INTEGER = compile_lazily(r"-?[0-9]+")
_FLOAT = compile_lazily(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_CONSTANT = compile_lazily(r"(-?)(nan|inf|infinity)", re.IGNORECASE)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "N/A": None}
_DECIMAL = compile_lazily(r"(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_NEGATIVE_REMAINDER = compile_lazily(r"-?([0-9]+)\.-([0-9]+)")
_ESCAPED_CHARACTER = compile_lazily(r"\\.", re.DOTALL)
_STRING_WITHOUT_ESCAPES = compile_lazily(r'"[^"]*"')
_BRACKETS = compile_lazily(r"([\[{]+)|[\]}]+")


class Number(str):
    """Number as recorded (`1.50`, `NaN`), distinct from a string, also in its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_parse = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number, strict=False).decode


def decode_value(raw: bytes) -> Scalar | Json:
    """Decode the text of one value."""
    text = raw.decode("utf-8", "replace")
    if text.startswith('"'):
        return decode_escapes(text[1:-1])
    if text.startswith(("[", "{")):
        return (_compact_short_container if len(text) <= MAX_REMEMBERED else compact_container)(text)
    return parse_bare_value(text)


def decode_label(raw: bytes) -> str | None:
    """Decode a `ph`, `cat` or `name` to text; None for null."""
    return format_label(decode_value(raw))


def decode_id(raw: bytes) -> int | str | None:
    """Decode a `pid` or `tid` to an integer or text; None for null."""
    return convert_to_id(decode_value(raw))


def decode_key(raw_key: bytes) -> str:
    """Decode the raw bytes between the quotes of a key, which contain no escapes."""
    return raw_key.decode("utf-8", "replace")


def format_label(value: Scalar | Json) -> str | None:
    """Convert a value to text: strings unchanged, others to JSON, null to None; long text is shortened."""
    if value is None:
        return None
    return truncate_with_hash(str(value) if isinstance(value, str) else json.dumps(value), MAX_LABEL)


def convert_to_id(value: Scalar | Json) -> int | str | None:
    """Convert a value to a process or thread id: integers stay integers, the rest becomes text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return format_label(value)


def decode_escapes(text: str) -> str:
    """Decode JSON escapes; invalid escapes are kept."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_decode_escape, text)
    return join_surrogates(plain)


def join_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates by U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    joined = _PAIR.sub(lambda m: m[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _SURROGATE.sub("\ufffd", joined)


def parse_bare_value(text: str) -> Scalar:
    """Parse a text without quotes or brackets: a number, a word, or the text itself."""
    if _INTEGER.fullmatch(text):
        return parse_integer(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text in _WORDS:
        return _WORDS[text]
    constant = _CONSTANT.fullmatch(text)
    if constant is None:
        return text
    if constant[2].lower() == "nan":
        return math.nan
    return -math.inf if constant[1] else math.inf


def parse_integer(text: str) -> int | str:
    """Parse an integer; returns its text if neither int64 nor uint64 can store it."""
    digits = text.lstrip("-").lstrip("0")
    if len(digits) > len(str(UINT64_MAX)):
        return text
    value = int(digits or "0")
    if text.startswith("-"):
        value = -value
    if not INT_MIN <= value <= UINT64_MAX:
        return text
    return value


def parse_raw_time(raw: bytes) -> int | None:
    """Parse a `ts` or `dur` text in microseconds to ns; None if it is not a time."""
    text = raw.decode("utf-8", "replace")
    if text.startswith('"'):
        text = decode_escapes(text[1:-1])
    return convert_microseconds_to_ns(text)


def convert_microseconds_to_ns(text: str) -> int | None:
    """Convert a number of microseconds to ns, rounded half to even; None if it is not a number."""
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        sign, integer_part, fraction, exponent_sign, exponent = decimal.groups()
        value = _scale_to_nanoseconds(integer_part, fraction or "", exponent_sign or "", exponent or "")
        if value is not None and sign:
            value = -value
    else:
        remainder = _NEGATIVE_REMAINDER.fullmatch(text)
        if remainder is None:
            return None
        value = _convert_negative_remainder(remainder[1], remainder[2])
    if value is None or not INT_MIN <= value <= INT64_MAX:
        return None
    return value


def compact_container(text: str) -> Json:
    """Compact the text of an array or object; text that does not parse is kept."""
    if len(text) > MAX_PARSED_LENGTH:
        return Json(text)
    if is_too_deep(text):
        return TOO_DEEP
    try:
        return Json(format_compact_json(_parse(text)))
    except (ValueError, RecursionError):
        return Json(text)


_compact_short_container = lru_cache(4096)(compact_container)


def format_compact_json(value: Any) -> str:
    """Format a parsed value as compact JSON; numbers stay as recorded."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(join_surrogates(value))
    if isinstance(value, list):
        return "[" + ",".join([format_compact_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        # Replacing lone surrogates may make two keys equal: the last one wins.
        members = {format_compact_json(name): format_compact_json(item) for name, item in value.items()}
        return "{" + ",".join([name + ":" + item for name, item in members.items()]) + "}"
    return json.dumps(value)


def is_too_deep(text: str) -> bool:
    """Check whether the arrays and objects of a JSON text nest deeper than `MAX_DEPTH`."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    plain = _STRING_WITHOUT_ESCAPES.sub("", _ESCAPED_CHARACTER.sub("", text))
    depth = 0
    for match in _BRACKETS.finditer(plain):
        depth += len(match[0]) if match[1] else -len(match[0])
        if depth > MAX_DEPTH:
            return True
    return False


def _decode_escape(match: re.Match[str]) -> str:
    """Decode one matched escape."""
    return chr(int(match[1], 16)) if match[1] else _ESCAPED[match[2]]


def _scale_to_nanoseconds(integer_part: str, fraction: str, exponent_sign: str, exponent: str) -> int | None:
    """Multiply a decimal by 1000 and round to an integer; None if that has more digits than an int64."""
    digits = (integer_part + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    power = exponent.lstrip("0")
    if len(power) > 15:  # larger than any file, so larger than any number of digits
        return 0 if exponent_sign == "-" else None
    shift = int(power or "0")
    if exponent_sign == "-":
        shift = -shift
    shift += 3 - len(fraction) + len(digits) - len(significant)
    if len(significant) + shift > 19:
        return None
    if shift >= 0:
        return int(significant + "0" * shift)
    return _round_half_even(significant, -shift)


def _round_half_even(digits: str, dropped: int) -> int:
    """Drop the last `dropped` digits (first and last digit not zero), rounding half to even."""
    if dropped > len(digits):
        return 0
    quotient = int(digits[:-dropped] or "0")
    dropped_digits = digits[-dropped:]
    if dropped_digits == "5":
        return quotient + quotient % 2
    return quotient + (dropped_digits >= "5")


def _convert_negative_remainder(integer_part: str, remainder: str) -> int | None:
    """Convert Kineto's `A.-B` (us, negative ns) to ns; None if it has more digits than an int64."""
    integer_part, remainder = integer_part.lstrip("0"), remainder.lstrip("0")
    if max(len(integer_part), len(remainder)) > 19:
        return None
    return -(int(integer_part or "0") * 1000 + int(remainder or "0"))
