"""Which frame names a stack: own code before frameworks, these before what they call through, Python before C++."""

import tracemalloc

import numpy as np
import pytest
from memory_builder import Allocator, frame
from snapshot_traces import frame_of, loaded

from tracekit.process.memory.call_sites import build_allocation_tree, build_site_table, shorten_function_name
from tracekit.process.memory.site_grades import (
    ANYTHING,
    FRAMEWORK,
    MACHINERY,
    MACHINERY_PACKAGES,
    NATIVE,
    OPERATOR,
    PROGRAM,
    grade_frame_file,
    grade_frame_name,
)

SITE = "/opt/venv/lib/python3.11/site-packages"
INDUCTOR = "c" + "ab2" * 17 + ".py"

EMPTY = frame("at::TensorBase at::detail::_empty_generic<long>(int)", "??", 0)
LINEAR = frame("linear", f"{SITE}/torch/nn/functional.py", 5)
ACTOR = frame("update_policy", f"{SITE}/verl/workers/actor/dp_actor.py", 7)
RAY = frame("main_loop", f"{SITE}/ray/_private/worker.py", 9)
RUNPY = frame("_run_code", "/usr/lib/python3.11/runpy.py", 88)
MAIN = frame("main", "/home/me/project/main.py", 3)


def site(tmp_path, *frames):
    allocator = Allocator()
    allocator.alloc(512, list(frames))
    found = build_site_table(loaded(tmp_path, allocator))
    return found.site.texts[found.site.codes[0]], found.kind[0]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((EMPTY, LINEAR, ACTOR, RAY, MAIN), ("me/project/main.py:3 main", 0)),
        ((EMPTY, LINEAR, ACTOR, RAY, RUNPY), ("workers/actor/dp_actor.py:7 update_policy", 1)),
        ((EMPTY, LINEAR, RAY, RUNPY), ("torch/nn/functional.py:5 linear", 1)),
        ((EMPTY, RAY, RUNPY), ("ray/_private/worker.py:9 main_loop", 1)),
        ((EMPTY, frame("at::Tensor at::_ops::mm::call(at::Tensor const&)", "??", 0)), ("at::_ops::mm::call", 2)),
        ((EMPTY,), ("at::detail::_empty_generic", 2)),
    ],
)  # fmt: skip
def test_the_best_frame_names_a_stack(tmp_path, frames, expected):
    assert site(tmp_path, *frames) == expected


def test_of_two_frames_of_one_kind_the_inner_one_does(tmp_path):
    outer = frame("fit", f"{SITE}/verl/trainer/main_ppo.py", 1)
    assert site(tmp_path, LINEAR, ACTOR, outer)[0].endswith("dp_actor.py:7 update_policy")


@pytest.mark.parametrize(
    ("file", "grade"),
    [
        ("/home/me/torch/train.py", PROGRAM),  # a program's own folder of that name
        ("/torch/train.py", PROGRAM),
        ("/home/me/ray/numpy/loss.py", PROGRAM),
        ("/workspace/verl/verl/workers/fsdp_workers.py", PROGRAM),  # installed in place
        ("/home/me/mylib/python/train.py", PROGRAM),
        ("/home/user/.cache/huggingface/modules/transformers_modules/m/modeling.py", PROGRAM),
        ("C:\\Users\\me\\job\\train.py", PROGRAM),
        ("train.py", PROGRAM),
        ("/usr/lib/python3/dist-packages/megatron/core/layers.py", FRAMEWORK),
        ("C:\\Python311\\Lib\\site-packages\\vllm\\worker.py", FRAMEWORK),
        (f"{SITE}/torchtitan/train.py", FRAMEWORK),  # begins like torch
        (f"{SITE}/torch_geometric/nn.py", FRAMEWORK),
        (f"{SITE}/torch/_dynamo/eval_frame.py", MACHINERY),
        ("C:\\Python311\\Lib\\site-packages\\torch\\nn\\modules\\module.py", MACHINERY),
        ("C:\\Python311\\Lib\\contextlib.py", MACHINERY),
        ("C:\\Users\\me\\miniconda3\\envs\\rl\\Lib\\runpy.py", MACHINERY),
        ("/home/me/.conda/envs/rl/lib/python3.9/runpy.py", MACHINERY),
        ("/opt/pytorch/torch/nn/modules/module.py", MACHINERY),  # built from source
        ("torch/nn/modules/linear.py", MACHINERY),  # as profilers cut it
        (f"{SITE}/wrapt.py", MACHINERY),  # a package of one file
        (f"/tmp/torchinductor_me/ab/{INDUCTOR}", MACHINERY),
        (f"/tmp/torchinductor_me/ab/{INDUCTOR[1:]}", PROGRAM),
        ("<string>", ANYTHING),
        ("??", ANYTHING),
        ("", ANYTHING),
    ],
)
def test_files_have_their_grade(file, grade):
    assert grade_frame_file(file) == grade


