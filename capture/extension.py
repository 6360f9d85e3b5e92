"""Extension of a worker that lets a driver start and stop its profiler."""

from __future__ import annotations

from typing import Any

from capture.profiler import DistProfiler


class DistProfilerExtension:
    """Worker methods `start_profile`, `stop_profile` and `step_profile`, which a driver calls on all ranks."""

    def __init__(self, profiler: DistProfiler) -> None:
        self.profiler = profiler

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(base.__module__.partition(".")[0] == "verl" for base in cls.__mro__):
            from verl.single_controller.base.decorator import Dispatch, register

            dispatched = register(dispatch_mode=Dispatch.ONE_TO_ALL)
            for name in ("start_profile", "stop_profile", "step_profile"):
                if name not in vars(cls):
                    setattr(cls, name, dispatched(getattr(DistProfilerExtension, name)))

    def start_profile(self, **kwargs: Any) -> None:
        """Begin to profile a step on this rank; see `DistProfiler.start`."""
        self.profiler.start(**kwargs)

    def stop_profile(self, run_command: bool = True) -> None:
        """End it; `run_command` with the last profiled step runs the finish command."""
        self.profiler.stop(run_command=run_command)

    def step_profile(self) -> None:
        """Go on to the next mini-batch."""
        self.profiler.step()

    def __ray_shutdown__(self) -> None:
        """Write open captures when Ray ends the actor gracefully; it kills others without notice."""
        close = getattr(self.profiler, "close", None)
        if close is not None:
            close()
