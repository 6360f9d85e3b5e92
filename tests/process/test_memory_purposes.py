"""Purposes of memory by call stacks and lifetimes: parameters, gradients, optimizer state, activations, temporary memory."""

import pytest
from memory_builder import Allocator, frame, snapshot
from snapshot_traces import loaded

from tracekit.process.memory.frame_purposes import PARTS, find_frame_part
from tracekit.process.memory.holders import list_memory_holders
from tracekit.process.memory.live import list_live_memory
from tracekit.process.memory.replay import replay_all_devices

SITE = "/opt/lib/python3.11/site-packages/"
TORCH = SITE + "torch/"
TRAIN = frame("train", "/job/train.py", 20)
CALL = frame("_call_impl", TORCH + "nn/modules/module.py", 1784)
FORWARD = [frame("forward", "/job/model.py", 10), CALL, TRAIN]
ENGINE = [
    frame("torch::autograd::generated::MmBackward0::apply(int)", "??", 0),
    frame("torch::autograd::Engine::evaluate_function(int)", "??", 0),
]
ACCUMULATE = [frame("torch::autograd::AccumulateGrad::apply(int)", "??", 0), *ENGINE]
BACKWARD = [frame("_engine_run_backward", TORCH + "autograd/graph.py", 966), frame("backward", TORCH + "_tensor.py", 566), TRAIN]  # fmt: skip
WRAPPER = frame("wrapper", TORCH + "optim/optimizer.py", 509)
ADAM = [frame("_single_tensor_adam", TORCH + "optim/adam.py", 347), WRAPPER, TRAIN]
STATE = [frame("_init_group", TORCH + "optim/adam.py", 139), WRAPPER, TRAIN]
LINEAR = [frame("__init__", TORCH + "nn/modules/linear.py", 96), TRAIN]
ZERO_GRAD = [frame("zero_grad", TORCH + "optim/optimizer.py", 980), TRAIN]
WORKSPACE = [frame("at::cuda::getNewWorkspace()", "??", 0), *FORWARD]


def own_step(line):
    """A line of a program's own optimizer, which torch wraps."""
    return [frame("step", "/job/optimizer.py", line), WRAPPER, TRAIN]


def purposes(tmp_path, allocator, entry=None):
    """The bytes of each purpose after an entry of the history, the last by default."""
    trace = loaded(tmp_path, allocator)
    (replay,) = trace.derived(replay_all_devices)
    columns = list_live_memory(trace, replay, len(replay.rows) - 1 if entry is None else entry).columns
    sums = {}
    texts = [*columns["category"].texts, None]
    for code, basis, size in zip(columns["category"].codes.tolist(), columns["basis"].codes.tolist(), columns["size_bytes"].tolist(), strict=True):  # fmt: skip
        assert columns["basis"].texts[basis] == ("none" if code < 0 else "stack")
        sums[texts[code]] = sums.get(texts[code], 0) + size
    return sums


def test_a_step_of_training_is_told_apart_by_stacks_and_lifetimes(tmp_path):
    allocator = Allocator()
    allocator.alloc(1000, LINEAR)
    allocator.alloc(64, WORKSPACE)
    kept = allocator.alloc(300, FORWARD)
    passing = allocator.alloc(77, ENGINE)
    allocator.alloc(1001, ENGINE)
    at_backward = len(allocator.history) - 1
    allocator.free(passing, ENGINE)
    allocator.free(kept, ENGINE)
    allocator.alloc(5, ACCUMULATE)
    allocator.alloc(2002, STATE)
    quotient = allocator.alloc(500, ADAM)
    at_step = len(allocator.history) - 1
    allocator.free(quotient, ADAM)
    allocator.alloc(301, FORWARD)
    common = {"parameter": 1000, "workspace": 64}
    assert purposes(tmp_path, allocator, at_backward) == common | {"activation": 300, "temporary": 77, "gradient": 1001}
    assert purposes(tmp_path, allocator, at_step) == common | {
        "gradient": 1006, "optimizer_state": 2002, "temporary": 500,
    }  # fmt: skip
    assert purposes(tmp_path, allocator) == common | {"gradient": 1006, "optimizer_state": 2002, "activation": 301}


