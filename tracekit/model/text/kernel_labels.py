"""Short readable names of kernels, in place of long C++ template names."""

from __future__ import annotations

import re
from functools import lru_cache

from tracekit.model.text.patterns import compile_lazily

MAX_READ = 2_000
"""Characters of a name that are inspected."""

MAX_FUNCTION = 48
"""Characters of the function name that are shown."""

KINDS: tuple[tuple[str, str], ...] = (
    (r"nccl\w*(?:Kernel|Dev)\w*?_AllReduce", "all_reduce"),
    (r"nccl\w*(?:Kernel|Dev)\w*?_AllGather", "all_gather"),
    (r"nccl\w*(?:Kernel|Dev)\w*?_ReduceScatter", "reduce_scatter"),
    (r"nccl\w*(?:Kernel|Dev)\w*?_Broadcast", "broadcast"),
    (r"nccl\w*(?:Kernel|Dev)\w*?_SendRecv", "send and receive"),
    (r"log_?soft_?max", "log softmax"),
    (r"soft_?max", "softmax"),
    (
        r"flash_bwd|fmha\w*bwd|fmha_cutlassB|sdpa\w*bprop|compute_dot_do_o|convert_dq_to|attention\w*backward",
        "attention backward",
    ),
    (r"flash_fwd|flash_attn|fmha|sdpa|attention", "attention"),
    (r"bn_bw|batch_?norm\w*backward", "batch norm backward"),
    (r"bn_fw|batch_?norm", "batch norm"),
    (r"layer_?norm\w*(?:grad|backward)|GammaBetaBackward", "layer norm backward"),
    (r"layer_?norm", "layer norm"),
    (r"rms_?norm", "RMS norm"),
    (r"group_?norm", "group norm"),
    (r"dgrad", "convolution, gradient of data"),
    (r"wgrad", "convolution, gradient of weights"),
    (r"scudnn|fprop|implicit_convolve|conv_?fwd|winograd|conv2d|igemm_fwd", "convolution"),
    (r"split_?k_?reduce", "split matrix product, sum"),
    (r"(?<!fb)gemm|nvjet|Cijk_|(?<![a-z])bmm_|gemv", "matrix product"),
    (r"rotary", "rotary embedding"),
    (r"embedding\w*backward", "embedding backward"),
    (r"embedding", "embedding"),
    (r"RadixSort|(?<![a-z])sort", "sort"),
    (r"DeviceScan|(?<![a-z])scan", "scan"),
    (r"top_?k", "top-k"),
    (r"CatArray", "concatenate"),
    (r"scatter_gather|vectorized_gather|index_elementwise|indexing_|gpu_index", "index"),
)
"""Name patterns and the operation of the kernel; the first match wins."""

_KINDS = tuple((compile_lazily(pattern, re.IGNORECASE), kind) for pattern, kind in KINDS)

_TYPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (compile_lazily(pattern), kind)
    for pattern, kind in (
        (r"[bB][fF](?:loat)?16|DF16b", "bf16"),
        (r"[hH]alf|(?<![a-z])[fF]p?16", "fp16"),
        (r"tf32", "tf32"),
        (r"[eE]4m3|[eE]5m2|[fF][pP]8", "fp8"),
        (r"(?<![a-z])float|f32f32|(?<![a-z])s(?:gemm|cudnn)", "fp32"),
        (r"(?<![a-z])double|(?<![a-z])dgemm", "fp64"),
        (r"(?<![a-z])long", "int64"),
        (r"(?<![a-z])int(?![a-z])", "int32"),
    )
)
"""Name patterns of the compute type; the first match wins."""

_ELEMENTWISE = compile_lazily(r"elementwise|(?<![A-Za-z])reduce_kernel")
_FUNCTOR = compile_lazily(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+?)<|(\w+?)_?[fF]unctor[<>,]|(\w+?)_kernel_(?:cuda|impl)"
    r"|(\w+?)_(?:cuda_)?kernel[(<]|(\w+?)CUDAKernelImpl|launch_(\w+?)_scalar"
    r"|(Mean|Welford|Norm|ArgMax|ArgMin|Min|Max)Ops<"
)
_FOREACH = compile_lazily(
    r"(?:std|at::native)(?:::\(anonymous namespace\))?::(?!\w+Metadata<)(\w+?)(?:Math)?(?:Functor)?<(?:float|double|c10::)"
)
_ON_LISTS = compile_lazily(r"(?:Unary|Binary|Pointwise|Ternary)Op")
_CAMEL = compile_lazily(r"(?<=[a-z])(?=[A-Z])")
_WRAPPERS = frozenset(["Binary", "AUnary", "BUnary", "Unary", "elementwise", "reduce", "gpu", "index", "func_wrapper"])
_WORDS = {
    "direct_copy": "copy",
    "Welford": "variance",
    "bfloat16_copy": "copy",
    "multiplies": "mul",
    "plus": "add",
    "minus": "sub",
    "divides": "div",
}
_FUSED = compile_lazily(r"triton_(?:poi|red|per|tem)_fused_(\w+?)(?:_\d+)?$")
_DROPPED = compile_lazily(r"\(anonymous namespace\)::|^void |^std::enable_if<.*?>::type ")
_SIGNATURE = compile_lazily(r"(?:[\w~$]+::)*[\w~$]+[<(]")
_VARYING = compile_lazily(r"0x[0-9a-f]+|(?<![a-z])[0-9a-f]{8,}(?![a-z])|\d+", re.IGNORECASE)
_CUTLASS = compile_lazily(r"cutlass\w*::(?:device_kernel|Kernel2?)<([\w:]+)")


