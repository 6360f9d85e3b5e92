"""Rows by their names and kinds, however many there are."""

import numpy as np
import pytest
from chrome_builder import launch, op, write
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.model.keys import numbered
from tracekit.process.by_name import numbered_codes, of_kind


@given(st.lists(st.integers(-1, 6), max_size=20), st.sampled_from([np.int8, np.int16, np.int64]))
def test_codes_are_numbered_as_any_keys_are(codes, kind):
    present, place = numbered_codes(np.array(codes, kind), 7)
    expected, expected_place = numbered(np.array(codes, np.int64))
    assert (present.tolist(), place.tolist()) == (expected.tolist(), expected_place.tolist())
    assert (present.dtype, place.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("many", [0, 2, 3, 100])
def test_kinds_are_told_of_few_rows_and_of_many(tmp_path, monkeypatch, many):
    monkeypatch.setattr("tracekit.process.by_name.MANY_ROWS", many)
    trace = tracekit.load(write(tmp_path / "trace.json", [op("a", 0, 9), launch(1, 2, 1)]))
    mask = of_kind(trace, "host_ops", "op")
    assert (mask.tolist(), of_kind(trace, "host_ops", "op", "runtime").tolist()) == ([True, False], [True, True])  # fmt: skip
    assert (of_kind(trace, "host_ops", "op") is mask) == (many > 2)
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False
