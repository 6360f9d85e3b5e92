"""Public names: every identifier of such a name is in a stored list of torch, CUDA, NCCL or a library of kernels."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources

from tracekit.model.stages import STAGES

_STAGE_NAMES = frozenset({*STAGES, *(alias for aliases in STAGES.values() for alias in aliases)})

MAX_READ = 20_000
"""Characters of a name that are checked; a longer name counts as private."""

_WHOLE = re.compile(
    r"record_param_comms|\[memory\]|detach_?|enumerate\(DataLoader\)#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.__next__"
    r"|DistributedDataParallel\.forward|(?:PyTorch Profiler|Iteration Start: PyTorch Profiler|Record Window End)(?: \(\d+\))?"
    r"|(?:FSDP|FullyShardedDataParallel)(?:::|\.)"
    r"(?:pre_forward|post_forward|pre_backward|post_backward|forward|all_gather|reduce_scatter)"
    r"|Torch-Compiled Region(?:: \d+(?:/\d+)*)?|ProfilerStep#\d+"
    r"|Activity Buffer Request|Buffer Flush|Instrumentation|Resource|Lazy Function Loading|Command Buffer Full|Unrecognized|INVALID"
    r"|(?:mini|micro)_batch\d{0,6}|execute_(?:\d+_)?context_\d+\([sqk\d_]*\)_generation_\d+\([sqk\d_]*\)"
    r"|step\[(?:DECODE|EXTEND|PREFILL|MIXED|IDLE)(?: (?:bs|toks)=\d+)*\]"
    r"|(?:Context|Stream|Event) (?:Sync|Synchronize)|Stream Wait Event"
)
_MEMORY_KIND = r"(?:Unknown|Pageable|Pinned|Device|Host|Array|Managed|Unified|Device Static|Managed Static)"
_TRANSFER = re.compile(
    rf"Memcpy (?:[HDAPU]to[HDAPU]|Unknown)(?: \({_MEMORY_KIND} -> {_MEMORY_KIND}\))?|Memset(?: \({_MEMORY_KIND}\))?"
    r"|__amd_rocclr_(?:copyBuffer(?:Aligned|Rect|RectAligned)?|fillBuffer(?:Aligned|Aligned2D)?)"
    r"|Copy(?:Host|Device)To(?:Host|Device)|FillBuffer"
)
_PLAIN = re.compile(r"(?:(?:stream|GPU|thread|CPU) ?)?-?\d{1,20}\s*|Spans|Traces|python|cpu", re.IGNORECASE)
_OP = re.compile(r"(?:aten|prims)::(\w+)(?:\.(\w+))?")
_OVERLOADS = frozenset(("Tensor", "Scalar", "out", "default", "int", "dim", "dtype"))
_COLLECTIVE = re.compile(r"(?:gloo|nccl|rccl|mpi|ucc|c10d|_c10d_functional|c10d_functional):{1,2}(\w+)")
_CALL = re.compile(r"(cudnn|cublas(?:Lt)?|cuda|cu|hip|p?nccl)([A-Z]\w*)")
_VERSION = re.compile(r"(?:_v\d{1,6}|_ptsz|_ptds|_spt)+\Z")
_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|_")
_NODE = re.compile(r"(?:autograd::engine::evaluate_function: )?(?:torch::autograd::)?(\w+?)(?:Backward\d{0,2})?")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(\w+)\.(?:step|zero_grad)")
_MODULE = re.compile(r"nn\.Module: (\w+?)(?:_\d{1,6})?")
_GENERATED = re.compile(r"triton_(?:poi|per|red|tem|mm|for)_fused_(\w+)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_BETWEEN = re.compile(r"(?:[ ,:<>()*&{}\[\]#~.+=!-]|(?<!\d)\d{1,20}(?!\d))*")
_LETTERS = re.compile(r"[A-Za-z]+")
_KERNEL_OF_OP = re.compile(
    r"(?:vectorized_)?(\w+?)_(?:kernel|kernel_cuda|kernel_impl|scalar_kernel|cuda_kernel)|CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"
    r"|launch_(\w+?)_(?:scalar|kernel)"
)


@cache
def load_public_words(key: str) -> frozenset[str]:
    """Load a list of the vocabulary."""
    text = resources.files("tracekit.pipeline.timeline.cutting").joinpath("vocabulary.toml").read_text("utf-8")
    return frozenset(str(tomllib.loads(text)[key]).split())


@lru_cache(65_536)
def is_public_name(name: str, *, is_device: bool = False) -> bool:
    """Check whether every identifier of a name is public: stages, profiler steps, operators, calls and library kernels.

    >>> is_public_name("aten::mm"), is_public_name("aten::secret"), is_public_name("cudaSecretLaunch")
    (True, False, False)
    """
    if len(name) > MAX_READ or not name.isascii():
        return False
    if (
        name.strip("# ") in _STAGE_NAMES
        or _PLAIN.fullmatch(name)
        or _WHOLE.fullmatch(name)
        or _TRANSFER.fullmatch(name)
    ):
        return True
    if name in load_public_words("system_calls"):
        return True
    return _is_public_host_name(name) or (is_device and is_public_kernel(name))


def is_public_kernel(name: str) -> bool:
    """Check whether every identifier of a kernel's name is public.

    >>> is_public_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)")
    True
    >>> is_public_kernel("void at::native::elementwise_kernel<SecretFunctor>(float)")
    False
    """
    if any(not _BETWEEN.fullmatch(text) for text in _IDENTIFIER.split(name)):
        return False
    identifiers = _IDENTIFIER.findall(name)
    return bool(identifiers) and all(map(_is_public_identifier, identifiers))


def is_public_text(value: str) -> bool:
    """Check whether a recorded argument, such as a list of types, has public identifiers only."""
    return value.isascii() and all(
        word in _list_type_words() or _is_public_identifier(word) for word in _IDENTIFIER.findall(value)
    )


@cache
def _list_type_words() -> frozenset[str]:
    """List the words of recorded types and collectives."""
    types = (
        "Scalar ScalarList TensorList GenericList Device Int Bool Double Float Half BFloat16 Long Byte Char Short None Optional "
        "Float8_e4m3fn Float8_e5m2 Float8_e4m3fnuz Float8_e5m2fnuz Float8_e8m0fnu ComplexFloat ComplexDouble"
    )
    return frozenset(types.split()) | load_public_words("collectives")


def _is_public_host_name(name: str) -> bool:
    """Check the name of an operator, a call, an autograd node, an optimizer, a module or a collective."""
    for pattern, is_public in _HOST_NAMES:
        if match := pattern.fullmatch(name):
            return is_public(match)
    return False


def _is_public_op(match: re.Match[str]) -> bool:
    """Check an operator and its overload."""
    return _is_op(match[1]) and (match[2] is None or match[2] in _OVERLOADS)


def _is_public_collective(match: re.Match[str]) -> bool:
    """Check a collective behind the name of its library."""
    words = load_public_words("collectives")
    return match[1] in words or match[1].rstrip("_") in words


def _is_public_node(match: re.Match[str]) -> bool:
    """Check a node of autograd: that of an operator, or one that autograd itself has."""
    is_of_op = match[1] in _list_node_names() and "Backward" in match[0]
    return is_of_op or match[1] in load_public_words("autograd_nodes")


def _is_public_call(match: re.Match[str]) -> bool:
    """Check the name of a call of CUDA, HIP, NCCL, cuBLAS or cuDNN."""
    library, name = match[1], _VERSION.sub("", match[2])
    calls = load_public_words("cuda_calls")
    if library in ("cuda", "cu"):
        return library + name in calls
    if library == "hip":
        return f"cuda{name}" in calls or f"cu{name}" in calls or name in load_public_words("hip_calls")
    if library.endswith("nccl"):
        return name in load_public_words("nccl_calls")
    words = load_public_words("library_calls")
    return "".join(_CAMEL.findall(name)) == name and all(
        word in words or word.isdecimal() or word == "_" for word in _CAMEL.findall(name)
    )


@cache
def _list_node_names() -> frozenset[str]:
    """List the operators as autograd spells them: `MaxPool2DWithIndices`."""
    return frozenset(op.strip("_").title().replace("_", "") for op in load_public_words("aten_ops"))


def _is_op(name: str) -> bool:
    """Check whether a name is an operator's, with or without the underscores around it."""
    return name.strip("_") in load_public_words("aten_ops") or name in load_public_words("other_ops")


