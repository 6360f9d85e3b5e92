"""Small frames are summed, grouped and sorted as pandas does it, which takes many times as long."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tracekit.job.frames import aggregate_by_keys, sort_by_columns, sum_columns_by_keys

NUMBER = st.integers(-(2**40), 2**40)
ROW = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["gen", "update", None]),
        "rank": st.sampled_from([0, 1, None]),
        "plain": NUMBER,
        "whole": st.none() | NUMBER,
        "real": st.none() | st.sampled_from([0.0, 1.0, 2.5, -3.0]),
    }
)
TYPES = {"stage": object, "rank": "Int64", "plain": "int64", "whole": "Int64", "real": "Float64"}
KEYS = ["stage", "rank"]


def frame_of(rows):
    return pd.DataFrame(rows, columns=list(TYPES)).astype(TYPES)


@given(st.lists(ROW, max_size=12))
def test_sums_are_those_of_pandas(rows):
    frame = frame_of(rows)
    sums = sum_columns_by_keys(frame, KEYS, ["plain", "whole", "real"])
    groups = frame.groupby(KEYS, dropna=False, sort=False)
    for name in ("plain", "whole", "real"):
        expected = groups[name].sum(min_count=1)
        assert sums[name].dtype == expected.dtype
        assert sums[name].astype(object).tolist() == expected.astype(object).tolist()


@given(st.lists(ROW, max_size=12))
def test_groups_are_reduced_as_pandas_reduces_them(rows):
    frame = frame_of(rows)
    how = ("sum", "mean", "max", "min")
    parts = {f"{name}_{each}": (name, each) for name in ("plain", "whole", "real") for each in how}
    groups = aggregate_by_keys(frame, KEYS, **parts)
    of_pandas = frame.groupby(KEYS, dropna=False, sort=False).agg(**parts)
    for name in parts:
        assert groups[name].dtype == of_pandas[name].dtype
        assert groups[name].astype(object).tolist() == of_pandas[name].astype(object).tolist()


@given(st.lists(ROW, max_size=12), st.booleans(), st.booleans(), st.booleans())
def test_rows_are_sorted_as_pandas_sorts_them(rows, by_stage, by_whole, by_real):
    frame = frame_of(rows)
    order = {"stage": by_stage, "whole": by_whole, "real": by_real}
    expected = frame.sort_values(list(order), ascending=list(order.values()), kind="stable")
    assert sort_by_columns(frame, **order).index.tolist() == expected.index.tolist()
