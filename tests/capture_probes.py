"""What a profiler module answers to the same questions: facts to compare capture with verl by.

    python capture_probes.py verl.utils.profiler FACTS.json

Every probe gives a JSON value; what raises gives the type and first line of the error. The module is
asked only for what verl makes public. Files are told without process, host and time.
"""

# ruff: noqa: B023 - every function is called before its loop goes on

import contextlib
import dataclasses
import gzip
import importlib
import inspect
import io
import json
import os
import pickle
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

CONFIGS = ("ProfilerConfig", "NsightToolConfig", "TorchProfilerToolConfig", "TorchProfilerScheduleConfig", "TorchMemoryToolConfig")  # fmt: skip
FUNCTIONS = ("mark_start_range", "mark_end_range", "mark_annotate", "marked_timer", "simple_timer", "DistProfiler", "DistProfilerExtension")  # fmt: skip
METHODS = ("start", "stop", "step", "check_enable", "check_this_rank", "check_this_step", "is_discrete_mode", "run_finish_hook")  # fmt: skip
CASES = {
    "ProfilerConfig": [
        {"ranks": None}, {"ranks": "0"}, {"ranks": (0,)}, {"ranks": {0}}, {"ranks": ["a"]}, {"ranks": {}},
        {"finish_hook_ranks": "0"}, {"finish_hook_cmd": 1}, {"finish_hook_cmd": "x"}, {"steps": [1]},
        {"discrete": True}, {"tool": None}, {"tool": "bogus"}, {"_target_": "x"},
    ],
    "NsightToolConfig": [{"discrete": True}, {"discrete": "yes"}, {"bogus": 1}],
    "TorchProfilerToolConfig": [
        {"contents": ["cpu", "cuda", "memory", "shapes", "stack"]}, {"contents": ["gpu"]}, {"contents": "cpu"},
        {"contents": None}, {"contents": ("cpu",)}, {"profile_token_start": -1}, {"profile_token_start": 1.5},
        {"profile_token_end": "9"}, {"profile_token_start": 5, "profile_token_end": 5},
        {"profile_token_start": 5, "profile_token_end": 9}, {"step_start": 1},
    ],
    "TorchProfilerScheduleConfig": [
        {"active": 2}, {"active": True}, {"active": -1}, {"wait": "1"},
        {"skip_first": 1, "wait": 1, "warmup": 1, "active": 1, "repeat": 1},
    ],
    "TorchMemoryToolConfig": [
        {"trace_alloc_max_entries": 0}, {"trace_alloc_max_entries": "1"}, {"stack_depth": 0},
        {"stack_depth": 1.0}, {"memory_snapshot_num_steps": 0}, {"memory_snapshot_num_steps": 3},
    ],
}  # fmt: skip
_TIME, _PID = re.compile(r"(?<!\d)20\d{15}(?!\d)"), re.compile(r"pid\d+")
_SIDES = (
    {"enable": True, "ranks": [3, 1], "global_tool_config": {"x": 1}, "relocate_results": True, "finish_hook_cmd": "c", "finish_hook_ranks": [0, 1]},
    {"all_ranks": True, "ranks": [1, 2], "finish_hook_all_ranks": True, "finish_hook_ranks": [1, 2]},
)  # fmt: skip


