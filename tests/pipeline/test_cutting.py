"""Cuts: the smallest trace that still shows a finding, without the names of the user."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import nsys_builder
import numpy as np
import pytest
from chrome_builder import annotation, kernel, launched, op, step, write
from chrome_validator import count_trace_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import REAL

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.pipeline.options import Options
from tracekit.pipeline.timeline.cutting.chrome import scan_for_cut, write_cut_pieces
from tracekit.pipeline.timeline.cutting.groups import drop_groups
from tracekit.pipeline.timeline.cutting.names import Placeholders
from tracekit.pipeline.timeline.cutting.nsys import write_cut_export
from tracekit.pipeline.timeline.cutting.reduction import leave_out_groups
from tracekit.pipeline.timeline.cutting.search import cut_profile
from tracekit.pipeline.timeline.cutting.vocabulary import is_public_name
from tracekit.pipeline.timeline.time_ranges import parse_time_range
from tracekit.process.ops.kernel_names import (
    classify_matrix_unit,
    is_always_wide_kernel,
    is_gemm_kernel,
    is_plain_convolution,
    is_split_k_reduction,
    parse_loaded_elements,
)
from tracekit.process.ops.pointwise import is_pointwise_kernel

QUICK = Options(jobs=1, cache=False)
EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated_gpu"
SECRETS = (
    *(
        "my_reward_model",
        "my_user_module",
        "secret_kernel",
        "SecretFunction",
        "SecretNet",
        "secret_host",
        "secret_group",
    ),
    *("/home/secret/train.py", "secret_annotation", "secret_process", "secret_thread", "secret_label", "secret_key"),
)


def read_rows(path):
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    found = json.loads(text)
    return found, found["traceEvents"]


def write_private(folder):
    """A trace of two steps with names of the user in every place that can have one."""
    rows = []
    for number in (1, 2):
        at = 1000 * number
        rows += [
            step(number, at, 1000),
            annotation("secret_annotation", at + 10, 300),
            annotation("update_actor", at + 400, 500),
            op("aten::mm", at + 20, 50, **{"Call stack": "/home/secret/train.py(3)", "secret_key": "my_user_module"}),
            op("autograd::engine::evaluate_function: SecretFunctionBackward", at + 80, 30),
            op("my_reward_model::forward", at + 120, 30, **{"Process Group Name": "secret_group"}),
            op("/home/secret/train.py(12): my_reward_model", at + 5, 990) | {"cat": "python_function"},
            op("nn.Module: SecretNet_0", at + 6, 900) | {"cat": "python_function"},
            *launched("void secret_kernel<at::Half>(float*)", at + 130, at + 140, 40, 10 * number),
            *launched("void at::native::vectorized_elementwise_kernel<4>(int)", at + 410, at + 430, 40, 10 * number + 1),
            *launched("ncclDevKernel_AllReduce_Sum_f32", at + 500, at + 520, 90, 10 * number + 2),
        ]  # fmt: skip
    for name, value in (("process_name", "secret_process"), ("thread_name", "secret_thread"), ("process_labels", "secret_label")):  # fmt: skip
        key = "labels" if name == "process_labels" else "name"
        rows.append({"ph": "M", "name": name, "pid": 100, "tid": 100, "args": {key: value}})
    write(
        folder / "in.json", rows, rank=0, world_size=1, host_name="secret_host", traceName="/home/secret/train.py",
        secret_key={"path": "/home/secret"},
    )  # fmt: skip
    return folder / "in.json"


# Names


@pytest.mark.parametrize(
    ("name", "is_device"),
    [
        ("aten::mm", False), ("cudaLaunchKernel", False), ("nccl:all_reduce", False), ("ProfilerStep#12", False),
        ("update_actor", False), ("Optimizer.step#AdamW.step", False), ("nn.Module: Linear_3", False),
        ("autograd::engine::evaluate_function: AddmmBackward0", False), ("Memcpy HtoD (Pageable -> Device)", True),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", True), ("ncclDevKernel_AllReduce_Sum_f32", True),
        ("ampere_sgemm_128x64_tn", True), ("triton_poi_fused_add_mul_0", True),
    ],
)  # fmt: skip
def test_public_names_stay(name, is_device):
    assert is_public_name(name, is_device=is_device)


@pytest.mark.parametrize(
    ("name", "is_device"),
    [
        ("my_op::aten::mm", False), ("train.py(3): loss", False), ("nn.Module: SecretNet_0", False), ("cuda", False),
        ("autograd::engine::evaluate_function: SecretFunctionBackward", False), ("Optimizer.step#SecretAdam.step", False),
        ("void secret<at::Half>(float*)", True), ("my_nccl_kernel", True), ("triton_secret", True), ("aten::mm secret", False),
    ],
)  # fmt: skip
def test_private_names_do_not(name, is_device):
    assert not is_public_name(name, is_device=is_device)


PRIVATE_PLACES = (
    "void at::native::elementwise_kernel<{0}>(float)", "void at::native::{0}<4>(int)", "{0}::add<float>(int)",
    "void at::native::{0}elementwise_kernel<4>(int)", "void at::native::elementwise_kernel{0}<4>(int)",
    "void at::native::elementwise_{0}_kernel<4>(int)", "triton_poi_fused_{0}", "triton_poi_fused_add_{0}_mul_0",
    "triton_poi_{0}_add", "{0}Backward0", "Add{0}Backward0", "autograd::engine::evaluate_function: {0}Backward0",
    "cu{0}", "cuda{0}", "cudaLaunch{0}", "cudaLaunchKernel{0}", "hip{0}", "cublas{0}", "cudnnCreate{0}", "nccl{0}",
    "ncclAllReduce{0}", "gloo:{0}", "nccl:all_reduce_{0}", "c10d::{0}", "aten::{0}", "aten::mm.{0}", "aten::add_{0}",
    "ampere_sgemm_{0}_tn", "cutlass_80_{0}_s1688gemm_tn_align4", "Cijk_{0}", "nvjet_{0}", "sm80_{0}", "Memcpy HtoD ({0})",
    "ncclDevKernel_AllReduce_{0}", "ncclDevKernel_{0}", "Optimizer.step#{0}.step", "nn.Module: {0}_0", "ProfilerStep#1{0}",
    "enumerate(DataLoader)#{0}.__next__", "## {0} ##", "## Call CompiledFxGraph {0} ##", "update_actor{0}", "stream {0}",
    "torch::autograd::{0}", "execute_context_1({0})_generation_0(0)", "step[{0} bs=3]", "{0}", "_ZN2at6native{0}E",
    "FSDP::{0}", "void cub::DeviceScanKernel<cub::{0}>(int)", "(anonymous namespace)::{0}", "add {0}", "{0} add", "step {0}",
)  # fmt: skip


@pytest.mark.parametrize("place", PRIVATE_PLACES)
@given(word=st.from_regex(r"[QZqz]q[a-zA-Z]{4,12}", fullmatch=True), is_device=st.booleans())
def test_no_private_word_survives_at_any_place_of_a_name(place, word, is_device):
    for kind in ("kernel", "function", "annotation", "event", "thread"):
        replaced = Placeholders().replace(place.format(word), kind, is_device=is_device)
        assert word.lower() not in replaced.lower()


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::elementwise_kernel<SecretFunctor>(float)", "triton_poi_fused_secret_reward", "SecretLossBackward0",
        "cuSecretThing", "gloo:secret_op", "void cutlass::Kernel<reward_gemm>()", "triton_poi_fused_loss_v2_0", "cuRewardEvent",
    ],
)  # fmt: skip
def test_names_with_a_public_beginning_are_replaced(name):
    assert not is_public_name(name, is_device=True)


@pytest.mark.parametrize(
    "name",
    [
        "void secret::sgemm_reward_tensorop_align2<int>()", "secret_bf16_gemm", "volta_scudnn_128x64_secret", "splitKreduce_secret",
        "nvjet_secret_tst", "void secret::elementwise_kernel<reward>(int)", "secret_simt_sgemm", "secret_kernel",
    ],
)  # fmt: skip
def test_the_placeholder_of_a_kernel_keeps_its_class_of_work(name):
    replaced = Placeholders().replace(name, "kernel", is_device=True)
    assert "secret" not in replaced
    for classify in (
        classify_matrix_unit,
        is_gemm_kernel,
        is_plain_convolution,
        is_split_k_reduction,
        is_pointwise_kernel,
    ):
        assert classify(replaced) == classify(name)
    if is_gemm_kernel(name):
        assert parse_loaded_elements(replaced) == parse_loaded_elements(name)
        assert is_always_wide_kernel(replaced) == is_always_wide_kernel(name)


def test_placeholders_are_stable_and_keep_the_kind():
    names = Placeholders()
    assert names.replace("loss", "function") == "function_1"
    assert names.replace("reward_v2", "function") == "function_2"
    assert names.replace("loss", "function") == "function_1"
    assert names.replace("nn.Module: SecretNet_0", "function") == "nn.Module: function_3"
    assert names.replace("my_nccl_kernel", "kernel", is_device=True) == "nccl_kernel_1"
    assert names.replace("## secret ##", "annotation") == "## annotation_1 ##"
    assert names.replace("aten::mm", "op") == "aten::mm"


@given(st.text(min_size=1, max_size=30))
def test_a_placeholder_has_nothing_of_the_name(text):
    secret = f"zq{text}"
    replaced = Placeholders().replace(secret, "function")
    assert replaced == "function_1" or replaced.startswith("step ")


# Chrome traces


def test_no_name_of_the_user_is_left(tmp_path):
    path = write_private(tmp_path)
    before = path.read_bytes()
    target = tmp_path / "out.json"
    result = cut_profile(path, target, time_range=parse_time_range("0:1s"), anonymize=True, options=QUICK)
    text = target.read_text()
    for secret in SECRETS:
        assert secret in before.decode()
        assert secret not in text
    assert path.read_bytes() == before
    assert result.renamed_count >= 5
    _, rows = read_rows(target)
    names = [row["name"] for row in rows if row["ph"] == "X"]
    assert {"aten::mm", "update_actor", "ncclDevKernel_AllReduce_Sum_f32", "ProfilerStep#1"} <= set(names)
    # Everything else is what was recorded.
    assert len(rows) == len(json.loads(before)["traceEvents"])
    plain, hidden = tracekit.load(path), tracekit.load(target)
    for table, columns in (("device_ops", ["ts_ns", "dur_ns", "correlation"]), ("host_ops", ["ts_ns", "dur_ns"])):
        recorded, written = (sorted(map(tuple, trace[table][columns].to_numpy().tolist())) for trace in (plain, hidden))
        assert recorded == written


def test_a_step_keeps_its_rows_and_the_kernels_that_it_launched(tmp_path):
    rows = [
        op("train", 0, 500), step(1, 0, 100), *launched("late", 90, 120, 10, 1), step(2, 100, 100),
        *launched("own", 110, 150, 10, 2), step(3, 200, 100), *launched("after", 210, 220, 10, 3),
    ]  # fmt: skip
    write(tmp_path / "in.json", rows, rank=0, world_size=1)
    cut_profile(tmp_path / "in.json", tmp_path / "out.json", time_range=parse_time_range("step 2"), options=QUICK)
    _, drawn = read_rows(tmp_path / "out.json")
    times = {row["name"]: (row["ts"], row["dur"]) for row in drawn if row["ph"] == "X" and row["cat"] != "cuda_runtime"}
    assert times == {"train": (100, 100), "ProfilerStep#2": (100, 100), "late": (120, 10), "own": (150, 10)}
    assert sorted(row["args"]["correlation"] for row in drawn if row.get("cat") == "cuda_runtime") == [1, 2]


def test_the_cut_shows_the_finding_and_is_smaller(tmp_path):
    source = min(EXAMPLE.rglob("*.json.gz"))
    finding = tracekit.analyze(source, jobs=1).findings[0]
    result = cut_profile(source, tmp_path / "small.json.gz", finding="1", options=QUICK)
    assert result.finding.rule == finding.rule
    assert result.after_bytes == (tmp_path / "small.json.gz").stat().st_size < result.before_bytes
    assert finding.rule in [found.rule for found in tracekit.analyze(tmp_path / "small.json.gz", jobs=1).findings]
    again = cut_profile(source, tmp_path / "again.json.gz", finding=finding.rule, options=QUICK)
    assert (tmp_path / "again.json.gz").read_bytes() == (tmp_path / "small.json.gz").read_bytes()
    assert again.kept == result.kept


def test_targets_that_would_lose_something_are_refused(tmp_path):
    path = write_private(tmp_path)
    wanted = parse_time_range("0:1s")
    with pytest.raises(TracekitError, match="one of the files to be read"):
        cut_profile(path, path, time_range=wanted, options=QUICK)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(TracekitError, match="not empty"):
        cut_profile(path, tmp_path / "full", time_range=wanted, options=QUICK)
    (tmp_path / "note.txt").touch()
    with pytest.raises(TracekitError, match="neither a folder nor"):
        cut_profile(path, tmp_path / "note.txt", time_range=wanted, options=QUICK)
    with pytest.raises(TracekitError, match="no finding 'nothing'"):
        cut_profile(path, tmp_path / "out.json", finding="nothing", options=QUICK)
    with pytest.raises(TracekitError, match="no such step"):
        cut_profile(path, tmp_path / "out.json", time_range=parse_time_range("step 9"), options=QUICK)


def test_a_snapshot_is_refused_with_advice(tmp_path):
    snapshot = min((Path(__file__).parents[1] / "data").rglob("snapshot.pickle"))
    with pytest.raises(TracekitError, match="no trace to cut") as error:
        cut_profile(snapshot, tmp_path / "out.json", finding="1", options=QUICK)
    assert "whole" in error.value.hint


def test_a_range_needs_a_folder_for_several_ranks(tmp_path):
    for rank in (0, 1):
        write(tmp_path / "in" / f"rank{rank}.json", [step(1, 0, 100), kernel("k", 10, 20)], rank=rank, world_size=2)
    wanted = parse_time_range("step 1")
    with pytest.raises(TracekitError, match="one file for 2 traces"):
        cut_profile(tmp_path / "in", tmp_path / "out.json", time_range=wanted, options=QUICK)
    result = cut_profile(tmp_path / "in", tmp_path / "out", time_range=wanted, options=QUICK)
    assert sorted(path.name for path in result.files) == ["rank0.json.gz", "rank1.json.gz"]
    assert [trace.source.rank for trace in tracekit.load_all(tmp_path / "out")] == [0, 1]


def list_text_places(value, path=()):
    """Paths of all texts and keys of a document; a key has None behind it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key, None)
            yield from list_text_places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from list_text_places(inner, (*path, number))
    elif isinstance(value, str):
        yield path


