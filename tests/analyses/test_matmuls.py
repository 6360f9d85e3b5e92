"""FLOP rates of matrix products, and when rules about them say nothing."""

import gzip
import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from analyses.in_depth import report_of, result_of, rows_of, section, text_of, verdicts
from chrome_builder import BACKWARD, annotation, launched, op, step, write
from rules.firing import Document
from rules.traces_matmuls import A100, attention, micro_batches, on_units, shaped, sized, update

import tracekit
from tracekit.analyses.ops import matmuls
from tracekit.analyses.ops.matmuls import _estimate_loss, measure
from tracekit.model.tables.frame import Frame, from_rows, texts

QUESTIONS = ("forward-batches", "matmuls", "modules", "operators", "shapes", "unfused")

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")


def found_by(report, rule):
    return [f for f in report.findings if f.rule == rule]


def products(*calls, kind="c10::BFloat16"):
    """mm calls of these (m, n, k, GPU µs), one after the other; GPU time None: nothing was seen on the GPU."""
    rows = []
    for number, (m, n, k, dur) in enumerate(calls, 1):
        at = 100 * number
        rows += [shaped("aten::mm", at, 10, [[m, k], [k, n]], kind)]
        rows += launched("nvjet_tst", at + 1, at + 20, dur, number) if dur is not None else []
    return rows


# FLOP rates


def test_a_rate_is_all_flops_over_all_gpu_time_of_the_calls(tmp_path):
    """2·8·16·32 = 8,192 in 2 µs, three times that in 2 µs: 32,768 FLOPs in 4,000 ns = 0.008192 TFLOP/s."""
    found = section(report_of(tmp_path, products((8, 16, 32, 2), (24, 16, 32, 2))), "matmuls")
    (row,) = rows_of(found, "flop_rates")
    assert (row["kind"], row["type"], row["count"], row["time_ns"]) == ("gemm", "BFloat16", 2, 4_000)
    assert row["tflop_per_s"] == pytest.approx(32_768 / 4_000 / 1_000)
    (metric,) = found.metrics
    assert metric.value == pytest.approx(32_768 / 4_000 / 1_000)
    assert "MFU" not in text_of(report_of(tmp_path, products((8, 16, 32, 2))))


def test_calls_whose_kernels_were_not_seen_are_in_no_rate(tmp_path):
    """Counted and in the FLOPs; 8,192 of the seen one over its 2 µs."""
    report = report_of(tmp_path, [*products((8, 16, 32, 2)), shaped("aten::mm", 900, 10, [[8, 32], [32, 16]])])  # fmt: skip
    (row,) = rows_of(section(report, "matmuls"), "flop_rates")
    assert (row["count"], row["gflop"]) == (2, pytest.approx(16_384 / 1e9))
    assert row["tflop_per_s"] == pytest.approx(8_192 / 2_000 / 1_000)


def test_work_that_overlaps_on_one_gpu_counts_once(tmp_path):
    """One call, two kernels 20-24 and 22-26 on two streams: 6 µs busy."""
    rows = [shaped("aten::mm", 0, 10, [[8, 32], [32, 16]]), *launched("nvjet", 1, 20, 4, 1)]
    rows += launched("splitKreduce", 2, 22, 4, 2, stream=9)
    (row,) = rows_of(section(report_of(tmp_path, rows), "matmuls"), "flop_rates")
    assert row["time_ns"] == 6_000


def test_sizes_and_stages_are_rows_of_their_own(tmp_path):
    rows = [step(1, 0, 1000), annotation("ref", 0, 250), annotation("actor_update", 250, 750)]
    rows += products((8, 16, 32, 2), (8, 16, 32, 3), (8, 16, 32, 4), (16, 16, 32, 5))
    found = rows_of(section(report_of(tmp_path, rows), "matmuls"), "matrix_products")
    assert sorted((r["canonical"], r["m"], r["count"], r["time_ns"]) for r in found) == [
        ("ref", 8, 2, 5_000), ("update_actor", 8, 1, 4_000), ("update_actor", 16, 1, 5_000),
    ]  # fmt: skip