@lru_cache(4096)
def shorten_kernel_name(name: str) -> str:
    """Shorten a kernel name to its operation, function and type: `softmax (cunn_SoftMaxForward, bf16)`.

    Names with an unknown operation stay as they are, or become the function name if they are templates.

    >>> shorten_kernel_name("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(c10::BFloat16*)")
    'softmax (cunn_SoftMaxForward, bf16)'
    >>> shorten_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)")
    'add (vectorized_elementwise_kernel, fp32)'
    >>> shorten_kernel_name("my_kernel")
    'my_kernel'
    """
    text = name[:MAX_READ]
    function = _extract_function_name(text)
    kind = _identify_operation(text, function)
    if kind is None:
        return function if is_template_name(text) else name
    if kind == function:
        return name
    if len(function) > MAX_FUNCTION:
        function = f"{function[: MAX_FUNCTION - 1]}…"
    return _format_kernel_label(kind, function, text)


def is_template_name(text: str) -> bool:
    """Whether a text is one C++ function with template or call arguments, not an op, a sentence or a remark.

    >>> is_template_name("void at::native::(anonymous namespace)::f<int>(int)"), is_template_name("aten::mm")
    (True, False)
    >>> is_template_name("replaced: aten::mul_ → aten::_fused_adamw_"), is_template_name("(nothing, after aten::mm<2>)")
    (False, False)
    """
    return _SIGNATURE.match(_DROPPED.sub("", text[:MAX_READ])) is not None


def label_kernel_family(name: str) -> str:
    """Label a kernel without the numbers and template arguments that vary between builds of it.

    >>> label_kernel_family("nvjet_sm90_tst_64x64_64x13_2x1_v_bz_NNT")
    'matrix product (nvjet_sm#_tst_#x#_#x#_#x#_v_bz_NNT)'
    >>> label_kernel_family("void at::native::(anonymous namespace)::f<128, float>(int)")
    'at::native::f'
    """
    text = name[:MAX_READ]
    function = _extract_function_name(text)
    kind = _identify_operation(text, function)
    if kind is None or kind == function:
        return strip_build_details(name).removeprefix("void ")
    return _format_kernel_label(kind, _VARYING.sub("#", function).strip("_#"), text)


def _format_kernel_label(kind: str, function: str, text: str) -> str:
    """Format operation, function and compute type: `softmax (cunn_SoftMaxForward, bf16)`."""
    return f"{kind} ({', '.join(part for part in (function, _identify_compute_type(text)) if part)})"


def strip_build_details(name: str) -> str:
    """Strip numbers, hashes and template arguments, which vary between builds, from a name.

    >>> strip_build_details("triton_poi_fused_add_12") == strip_build_details("triton_poi_fused_add_0")
    True
    >>> strip_build_details("void gemm<128, float>(int)")
    'void gemm'
    """
    depth, outside = 0, []
    plain = name.replace("(anonymous namespace)::", "")
    for part in re.split(r"([<>])", plain.partition("(")[0] or name):
        if part == "<":
            depth += 1
        elif part == ">" and depth:
            depth -= 1
        elif not depth:
            outside.append(part)
    return _VARYING.sub("#", "".join(outside)).strip(" _#") or name


def _extract_function_name(text: str) -> str:
    """Extract the function name, without return type, namespaces, template and arguments."""
    cutlass = _CUTLASS.search(text)
    if cutlass:
        return cutlass[1]
    plain = _DROPPED.sub("", text)
    return re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip() or text


def _identify_operation(text: str, function: str) -> str | None:
    """Identify the operation of a kernel; None if its name does not reveal it."""
    fused = _FUSED.match(text)
    if fused:
        return f"fused {_join_first_ops(fused[1])}"
    if "multi_tensor_apply" in function:
        return f"foreach {_extract_list_functor(text)}".strip()
    if _ELEMENTWISE.search(function):
        return _extract_functor(text)
    for pattern, kind in _KINDS:
        if pattern.search(function if is_template_name(text) else text):
            return kind
    return None


def _join_first_ops(joined: str) -> str:
    """Join the first three words of names joined by `_`; `…` follows if there are more."""
    ops = [op for op in joined.split("_") if op]
    return " ".join([*ops[:3], "…"] if len(ops) > 3 else ops)


def _extract_functor(text: str) -> str | None:
    """Extract the element-wise or reduction operation; None if the name does not reveal it."""
    for groups in _FUNCTOR.findall(text):
        word = next((group for group in groups if group), "")
        if word and word not in _WRAPPERS and not _ELEMENTWISE.search(f"{word}_kernel"):
            return _write_as_words(word)
    return None


def _extract_list_functor(text: str) -> str:
    """Extract the operation of a kernel over lists of tensors; empty if the name does not reveal it."""
    words = _FOREACH.findall(text)
    words += [word.removesuffix("Math") for groups in _FUNCTOR.findall(text) for word in groups if word]
    own = (word for word in words if not _ON_LISTS.match(word) and "multi_tensor_apply" not in word)
    return _write_as_words(next(own, ""))


def _write_as_words(word: str) -> str:
    """Write a C++ name in lower-case words: `GeluBackward` as `gelu backward`."""
    return _WORDS.get(word) or _CAMEL.sub(" ", word).lower()


def _identify_compute_type(text: str) -> str:
    """Identify the compute type; empty if the name does not reveal it."""
    for pattern, kind in _TYPES:
        if pattern.search(text):
            return kind
    return ""