def plant(document, path, change):
    """Change the text or key at a path."""
    is_key = path[-1] is None
    *outer, last = path[:-1] if is_key else path
    for part in outer:
        document = document[part]
    if is_key:
        document[change(last)] = document.pop(last)
    else:
        document[last] = change(document[last])


SECRET_FORMS = ("{0}", "{1}{0}", "{0}{1}", "{1} {0}", "{1}/{0}.py", "{1}::{0}")
secrets = st.from_regex(r"[QZqz]q[a-zA-Z]{4,12}", fullmatch=True)


def make_document_with_texts_everywhere(path):
    """A trace with texts in every field of rows and of the head that Kineto writes."""
    document = json.loads(write_private(path).read_bytes())
    document |= {
        "schemaVersion": 1, "displayTimeUnit": "ms", "trace_id": "A1B2", "traceName": "/home/secret/trace.json",
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "host": "node7"}],
        "distributedInfo": {
            "backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "2.21.5",
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [0, 1], "pg_size": 2}],
        },
    }  # fmt: skip
    document["traceEvents"] += [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": "stream 7", "ts": 1300, "dur": 5,
         "args": {"device": 0, "stream": 7, "correlation": 77, "Collective name": "allreduce", "dtype": "BFloat16",
                  "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
                  "kernel_file": "/tmp/x.py", "kernel_kwargs": "BLOCK=3", "grid": [1, 2, 3], "custom": {"deep": ["text"]}}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 100, "tid": 100, "ts": 1310, "dur": 5,
         "args": {"Input type": ["float", "Scalar"], "Input Dims": [[1], []], "Concrete Inputs": ["", "sum"], "Module Hierarchy": "Net"}},
        {"ph": "s", "id": "0x1", "pid": 100, "tid": 100, "ts": 1310, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "i", "s": "t", "name": "Record Window End", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 1500},
        {"ph": "C", "name": "GPU memory", "pid": 0, "tid": 0, "ts": 1500, "args": {"bytes": 5, "label": "text"}},
    ]  # fmt: skip
    return document


