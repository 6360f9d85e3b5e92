"""The C scanner gives the same columns however the data is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from readers.native_scans import RAGGED, pieces


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
    text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.sampled_from([b"", b'"', b"\\", b"}", b"\x00", b",,"]))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert pieces(bytes(text), cuts) == pieces(bytes(text), [])


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 300), st.lists(st.integers(0, 1000), max_size=8))
def test_an_event_that_is_too_long_is_found_however_the_text_is_cut(limit, cuts):
    assert pieces(RAGGED[:1000], cuts, limit) == pieces(RAGGED[:1000], [], limit)
