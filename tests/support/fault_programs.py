"""Programs that go wrong while they are profiled: `python fault_programs.py WHO FAULT FOLDER`.

WHO is `nobody` (no profiler at all), `verl` or `capture`. Each prints a line of JSON at its end: what the training
computed. What the profiler left is in FOLDER. `FAULTS` says of each what it is, and which ranges the traces should hold.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A program, what it is about, and the ranges of the traces that should be there afterwards."""

    run: Any
    about: str
    traces: list[dict[str, int]] | None
    exit: int = 0


FAULTS: dict[str, Fault] = {}


def fault(about, traces, exit=0):  # noqa: A002 - as in Fault
    """Adds a program to `FAULTS`."""

    def add(function):
        FAULTS[function.__name__.replace("_", " ")] = Fault(function, about, traces, exit)
        return function

    return add


class Nobody:
    """A profiler that is none."""

    def __init__(self, *_args, **_kwargs):
        pass

    def start(self, **_told):
        """Nothing."""

    stop = step = start

    @classmethod
    def annotate(cls, *_args, **_kwargs):
        """A decorator that does nothing."""
        return lambda function: function


class Toolbox:
    """What a program is given: a class of workers, marks, and the folder of its profile."""

    def __init__(self, who, folder):
        self.who, self.folder = who, Path(folder)
        if who == "nobody":
            self.profiler, self.configs, self.marked_timer = Nobody, None, _unmarked
        elif who == "verl":
            from verl.utils.profiler import DistProfiler, config, marked_timer

            self.profiler, self.configs, self.marked_timer = DistProfiler, config, marked_timer
        else:
            import capture

            self.profiler, self.configs = capture.DistProfiler, capture
            self.marked_timer = capture.marked_timer
        self.Worker = _worker_class(self.profiler)

    def worker(self, rank=0, tool="torch", *, save_path=None, enable=True, prefix="actor", **settings):
        """A worker with a profiler of this tool."""
        if self.configs is None:
            return self.Worker(Nobody())
        kinds = {"torch": "TorchProfilerToolConfig", "nsys": "NsightToolConfig", "torch_memory": "TorchMemoryToolConfig"}  # fmt: skip
        if "schedule" in settings:
            settings["schedule"] = self.configs.TorchProfilerScheduleConfig(**settings["schedule"])
        if tool == "torch":
            settings["contents"] = ["cpu"]
        made = getattr(self.configs, kinds[tool])(**settings)
        config = self.configs.ProfilerConfig(
            tool=tool, enable=enable, all_ranks=enable, tool_config=made, save_path=str(save_path or self.folder),
        )  # fmt: skip
        return self.Worker(self.profiler(rank, config, made, save_file_prefix=prefix))


@contextmanager
def _unmarked(name, timing_raw, **_marks):
    start = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - start


def _worker_class(profiler):
    class Worker:
        def __init__(self, made):
            self.profiler, self.calls = made, 0

        @profiler.annotate(role="work")
        def work(self, number=1.0):
            """A stage."""
            import torch

            self.calls += 1
            return float(torch.full((32, 32), float(number)).mm(torch.ones(32, 32)).sum())

        @profiler.annotate(role="fails")
        def fail(self):
            """A stage that raises."""
            self.calls += 1
            raise ValueError("the stage's own")

        @profiler.annotate(role="again")
        def again(self, depth):
            """A stage that calls itself."""
            return self.work() if depth == 0 else self.again(depth - 1)

        @profiler.annotate(role="streams")
        def stream(self, count):
            """A stage that is a generator."""
            for number in range(count):
                yield self.work(number)

        @profiler.annotate(role="waits")
        async def wait(self, seconds):
            """A stage that is a coroutine."""
            await asyncio.sleep(seconds)
            return self.work()

        @profiler.annotate(role="turns")
        async def turn(self, begun, told):
            """A stage that says when it has begun and ends when it is told."""
            begun.set()
            await told.wait()
            return self.work()

        @profiler.annotate(role="update", scheduled=True)
        def update(self, mini_batches):
            """A stage of mini-batches."""
            import torch

            total = 0.0
            for number in range(mini_batches):
                with torch.profiler.record_function(f"mini_batch{number}"):
                    total += float(torch.full((4,), float(number)).sum())
                self.profiler.step()
            return total

        @profiler.annotate(color="olive", role="ref")
        def olive(self):
            """A stage of a colour that nvtx alone does not know."""
            return 7

    return Worker