@pytest.mark.parametrize(
    ("name", "grade", "text"),
    [
        ("/job/gen.py(12): step", PROGRAM, "job/gen.py:12 step"),
        ("torch/optim/adam.py(347): _single_tensor_adam", MACHINERY, "torch/optim/adam.py:347 _single_tensor_adam"),
        ("<built-in method sqrt of Tensor object at 0x7f2ea58e5f90>", ANYTHING, "<built-in method sqrt of Tensor object>"),
        ("aten::mm", OPERATOR, "aten::mm"),
        ("at::(anonymous namespace)::wrapper_CUDA_mul(at::Tensor const&)", NATIVE, "at::wrapper_CUDA_mul"),
        ("at::detail::empty_cuda(c10::ArrayRef<long>)", ANYTHING, "at::detail::empty_cuda"),
        ("gen.py(): step", ANYTHING, "gen.py(): step"),
    ],
)  # fmt: skip
def test_functions_without_a_file_have_their_grade_and_a_short_name(name, grade, text):
    assert grade_frame_name(name) == grade
    assert shorten_function_name(name) == text


def test_the_tree_of_stacks_without_python_begins_and_ends_with_what_tells_something(tmp_path):
    names = ("torch::unwind::unwind()", "at::detail::empty_cuda(int)", "at::native::mul(at::Tensor)",
             "at::Tensor at::_ops::mul::call(at::Tensor)", "torch::autograd::Engine::thread_init()", "clone")  # fmt: skip
    allocator = Allocator()
    allocator.alloc(4096, [frame(name, "??", 0) for name in names])
    allocator.alloc(1024, [frame("malloc", "??", 0), frame("clone", "??", 0)])
    trace = loaded(tmp_path, allocator)
    stack = trace["allocations"]["stack"][trace["allocations"]["action"] == "alloc"].to_numpy("int64")
    made, missing = build_allocation_tree(trace, stack, np.array([4096, 1024]), max_nodes=20, min_bytes=1)
    assert frame_of(made)[["depth", "name"]].to_numpy().tolist() == [
        [0, "at::_ops::mul::call"], [0, "clone"], [1, "at::native::mul"], [1, "malloc"],
    ]  # fmt: skip
    assert missing == 0


def test_every_package_of_the_machinery_has_a_reason():
    assert all(reason and "/" not in name for name, reason in MACHINERY_PACKAGES.items())


def test_names_made_to_be_slow_to_match_are_not():
    for text in ("(" * 100_000, "a.py(" * 20_000, "/site-packages" * 20_000, "a" * 100_000 + ".py"):
        grade_frame_file(text + ".py")
        grade_frame_name(text)


def test_a_tree_costs_its_frames_once_however_long_the_name_of_one(tmp_path):
    """Texts of one width for all take gigabytes: 4 bytes a letter of the longest, for each frame."""
    allocator = Allocator()
    for line in range(1, 600):
        allocator.alloc(512, [frame("f", "/job/a.py", line), frame("g" * 4000, "/job/" + "b" * 4000 + ".py", 1)])
    trace = loaded(tmp_path, allocator)
    ids = np.unique(trace.numbers("stacks", "stack"))
    tracemalloc.start()
    shown, rest = build_allocation_tree(trace, ids, np.full(len(ids), 512), 1000, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert (rest, len(shown["name"])) == (0, 600)
    longest = shown["name"].texts[shown["name"].codes[0]]
    assert longest.startswith("job/bbbb")
    assert len(longest) < 420