def test_a_backward_product_is_the_work_of_the_stage_from_whatever_thread(tmp_path):
    rows = [step(1, 0, 1000), annotation("actor_update", 0, 900)]
    rows += [shaped("aten::mm", 100, 10, [[8, 32], [32, 16]], tid=BACKWARD)]
    rows += launched("nvjet", 101, 950, 9, 1, tid=BACKWARD)
    (row,) = rows_of(section(report_of(tmp_path, rows), "matmuls"), "matrix_products")
    assert (row["canonical"], row["time_ns"]) == ("update_actor", 9_000)


def test_on_a_host_alone_the_time_of_the_calls_counts_and_no_gpu_is_named(tmp_path):
    """8,192 FLOPs in a call of 10 µs."""
    report = report_of(tmp_path, [shaped("aten::mm", 0, 10, [[8, 32], [32, 16]], "float")], only=("shapes", "matmuls", "unfused", "forward-batches"))  # fmt: skip
    found = section(report, "matmuls")
    (row,) = rows_of(found, "flop_rates")
    assert row["tflop_per_s"] == pytest.approx(8_192 / 10_000 / 1_000)
    assert "GPU" not in repr((found.title, found.metrics, found.sheets))
    for rule in ("no-tensor-cores", "unaligned-gemm"):
        assert verdicts(report, rule) == [("not applicable", "no GPU activity was recorded")]


# When the rules abstain


def test_without_compute_capability_nothing_is_said_about_tensor_cores(tmp_path):
    report = report_of(tmp_path, list(on_units(900)))
    assert not found_by(report, "no-tensor-cores")
    for rule in ("no-tensor-cores", "unaligned-gemm"):
        assert verdicts(report, rule) == [("insufficient data", "compute capability was not recorded")]  # fmt: skip


def test_gpus_without_tensor_cores_are_not_asked_for_them(tmp_path):
    old = [{"id": 0, "name": "P100", "computeMajor": 6, "computeMinor": 0}]
    report = report_of(tmp_path, Document(list(on_units(900)), deviceProperties=old))
    assert not found_by(report, "no-tensor-cores")
    assert verdicts(report, "no-tensor-cores") == [("not applicable", "the GPUs have no tensor cores")]  # fmt: skip


@pytest.mark.parametrize("odd", [None, {}, [5, {"id": "x"}, {"computeMajor": "8"}], "A100"])
def test_properties_that_are_none_are_unknown(tmp_path, odd):
    report = report_of(tmp_path, Document(list(on_units(900)), deviceProperties=odd))
    assert verdicts(report, "no-tensor-cores")[0][0] == "insufficient data"


def test_without_shapes_only_alignment_is_left_open(tmp_path):
    report = report_of(tmp_path, on_units(900))
    assert found_by(report, "no-tensor-cores")
    reason = "input shapes were not recorded, and no kernel name decides"
    assert verdicts(report, "unaligned-gemm") == [("insufficient data", reason)]


def test_a_kernel_whose_name_says_nothing_is_not_held_against_it(tmp_path):
    rows = update(op("aten::mm", 0, 20), *launched("triton_mm_5", 1, 0, 1000, 1))
    assert not found_by(report_of(tmp_path, Document(rows, deviceProperties=A100)), "no-tensor-cores")  # fmt: skip


# R25


def test_products_without_tensor_cores_are_not_reported_twice(tmp_path):
    """An odd product on sgemm: a matter of R24 alone."""
    rows = update(shaped("aten::mm", 0, 10, [[25, 64], [64, 8]], "float"), *launched("ampere_sgemm_64x8", 1, 0, 1000, 1))  # fmt: skip
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    assert [f.rule for f in report.findings] == ["no-tensor-cores"]


def test_a_known_loss_below_one_per_cent_of_the_step_is_not_worth_a_finding(tmp_path):
    """50 of 1,000 at 25 lost in a step of 2,500: exactly 1 %; of 2,600: less."""
    for length, fires in ((2500, True), (2600, False)):
        rows = [row | {"dur": length} if row["name"] == "ProfilerStep#1" else row for row in sized(50)]  # fmt: skip
        report = report_of(tmp_path / str(length), Document(rows, deviceProperties=A100))
        assert bool(found_by(report, "unaligned-gemm")) == fires


TENSOR_KERNEL = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tensor16x8x16"
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"


