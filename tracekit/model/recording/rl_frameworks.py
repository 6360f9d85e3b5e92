"""Registry of RL frameworks: the names under which each logs the time, the stages and the work of a step.

Timers are seconds of wall time per step, unless `seconds` says otherwise. The entry of verl is that of its synchronous
trainers; its asynchronous trainers log other things under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from tracekit.model.records import dataclass

Place = Literal["step", "nested", "overlapping", "outside"]
"""Where the time of a timer lies.

`step`: within the step, disjoint from the other timers of this kind. `nested`: within the timer `parent`.
`overlapping`: parallel to the step, so it must never be added. `outside`: between steps.
"""


@dataclass(frozen=True, slots=True)
class StageTimer:
    """One timer of a framework: its name, canonical stage and place. `seconds` is the size of its unit."""

    key: str
    stage: str
    place: Place = "step"
    parent: str | None = None
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class RlFramework:
    """Names under which one framework logs its steps.

    `evidence` matches names that only this framework logs, `step_keys` time the whole step (the first that is logged
    counts). `work` has the names of the tokens, samples and images of a step, `cumulative` those that count from the
    start of the run. `prefixes` are those that its loggers may put before every name.
    """

    name: str
    title: str
    evidence: str
    step_keys: tuple[str, ...]
    timers: tuple[StageTimer, ...]
    work: tuple[tuple[str, str], ...] = ()
    cumulative: tuple[tuple[str, str], ...] = ()
    prefixes: tuple[str, ...] = ("",)


_VERL_TIMERS = (
    StageTimer("timing_s/gen", "gen"),
    StageTimer("timing_s/reward", "reward"),
    StageTimer("timing_s/old_log_prob", "old_log_prob"),
    StageTimer("timing_s/ref", "ref"),
    StageTimer("timing_s/values", "values"),
    StageTimer("timing_s/adv", "adv"),
    StageTimer("timing_s/update_critic", "update_critic"),
    StageTimer("timing_s/update_actor", "update_actor"),
    StageTimer("timing_s/update_weights", "update_weights"),
    StageTimer("timing_s/save_checkpoint", "save"),
    StageTimer("timing_s/dump_rollout_generations", "dump_rollout_generations"),
    StageTimer("timing_s/testing", "test", "outside"),
    StageTimer("timing_s/start_profile", "start_profile", "outside"),
    StageTimer("timing_s/stop_profile", "stop_profile", "outside"),
)

FRAMEWORKS: tuple[RlFramework, ...] = (
    RlFramework(
        "nemo_rl",
        "NeMo-RL",
        r"timing/(?:train|validation)/",
        ("timing/train/total_step_time",),
        (
            StageTimer("timing/train/generation", "gen"),
            StageTimer("timing/train/exposed_generation", "gen"),
            StageTimer("timing/train/idle/buffer_starvation", "gen", "nested", "timing/train/exposed_generation"),
            StageTimer("timing/train/idle/refit_bubble", "update_weights"),
            StageTimer("timing/train/weight_sync", "update_weights", "nested", "timing/train/idle/refit_bubble"),
            StageTimer("timing/train/prepare_for_generation/total", "update_weights"),
            StageTimer(
                "timing/train/prepare_for_generation/transfer_and_update_weights",
                "update_weights",
                "nested",
                "timing/train/prepare_for_generation/total",
            ),
            StageTimer("timing/train/policy_training", "update_actor"),
            StageTimer("timing/train/value_training", "update_critic"),
            StageTimer("timing/train/policy_and_reference_logprobs", "old_log_prob"),
            StageTimer("timing/train/logprob_inference_prep", "logprob_inference_prep"),
            StageTimer("timing/train/training_prep", "training_prep"),
            StageTimer("timing/train/data_processing", "data_processing"),
            StageTimer("timing/train/reward_calculation", "reward"),
            StageTimer("timing/train/advantage_calculation", "adv"),
            StageTimer("timing/train/checkpointing", "save"),
            StageTimer("timing/train/idle/validation", "test"),
            StageTimer("timing/validation/total_validation_time", "test"),
        ),
        (
            ("tokens", "train/total_num_tokens"),
            ("tokens", "train/global_valid_toks"),
            ("tokens", "global_valid_toks"),
            ("samples", "train/global_valid_seqs"),
            ("samples", "global_valid_seqs"),
        ),
    ),
    RlFramework(
        "verl_omni",
        "VeRL-Omni",
        r"perf/total_num_images\Z|timing_per_image_ms/",
        ("timing_s/step", "perf/time_per_step"),
        (
            *_VERL_TIMERS,
            StageTimer("timing_s/rollout_corr", "rollout_corr"),
            StageTimer("timing_s/prepare_actor_batch", "prepare_actor_batch"),
            StageTimer("timing_s/feed", "feed"),
            StageTimer("timing_s/teacher", "teacher"),
        ),
        (("images", "perf/total_num_images"),),
    ),
    RlFramework(
        "verl",
        "verl",
        r"timing_s/|timing_per_token_ms/|fully_async/|perf/time_per_step\Z",
        ("timing_s/step", "perf/time_per_step"),
        _VERL_TIMERS,
        (("tokens", "perf/total_num_tokens"),),
    ),
    RlFramework(
        "openrlhf",
        "OpenRLHF",
        r"(?:train/)?timing/(?:make_experience|ppo_train|step_total)\Z",
        ("timing/step_total",),
        (
            StageTimer("timing/generation", "gen"),
            StageTimer("timing/make_experience", "make_experience"),
            StageTimer("timing/ppo_train", "update_actor"),
            StageTimer("timing/broadcast", "update_weights"),
        ),
        (("samples", "rollout/num_samples"),),
        prefixes=("", "train/"),
    ),
    RlFramework(
        "slime",
        "slime",
        r"perf/(?:train_wait_time|rollout_time|actor_train_time|longest_sample_tokens_per_sec)\Z",
        ("perf/step_time", "perf/total_train_time"),
        (
            StageTimer("perf/train_wait_time", "train_wait"),
            StageTimer("perf/train_time", "train"),
            StageTimer("perf/actor_train_time", "update_actor", "nested", "perf/train_time"),
            StageTimer("perf/log_probs_time", "old_log_prob", "nested", "perf/train_time"),
            StageTimer("perf/ref_log_probs_time", "ref", "nested", "perf/train_time"),
            StageTimer("perf/data_preprocess_time", "data_preprocess", "nested", "perf/train_time"),
            StageTimer("perf/update_weights_time", "update_weights", "nested", "perf/train_wait_time"),
            StageTimer("perf/rollout_time", "gen", "overlapping"),
        ),
    ),
    RlFramework(
        "areal",
        "AReaL",
        r"timeperf/",
        (),
        (
            StageTimer("timeperf/rollout", "gen"),
            StageTimer("timeperf/recompute_logp", "old_log_prob"),
            StageTimer("timeperf/ref_logp", "ref"),
            StageTimer("timeperf/critic_values", "values"),
            StageTimer("timeperf/compute_advantage", "adv"),
            StageTimer("timeperf/compute_advantages", "adv"),
            StageTimer("timeperf/train_step", "update_actor"),
            StageTimer("timeperf/update_weights", "update_weights"),
            StageTimer("timeperf/rollout_pause", "rollout_pause"),
            StageTimer("timeperf/save", "save"),
            StageTimer("timeperf/checkpoint_for_recover", "save"),
            StageTimer("timeperf/eval", "test"),
        ),
        (("samples", "rollout/accepted"),),
    ),
    RlFramework(
        "roll",
        "ROLL",
        r"time/step_(?:generate|train|model_update|total)\Z",
        ("time/step_total",),
        (
            StageTimer("time/step_generate", "gen"),
            StageTimer("time/step_train", "update_actor"),
            StageTimer("time/step_model_update", "update_weights"),
        ),
    ),
    RlFramework(
        "trl",
        "TRL",
        r"(?:train/)?(?:queue_wait_time_s|completions/(?:mean|min|max)_length)\Z|train/step_time\Z|profiling/Time taken: ",
        ("step_time",),
        (
            StageTimer("queue_wait_time_s", "gen"),
            StageTimer("weight_sync_time_s", "update_weights"),
            StageTimer("forward_time_s", "forward"),
            StageTimer("wait_scoring_ms", "reward", "overlapping", seconds=1e-3),
        ),
        cumulative=(("tokens", "num_tokens"),),
        prefixes=("", "train/"),
    ),
)
"""Frameworks, in the order in which their evidence is tried: VeRL-Omni logs the names of verl too."""


def find_framework(names: Iterable[str]) -> RlFramework | None:
    """Find the framework that logs these names; None if no name identifies one.

    >>> find_framework(["loss", "timing_s/step"]).title, find_framework(["loss"])
    ('verl', None)
    """
    known = list(names)
    for framework in FRAMEWORKS:
        evidence = re.compile(framework.evidence)
        if any(evidence.match(name) for name in known):
            return framework
    return None


@cache
def map_timers() -> Mapping[str, StageTimer]:
    """Map the names of stages in the logs of all frameworks to their timers."""
    return {key: timer for framework in FRAMEWORKS for key, timer in _list_keys(framework)}


def _list_keys(framework: RlFramework) -> Iterator[tuple[str, StageTimer]]:
    """Yield each timer of a framework with its names, with and without prefixes."""
    for prefix in framework.prefixes:
        for timer in framework.timers:
            yield prefix + timer.key, timer


@cache
def list_step_keys() -> tuple[str, ...]:
    """List the names under which frameworks log the time of the whole step."""
    keys = (prefix + key for framework in FRAMEWORKS for prefix in framework.prefixes for key in framework.step_keys)
    return tuple(dict.fromkeys(keys))