def _is_made_of_ops(text: str) -> bool:
    """Check whether the parts of a generated name, between underscores, are operators; a number may follow."""
    words = [word for word in re.sub(r"_\d{1,6}\Z", "", text).split("_") if word]
    ends = {0}
    for end in range(1, len(words) + 1):
        if any(start in ends and _is_op("_".join(words[start:end])) for start in range(max(end - 8, 0), end)):
            ends.add(end)
    return bool(words) and len(words) in ends


def _is_public_identifier(word: str) -> bool:
    """Check whether an identifier of a kernel's name is public."""
    if word in _list_kernel_identifiers() or _is_op(word):
        return True
    if match := _KERNEL_OF_OP.fullmatch(word):
        return _is_op(match[1] or match[2] or match[3])
    return _is_of_scheme(word)


@cache
def _list_kernel_identifiers() -> frozenset[str]:
    """List the identifiers that may be anywhere in the name of a kernel."""
    lists = map(load_public_words, ("kernel_identifiers", "library_kernels", "cpp_words"))
    return frozenset().union(*lists)


def _is_of_scheme(word: str) -> bool:
    """Check whether an identifier follows a scheme of a library: a head, then known words and numbers."""
    letters = _LETTERS.findall(word)
    words = load_public_words("scheme_words")
    return bool(letters) and letters[0] in load_public_words("scheme_heads") and all(part in words for part in letters)


_HOST_NAMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
    (_OP, _is_public_op),
    (_COLLECTIVE, _is_public_collective),
    (_CALL, _is_public_call),
    (_GENERATED, lambda match: _is_made_of_ops(match[1])),
    (_OPTIMIZER, lambda match: match[1] in load_public_words("optimizers")),
    (_MODULE, lambda match: match[1] in load_public_words("modules")),
    (_NODE, _is_public_node),
)