def test_without_an_aligned_product_beside_it_half_of_its_time_is_taken_for_lost(tmp_path):
    """1,000 µs of 1,000 at twice the rate are 500, and the report says that this is an assumption."""
    rows = update(shaped("aten::mm", 0, 10, [[8, 64], [64, 25]]), *launched(TENSOR_KERNEL, 1, 0, 1000, 1))
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    (found,) = found_by(report, "unaligned-gemm")
    assert (found.cost_ns, found.cost_ratio) == (500_000, pytest.approx(0.5))
    assert found.places[0].name == "aten::mm 8×25×64 BFloat16"
    assert "assumed to be 2 times as fast" in found.caveats[0]


def test_an_odd_number_of_tokens_is_no_unaligned_size(tmp_path):
    """M = 577: on an H100 such products ran at 746 beside 720 TFLOP/s of aligned ones."""
    rows = update(shaped("aten::addmm", 0, 10, [[64], [577, 64], [64, 64]]), *launched(TENSOR_KERNEL, 1, 0, 1000, 1))
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    assert not found_by(report, "unaligned-gemm")


def test_the_gradient_of_a_weight_sums_over_tokens_that_are_no_row(tmp_path):
    """mm of 64 × 577 and 577 × 64: K = 577, and both factors have rows of 64."""
    rows = update(shaped("aten::mm", 0, 10, [[64, 577], [577, 64]]), *launched(TENSOR_KERNEL, 1, 0, 1000, 1))
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    assert not found_by(report, "unaligned-gemm")


@pytest.mark.parametrize(
    ("kernel", "fires"),
    [(ALIGN1, True), (ALIGN1.replace("align1", "align8"), False), ("nvjet_tst_128x8_64x4_2x1_v_bz_TNT", False)],
)
def test_a_kernel_that_says_how_it_loads_is_believed_more_than_sizes(tmp_path, kernel, fires):
    rows = update(shaped("aten::bmm", 0, 10, [[4, 25, 64], [4, 64, 25]]), *launched(kernel, 1, 0, 1000, 1))
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    assert bool(found_by(report, "unaligned-gemm")) == fires


def test_without_shapes_the_name_of_a_kernel_tells(tmp_path):
    rows = update(op("aten::bmm", 0, 20), *launched(ALIGN1, 1, 0, 1000, 1))
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    (found,) = found_by(report, "unaligned-gemm")
    assert found.cost_ns == 500_000
    assert found.places[0].name == ALIGN1


def test_tf32_is_aligned_at_four_elements(tmp_path):
    """N = 12 of 4 bytes is 48 bytes, a multiple of 16; of 2 bytes 24, which is none."""
    kernel = "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tensor16x8x8"
    for kind, fires in (("float", False), ("c10::BFloat16", True)):
        rows = update(shaped("aten::mm", 0, 10, [[8, 64], [64, 12]], kind), *launched(kernel, 1, 0, 1000, 1))
        report = report_of(tmp_path / kind[-5:], Document(rows, deviceProperties=A100))
        assert bool(found_by(report, "unaligned-gemm")) == fires


def test_convolutions_in_32_bits_count_beside_matrix_products(tmp_path):
    """300 of 1,000 in convolutions and 100 in products: 40 %, of which 7/8 could be saved."""
    rows = update(
        op("aten::cudnn_convolution", 0, 20),
        *launched("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", 1, 0, 200, 1),
        *launched("void cudnn::detail::dgrad_engine<float, 512, 6>(int)", 2, 200, 100, 2),
        *launched("volta_sgemm_128x64_nn", 3, 300, 100, 3),
        *launched("elementwise", 4, 400, 600, 4),
    )
    report = report_of(tmp_path, Document(rows, deviceProperties=A100))
    (found,) = found_by(report, "no-tensor-cores")
    expected = "convolutions (30 %) and matrix products without tensor cores"
    assert found.claim == f"40 % of the GPU work of update_actor is {expected}"
    assert found.cost_ns == 350_000
    values = {metric.name: metric.value for metric in found.evidence}
    assert (values["plain_ratio"], values["convolution_ratio"]) == (0.4, 0.3)


def test_two_ranks_are_means_not_sums(tmp_path):
    """Both ranks lose 25 µs of the same step of 1,000."""
    (found,) = found_by(report_of(tmp_path, {0: sized(50), 1: sized(50)}), "unaligned-gemm")
    assert (found.cost_ns, found.cost_ratio) == (25_000, pytest.approx(0.025))


# R27


def unfused(tmp_path, rows):
    return found_by(report_of(tmp_path, rows), "unfused-operators")


