"""Durations of host ops give a FLOP rate only where the host itself did the work."""

import pytest
from analyses.in_depth import report_of, rows_of, section
from chrome_builder import annotation, launch, launched, memory, op
from rules.firing import Document
from rules.traces_matmuls import shaped

QUESTIONS = ("matmuls",)
A100 = [{"id": 0, "name": "A100", "totalGlobalMem": 85_000_000_000}]

PRODUCT = shaped("aten::mm", 0, 10, [[1024, 1705], [1705, 512]], "float")
"""2 · 1024 · 1705 · 512 = 1.788 GFLOP in 10 µs: 179 TFLOP/s, which no host reaches."""


def matmuls(tmp_path, rows, **meta):
    """The section about matrix products."""
    document = Document([PRODUCT, *rows], **meta)
    return section(report_of(tmp_path, document, only=QUESTIONS), "matmuls")


@pytest.mark.parametrize(
    "rows",
    [
        [launch(2, 1)],
        [launch(2, 1, name="cuLaunchKernelEx")],
        [launch(2, 1, name="hipExtModuleLaunchKernel")],
        [launch(900, 1, name="cudaGraphLaunch")],
        [op("aten::record_stream", 20, 1)],
        [op("aten::_scaled_dot_product_efficient_attention", 20, 1)],
        [op("triton_poi_fused_add_0", 20, 1)],
        [annotation("nccl:all_reduce", 20, 30)],
        [memory(20, 4096, 4096, device_type=1)],
    ],
)
def test_a_host_that_only_queues_products_has_no_flop_rate(tmp_path, rows):
    found = matmuls(tmp_path, rows)
    (row,) = rows_of(found, "flop_rates")
    assert (row["count"], row["gflop"]) == (1, pytest.approx(1.787822))
    assert "tflop_per_s" not in row
    assert found.metrics == ()
    assert any("no FLOP rate" in caveat for caveat in found.caveats)


def test_a_listed_gpu_is_enough_to_abstain(tmp_path):
    assert matmuls(tmp_path, [], deviceProperties=A100).metrics == ()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [launch(2, 1, name="cudaDeviceSynchronize"), launch(4, 1, name="cudaGetDeviceCount")],
        [op("aten::_scaled_dot_product_flash_attention_for_cpu", 20, 1)],
        [op("aten::mkldnn_linear", 20, 1), annotation("gloo:all_reduce", 20, 30)],
        [memory(20, 4096, 4096, device_type=0)],
    ],
)
def test_a_host_that_does_the_work_has_one(tmp_path, rows):
    """1.787822 GFLOP / 10 µs."""
    (metric,) = matmuls(tmp_path, rows).metrics
    assert metric.value == pytest.approx(178.7822)
    assert "host time" in metric.label


def test_a_rank_without_gpu_rows_has_no_part_in_the_rate_of_the_others(tmp_path):
    """Rank 0: 1.787822 GFLOP in a kernel of 20 µs = 89.4 TFLOP/s; rank 1 recorded no kernel."""
    ranks = {"rank0.json": [PRODUCT, *launched("nvjet", 1, 30, 20, 1)], "rank1.json": [PRODUCT, launch(2, 1)]}
    for host_only in (ranks["rank1.json"], [PRODUCT]):
        report = report_of(tmp_path, {**ranks, "rank1.json": host_only}, only=QUESTIONS)
        (metric,) = section(report, "matmuls").metrics
        assert metric.value == pytest.approx(1.787822e9 / 20_000 / 1e3, rel=1e-6)
