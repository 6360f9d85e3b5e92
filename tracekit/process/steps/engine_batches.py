"""Parsing of batch sizes from the iteration names of serving engines (vLLM, SGLang, ATOM, diffusion)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tracekit.model.text.patterns import compile_lazily

MAX_COUNT = 10**9
"""Largest plausible count of requests or tokens."""


MAX_PAIRS = 10**18
"""Largest plausible count of token pairs."""


class EngineBatch(NamedTuple):
    """Batch of one iteration: prefill requests, decode requests, and their tokens.

    `context_tokens` is the sum over requests of the tokens they attend to; `attention_pairs` the sum of
    queries × these. The images of a diffusion engine count as decode requests without tokens.
    """

    prefill_requests: int
    prefill_tokens: int | None
    decode_requests: int
    decode_tokens: int | None
    context_tokens: int | None = None
    attention_pairs: int | None = None


_CONTEXT = compile_lazily(r"execute_(?:\d+_)?context_(\d+)\(([^()]*)\)_generation_(\d+)\(([^()]*)\)", re.ASCII)
_NEW = compile_lazily(r"execute_new_(\d+)_cached_(\d+)\Z", re.ASCII)
_STEP = compile_lazily(r"step\[(\w+)((?: \w+=\d+)*)\]\Z", re.ASCII)
_FIRST = compile_lazily(r"(?:sq)?(\d+)", re.ASCII)
_SUMS = compile_lazily(r"sq\d+sk(\d+)sqsq\d+sqsk(\d+)\Z", re.ASCII)
_ATOM = compile_lazily(r"(?:eager_)?(prefill|decode)\[(bs=[^\]]*(?:\[[^\]]*\][^\]]*)?)\]\Z", re.ASCII)
_PAIR = compile_lazily(r"(?<![^ ])(\w+)=(\d+)(?:/\d+)?(?![^ ])", re.ASCII)
_DIFFUSION = compile_lazily(r"execute_diffusion_(\d+)_\d+x\d+\Z", re.ASCII)


@lru_cache(4096)
def parse_engine_batch(name: str) -> EngineBatch | None:
    """Parse the batch from the name of an iteration; None for other names.

    >>> parse_engine_batch("execute_context_1(512)_generation_63(63)")[:4]
    (1, 512, 63, 63)
    >>> parse_engine_batch("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)")
    EngineBatch(prefill_requests=0, prefill_tokens=0, decode_requests=32, decode_tokens=32, context_tokens=55086, attention_pairs=55086)
    >>> parse_engine_batch("step[EXTEND bs=2 toks=1025]")[:4], parse_engine_batch("step[DECODE bs=8]").decode_tokens
    ((2, 1025, 0, 0), 8)
    >>> parse_engine_batch("prefill[bs=2 tok=14721 ctx=[7803, 6918]]")[:4], parse_engine_batch("decode[bs=117/128 tok=117 d=117]")[:4]
    ((2, 14721, 0, 0), (0, 0, 117, 117))
    >>> parse_engine_batch("execute_diffusion_2_1024x1024")[:4]
    (0, 0, 2, 0)
    """
    if not name.startswith(("execute_", "step[", "prefill[", "decode[", "eager_decode[")):
        return None
    parsed = _parse_bracket_name(name) if name.endswith("]") else _parse_execute_name(name)
    if parsed is None or (parsed.attention_pairs or 0) > MAX_PAIRS:
        return None
    return parsed if all((n or 0) <= MAX_COUNT for n in parsed[:5]) else None


def _parse_execute_name(name: str) -> EngineBatch | None:
    """Parse names of vLLM and diffusion engines, which begin with `execute_`."""
    if match := _CONTEXT.match(name):
        requests = (int(match[1]), _parse_run_tokens(match[2]), int(match[3]), _parse_run_tokens(match[4]))
        return EngineBatch(*requests, *_parse_attention_sums(match[2], match[4]))
    if match := _DIFFUSION.match(name):
        return EngineBatch(0, 0, int(match[1]), 0)
    if match := _NEW.match(name):
        # Cached requests come from earlier iterations: nearly all decode, some may still prefill.
        return EngineBatch(int(match[1]), None, int(match[2]), None)
    return None


def _parse_bracket_name(name: str) -> EngineBatch | None:
    """Parse names of SGLang and ATOM, which list the batch in brackets."""
    if match := _ATOM.match(name):
        return _make_atom_batch(match[1], {key: int(value) for key, value in _PAIR.findall(match[2])})
    if match := _STEP.match(name):
        pairs = dict(pair.split("=") for pair in match[2].split())
        return _make_sglang_batch(match[1].upper(), {key: int(value) for key, value in pairs.items()})
    return None


def _parse_run_tokens(text: str) -> int | None:
    """Parse the tokens to run, which come first in all spellings of the parentheses."""
    match = _FIRST.match(text)
    return int(match[1]) if match else None


def _parse_attention_sums(*texts: str) -> tuple[int | None, int | None]:
    """Parse (Σ sk, Σ sqsk) from the parentheses of vLLM's names; None if they only have the tokens."""
    sums = [_SUMS.match(text) for text in texts]
    if any(match is None for match in sums):
        return None, None
    keys, pairs = (sum(int(match[n]) for match in sums if match) for n in (1, 2))
    return keys, pairs