@pytest.mark.parametrize("ended", [False, True])
def test_memory_that_lives_when_the_history_ends_in_its_phase_has_no_purpose(tmp_path, ended):
    allocator = Allocator()
    allocator.alloc(8, FORWARD)
    allocator.alloc(9, ENGINE)
    if ended:
        allocator.alloc(1, [TRAIN])
    assert purposes(tmp_path, allocator) == ({"activation": 8, "gradient": 9, None: 1} if ended else {"activation": 8, None: 9})  # fmt: skip


def test_threads_of_a_backward_pass_without_python_frames_count_only_after_its_call(tmp_path):
    allocator = Allocator()
    allocator.alloc(1, FORWARD)
    allocator.alloc(2, [])
    root = allocator.alloc(4, BACKWARD)
    allocator.alloc(8, [])
    passing = allocator.alloc(16, [])
    entry = len(allocator.history) - 1
    allocator.free(passing, [])
    allocator.free(root, BACKWARD)
    allocator.alloc(32, STATE)
    allocator.alloc(64, [])
    assert purposes(tmp_path, allocator, entry) == {"activation": 1, None: 2, "temporary": 20, "gradient": 8}
    assert purposes(tmp_path, allocator) == {"activation": 1, None: 66, "gradient": 8, "optimizer_state": 32}


def test_activations_that_a_backward_pass_computes_again_are_activations(tmp_path):
    allocator = Allocator()
    allocator.alloc(4, [*FORWARD[:2], frame("unpack_hook", TORCH + "utils/checkpoint.py", 1), *ENGINE])
    assert purposes(tmp_path, allocator) == {"activation": 4}


@pytest.mark.parametrize(
    ("path", "purpose"), [("/job/model.py", "parameter"), ("/job/optimizer.py", "optimizer_state"), ("/job/data.py", None)]
)  # fmt: skip
def test_what_an_own_init_makes_follows_from_who_calls_its_file(tmp_path, path, purpose):
    allocator = Allocator()
    allocator.alloc(10, [frame("__init__", path, 3), TRAIN])
    allocator.free(allocator.alloc(1, FORWARD))
    allocator.free(allocator.alloc(1, own_step(7)))
    assert purposes(tmp_path, allocator) == {purpose: 10}


def test_an_init_in_a_file_of_modules_and_optimizers_has_no_purpose(tmp_path):
    allocator = Allocator()
    allocator.alloc(10, [frame("__init__", "/job/all.py", 3), TRAIN])
    allocator.free(allocator.alloc(1, [frame("forward", "/job/all.py", 10), CALL]))
    allocator.free(allocator.alloc(1, [frame("step", "/job/all.py", 30), WRAPPER]))
    assert purposes(tmp_path, allocator) == {None: 10}


def test_a_parameter_that_a_step_replaces_on_two_lines_stays_a_parameter(tmp_path):
    """Line 5 makes new state, line 6 a new parameter, of which line 7 makes the last one."""
    allocator = Allocator()
    parameter = allocator.alloc(100, LINEAR)
    state = None
    for _ in range(2):
        newer_state = allocator.alloc(40, own_step(5))
        if state is not None:
            allocator.free(state, own_step(4))
        state = newer_state
        update = allocator.alloc(100, own_step(6))
        between = allocator.alloc(100, own_step(6))
        allocator.free(update, own_step(6))
        allocator.free(parameter, own_step(6))
        parameter = allocator.alloc(100, own_step(7))
        allocator.free(between, own_step(7))
        allocator.alloc(1, FORWARD)
    assert purposes(tmp_path, allocator) == {"parameter": 100, "optimizer_state": 40, "activation": 2}


def test_memory_from_before_the_recording_is_placed_by_who_frees_it(tmp_path):
    allocator = Allocator()
    sizes = {1: own_step(5), 2: ENGINE, 4: ZERO_GRAD, 8: [TRAIN]}
    old = {size: allocator.alloc(size, [TRAIN]) for size in sizes}
    allocator.clear_history()
    allocator.alloc(16, own_step(5))
    for size, frames in sizes.items():
        allocator.free(old[size], frames)
    allocator.alloc(32, FORWARD)
    assert purposes(tmp_path, allocator, 0) == {"optimizer_state": 17, "activation": 2, "gradient": 4, None: 8}