def anonymize_whole(path):
    """The text of an anonymized cut with every row of a trace."""
    trace = scan_for_cut(path)
    kept = np.ones(len(trace), np.bool_)
    return "".join(write_cut_pieces(trace, kept, (-(2**61), 2**61), "full", (), Placeholders()))


def test_a_secret_in_any_text_of_a_trace_does_not_survive(tmp_path):
    plain = make_document_with_texts_everywhere(tmp_path)
    places = list(list_text_places(plain))
    assert len(places) > 300

    @given(place=st.sampled_from(places), form=st.sampled_from(SECRET_FORMS), secret=secrets)
    @settings(max_examples=300, deadline=None)
    def check(place, form, secret):
        document = json.loads(json.dumps(plain))
        plant(document, place, lambda text: form.format(secret, text))
        (tmp_path / "planted.json").write_text(json.dumps(document))
        try:
            text = anonymize_whole(tmp_path / "planted.json")
        except TracekitError:
            return  # Without its array of events, or with a text for a time, it is not a trace.
        assert secret.lower() not in text.lower()

    check()


def check_chrome_format(document):
    """Check the rules of the Chrome trace format that viewers rely on."""
    ends = {"s": set(), "f": set()}
    for row in document["traceEvents"]:
        assert isinstance(row["name"], str)
        assert isinstance(row["pid"], int | str)
        assert row["ph"] in set("XBEiIsftCM")
        if row["ph"] != "M":
            assert isinstance(row["ts"], int | float)
        if row["ph"] == "X":
            assert row["dur"] >= 0
        if row["ph"] in ends:
            ends[row["ph"]].add((row["cat"], row["id"]))
    assert ends["s"] == ends["f"]


