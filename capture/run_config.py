"""Profiling settings of a run's whole configuration, and those without effect."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Mapping
from typing import Any

from capture.config import ProfilerConfig
from capture.config_checks import find_problems, is_discrete
from capture.run_blocks import ROLES, GlobalProfile, read_role, read_shared

__all__ = ["ROLES", "GlobalProfile", "colocated", "read_global", "read_role", "surprises", "warn_of", "without_effect"]

log = logging.getLogger("capture")

without_effect: list[str] = []
"""Settings of the run's configuration without their apparent effect, as reported in this process."""


def read_global(config: Mapping[str, Any]) -> GlobalProfile:
    """Read the global block of a run's configuration, or the block alone; all defaults if there is none.

    Unknown keys are ignored with a warning: many versions share the block. In the form of 2025-06
    (`trainer.profile_steps` …) the tool is nsys, because there was no other. The `surprises` of a whole
    configuration are logged once.
    """
    profile = read_shared(config)
    warn_of(config)
    return profile


def warn_of(config: Mapping[str, Any], total_steps: int | None = None) -> None:
    """Log what `surprises` says of a whole configuration, each sentence once; `total_steps` where the run knows it."""
    with contextlib.suppress(AssertionError):  # values that verl refuses: `read_role` raises
        for text in find_problems(config, total_steps):
            _warn_run_once(text)


@functools.cache
def _warn_run_once(text: str) -> None:
    """Record a warning, and log it once per run: in its driver, or on rank 0 without one, as under torchrun.

    A worker of verl's groups on Ray has a driver; verl sets a variable for that.
    """
    without_effect.append(text)
    speaks = os.environ.get("RANK", "0") == "0" and os.environ.get("WG_BACKEND") != "ray"
    log.log(logging.WARNING if speaks else logging.INFO, "profiler configuration: %s", text)


def colocated(blocks: Mapping[str, ProfilerConfig]) -> ProfilerConfig:
    """Choose the configuration of roles that share one worker: the actor's, else the first one.

    One process makes one capture at a time. Raises `ValueError` if two enabled blocks disagree
    on `discrete`: a stage's capture would end that of the whole step.
    """
    if not blocks:
        raise ValueError("a worker without any role has no profiler configuration")
    modes = {role: is_discrete(block) for role, block in blocks.items() if block.enable}
    if len(set(modes.values())) > 1:
        listed = ", ".join(f"{role}: {mode}" for role, mode in modes.items())
        raise ValueError(f"roles in one worker must agree on discrete, got {listed}")
    return blocks.get("actor") or next(iter(blocks.values()))


def surprises(config: Mapping[str, Any]) -> list[str]:
    """List settings of a run's configuration without their apparent effect, one sentence each."""
    return [*find_problems(config)]