@pytest.mark.parametrize(
    ("freed", "expected"),
    [("before", {"activation": 51}), ("within", {"activation": 51}), ("after", {"activation": 1, None: 50})],
)
def test_memory_of_the_loss_is_that_freed_before_its_backward_pass_ends(tmp_path, freed, expected):
    allocator = Allocator()
    allocator.alloc(1, FORWARD)
    loss = allocator.alloc(50, [frame("cross_entropy", "/job/loss.py", 4), TRAIN])
    entry = len(allocator.history) - 1
    if freed == "before":
        allocator.free(loss, [TRAIN])
    allocator.alloc(2, BACKWARD)
    if freed == "within":
        allocator.free(loss, [TRAIN])
    allocator.alloc(3, ADAM)
    if freed == "after":
        allocator.free(loss, [TRAIN])
    assert purposes(tmp_path, allocator, entry) == expected


def test_modules_that_an_engine_loads_are_its_weights_and_not_the_trainer_s(tmp_path):
    allocator = Allocator()
    loading = frame("load_model", SITE + "vllm/v1/worker/gpu_worker.py", 7)
    allocator.alloc(100, [*LINEAR[:1], loading, TRAIN])
    allocator.alloc(10, LINEAR)
    allocator.alloc(1, [CALL, loading])  # a forward pass to measure memory
    assert purposes(tmp_path, allocator) == {"engine_weights": 100, "parameter": 10, "activation": 1}
    trace = loaded(tmp_path, allocator)
    (replay,) = trace.derived(replay_all_devices)
    at_end = {
        name: column[-1] for name, column in list_memory_holders(trace, replay).items() if name.endswith("_bytes")
    }
    assert [at_end[f"{name}_bytes"] for name in ("weights", "trainer_state", "activations", "other")] == [100, 10, 1, 0]


@pytest.mark.parametrize(
    ("name", "file", "part"),
    [
        ("update", SITE + "transformers/cache_utils.py", "KV cache"),
        ("init_kv_cache", "/job/engine.py", "KV cache"),
        ("initialize_kv_cache", SITE + "vllm/v1/worker/gpu_model_runner.py", "KV cache"),
        ("load_model", SITE + "vllm/v1/worker/gpu_worker.py", "engine weights"),
        ("load_model", "sglang/srt/model_executor/model_runner.py", "engine weights"),
        ("_create_buffers", "sglang/srt/mem_cache/memory_pool.py", "KV cache"),
        ("from_pretrained", SITE + "transformers/modeling_utils.py", "parameter"),
        ("convert", TORCH + "nn/modules/module.py", "parameter"),
        ("load_state_dict", TORCH + "optim/optimizer.py", "optimizer state"),
        ("unshard", TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "parameter"),
        ("foreach_reduce", TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "gradient"),
        ("c10d::Reducer::initialize_buckets(int)", "??", "gradient"),
        ("torch/optim/adam.py(347): _single_tensor_adam", "", "optimizer"),
        ("nn.Module: Linear_3", "", "forward"),
        # Near misses: names of programs, and parts of PyTorch that are not decisive.
        ("update", "/job/train.py", "nothing"),
        ("step", "/job/env.py", "nothing"),
        ("backward", "/job/train.py", "nothing"),
        ("unshard", "/job/data.py", "nothing"),
        ("step", TORCH + "optim/lr_scheduler.py", "nothing"),
        ("forward", TORCH + "nn/modules/linear.py", "nothing"),
        ("at::_ops::mm::call(int)", "??", "nothing"),
    ],
)
def test_frames_name_a_part_of_the_program(name, file, part):
    assert PARTS[find_frame_part(name, file)] == part


def test_what_a_profiler_recorded_comes_first_and_unknown_last(tmp_path):
    allocator = Allocator()
    for _ in range(3):
        allocator.alloc(100, LINEAR)
    allocator.alloc(100, [TRAIN])
    made = snapshot(allocator)
    for entry, category in zip(made["device_traces"][0][1:], ("INPUT", "unknown", None, "unknown"), strict=True):
        if category is not None:
            entry["category"] = category
    trace = loaded(tmp_path, allocator, device_traces=made["device_traces"])
    (replay,) = trace.derived(replay_all_devices)
    columns = list_live_memory(trace, replay, len(replay.rows) - 1).columns
    told = [[name.texts[code] for code in name.codes.tolist()] for name in (columns["category"], columns["basis"])]
    assert list(zip(*told, strict=True)) == [
        ("INPUT", "recorded"), ("parameter", "stack"), ("parameter", "stack"), ("unknown", "recorded"),
    ]  # fmt: skip
