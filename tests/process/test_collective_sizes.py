"""How large a collective is, and which one it is by its names (M12)."""

import pandas as pd
import pytest
from process.collective_traces import found, only
from rules.traces_communication import nccl

from tracekit.process.collectives.names import ITEM_BYTES, normalize_dtype, parse_collective_op, parse_message_size


@pytest.mark.parametrize(
    ("name", "in_", "out", "size"),
    [
        ("allreduce", 100, 100, 400),
        ("_reduce_scatter_base", 100, 25, 400),
        ("_allgather_base", 25, 100, 400),
        ("broadcast", 100, 100, 400),
        ("reduce", 100, 100, 400),
        ("all_to_all", 100, 60, 400),
        ("send", 100, 100, 400),
        ("recv", 0, 100, 400),
        ("gather", 25, 100, 400),
        ("scatter", 100, 25, 400),
        ("barrier", 0, 0, 0),
    ],
)
def test_a_message_is_the_input_of_all_gather_the_output(tmp_path, name, in_, out, size):
    args = {"In msg nelems": in_, "Out msg nelems": out}
    row = only(tmp_path, nccl(name, 0, 20, 10, 1, 0, "Float", **args))
    assert row["size_bytes"] == size


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Double", 8), ("Float", 4), ("Half", 2), ("BFloat16", 2), ("Long", 8), ("Int", 4), ("Short", 2),
        ("Char", 1), ("Byte", 1), ("Bool", 1), ("Float8_e4m3fn", 1), ("Float8_e5m2", 1),
    ],
)  # fmt: skip
def test_every_type_that_is_sent_has_its_size(tmp_path, dtype, size):
    row = only(tmp_path, nccl("allreduce", 0, 20, 10, 1, 3, dtype))
    assert (row["size_bytes"], row["dtype"]) == (3 * size, normalize_dtype(dtype))
    assert row["dtype"] in ITEM_BYTES


def test_an_unknown_type_has_no_known_size(tmp_path):
    row = only(tmp_path, nccl("allreduce", 0, 20, 10, 1, 3, "Mine"))
    assert pd.isna(row["size_bytes"])
    assert row["dtype"] == "Mine"


@pytest.mark.parametrize(
    ("nelems", "splits", "size"),
    [
        (100, "[]", 400),
        (100, "[2, 3]", 400),  # rows of twenty elements
        (5, "[2, 3]", 20),
        (0, "[2, 3]", 20),
        (None, "[2, 3]", 20),
        (0, "[]", 0),
    ],
)
def test_uneven_exchanges_count_split_sizes_where_elements_are_not_told(tmp_path, nelems, splits, size):
    args = {"In msg nelems": nelems, "In split size": splits}
    assert only(tmp_path, nccl("all_to_allv", 0, 20, 10, 1, 0, "Float", **args))["size_bytes"] == size


@pytest.mark.parametrize(("nelems", "size"), [("100", 400), (-1, None), ("many", None), (1.5, None), (2**62, None)])
def test_numbers_may_be_quoted_and_what_cannot_be_a_size_is_unknown(tmp_path, nelems, size):
    rows = [
        *nccl("allreduce", 0, 20, 10, 1, nelems, "Float"),
        *nccl("allreduce", 1, 20, 10, 2, "x" if isinstance(nelems, str) else 7, "Float"),
    ]
    sizes = found(tmp_path, rows).rows.frame()["size_bytes"]
    assert (None if sizes.isna()[0] else sizes[0]) == size


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        ("[[3, 4]]", '["float"]', (48, "float32")),
        ("[[3], [5]]", '["c10::BFloat16", "c10::BFloat16"]', (16, "bfloat16")),
        ("[[]]", '["double"]', (8, "float64")),
        ("[[3], []]", '["long int", "Scalar"]', (24, "int64")),
        ("[[0]]", '["int"]', (0, "int32")),
        ("[[]]", '["TensorList"]', None),
        ("[[3]]", "[]", None),
        ("[[-1]]", '["int"]', None),
        ("[[true]]", '["int"]', None),
        ('["x"]', '["int"]', None),
        ("[[1152921504606846976, 2]]", '["int"]', None),
        ("no", '["int"]', None),
        ("[]", "[]", None),
    ],
)
def test_bytes_of_recorded_shapes(dims, types, expected):
    assert parse_message_size(dims, types) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce", "all_reduce"), ("allreduce_coalesced", "all_reduce"), ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"), ("ALLGATHER_coalesced", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"), ("_broadcast_oop", "broadcast"), ("c10d::recv_any_source_", "recv"),
        ("hcom_allReduce_", "all_reduce"), ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "other"), ("ncclDevKernel_Reduce_Sum_f32", "reduce"),
        ("void vllm::cross_device_reduce_2stage<8>", "all_reduce"), ("deep_ep::intranode::dispatch", "other"),
        ("(anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"), ("", "other"),
    ],
)  # fmt: skip
def test_names_tell_the_operation(name, expected):
    assert parse_collective_op(name) == expected
