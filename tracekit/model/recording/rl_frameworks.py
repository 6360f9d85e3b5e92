"""Registry of RL frameworks: the names under which each logs the time, the stages and the work of a step.

Readers recognize logs by it, and answers resolve the stages of a step by it. Timers are seconds of wall time per step,
unless `seconds` says otherwise. `job.run_log.trainer` has the differences between verl's trainers under one name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from tracekit.model.records import dataclass

Place = Literal["step", "sum", "nested", "overlapping", "outside"]
"""Where the time of a timer lies.

`step`: within the step, disjoint from the other timers of this kind. `sum`: the same, but with the timers whose `parent`
it is; it counts only where no such timer is logged. `nested`: within the timer `parent`, or within several if that is None;
without its parent it is `step`. `overlapping`: parallel to the step, so it must never be added. `outside`: between steps.
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
    """Names under which one framework logs its steps, the preferred one first.

    `evidence` matches names that only this framework logs, `step_keys` time the whole step. `timer` matches the names of
    all timers, also of unknown stages; its groups contain the label of the stage. `work` has the names of the tokens,
    samples and images of a step, `cumulative` those that count from the start of the run. `prefixes` are those that its
    loggers may put before every name.
    """

    code: str
    title: str
    evidence: str
    timer: str
    step_keys: tuple[str, ...]
    timers: tuple[StageTimer, ...]
    work: tuple[tuple[str, str], ...] = ()
    cumulative: tuple[tuple[str, str], ...] = ()
    throughput: tuple[str, ...] = ()
    mean_length: tuple[str, ...] = ()
    longest: tuple[str, ...] = ()
    mfu: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Names of the tokens of a step; of its images where a framework counts these."""
        return tuple(key for what, key in self.work if what != "samples")

    def parse_timer(self, name: str) -> str | None:
        """Parse the label of a timer; None for any other name, and for the time of the whole step."""
        match = re.fullmatch(self.timer, name)
        return None if match is None or name in self.step_keys else match[match.lastindex or 0]

    def find_timer(self, name: str) -> StageTimer | None:
        """Find the known timer of this name; None for other names."""
        return _map_framework_timers(self.code).get(name)

    def list_names(self) -> Iterator[str]:
        """List all names that this framework logs and the registry knows."""
        yield from _map_framework_timers(self.code)
        yield from (key for _, key in (*self.work, *self.cumulative))
        for names in (self.step_keys, self.throughput, self.mean_length, self.longest, self.mfu):
            yield from names


def _prefix_names(*names: str) -> tuple[str, ...]:
    """Add to each name the same with the prefix that loggers of the transformers trainer, and others, put before it."""
    return tuple(prefix + name for name in names for prefix in _PREFIXES)


_PREFIXES = ("", "train/")

_VERL_TIMERS = (
    StageTimer("timing_s/gen", "gen"),
    StageTimer("timing_s/generate_async", "gen", "overlapping"),
    StageTimer("timing_s/wait_for_enough_samples", "wait_for_enough_samples"),
    StageTimer("timing_s/switch_wait", "switch_wait"),
    StageTimer("timing_s/switch_to_trainer", "switch_to_trainer"),
    StageTimer("timing_s/switch_to_rollout", "switch_to_rollout"),
    StageTimer("timing_s/reward", "reward"),
    StageTimer("timing_s/old_log_prob", "old_log_prob"),
    StageTimer("timing_s/ref", "ref"),
    StageTimer("timing_s/values", "values"),
    StageTimer("timing_s/adv", "adv"),
    StageTimer("timing_s/update_critic", "update_critic"),
    StageTimer("timing_s/update_actor", "update_actor"),
    StageTimer("timing_s/sync_rollout_weights", "update_weights"),
    StageTimer("timing_s/update_weights", "update_weights", "nested", "timing_s/sync_rollout_weights"),
    # Prefixed twice, by the driver and by its aggregation.
    StageTimer("timing_s/timing_s/param_sync", "update_weights"),
    StageTimer("timing_s/param_sync", "update_weights"),
    StageTimer("timing_s/save_checkpoint", "save"),
    StageTimer("timing_s/dump_rollout_generations", "dump_rollout_generations"),
    StageTimer("timing_s/testing", "test", "outside"),
    StageTimer("timing_s/start_profile", "start_profile", "outside"),
    StageTimer("timing_s/stop_profile", "stop_profile", "outside"),
)
_VERL_TIMER = r"timing_s/(?:timing_s/)?([^/]+)"
_VERL_STEP = ("timing_s/step", "perf/time_per_step")

FRAMEWORKS: tuple[RlFramework, ...] = (
    RlFramework(
        "nemo_rl",
        "NeMo-RL",
        r"timing/(?:train|validation)/",
        r"timing/train/(.+)|timing/validation/(total_validation_time)",
        ("timing/train/total_step_time",),
        (
            StageTimer("timing/train/generation", "gen"),
            StageTimer("timing/train/exposed_generation", "gen"),
            # Its definition contains the stages that it overlaps.
            StageTimer("timing/train/generation_time", "gen", "nested", "timing/train/exposed_generation"),
            StageTimer("timing/train/idle/buffer_starvation", "gen", "nested", "timing/train/exposed_generation"),
            # Within it are `weight_sync` and a part of `exposed_generation`.
            StageTimer("timing/train/idle/refit_bubble", "update_weights", "nested"),
            StageTimer("timing/train/weight_sync", "update_weights"),
            StageTimer("timing/train/offload_before_refit", "offload_before_refit"),
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
            StageTimer("timing/train/idle/validation", "test", "nested", "timing/validation/total_validation_time"),
            StageTimer("timing/validation/total_validation_time", "test"),
        ),
        (
            ("tokens", "train/total_num_tokens"),
            ("tokens", "train/global_valid_toks"),
            ("tokens", "global_valid_toks"),
            ("samples", "train/global_valid_seqs"),
            ("samples", "global_valid_seqs"),
        ),
        throughput=("performance/tokens_per_sec_per_gpu",),
        mean_length=("train/mean_gen_tokens_per_sample",),
        longest=("train/max_gen_tokens_per_sample",),
        mfu=("performance/train_fp_utilization",),
    ),
    RlFramework(
        "verl_omni",
        "VeRL-Omni",
        r"perf/total_num_images\Z|timing_per_image_ms/",
        _VERL_TIMER,
        _VERL_STEP,
        (
            *_VERL_TIMERS,
            StageTimer("timing_s/rollout_corr", "rollout_corr"),
            StageTimer("timing_s/prepare_actor_batch", "prepare_actor_batch"),
            StageTimer("timing_s/feed", "feed"),
            StageTimer("timing_s/teacher", "teacher"),
        ),
        (("images", "perf/total_num_images"),),
        throughput=("perf/throughput",),
        mfu=("perf/mfu/actor",),
    ),
    RlFramework(
        "verl",
        "verl",
        r"timing_s/|timing_per_token_ms/|fully_async/|perf/time_per_step\Z",
        _VERL_TIMER,
        _VERL_STEP,
        _VERL_TIMERS,
        (("tokens", "perf/total_num_tokens"),),
        throughput=("perf/throughput",),
        mean_length=("response_length/mean",),
        longest=("response_length/max",),
        mfu=("perf/mfu/actor",),
    ),
    RlFramework(
        "openrlhf",
        "OpenRLHF",
        r"(?:train/)?timing/(?:make_experience|ppo_train|step_total)\Z",
        r"(?:train/)?timing/(.+)",
        _prefix_names("timing/step_total"),
        (
            StageTimer("timing/generation", "gen"),
            StageTimer("timing/make_experience", "make_experience"),
            StageTimer("timing/ppo_train", "update_actor"),
            StageTimer("timing/broadcast", "update_weights"),
        ),
        (("samples", "rollout/num_samples"),),
        mean_length=_prefix_names("rollout/response_length_mean"),
        prefixes=_PREFIXES,
    ),
    RlFramework(
        "slime",
        "slime",
        r"perf/(?:train_wait_time|wait_time_ratio|rollout_time|actor_train_time|longest_sample_tokens_per_sec)\Z",
        r"perf/([a-z_]+)_time",
        ("perf/step_time", "perf/total_train_time"),
        (
            # The wait for samples.
            StageTimer("perf/train_wait_time", "gen"),
            StageTimer("perf/train_time", "train", "sum"),
            StageTimer("perf/actor_train_time", "update_actor", "step", "perf/train_time"),
            StageTimer("perf/log_probs_time", "old_log_prob", "step", "perf/train_time"),
            StageTimer("perf/ref_log_probs_time", "ref", "step", "perf/train_time"),
            StageTimer("perf/data_preprocess_time", "data_preprocess", "step", "perf/train_time"),
            # `inverse_timer` starts the wait where training ends, so it contains all that runs until training begins again.
            StageTimer("perf/update_weights_time", "update_weights", "nested", "perf/train_wait_time"),
            StageTimer("perf/sleep_time", "sleep", "nested", "perf/train_wait_time"),
            StageTimer("perf/wake_up_time", "wake_up", "nested", "perf/train_wait_time"),
            StageTimer("perf/save_model_time", "save", "nested", "perf/train_wait_time"),
            StageTimer("perf/rollout_time", "gen", "overlapping"),
        ),
        throughput=("perf/tokens_per_gpu_per_sec",),
        mean_length=("rollout/response_len/mean",),
        longest=("rollout/response_len/max",),
    ),
    RlFramework(
        "areal",
        "AReaL",
        r"timeperf/",
        r"timeperf/(.+)",
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
        r"time/step_(.+)",
        ("time/step_total",),
        (
            StageTimer("time/step_generate", "gen"),
            StageTimer("time/step_train", "update_actor"),
            StageTimer("time/step_model_update", "update_weights"),
            # The agentic pipeline. `time/step_val` contains the rollout of its step: no stage of its own.
            StageTimer("time/step_rollout", "gen"),
            StageTimer("time/step_ref_log_probs_values_reward", "ref"),
            StageTimer("time/step_old_log_probs_values", "old_log_prob"),
        ),
        # `system/tps` is that of all GPUs.
        throughput=("system/tps_gpu",),
    ),
    RlFramework(
        "trl",
        "TRL",
        r"(?:train/)?(?:queue_wait_time_s|completions/(?:mean|min|max)_length)\Z|train/step_time\Z|profiling/Time taken: ",
        r"(?:train/)?(?:(queue_wait|weight_sync|forward)_time_s|(wait_scoring)_ms)",
        _prefix_names("step_time"),
        (
            StageTimer("queue_wait_time_s", "gen"),
            StageTimer("weight_sync_time_s", "update_weights"),
            StageTimer("forward_time_s", "forward"),
            StageTimer("wait_scoring_ms", "reward", "overlapping", seconds=1e-3),
        ),
        cumulative=(("tokens", "num_tokens"),),
        mean_length=_prefix_names("completions/mean_length"),
        longest=_prefix_names("completions/max_length"),
        prefixes=_PREFIXES,
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
    return {key: timer for framework in FRAMEWORKS for key, timer in _map_framework_timers(framework.code).items()}


@cache
def _map_framework_timers(code: str) -> Mapping[str, StageTimer]:
    """Map the names of one framework's timers, with and without prefixes."""
    (framework,) = (framework for framework in FRAMEWORKS if framework.code == code)
    return {prefix + timer.key: timer for prefix in framework.prefixes for timer in framework.timers}


@cache
def list_step_keys() -> tuple[str, ...]:
    """List the names under which frameworks log the time of the whole step."""
    return tuple(dict.fromkeys(key for framework in FRAMEWORKS for key in framework.step_keys))
