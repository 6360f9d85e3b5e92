"""The C scanner at the byte level: what columns it gives, what it leaves out, what it refuses."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers.native_scans import RAGGED, arg, fed, ns, pieces, read, values

from tracekit.readers.chrome import _scan, scan
from tracekit.readers.chrome.scan import BAD, MORE, Json, ScanOptions
from tracekit.readers.chrome.scanner_c import NativeScanner


def test_the_states_are_those_of_the_scanner_protocol():
    assert (fed(b" "), fed(b"]"), fed(b"x")) == ((1, scan.MORE), (1, scan.END), (0, scan.BAD))


def test_one_scanner_serves_every_python_whichever_built_it():
    """With the headers of 3.13 a format with `#` compiles to what 3.11 and 3.12 refuse when it is called."""
    sources = sorted(Path(scan.__file__).parent.glob("_scan*.[ch]"))
    formats = [
        found
        for source in sources
        for found in re.findall(r'Py(?:Arg_Parse\w*|_BuildValue)\([^"]*"([^"]*)"', source.read_text())
    ]
    assert len(formats) > 5
    assert not [text for text in formats if "#" in text]


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
    assert {key: values(column) for key, column in columns["args"].items()} == {"x": [1], "y": ["t"]}
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
    assert columns["name"].codes.dtype == np.int8
    assert len(columns["name"].codes) == 0


def test_the_arrays_can_be_written_to():
    columns = read(b'{"ts": 1, "args": {"a": 1}}')
    columns["ts_ns"][0] = columns["args"]["a"].values[0] = 5
    assert columns["ts_ns"].tolist() == [5]


@pytest.mark.parametrize("data", [bytearray(b"{},{"), memoryview(b"{},{"), memoryview(b"x{},{y")[1:-1]])
def test_any_contiguous_buffer_can_be_fed(data):
    assert fed(data) == (3, MORE)


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises(BufferError):
        fed(memoryview(b"{ } , ")[::2])


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
    column = arg("1", "true", "1.0", '"1"', "0.0", "-0.0", "false", "0", "null", "[1]", '"[1]"', "NaN", "nan")
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
    columns = read(b'{"name":"a","name":"b","ts":1,"ts":2,"pid":1,"pid":2,"id":1,"id":2,"args":{"x":1,"x":"t","x":3}}')
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
    assert ns('1,"ts":2e0', '1e0,"ts":2', '1,"ts":null', 'null,"ts":"3"') == [2000, 2000, None, 3000]


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
    assert {key: values(column) for key, column in columns["args"].items()} == {"\ufffd": [2, 3], "a\ufffdb": [2]}


@settings(deadline=None, max_examples=500)
@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_key_is_decoded_as_python_decodes_it(parts):
    keys = [bytes(byte for byte in part if byte not in b'"\\') for part in parts]
    columns = read(b"{" + b"".join(b'"x%b":%d,' % (key, i) for i, key in enumerate(keys)) + b"}")["fields"]
    expected = {"x" + key.decode("utf-8", "replace"): [i] for i, key in enumerate(keys)}
    assert {key: values(column) for key, column in columns.items()} == expected


# --- what is left out

TWO_ARGS = b'{"args":{"a":1,"b":"x","c":[1]}},{"args":{"c":2}}'


def test_only_the_args_asked_for_are_kept():
    assert read(TWO_ARGS, ScanOptions(args=("c", "zz")))["args"].keys() == {"c"}
    assert read(TWO_ARGS, ScanOptions(args=()))["args"] == {}


def test_args_can_be_left_out():
    assert read(TWO_ARGS, ScanOptions(skip_args=("a", "c")))["args"].keys() == {"b"}
    assert read(TWO_ARGS, ScanOptions(args=("a", "b"), skip_args=("a",)))["args"].keys() == {"b"}


def test_an_arg_of_broken_utf8_is_kept_by_its_decoded_name():
    assert read(b'{"args":{"\xff":1}}', ScanOptions(args=("\ufffd",)))["args"].keys() == {"\ufffd"}
    assert read(b'{"args":{"\xff":1}}', ScanOptions(skip_args=("\ufffd",)))["args"] == {}


def test_names_that_no_text_has_match_nothing():
    keep = ScanOptions(args=("\ud800", 'a"b', "\\"), skip_cats=("\udfff",))
    assert read(b'{"cat":"\xed\xbf\xbf","args":{"\xed\xa0\x80":1}}', keep)["args"] == {}


def test_fields_are_kept_whatever_args_are():
    assert read(b'{"id":1,"a":2}', ScanOptions(args=(), skip_args=("id",)))["fields"].keys() == {"id", "a"}


def test_args_left_out_still_have_to_be_sound():
    scanner = NativeScanner(ScanOptions(args=(), skip_cats=("c",)))
    assert scanner.feed(b'{"args":{"a":1;}}') == (0, BAD)
    assert scanner.feed(b'{"cat":"c","args":{"a":1;}}') == (0, BAD)
    assert scanner.feed(b'{"cat":"c","args":{"a\\":1}}') == (0, BAD)


@pytest.mark.parametrize(
    "event", [b'{"cat":"c","args":{"a":1},"id":1}', b'{"id":1,"args":{"a":1},"cat":"c"}', b'{"cat":"x","cat":"c"}']
)
def test_events_of_a_skipped_category_leave_no_row(event):
    columns = read(event + b',{"cat":"d","args":{"a":2}},' + event, ScanOptions(skip_cats=("c", "unused")))
    assert values(columns["cat"]) == ["d"]
    assert values(columns["args"]["a"]) == [2]
    assert columns["args"]["a"].rows.tolist() == [0]
    assert columns["fields"] == {}
    assert columns["skipped"] == {"c": 2}


def test_a_category_that_takes_back_a_skipped_one_keeps_the_row_and_its_args():
    columns = read(b'{"cat":"c","args":{"a":1},"ts":1,"cat":"d"}', ScanOptions(skip_cats=("c",)))
    assert values(columns["cat"]) == ["d"]
    assert values(columns["args"]["a"]) == [1]
    assert columns["skipped"] == {}


def test_a_category_that_only_decoded_is_a_skipped_one_leaves_no_row():
    columns = read(
        b'{"cat":"c","name":"w"},{"cat":"\\u0063","name":"x","ts":1e0,"args":{"a":"t","b":"q"}},'
        b'{"cat":"d","name":"y","ts":2e0,"args":{"a":1}},{"cat":5,"name":"z"},{"name":"y","args":{"a":2}}',
        ScanOptions(skip_cats=("c", "5")),
    )
    assert (columns["cat"].values, columns["cat"].codes.tolist()) == (["d"], [0, -1])
    assert (columns["name"].values, columns["name"].codes.tolist()) == (["y"], [0, 0])
    assert columns["ts_ns"].tolist() == [2000, 0]
    assert columns["args"].keys() == {"a"}
    assert columns["args"]["a"].values.dtype == np.int64
    assert columns["args"]["a"].rows.tolist() == [0, 1]
    assert columns["skipped"] == {"c": 2, "5": 1}


# --- the extension module itself


def test_nothing_can_be_fed_after_the_end():
    scanner = NativeScanner(ScanOptions())
    scanner.finish()
    with pytest.raises(ValueError, match="over"):
        scanner.feed(b"{}")
    with pytest.raises(ValueError, match="over"):
        scanner.finish()


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_limit_that_cannot_be_kept_is_refused(limit):
    with pytest.raises(ValueError, match="max_event_bytes"):
        NativeScanner(ScanOptions(), limit)


@pytest.mark.parametrize(
    "arguments", [(), ((), (), ()), (1, (), (), 9), (("a",), (), (), 9), ((), [], (), 9), (None, (), (1,), 9)]
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


@pytest.mark.parametrize(("codes", "groups"), [([2], [0, 1]), ([-2], [0]), ([0], [1]), ([0], [-2]), ([0], [])])
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
