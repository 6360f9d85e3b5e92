"""What the names of rollout engines' ranges say of an iteration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.process.iterations import batch


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_2(37)_generation_5(5)", (2, 37, 5, 5)),
        ("execute_context_1(888_788544)_generation_0(0)", (1, 888, 0, 0)),
        ("execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk9sqsq64sqsk9)", (0, 0, 64, 64)),
        ("execute_context_1(x)_generation_2()", (1, None, 2, None)),
        ("execute_new_3_cached_40", (3, None, 40, None)),
        ("step[DECODE bs=32]", (0, 0, 32, 32)),
        ("step[decode bs=32 g_sq=64 g_sk=100]", (0, 0, 32, 64)),
        ("step[EXTEND bs=1 toks=1025 c_sqsq=1050625]", (1, 1025, 0, 0)),
        ("step[prefill bs=4 toks=9]", (4, 9, 0, 0)),
        ("step[MIXED bs=66 c=2 g=64 c_sq=2048 g_sq=64]", (2, 2048, 64, 64)),
        ("step[mixed bs=10 ext=300 dec=7]", (3, 300, 7, 7)),
        ("step[TARGET_VERIFY bs=8]", (0, 0, 8, None)),
        ("step[idle]", (0, 0, 0, 0)),
        # A draft model's step is part of an iteration; others are none at all.
        ("step[DRAFT_EXTEND_V2 bs=8]", None),
        ("step[DECODE", None),
        ("step[WHATEVER bs=1]", None),
        ("execute_model", None),
        ("execute_context_99999999999(1)_generation_1(1)", None),
        ("gen", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_name_of_an_iteration_tells_its_batch(name, expected):
    assert batch(name) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="execut_contxgra()0123456789sqk[]= DECOsp", max_size=40))
def test_no_name_breaks_the_reading(name):
    batch(name)
