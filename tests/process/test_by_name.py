"""Rows of tables of ops by their names and kinds, however many there are."""

import numpy as np
import pytest
from chrome_builder import annotation, launch, launched, op, write
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.keys import number_keys
from tracekit.process.name_filters import list_present_codes, mark_rows_of_kind


class _Trace:
    """What is asked of a trace: the kinds of its rows, and what was derived."""

    def __init__(self, codes):
        self.kind = Coded(np.array(codes, np.int8), HOST_OP_KINDS)
        self.kept = {}

    def texts(self, _table, _column):
        return self.kind

    def derived(self, function):
        if function not in self.kept:
            self.kept[function] = function(self)
        return self.kept[function]


@given(st.lists(st.integers(-1, len(HOST_OP_KINDS) - 1), max_size=20), st.sets(st.sampled_from(HOST_OP_KINDS)))
def test_rows_are_of_a_kind_by_their_code_and_those_without_one_of_none(codes, kinds):
    expected = [code >= 0 and HOST_OP_KINDS[code] in kinds for code in codes]
    mask = mark_rows_of_kind(_Trace(codes), "host_ops", *kinds)
    assert (mask.dtype, mask.tolist()) == (np.bool_, expected)


def test_masks_are_shared_and_not_to_be_written_to(tmp_path):
    rows = [annotation("gen", 0, 90), op("aten::mm", 1, 50), *launched("gemm", 5, 20, 10, 1)]
    trace = tracekit.load(write(tmp_path / "t.json", rows))
    ops = mark_rows_of_kind(trace, "host_ops", "op")
    assert ops is mark_rows_of_kind(trace, "host_ops", "op", "overhead")
    for mask in (ops, mark_rows_of_kind(trace, "host_ops", *HOST_OP_KINDS), mark_rows_of_kind(trace, "host_ops")):
        assert len(mask) == 3
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True


def test_a_mask_of_all_rows_or_of_none_takes_no_memory_of_its_own():
    trace = _Trace([1, 1, 1])
    every = mark_rows_of_kind(trace, "host_ops", HOST_OP_KINDS[1])
    none = mark_rows_of_kind(trace, "host_ops", HOST_OP_KINDS[0])
    assert (every.tolist(), none.tolist()) == ([True] * 3, [False] * 3)
    assert (every.strides, none.strides) == ((0,), (0,))


@given(st.lists(st.integers(-1, 6), max_size=20), st.sampled_from([np.int8, np.int16, np.int64]))
def test_codes_are_numbered_as_any_keys_are(codes, kind):
    present, place = list_present_codes(np.array(codes, kind), 7)
    expected, expected_place = number_keys(np.array(codes, np.int64))
    assert (present.tolist(), place.tolist()) == (expected.tolist(), expected_place.tolist())
    assert (present.dtype, place.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("many", [0, 2, 3, 100])
def test_kinds_are_told_of_few_rows_and_of_many(tmp_path, monkeypatch, many):
    monkeypatch.setattr("tracekit.process.name_filters.MANY_ROWS", many)
    trace = tracekit.load(write(tmp_path / "trace.json", [op("a", 0, 9), launch(1, 2, 1)]))
    mask = mark_rows_of_kind(trace, "host_ops", "op")
    assert (mask.tolist(), mark_rows_of_kind(trace, "host_ops", "op", "runtime").tolist()) == ([True, False], [True, True])  # fmt: skip
    assert (mark_rows_of_kind(trace, "host_ops", "op") is mask) == (many > 2)
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False