def test_what_the_products_themselves_gain_is_told_beside_what_is_between_them(tmp_path):
    """30 of 1,000 between them; the softmax reads and writes the scores as the products do: 30 more."""
    (found,) = unfused(tmp_path, attention(30))
    assert found.cost_ns == 60_000
    assert found.caveats[0] == "30.0 µs of the saving is time of the two products, which also write and read the scores"  # fmt: skip


def test_a_softmax_whose_shape_does_not_fit_is_no_attention(tmp_path):
    assert unfused(tmp_path, attention(300))
    assert not unfused(tmp_path, attention(300, softmax="aten::_log_softmax"))
    rows = attention(300)
    for row in rows:
        if row["name"] == "aten::_softmax":
            row["args"] = {"Input Dims": [[64, 8], [], []], "Input type": ["float", "Scalar", ""]}
    assert not unfused(tmp_path, rows)


def test_on_a_host_the_time_between_the_products_counts(tmp_path):
    """Products 100-200 and 500-600, softmax between them: 300 of the 1,000 of the stage."""
    rows = update(
        shaped("aten::bmm", 100, 100, [[4, 16, 8], [4, 8, 16]], "float"),
        shaped("aten::_softmax", 250, 200, [[4, 16, 16], [], []], "float"),
        shaped("aten::bmm", 500, 100, [[4, 16, 16], [4, 16, 8]], "float"),
    )
    report = report_of(tmp_path, rows)
    (found,) = found_by(report, "unfused-operators")
    assert found.claim == "30 % of update_actor is unfused attention, between its two products"  # fmt: skip
    assert (found.cost_ns, found.cost_ratio) == (300_000, 0.3)
    assert "GPU" not in repr(asdict(section(report, "unfused")))


def loss(vocabulary, copied="c10::BFloat16"):
    """GPU work of 1,000: a copy of [8, V] to 32 bits takes 10, its log-softmax 30, backward 20."""
    wide = [8, vocabulary]
    return update(
        shaped("aten::copy_", 0, 10, [wide, wide, []], ["float", copied, "Scalar"]),
        *launched("copy", 1, 0, 10, 1),
        shaped("aten::_log_softmax", 20, 10, [wide, [], []], "float"),
        *launched("softmax_forward", 21, 10, 30, 2),
        shaped("aten::_log_softmax_backward_data", 40, 10, [wide, wide, [], []], "float"),
        *launched("softmax_backward", 41, 40, 20, 3),
        op("aten::mm", 60, 10),
        *launched("nvjet", 61, 60, 940, 4),
    )


def test_a_loss_over_a_vocabulary_on_copies_is_reported_with_their_size(tmp_path):
    """60 of 1,000; 8 · 32,000 · 4 bytes."""
    (found,) = unfused(tmp_path, loss(32_000))
    assert found.claim == "6.0 % of the GPU work of update_actor is log-softmax over the vocabulary on 32-bit copies"  # fmt: skip
    assert (found.cost_ns, found.severity) == (60_000, "medium")
    assert {m.name: m.value for m in found.evidence} == {
        "unfused_ratio": pytest.approx(0.06), "calls": 2, "copied_bytes": 1_024_000,
    }  # fmt: skip


def test_few_classes_are_no_vocabulary_and_32_bit_logits_need_no_copy(tmp_path):
    assert not unfused(tmp_path, loss(8_191))
    assert not unfused(tmp_path, loss(32_000, copied="float"))


def test_without_shapes_unfused_operators_are_left_open(tmp_path):
    report = report_of(tmp_path, update(op("aten::bmm", 0, 9)))
    assert verdicts(report, "unfused-operators") == [("insufficient data", "input shapes were not recorded")]  # fmt: skip


# R18


def test_a_single_micro_batch_cannot_be_larger(tmp_path):
    assert not found_by(report_of(tmp_path, micro_batches(64, count=1)), "forward-batch-size")
    assert found_by(report_of(tmp_path, micro_batches(64, count=3)), "forward-batch-size")


def test_what_the_backward_pass_multiplies_is_not_the_batch(tmp_path):
    """Training: a forward product of 128 rows, and in backward one of 4,096 rows with more FLOPs."""
    rows = micro_batches(128)
    at = 200 * 2 + 50
    rows += [op("autograd::engine::evaluate_function: AddmmBackward0", at, 100, tid=BACKWARD)]
    rows += [shaped("aten::mm", at + 1, 90, [[4096, 128], [128, 4096]], "float", tid=BACKWARD)]
    (found,) = found_by(report_of(tmp_path, rows), "forward-batch-size")
    assert {m.name: m.value for m in found.evidence}["training_rows"] == 128


