"""Names of the field's public vocabulary, and placeholders for all others: `function_1`, `annotation_2`."""

from __future__ import annotations

import re

from tracekit.model.stages import STAGES, parse_numbered_step, parse_profiler_step

_STAGE_NAMES = frozenset({*STAGES, *(alias for aliases in STAGES.values() for alias in aliases)})

_OPTIMIZERS = r"(?:Adam|AdamW|Adamax|Adagrad|Adadelta|ASGD|LBFGS|NAdam|RAdam|RMSprop|Rprop|SGD|SparseAdam)"
_MODULES = (
    r"(?:Linear|Conv[123]d|BatchNorm[123]d|LayerNorm|RMSNorm|GroupNorm|Embedding|Dropout|ReLU|GELU|SiLU|Sigmoid|Tanh|Softmax"
    r"|LSTM|GRU|Sequential|ModuleList|MultiheadAttention|TransformerEncoder|TransformerEncoderLayer|CrossEntropyLoss"
    r"|MSELoss|AdaptiveAvgPool2d|AvgPool2d|MaxPool2d|Flatten|Identity)"
)

_HOST = re.compile(
    r"(?:aten|c10d|prims|quantized|torchvision)::\w+(?:\.\w+)?|(?:gloo|nccl|mpi|ucc):\w+"
    r"|record_param_comms|detach|\[memory\]|(?:cuda|hip|cu|nccl|cudnn|cublas)[A-Z]\w*|torch::autograd::\w+"
    r"|autograd::engine::evaluate_function: (?:\w+Backward[01]|torch::autograd::\w+)|\w+Backward[01]"
    rf"|Optimizer\.(?:step|zero_grad)#{_OPTIMIZERS}\.(?:step|zero_grad)"
    r"|enumerate\(DataLoader\)#_\w+ProcessingDataLoaderIter\.__next__|DistributedDataParallel\.forward"
    r"|(?:FSDP|FullyShardedDataParallel)(?:::|\.)(?:pre_forward|post_forward|pre_backward|post_backward|forward|all_gather|reduce_scatter)"
    r"|(?:PyTorch Profiler|Iteration Start: PyTorch Profiler|Record Window End)(?: \(\d+\))?"
    r"|Torch-Compiled Region(?:: \d+(?:/\d+)*)?|CompiledFunction(?:Backward)?"
    r"|Activity Buffer Request|Buffer Flush|Instrumentation|Resource|Lazy Function Loading|Command Buffer Full"
    rf"|nn\.Module: {_MODULES}(?:_\d+)?"
    r"|(?:Context|Stream|Event) (?:Sync|Synchronize)|Stream Wait Event|Unrecognized",
)
"""Names of host rows, whole."""

_DEVICE = re.compile(
    r"(?:void )?(?:\(anonymous namespace\)::)?(?:at|c10|cutlass|cute|cub|thrust|at_cuda_detail|cudnn|cublas\w*|flash|fmha|pytorch_flash"
    r"|vllm|flashinfer|rocprim|hipcub|rocblas|ck|transformer_engine|deep_gemm)::"
    r"|(?:void )?(?:cudnn|cublas|cutlass|cask_cudnn|fmha|flash_(?:fwd|bwd)|pytorch_flash)(?=[_A-Z:])"
    r"|(?:nccl|rccl)(?:Dev)?Kernel_?\w*|(?:volta|turing|ampere|hopper|maxwell|sm\d\d)_\w*(?:gemm|conv|cudnn|fprop|dgrad|wgrad)"
    r"|Cijk_|nvjet_|triton_(?:poi|per|red|tem|mm|for)_fused_|Mem(?:cpy|set) |Mem(?:cpy|set)\(|__amd_rocclr_"
    r"|void (?:gemmSN|gemmk1|gemv2T|splitKreduce|dot_kernel|reduce_1Block)\w*_kernel",
)
"""Beginnings of the names of device rows: namespaces and naming schemes of libraries."""

_PLAIN_NAMES = re.compile(
    r"(?:stream|GPU|thread|CPU|Spans|Traces)? ?[-\d]*\s*|python|cpu|PyTorch Profiler", re.IGNORECASE
)
_HEAD = re.compile(
    r"nn\.Module: |Optimizer\.step#|Optimizer\.zero_grad#|enumerate\(DataLoader\)#|autograd::engine::evaluate_function: "
)
_TAIL = {"Optimizer.step#": ".step", "Optimizer.zero_grad#": ".zero_grad", "enumerate(DataLoader)#": ".__next__"}
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
            return self.names[name]
        head = match[0] if not is_device and (match := _HEAD.match(name)) else ""
        frame = " ##" if not is_device and name.startswith("## ") and name.endswith(" ##") else ""
        head = head or ("## " if frame else "")
        kind = f"nccl_{kind}" if is_device and _COMMUNICATION.search(name) else kind
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self.names[name] = f"{head}{kind}_{self._counts[kind]}{_TAIL.get(head, frame)}"
        return self.names[name]


def is_public_name(name: str, *, is_device: bool = False) -> bool:
    """Check whether a name is of the public vocabulary: stages, profiler steps, operators, calls and kernels of libraries."""
    if name.strip("# ") in _STAGE_NAMES or _PLAIN_NAMES.fullmatch(name) or re.fullmatch(r"ProfilerStep#\d+", name):
        return True
    if is_device:
        return _DEVICE.match(name) is not None or _HOST.fullmatch(name) is not None
    return _HOST.fullmatch(name) is not None
