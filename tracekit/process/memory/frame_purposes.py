"""Purposes of stack frames: which part of a program a frame belongs to, by PyTorch's own functions.

The innermost frame that names a part decides for its stack. Names of the program's own functions decide only where they
are widely used for one purpose (`load_model`, `init_kv_cache`).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import count_by_group, group_arrays
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Trace
from tracekit.process.memory.pools import classify_frame_purpose
from tracekit.process.memory.site_grades import FRAMEWORK, PROFILED, grade_frame_file
from tracekit.process.name_filters import look_up_names

Ints = npt.NDArray[np.int64]

PARTS = (
    *("nothing", "parameter", "optimizer state", "gradient", "forward", "backward", "optimizer"),
    *("zero_grad", "workspace", "engine weights", "KV cache", "graph", "communication"),
)
"""Parts of a program that a frame names."""

NOTHING, PARAMETER, STATE, GRADIENT, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = range(8)
WORKSPACE, ENGINE, KV_CACHE, GRAPH, TRAFFIC = range(8, len(PARTS))

_OF_POOLS = {
    "engine weights": ENGINE,
    "engine KV cache": KV_CACHE,
    "graph": GRAPH,
    "communication": TRAFFIC,
}
_FILLS_CACHE = "_create_buffers"
"""Function of SGLang whose region is its KV cache; its other regions are weights."""
_WORKSPACE = compile_lazily(r".*(?:at|c10)::cuda::\w*[wW]orkspace.*", re.DOTALL)
_KV_CACHE = re.compile(r"kv_?cache|past_key_value", re.IGNORECASE)
_KV_CACHE_FILE = re.compile(r"cache_utils|kv_?cache", re.IGNORECASE)
_LOADS_WEIGHTS = compile_lazily(
    r"from_pretrained|_?load_pretrained_model|load_(?:hf_)?weights?|load_model_weights|init_(?:all_)?weights?(?:_list)?"
)
_OF_MODULES = frozenset(("_apply", "convert", "to_empty", "load_state_dict", "_load_from_state_dict"))
_SHARDS = frozenset(
    (
        *("unshard", "init_all_gather_outputs", "alloc_all_gather_outputs", "init_unsharded_param"),
        *("foreach_all_gather", "foreach_all_gather_copy_out", "_init_sharded_param", "flatten_tensors"),
        *("_all_gather_flat_param", "_alloc_padded_unsharded_flat_param"),
    )
)
_REDUCES = frozenset(("foreach_reduce", "_reduce_grad", "_post_backward_hook", "post_backward"))
_STARTS_BACKWARD = frozenset(("backward", "_engine_run_backward", "_make_grads", "grad"))
_STATES = frozenset(
    ("__init__", "_init_group", "add_param_group", "load_state_dict", "_process_value_according_to_param_policy")
)
_BACKWARD_FILES = (
    "/torch/_tensor.py",
    "/torch/autograd/__init__.py",
    "/torch/autograd/graph.py",
    "/torch/autograd/function.py",
)


def find_frame_part(name: str, file: str) -> int:
    """Find the part of a program that a frame belongs to, as an index in PARTS.

    >>> [PARTS[find_frame_part(n, f)] for n, f in (("_init_group", "torch/optim/adam.py"), ("step", "torch/optim/adam.py"))]
    ['optimizer state', 'optimizer']
    >>> PARTS[find_frame_part("torch/nn/modules/module.py(1784): _call_impl", "")], PARTS[find_frame_part("step", "/job/a.py")]
    ('forward', 'nothing')
    """
    profiled = PROFILED.fullmatch(name)
    if profiled is not None:
        name, file = profiled[3], profiled[1]
    pool_class = classify_frame_purpose(name, file)
    if pool_class is not None:
        return _OF_POOLS.get(pool_class, KV_CACHE if name == _FILLS_CACHE else ENGINE)
    if not file.endswith(".py"):
        return _find_native_part(name)
    path = "/" + file.replace("\\", "/")
    in_torch = path.rpartition("/torch/")[2] if "/torch/" in path else ""
    return _find_torch_part(name, in_torch, path) if in_torch else _find_program_part(name, path)


def _find_native_part(name: str) -> int:
    """Find the part of a frame in C++, or of a module as a profiler names it."""
    if _WORKSPACE.match(name):
        return WORKSPACE
    if "torch::autograd::AccumulateGrad" in name or "c10d::Reducer::" in name:
        return GRADIENT
    if "torch::autograd::Engine::" in name:
        return BACKWARD
    return FORWARD if name.startswith("nn.Module: ") else NOTHING


def _find_torch_part(name: str, in_torch: str, path: str) -> int:
    """Find the part of a function of PyTorch; `in_torch` is its file within the package."""
    if in_torch.startswith("optim/") and "lr_scheduler" not in in_torch:
        return ZERO_GRAD if name == "zero_grad" else STATE if name in _STATES else OPTIMIZER
    if in_torch.startswith("nn/modules/"):
        if name == "__init__" or name in _OF_MODULES:
            return PARAMETER
        in_module = in_torch == "nn/modules/module.py"
        return {"_call_impl": FORWARD, "zero_grad": ZERO_GRAD}.get(name, NOTHING) if in_module else NOTHING
    if path.endswith(_BACKWARD_FILES) and name in _STARTS_BACKWARD:
        return BACKWARD
    if "/fsdp/" in path:
        return PARAMETER if name in _SHARDS else GRADIENT if name in _REDUCES else NOTHING
    return NOTHING


def _find_program_part(name: str, path: str) -> int:
    """Find the part of a function of the program or of a package other than PyTorch."""
    if _KV_CACHE.search(name) or _KV_CACHE_FILE.search(path.rpartition("/")[2]):
        return KV_CACHE
    return PARAMETER if _LOADS_WEIGHTS.fullmatch(name) else NOTHING


@dataclass(frozen=True, slots=True)
class StackParts:
    """Part of each stack with frames: `stack` (ascending), and the index in PARTS."""

    stack: Ints
    part: Ints


def find_stack_parts(trace: Trace) -> StackParts:
    """Find the part that each stack belongs to: that of its innermost frame with one.

    A workspace or a capture of a graph counts wherever it is in the stack, and parameters that an engine loads are the
    engine's weights. In a file whose `forward` modules call, `__init__` makes
    parameters; in a file whose `step` an optimizer calls, it makes optimizer state.
    """
    name, file, stack = trace.texts("stacks", "name"), trace.texts("stacks", "file"), trace.numbers("stacks", "stack")
    keys, place = np.unique(stack, return_inverse=True)
    frame, first = group_arrays([name, file])
    names, files = ([text or "" for text in look_up_names(column, first).tolist()] for column in (name, file))
    part_of_frame = np.array([find_frame_part(*pair) for pair in zip(names, files, strict=True)], np.int64)
    part = part_of_frame[frame]
    makers = {
        PARAMETER: _list_files_called(names, files, frame, place, part == FORWARD, "forward"),
        STATE: _list_files_called(names, files, frame, place, part == OPTIMIZER, "step"),
    }
    for code, (text, path) in enumerate(zip(names, files, strict=True)):
        if text == "__init__" and part_of_frame[code] == NOTHING:
            made = [purpose for purpose, paths in makers.items() if path in paths]
            part_of_frame[code] = made[0] if len(made) == 1 else NOTHING
    part = part_of_frame[frame]
    parts = np.zeros(len(keys), np.int64)
    known = (part != NOTHING).nonzero()[0]
    # The innermost frame is written last.
    known = known[np.argsort(-trace.numbers("stacks", "depth")[known], kind="stable")]
    parts[place[known]] = part[known]
    is_loading = count_by_group(place[part == ENGINE], len(keys)) > 0
    parts[is_loading & (parts == PARAMETER)] = ENGINE
    for everywhere in (GRAPH, WORKSPACE):
        parts[place[part == everywhere]] = everywhere
    return StackParts(keys, parts)


def _list_files_called(
    names: list[str], files: list[str], frame: Ints, place: Ints, is_caller: npt.NDArray[np.bool_], function: str
) -> set[str]:
    """List the files of the program with a function of this name in a stack with such a caller."""
    has_caller = count_by_group(place[is_caller], int(place.max(initial=-1)) + 1) > 0
    codes = np.unique(frame[has_caller[place]])
    return {
        files[code] for code in codes.tolist() if names[code] == function and grade_frame_file(files[code]) <= FRAMEWORK
    }
