"""Measures what capture costs when it is off, against verl's profiler in the same run.

    python tests/benchmarks/capture_cost.py

Run with a Python that has verl; this checkout must be importable. An annotated method is called while
profiling is disabled, and while it is enabled but the step is not one of those profiled. Processor time,
the fastest of several rounds taken in turns; imports in processes of their own. Exit status 1: capture is
not ten times cheaper than verl, or importing it takes 60 ms or more.
"""

import subprocess
import sys
import time

CALLS, ROUNDS, IMPORTS = 20_000, 9, 5
RATIO, IMPORT_MS = 10.0, 60.0


def seconds(call):
    """Processor time of one call, ns."""
    start = time.process_time_ns()
    for _ in range(CALLS):
        call()
    return (time.process_time_ns() - start) / CALLS


def worker(module, *, enable):
    """A worker with one stage, of which no step is profiled."""

    class Worker:
        def __init__(self, profiler):
            self.profiler = profiler

        @module.DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
        def stage(self):
            return None

        def plain(self):
            return None

    from capture import TorchProfilerToolConfig

    tool = TorchProfilerToolConfig()
    config = module.ProfilerConfig(tool="torch", enable=enable, save_path="/nowhere", tool_config=tool)
    return Worker(module.DistProfiler(0, config, tool_config=tool))


def import_ms():
    """Processor time of importing capture in a fresh process, ms."""
    code = "import time; t = time.process_time(); import capture; print(time.process_time() - t)"
    command = [sys.executable, "-c", code]
    runs = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(IMPORTS))  # fmt: skip
    return min(float(done.stdout) for done in runs) * 1e3


def main():
    """Measure, print, and say by the exit status whether it is cheap enough."""
    import verl.utils.profiler as verl

    import capture

    ms = import_ms()
    made = {
        (name, enable): worker(module, enable=enable)
        for name, module in (("verl", verl), ("capture", capture))
        for enable in (False, True)
    }
    best = dict.fromkeys([*made, ("plain", None)], float("inf"))
    for _ in range(ROUNDS):
        for key, one in made.items():
            best[key] = min(best[key], seconds(one.stage))
        best["plain", None] = min(best["plain", None], seconds(made["capture", False].plain))
    print(f"plain method: {best['plain', None]:.0f} ns a call")
    ratios = []
    for enable in (False, True):
        ours, theirs = best["capture", enable], best["verl", enable]
        ratios.append(theirs / ours)
        what = "enabled, another step" if enable else "disabled"
        print(f"annotated, {what}: capture {ours:.0f} ns, verl {theirs:.0f} ns, {ratios[-1]:.1f}x")
    print(f"import capture: {ms:.0f} ms")
    return int(min(ratios) < RATIO or ms >= IMPORT_MS)


if __name__ == "__main__":
    sys.exit(main())
