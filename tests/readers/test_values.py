"""Value texts and what they stand for: the section "Values" of RECOVERY.md."""

import json
import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest

from tracekit.readers.chrome.scan import Json
from tracekit.readers.chrome.values import TOO_DEEP, decode_id, decode_key, decode_label, decode_value, parse_raw_time


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (rb'"plain"', "plain"),
        (rb'"a\"\\\/\b\f\n\r\t"', 'a"\\/\b\f\n\r\t'),
        (rb'"\u00e9\u4e2D"', "é中"),
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\\ud83d\ude00"', "\\ud83d\ufffd"),
        (rb'"C:\Users\x\u12"', r"C:\Users\x\u12"),
        (b'"line\nbreak\x00"', "line\nbreak\x00"),
        (b'"\xff\xc3"', "\ufffd\ufffd"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (b'""', ""),
    ],
)
def test_a_string_is_decoded_leniently(raw, value):
    assert decode_value(raw) == value
    assert type(decode_value(raw)) is str


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"007", 7),
        (b"0" * 5000 + b"7", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"18446744073709551616", "18446744073709551616"),
        (b"-9223372036854775809", "-9223372036854775809"),
        (b"9" * 5000, "9" * 5000),
        (b"1.", 1.0),
        (b"1.50", 1.5),
        (b"-1.5E-3", -0.0015),
        (b"1e999", math.inf),
        (b"true", True),
        (b"false", False),
        (b"null", None),
        (b"N/A", None),
        (b"n/a", "n/a"),
        (b"inf", math.inf),
        (b"-INFINITY", -math.inf),
        (b".5", ".5"),
        (b"+1", "+1"),
        (b"1_0", "1_0"),
        (b"0x1f", "0x1f"),
        (b"1.5.2", "1.5.2"),
        (b"1e", "1e"),
        (b"TRUE", "TRUE"),
    ],
)
def test_a_bare_value_is_a_number_a_word_or_its_own_text(raw, value):
    assert decode_value(raw) == value
    assert type(decode_value(raw)) is type(value)


@pytest.mark.parametrize("raw", [b"NaN", b"nan", b"-nan", b"-NAN"])
def test_nan_is_a_float_in_any_spelling(raw):
    assert math.isnan(decode_value(raw))


def test_the_sign_of_a_zero_float_is_kept():
    assert math.copysign(1, decode_value(b"-0.0")) == -1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'[1, 2.50 ,\n"a"]', '[1,2.50,"a"]'),
        (b'{"a" : {"b": null}}', '{"a":{"b":null}}'),
        (b'{"a":1,"b":2,"a":3}', '{"a":3,"b":2}'),
        (b"[NaN, -Infinity, 1E5, -0]", "[NaN,-Infinity,1E5,-0]"),
        (rb'["\u00e9", "\ud800"]', '["é","\ufffd"]'),
        (rb'{"\ud800": 1, "\ufffd": 2}', '{"\ufffd":2}'),
        (b'["line\nbreak"]', '["line\\nbreak"]'),
        (b"[1 2]", "[1 2]"),
        (b"[N/A]", "[N/A]"),
        (b"[01]", "[01]"),
        (b"[" + b"9" * 5000 + b"]", "[" + "9" * 5000 + "]"),
        (b"[[1}]", "[[1}]"),
    ],
)
def test_an_array_or_object_is_compact_json_or_its_own_text(raw, text):
    assert decode_value(raw) == text
    assert type(decode_value(raw)) is Json


def test_nesting_deeper_than_a_hundred_has_a_fixed_text():
    assert decode_value(b"[" * 100 + b"]" * 100) == "[" * 100 + "]" * 100
    assert decode_value(b"[" * 101 + b"]" * 101) == TOO_DEEP
    assert decode_value(b'[{"a":' * 60 + b"1" + b"}]" * 60) == TOO_DEEP
    assert decode_value(b"[" * 10**6) == TOO_DEEP
    assert decode_value(b"[" * 2**21) == "[" * 2**21


def test_a_very_long_array_stays_its_own_text():
    raw = b"[ " + b"1," * 2**19 + b"1]"
    assert decode_value(raw) == raw.decode()
    assert type(decode_value(raw)) is Json
    assert json.loads(TOO_DEEP)


def test_brackets_in_strings_do_not_nest():
    raw = json.dumps(["[" * 500, '"[' * 500, "\\" * 7]).encode()
    assert json.loads(decode_value(raw)) == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "label", "identity"),
    [
        (b'"X"', "X", "X"),
        (b"null", None, None),
        (b"N/A", None, None),
        (b"7", "7", 7),
        (b'"7"', "7", "7"),
        (b"1.50", "1.5", "1.5"),
        (b"true", "true", "true"),
        (b"[1, 2]", "[1,2]", "[1,2]"),
        (b"-nan", "NaN", "NaN"),
        (b"18446744073709551616", "18446744073709551616", "18446744073709551616"),
    ],
)
def test_labels_are_text_and_ids_keep_integers(raw, label, identity):
    assert decode_label(raw) == label
    assert decode_id(raw) == identity
    assert type(decode_id(raw)) is type(identity)


def test_a_key_with_invalid_utf8_is_replaced():
    assert decode_key(b"Input\xff") == "Input\ufffd"


@pytest.mark.parametrize(
    ("raw", "ns"),
    [
        (b"1712195495519689.047", 1712195495519689047),
        (b"1", 1000),
        (b"1.", 1000),
        (b"-1.5", -1500),
        (b'"1.5"', 1500),
        (rb'"\u0031.5"', 1500),
        (b"1.5e3", 1500000),
        (b"15E-1", 1500),
        (b"0.0005", 0),
        (b"0.0015", 2),
        (b"0.0025", 2),
        (b"0.00250001", 3),
        (b"-0.0005", 0),
        (b"-0.0015", -2),
        (b"0.00049999", 0),
        (b"1e-999999999999999999999", 0),
        (b"0e999999999999999999999", 0),
        (b"1" + b"0" * 100000 + b"e-100000", 1000),
        (b"0" * 5000 + b"1", 1000),
        (b"9223372036854775.807", 2**63 - 1),
        (b"9223372036854775.8074", 2**63 - 1),
        (b"-9223372036854775.808", -(2**63)),
        (b"12.-660", -12660),
        (b"-12.-660", -12660),
    ],
)
def test_microseconds_become_exact_nanoseconds(raw, ns):
    assert parse_raw_time(raw) == ns


@pytest.mark.parametrize(
    "raw",
    [
        b"9223372036854775.8075",
        b"1e999999999",
        b"9" * 5000,
        b"1.-",
        b".5",
        b"1_0",
        b"null",
        b"NaN",
        b"[1]",
        b'" 1"',
        b'""',
        b'"\xd9\xa1"',
        b"1." + b"-" + b"9" * 30,
    ],
)
def test_what_is_no_time_or_beyond_int64_is_absent(raw):
    assert parse_raw_time(raw) is None


def test_rounding_is_that_of_exact_fractions():
    rng = random.Random(0)
    for _ in range(5000):
        whole = str(rng.randrange(10 ** rng.randrange(1, 9)))
        fraction = rng.choice(["", ".", ".5", ".0005", ".0015", f".{rng.randrange(10**6):06}"])
        text = rng.choice(["", "-"]) + whole + fraction + rng.choice(["", "e3", "E-4", "e+2"])
        assert parse_raw_time(text.encode()) == round(Fraction(Decimal(text)) * 1000)
