"""A trace of a few training batches of one model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from capture.file_names import trace_stem
from capture.torch_trace import export

log = logging.getLogger("capture")


def profile_model(
    model: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    folder: str | Path = "outputs/profile",
    warmup: int = 2,
    active: int = 3,
    rank: int = 0,
) -> list[Path]:
    """Trace `active` batches after `warmup` untraced ones, or fewer if batches run out; then stop training.

    Each batch is a step with the ranges `forward_pass`, `loss_computation`, `backward_pass` and
    `optimizer_step`, one after another. `loss(outputs, batch)` returns the value to backpropagate. Errors of the
    model are raised; a trace that cannot be written is logged, and the list is empty.
    """
    from torch import profiler

    written = list[Path]()

    def save(profile: Any) -> None:
        path = Path(folder).absolute() / f"{trace_stem(rank, 'train')}.json.gz"
        try:
            export(profile, path)
        except Exception as error:  # noqa: BLE001 - a full disk, a lost mount, whatever torch meets
            log.warning("rank %s: the trace %s was not written: %s", rank, path, error)
            return
        written.append(path)

    schedule = profiler.schedule(wait=0, warmup=warmup, active=active, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=save, record_shapes=True) as profile:
        for _, batch in zip(range(warmup + active), batches, strict=False):
            with profiler.record_function("forward_pass"):
                outputs = model(batch)
            with profiler.record_function("loss_computation"):
                value = loss(outputs, batch)
            with profiler.record_function("backward_pass"):
                value.backward()
            with profiler.record_function("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            profile.step()
        if profile.current_action is profiler.ProfilerAction.RECORD:
            # Fewer batches than requested: torch would drop the recorded ones.
            profile.current_action = profiler.ProfilerAction.RECORD_AND_SAVE
    return written