def test_without_shapes_or_micro_batches_r18_abstains(tmp_path):
    bare = [row | {"args": {}} if row["cat"] == "cpu_op" else row for row in micro_batches(128)]
    assert verdicts(report_of(tmp_path / "a", bare), "forward-batch-size") == [("insufficient data", "input shapes were not recorded")]  # fmt: skip
    only = [row for row in micro_batches(128) if row["name"] != "actor_update"]
    assert verdicts(report_of(tmp_path / "b", only), "forward-batch-size")[0][0] == "not applicable"


def test_two_forward_passes_beside_one_training_are_one_finding(tmp_path):
    """`ref` with 128 rows and `old_log_prob` with 64, both in two micro-batches; training has 128."""
    rows = [*micro_batches(128), annotation("old_log_prob", 4000, 400)]
    for number, at in enumerate((4000, 4200)):
        rows += [annotation(f"micro_batch{number}", at, 200)]
        rows += [shaped("aten::addmm", at + 1, 90, [[64], [64, 32], [32, 64]], "float")]
    (found,) = found_by(report_of(tmp_path, rows), "forward-batch-size")
    assert found.claim == "old_log_prob and ref: micro-batches of 128 rows, no larger than training's 128"  # fmt: skip
    assert [place.stage for place in found.places] == ["old_log_prob", "ref"]


# Real files


@needs_data
def test_the_flops_of_a_real_file_are_those_of_its_shapes():
    """2·M·N·K of every mm and addmm by the json module; 24 attention calls of 2·256·559·559·128 FLOPs."""
    path = Path(REAL) / "chrome/tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    expected = {"aten::mm": 0, "aten::addmm": 0}
    for row in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if row.get("name") in expected:
            first = 0 if row["name"] == "aten::mm" else 1
            a, b = row["args"]["Input Dims"][first : first + 2]
            expected[row["name"]] += 2 * a[0] * a[1] * b[1]
    report = result_of(path, ("matmuls",)).report
    rows = rows_of(section(report, "matmuls"), "matrix_products")
    for name, flops in expected.items():
        mine = [row for row in rows if row["name"] == name]
        assert sum(row["gflop"] for row in mine) * 1e9 == pytest.approx(flops)
    (one,) = [row for row in rows if row["name"] == "aten::_flash_attention_forward"]
    assert (one["count"], one["batch"], one["m"], one["k"]) == (24, 256, 559, 64)
    assert one["gflop"] * 1e9 == pytest.approx(24 * 2 * 256 * 559 * 559 * 128)
    # Below the dense rate of an H100, far above that of its other cores.
    (bf16,) = [r for r in rows_of(section(report, "matmuls"), "flop_rates") if (r["kind"], r["type"]) == ("gemm", "BFloat16")]  # fmt: skip
    assert 400 < bf16["tflop_per_s"] < 989
    assert found_by(report, "no-tensor-cores") == found_by(report, "unaligned-gemm") == []


@needs_data
def test_a_training_run_in_32_bits_on_v100_uses_no_tensor_cores():
    """ResNet-50 of 2021: `volta_sgemm`, `scudnn` and engines of gradients; compute capability 7.0."""
    folder = Path(REAL) / "chrome/kineto_tb_plugin/samples/resnet50_num_workers_4"
    (path, *_) = sorted(folder.glob("*.gz"))
    (found,) = found_by(result_of(path, ("matmuls",)).report, "no-tensor-cores")
    assert 0.2 < {m.name: m.value for m in found.evidence}["plain_ratio"] < 1
    assert "dgrad_engine<float" in found.places[0].name


@needs_data
def test_a_resnet_in_32_bits_spends_most_of_its_time_in_convolutions():
    """Of 472.45 ms of kernels 35 % convolve and 25 % multiply matrices, read from the raw rows by name."""
    (path,) = (Path(REAL) / "chrome/hta/ns_resolution_trace").glob("*.gz")
    found = found_by(result_of(path, ("matmuls",)).report, "no-tensor-cores")
    (one,) = found
    assert [place.stage for place in one.places] == ["backward", "forward"]
    values = {metric.name: metric.value for metric in one.evidence}
    assert values["convolution_ratio"] == pytest.approx(0.35, abs=0.005)
    assert values["plain_ratio"] == pytest.approx(0.60, abs=0.005)
    assert "fp16" in one.advice
    assert "bf16 or allow TF32" not in one.advice


