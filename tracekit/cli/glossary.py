"""Glossary of the field's words, as in docs/glossary.md; `render.words` has those that a screen explains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

TERMS: Mapping[str, str] = {
    "all_gather, all_reduce, reduce_scatter, all_to_all": "collectives: each rank sends data, each rank receives data",
    "algbw, busbw": "algbw is the bytes of the message over the time of the collective, for any number of ranks; busbw is the traffic of each link",
    "allocator": "PyTorch's CUDA caching allocator: it reserves segments from the driver and cuts them into blocks",
    "bubble": "time in which a rank, replica or pipeline stage idles while others work",
    "capture": "one recording; also the name of the profiler package that a run can switch to",
    "caveat": "a reason why a finding may be wrong for this run",
    "correlation": "the id that links a kernel with the call that launched it",
    "CPU-bound": "the GPU waits for the host; launch-bound is the most common case",
    "critical path": "the work and the waits that decided when the run ended; shortening other work changes nothing ([what-if](whatif.md#critical-path-and-ledger))",
    "device op": "a kernel, copy, fill or collective on a GPU",
    "exposed communication": "collectives not overlapped with compute",
    "finding": "one claim with its numbers, a fix to try, and the predicted step with that fix; the first screen lists them as top issues",
    "fragmentation": "reserved memory that is free, but in pieces too small for the next request",
    "FSDP": "sharded training: weights are gathered before use, gradients are reduced afterwards",
    "gen, old_log_prob, ref, values, update_actor, update_critic": "stages of PPO and GRPO: generation, log probabilities under the old policy and the reference, values, the two updates",
    "GPU busy": "share of a window in which the GPU does any work",
    "H2D, D2H, D2D, P2P": "copies: host to GPU, GPU to host, within a GPU's memory, between GPUs",
    "KV cache": "keys and values of earlier tokens, which a rollout engine keeps in GPU memory",
    "launch-bound": "kernels are so short that the host cannot launch them fast enough",
    "ledger": "for each rank, the owner of every nanosecond without device work ([what-if](whatif.md#critical-path-and-ledger))",
    "MFU, roofline": "achieved FLOP rate as a share of the card's peak, and the limit set by compute or memory bandwidth; tracekit reports the rate only ([limits](method.md#not-measured))",
    "off-policy staleness": "how many policy updates old the samples of an update are; [not measured](method.md#not-measured)",
    "OOM": "out of memory: a request that the allocator could not serve",
    "overlap": "communication and compute at the same time; communication without overlap is exposed",
    "pageable, pinned": "host memory that the system may move (its copies are slow and block), and host memory that it may not",
    "preemption": "a rollout engine evicts a running request to free KV cache, and computes it again later; [not measured](method.md#not-measured)",
    "prefill, decode": "the two phases of generation: processing the prompt, then one token per iteration",
    "rank": "one process of the job, by its number in torch.distributed",
    "replica": "one of several equal rollout engines",
    "reserved, requested, in use": "memory that the allocator has from the driver; that the program asked for; that is handed out, rounded up to block sizes",
    "residual, unexplained": "in a replay, time that no recorded or inferred dependency explains ([what-if](whatif.md#unexplained-time))",
    "role": "the job of a worker: actor-rollout-ref, value-model …",
    "rule": "the check for one kind of finding; it has a page and thresholds",
    "segment": "a stretch of memory from the driver; also the time between two collectives",
    "source": "one file, or one process in it",
    "stage": "a named part of a step",
    "step": "one round of training; in an engine one iteration",
    "straggler": "a rank that the others wait for, step after step",
    "stream": "a queue of a GPU: work in one stream runs in order, work in two streams can run at the same time",
    "wall": "elapsed time, as opposed to CPU time",
    "warm-up": "the first step under the profiler, and the first calls of a run (context, JIT, graph capture); excluded from means",
    "window": "the time that a number covers: a step, a stage or the capture",
    "Σ": "a sum, over GPUs, ranks or calls, as the title states",
}
"""Meanings in Markdown by word, or by words that share a meaning, separated by commas."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)(?:#[^)]*)?\)")


def list_glossary() -> Iterator[tuple[str, str, str]]:
    """List (word, heading, meaning with paths in place of links) of each word; words with one meaning share a heading.

    >>> next(entry for entry in list_glossary() if entry[0] == "busbw")
    ('busbw', 'busbw', "bytes per second over each GPU's link, comparable to its bandwidth")
    """
    from tracekit.render.words import MEANINGS

    for heading, meaning in {**TERMS, **MEANINGS}.items():
        for word in heading.split(", "):
            if word in MEANINGS and heading != word:
                continue
            yield word, heading, _LINK.sub(r"\1: docs/\2", meaning)
