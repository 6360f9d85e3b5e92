"""Scrapes of the Prometheus endpoint of vLLM and SGLang, one or several in a file."""

from __future__ import annotations

from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.engine_log.server_lines import SGLANG, VLLM
from tracekit.readers.engine_log.values import EngineValues

SAMPLE_HINT = compile_lazily(r"^(?:# (?:HELP|TYPE) )?(?:vllm|sglang):[a-z_]+")

SCRAPE_STARTS = ("vllm:", "sglang:")
"""Starts of the lines of samples; from the first one on, a file has scrapes only."""

_SAMPLE = compile_lazily(
    r"(vllm|sglang):([a-z0-9_]{1,100})(\{[^}]{0,4000}\})?\s+([-+0-9.eE]{1,40}|NaN|[+-]Inf)(?:\s+([0-9]{1,19}))?\s*\Z"
)
_LABEL = compile_lazily(r'([a-zA-Z_]{1,60})="((?:[^"\\]|\\.){0,300})"')
_SCRAPE_TIME = compile_lazily(r"(?:#[ \w:=-]{0,40}?)?([0-9]{10})(?:\.([0-9]{1,9}))?\s*\Z")

_LEVELS = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_requests_swapped": "swapped",
    "kv_cache_usage_perc": "kv_ratio",
    "gpu_cache_usage_perc": "kv_ratio",
    "num_running_reqs": "running",
    "num_queue_reqs": "waiting",
    "token_usage": "kv_ratio",
    "gen_throughput": "generation_tokens_per_s",
    "cache_hit_rate": "prefix_hit_ratio",
    "spec_accept_length": "spec_accept_length",
}
_TOTALS = {
    "num_preemptions": "preemptions",
    "num_retracted_reqs": "preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "gpu_prefix_cache_queries": "prefix_queries",
    "gpu_prefix_cache_hits": "prefix_hits",
    "request_success": "requests",
    "num_requests": "requests",
}
"""Counters by name, without the ending `_total`."""

_MEANS = {
    "request_queue_time_seconds": "queue_s",
    "queue_time_seconds": "queue_s",
    "request_prefill_time_seconds": "prefill_s",
    "request_decode_time_seconds": "decode_s",
    "time_to_first_token_seconds": "first_token_s",
    "e2e_request_latency_seconds": "latency_s",
}
"""Histograms of times per request, whose sums and counts are kept."""


@dataclass(slots=True)
class Scrape:
    """Position in a file of scrapes: the line at which the current one begins, its time, its samples so far."""

    line: int = 0
    ts_ns: int | None = None
    next_ns: int | None = None
    seen: set[str] = field(default_factory=set[str])
    sums: dict[tuple[tuple[str, str], str], float] = field(default_factory=dict["tuple[tuple[str, str], str]", float])


def add_scrape_line(line: str, number: int, scrape: Scrape, log: EngineValues) -> None:
    """Add the sample of one line. A sample that was seen before begins a new scrape.

    A line with a time in Unix seconds (`date +%s` before each scrape) is the time of the samples after it.
    """
    found = _SAMPLE.match(line)
    if found is None:
        keep_scrape_time(line, scrape)
        return
    system, name, labels, text, stamp = found.groups()
    identity = f"{name}{labels or ''}"
    if not scrape.line or identity in scrape.seen or scrape.next_ns is not None:
        finish_scrape(scrape, log)
        scrape.line, scrape.ts_ns, scrape.next_ns = number, scrape.next_ns, None
        scrape.seen.clear()
    if len(scrape.seen) < 100_000:
        scrape.seen.add(identity)
    if stamp and scrape.ts_ns is None:
        scrape.ts_ns = int(stamp) * 10**6
    try:
        value = float(text)
    except ValueError:
        return
    _add_sample((VLLM if system == "vllm" else SGLANG, _name_engine_of(labels or "")), name, value, scrape, log)


def keep_scrape_time(line: str, scrape: Scrape) -> None:
    """Keep the time in Unix seconds of a line without a sample, for the scrape after it."""
    time = _SCRAPE_TIME.match(line) if line[:1] in _TIME_STARTS else None
    if time:
        scrape.next_ns = int(time[1]) * 10**9 + int((time[2] or "0").ljust(9, "0"))


_TIME_STARTS = frozenset("#0123456789")


def _add_sample(who: tuple[str, str], name: str, value: float, scrape: Scrape, log: EngineValues) -> None:
    """Add a gauge, or sum a counter over labels such as the reason why requests finished."""
    total = _TOTALS.get(name.removesuffix("_total"))
    base, _, part = name.rpartition("_")
    if name in _LEVELS:
        log.add(scrape.line, scrape.ts_ns, who, _LEVELS[name], value, "level")
    elif total:
        scrape.sums[who, total] = scrape.sums.get((who, total), 0.0) + value
    elif base in _MEANS and part in ("sum", "count"):
        key = who, f"{_MEANS[base]}_{part}"
        scrape.sums[key] = scrape.sums.get(key, 0.0) + value


def finish_scrape(scrape: Scrape, log: EngineValues) -> None:
    """Add the counters of a scrape, each summed over its labels."""
    for (who, key), value in scrape.sums.items():
        log.add(scrape.line, scrape.ts_ns, who, key, value, "total")
    scrape.sums.clear()


def _name_engine_of(labels: str) -> str:
    """Name the engine by the labels of a sample: vLLM's `engine`, SGLang's ranks; 0 without them."""
    values: dict[str, str] = {found[1]: found[2] for found in _LABEL.finditer(labels)}
    if "engine" in values:
        return values["engine"]
    ranks = [f"{short}{values[name]}" for name, short in _RANK_LABELS.items() if values.get(name)]
    return " ".join(ranks) or "0"


_RANK_LABELS = {"dp_rank": "DP", "pp_rank": "PP", "tp_rank": "TP"}
