"""Which names stand for one another: under the same op, or alike but for numbers."""

from tracekit.compare.wall_time.replaced_names import match_replaced_keys
from tracekit.model.text.kernel_labels import strip_build_details


def test_kernels_that_replace_one_another_are_found_under_their_op():
    before = [("s", "compute", "a > b", "gemm_128"), ("s", "compute", "a > b", "reduce")]
    after = [("s", "compute", "a > b", "flash"), ("s", "compute", "z", "flash")]
    at = ("s", "compute", "a > b")
    assert match_replaced_keys(before, after) == dict.fromkeys([*before, after[0]], at)


def test_names_alike_but_for_numbers_are_one_wherever_they_are():
    before = [("s", "compute", "a", "triton_poi_fused_0"), ("s", "compute", "b", "x")]
    after = [("s", "compute", "c", "triton_poi_fused_12"), ("s", "compute", "b", "x")]
    assert set(match_replaced_keys(before, after)) == {before[0], after[0]}
    assert strip_build_details("void cutlass::Kernel<cutlass_80_tensorop>(Params)") == "void cutlass::Kernel"


def test_what_has_no_counterpart_in_its_stage_is_not_replaced():
    assert match_replaced_keys([("s", "compute", "a", "k")], [("t", "compute", "a", "k")]) == {}