@pytest.mark.parametrize("asked", ["step 2", "0:1s", "1100us:1450us", "5us:35us"])
@pytest.mark.parametrize("anonymize", [False, True])
def test_a_cut_is_a_valid_chrome_trace(tmp_path, asked, anonymize):
    _, rows = read_rows(write_private(tmp_path))
    flow = {"cat": "ac2g", "name": "ac2g", "pid": 100, "tid": 100}
    for number, (begin, end) in enumerate(((1010, 1030), (1020, 1800), (2100, 2110), (1900, 2300))):
        rows += [flow | {"ph": "s", "id": number, "ts": begin}, flow | {"ph": "f", "bp": "e", "id": number, "ts": end}]
    path = write(tmp_path / "flows.json", rows, rank=0, world_size=1)
    cut_profile(path, tmp_path / "out.json", time_range=parse_time_range(asked), anonymize=anonymize, options=QUICK)
    check_chrome_format(read_rows(tmp_path / "out.json")[0])
    flows = {row["id"] for row in read_rows(tmp_path / "out.json")[1] if row["ph"] == "s"}
    if not anonymize:
        assert flows == {"step 2": {2}, "0:1s": {0, 1, 2, 3}, "1100us:1450us": {2}, "5us:35us": {0}}[asked]


# Reduction


