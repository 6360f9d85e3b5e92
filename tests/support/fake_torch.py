"""As much of torch as `capture` uses, in Python: profiles that hold the ranges entered, and a CUDA that logs what it is told."""

import json
import sys
import types
from enum import Enum
from pathlib import Path


class Action(Enum):
    NONE, WARMUP, RECORD, RECORD_AND_SAVE = range(4)


def schedule(*, wait, warmup, active, repeat=0, skip_first=0):
    """What torch.profiler does with its n-th step, by torch's documentation."""

    def action(step):
        if step < skip_first:
            return Action.NONE
        cycle, place = divmod(step - skip_first, wait + warmup + active)
        if (repeat and cycle >= repeat) or place < wait:
            return Action.NONE
        if place < wait + warmup:
            return Action.WARMUP
        return Action.RECORD_AND_SAVE if place == wait + warmup + active - 1 else Action.RECORD

    return action


class Torch:
    """The fake, its log, and what shall go wrong: `export` and `start` are exceptions to raise."""

    def __init__(self):
        self.log = []
        self.running = None
        self.export = self.start = self.dump = None
        self.cuda_available, self.wrote_nothing, self.export_count = True, False, 0
        self.used = {0: (2_000, 3_000, 5_000, 6_000)}
        self.observer = None

    def install(self, monkeypatch):
        """Put it where `import torch` finds it."""
        fake = self

        class Profile:
            def __init__(self, *, on_trace_ready, schedule=None, **options):
                self.options, self.ready, self.schedule = options, on_trace_ready, schedule
                self.step_num, self.ranges, self.record_steps = 0, [], schedule is not None
                self.current_action = schedule(0) if schedule else Action.RECORD

            def start(self):
                if fake.start:
                    raise fake.start
                assert fake.running is None, "Profiler is already enabled on this thread"
                fake.running = self

            def __enter__(self):
                self.start()
                return self

            def __exit__(self, *error):
                self.stop()

            def step(self):
                before, self.step_num = self.current_action, self.step_num + 1
                self.current_action = self.schedule(self.step_num)
                if before is Action.RECORD_AND_SAVE:
                    self._save()
                if self.current_action is Action.WARMUP:
                    self.ranges = []

            def stop(self):
                fake.running = None
                if self.schedule is None or self.current_action is Action.RECORD_AND_SAVE:
                    self._save()

            def _save(self):
                self.shown, self.ranges = self.ranges, []
                self.ready(self)

            def export_chrome_trace(self, path):
                events = [
                    {"ph": "X", "cat": "user_annotation", "name": n, "ts": i, "dur": 1, "pid": 1, "tid": 1}
                    for i, n in enumerate(self.shown)
                ]  # fmt: skip
                with Path(path).open("w") as stream:
                    if fake.wrote_nothing:
                        return
                    fake.export_count += 1
                    stream.write(f' {{"schemaVersion": 1, "trace_id": "{fake.export_count}", ')
                    stream.write('"traceEvents": [')
                    if fake.export:
                        stream.flush()
                        raise fake.export
                    stream.write(json.dumps(events)[1:-1] + "]}")

        class record_function:  # noqa: N801 - torch's name
            def __init__(self, name):
                self.name = name

            def __enter__(self):
                fake.log.append(f"+{self.name}")
                if fake.running and fake.running.current_action in (Action.RECORD, Action.RECORD_AND_SAVE):
                    fake.running.ranges.append(self.name)

            def __exit__(self, *error):
                fake.log.append(f"-{self.name}")

        def record_history(enabled="all", **options):
            fake.log.append(("history", enabled, options))

        def dump(path):
            with Path(path).open("wb") as stream:
                stream.write(b"half")
                if fake.dump:
                    raise fake.dump
            fake.log.append("dump")

        def told(name):
            def call(*args):
                if not fake.cuda_available:
                    raise AssertionError("Torch not compiled with CUDA enabled")
                fake.log.append(name)

            return call

        def amount(place):
            return lambda device: fake.used.get(device, (0, 0, 0, 0))[place]

        module = types.ModuleType
        torch, profiler, cuda = module("torch"), module("torch.profiler"), module("torch.cuda")
        memory, nsys = module("torch.cuda.memory"), module("torch.cuda.profiler")
        torch.__version__ = "2.13.0"
        torch.profiler, torch.cuda, cuda.memory, cuda.profiler = profiler, cuda, memory, nsys
        vars(profiler).update(
            profile=Profile,
            schedule=schedule,
            record_function=record_function,
            ProfilerAction=Action,
            ProfilerActivity=types.SimpleNamespace(CPU="cpu", CUDA="cuda"),
        )
        vars(cuda).update(
            is_available=lambda: fake.cuda_available,
            device_count=lambda: 2,
            synchronize=told("synchronize"),
            reset_peak_memory_stats=told("reset peaks"),
            memory_allocated=amount(0),
            memory_reserved=amount(1),
            max_memory_allocated=amount(2),
            max_memory_reserved=amount(3),
        )
        vars(memory).update(_record_memory_history=record_history, _dump_snapshot=dump)
        vars(nsys).update(start=told("open"), stop=told("close"))
        torch._C = types.SimpleNamespace(
            _cuda_attach_out_of_memory_observer=lambda call: setattr(fake, "observer", call)
        )
        for part in (torch, profiler, cuda, memory, nsys):
            monkeypatch.setitem(sys.modules, part.__name__, part)
        return self


def without(monkeypatch, *names):
    """Make the import of these modules fail."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