@needs_data
@pytest.mark.parametrize(
    ("path", "size", "low", "high"),
    [
        ("google_owlv2-large-patch14-ensemble__1016001", "5185×5185×64", 0.87, 0.91),
        ("facebook_timesformer-base-finetuned-k400__1016002", "3137×3137×64", 0.79, 0.83),
    ],
)
def test_of_vision_models_attention_alone_is_unaligned_and_counts_as_unfused(path, size, low, high):
    """`align1` kernels of bmm; addmm with M = 5,185 or 25,089 runs as fast as with 5,184 or 25,088."""
    path = Path(REAL).parent / f"more/chrome/tracelens/h100/{path}.json.gz"
    result = result_of(path, ("matmuls", "unfused"))
    rows = result.measurements["matrix_products"]
    rows = rows[(rows["kind"] == "gemm") & rows["device_busy_ns"].notna()]
    narrow = rows[2 * rows["unaligned_ns"] > rows["device_busy_ns"]]
    most = narrow.loc[narrow["device_busy_ns"].idxmax()]
    assert f"{most['name']} {most['m']}×{most['n']}×{most['k']}" == f"aten::bmm {size}"
    assert low < narrow["unaligned_ns"].sum() / rows["device_busy_ns"].sum() < high
    assert narrow["attention_ns"].sum() > 0.99 * narrow["unaligned_ns"].sum()
    assert not found_by(result.report, "unaligned-gemm")
    assert found_by(result.report, "unfused-operators")


@needs_data
def test_tokens_that_are_no_multiple_of_8_cost_a_diffusion_transformer_nothing():
    """xDiT: products with M = 666 and 2; N and K are multiples of 8."""
    path = Path(REAL) / "chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz"
    assert not found_by(result_of(path, ("matmuls",)).report, "unaligned-gemm")


@needs_data
def test_unfused_attention_of_a_text_encoder_is_seen():
    """T5 without a fused kernel: 48 times softmax of 64 heads, 256 × 256; 0.4 % of the GPU work."""
    path = Path(REAL) / "chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz"
    report = result_of(path, ("unfused",)).report
    rows = {row["what"]: row for row in rows_of(section(report, "unfused"), "unfused")}
    row = rows["between the products of attention"]
    assert row["count"] == 48
    assert 0.003 < row["ratio"] < 0.006
    assert found_by(report, "unfused-operators") == []


@needs_data
def test_forward_batches_of_a_real_run_are_twice_those_of_training():
    """8 × 47 tokens against 4 × 47."""
    path = Path(REAL) / "chrome/verl_cpu/v091_contents_full/outputs/profile"
    report = result_of(path, ("forward-batches",)).report
    rows = {r["canonical"]: r for r in rows_of(section(report, "forward-batches"), "forward_batches")}
    assert {name: (row["count"], row["median"]) for name, row in rows.items()} == {
        "update_actor": (4, 188), "old_log_prob": (2, 376), "ref": (2, 376),
    }  # fmt: skip
    assert found_by(report, "forward-batch-size") == []


@needs_data
def test_runs_on_hosts_alone_name_no_gpu():
    path = Path(REAL) / "chrome/gloo_cpu/verl_like_perstep"
    report = result_of(path, ("shapes", "matmuls", "unfused", "forward-batches", "modules")).report
    assert "GPU" not in text_of(report)
    assert rows_of(section(report, "matmuls"), "flop_rates")