@given(st.sets(st.integers(0, 30)), st.integers(1, 31), st.integers(0, 200))
def test_groups_are_left_out_only_if_the_finding_stays(needed, width, most_tries):
    groups = [("name", str(number)) for number in range(31)]
    blocks = [groups[low : low + width] for low in range(0, 31, width)]
    calls = []

    def is_shown(left_out):
        calls.append(left_out)
        return not left_out & {("name", str(number)) for number in needed}

    left_out, tries = leave_out_groups(blocks, is_shown, most_tries=most_tries)
    assert tries == len(calls) <= most_tries
    assert is_shown(left_out)
    if most_tries == 200:
        assert left_out == set(groups) - {("name", str(number)) for number in needed}


def test_a_reduction_stops_when_it_is_enough():
    tried = []
    leave_out_groups([[("name", "a")], [("name", "b")]], lambda out: tried.append(out) or True, most_tries=9, is_enough=lambda: bool(tried))  # fmt: skip
    assert tried == [{("name", "a")}]


@pytest.mark.parametrize(
    ("left_out", "names"),
    [
        ((), ["aten::mm", "aten::copy_", "cudaLaunchKernel", "k", "cudaLaunchKernel", "other", "cudaEventQuery"]),
        ((("name", "k"),), ["aten::mm", "aten::copy_", "cudaLaunchKernel", "other", "cudaEventQuery"]),
        ((("rows", "calls without a device op"),), ["aten::mm", "aten::copy_", "cudaLaunchKernel", "k", "cudaLaunchKernel", "other"]),
        ((("rows", "nested operators"),), ["aten::mm", "cudaLaunchKernel", "k", "cudaLaunchKernel", "other", "cudaEventQuery"]),
        ((("class", "kernel"),), ["aten::mm", "aten::copy_", "cudaEventQuery"]),
        ((("class", "op"), ("class", "runtime")), ["k", "other"]),
    ],
)  # fmt: skip
def test_a_group_leaves_with_the_calls_that_launched_it(tmp_path, left_out, names):
    query = launched("none", 95, 97, 1, 3)[0] | {"name": "cudaEventQuery"}
    rows = [op("aten::mm", 0, 50), op("aten::copy_", 10, 5), *launched("k", 60, 70, 5, 1), *launched("other", 80, 90, 5, 2), query]  # fmt: skip
    trace = scan_for_cut(write(tmp_path / "in.json", rows, rank=0, world_size=1))
    kept = drop_groups(trace, np.ones(len(trace), np.bool_) & ~trace.is_of("meta"), frozenset(left_out))
    assert sorted(trace.scan.name.values[code] for code in trace.scan.name.codes[kept]) == sorted(names)