def on_threads(*calls):
    """What the calls return, each on a thread of its own; None of one that raised."""
    results = [None] * len(calls)

    def run(number):
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@fault("a threaded actor: start, stages and stop each on another thread", [{"work": 4}])
def a_threaded_actor(box):
    worker = box.worker()
    on_threads(lambda: worker.profiler.start(role="train", profile_step=1))
    values = on_threads(*[worker.work] * 4)
    on_threads(worker.profiler.stop)
    return values


@fault("stop comes on another thread than start", [{"work": 1}])
def stop_on_another_thread(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    value = worker.work()
    on_threads(worker.profiler.stop)
    return value


@fault("the process forks in a profiled step, and the child trains and stops too", [{"work": 1}])
def a_fork_in_a_step(box):
    import multiprocessing

    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)

    def job():
        worker.profiler.stop()
        worker.profiler.start(profile_step=2)
        sys.exit(7)

    value = worker.work()
    child = multiprocessing.get_context("fork").Process(target=job)
    child.start()
    child.join(60)
    code = child.exitcode
    if code is None:
        child.kill()
    worker.profiler.stop()
    return [value, code]


@fault("SIGTERM in a profiled step", [{"work": 1}], exit=-signal.SIGTERM)
def a_sigterm_in_a_step(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    print(json.dumps(worker.work()), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


@fault("os._exit in a profiled step: the trace is lost, its manifest says so", [], exit=3)
def an_exit_without_farewell(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    print(json.dumps(worker.work()), flush=True)
    os._exit(3)


@fault("the process ends in a profiled step", [{"work": 1}])
def an_end_without_stop(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    return worker.work()


@contextmanager
def _of_the_user(box):
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        yield
    own.export_chrome_trace(str(box.folder / "user.json"))


@fault("the user's torch.profiler runs when start is called: the user's trace is whole", None)
def the_user_profiles_already(box):
    worker = box.worker()
    with _of_the_user(box):
        before = worker.work()
        worker.profiler.start(role="train", profile_step=1)
        within = worker.work()
        worker.profiler.stop()
        after = worker.work()
    return [before, within, after, _seen(box)]


@fault("the user's torch.profiler runs in a profiled stage", None)
def the_user_profiles_within(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    told = []
    try:
        with _of_the_user(box):
            told.append(worker.work())
    except RuntimeError as error:
        told.append(str(error)[:40])
    worker.profiler.stop()
    return [*told, worker.work()]


@fault("the user's torch.profiler runs on while captured stages (discrete) come and go", None)
def the_user_profiles_around_stages(box):
    worker = box.worker(discrete=True)
    worker.profiler.start(role="train", profile_step=1)
    with _of_the_user(box):
        values = [worker.work(number) for number in (1.0, 2.0)]
    worker.profiler.stop()
    return [*values, _seen(box)]


@fault("the user's torch.profiler runs on another thread in a profiled step", None)
def the_user_profiles_on_another_thread(box):
    worker, told = box.worker(), []
    worker.profiler.start(role="train", profile_step=1)
    worker.work()

    def profiled():
        with _of_the_user(box):
            told.append(worker.work())

    on_threads(profiled)
    worker.profiler.stop()
    return [*told, worker.work(), _seen(box)]


@fault("the user's torch.profiler warms up by its schedule when start is called", None)
def the_user_s_profile_warms_up(box):
    import torch

    worker, values = box.worker(), []
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
    path = str(box.folder / "user.json")
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=cpu, schedule=schedule, on_trace_ready=lambda own: own.export_chrome_trace(path)
    ) as own:
        for step in (1, 2):
            worker.profiler.start(role="train", profile_step=step)
            values.append(worker.work())
            worker.profiler.stop()
            own.step()
    return [*values, _seen(box)]


def _seen(box):
    """How many matrix products the user's own trace has."""
    events = json.loads((box.folder / "user.json").read_text())["traceEvents"]
    return sum(event.get("name") == "aten::mm" for event in events)


@fault("two workers of one process, the second stops first", [{"work": 2}])
def two_workers(box):
    one, other = box.worker(), box.worker(1, prefix="critic")
    one.profiler.start(role="train", profile_step=1)
    other.profiler.start(profile_step=1)
    values = [one.work(), other.work()]
    other.profiler.stop()
    one.profiler.stop()
    return values


@fault("two workers of one process, the first stops first", [{"work": 2}])
def two_workers_crossed(box):
    one, other = box.worker(), box.worker(1, prefix="critic")
    one.profiler.start(role="train", profile_step=1)
    other.profiler.start(profile_step=1)
    values = [one.work(), other.work()]
    one.profiler.stop()
    other.profiler.stop()
    return values


@fault("start twice, stop twice, stop before any start", [{"work": 1}, {"work": 1}])
def unpaired_calls(box):
    worker = box.worker()
    worker.profiler.stop()
    worker.profiler.start(role="train", profile_step=1)
    worker.profiler.start(role="train", profile_step=1)
    values = [worker.work()]
    worker.profiler.stop()
    worker.profiler.stop()
    worker.profiler.start(role="train", profile_step=2)
    values.append(worker.work())
    worker.profiler.stop()
    return values


@fault("a stage raises; it runs once", [{"fails": 1, "work": 1}])
def a_stage_that_raises(box):
    return _raising(box.worker())


@fault("a stage with a trace of its own raises; it runs once", [{"fails": 1}, {"work": 1}])
def a_discrete_stage_that_raises(box):
    return _raising(box.worker(discrete=True))


def _raising(worker):
    worker.profiler.start(role="train", profile_step=1)
    told = []
    try:
        worker.fail()
    except ValueError as error:
        told.append(str(error))
    told.append(worker.work())
    worker.profiler.stop()
    return [*told, worker.calls]


@fault("the disk is full when the trace is written; the next step is whole", [{"work": 1}])
def a_full_disk(box):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    worker, values = box.worker(), []
    for step in (1, 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (600 if step == 1 else soft, hard))
        worker.profiler.start(role="train", profile_step=step)
        values.append(worker.work())
        worker.profiler.stop()
    return values


@fault("save_path is where nothing can be written", [])
def an_unwritable_path(box):
    (box.folder / "file").write_text("no folder")
    worker = box.worker(save_path=box.folder / "file" / "below")
    worker.profiler.start(role="train", profile_step=1)
    value = worker.work()
    worker.profiler.stop()
    return value


@fault("ray is imported and not started: nothing starts it", [{"work": 1}])
def ray_is_not_started(box):
    import ray

    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    value = worker.work()
    worker.profiler.stop()
    return [value, ray.is_initialized()]


@fault("a stage that is a generator: its range holds its work", [{"streams": 1, "work": 3}])
def a_generator(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    values = [*worker.stream(3)]
    worker.profiler.stop()
    return values


@fault("a stage that is a coroutine: its range holds its work", [{"waits": 1, "work": 1}])
def a_coroutine(box):
    worker = box.worker()
    worker.profiler.start(role="train", profile_step=1)
    value = asyncio.run(worker.wait(0.05))
    worker.profiler.stop()
    return value


@fault("coroutines of a worker overlap: each has a range of its own", [{"turns": 3, "work": 3}])
def overlapping_coroutines(box):
    worker = box.worker()

    async def all_of_them():
        # The first, the second and the third begin; the third, the first and the second end.
        begun, told = [asyncio.Event() for _ in range(3)], [asyncio.Event() for _ in range(3)]
        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(worker.turn(begun[number], told[number])))
            await begun[number].wait()
        for number in (2, 0, 1):
            told[number].set()
            await tasks[number]
        return [task.result() for task in tasks]

    worker.profiler.start(role="train", profile_step=1)
    values = asyncio.run(all_of_them())
    worker.profiler.stop()
    return values


@fault("coroutines overlap and each should have a trace of its own", [{"waits": 2, "work": 2}])
def overlapping_discrete_coroutines(box):
    worker = box.worker(discrete=True)

    async def both():
        return await asyncio.gather(worker.wait(0.1), worker.wait(0.05))

    worker.profiler.start(role="train", profile_step=1)
    values = asyncio.run(both())
    worker.profiler.stop()
    return values


@fault("a stage calls itself", [{"again": 3, "work": 1}])
def recursion(box):
    return _recursive(box.worker())


@fault("a stage with a trace of its own calls itself", [{"again": 3, "work": 1}])
def discrete_recursion(box):
    return _recursive(box.worker(discrete=True))


def _recursive(worker):
    worker.profiler.start(role="train", profile_step=1)
    value = worker.again(2)
    worker.profiler.stop()
    return [value, worker.calls]


@fault("stages with traces of their own on four threads at once, ten times", None)
def discrete_threads(box):
    worker = box.worker(discrete=True)
    worker.profiler.start(role="train", profile_step=1)
    values = [on_threads(*[worker.work] * 4) for _ in range(10)]
    worker.profiler.stop()
    return [values, worker.calls]


@fault("a colour that nvtx does not know without matplotlib", None)
def an_unknown_colour(box):
    _imitate_cuda([])
    sys.modules["matplotlib"] = sys.modules["matplotlib.colors"] = None
    worker, times = box.worker(tool="nsys"), {}
    worker.profiler.start(role="train", profile_step=1)
    with box.marked_timer("ref", times, color="brown"):
        value = worker.olive()
    worker.profiler.stop()
    return [value, [*times]]


@fault("a stage with a capture range of its own raises: the range is closed", None)
def a_capture_range_that_raises(box):
    log = []
    _imitate_cuda(log)
    worker = box.worker(tool="nsys", discrete=True)
    worker.profiler.start(role="train", profile_step=1)
    with suppress(ValueError):
        worker.fail()
    value = worker.work()
    worker.profiler.stop()
    left_open = log.count("start") - log.count("stop")
    return [value, worker.calls, left_open]


def _imitate_cuda(log):
    import torch

    torch.cuda.profiler.start = lambda: log.append("start")
    torch.cuda.profiler.stop = lambda: log.append("stop")


@fault("a timer's body raises: its time is kept", None)
def a_timer_that_raises(box):
    times = {}
    with suppress(ValueError), box.marked_timer("step", times, color="red"):
        raise ValueError
    return "raised"


@fault("the tool nsys without CUDA", None)
def nsys_without_cuda(box):
    worker = box.worker(tool="nsys")
    worker.profiler.start(role="train", profile_step=1)
    value = worker.work()
    worker.profiler.stop()
    return value


@fault("a disabled profiler that has no tool_config", None)
def a_disabled_profiler_without_settings(box):
    if box.configs is not None:
        config = box.configs.ProfilerConfig(tool="torch", enable=False, save_path=None, tool_config=None)  # fmt: skip
        return box.Worker(box.profiler(0, config)).work()
    return box.worker().work()


@fault("no save_path", [{"work": 1}])
def no_save_path(box):
    os.chdir(box.folder)
    worker = box.worker()
    if box.configs is not None:
        tool = box.configs.TorchProfilerToolConfig(contents=["cpu"])
        config = box.configs.ProfilerConfig(tool="torch", enable=True, save_path=None, tool_config=tool)  # fmt: skip
        worker = box.Worker(box.profiler(0, config, tool))
    worker.profiler.start(role="train", profile_step=1)
    value = worker.work()
    worker.profiler.stop()
    return value


@fault("torch_memory on a rank that is not profiled records no history", None)
def memory_of_a_disabled_worker(box):
    import torch

    log = []
    torch.cuda.is_available = lambda: True
    torch.cuda.synchronize = torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.cuda.memory._record_memory_history = lambda **_: log.append("history")
    box.worker(tool="torch_memory", enable=False)
    return len(log)


@fault("a window of mini-batches that had just begun: no empty trace", [{"mini_batch2": 1, "mini_batch3": 1}])
def a_window_that_just_began(box):
    worker = box.worker(discrete=True, schedule={"skip_first": 1, "wait": 1, "active": 2})
    worker.profiler.start(role="train", profile_step=1)
    value = worker.update(5)
    worker.profiler.stop()
    return value


def main():
    """Runs one, and prints what it computed."""
    who, name, folder = sys.argv[1:]
    value = FAULTS[name].run(Toolbox(who, folder))
    assert not inspect.isawaitable(value)
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
