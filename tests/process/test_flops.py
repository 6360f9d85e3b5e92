"""FLOPs of one call by its recorded shapes, worked by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.process.ops.flops import OPS, MatrixProduct, compute_matrix_product, parse_input_shapes, parse_input_types

F = "float"


def sizes(name, dims, kind=F):
    told = json.dumps([kind if entry else "Scalar" for entry in dims])
    found = compute_matrix_product(name, json.dumps(dims), told)
    return None if found is None else (found.kind, found.batch, found.m, found.n, found.k, found.flops)


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[2, 3], [3, 5]], ("gemm", 1, 2, 5, 3, 60)),
        # An output given by the caller is no factor.
        ("aten::mm", [[2, 3], [3, 5], [2, 5]], ("gemm", 1, 2, 5, 3, 60)),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], ("gemm", 1, 2, 5, 3, 60)),
        ("aten::bmm", [[4, 2, 3], [4, 3, 5]], ("gemm", 4, 2, 5, 3, 240)),
        ("aten::baddbmm", [[4, 2, 5], [4, 2, 3], [4, 3, 5]], ("gemm", 4, 2, 5, 3, 240)),
        # The weight of linear is N × K; all axes before the last are rows.
        ("aten::linear", [[7, 2, 3], [5, 3], [5]], ("gemm", 1, 14, 5, 3, 420)),
        ("aten::matmul", [[7, 2, 3], [3, 5]], ("gemm", 1, 14, 5, 3, 420)),
        ("aten::matmul", [[6, 1, 2, 3], [4, 3, 5]], ("gemm", 24, 2, 5, 3, 1440)),
        # Each of 10 rows meets one of 4 matrices.
        ("aten::_grouped_mm", [[10, 3], [4, 3, 5], [4]], ("gemm", 1, 10, 5, 3, 300)),
        ("aten::_grouped_mm", [[4, 2, 3], [3, 10], [4]], ("gemm", 1, 2, 10, 3, 120)),
        # 2 · 2·3 heads · 4 queries · 5 keys · (8 + 8).
        ("aten::scaled_dot_product_attention", [[2, 3, 4, 8], [2, 3, 5, 8], [2, 3, 5, 8]],
         ("attention", 6, 4, 5, 8, 3840)),
        # Three heads share one head of keys; the values are wider than the keys: 8 + 16.
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 4, 8], [2, 1, 5, 8], [2, 1, 5, 16]],
         ("attention", 6, 4, 5, 8, 5760)),
        ("aten::_flash_attention_forward", [[2, 4, 3, 8], [2, 5, 3, 8], [2, 5, 3, 8], [], []],
         ("attention", 6, 4, 5, 8, 3840)),
        # Five products instead of two: 2.5 times as much.
        ("aten::_scaled_dot_product_flash_attention_backward", [[2, 3, 4, 8]] + [[2, 3, 4, 8]] * 3,
         ("attention", 6, 4, 4, 8, 7680)),
    ],
)  # fmt: skip
def test_the_flops_of_a_call(name, dims, expected):
    assert sizes(name, dims) == expected


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mul", [[2, 3], [2, 3]]),
        ("aten::mm", [[2, 3], [4, 5]]),
        ("aten::mm", [[2, 3]]),
        ("aten::mm", [[0, 3], [3, 5]]),
        ("aten::mm", [[2, "3"], [3, 5]]),
        ("aten::mm", [[2, -3], [-3, 5]]),
        ("aten::mm", [[10**18, 10**18], [10**18, 10**18]]),
        ("aten::bmm", [[4, 2, 3], [5, 3, 5]]),
        ("aten::matmul", [[3], [3, 5]]),
        # Packed sequences: what they cost depends on lengths that are not recorded.
        ("aten::_flash_attention_forward", [[40, 3, 8], [40, 3, 8], [40, 3, 8], [5], [5]]),
        ("aten::_efficient_attention_forward", [[1, 40, 3, 8]] * 3 + [[], [5], [5]]),
        ("aten::scaled_dot_product_attention", [[2, 3, 4, 8], [2, 2, 5, 8], [2, 2, 5, 8]]),
        ("aten::scaled_dot_product_attention", [[2, 3, 4, 8], [1, 3, 5, 8], [2, 3, 5, 8]]),
    ],
)
def test_what_is_not_known_is_not_guessed(name, dims):
    assert sizes(name, dims) is None


def test_two_numbers_in_one_element_are_not_guessed():
    assert sizes("aten::_scaled_mm", [[2, 3], [3, 5]], "c10::Float4_e2m1fn_x2") is None
    assert sizes("aten::_scaled_mm", [[2, 3], [3, 5]], "c10::Float8_e4m3fn") is not None


def test_the_type_is_that_of_the_first_factor():
    kinds = '["float","c10::BFloat16","c10::BFloat16"]'
    assert compute_matrix_product("aten::addmm", "[[5],[2,3],[3,5]]", kinds) == MatrixProduct("gemm", "BFloat16", 1, 2, 5, 3, 60)  # fmt: skip


@given(st.sampled_from(sorted(OPS)), st.one_of(st.none(), st.integers(), st.text(), st.lists(st.lists(st.integers(-2, 2**40), max_size=5), max_size=8).map(json.dumps)), st.text())  # fmt: skip
def test_no_recorded_text_breaks_it(name, dims, kinds):
    found = compute_matrix_product(name, dims, kinds)
    assert found is None or 0 < found.flops <= 2**62


def test_nested_text_without_end_is_no_shape():
    assert parse_input_shapes("[" * 15_000) == ()
    assert parse_input_types('{"a": 1}') == ()
