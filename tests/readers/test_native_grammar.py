"""The grammar of the C scanner: where it stops, what a string, a container, a number and a time are."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers.native_scans import arg, fed, ns, read, values

from tracekit.readers.chrome.scan import BAD, END, MORE, Json, ScanOptions
from tracekit.readers.chrome.scanner_c import NativeScanner

# --- where it stops


@pytest.mark.parametrize("text", [b"", b" ", b",,", b" \t\r\n, "])
def test_separators_are_taken(text):
    assert fed(text) == (len(text), MORE)


def test_any_number_of_commas_may_stand_between_events():
    assert len(read(b",{},,{} {}, ,")["ts_ns"]) == 3


def test_nothing_is_read_past_the_closing_bracket():
    assert fed(b'{},{} ] , {"a"') == (7, END)


@pytest.mark.parametrize("element", [b"1", b'"x"', b"[{}]", b"null", b"}", b":", b"\x00", b"\xff"])
def test_an_element_that_is_no_object_is_bad_where_it_starts(element):
    assert fed(b"{}, " + element) == (4, BAD)


@pytest.mark.parametrize(
    "event",
    [
        b"{,}", b'{"a":1,,}', b'{"a":1 "b":2}', b'{"a" 1}', b'{"a":}', b'{"a":,}', b"{a:1}", b'{"a":1]',
        b'{"a":1;', b"{'a'", b'{"a":(1)}', b'{"a":1"b"', b'{"a\\', b'{"a\\u0062":1}', b'{"args":{,', b'{"args":{"a\\',
        b'{"args":{"a":1]', b'{"args":{"a":1}]', b'{"a":"b""', b'{"a":{}{', b'{"ts":1,"ts"::', b'{"\x00":1}"', b"{\x00",
    ],
)  # fmt: skip
def test_a_byte_outside_the_grammar_makes_the_event_bad_at_its_brace(event):
    bad = fed(b"{} " + event) if event != b'{"\x00":1}"' else fed(b"{} {" + event)
    assert bad == (3, BAD)


@pytest.mark.parametrize(
    "event",
    [
        b"{", b"{ ", b'{"', b'{"a', b'{"a"', b'{"a" ', b'{"a":', b'{"a": ', b'{"a":1', b'{"a":1 ', b'{"a":1,',
        b'{"a":1, ', b'{"a":"', b'{"a":"x\\', b'{"a":"x\\"', b'{"a":"x"', b'{"a":[', b'{"a":["]', b'{"a":[[]',
        b'{"args":', b'{"args":{', b'{"args":{"a":1', b'{"args":{"a":1}', b'{"ts":1', b'{"ts":1.', b'{"ts":"1',
        b'{"ts":"1"', b'{"a":-', b'{"a":1e', b'{"a":1.5e+', b'{"a":tru', b'{"cat":"x', b'{"pid":12',
    ],
)  # fmt: skip
def test_an_event_that_the_data_cuts_waits_for_more(event):
    assert fed(b"{} " + event) == (3, MORE)


def test_a_value_that_touches_the_end_of_the_data_may_go_on():
    scanner = NativeScanner(ScanOptions())
    assert scanner.feed(b'{"args":{"a":12') == (0, MORE)
    scanner.feed(b'{"args":{"a":123}}')
    assert values(scanner.finish()["args"]["a"]) == [123]


def test_a_cut_or_bad_event_leaves_nothing_behind():
    scanner = NativeScanner(ScanOptions())
    scanner.feed(b'{"name":"a","args":{"x":1}}')
    assert scanner.feed(b'{"name":"b","ts":5,"args":{"x":"t","y":2},"z":1') == (0, MORE)
    assert scanner.feed(b'{"name":"c","ts":1e9,"args":{"x":2.5,"w":2},"z":1}}'[:-2] + b";") == (0, BAD)
    scanner.feed(b'{"name":"d","args":{"x":3}}')
    columns = scanner.finish()
    assert columns["name"].values == ["a", "d"]
    assert columns["args"].keys() == {"x"}
    assert columns["args"]["x"].values.dtype == np.int64
    assert columns["args"]["x"].values.tolist() == [1, 3]
    assert columns["fields"] == {}
    assert columns["has_ts"].tolist() == [False, False]


@pytest.mark.parametrize(
    "layout", [b'{"a":1, "b" : "x","args":{ "c":[2], "d":3 } }', b'{\n  "a": 1,\n  "args": {\n    "c": 2,}\n}']
)
@pytest.mark.parametrize("byte", [b"", b" ", b",", b"\x00", b'"', b"1"])
def test_events_that_look_alike_excuse_no_damage(layout, byte):
    before = layout * 4 + b" "
    for at in range(1, len(layout)):
        damaged = layout[:at] + byte + layout[at + 1 :]
        consumed, state = fed(damaged)
        assert fed(before + damaged) == (len(before) + consumed, state)


def test_an_event_as_long_as_the_limit_is_read_and_a_longer_one_is_bad():
    event = b'{"name":"0123456789"}'
    assert fed(event, len(event)) == (len(event), MORE)
    assert fed(event, len(event) - 1) == (0, BAD)


def test_a_cut_event_is_bad_as_soon_as_it_reaches_the_limit():
    assert fed(b'{"name":"01234', 15) == (0, MORE)
    assert fed(b'{"name":"012345', 15) == (0, BAD)


def test_text_after_the_limit_does_not_count():
    assert fed(b"{} " * 100, 2) == (300, MORE)


# --- strings, containers, bare values


def test_a_quote_after_a_backslash_stays_inside_the_string():
    assert values(read(rb'{"name":"a\"b"},{"name":"c\\"}')["name"]) == ['a"b', "c\\"]


@pytest.mark.parametrize("size", range(20))
def test_a_backslash_is_seen_at_any_place_of_a_string(size):
    name = "x" * size
    text = '{"name":"' + name + '\\"' + name + '\\\\"}'
    assert values(read(text.encode())["name"]) == [f'{name}"{name}\\']


def test_control_characters_and_broken_utf8_may_stand_in_a_string():
    assert values(read(b'{"name":"a\n\x00\xffb"}')["name"]) == ["a\n\x00\ufffdb"]


def test_brackets_within_strings_do_not_count():
    column = arg('["]", "}\\"]"]', '{"a": "}"}')
    assert values(column) == ['["]","}\\"]"]', '{"a":"}"}']
    assert all(type(value) is Json for value in values(column))


def test_closing_brackets_of_either_kind_close_a_container():
    assert values(arg("[1}")) == ["[1}"]


def test_deep_containers_do_not_overflow_anything():
    depth = 200_000
    columns = read(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert len(values(columns["fields"]["a"])) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-0", 0), ("007", 7), ("-12", -12), ("999999999999999999", 10**18 - 1), ("1000000000000000000", 10**18),
        ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("9223372036854775808", 2**63),
        ("18446744073709551615", 2**64 - 1), ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"), ("0" * 30 + "1", 1),
        ("1.5", 1.5), ("-1.5", -1.5), ("5.", 5.0), ("-0.0", -0.0), ("0.1", 0.1), ("1e3", 1000.0), ("1E+3", 1000.0),
        ("25e-1", 2.5), ("1e22", 1e22), ("1e23", 1e23), ("1e-22", 1e-22), ("1e-23", 1e-23), ("123456789012345.6", 123456789012345.6),
        ("9007199254740993.0", 9007199254740993.0), ("0.30000000000000004", 0.30000000000000004),
        ("1e999", float("inf")), ("1e-99999", 0.0), ("1.7976931348623157e308", 1.7976931348623157e308),
        ("true", True), ("false", False), ("null", None), ("N/A", None), ("inf", float("inf")),
        ("-Infinity", -float("inf")), ("1.2.3", "1.2.3"), ("1e", "1e"), ("1e+", "1e+"), ("-", "-"), (".5", ".5"), ("+1", "+1"),
        ("1-2", "1-2"), ("abc/d", "abc/d"), ("0x10", "0x10"), ("1_000", "1_000"),
    ],
)  # fmt: skip
def test_a_bare_value_is_what_the_grammar_says(text, value):
    assert repr(values(arg(text))) == repr([value])


@pytest.mark.parametrize("text", ["NaN", "nan", "-nan", "NAN"])
def test_nan_is_a_float(text):
    column = arg(text, "1.5")
    assert column.values.dtype == np.float64
    assert np.isnan(column.values[0])


@settings(deadline=None, max_examples=300)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_floats_are_rounded_correctly(numbers):
    column = arg(*[repr(number) if abs(number) != float("inf") else f"{number}" for number in numbers])
    assert column.values.dtype == np.float64
    assert column.values.tobytes() == np.array(numbers).tobytes()


@settings(deadline=None, max_examples=300)
@given(st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_any_decimal_text_is_rounded_correctly(text):
    value = values(arg(text))[0]
    if isinstance(value, float):
        assert repr(value) == repr(float(text))
    else:
        assert str(value) == text or value == int(text)


# --- times


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0), ("1", 1000), ("-1", -1000), ("1.5", 1500), ("1.", 1000), ("0.001", 1), ("1712195495519689.047", 1712195495519689047),
        ("9223372036854775.807", 2**63 - 1), ("9223372036854775.808", None), ("-9223372036854775.808", -(2**63)),
        ("9999999999999999", None), ("12345678901234567", None), ("00000000000000000001", 1000),
        ("0.0005", 0), ("0.0015", 2), ("0.0025", 2), ("0.00250", 2), ("0.002500001", 3), ("0.0026", 3), ("-0.0015", -2), ("0.00149", 1),
        ("9223372036854775.8074", 2**63 - 1), ("9223372036854775.8075", None), ("1e3", 10**6), ("15e-4", 2), ("1234.-660", -1234660),
        ('"1.5"', 1500), ('"-2"', -2000), ('"1e3"', 10**6), ('"\\u0031"', 1000), ('" 1"', None), ('""', None), ('"x"', None),
        ("null", None), ("N/A", None), ("NaN", None), ("true", None), ("[1]", None), ('{"a":1}', None), ("1.5.5", None), ("-", None),
    ],
)  # fmt: skip
def test_a_time_is_exact_nanoseconds(text, nanoseconds):
    assert ns(text, "7", text) == [nanoseconds, 7000, nanoseconds]


@settings(deadline=None, max_examples=300)
@given(st.integers(-(10**16), 10**16), st.text("0123456789", max_size=8))
def test_times_are_rounded_half_to_even(whole, fraction):
    text = f"{whole}.{fraction}"
    expected = int((Decimal(text) * 1000).to_integral_value())
    assert ns(text) == [expected if abs(expected) < 2**63 else None]


def test_a_row_without_a_time_holds_zero():
    columns = read(b'{"ts":1,"dur":2},{},{"ts":"x","dur":null}')
    assert columns["ts_ns"].tolist() == [1000, 0, 0]
    assert columns["dur_ns"].tolist() == [2000, 0, 0]