def test_beyond_the_cap_the_products_of_a_stage_are_one_row(tmp_path, monkeypatch):
    """2·m·16·32 FLOPs each: the two of most are rows of their own."""
    monkeypatch.setattr("tracekit.analyses.ops.matmuls.MAX_PRODUCTS", 2)
    rows = [step(1, 0, 1000), annotation("ref", 0, 270), annotation("actor_update", 270, 700)]
    rows += products(*((m, 16, 32, 2) for m in (8, 16, 64, 24, 32)))
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows)))["matrix_products"]
    found = Frame.from_columns({name: np.asarray(c, object) if isinstance(c, list) else c for name, c in found.items()})
    shown = [tuple(row.values()) for row in found.rows("stage", "m", "shape_count", "count", "flop_count")]
    assert sorted(shown, key=str) == [
        ("actor_update", 32, 1, 1, 32_768), ("actor_update", 64, 1, 1, 65_536),
        ("actor_update", None, 1, 1, 24_576), ("ref", None, 2, 2, 24_576),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("products_of_type", "busy_ns", "lost_ns", "compared_ns"),
    [
        # Aligned ones make 10 FLOPs a ns. 200 in 40 take 20 too long; 100 in 100 take 90 too long, of which 75 count.
        ([("half", 100, 1000, False), ("half", 40, 200, True), ("half", 100, 100, True)], 140, 95, 140),
        # 60 more that nothing is known of would take half.
        ([("half", 100, 1000, False), ("half", 40, 200, True)], 100, 20 + 30, 40),
        # Faster than the aligned ones: nothing is lost, and the other type does not help.
        ([("half", 100, 1000, False), ("half", 10, 200, True), ("float", 50, 50, True)], 60, 25, 10),
        # Without an aligned one that took time all is assumed.
        ([("half", 0, 1000, False), ("half", 40, 200, True)], 40, 20, 0),
        ([("half", 10, 0, False), ("half", 40, 200, True)], 40, 20, 0),
        # Less time than what was compared leaves no rest.
        ([("half", 100, 1000, False), ("half", 40, 200, True)], 30, 20, 40),
    ],
)  # fmt: skip
def test_unaligned_products_lose_what_aligned_ones_of_their_type_would_save(
    products_of_type, busy_ns, lost_ns, compared_ns
):
    type_, time, flops, is_unaligned = zip(*products_of_type, strict=True)
    columns = {"type": texts(type_), "time": np.array(time, float), "flops": np.array(flops, float)}
    sized_products = Frame.from_columns({**columns, "is_unaligned": np.array(is_unaligned)})
    loss = _estimate_loss(sized_products, busy_ns, {"most_gain": 4, "assumed_gain": 2})
    assert (loss.ns, loss.compared_ns, loss.busy_ns) == (lost_ns, compared_ns, busy_ns)


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [([80, 90], "run them in bf16"), ([70, 75], "cores of these GPUs"), ([70, 80], "cores of some of these GPUs")],
)
def test_a_type_is_advised_that_all_gpus_multiply(capabilities, words):
    assert words in matmuls._advise_type(capabilities)


NO_CORES, NO_SHAPES = "the GPUs have no tensor cores", "input shapes were not recorded, and no kernel name decides"


@pytest.mark.parametrize(
    ("capabilities", "rows", "has_products", "reasons"),
    [
        ([60, 60], [(0, "gemm")], True, {NO_CORES}), ([60, 70], [(0, "gemm")], True, set()),
        ([70], [(0, "gemm")], False, {NO_SHAPES}), ([70], [(0, "unaligned")], False, set()),
        ([70], [(None, "other")], True, {"no GPU activity was recorded"}), ([70], [(None, "gemm")], True, set()),
        ([], [(0, "gemm")], True, {"compute capability was not recorded"}),
    ],
)  # fmt: skip
def test_why_no_run_is_judged_is_said(monkeypatch, capabilities, rows, has_products, reasons):
    monkeypatch.setattr(matmuls, "_list_capabilities", lambda _: capabilities)
    classes = from_rows(("device", "class"), rows)
    measured = SimpleNamespace(frame=lambda _: classes, has=lambda _: has_products)
    found = list(matmuls._list_matmul_abstentions(measured))
    assert {verdict.reason for verdict in found} == reasons
    rules_of = {verdict.rule for verdict in found}
    assert rules_of == (
        {"unaligned-gemm"} if reasons == {NO_SHAPES} else set(matmuls.ANALYSIS.rules) if reasons else set()
    )


def test_sums_of_flops_are_exact_and_missing_where_they_might_not_fit():
    group, flops = np.array([0, 0, 1, 2]), np.array([2**61, 2**61, 5, 2**61 + 1])
    sums = matmuls._sum_exact_flops(group, flops, 3)
    assert sums.missing.tolist() == [True, False, False]
    assert sums.values[1:].tolist() == [5, 2**61 + 1]