def test_rows_that_the_rule_does_not_read_are_left_out(tmp_path):
    source = min(EXAMPLE.rglob("*.json.gz"))
    cut_profile(source, tmp_path / "small.json.gz", finding="1", options=QUICK)
    _, rows = read_rows(tmp_path / "small.json.gz")
    launches = {row["args"]["correlation"] for row in rows if row.get("cat") == "cuda_runtime"}
    devices = {row["args"]["correlation"] for row in rows if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")}
    assert launches <= devices
    assert {key for row in rows for key in row.get("args", {})} < {
        key for row in read_rows(source)[1] for key in row.get("args", {})
    }


# Exports of nsys


def write_private_export(path):
    """An export of two iterations with names of the user in every place that can have one."""
    rows = [nsys_builder.gpu(), nsys_builder.process("secret_process"), nsys_builder.thread("secret_thread")]
    rows += [nsys_builder.variable("SECRET_PATH", "/home/secret"), nsys_builder.diagnostic("secret_diagnostic", at=3)]
    for at in (0, 100_000):
        rows += nsys_builder.launched("secret_kernel", at + 1_000, at + 5_000, at + 9_000, at + 1)
        rows += nsys_builder.launched("ncclDevKernel_AllReduce_Sum", at + 10_000, at + 15_000, at + 19_000, at + 2)
        rows.append(nsys_builder.nvtx("secret_annotation", at, at + 50_000))
        rows.append(nsys_builder.nvtx("update_actor", at, at + 40_000, registered=True))
    rows.append(nsys_builder.nvtx("secret_whole_run", 0, 200_000, registered=True))
    return nsys_builder.write(path, rows, host="secret_host")


def read_table(path, sql):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_a_cut_export_has_the_rows_of_its_window(tmp_path):
    path = write_private_export(tmp_path / "in.sqlite")
    before = path.read_bytes()
    cut_profile(path, tmp_path / "out.sqlite", time_range=parse_time_range("90us:170us"), options=QUICK)
    assert path.read_bytes() == before
    kernels = read_table(tmp_path / "out.sqlite", "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start")
    assert kernels == [(105_000, 109_000), (115_000, 119_000)]
    ranges = read_table(tmp_path / "out.sqlite", "SELECT start, end FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY end")
    assert ranges == [(100_000, 140_000), (100_000, 150_000), (90_000, 170_000)]
    trace = tracekit.load(tmp_path / "out.sqlite")
    assert trace["device_ops"]["name"].tolist() == ["secret_kernel", "ncclDevKernel_AllReduce_Sum"]


def test_ranges_around_a_cut_export_end_with_the_window_or_the_last_range_of_their_thread(tmp_path):
    # The window is 100–200 µs. A range of the first thread that begins in it lasts until 800 µs.
    rows = [
        nsys_builder.gpu(), nsys_builder.nvtx("outer", 0, 900_000), nsys_builder.nvtx("inner", 190_000, 800_000),
        nsys_builder.nvtx("short", 120_000, 130_000), nsys_builder.nvtx("other", 50_000, 700_000, tid=nsys_builder.TID + 1),
    ]  # fmt: skip
    path = nsys_builder.write(tmp_path / "in.sqlite", rows)
    cut_profile(path, tmp_path / "out.sqlite", time_range=parse_time_range("100us:200us"), options=QUICK)
    ranges = read_table(tmp_path / "out.sqlite", "SELECT start, end FROM NVTX_EVENTS WHERE eventType = 59")
    assert sorted(ranges) == [(100_000, 200_000), (100_000, 800_000), (120_000, 130_000), (190_000, 800_000)]


def test_no_name_of_the_user_is_left_in_an_export(tmp_path):
    path = write_private_export(tmp_path / "in.sqlite")
    target = tmp_path / "out.sqlite"
    cut_profile(path, target, time_range=parse_time_range("0:1s"), anonymize=True, options=QUICK)
    for secret in (b"secret", b"SECRET"):
        assert secret in path.read_bytes()
        assert secret not in target.read_bytes()
    trace = tracekit.load(target)
    assert trace["device_ops"]["name"].tolist() == ["kernel_1", "ncclDevKernel_AllReduce_Sum"] * 2
    assert {"update_actor", "annotation_1"} <= set(trace["host_ops"]["name"])


def test_a_secret_in_any_text_of_an_export_does_not_survive(tmp_path):
    plain = write_private_export(tmp_path / "plain.sqlite")
    tables = [name for (name,) in read_table(plain, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    places = []
    for table in tables:
        for _, column, kind, *_ in read_table(plain, f"PRAGMA table_info('{table}')"):
            texts = read_table(plain, f'SELECT rowid FROM "{table}" WHERE typeof("{column}") = \'text\'')
            places += [(table, column, rowid) for (rowid,) in texts]
            if "TEXT" in kind.upper() and not texts:
                places.append((table, column, None))
    assert {"StringIds", "PROCESSES", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV"} <= {table for table, *_ in places}

    @given(place=st.sampled_from(places), form=st.sampled_from(SECRET_FORMS), secret=secrets)
    @settings(max_examples=150, deadline=None)
    def check(place, form, secret):
        table, column, rowid = place
        planted, target = tmp_path / "planted.sqlite", tmp_path / "anonymous.sqlite"
        planted.write_bytes(plain.read_bytes())
        with closing(sqlite3.connect(planted)) as connection:
            where = "" if rowid is None else f"WHERE rowid = {rowid}"
            old = connection.execute(f'SELECT "{column}" FROM "{table}" {where}').fetchone()
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = ? {where}', [form.format(secret, (old and old[0]) or "")]
            )
            connection.commit()
        try:
            write_cut_export(planted, target, 0, 2**62, "full", Placeholders())
        except TracekitError:
            return  # The facts of the export itself, such as its version, must be readable.
        assert secret.lower().encode() not in target.read_bytes().lower()

    check()


# Real profiles


REAL_CUTS = (
    ("chrome/gloo_cpu/straggler/rank2.pt.trace.json.gz", "unfused-optimizer"),
    ("chrome/hta/negative_queue_length_values_check/rank0.json.gz", "low-gpu-utilization"),
    ("chrome/hta/negative_queue_length_values_check/rank0.json.gz", "exposed-communication"),
    (
        "chrome/kineto_tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        "data-loader-wait",
    ),
    ("chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz", "host-silence"),
    ("chrome/hta/trace_diff/control/control.json.gz", "launch-bound"),
    ("chrome/hta/negative_queue_length_values_check/rank0.json.gz", "unaligned-gemm"),
)
REAL_EXPORTS = (
    "nsys/frasertajima_WeatherBench2/report1.sqlite",
    "../more/nsys/flameox/nsight-2025.5.2.sqlite",
)

MOST_SHARE = 0.05
WORD = re.compile(r"[a-z]{5,}|[A-Z][a-z]{4,}|[A-Z]{5,}")

SHARED_WORDS = frozenset(
    [
        "actor",
        "adagrad",
        "array",
        "autograd",
        "backend",
        "backward",
        "batch",
        "batchnorm",
        "block",
        "broadcast",
        "compute",
        "config",
        "count",
        "dataloader",
        "device",
        "display",
        "distributed",
        "embedding",
        "enumerate",
        "event",
        "float",
        "forward",
        "gather",
        "global",
        "grads",
        "index",
        "indices",
        "launch",
        "layer",
        "lengths",
        "loader",
        "module",
        "multi",
        "names",
        "optim",
        "optimizer",
        "parallel",
        "permute",
        "pooled",
        "process",
        "processing",
        "processor",
        "profile",
        "profiler",
        "ranks",
        "record",
        "reduce",
        "runtime",
        "scatter",
        "shape",
        "split",
        "stack",
        "stream",
        "tensor",
        "tensors",
        "thread",
        "torch",
        "trace",
        "update",
        "version",
        "weights",
        "world",
    ]
)
"""Words that private texts of these traces share with public ones in the cuts; literal.

They come from keys of the format (`distributedInfo`, `totalGlobalMem`, `record_shapes`), names of torch (`enumerate(DataLoader)`,
`Optimizer.zero_grad#Adagrad.zero_grad`, `aten::gather`), kernels of libraries (`permute_pooled_embs_kernel`) and stages (`update_actor`).
"""

SYSTEM_WORDS = frozenset(
    [
        "addre",
        "async",
        "close",
        "cupti",
        "event",
        "global",
        "launch",
        "migration",
        "module",
        "runtime",
        "socket",
        "sqlite",
        "stream",
        "thread",
    ]
)
"""Words of tables, columns and calls of the system that the names of processes and threads contain too; literal."""


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize(("name", "rule"), REAL_CUTS)
def test_cuts_of_real_profiles_are_small_and_anonymous(tmp_path, name, rule):
    source = Path(REAL) / name
    target = tmp_path / "small.json.gz"
    result = cut_profile(source, target, finding=rule, anonymize=True, options=QUICK)
    assert result.finding.rule == rule
    assert result.share <= MOST_SHARE
    assert not count_trace_problems(target) - count_trace_problems(source)
    private = list_private_words(json.loads(gzip.decompress(source.read_bytes()))) - SHARED_WORDS
    left = gzip.decompress(target.read_bytes()).decode().lower()
    assert private
    assert [word for word in sorted(private) if word in left] == []


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_a_cut_of_a_trace_of_one_long_step_is_small(tmp_path):
    """Its one stage launches 8,042 kernels: only fewer names of kernels make the cut small."""
    source = Path(REAL) / "chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz"
    result = cut_profile(source, tmp_path / "small.json.gz", finding="launch-bound", anonymize=True, options=QUICK)
    assert result.finding.rule == "launch-bound"
    assert result.share <= MOST_SHARE
    assert not count_trace_problems(tmp_path / "small.json.gz") - count_trace_problems(source)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize("name", REAL_EXPORTS)
def test_cuts_of_real_exports_show_their_finding_and_are_anonymous(tmp_path, name):
    source = Path(REAL) / name
    target = tmp_path / "small.sqlite"
    result = cut_profile(source, target, finding="start-up", anonymize=True, options=QUICK)
    assert result.finding.rule == "start-up"
    assert result.share <= MOST_SHARE
    private = list_private_words_of_export(source) - SYSTEM_WORDS
    left = target.read_bytes().decode("latin-1").lower()
    assert private
    assert [word for word in sorted(private) if word in left] == []


def split_words(texts):
    """The words of at least five letters, in lower case."""
    return {word.lower() for text in texts for word in WORD.findall(str(text))}


def list_private_words(document):
    """Words of Python rows, annotations, labels, threads, stacks, modules and the head of the file, by json alone."""
    texts = [document.get(key) for key in ("traceName", "host_name", "hostname", "trace_id")]
    for row in document["traceEvents"]:
        args = row.get("args") or {}
        texts += [args.get(key) for key in ("Call stack", "Module Hierarchy", "Python module")]
        if row.get("cat") in ("python_function", "user_annotation", "gpu_user_annotation"):
            texts.append(row["name"])
        elif row["ph"] == "M":
            texts += [args.get(key) for key in ("name", "labels")]
    return split_words(text for text in texts if text is not None)


def list_private_words_of_export(path):
    """Words of processes, threads, hosts, the environment, files and NVTX ranges, by sqlite3 alone."""
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    texts = []
    for table in ("PROCESSES", "PROCESS_STREAMS", "NVTX_EVENTS"):
        if table in tables:
            texts += [
                cell for row in connection.execute(f"SELECT * FROM {table}") for cell in row if isinstance(cell, str)
            ]
    if "ThreadNames" in tables:
        texts += [
            text
            for (text,) in connection.execute("SELECT s.value FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId")
        ]
    connection.close()
    return split_words(texts)
