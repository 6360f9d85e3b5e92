"""Grades of stack frames by how well they identify an allocation site: user code is best, library plumbing worst."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Trace

Ints = npt.NDArray[np.int64]

PROGRAM, FRAMEWORK, MACHINERY, OPERATOR, NATIVE, ANYTHING = range(6)
"""Own Python; an installed package; MACHINERY_PACKAGES; a PyTorch operator; other C++ of PyTorch; the rest."""

KINDS = ("user", "library", "native")
"""Kinds of naming frames: Python of the program, Python of an installed package, not Python."""

KIND_OF = np.array([0, 1, 1, 2, 2, 2], np.int64)
"""Index in KINDS of each grade."""

_CALLER = "asks for memory on behalf of whoever calls it"
_STARTER = "starts programs and passes their calls on"
_WRAPPER = "wraps the functions of others"

MACHINERY_PACKAGES: Mapping[str, str] = {
    **dict.fromkeys(("torch", "functorch", "triton", "numpy", "cupy", "opt_einsum", "einops"), _CALLER),
    **dict.fromkeys(
        (
            "ray",
            "cloudpickle",
            "hydra",
            "fire",
            "click",
            "typer",
            "absl",
            "IPython",
            "ipykernel",
            "traitlets",
            "tornado",
            "pytest",
            "_pytest",
            "pluggy",
            "debugpy",
        ),
        _STARTER,
    ),
    **dict.fromkeys(
        (
            "accelerate",
            "decorator",
            "wrapt",
            "tqdm",
            "jaxtyping",
            "beartype",
            "typeguard",
            "tensordict",
            "codetiming",
            "nvtx",
        ),
        _WRAPPER,
    ),
}
"""Packages whose frames identify a site less than other Python, and why; verl, vllm, megatron … name a site."""

COMPILED = compile_lazily(r"c[a-z2-7]{51}\.py")
"""Names of files that Inductor writes: the hash of their text, in base 32."""

PROFILED = compile_lazily(r"([^()]{1,4000}\.py)\(([0-9]{1,9})\): (.+)", re.DOTALL)
"""Python function as a profiler names it: `torch/optim/adam.py(347): step`."""

_PACKAGE = compile_lazily(r".*/(?:site|dist)-packages/([^/]+)", re.DOTALL)
_STANDARD = compile_lazily(
    r"/lib(?:64)?/python[0-9][0-9.]*t?/|/python[0-9]+/lib/|/(?:mini|ana)conda[0-9]?/(?:envs/[^/]+/)?lib/|/miniforge[0-9]?/(?:envs/[^/]+/)?lib/",
    re.IGNORECASE,
)
"""Folders of Python's own modules: on Unix, on Windows, in conda environments on Windows."""

_OPERATORS = ("at::_ops::", "torch::autograd::generated::", "getNewWorkspace")
_ALLOCATING = ("empty", "at::detail::", "at::TensorBase", "Allocator", "resize_")
"""Parts of the names of functions that allocate on behalf of their callers."""


def grade_frames(trace: Trace) -> Ints:
    """Grade each row of `stacks`; lower is better."""
    file, name = trace.texts("stacks", "file"), trace.texts("stacks", "name")
    by_file = np.array([*map(grade_frame_file, file.texts), ANYTHING], np.int64)[file.codes]
    by_name = np.array([*map(grade_frame_name, name.texts), ANYTHING], np.int64)[name.codes]
    best: Ints = np.where(by_file < OPERATOR, by_file, by_name)
    return best


def grade_frame_file(file: str) -> int:
    """Grade a Python frame by its file; ANYTHING if it is not Python.

    >>> [grade_frame_file(f) for f in ("/job/train.py", "/venv/lib/python3.11/site-packages/verl/fsdp.py")]
    [0, 1]
    >>> [grade_frame_file(f) for f in ("torch/nn/modules/linear.py", "/usr/lib/python3.11/contextlib.py", "??")]
    [2, 2, 5]
    """
    if not file.endswith(".py"):
        return ANYTHING
    path = "/" + file.replace("\\", "/")
    package = _PACKAGE.match(path)
    if package is not None:
        name = package[1].removesuffix(".py")
        return MACHINERY if name in MACHINERY_PACKAGES else FRAMEWORK
    # Profilers cut paths off before the package; torch built from source is in its checkout.
    of_torch = path.startswith("/torch/") or "/pytorch/torch/" in path
    compiled = COMPILED.fullmatch(path.rpartition("/")[2]) is not None
    return MACHINERY if of_torch or compiled or _STANDARD.search(path) else PROGRAM


def grade_frame_name(name: str) -> int:
    """Grade a frame without a Python file by its name; a Python function in profiler notation by its file."""
    profiled = PROFILED.fullmatch(name)
    if profiled is not None:
        return grade_frame_file(profiled[1])
    if any(word in name for word in _ALLOCATING):
        return ANYTHING
    if name.startswith("aten::") or any(word in name for word in _OPERATORS):
        return OPERATOR
    return NATIVE if "at::" in name or "aten" in name else ANYTHING
