"""What the names of rollout engines' ranges say of an iteration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.process.engine_iterations import parse_engine_batch


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
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", (2, 14721, 0, 0)),
        ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", (6, 17408, 0, 0)),
        ("prefill[bs=1 tok=7 ctx=7]", (1, 7, 0, 0)),
        ("decode[bs=64 tok=64 d=64]", (0, 0, 64, 64)),
        ("eager_decode[bs=32]", (0, 0, 32, 32)),
        # A graph for 128 runs 117; two prompts beside 126; three tokens beside each are speculative.
        ("decode[bs=117/128 tok=117 d=117]", (0, 0, 117, 117)),
        ("decode[bs=128 tok=384 p=2 d=126]", (2, 258, 126, 126)),
        ("decode[bs=32 tok=128 d=32 spec=3]", (0, 0, 32, None)),
        ("execute_diffusion_1_1024x1024", (0, 0, 1, 0)),
        ("draft[0/2 bs=4]", None),
        ("decode[x]", None),
        ("execute_diffusion_1_big", None),
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
    found = parse_engine_batch(name)
    assert (found if found is None else found[:4]) == expected


@pytest.mark.parametrize(
    ("name", "context", "pairs"),
    [
        ("execute_40_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)", 42919, 7705799),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]", 20, 52),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", 131072, 262144),
        ("decode[bs=64 tok=64 d=64 sqsq=64 sqsk=131072 sk=131072]", 131072, 131072),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]", 14721, 108745533),
        ("execute_context_2(37)_generation_5(5)", None, None),
        ("step[DECODE bs=32]", None, None),
    ],
)  # fmt: skip
def test_sums_of_keys_and_of_pairs_are_read(name, context, pairs):
    found = parse_engine_batch(name)
    assert (found.context_tokens, found.attention_pairs) == (context, pairs)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="execut_contxgra()0123456789sqk[]= DECOsp", max_size=40))
def test_no_name_breaks_the_reading(name):
    parse_engine_batch(name)