class Probes:
    """The module asked, and its answers so far."""

    def __init__(self, name):
        self.name, self.facts = name, {}
        self.places = [importlib.import_module(name), importlib.import_module(f"{name}.config")]

    def __getattr__(self, name):
        """A public name of the module, or of its configuration."""
        return next(getattr(place, name) for place in self.places if hasattr(place, name))

    def tell(self, key, ask):
        """Keep what asking gives."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = ask()
        except Exception as error:  # noqa: BLE001 - what a module raises is a fact, too
            found = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self.facts[key] = json.loads(json.dumps(found, default=_plain))

    def reset(self):
        """Make the process one that has profiled nothing."""
        if self.name == "capture":
            from capture import memory_snapshots, torch_trace

            torch_trace.TorchTrace.owner = torch_trace.TorchTrace.scheduled = None
            memory_snapshots.MemorySnapshots.recording = False
            memory_snapshots.MemorySnapshots.observed = True
        else:
            trace = importlib.import_module(f"{self.name}.torch_profile").Profiler
            with contextlib.suppress(Exception):  # left open, it would end the process
                trace._active_prof.stop()
            trace._define_count, trace._active_prof = 0, None
            memory = importlib.import_module(f"{self.name}.torch_memory_profile")
            memory.TorchMemoryProfiler._memory_history_enabled = False
            memory.TorchMemoryProfiler._oom_observer_attached = True


def _plain(value):
    return sorted(value) if isinstance(value, (set, frozenset)) else repr(value)


def _signature(function):
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return [[p.name, p.kind.name, None if p.default is p.empty else repr(p.default)] for p in parameters]  # fmt: skip


def interfaces(probes):
    for name in FUNCTIONS:
        probes.tell(f"signature {name}", lambda: _signature(getattr(probes, name)))
    for name in METHODS:
        probes.tell(f"signature DistProfiler.{name}", lambda: _signature(getattr(probes.DistProfiler, name)))
    probes.tell("signature DistProfiler.annotate", lambda: _signature(probes.DistProfiler.annotate))
    for name in ("start_profile", "stop_profile", "step_profile"):
        probes.tell(f"signature {name}", lambda: _signature(getattr(probes.DistProfilerExtension, name)))


def configs(probes):
    for name in CONFIGS:
        kind = getattr(probes, name)
        made = kind()
        first = [field.name for field in dataclasses.fields(made)][1]
        probes.tell(f"fields {name}", lambda: [[f.name, getattr(made, f.name)] for f in dataclasses.fields(made)])  # fmt: skip
        probes.tell(f"mapping {name}", lambda: [list(made), len(made), made.get("nope", 7), made[first]])
        probes.tell(f"unknown key {name}", lambda: made["nope"])
        probes.tell(f"frozen {name}", lambda: setattr(made, first, 1))
        probes.tell(f"item assignment {name}", lambda: made.__class__.__setitem__)
        probes.tell(f"pickle {name}", lambda: pickle.loads(pickle.dumps(made)) == made)
        for case in CASES[name]:
            probes.tell(f"{name}{case}", lambda: {key: getattr(kind(**case), key) for key in case})
    probes.tell("enabled", lambda: [probes.TorchProfilerScheduleConfig(active=n).enabled for n in (0, 1)])
    one, other = (probes.ProfilerConfig(tool="torch", save_path="a", tool_config=None, **side) for side in _SIDES)  # fmt: skip
    for verb in ("union", "intersect"):
        probes.tell(verb, lambda: {k: sorted(v) if isinstance(v, list) else v for k, v in getattr(one, verb)(other).items()})  # fmt: skip
        probes.tell(f"{verb} of two tools", lambda: getattr(one, verb)(probes.ProfilerConfig(tool="nsys")))


def ranks(probes):
    for tool in (None, "torch_memory", "bogus"):
        for enable in (False, True):
            for every in (False, True):
                for chosen in ([], [1], [0, 2]):
                    config = probes.ProfilerConfig(tool=tool, enable=enable, all_ranks=every, ranks=chosen, save_path="/tmp", tool_config=None)  # fmt: skip

                    def ask(config=config):
                        made = [probes.DistProfiler(rank, config) for rank in (0, 1, 2)]
                        return [[m.check_enable(), m.check_this_rank(), m.check_this_step(), m.is_discrete_mode()] for m in made]  # fmt: skip

                    probes.tell(f"rank {tool} {enable=} {every=} {chosen}", ask)
    probes.tell("rank without config", lambda: [probes.DistProfiler(0).check_enable(), probes.DistProfiler(0).check_this_rank()])  # fmt: skip
    for tool in ("torch", "nsys"):
        for enable in (False, True):
            probes.tell(f"{tool} {enable=} without tool_config", lambda: bool(probes.DistProfiler(0, probes.ProfilerConfig(tool=tool, enable=enable, save_path="/tmp", tool_config=None))))  # fmt: skip


def workers(probes):
    """A class of workers whose stages are annotated."""

    class Worker:
        def __init__(self, profiler):
            self.profiler, self.ran = profiler, []

        @probes.DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
        def compute_log_prob(self):
            return "log_prob"

        @probes.DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
        def update_actor(self, mini_batches):
            import torch.profiler

            for number in range(mini_batches):
                with torch.profiler.record_function(f"mini_batch{number}"):
                    pass
                self.profiler.step()

        @probes.DistProfiler.annotate(message="named", color="green", domain="d", category="c")
        def named(self):
            return "named"

        @probes.DistProfiler.annotate()
        def plain(self):
            return "plain"

        @probes.DistProfiler.annotate(role="fails")
        def fail(self):
            self.ran.append("fails")
            raise RuntimeError("of the stage")

        def step(self, mini_batches=3):
            return [self.compute_log_prob(), self.update_actor(mini_batches), self.named(), self.plain()]  # fmt: skip

        def failed(self):
            with contextlib.suppress(RuntimeError):
                self.fail()
            return [*self.ran, self.plain()]

    return Worker


def names(folder):
    """The files below a folder but manifests, without what differs from run to run."""
    found = (path for path in Path(folder).rglob("*") if path.is_file() and not path.name.startswith("capture_"))  # fmt: skip
    return sorted(_TIME.sub("T", _PID.sub("pidP", str(path.relative_to(folder)))) for path in found)


def traces(probes):
    worker_class = workers(probes)

    def run(body=None, steps=(1,), rank=0, prefix="actor_rollout", mini_batches=3, scope="train", **tool):  # fmt: skip
        probes.reset()
        chosen = {key: tool.pop(key) for key in ("enable", "ranks", "all_ranks") if key in tool}
        if "schedule" in tool:
            tool["schedule"] = probes.TorchProfilerScheduleConfig(**tool["schedule"])
        made = probes.TorchProfilerToolConfig(contents=["cpu"], **tool)
        with tempfile.TemporaryDirectory() as folder:
            config = probes.ProfilerConfig(**{"tool": "torch", "enable": True, "save_path": folder, "tool_config": made, **chosen})  # fmt: skip
            worker = worker_class(probes.DistProfiler(rank, config, tool_config=made, save_file_prefix=prefix))  # fmt: skip
            answers = []
            for step in steps:
                worker.profiler.start(role=scope, profile_step=step)
                answers.append(body(worker) if body else worker.step(mini_batches))
                worker.profiler.stop()
            ranges = {}
            for path in Path(folder).glob("*.json.gz"):
                told = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
                name = _TIME.sub("T", _PID.sub("pidP", path.name))
                ranges[name] = sorted(e["name"] for e in told if e.get("cat") == "user_annotation")
            return [names(folder), ranges, answers]

    probes.tell("trace of a step", run)
    probes.tell("trace of two steps", lambda: run(steps=(1, 5)))
    probes.tell("trace without scope", lambda: run(scope=None, prefix=None))
    probes.tell("trace of another rank", lambda: run(rank=1))
    probes.tell("trace of a chosen rank", lambda: run(rank=1, ranks=[1]))
    probes.tell("trace disabled", lambda: run(enable=False))
    probes.tell("trace by stage", lambda: run(discrete=True))
    probes.tell("trace by stage disabled", lambda: run(discrete=True, enable=False))
    for mode, discrete in (("step", False), ("stage", True)):
        for number, schedule in enumerate(({"active": 1}, {"active": 1, "skip_first": 1}, {"active": 1, "wait": 1}, {"skip_first": 1, "wait": 1, "active": 2}, {"skip_first": 1, "wait": 1, "active": 4}, {"warmup": 1, "active": 1, "repeat": 1})):  # fmt: skip
            probes.tell(f"trace by {mode}, schedule {number}", lambda: run(mini_batches=4, discrete=discrete, schedule=schedule))  # fmt: skip
        probes.tell(f"trace by {mode}, stage fails", lambda: run(lambda worker: worker.failed(), discrete=discrete))  # fmt: skip
    probes.tell("trace by stage, a window just begun", lambda: run(mini_batches=5, discrete=True, schedule={"skip_first": 1, "wait": 1, "active": 2}))  # fmt: skip
    probes.tell("stage without profiler", lambda: [worker_class(None).plain(), worker_class.plain.__name__])

    def sequence(order):
        probes.reset()
        made = probes.TorchProfilerToolConfig(contents=["cpu"])
        with tempfile.TemporaryDirectory() as folder:
            config = probes.ProfilerConfig(tool="torch", enable=True, save_path=folder, tool_config=made)
            both = {name: probes.DistProfiler(0, config, tool_config=made) for name in "ab"}
            for name, action in order.split():
                {"+": lambda p: p.start(profile_step=1), "-": lambda p: p.stop(), "s": lambda p: p.step()}[action](both[name])  # fmt: skip
            return len(names(folder))

    for order in ("a-", "as", "a+ a-", "a+ a+ a-", "a+ a- a-", "a+ as a-", "a+ b+ a-", "a+ a- b+ b-", "a+ b+ b- a-"):  # fmt: skip
        probes.tell(f"traces of {order}", lambda: sequence(order))

    def path(where):
        probes.reset()
        made = probes.TorchProfilerToolConfig(contents=["cpu"])
        config = probes.ProfilerConfig(tool="torch", enable=True, save_path=where, tool_config=made)
        profiler = probes.DistProfiler(0, config, tool_config=made)
        profiler.start(profile_step=1)
        profiler.stop()
        return "went on"

    probes.tell("trace where none can be written", lambda: path("/etc/hostname/x"))


def nsys(probes):
    import nvtx
    import torch.cuda.profiler

    worker_class, log = workers(probes), []

    def start_range(message=None, color=None, domain=None, category=None):
        log.append(["range", message, color, domain, category])
        return "id"

    ends = mock.patch.object(nvtx, "end_range", side_effect=lambda _: log.append("end"))
    begins = mock.patch.object(nvtx, "start_range", start_range)
    opens = mock.patch.object(torch.cuda.profiler, "start", side_effect=lambda: log.append("open"))
    closes = mock.patch.object(torch.cuda.profiler, "stop", side_effect=lambda: log.append("close"))

    def run(body, discrete, enable=True):
        log.clear()
        made = probes.NsightToolConfig(discrete=discrete)
        config = probes.ProfilerConfig(tool="nsys", enable=enable, save_path="/tmp", tool_config=made)
        with begins, ends, opens, closes, tempfile.TemporaryDirectory() as folder:
            config = dataclasses.replace(config, save_path=folder)
            worker = worker_class(probes.DistProfiler(0, config, tool_config=made))
            worker.profiler.start(profile_step=1)
            body(worker)
            worker.profiler.step()
            worker.profiler.stop()
        return list(log)

    for discrete in (False, True):
        probes.tell(f"nsys {discrete=}", lambda: run(lambda w: [w.compute_log_prob(), w.named()], discrete))  # fmt: skip
        probes.tell(f"nsys {discrete=} disabled", lambda: run(lambda w: w.named(), discrete, enable=False))  # fmt: skip
        probes.tell(f"nsys {discrete=}, stage fails", lambda: run(lambda w: w.failed(), discrete))

    def range_of(color):
        log.clear()
        with begins, ends:
            probes.mark_end_range(probes.mark_start_range("a", color, domain="d", category="c"))
        return list(log)

    def timed(*, fails):
        log.clear()
        times = {"gen": 1.0}
        with begins, ends, contextlib.suppress(ValueError), probes.marked_timer("gen", times, color="red"):
            if fails:
                raise ValueError
        return [list(log), sorted(times), 1.0 < times["gen"] < 1.5]

    def simple():
        times = {}
        for _ in range(2):
            with probes.simple_timer("a", times):
                pass
        return [list(times), 0 <= times["a"] < 1]

    probes.tell("range", lambda: range_of("red"))
    probes.tell("timer", lambda: timed(fails=False))
    probes.tell("timer, body fails", lambda: timed(fails=True))
    probes.tell("simple timer", simple)


def memory(probes):
    import torch.cuda.memory

    def run(rank=0, steps=(1, 2), window=1, **changes):
        probes.reset()
        log = []

        def history(enabled="all", context="all", stacks="all", max_entries=0, device=None):
            log.append(["history", enabled, context, stacks, max_entries])

        def dump(path):
            Path(path).write_bytes(b"x")
            log.append("dump")

        patches = {"is_available": lambda: True, "synchronize": lambda *_: None, "reset_peak_memory_stats": lambda *_: None, "current_device": lambda: 0}  # fmt: skip
        with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            for name, value in patches.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value, create=True))
            stack.enter_context(mock.patch.object(torch.cuda.memory, "_record_memory_history", history))  # fmt: skip
            stack.enter_context(mock.patch.object(torch.cuda.memory, "_dump_snapshot", dump))
            stack.enter_context(mock.patch.dict(os.environ, {"RANK": str(rank)}))
            made = probes.TorchMemoryToolConfig(trace_alloc_max_entries=50, stack_depth=4, memory_snapshot_num_steps=window)  # fmt: skip
            config = probes.ProfilerConfig(**{"tool": "torch_memory", "enable": True, "save_path": folder, "tool_config": made, **changes})  # fmt: skip
            profiler = probes.DistProfiler(rank, config, tool_config=made)
            for step in steps:
                profiler.start(role="train", profile_step=step)
                profiler.stop()
            return [names(folder), log]

    probes.tell("snapshots", run)
    probes.tell("snapshots of another rank", lambda: run(rank=1))
    probes.tell("snapshots of all ranks", lambda: run(rank=1, all_ranks=True))
    probes.tell("snapshots disabled", lambda: run(enable=False))
    probes.tell("snapshots of windows", lambda: run(window=2, steps=(1, 2, 3)))


def commands(probes):
    shell = 'echo "$VERL_PROFILE_RANK $VERL_PROFILE_TOOL $VERL_PROFILE_ROLE" >> "$VERL_PROFILE_SAVE_PATH/told"'

    def run(rank=0, flags=(True,), **changes):
        with tempfile.TemporaryDirectory() as folder:
            config = probes.ProfilerConfig(tool=None, enable=True, save_path=folder, tool_config=None, finish_hook_cmd=shell, **changes)  # fmt: skip
            profiler = probes.DistProfiler(rank, config, save_file_prefix="actor")
            for flag in flags:
                profiler.start(profile_step=1)
                profiler.stop(run_command=flag)
            told = Path(folder, "told")
            return told.read_text().splitlines() if told.exists() else []

    probes.tell("command once", lambda: run(flags=(False, False, True)))
    probes.tell("command of another rank", lambda: run(rank=1))
    probes.tell("command of all ranks", lambda: run(rank=5, finish_hook_all_ranks=True))
    probes.tell("command of a chosen rank", lambda: [run(rank, finish_hook_ranks=[1]) for rank in (0, 1)])


def collect(name):
    """All facts of a module, by probe."""
    probes = Probes(name)
    for group in (interfaces, configs, ranks, traces, nsys, memory, commands):
        group(probes)
    return probes.facts


if __name__ == "__main__":
    facts = collect(sys.argv[1])
    versions = {}
    for package in ("verl", "torch", "nvtx"):
        with contextlib.suppress(Exception):
            versions[package] = importlib.import_module("importlib.metadata").version(package)
    Path(sys.argv[2]).write_text(json.dumps({"module": sys.argv[1], "versions": versions, "facts": facts}, indent=0, sort_keys=True) + "\n")  # fmt: skip
