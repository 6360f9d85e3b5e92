"""Lines of inference servers: vLLM's statistics, preemptions and sleeps; SGLang's batches and retractions."""

from __future__ import annotations

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.engine_log.device_memory import MEMORY_MARKS, add_device_memory_line, add_sleep, add_wake
from tracekit.readers.engine_log.values import EngineValues

VLLM, SGLANG = "vllm", "sglang"

GIB = 2**30

SERVER_MARKS = (
    *("Avg prompt throughput: ", "Decode batch", "Prefill batch", "Retract requests", "Req Time Stats("),
    *("PreemptionMode.", "Sleep mode freed", "CuMemAllocator: sleep freed", " to fall asleep", " to wake up"),
    *("args: {", "server_args=ServerArgs(", "LLM engine (v", "GPU KV cache size: "),
    *MEMORY_MARKS,
)
"""Marks of the lines that are read: each has at least one."""

_ANSI = compile_lazily(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{0,12})?)"
_TIME = compile_lazily(
    r"(?<![0-9-])(?:([0-9]{4})-)?([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
)
_PROCESS = compile_lazily(r"\((?:[\w.:-]{1,80} )?pid=([0-9]{1,10})(?:, ip=([0-9a-fA-F.:]{1,45}))?\)")
_RANKS = compile_lazily(r"^[^\]]{0,60}[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?((?: [DPTE]{2}[0-9]{1,5}){1,6})\]")
_ENGINE = compile_lazily(r"Engine ([0-9]{1,6}): ")
_CORE = compile_lazily(r"EngineCore_(?:DP)?([0-9]{1,6})")

_VLLM_FIELD = compile_lazily(r"([A-Z][A-Za-z ]{2,60}): " + _NUMBER + r"(%?)")
_VLLM_LEVELS = {
    "Avg prompt throughput": "prompt_tokens_per_s",
    "Avg generation throughput": "generation_tokens_per_s",
    "Running": "running",
    "Waiting": "waiting",
    "Pending": "waiting",
    "Swapped": "swapped",
    "Deferred": "deferred",
    "GPU KV cache usage": "kv_ratio",
    "CPU KV cache usage": "cpu_kv_ratio",
    "Prefix cache hit rate": "prefix_hit_ratio",
}
"""Levels of vLLM's line of statistics, by name. `Pending` is V0's word for waiting requests."""

_CUMULATIVE = compile_lazily(r"total_num_cumulative_preemption=([0-9]{1,15})")
_SLEPT = compile_lazily(r"(?:CuMemAllocator: sleep|Sleep mode) freed " + _NUMBER + " GiB")
_IN_USE = compile_lazily(_NUMBER + " GiB memory is still in use")
_SLEEP_TIME = compile_lazily(r"It took " + _NUMBER + r" seconds to (fall asleep|wake up)")
_KV_TOKENS = compile_lazily(r"GPU KV cache size: ([0-9,]{1,20}) tokens")

_SGLANG_FIELD = compile_lazily(r"(#?[a-zA-Z][a-zA-Z _-]{2,40}(?: \(token/s\))?): (?:" + _NUMBER + r"|(True|False))")
_SGLANG_LEVELS = {
    "#running-req": "running",
    "#queue-req": "waiting",
    "token usage": "kv_ratio",
    "full token usage": "kv_ratio",
    "gen throughput (token/s)": "generation_tokens_per_s",
    "input throughput (token/s)": "prompt_tokens_per_s",
    "accept len": "spec_accept_length",
    "cuda graph": "cuda_graph",
}
_SGLANG_COUNTS = {"#new-token": "prefill_tokens", "#cached-token": "cached_tokens"}
_BATCH_MARKS = ("Decode batch", "Prefill batch", "Retract requests")
_RETRACTED = compile_lazily(r"#retracted_reqs: ([0-9]{1,10})")

_SETTING = compile_lazily(
    r"['\"]?\b(max_num_seqs|gpu_memory_utilization|max_num_batched_tokens|tensor_parallel_size|max_model_len|"
    r"mem_fraction_static|max_running_requests|chunked_prefill_size|schedule_conservativeness|tp_size)"
    r"['\"]?\s?[=:]\s?" + _NUMBER
)


_REQUEST = compile_lazily(
    r"Req Time Stats\([^)]{0,400}?input len=([0-9]{1,12}), output len=([0-9]{1,12})[^)]{0,200}\): (.{0,2000})"
)
_DURATION = compile_lazily(r"([a-z_]{1,40})_duration=" + _NUMBER + "ms")
_START = compile_lazily(r"start(?:_time)?=([0-9]{10}(?:\.[0-9]{1,9})?)")


