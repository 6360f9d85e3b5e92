"""Varints and signs: encoded numbers are read back, and the bytes are those of an encoder that does one at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reading import decode_varints, unfold_signs

from tracekit.render.explorer.varints import (
    encode_column_parts,
    encode_columns,
    encode_varints,
    fold_signs,
    take_differences,
    take_part_differences,
)

NUMBERS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)), max_size=40)
SIGNED = st.lists(st.integers(-(2**61), 2**61), max_size=40)


def one_by_one(values):
    encoded = bytearray()
    for value in values:
        rest = value
        while rest > 127:
            encoded.append(rest & 127 | 128)
            rest >>= 7
        encoded.append(rest)
    return bytes(encoded)


@given(NUMBERS)
def test_varints_are_those_of_an_encoder_that_does_one_at_a_time(values):
    encoded = encode_varints(np.array(values, np.int64))
    assert encoded == one_by_one(values)
    assert decode_varints(encoded).tolist() == values


@pytest.mark.parametrize("bits", range(0, 63, 7))
def test_varints_at_the_edge_of_each_length(bits):
    values = [value for value in ((1 << bits) - 1, 1 << bits, (1 << bits) + 1) if value < 2**63]
    assert encode_varints(np.array(values, np.int64)) == one_by_one(values)


@given(NUMBERS, st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
def test_narrow_columns_have_the_same_bytes_as_wide_ones(values, kind):
    values = [value & np.iinfo(kind).max for value in values]
    assert encode_varints(np.array(values, kind)) == one_by_one(values)


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="negative"):
        encode_varints(np.array([3, -1]))


@given(SIGNED)
def test_signed_differences_are_read_back(values):
    values = np.array(values, np.int64)
    folded = fold_signs(take_differences(values))
    assert (folded >= 0).all()
    assert np.cumsum(unfold_signs(folded)).tolist() == values.tolist()


def test_columns_begin_with_the_number_of_rows():
    assert decode_varints(encode_columns([np.array([1, 2]), np.array([300, 4])])).tolist() == [2, 1, 2, 300, 4]


@given(st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=6), max_size=6))
def test_columns_in_parts_have_the_bytes_of_each_part_alone(parts):
    columns = [np.array([value >> shift for part in parts for value in part], np.int64) for shift in (0, 40)]
    sizes = np.array(list(map(len, parts)), np.int64)
    alone = [
        encode_columns([np.array([value >> shift for value in part], np.int64) for shift in (0, 40)]) for part in parts
    ]
    assert encode_column_parts(columns, sizes) == alone


@given(st.lists(st.lists(st.integers(0, 2**62), max_size=6), max_size=6))
def test_differences_in_parts_are_those_of_each_part_alone(parts):
    sizes, values = np.array(list(map(len, parts)), np.int64), np.array([v for part in parts for v in part], np.int64)
    alone = [value for part in parts for value in take_differences(np.array(part, np.int64)).tolist()]
    assert take_part_differences(values, sizes).tolist() == alone
