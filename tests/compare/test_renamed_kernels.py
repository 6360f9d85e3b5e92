"""Kernels without a launching op that have another name on each side."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.compare.wall_time.renamed_kernels import rename_replaced_kernels
from tracekit.model.tables.frame import Frame, texts

AT = "void at::native::vectorized_elementwise_kernel<8, at::native::"
GELU, SILU = f"{AT}GeluCUDAKernelImpl(int)>(int)", f"{AT}(anonymous namespace)::silu_kernel(int)>(int)"


def slots(*rows):
    """Rows (half, kernel, ns, calls, op) of one step per side."""
    columns = list(zip(*((half, kernel, ns, calls, op) for half, kernel, ns, calls, op in rows), strict=True))
    half, kernels, ns, calls, ops = columns
    size = len(rows)
    return Frame.from_columns(
        {
            "half": np.array(half),
            "unit": np.zeros(size, np.int64),
            "stage": texts([""] * size),
            "class": texts(["compute"] * size),
            "op": texts(list(ops)),
            "kernel": texts(list(kernels)),
            "ns": np.array(ns, np.float64),
            "count": np.array(calls, np.float64),
        }
    )


def names(frame):
    return frame.values("kernel")


def test_a_kernel_renamed_in_a_graph_has_one_name():
    rows = slots(
        (0, GELU, 500, 4, "(no op)"),
        (0, "gemm", 900, 4, "(no op)"),
        (1, SILU, 400, 4, "(no op)"),
        (1, "gemm", 900, 4, "(no op)"),
    )
    joined = "gelu → silu (vectorized_elementwise_kernel, int32)"
    assert names(rename_replaced_kernels(rows)) == [joined, "gemm", joined, "gemm"]


def test_unequal_calls_are_not_renamed():
    rows = slots((0, "a", 500, 4, "(no op)"), (1, "b", 400, 5, "(no op)"))
    assert names(rename_replaced_kernels(rows)) == ["a", "b"]


def test_kernels_under_an_op_stay_as_they_are():
    rows = slots((0, "a", 500, 4, "aten::gelu"), (1, "b", 400, 4, "aten::silu"))
    assert names(rename_replaced_kernels(rows)) == ["a", "b"]


def test_a_fused_kernel_does_not_take_the_name_of_one_of_its_parts():
    rows = slots((0, "a", 500, 4, "(no op)"), (0, "b", 300, 4, "(no op)"), (1, "fused", 400, 4, "(no op)"))
    assert names(rename_replaced_kernels(rows)) == ["a", "b", "fused"]


def test_names_alike_but_for_numbers_are_matched_before_time_decides():
    rows = slots(
        (0, "triton_red_1", 900, 2, "(no op)"),
        (0, "triton_poi_7", 100, 2, "(no op)"),
        (1, "triton_red_2", 90, 2, "(no op)"),
        (1, "triton_poi_8", 800, 2, "(no op)"),
    )
    red, poi = "triton_red_1 → triton_red_2", "triton_poi_7 → triton_poi_8"
    assert names(rename_replaced_kernels(rows)) == [red, poi, red, poi]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from("abcdef"),
            st.integers(0, 9),
            st.integers(0, 3),
            st.sampled_from(["(no op)", "x"]),
        ),
        min_size=1,
    )
)
def test_renaming_keeps_every_number_and_joins_at_most_two_names(rows):
    before = slots(*rows)
    after = rename_replaced_kernels(before)
    assert [*after["ns"]] == [*before["ns"]]
    for name, old in zip(names(after), names(before), strict=True):
        assert old in name.split(" → ")
        assert name.count("→") <= 1
