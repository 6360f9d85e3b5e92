"""Key columns that are made where somebody looks: the same rows as with all of them made, whatever is done with them."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.errors import SchemaError
from tracekit.model.tables import KEYS, TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Coded, Columns, Keyed, Nullable
from tracekit.model.trace import KeyLabels, Source

TABLE = TABLES["quality"]
SOURCE = Source(Path("a.json"), "a.json", "chrome", run="r")


def rows_of(source: Source, counts: list[int]) -> Columns:
    return KeyLabels(source).before(TABLE, {"name": ["lost"] * len(counts), "count": counts})


def made(rows: Columns) -> Columns:
    """The same rows with plain arrays alone."""
    return Columns(len(rows), dict(rows.arrays))


def same(left: Columns, right: Columns) -> bool:
    """Whether all arrays are equal, in their order and of their types."""
    if list(left.arrays) != list(right.arrays) or len(left) != len(right):
        return False
    for name, array in left.arrays.items():
        other = right.arrays[name]
        if isinstance(array, Coded):
            parts = [(array.codes, other.codes), (np.array(array.texts), np.array(other.texts))]
        elif isinstance(array, Nullable):
            parts = [(array.values, other.values), (array.missing, other.missing)]
        else:
            parts = [(array, other)]
        if not all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in parts if len(a)):
            return False
    return True


sources = st.builds(
    lambda name, rank, role, pid: replace(SOURCE, name=name, rank=rank, role=role, pid=pid),
    st.sampled_from("abc"),
    st.one_of(st.none(), st.integers(0, 2**40)),
    st.one_of(st.none(), st.sampled_from(["actor", "ref"])),
    st.one_of(st.none(), st.integers(0, 5)),
)
parts = st.lists(st.tuples(sources, st.lists(st.integers(0, 9), max_size=4)), min_size=1, max_size=6)


@given(parts, st.randoms(use_true_random=False))
def test_as_rows_with_all_columns_made(of_sources, random):
    keyed = [rows_of(source, counts) for source, counts in of_sources]
    together = concatenate_table_parts(TABLE, keyed)
    assert same(together, concatenate_table_parts(TABLE, list(map(made, keyed))))
    TABLE.fits(together)
    is_kept = np.array([random.random() < 0.5 for _ in range(len(together))], np.bool_)
    kept = together.where(is_kept)
    TABLE.fits(kept)
    assert len(kept) == is_kept.sum()
    assert kept.judged().equals(together.judged()[is_kept].reset_index(drop=True))
    assert same(pickle.loads(pickle.dumps(together)), together)


def test_keys_are_made_only_where_they_are_looked_at():
    rows = concatenate_table_parts(TABLE, [rows_of(SOURCE, [1, 2]), rows_of(replace(SOURCE, rank=3), [4])])
    arrays = rows.arrays
    assert isinstance(arrays, Keyed)
    assert "rank" in arrays
    assert "no such" not in arrays
    assert len(arrays) == len(TABLE.columns)
    assert list(arrays) == list(TABLE.columns)
    TABLE.fits(rows)
    assert not arrays._made
    assert rows["rank"].values.tolist() == [0, 0, 3]
    assert rows["rank"].missing.tolist() == [True, True, False]
    assert list(arrays._made) == ["rank"]
    assert rows["rank"] is rows["rank"]


def test_rows_that_bring_a_key_of_their_own_keep_it():
    rows = KeyLabels(replace(SOURCE, rank=3)).before(TABLE, {"rank": [7, 8], "name": ["lost", "odd"], "count": [1, 1]})
    assert not isinstance(rows.arrays, Keyed)
    assert rows["rank"].values.tolist() == [7, 8]
    assert list(rows.arrays) == list(TABLE.columns)
    beside = concatenate_table_parts(TABLE, [rows, rows_of(SOURCE, [5])])
    assert beside["rank"].missing.tolist() == [False, False, True]
    TABLE.fits(beside)


def test_a_key_or_an_unknown_column_among_the_measured_ones_is_an_error():
    with pytest.raises(SchemaError, match="unknown"):
        TABLE.cast_arrays({"name": ["lost"], "count": [1], "pid": [1]}, 1, tuple(KEYS))
    with pytest.raises(SchemaError, match="unknown"):
        KeyLabels(SOURCE).before(TABLE, {"name": ["lost"], "count": [1], "other": [1]})
    with pytest.raises(SchemaError, match="missing"):
        KeyLabels(SOURCE).before(TABLES["steps"], {"step": [1]})
    with pytest.raises(SchemaError, match="not 1 values"):
        KeyLabels(SOURCE).before(TABLE, {"name": ["lost"], "count": [1, 2]})
