"""The frame of judges: its rules worked by hand, and against pandas."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.tables.arrays import Coded, Columns, Nullable, make_nullable_numbers
from tracekit.model.tables.frame import (
    Frame,
    choose,
    concat,
    count_distinct_of,
    count_of,
    count_rows,
    divide,
    first_of,
    from_rows,
    is_missing,
    last_of,
    max_of,
    mean_of,
    median_of,
    min_of,
    narrow_whole_numbers,
    numbers,
    sum_of,
    texts,
    where,
)

BIG = 2**60


def frame(rows):
    """A frame of (run, rank, dur_ns, share, is_last) rows: text, Int64, int64, Float64, bool."""
    run, rank, dur, share, last = map(list, zip(*rows, strict=True)) if rows else ([],) * 5
    missing = np.array([value is None for value in share], np.bool_)
    return Frame.from_columns(
        {
            "run": texts(run),
            "rank": make_nullable_numbers(rank),
            "dur_ns": np.array(dur, np.int64),
            "share": Nullable(np.array([v or 0.0 for v in share], np.float64), missing),
            "is_last": np.array(last, np.bool_),
        }
    )


def in_pandas(table):
    return Columns(len(table), table.columns).judged()


def plain(column):
    return [None if pd.isna(value) else value for value in column.tolist()]


def listed(table, *names):
    return [tuple(row.values()) for row in table.rows(*names)]


rows_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.sampled_from([0, 1, None]),
        st.integers(-BIG, BIG),
        st.sampled_from([0.25, -1.0, 3.0, None]),
        st.booleans(),
    ),
    max_size=9,
)


# Groups


def test_missing_keys_group_and_aggregates_skip_missing_values():
    table = frame([("b", 1, 5, None, True), (None, 1, 7, 0.5, False), ("b", None, 9, 1.5, True)])
    by_run = table.group_by("run").agg(
        rows=count_rows(), ranks=count_of("rank"), dur_ns=sum_of("dur_ns"), share=mean_of("share")
    )
    assert listed(by_run) == [("b", 2, 1, 14, 1.5), (None, 1, 1, 7, 0.5)]


def test_an_aggregate_of_missing_values_alone_is_missing_and_not_zero():
    table = frame([("a", None, 1, None, False), ("b", 0, 1, 0.0, False)])
    for aggregate in (sum_of, min_of, max_of, mean_of, median_of, first_of, last_of):
        both = table.group_by("run").agg(rank=aggregate("rank"), share=aggregate("share"))
        assert listed(both, "rank", "share") == [(None, None), (0, 0)]


def test_nan_is_not_missing():
    table = Frame.from_columns({"x": Nullable(np.array([np.nan, 1.0]), np.array([False, False]))})
    total = table.group_by().agg(x=sum_of("x"), known=count_of("x"))
    assert np.isnan(total["x"].values[0])
    assert total.values("known") == [2]


@given(rows_of)
def test_groups_are_those_of_pandas(rows):
    table = frame(rows)
    keys = ["run", "rank"]
    mine = table.group_by(*keys).agg(
        rows=count_rows(),
        low=min_of("dur_ns"),
        high=max_of("share"),
        share=sum_of("share"),
        known=count_of("share"),
        shares=count_distinct_of("share"),
    )
    theirs = in_pandas(table).groupby(keys, dropna=False, sort=False)
    theirs = theirs.agg(
        rows=("dur_ns", "size"),
        low=("dur_ns", "min"),
        high=("share", "max"),
        share=("share", lambda values: values.sum(min_count=1)),
        known=("share", "count"),
        shares=("share", "nunique"),
    ).reset_index()
    for name in (*keys, "rows", "low", "high", "share", "known", "shares"):
        assert mine.values(name) == plain(theirs[name]), name


@given(rows_of)
def test_sums_and_medians_are_exact(rows):
    table = frame(rows)
    groups = table.group_by("run")
    mine = groups.agg(total=sum_of("dur_ns"), middle=median_of("dur_ns"), last=last_of("rank"))
    expected = []
    for run in dict.fromkeys(run for run, *_ in rows):
        durs = sorted(dur for key, _, dur, *_ in rows if key == run)
        middle = (durs[(len(durs) - 1) // 2] + durs[len(durs) // 2]) // 2
        total = (sum(durs) + 2**63) % 2**64 - 2**63
        last = [rank for key, rank, *_ in rows if key == run][-1]
        expected.append((run, total, middle, last))
    assert listed(mine) == expected


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2**40), st.integers(1, 24)), max_size=60))
def test_sums_of_floats_are_rounded_once(rows):
    values = [dur / lanes for _, dur, lanes in rows]
    table = Frame.from_columns({"run": texts([run for run, *_ in rows]), "each_ns": np.array(values, np.float64)})
    for row in table.group_by("run").agg(each_ns=sum_of("each_ns")).rows():
        exact = math.fsum(value for value, (run, *_) in zip(values, rows, strict=True) if run == row["run"])
        assert abs(row["each_ns"] - exact) <= math.ulp(exact)


def test_a_sum_of_floats_with_nan_is_nan_in_its_group_only():
    table = Frame.from_columns({"run": texts(["a", "b"]), "x": np.array([np.nan, 0.1])})
    assert str(table.group_by("run").agg(x=sum_of("x")).values("x")) == "[nan, 0.1]"


@given(rows_of)
def test_each_row_gets_the_aggregate_of_its_group(rows):
    table = frame(rows)
    theirs = in_pandas(table).groupby(["rank"], dropna=False)["dur_ns"]
    groups = table.group_by("rank")
    assert groups.each(max_of("dur_ns")).tolist() == theirs.transform("max").tolist()
    assert groups.position().tolist() == theirs.cumcount().tolist()
    assert [len(part) for part in groups.frames()] == groups.agg(n=count_rows()).values("n")


@pytest.mark.parametrize("is_nullable", [False, True])
def test_floats_are_told_apart_by_their_fractions(is_nullable):
    values = np.array([0.25, 0.75, 0.25, np.nan])
    column = Nullable(values, np.zeros(4, np.bool_)) if is_nullable else values
    table = Frame.from_columns({"x": column, "row": np.arange(4)})
    assert table.distinct("x").values("row") == [0, 1, 3]
    assert table.group_by().agg(n=count_distinct_of("x")).values("n") == [3]


def test_the_median_of_floats_is_halfway_between_the_middle_two():
    table = Frame.from_columns({"run": texts(["a", "b", "a", "b", "b"]), "x": np.array([1.0, 4.0, 2.5, 0.5, 1.0])})
    assert table.group_by("run").agg(x=median_of("x")).values("x") == [1.75, 1.0]


def test_an_aggregate_takes_an_array_as_long_as_the_frame():
    table = frame([("a", 0, 5, None, True), ("a", 1, 7, None, True)])
    assert table.group_by("run").agg(x=sum_of(table["dur_ns"] * 2)).values("x") == [24]


def test_position_counts_in_the_order_given():
    table = frame([("a", 0, 5, None, True), ("b", 0, 1, None, True), ("a", 0, 3, None, True)])
    assert table.group_by("run").position(table.order("dur_ns")).tolist() == [1, 0, 0]


# Order


@given(rows_of, st.booleans(), st.booleans())
def test_sorting_is_that_of_pandas(rows, is_share_down, is_run_down):
    table = frame(rows).with_columns(row=np.arange(len(rows)))
    down = ["share"] * is_share_down + ["run"] * is_run_down
    theirs = in_pandas(table).sort_values(
        ["share", "run"], ascending=[not is_share_down, not is_run_down], kind="stable"
    )
    mine = table.sort("share", "run", descending=down)
    assert mine.values("row") == theirs["row"].tolist()


def test_nan_comes_after_numbers_and_before_missing_either_way():
    values = Nullable(np.array([0.0, np.nan, 2.0, 1.0]), np.array([True, False, False, False]))
    table = Frame.from_columns({"x": values, "row": np.arange(4)})
    assert table.sort("x").values("row") == [3, 2, 1, 0]
    assert table.sort("x", descending=["x"]).values("row") == [2, 3, 1, 0]


def test_times_beyond_the_whole_numbers_of_floats_are_told_apart():
    table = Frame.from_columns({"ts_ns": Nullable(np.array([BIG + 1, BIG]), np.zeros(2, np.bool_))})
    assert table.sort("ts_ns").values("ts_ns") == [BIG, BIG + 1]
    assert len(table.distinct("ts_ns")) == 2
    assert table.sort("ts_ns", descending=["ts_ns"]).values("ts_ns") == [BIG + 1, BIG]


@given(rows_of)
def test_dense_ranks_count_the_combinations_in_order(rows):
    table = frame(rows)
    order = sorted({(run is None, run or "", rank is None, rank or 0) for run, rank, *_ in rows})
    expected = [order.index((a is None, a or "", b is None, b or 0)) for a, b, *_ in rows]
    assert table.dense_rank("run", "rank").tolist() == expected


# Joins


@given(rows_of, rows_of, st.sampled_from(["inner", "left"]))
def test_joins_are_those_of_pandas_without_missing_keys(left, right, how):
    mine = frame(left).select("run", "rank", "dur_ns").with_columns(row=np.arange(len(left)))
    other = frame(right).select("run", "rank", "share").with_columns(place=np.arange(len(right)))
    theirs = in_pandas(mine).merge(in_pandas(other).dropna(subset=["run", "rank"]), on=["run", "rank"], how=how)
    theirs = theirs.sort_values(["row", "place"], kind="stable")
    joined = mine.join(other, on=["run", "rank"], how=how)
    for name in ("row", "place", "share"):
        assert joined.values(name) == plain(theirs[name]), name


def test_a_missing_key_matches_only_where_it_is_optional():
    left = frame([("a", None, 1, None, True)])
    right = Frame.from_columns({"run": texts(["a"]), "rank": make_nullable_numbers([None]), "wall": np.array([9])})
    assert len(left.join(right, on=["run", "rank"])) == 0
    assert not left.is_among(right, ["run", "rank"]).any()
    assert left.join(right, on=["run", "rank"], optional=["rank"]).values("wall") == [9]
    assert left.is_among(right, ["run", "rank"], optional=["rank"]).all()


def test_a_row_is_among_others_by_its_keys_and_not_by_its_place():
    left = Frame.from_columns({"rank": np.array([5, 6, 7, 5])})
    right = Frame.from_columns({"rank": np.array([7, 5])})
    assert left.is_among(right, ["rank"]).tolist() == [True, False, True, True]


def test_a_left_join_keeps_types_where_every_row_matches():
    left = Frame.from_columns({"rank": np.array([1, 0])})
    right = Frame.from_columns({"rank": make_nullable_numbers([0, 1]), "wall_ns": np.array([7, BIG + 1])})
    assert left.join(right, on=["rank"], how="left")["wall_ns"].tolist() == [BIG + 1, 7]
    gaps = left.join(right.head(1), on=["rank"], how="left")
    assert gaps.values("wall_ns") == [None, 7]


def test_a_left_join_with_no_rows_is_all_missing():
    right = Frame.from_columns({"rank": np.empty(0, np.int64), "name": texts([]), "x": np.empty(0)})
    joined = Frame.from_columns({"rank": np.array([1])}).join(right, on=["rank"], how="left")
    assert listed(joined) == [(1, None, None)]
    assert isinstance(joined["name"], Coded)


def test_a_join_refuses_a_column_that_both_sides_have():
    table = frame([("a", 0, 1, None, True)])
    with pytest.raises(AssertionError, match="both sides have"):
        table.join(table, on=["run"])


# Columns


def test_texts_are_compared_by_what_they_say_and_not_by_their_codes():
    one = Coded(np.array([0, 1, 2], np.int8), ("gen", "gen", "ref"))
    table = Frame.from_columns({"stage": one, "x": np.array([1, 2, 4])})
    assert listed(table.group_by("stage").agg(x=sum_of("x"))) == [("gen", 3), ("ref", 4)]
    other = Frame.from_columns({"stage": texts(["ref", "gen"]), "place": np.array([0, 1])})
    assert table.join(other, on=["stage"]).values("place") == [1, 1, 0]
    assert table.sort("stage", "x", descending=["x"]).values("x") == [2, 1, 4]


@given(rows_of, rows_of)
def test_concat_unites_texts_and_fills_what_one_lacks(above, below):
    both = concat([frame(above), frame(below).drop("share")])
    assert both.values("run") == [row[0] for row in (*above, *below)]
    assert both.values("share") == [row[3] for row in above] + [None] * len(below)


def test_filters_tell_missing_from_any_value():
    table = frame([("a", 0, 1, None, True), (None, None, 2, None, True), ("b", 1, 3, None, True)])
    assert table.filter(table.equals("run", "a")).values("dur_ns") == [1]
    assert table.filter(~table.equals("run", "a")).values("dur_ns") == [2, 3]
    assert table.filter(table.equals("rank", None)).values("dur_ns") == [2]
    assert table.filter(~table.is_in("run", ["a", "c"])).values("dur_ns") == [2, 3]
    assert table.integers("rank", missing=-1).tolist() == [0, -1, 1]
    assert table.number("rank").tolist()[::2] == [0.0, 1.0]


def test_where_and_choose_keep_kinds():
    mask = np.array([True, False])
    assert Frame.from_columns({"x": where(mask, np.array([BIG + 1, 2]))}).values("x") == [BIG + 1, None]
    chosen = choose(mask, texts(["a", "b"]), texts(["c", "d"]))
    assert Frame.from_columns({"x": chosen}).values("x") == ["a", "d"]
    mixed = choose(mask, make_nullable_numbers([None, 1]), np.array([7, BIG + 1]))
    assert Frame.from_columns({"x": mixed}).values("x") == [None, BIG + 1]


def test_a_quotient_is_missing_where_a_part_is_missing_or_the_divisor_is_0():
    above, below = make_nullable_numbers([1, None, 1, 1]), make_nullable_numbers([4, 4, None, 0])
    assert Frame.from_columns({"x": divide(above, below)}).values("x") == [0.25, None, None, None]
    assert Frame.from_columns({"x": divide(np.array([1, 0]), np.array([2.0, 2.0]))}).values("x") == [0.5, 0.0]


def test_numbers_are_narrowed_if_all_that_are_known_are_whole():
    narrowed = narrow_whole_numbers(numbers([2.0, None, 3.0]))
    assert (narrowed.values.dtype, narrowed.missing.tolist()) == (np.int64, [False, True, False])
    assert narrow_whole_numbers(numbers([2.5, None])).values.dtype == np.float64
    assert narrow_whole_numbers(np.array([1.0, np.nan])).dtype == np.float64


def test_rows_of_python_values_become_texts_and_numbers_and_keep_what_is_missing():
    names = ["run", "count", "ratio", "nothing"]
    rows = [("a", BIG + 1, 0.5, None), (None, None, 2, None)]
    table = from_rows(names, rows)
    assert listed(table) == rows
    assert listed(table.sort("count", "run"), "count") == [(BIG + 1,), (None,)]
    assert [type(value) for value in table.values("ratio")] == [float, float]
    assert from_rows(names, []).sort("count", "run").values("ratio") == []


def test_nothing_changes_the_frame_it_is_asked_of():
    table = frame([("b", 1, 5, None, True), ("a", 0, 7, 0.5, False)])
    before = listed(table)
    table.with_columns(dur_ns=0, tool="nsys").sort("run").head(1)
    table.group_by("run").agg(x=min_of("dur_ns"))
    assert listed(table) == before
    assert list(table.columns) == ["run", "rank", "dur_ns", "share", "is_last"]


def test_columns_are_not_copied():
    whole, share = np.arange(3), np.array([0.5, 1.5, 2.5])
    gaps = Nullable(np.arange(3), np.array([False, True, False]))
    table = Frame.from_columns({"whole": whole, "share": share, "gaps": gaps})
    assert np.shares_memory(table.integers("whole"), whole)
    assert np.shares_memory(table.number("share"), share)
    assert np.shares_memory(table.head(2)["whole"], whole)
    assert table.integers("gaps").tolist() == [0, 0, 2]
    assert table.number("gaps", missing=-1.5).tolist() == [0.0, -1.5, 2.0]
    assert table.number("whole").dtype == np.float64


def test_a_single_value_is_repeated_as_a_column_of_its_kind():
    table = frame([("b", 1, 5, None, True), ("a", 0, 7, 0.5, False)]).with_columns(tool="nsys", gap=None, count=3)
    assert isinstance(table["tool"], Coded)
    assert listed(table, "tool", "gap", "count") == [("nsys", None, 3)] * 2
    assert table.is_missing("gap").all()
    assert len(table.filter(table.equals("tool", "nsys"))) == 2


def test_a_column_of_another_length_is_refused():
    with pytest.raises(AssertionError, match="3 values in 1 rows"):
        frame([("a", 0, 1, None, True)]).with_columns(x=np.arange(3))


def test_every_method_takes_no_rows():
    none = frame([])
    assert len(none.sort("run", "share", descending=["share"])) == 0
    assert len(none.group_by("run", "rank").agg(x=median_of("dur_ns"), y=last_of("run"))) == 0
    assert len(none.group_by().agg(x=sum_of("dur_ns"))) == 0
    assert len(none.join(none.select("run"), on=["run"], how="left")) == 0
    assert len(concat([none, none]).distinct("run")) == 0
    assert none.dense_rank("run").tolist() == []


def test_a_column_of_missing_values_alone_joins_numbers():
    """`from_rows` cannot know whether Nones stand for texts or for numbers."""
    unknown = from_rows(["pid"], [(None,)])
    table = from_rows(["pid", "x"], [(7, 1), (None, 2)])
    assert listed(unknown.join(table, ["pid"], optional=["pid"])) == [(None, 2)]
    assert concat([unknown, table]).values("pid") == [None, 7, None]


def test_a_column_without_a_known_value_is_one_of_numbers_too():
    rows = from_rows(["stage", "own_ns"], [("ref", None), ("gen", None), ("ref", None)])
    assert np.isnan(rows.number("own_ns")).all()
    assert rows.integers("own_ns", missing=-1).tolist() == [-1, -1, -1]
    by_stage = rows.group_by("stage").agg(own_ns=sum_of("own_ns"), most_ns=max_of("own_ns"))
    assert list(by_stage.rows()) == [
        {"stage": "ref", "own_ns": None, "most_ns": None},
        {"stage": "gen", "own_ns": None, "most_ns": None},
    ]
    assert is_missing(divide(rows["own_ns"], np.ones(3))).all()


def test_texts_are_no_numbers():
    rows = from_rows(["stage"], [("ref",), (None,)])
    with pytest.raises(AssertionError, match="text"):
        rows.number("stage")
    with pytest.raises(AssertionError, match="text"):
        rows.group_by("stage").agg(stage_ns=sum_of("stage"))