def _sum_listed_attention(values: dict[str, int]) -> tuple[int | None, int | None]:
    """Sum `sk=` and `sqsk=` of listed values, alone or by kind of request (`c_sk=`, `g_sk=`)."""
    keys, pairs = (
        [values[name] for name in (kind, f"c_{kind}", f"g_{kind}") if name in values] for kind in ("sk", "sqsk")
    )
    return (sum(keys) if keys else None), (sum(pairs) if pairs else None)


def _make_atom_batch(phase: str, values: dict[str, int]) -> EngineBatch:
    """Build ATOM's batch: `prefill[bs=… tok=… …]` and `decode[bs=… tok=… p=… d=… spec=…]`, with `p` prompts.

    With speculative tokens (`spec`) more tokens run than are generated.
    """
    size, tokens, sums = values.get("bs", 0), values.get("tok"), _sum_listed_attention(values)
    if phase == "prefill":
        return EngineBatch(size, tokens, 0, 0, *sums)
    prompts = values.get("p", 0)
    decode = values.get("d", max(size - prompts, 0))
    speculated = values.get("spec", 0)
    prompt_tokens = None if tokens is None else max(tokens - decode * (1 + speculated), 0)
    of_prompts = prompt_tokens if prompts else 0
    return EngineBatch(prompts, of_prompts, decode, None if speculated else decode, *sums)


def _make_sglang_batch(mode: str, values: dict[str, int]) -> EngineBatch | None:
    """Build SGLang's batch: `step[MODE bs=… …]`; None for draft-model steps, which are part of an iteration."""
    size, sums = values.get("bs", 0), _sum_listed_attention(values)
    if mode == "IDLE":
        return EngineBatch(0, 0, 0, 0, *sums)
    if mode == "DECODE":
        return EngineBatch(0, 0, size, values.get("g_sq", size), *sums)
    if mode == "TARGET_VERIFY":
        return EngineBatch(0, 0, size, None, *sums)
    if mode in ("EXTEND", "PREFILL"):
        return EngineBatch(size, values.get("toks", values.get("c_sq")), 0, 0, *sums)
    if mode == "MIXED":
        decode = values.get("g", values.get("dec", 0))
        prefill = values.get("c", max(size - decode, 0))
        prompt_tokens = values.get("ext", values.get("c_sq"))
        return EngineBatch(prefill, prompt_tokens, decode, values.get("g_sq", decode), *sums)
    return None


_EXECUTE = compile_lazily(r"execute_\w", re.ASCII)


@lru_cache(4096)
def is_iteration_name(name: str) -> bool:
    """Check whether a range of this name is one iteration of an engine, with or without batch details.

    >>> [is_iteration_name(n) for n in ("execute_model", "step[DECODE bs=8]", "step[DRAFT bs=8]", "executor")]
    [True, True, False, False]
    """
    return parse_engine_batch(name) is not None or _EXECUTE.match(name) is not None
