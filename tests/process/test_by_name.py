"""Rows of tables of ops by their kinds."""

import numpy as np
import pytest
from chrome_builder import annotation, launched, op, write
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import Coded
from tracekit.process.by_name import of_kind


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


@given(
    st.lists(st.integers(-1, len(HOST_OP_KINDS) - 1), max_size=20),
    st.sets(st.sampled_from(HOST_OP_KINDS)),
)
def test_rows_are_of_a_kind_by_their_code_and_those_without_one_of_none(codes, kinds):
    expected = [code >= 0 and HOST_OP_KINDS[code] in kinds for code in codes]
    mask = of_kind(_Trace(codes), "host_ops", *kinds)
    assert (mask.dtype, mask.tolist()) == (np.bool_, expected)


def test_masks_are_shared_and_not_to_be_written_to(tmp_path):
    rows = [annotation("gen", 0, 90), op("aten::mm", 1, 50), *launched("gemm", 5, 20, 10, 1)]
    trace = tracekit.load(write(tmp_path / "t.json", rows))
    ops = of_kind(trace, "host_ops", "op")
    assert ops is of_kind(trace, "host_ops", "op", "overhead")
    for mask in (ops, of_kind(trace, "host_ops", *HOST_OP_KINDS), of_kind(trace, "host_ops")):
        assert len(mask) == 3
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True


def test_a_mask_of_all_rows_or_of_none_takes_no_memory_of_its_own():
    trace = _Trace([1, 1, 1])
    every = of_kind(trace, "host_ops", HOST_OP_KINDS[1])
    none = of_kind(trace, "host_ops", HOST_OP_KINDS[0])
    assert (every.tolist(), none.tolist()) == ([True] * 3, [False] * 3)
    assert (every.strides, none.strides) == ((0,), (0,))