def add_server_line(line: str, number: int, log: EngineValues) -> None:
    """Add the values of one line of a server's log; other lines add nothing."""
    if not any(mark in line for mark in SERVER_MARKS):
        return
    text = _ANSI.sub("", line) if "\x1b" in line else line
    ts_ns = read_line_time(text, log)
    if add_device_memory_line(text, number, ts_ns, log.device_memory):
        return
    if "Req Time Stats(" in text:
        _add_sglang_request(text, number, log)
        return
    if any(mark in text for mark in _BATCH_MARKS):
        _add_sglang_batch(text, number, ts_ns, log)
        return
    is_sglang = "server_args=" in text
    who = (SGLANG, name_ranks(text)) if is_sglang else (VLLM, name_engine(text))
    _, found, statistics = text.partition("Avg prompt throughput: ")
    if found:
        _add_vllm_statistics(found + statistics, number, ts_ns, who, log)
    elif preempted := _CUMULATIVE.search(text):
        log.add(number, ts_ns, who, "preemptions", float(preempted[1]), "total")
    elif is_sglang or "args: {" in text or "LLM engine (v" in text:
        for setting in _SETTING.finditer(text):
            log.add(number, ts_ns, who, setting[1], float(setting[2]), "setting")
    else:
        _add_vllm_sleep(text, number, ts_ns, who, log)


def read_line_time(text: str, log: EngineValues) -> int | None:
    """Read the time at the start of a line, ns on the log's own clock; None without one."""
    found = _TIME.search(text[:200])
    if found is None:
        return None
    return log.clock.convert(found[1], found[2], found[3], (found[4], found[5], found[6], found[7]))


def name_engine(text: str) -> str:
    """Name vLLM's engine by its index, and by the process that printed it where Ray or vLLM names one.

    >>> name_engine("(APIServer pid=5120) INFO 09-01 10:00:00 [loggers.py:259] Engine 000: Avg")
    '0 (pid 5120)'
    """
    index = _ENGINE.search(text) or _CORE.search(text)
    number = str(int(index[1])) if index else "0"
    process = _PROCESS.search(text[:400])
    if process is None:
        return number
    return f"{number} (pid {process[1]}{', ' + process[2] if process[2] else ''})"


def name_ranks(text: str) -> str:
    """Name SGLang's engine by the ranks in the brackets of its line; 0 without them.

    >>> name_ranks("[2026-09-13 16:06:00 DP1 TP0] Decode batch")
    'DP1 TP0'
    """
    ranks = _RANKS.search(text[:200])
    return ranks[1].strip() if ranks else "0"


def _add_vllm_statistics(text: str, number: int, ts_ns: int | None, who: tuple[str, str], log: EngineValues) -> None:
    """Add the fields of vLLM's line of statistics; percentages become ratios."""
    for field in _VLLM_FIELD.finditer(text):
        value = float(field[2]) / (100 if field[3] else 1)
        if field[1] == "Preemptions":
            log.add(number, ts_ns, who, "preemptions", value, "count")
        elif field[1] in _VLLM_LEVELS:
            log.add(number, ts_ns, who, _VLLM_LEVELS[field[1]], value, "level")


def _add_vllm_sleep(text: str, number: int, ts_ns: int | None, who: tuple[str, str], log: EngineValues) -> None:
    """Add what a sleep freed, the times of falling asleep and waking up, and the size of the KV cache."""
    if slept := _SLEPT.search(text):
        freed_bytes = round(float(slept[1]) * GIB)
        log.add(number, ts_ns, who, "sleep_freed_bytes", freed_bytes, "count")
        add_sleep(text, number, freed_bytes, log.device_memory)
    if used := _IN_USE.search(text):
        log.add(number, ts_ns, who, "sleep_in_use_bytes", round(float(used[1]) * GIB), "count")
    if took := _SLEEP_TIME.search(text):
        key = "fall_asleep_s" if took[2] == "fall asleep" else "wake_up_s"
        log.add(number, ts_ns, who, key, float(took[1]), "count")
        if key == "wake_up_s":
            add_wake(text, number, log.device_memory)
    if size := _KV_TOKENS.search(text):
        digits = size[1].replace(",", "")
        if digits:
            log.add(number, ts_ns, who, "kv_cache_tokens", float(digits), "setting")


def _add_sglang_request(text: str, number: int, log: EngineValues) -> None:
    """Add the times of one request, which SGLang logs with `--enable-request-time-stats-logging`."""
    found = _REQUEST.search(text)
    if found is None:
        return
    times = {part[1]: round(float(part[2]) * 1e6) for part in _DURATION.finditer(found[3])}
    queue, forward = times.get("queue"), times.get("forward")
    start = _START.search(found[3])
    log.requests.add(
        number,
        "request",
        ts_ns=round(float(start[1]) * 1e9) if start else None,
        dur_ns=queue + forward if queue is not None and forward is not None else None,
        queue_ns=queue,
        forward_ns=forward,
        prompt_tokens=int(found[1]),
        response_tokens=int(found[2]),
    )


def _add_sglang_batch(text: str, number: int, ts_ns: int | None, log: EngineValues) -> None:
    """Add the fields of a decode or prefill batch, or the requests that were retracted."""
    who = SGLANG, name_ranks(text)
    if retracted := _RETRACTED.search(text):
        log.add(number, ts_ns, who, "preemptions", float(retracted[1]), "count")
        return
    for field in _SGLANG_FIELD.finditer(text):
        name = field[1].lstrip()
        value = float(field[2]) if field[2] else float(field[3] == "True")
        if name in _SGLANG_LEVELS:
            log.add(number, ts_ns, who, _SGLANG_LEVELS[name], value, "level")
        elif name in _SGLANG_COUNTS:
            log.add(number, ts_ns, who, _SGLANG_COUNTS[name], value, "count")
