"""Placeholders of private names: `function_1`, `annotation_2`, `gemm_kernel_3`."""

from __future__ import annotations

import re

from tracekit.model.stages import parse_numbered_step, parse_profiler_step
from tracekit.pipeline.timeline.cutting.vocabulary import is_public_name
from tracekit.process.collectives.names import parse_collective_op
from tracekit.process.ops.kernel_names import (
    classify_matrix_unit,
    is_always_wide_kernel,
    is_gemm_kernel,
    is_plain_convolution,
    is_split_k_reduction,
    parse_element_bytes,
    parse_loaded_elements,
)
from tracekit.process.ops.pointwise import is_pointwise_kernel

_HEAD = re.compile(
    r"nn\.Module: |Optimizer\.step#|Optimizer\.zero_grad#|enumerate\(DataLoader\)#|autograd::engine::evaluate_function: "
    r"|## Call CompiledFxGraph |triton_(?:poi|per|red|tem|mm|for)_fused_"
)
_TAIL = {
    "Optimizer.step#": ".step",
    "Optimizer.zero_grad#": ".zero_grad",
    "enumerate(DataLoader)#": ".__next__",
    "## Call CompiledFxGraph ": " ##",
}
_COMMUNICATION = re.compile(r"nccl|rccl", re.IGNORECASE)


class Placeholders:
    """The placeholder of every private name, the same wherever the name occurs. `names` maps recorded names."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def replace(self, name: str, kind: str, *, is_device: bool = False) -> str:
        """Get the name itself if it is public, otherwise its placeholder; `kind` begins new ones."""
        if name in self.names:
            return self.names[name]
        if is_public_name(name, is_device=is_device):
            return name
        number = parse_profiler_step(name)
        number = parse_numbered_step(name) if number is None else number
        if number is not None:
            self.names[name] = f"step {number}"
        else:
            self.names[name] = self._number_kernel(name, kind) if is_device else self._number_host_name(name, kind)
        return self.names[name]

    def _number_host_name(self, name: str, kind: str) -> str:
        """Make the placeholder of a host row; the public beginning and end of its form stay."""
        head = match[0] if (match := _HEAD.match(name)) else ""
        is_framed = not head and name.startswith("## ") and name.endswith(" ##")
        head = "## " if is_framed else head
        return f"{head}{self._count(kind)}{' ##' if is_framed else _TAIL.get(head, '')}"

    def _number_kernel(self, name: str, kind: str) -> str:
        """Make the placeholder of a kernel, with the class of work that rules read from its name."""
        if name.startswith("triton_") and (match := _HEAD.match(name)):
            return f"{match[0]}{self._count(kind).removeprefix(f'{kind}_')}"
        if is_pointwise_kernel(name):
            return f"elementwise_kernel<{self._count(kind)}>"
        if _COMMUNICATION.search(name):
            op = parse_collective_op(name)
            return self._count(f"nccl_{kind}" if op == "other" else f"nccl_{op}_{kind}")
        return self._count("".join(f"{word}_" for word in list_work_markers(name)) + kind)

    def _count(self, kind: str) -> str:
        """Number the next placeholder of a kind."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}_{self._counts[kind]}"


def list_work_markers(name: str) -> list[str]:
    """List public words that classify a kernel as its name does.

    >>> list_work_markers("secret_bf16_gemm_tensorop_align2"), list_work_markers("secret")
    (['tensorop', 'gemm', 'bf16', 'align2'], [])
    """
    if is_split_k_reduction(name):
        return ["splitKreduce"]
    if not is_gemm_kernel(name):
        return ["scudnn"] if is_plain_convolution(name) else []
    unit = {"tensor": ["tensorop"], "plain": ["simt"], None: []}[classify_matrix_unit(name)]
    wide = ["warpgroupsize"] if is_always_wide_kernel(name) else []
    narrow = parse_loaded_elements(name)
    width = [] if narrow is None else [f"align{narrow}"]
    return [*unit, *wide, "gemm", *(["bf16"] if parse_element_bytes(name) == 2 else []), *width]
