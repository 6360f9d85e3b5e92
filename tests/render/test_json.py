import copy
import json
import math
from dataclasses import replace

import pytest
from any_report import reports
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_report import sample_report

from tracekit.model.errors import TracekitError
from tracekit.model.report import Finding, Metric, Report, Section
from tracekit.render import read_report_json, render, write_report_json
from tracekit.render.json import _dump_json as json_text


@pytest.mark.parametrize("value", [
    {}, [], None, 1.5, "é\n", [[]], [[], [1]], [[1], [2]], [[1, [2]]], [1, [2]], {"é": [{"b": []}], "c": [1, None, True]},
    [["],\n  [", "]"], ['"', None, -0.0, 1e22]], {"rows": [[1, "a"], [2, "b"]], "more": {"x": [[3]]}},
])  # fmt: skip
def test_rows_are_written_as_the_standard_library_does(value):
    assert json_text(value) == json.dumps(value, ensure_ascii=False, indent=1)


def test_the_canonical_form_is_the_golden_one(sample, golden):
    golden("report.json", write_report_json(sample))


def test_the_json_output_leaves_nothing_out_whatever_the_options(sample):
    assert render(sample, "json", top=1) == write_report_json(sample)


@settings(max_examples=20, deadline=None)
@given(reports)
def test_a_report_reads_back_as_it_was_written(report):
    text = write_report_json(report)
    text.encode("utf-8")
    assert read_report_json(text) == report
    assert write_report_json(read_report_json(text)) == text


def test_keys_stand_in_the_order_of_the_dataclass(sample):
    assert list(json.loads(write_report_json(sample)))[:4] == ["title", "tool_version", "identity", "headline"]


def test_a_number_that_is_not_finite_is_written_as_unknown():
    report = Report("t", "0", headline=tuple(Metric("m", x, "") for x in (math.nan, math.inf, -math.inf)))
    text = write_report_json(report)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert [metric.value for metric in read_report_json(text).headline] == [None] * 3


def test_whole_numbers_are_exact():
    report = Report("t", "0", headline=(Metric("m", 2**63 + 1, "ns"),))
    assert read_report_json(write_report_json(report)).headline[0].value == 2**63 + 1


def test_a_value_that_is_not_plain_is_refused_with_its_place():
    report = Report("t", "0", headline=(Metric("m", {1}, "ns"),))
    with pytest.raises(TracekitError, match=r"report\.headline\[0\]\.value"):
        write_report_json(report)


def test_a_field_of_a_later_version_is_passed_over(sample):
    raw = json.loads(write_report_json(sample))
    raw["charts"] = [1, 2]
    raw["sections"][0]["hue"] = "x"
    assert read_report_json(json.dumps(raw)) == sample


def test_a_field_of_an_earlier_version_may_be_missing(sample):
    raw = json.loads(write_report_json(sample))
    del raw["fingerprint"]
    assert read_report_json(json.dumps(raw)) == replace(sample, fingerprint=())


def test_a_whole_number_is_taken_for_a_float():
    found = Finding("r", "low", "c", "a", cost_ratio=1.0)
    report = Report("t", "0", sections=(Section("s", "S", findings=(found,)),))
    assert read_report_json(write_report_json(report).replace("1.0", "1")) == report


HEAD = '{"schema": "tracekit.report/2", "title": "t", "tool_version": "0"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a report"),
        ("[]", "no schema"),
        ("{}", "no schema"),
        ('{"schema": "tracekit.report/3"}', "tracekit.report/3"),
        ('{"schema": 1}', "schema 1"),
        ('{"schema": {"\\u001b": "\\u001b[2J"}}', "schema"),
        ('{"schema": "tracekit.report/2"}', r"title is missing"),
        (HEAD.replace('"t"', "7") + "}", r"title is int, not str"),
        (HEAD + ', "unseen": "abc"}', r"unseen is 'abc', not a list"),
        (HEAD + ', "unseen": [null]}', r"unseen\[0\] is NoneType, not str"),
        (HEAD + ', "fingerprint": [["a"]]}', r"fingerprint\[0\] is a list of 1, not 2 items"),
        (HEAD + ', "overview": []}', r"overview is a list of 0, not an object"),
        (HEAD + ', "headline": [{"name": "n", "value": true, "unit": ""}]}', r"value is bool"),
        (HEAD + ', "headline": [{"name": "n", "value": 1, "unit": "mile"}]}', r"unit is 'mile', not one of"),
        (HEAD + ', "headline": [{"name": "n", "value": NaN, "unit": ""}]}', "NaN"),
        (HEAD + ', "headline": [{"name": "n", "value": 1e999, "unit": ""}]}', "range"),
        (HEAD + ', "headline": [{"name": "n", "value": ' + "9" * 5000 + ', "unit": ""}]}', "not a report"),
        (HEAD + ', "title": "u"}', "twice"),
        ("[" * 200_000, "not a report"),
        (
            HEAD + ', "overview": {"name": "n", "title": "t", "headings": [], "rows": [[1]]}}',
            r"rows\[0\] is a list of 1, not 0 cells",
        ),
    ],
)
def test_what_is_not_a_report_is_refused_on_one_line_with_its_place(text, reason):
    with pytest.raises(TracekitError, match=reason) as caught:
        read_report_json(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert caught.value.hint


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_report_with_any_one_value_exchanged_is_read_or_refused(data):
    raw = json.loads(write_report_json(sample_report()))
    at = raw = copy.deepcopy(raw)
    for _ in range(data.draw(st.integers(0, 6))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        inner = [key for key in keys if isinstance(at[key], dict | list) and at[key]]
        if not inner:
            break
        at = at[data.draw(st.sampled_from(inner))]
    key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
    at[key] = data.draw(anything)
    try:
        problem = "" if isinstance(read_report_json(json.dumps(raw)), Report) else "no report"
    except TracekitError as error:
        problem = str(error)
        assert problem.startswith(("not a report", "a report of schema"))
    assert problem.isprintable()


@given(st.text())
@example("\ufeff{}")
def test_any_text_is_refused_or_read(text):
    with pytest.raises(TracekitError):
        read_report_json(text)
