import csv
import io
import sys

import pyarrow.parquet as pq
import pytest
from any_report import reports
from hypothesis import given, settings
from sample_report import HOSTILE

from tracekit.model.errors import TracekitError
from tracekit.model.report import Heading, Report, Section, Sheet
from tracekit.render import render


def read_csv(data):
    return list(csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True))


def one(*cells, unit="text", name="a"):
    sheet = Sheet("t", "T", (Heading(name, "a", unit),), tuple((cell,) for cell in cells))
    return Report("t", "0", overview=sheet)


def test_there_is_one_file_a_table_named_after_its_section(sample):
    names = ["stages", "kernels", "communication.collectives", "values", "findings", "remarks"]
    assert list(render(sample, "csv")) == [f"{name}.csv" for name in names]
    assert list(render(sample, "parquet")) == [f"{name}.parquet" for name in names]


def test_columns_carry_their_unit_and_values_are_raw(sample):
    head, first, *_ = read_csv(render(sample, "csv")["stages.csv"])
    assert head == ["role", "stage", "wall_ns", "share_ratio", "gpu_busy_ratio", "slowest"]
    assert first == ["rollout", "generate", "1021400000", "0.5545", "0.71", ""]


def test_no_row_is_left_out_of_the_tables(sample):
    assert len(read_csv(render(sample, "csv", top=1)["kernels.csv"])) == 1 + 134


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\uff1d"])
def test_a_name_that_a_spreadsheet_would_run_gets_an_apostrophe(start):
    rows = read_csv(render(one(f"{start}cmd()"), "csv")["t.csv"])
    assert rows[1] == [f"'{start}cmd()"]


def test_a_negative_number_is_left_alone():
    rows = read_csv(render(one(-5, -0.5, unit="ns"), "csv")["t.csv"])
    assert rows == [["a_ns"], ["-5"], ["-0.5"]]


def test_unknown_is_an_empty_field_and_so_is_what_is_not_finite():
    rows = read_csv(render(one(None, float("nan"), True, unit="ratio"), "csv")["t.csv"])
    assert [row[0] if row else "" for row in rows[1:]] == ["", "", "true"]


def test_lines_end_as_rfc_4180_says_and_control_characters_are_visible(sample):
    data = render(sample, "csv")["kernels.csv"]
    assert data.count(b"\r\n") == data.count(b"\n") == data.count(b"\r") == 135
    assert b"\x1b" not in data
    assert rb"two\nlines\r\nand\ttab" in data


@settings(max_examples=30, deadline=None)
@given(reports)
def test_every_csv_has_rectangular_rows_and_no_formula(report):
    for data in render(report, "csv").values():
        rows = read_csv(data)
        assert {len(row) for row in rows if row} <= {len(rows[0])}
        for cell in (cell for row in rows for cell in row):
            assert cell.isprintable()
            if cell.lstrip()[:1] in ("=", "+", "@", "-"):
                float(cell)


@settings(max_examples=30, deadline=None)
@given(reports)
def test_file_names_are_safe_and_differ_even_where_case_does_not_count(report):
    names = list(render(report, "csv"))
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert name.isascii()
        assert "/" not in name
        assert not name.startswith(".")


def test_a_name_that_windows_reserves_is_not_used():
    report = Report("t", "0", overview=Sheet("../NUL", "T", (), ()), values=Sheet("con", "T", (), ()))
    assert {"_NUL.csv", "_con.csv"} <= set(render(report, "csv"))


def test_columns_of_the_same_name_are_numbered():
    headings = (Heading("a", "a", "ns"), Heading("a_ns", "a", "ns"), Heading("A_NS", "a"))
    report = Report("t", "0", overview=Sheet("t", "T", headings, ()))
    assert read_csv(render(report, "csv")["t.csv"])[0] == ["a_ns", "a_ns_2", "A_NS_3"]


def read_parquet(data):
    return pq.read_table(io.BytesIO(data))


def test_parquet_columns_are_typed_and_say_their_unit(sample):
    table = read_parquet(render(sample, "parquet")["stages.parquet"])
    assert [str(field.type) for field in table.schema] == ["string", "string", "int64", "double", "double", "string"]
    assert table.schema.field("wall_ns").metadata[b"unit"] == b"ns"
    assert table.column("gpu_busy_ratio").to_pylist()[6] is None


def test_parquet_keeps_names_as_recorded(sample):
    names = read_parquet(render(sample, "parquet")["kernels.parquet"]).column("kernel").to_pylist()
    assert names[: len(HOSTILE) - 1] == list(HOSTILE[:-1])


def test_a_whole_number_that_no_column_type_holds_is_kept_as_text():
    table = read_parquet(render(one(2**70, 1, unit="count"), "parquet")["t.parquet"])
    assert table.column("a_count").to_pylist() == [str(2**70), "1"]


def test_an_empty_column_has_the_type_of_its_unit():
    table = read_parquet(render(one(unit="bytes"), "parquet")["t.parquet"])
    assert str(table.schema.field("a_bytes").type) == "int64"


def test_without_pyarrow_the_error_says_what_to_install(sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TracekitError, match="pyarrow") as caught:
        render(sample, "parquet")
    assert caught.value.hint == "pip install '.[parquet]' (in a checkout of tracekit)"


def test_two_sections_may_have_sheets_of_the_same_name():
    sheet = Sheet("rows", "Rows", (Heading("a", "a"),), (("x",),))
    report = Report("t", "0", sections=(Section("a", "A", sheets=(sheet,)), Section("b", "B", sheets=(sheet,))))
    assert {"a.rows.csv", "b.rows.csv"} <= set(render(report, "csv"))
