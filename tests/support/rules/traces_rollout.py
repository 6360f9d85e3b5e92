"""Traces on which the rules of rollout engines fire, and near misses just beyond their thresholds.

Times are whole microseconds. An engine is a list of (prefill requests, running requests, how long).
"""

from __future__ import annotations

from itertools import accumulate

from chrome_builder import annotation
from rules.firing import Firing, Sources


def engine(iterations, start=0):
    """Annotated iterations one after the other; every prompt has 7 tokens."""
    starts = accumulate((dur for _, _, dur in iterations), initial=start)
    return [
        annotation(f"execute_context_{new}({7 * new})_generation_{running}({running})", at, dur)
        for at, (new, running, dur) in zip(starts, iterations, strict=False)
    ]


def falling(last):
    """80 iterations of 90 requests, 20 of `last`: with 40 these make a tenth of the tokens."""
    return engine([(0, 90, 10)] * 80 + [(0, last, 10)] * 20)


def replicas(*walls):
    """Engines that begin together and run a steady batch in twenty iterations."""
    return {
        f"agent_loop_rollout_replica_{number}/rank0.json": engine([(0, 64, wall // 20)] * 20)
        for number, wall in enumerate(walls)
    }


def slow_first(dur):
    """100 iterations of one batch, the first ten of `dur`, the others of 100."""
    return engine([(0, 64, dur)] * 10 + [(0, 64, 100)] * 90)


FIRES: dict[str, Firing] = {
    # 80 · 90 = 7200 of 8000 tokens are 90 %: the tail is 200 of 1000. At the rate before it takes 800 / 9.
    "rollout-tail": Firing(
        falling(40), "the last 10 % of the tokens take 20 % of generation", "high", 111_111, 111_111 / 1_000_000,
        {"tail_ratio": 0.2, "low_batch_ratio": 0.0, "tail": 200_000, "peak_requests": 90},
    ),
    # Replica 1 waits 300 of two times 1000: 15 %. Even ends would be at 850.
    "replica-imbalance": Firing(
        replicas(1000, 700), "replicas are idle for 15 % of generation; the last one is replica 0", "high",
        150_000, 0.15, {"bubble_ratio": 0.15, "behind_median": 150_000, "replicas": 2},
    ),
    # Ten iterations take 30 more than later ones of the same batch, in 1300 + 9000.
    "slow-first-iterations": Firing(
        slow_first(130), "the first 10 % of decode iterations take 1.30 times as long as later ones of equal batch",
        "low", 300_000, 300 / 10_300,
        {"first_over_later": 1.3, "first_pace": 130_000, "generations": 1},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # 41 · 20 = 820 of 8020 tokens: the last 802 take a little less than 200.
    "rollout-tail": falling(41),
    # 280 of 2000 are 14 %.
    "replica-imbalance": replicas(1000, 720),
    "slow-first-iterations": slow_first(129),
}
