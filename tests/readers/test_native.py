"""The C scanner at the byte level: what it takes, where it stops, and what columns it gives."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.readers import scan
from tracekit.readers.scan import BAD, END, MORE, Codes, Json, Keep, Sparse
from tracekit.readers.values import Number, compact

_scan = pytest.importorskip("tracekit.readers._scan", reason="there was no C compiler")
from tracekit.readers.native import NativeScanner  # noqa: E402 - it needs _scan

REAL_DATA = os.environ.get("TRACEKIT_REAL_DATA")
ALL = Keep()


def read(text: bytes, keep: Keep = ALL, max_event_bytes: int = 1 << 20) -> dict:
    """The columns of the inside of an array, which must be read to its end."""
    scanner = NativeScanner(keep, max_event_bytes)
    assert scanner.feed(text + b"]") == (len(text) + 1, END)
    return scanner.finish()


def fed(text: bytes, max_event_bytes: int = 1 << 20) -> tuple[int, int]:
    return NativeScanner(Keep(), max_event_bytes).feed(text)


def values(column: Codes | Sparse) -> list:
    """The value of every row (of a sparse column: that has one)."""
    if isinstance(column, Codes):
        return [column.values[code] if code >= 0 else None for code in column.codes]
    if column.categories is None:
        return column.values.tolist()
    return [column.categories[code] for code in column.values]


def arg(*texts: str, keep: Keep = ALL) -> Sparse:
    """The column of an arg that has these value texts, one per event."""
    text = ",".join('{"args": {"k": ' + text + "}}" for text in texts)
    return read(text.encode(), keep)["args"]["k"]


def ns(*texts: str) -> list[int | None]:
    columns = read(",".join('{"ts": ' + text + "}" for text in texts).encode())
    return [
        int(time) if has else None
        for time, has in zip(columns["ts_ns"], columns["has_ts"], strict=True)
    ]


def comparable(column: object) -> object:
    """The column as plain data that tells 1, 1.0 and True apart and has NaN equal NaN."""
    match column:
        case Codes():
            return column.codes.tolist(), column.codes.dtype, repr(column.values)
        case Sparse():
            bits = repr(column.values.tolist())
            return column.rows.tolist(), column.values.dtype, bits, repr(column.categories)
        case np.ndarray():
            return column.tolist(), column.dtype
        case dict():
            return {name: comparable(one) for name, one in column.items()}
    return column


def test_the_states_are_those_of_the_scanner_protocol():
    assert (fed(b" "), fed(b"]"), fed(b"x")) == ((1, scan.MORE), (1, scan.END), (0, scan.BAD))


def test_every_part_of_an_event_reaches_its_column():
    columns = read(
        b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": "a", "ts": 1.5, "dur": 0.25,'
        b' "id": 7, "args": {"x": 1, "y": "t"}}'
    )
    assert values(columns["ph"]) == ["X"]
    assert values(columns["cat"]) == ["kernel"]
    assert values(columns["name"]) == ["k"]
    assert values(columns["pid"]) == [3]
    assert values(columns["tid"]) == ["a"]
    assert columns["ts_ns"].tolist() == [1500]
    assert columns["dur_ns"].tolist() == [250]
    assert {key: values(column) for key, column in columns["args"].items()} == {
        "x": [1],
        "y": ["t"],
    }
    assert {key: values(column) for key, column in columns["fields"].items()} == {"id": [7]}
    assert columns["skipped"] == {}


def test_an_event_without_anything_is_a_row_without_anything():
    columns = read(b"{},{ }")
    assert columns["ph"].codes.tolist() == [-1, -1]
    assert columns["has_ts"].tolist() == [False, False]
    assert columns["args"] == columns["fields"] == {}


def test_no_events_make_empty_columns_of_the_right_types():
    columns = read(b"")
    assert columns["ts_ns"].dtype == np.int64
    assert columns["has_dur"].dtype == np.bool_
    assert columns["name"].codes.dtype == np.int32
    assert len(columns["name"].codes) == 0


def test_the_arrays_can_be_written_to():
    columns = read(b'{"ts": 1, "args": {"a": 1}}')
    columns["ts_ns"][0] = columns["args"]["a"].values[0] = 5
    assert columns["ts_ns"].tolist() == [5]


@pytest.mark.parametrize(
    "data", [bytearray(b"{},{"), memoryview(b"{},{"), memoryview(b"x{},{y")[1:-1]]
)
def test_any_contiguous_buffer_can_be_fed(data):
    assert fed(data) == (3, MORE)


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises(BufferError):
        fed(memoryview(b"{ } , ")[::2])


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
    scanner = NativeScanner(Keep())
    assert scanner.feed(b'{"args":{"a":12') == (0, MORE)
    scanner.feed(b'{"args":{"a":123}}')
    assert values(scanner.finish()["args"]["a"]) == [123]


def test_a_cut_or_bad_event_leaves_nothing_behind():
    scanner = NativeScanner(Keep())
    scanner.feed(b'{"name":"a","args":{"x":1}}')
    assert scanner.feed(b'{"name":"b","ts":5,"args":{"x":"t","y":2},"z":1') == (0, MORE)
    assert scanner.feed(b'{"name":"c","ts":1e9,"args":{"x":2.5,"w":2},"z":1}}'[:-2] + b";") == (
        0,
        BAD,
    )
    scanner.feed(b'{"name":"d","args":{"x":3}}')
    columns = scanner.finish()
    assert columns["name"].values == ["a", "d"]
    assert columns["args"].keys() == {"x"}
    assert columns["args"]["x"].values.dtype == np.int64
    assert columns["args"]["x"].values.tolist() == [1, 3]
    assert columns["fields"] == {}
    assert columns["has_ts"].tolist() == [False, False]


@pytest.mark.parametrize(
    "layout",
    [
        b'{"a":1, "b" : "x","args":{ "c":[2], "d":3 } }',
        b'{\n  "a": 1,\n  "args": {\n    "c": 2,}\n}',
    ],
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
    column = arg(
        *[repr(number) if abs(number) != float("inf") else f"{number}" for number in numbers]
    )
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


# --- kinds of columns


def test_a_column_of_integers_is_int64():
    assert arg("1", "-2").values.dtype == np.int64


def test_integers_that_need_all_of_int64_stay_int64():
    column = arg("1", "9223372036854775807", "-9223372036854775808")
    assert (column.values.dtype, values(column)) == (np.int64, [1, 2**63 - 1, -(2**63)])


@pytest.mark.parametrize("texts", [("1", str(2**64 - 1)), (str(2**64 - 1),)])
def test_integers_above_int64_make_the_column_uint64(texts):
    column = arg(*texts)
    assert (column.values.dtype, values(column)) == (np.uint64, [int(text) for text in texts])


@pytest.mark.parametrize("texts", [("-1", str(2**63)), ("-9223372036854775808", str(2**63))])
def test_integers_above_int64_beside_negative_ones_are_categories(texts):
    column = arg(*texts)
    assert (column.values.dtype, column.categories) == (np.int32, [int(text) for text in texts])


def test_integers_beyond_uint64_are_text():
    assert arg("1", str(2**64)).categories == [1, str(2**64)]


def test_floats_of_any_precision_are_float64():
    column = arg("1.5", "0.1234567890123456789", "1e300")
    assert (column.values.dtype, values(column)) == (np.float64, [1.5, 0.12345678901234568, 1e300])


def test_integers_and_floats_in_one_column_are_categories():
    column = arg("1", "1.0", "1", "2.5", "1.0")
    assert repr(column.categories) == "[1, 1.0, 2.5]"
    assert column.values.tolist() == [0, 1, 0, 2, 1]


def test_values_of_different_types_are_different_categories():
    column = arg(
        "1", "true", "1.0", '"1"', "0.0", "-0.0", "false", "0", "null", "[1]", '"[1]"', "NaN", "nan"
    )
    expected = "[1, True, 1.0, '1', 0.0, -0.0, False, 0, None, '[1]', '[1]', nan]"
    assert repr(column.categories) == expected
    assert [type(column.categories[i]) for i in (9, 10)] == [Json, str]
    assert column.values.tolist() == [*range(12), 11]


def test_null_is_a_category():
    assert arg("null", '"a"', "N/A").categories == [None, "a"]


def test_texts_of_one_value_share_a_category():
    column = arg('"\\u0061"', '"b"', '"a"', "[1, 2]", "[1,2]")
    assert column.categories == ["a", "b", "[1,2]"]
    assert column.values.tolist() == [0, 1, 0, 2, 2]


def test_texts_of_one_label_share_a_value():
    columns = read(rb'{"name":"\u0061","pid":07},{"name":"b","pid":"7"},{"name":"a","pid":7}')
    assert columns["name"].values == ["a", "b"]
    assert columns["name"].codes.tolist() == [0, 1, 0]
    assert columns["pid"].values == [7, "7"]
    assert columns["pid"].codes.tolist() == [0, 1, 0]


def test_a_label_of_null_is_absent_and_other_values_are_text():
    columns = read(b'{"name":null,"pid":null},{"name":5,"pid":[1, 2]},{"name":"5","pid":true}')
    assert values(columns["name"]) == [None, "5", "5"]
    assert values(columns["pid"]) == [None, "[1,2]", "true"]


def test_a_column_may_turn_from_any_kind_to_any_other():
    texts = ["1", "2.5", '"t"']
    for first in texts:
        for second in texts:
            mixed = arg(*[first] * 10, *[second] * 10)
            assert values(mixed) == [json.loads(first)] * 10 + [json.loads(second)] * 10


def test_more_columns_than_anybody_expects():
    events = b",".join(b'{"args":{"k%d":%d}}' % (i, i) for i in range(30_000))
    columns = read(events)["args"]
    assert len(columns) == 30_000
    assert columns["k29999"].rows.tolist() == columns["k29999"].values.tolist() == [29999]


def test_more_distinct_texts_than_anybody_expects():
    events = b",".join(b'{"name":"n%d"}' % (i % 50_000) for i in range(100_000))
    names = read(events)["name"]
    assert names.values == [f"n{i}" for i in range(50_000)]
    assert names.codes.tolist() == [*range(50_000)] * 2


# --- repeated keys


def test_the_last_of_a_repeated_key_wins():
    columns = read(
        b'{"name":"a","name":"b","ts":1,"ts":2,"pid":1,"pid":2,"id":1,"id":2,"args":{"x":1,"x":"t","x":3}}'
    )
    assert (values(columns["name"]), columns["name"].values) == (["b"], ["b"])
    assert columns["ts_ns"].tolist() == [2000]
    assert values(columns["pid"]) == [2]
    assert values(columns["fields"]["id"]) == [2]
    assert (values(columns["args"]["x"]), columns["args"]["x"].values.dtype) == ([3], np.int64)


def test_a_text_that_a_repeated_key_replaced_is_no_category():
    columns = read(b'{"args":{"x":"a"}},{"args":{"x":"c","x":"b"}},{"args":{"x":"c"}}')
    assert columns["args"]["x"].categories == ["a", "b", "c"]
    assert columns["args"]["x"].values.tolist() == [0, 1, 2]


def test_a_repeated_time_wins_whichever_form_it_has():
    assert ns('1,"ts":2e0', '1e0,"ts":2', '1,"ts":null', 'null,"ts":"3"') == [
        2000,
        2000,
        None,
        3000,
    ]


def test_a_repeated_args_replaces_all_of_the_first():
    columns = read(b'{"args":{"a":1,"b":2},"args":{"b":3}}')
    assert {key: values(column) for key, column in columns["args"].items()} == {"b": [3]}


def test_args_that_are_no_object_are_a_field():
    columns = read(b'{"args":5},{"args":[1]},{"args":{"a":1}}')
    assert values(columns["fields"]["args"]) == [5, "[1]"]
    assert columns["fields"]["args"].rows.tolist() == [0, 1]
    assert columns["args"]["a"].rows.tolist() == [2]


def test_of_args_in_two_forms_the_last_one_wins():
    columns = read(b'{"args":{"a":1},"args":2},{"args":3,"args":{"b":4}}')
    assert columns["fields"]["args"].rows.tolist() == [0]
    assert columns["args"].keys() == {"b"}


def test_keys_that_are_equal_once_decoded_are_one_key():
    columns = read(
        b'{"args":{"\xff":1,"\xfe":2}},{"args":{"\xef\xbf\xbd":4,"\xff":3}},{"args":{"a\xe2\x82b":1,"a\xef\xbf\xbdb":2}}'
    )
    assert {key: values(column) for key, column in columns["args"].items()} == {
        "\ufffd": [2, 3],
        "a\ufffdb": [2],
    }


@settings(deadline=None, max_examples=500)
@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_key_is_decoded_as_python_decodes_it(parts):
    keys = [bytes(byte for byte in part if byte not in b'"\\') for part in parts]
    columns = read(b"{" + b"".join(b'"x%b":%d,' % (key, i) for i, key in enumerate(keys)) + b"}")[
        "fields"
    ]
    expected = {"x" + key.decode("utf-8", "replace"): [i] for i, key in enumerate(keys)}
    assert {key: values(column) for key, column in columns.items()} == expected


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


# --- what is left out

TWO_ARGS = b'{"args":{"a":1,"b":"x","c":[1]}},{"args":{"c":2}}'


def test_only_the_args_asked_for_are_kept():
    assert read(TWO_ARGS, Keep(args=("c", "zz")))["args"].keys() == {"c"}
    assert read(TWO_ARGS, Keep(args=()))["args"] == {}


def test_args_can_be_left_out():
    assert read(TWO_ARGS, Keep(skip_args=("a", "c")))["args"].keys() == {"b"}
    assert read(TWO_ARGS, Keep(args=("a", "b"), skip_args=("a",)))["args"].keys() == {"b"}


def test_an_arg_of_broken_utf8_is_kept_by_its_decoded_name():
    assert read(b'{"args":{"\xff":1}}', Keep(args=("\ufffd",)))["args"].keys() == {"\ufffd"}
    assert read(b'{"args":{"\xff":1}}', Keep(skip_args=("\ufffd",)))["args"] == {}


def test_names_that_no_text_has_match_nothing():
    keep = Keep(args=("\ud800", 'a"b', "\\"), skip_cats=("\udfff",))
    assert read(b'{"cat":"\xed\xbf\xbf","args":{"\xed\xa0\x80":1}}', keep)["args"] == {}


def test_fields_are_kept_whatever_args_are():
    assert read(b'{"id":1,"a":2}', Keep(args=(), skip_args=("id",)))["fields"].keys() == {"id", "a"}


def test_args_left_out_still_have_to_be_sound():
    scanner = NativeScanner(Keep(args=(), skip_cats=("c",)))
    assert scanner.feed(b'{"args":{"a":1;}}') == (0, BAD)
    assert scanner.feed(b'{"cat":"c","args":{"a":1;}}') == (0, BAD)
    assert scanner.feed(b'{"cat":"c","args":{"a\\":1}}') == (0, BAD)


@pytest.mark.parametrize(
    "event",
    [
        b'{"cat":"c","args":{"a":1},"id":1}',
        b'{"id":1,"args":{"a":1},"cat":"c"}',
        b'{"cat":"x","cat":"c"}',
    ],
)
def test_events_of_a_skipped_category_leave_no_row(event):
    columns = read(event + b',{"cat":"d","args":{"a":2}},' + event, Keep(skip_cats=("c", "unused")))
    assert values(columns["cat"]) == ["d"]
    assert values(columns["args"]["a"]) == [2]
    assert columns["args"]["a"].rows.tolist() == [0]
    assert columns["fields"] == {}
    assert columns["skipped"] == {"c": 2}


def test_a_category_that_takes_back_a_skipped_one_keeps_the_row_and_its_args():
    columns = read(b'{"cat":"c","args":{"a":1},"ts":1,"cat":"d"}', Keep(skip_cats=("c",)))
    assert values(columns["cat"]) == ["d"]
    assert values(columns["args"]["a"]) == [1]
    assert columns["skipped"] == {}


def test_a_category_that_only_decoded_is_a_skipped_one_leaves_no_row():
    columns = read(
        b'{"cat":"c","name":"w"},{"cat":"\\u0063","name":"x","ts":1e0,"args":{"a":"t","b":"q"}},'
        b'{"cat":"d","name":"y","ts":2e0,"args":{"a":1}},{"cat":5,"name":"z"},{"name":"y","args":{"a":2}}',
        Keep(skip_cats=("c", "5")),
    )
    assert (columns["cat"].values, columns["cat"].codes.tolist()) == (["d"], [0, -1])
    assert (columns["name"].values, columns["name"].codes.tolist()) == (["y"], [0, 0])
    assert columns["ts_ns"].tolist() == [2000, 0]
    assert columns["args"].keys() == {"a"}
    assert columns["args"]["a"].values.dtype == np.int64
    assert columns["args"]["a"].rows.tolist() == [0, 1]
    assert columns["skipped"] == {"c": 2, "5": 1}


# --- how the data is cut


def pieces(text: bytes, cuts: list[int], max_event_bytes: int = 1 << 20) -> tuple:
    """Everything that comes of feeding the text up to each cut in turn."""
    scanner = NativeScanner(Keep(), max_event_bytes)
    start, state = 0, MORE
    for cut in [*sorted(cuts), len(text)]:
        consumed, state = scanner.feed(text[start : max(cut, start)])
        start += consumed
        if state != MORE:
            break
    return start, state, comparable(scanner.finish())


def ragged_text() -> bytes:
    """Events with a bit of everything."""
    chance = random.Random(0)
    texts = [
        '"a"', '"a\\"b\\\\"', "1", "-12.5", "1e5", "NaN", "null", "[1, [2, {}]]", '{"a": "}"}', '"\xe9"', "18446744073709551615",
        "0.1234567890123456789",
    ]  # fmt: skip
    keys = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "x", "\xe9"]
    events = []
    for _ in range(40):
        members = [
            f'"{key}" : {chance.choice(texts)}'
            for key in chance.sample(keys, chance.randrange(len(keys)))
        ]
        inner = ",".join(f'"{key}":{chance.choice(texts)}' for key in chance.sample(keys, 4))
        members.append(f'"args":\n{{{inner}}}')
        events.append("{" + ", ".join(members) + chance.choice(["}", ",}", " }\n"]))
    return (", ".join(events) + "]").encode()


RAGGED = ragged_text()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, len(RAGGED)), max_size=20))
def test_the_columns_do_not_depend_on_how_the_text_is_cut(cuts):
    assert pieces(RAGGED, cuts) == pieces(RAGGED, [])


def test_a_text_fed_byte_by_byte_gives_the_same_columns():
    text = RAGGED[:2000]
    assert pieces(text, [*range(len(text))]) == pieces(text, [])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_where_a_bad_event_is_found_does_not_depend_on_how_the_text_is_cut(data):
    text = bytearray(RAGGED[:600])
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 3))] = data.draw(
        st.sampled_from([b"", b'"', b"\\", b"}", b"\x00", b",,"])
    )
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert pieces(bytes(text), cuts) == pieces(bytes(text), [])


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 300), st.lists(st.integers(0, 1000), max_size=8))
def test_an_event_that_is_too_long_is_found_however_the_text_is_cut(limit, cuts):
    assert pieces(RAGGED[:1000], cuts, limit) == pieces(RAGGED[:1000], [], limit)


# --- the extension module itself


def test_nothing_can_be_fed_after_the_end():
    scanner = NativeScanner(Keep())
    scanner.finish()
    with pytest.raises(ValueError, match="over"):
        scanner.feed(b"{}")
    with pytest.raises(ValueError, match="over"):
        scanner.finish()


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_limit_that_cannot_be_kept_is_refused(limit):
    with pytest.raises(ValueError, match="max_event_bytes"):
        NativeScanner(Keep(), limit)


@pytest.mark.parametrize(
    "arguments",
    [(), ((), (), ()), (1, (), (), 9), (("a",), (), (), 9), ((), [], (), 9), (None, (), (1,), 9)],
)
def test_arguments_of_other_types_are_refused(arguments):
    with pytest.raises(TypeError):
        _scan.Scanner(*arguments)


def test_scanners_in_threads_do_not_disturb_each_other():
    results = []

    def work():
        results.append(pieces(RAGGED * 20, [*range(0, len(RAGGED) * 20, 5000)]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == results[0] for result in results)
    assert len(results) == 8


def test_codes_are_renumbered_by_the_first_use_of_their_groups():
    codes = np.array([3, -1, 0, 2, 3, 1], np.int32)
    order = _scan.renumber(codes, np.array([0, -1, 0, 3], np.int32))
    assert np.frombuffer(order, np.int32).tolist() == [3, 0]
    assert codes.tolist() == [0, -1, 1, 1, 0, -1]


@pytest.mark.parametrize(
    ("codes", "groups"), [([2], [0, 1]), ([-2], [0]), ([0], [1]), ([0], [-2]), ([0], [])]
)
def test_codes_or_groups_out_of_range_are_refused(codes, groups):
    with pytest.raises(ValueError, match="range"):
        _scan.renumber(np.array(codes, np.int32), np.array(groups, np.int32))


def test_pairs_of_kind_and_value_are_numbered_by_first_use():
    kinds = np.array([1, 2, 1, 1], np.uint8)
    numbers = np.array([7, 7, 7, -1], np.int64)
    codes, pairs = _scan.distinct(kinds, numbers)
    assert np.frombuffer(codes, np.int32).tolist() == [0, 1, 0, 2]
    parts = np.frombuffer(pairs, np.uint8).reshape(-1, 9)
    assert parts[:, 8].tolist() == [1, 2, 1]
    assert np.frombuffer(parts[:, :8].tobytes(), np.int64).tolist() == [7, 7, -1]
    with pytest.raises(ValueError, match="length"):
        _scan.distinct(kinds[1:], numbers)


# --- real files


def expected_columns(events: list[dict]) -> list[dict]:
    """The events as json read them, values as the columns give them."""
    for event in events:
        args = event.pop("args", {})
        for key in event.keys() & {"ts", "dur"}:
            event[key] = int((Decimal(str(event[key])) * 1000).to_integral_value())
        for key in event.keys() - {"ts", "dur"}:
            event[key] = column_value(event[key])
        event["args"] = {key: column_value(args[key]) for key in args}
    return events


def column_value(parsed: object) -> object:
    if isinstance(parsed, Number):
        return float(parsed)
    return Json(compact(parsed)) if isinstance(parsed, list | dict) else parsed


def rebuilt(columns: dict) -> list[dict]:
    """The events that the columns hold."""
    events: list[dict] = [{"args": {}} for _ in columns["ts_ns"]]
    for name in ("ph", "cat", "name", "pid", "tid"):
        for event, value in zip(events, values(columns[name]), strict=True):
            event.update({} if value is None else {name: value})
    for name in ("ts", "dur"):
        for row in np.flatnonzero(columns[f"has_{name}"]).tolist():
            events[row][name] = int(columns[f"{name}_ns"][row])
    for key, column in columns["fields"].items():
        for row, value in zip(column.rows.tolist(), values(column), strict=True):
            events[row][key] = value
    for key, column in columns["args"].items():
        for row, value in zip(column.rows.tolist(), values(column), strict=True):
            events[row]["args"][key] = value
    return events


def exactly(events: list[dict]) -> list[str]:
    """Texts that are equal only for equal values of equal types."""
    return [
        repr(
            [
                sorted(event["args"].items()),
                sorted((key, event[key]) for key in event.keys() - {"args"}),
            ]
        )
        for event in events
    ]


def assert_read_as_json_reads(path):
    """How many events the file holds, all of which have the arguments that `json` finds."""
    content = gzip.decompress(path.read_bytes())
    events = json.JSONDecoder(parse_float=Number).decode(content.decode("utf-8"))["traceEvents"]
    start = content.index(b"[", content.index(b'"traceEvents"')) + 1
    scanner = NativeScanner(Keep())
    assert scanner.feed(memoryview(content)[start:])[1] == END, path
    assert exactly(rebuilt(scanner.finish())) == exactly(expected_columns(events)), path
    return len(events)


SMALL_BYTES = 300_000


def real_files(*, small):
    """The real traces up to `SMALL_BYTES` (packed), or the larger ones."""
    every = sorted(Path(str(REAL_DATA)).glob("chrome/**/*.json.gz"))
    return [path for path in every if (path.stat().st_size <= SMALL_BYTES) == small]


@pytest.mark.skipif(not REAL_DATA, reason="TRACEKIT_REAL_DATA names no folder of real traces")
def test_every_event_and_arg_of_small_real_files_is_what_json_reads():
    assert sum(map(assert_read_as_json_reads, real_files(small=True))) > 10_000


@pytest.mark.slow
@pytest.mark.skipif(not REAL_DATA, reason="TRACEKIT_REAL_DATA names no folder of real traces")
def test_every_event_and_arg_of_large_real_files_is_what_json_reads():
    assert sum(map(assert_read_as_json_reads, real_files(small=False))) > 100_000
