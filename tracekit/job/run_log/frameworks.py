"""Names under which RL frameworks log step time, timers, tokens and lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework: the evidence of its logs, and its names by quantity, the preferred one first.

    `timer` matches the names of timers in seconds; its group is the label of the stage.
    """

    name: str
    evidence: str
    timer: str
    step: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    throughput: tuple[str, ...] = ()
    mean_length: tuple[str, ...] = ()
    longest: tuple[str, ...] = ()
    mfu: tuple[str, ...] = ()
    stages: tuple[tuple[str, str], ...] = ()
    """Stages by label, where only this framework calls them so."""

    def name_stage(self, label: str) -> str:
        """Name the canonical stage of a timer's label."""
        return dict(self.stages).get(label) or get_canonical_stage(label)

    def parse_timer(self, name: str) -> str | None:
        """Parse the label of a timer; None for any other name, and for the time of the whole step."""
        match = re.fullmatch(self.timer, name)
        return None if match is None or name in self.step else match[1]


FRAMEWORKS = (
    Framework(
        "NeMo-RL",
        r"timing/train/total_step_time",
        r"timing/(?:train|validation)/(.+)",
        ("timing/train/total_step_time",),
        ("train/total_num_tokens", "train/global_valid_toks"),
        ("performance/tokens_per_sec_per_gpu",),
        ("train/mean_gen_tokens_per_sample",),
        ("train/max_gen_tokens_per_sample",),
        ("performance/train_fp_utilization",),
        (("policy_and_reference_logprobs", "old_log_prob"), ("prepare_for_generation/total", "update_weights")),
    ),
    Framework(
        "VeRL-Omni",
        r"perf/total_num_images|timing_per_image_ms/.*",
        r"timing_s/(?:timing_s/)?([^/]+)",
        ("timing_s/step", "perf/time_per_step"),
        ("perf/total_num_images",),
        ("perf/throughput",),
        mfu=("perf/mfu/actor",),
    ),
    Framework(
        "verl",
        r"timing_s/.*|perf/time_per_step|fully_async/.*",
        r"timing_s/(?:timing_s/)?([^/]+)",
        ("timing_s/step", "perf/time_per_step"),
        ("perf/total_num_tokens",),
        ("perf/throughput",),
        ("response_length/mean",),
        ("response_length/max",),
        ("perf/mfu/actor",),
    ),
    Framework(
        "OpenRLHF",
        r"(?:train/)?timing/step_total",
        r"(?:train/)?timing/(.+)",
        ("timing/step_total", "train/timing/step_total"),
        mean_length=("rollout/response_length_mean", "train/rollout/response_length_mean"),
        stages=(("ppo_train", "update_actor"), ("broadcast", "update_weights")),
    ),
    Framework(
        "slime",
        r"perf/(?:step_time|wait_time_ratio|train_wait_time)",
        r"perf/([a-z_]+)_time",
        ("perf/step_time",),
        throughput=("perf/tokens_per_gpu_per_sec",),
        mean_length=("rollout/response_len/mean",),
        longest=("rollout/response_len/max",),
        stages=(
            ("train_wait", "gen"),
            ("actor_train", "update_actor"),
            ("log_probs", "old_log_prob"),
            ("ref_log_probs", "ref"),
        ),
    ),
    Framework(
        "AReaL",
        r"timeperf/.*",
        r"timeperf/(.+)",
        (),
        stages=(
            ("rollout", "gen"),
            ("recompute_logp", "old_log_prob"),
            ("ref_logp", "ref"),
            ("critic_values", "values"),
            ("compute_advantages", "adv"),
            ("train_step", "update_actor"),
            ("eval", "test"),
        ),
    ),
    Framework(
        "ROLL",
        r"time/step_(?:total|generate|train)",
        r"time/step_(.+)",
        ("time/step_total",),
        throughput=("system/tps",),
        stages=(("generate", "gen"), ("train", "update_actor"), ("model_update", "update_weights")),
    ),
    Framework(
        "TRL",
        r"step_time|(?:train/)?completions/mean_length",
        r"(?:train/)?(queue_wait|weight_sync|forward)_time_s",
        ("step_time", "train/step_time"),
        mean_length=("completions/mean_length", "train/completions/mean_length"),
        longest=("completions/max_length", "train/completions/max_length"),
    ),
)
"""The frameworks, those with the most telling names first."""


def find_log_framework(names: Iterable[str]) -> Framework | None:
    """Find the framework that logs these names; None if none does.

    >>> find_log_framework(["actor/lr", "timing_s/gen"]).name, find_log_framework(["loss"])
    ('verl', None)
    """
    known = list(names)
    for framework in FRAMEWORKS:
        if any(re.fullmatch(framework.evidence, name) for name in known):
            return framework
    return None
