"""What verl's own workers and servers compute, write and mark under every configuration of the profiler.

    python verl_matrix.py OUT [CELL…]

Run with a Python whose verl is the version asked, once with VERL_USE_EXTERNAL_MODULES=capture.verl and once without:
nothing in here names capture. A cell is `role tool mode state`, as `actor torch step on`; without any all are run, each in
a process of its own and with a folder of its own in OUT. Standard output ends with a line of JSON: for each cell the
values computed, the errors, the files without process and time, the ranges in every trace, the capture ranges and NVTX
ranges, what CUDA's memory history was told, and how the process ended.
"""

import fnmatch
import gzip
import json
import os
import re
import sys
import traceback
import types
from collections import Counter
from pathlib import Path

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1",
    OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false",
)  # fmt: skip

import torch
import verl
import verl_servers
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.debug import marked_timer

verl_servers.imitate()

from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: E402
from verl_workers import ROLES, hybrid  # noqa: E402

STEPS = (1, 2, 4)
LAST = 4
UNLIKE = (
    (re.compile(r"pid\d+"), "pid"),
    (re.compile(r"(?<=rank-\d_)\d+(?=_\d{17})"), "pid"),
    (re.compile(r"\d{17}"), "time"),
)
OWN = re.compile(r"capture_.*\.manifest|\.capture.*")
"""Files that say of a profile what it holds, and are none."""

BLOCKS = {role: row[0] for role, row in ROLES.items()} | {"rollout": "actor_rollout_ref.rollout"}
MODES = {
    "step": {},
    "stage": {"discrete": "True"},
    "schedule": {"discrete": "True", "schedule.wait": "1", "schedule.active": "1"},
    "whole-schedule": {"schedule.active": "2"},
    "continuous": {},
}
TOOL_MODES = {"torch": tuple(MODES), "nsys": ("step", "stage", "continuous"), "torch_memory": ("step", "continuous")}  # fmt: skip
CELLS = [
    *(f"{role} {tool} {mode} {state}" for role in BLOCKS for tool, modes in TOOL_MODES.items() for mode in modes for state in ("on", "off")),
    *(f"{role} null step {state}" for role in BLOCKS for state in ("on", "off")),
]  # fmt: skip


def composed(overrides):
    """verl's configuration with those of the overrides whose keys this version has; None without a schedule's."""
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")  # noqa: PTH118, PTH120 - hydra takes text
    with initialize_config_dir(folder, version_base=None):
        plain = compose("ppo_trainer")
        known = [f"{key}={value}" for key, value in overrides.items() if _has(plain, key)]
        if any(".schedule." in key for key in overrides) and not any(".schedule." in k for k in known):
            return None
        config = compose("ppo_trainer", overrides=known)
    OmegaConf.resolve(config)
    return config


def _has(config, key):
    parent, _, leaf = key.rpartition(".")
    holder = OmegaConf.select(config, parent)
    return holder is not None and leaf in holder


def overrides(role, tool, mode, state, folder):
    """What a cell's command line would say."""
    block = f"{BLOCKS[role]}.profiler"
    return {
        "global_profiler.tool": tool,
        "global_profiler.steps": f"[{','.join(map(str, STEPS))}]",
        "global_profiler.profile_continuous_steps": str(mode == "continuous"),
        "global_profiler.save_path": str(folder),
        "actor_rollout_ref.actor.strategy": "fsdp",
        f"{block}.tool": tool,
        f"{block}.save_path": str(folder),
        f"{block}.enable": str(state == "on"),
        f"{block}.all_ranks": "True",
        f"{block}.relocate_results": "True",
        f"{block}.tool_config.torch.contents": "[cpu]",
        **{f"{block}.tool_config.{tool}.{key}": value for key, value in MODES[mode].items()},
    }


class Marks:
    """What of a cell leaves no file: capture ranges, NVTX ranges and CUDA's memory history."""

    def __init__(self):
        self.cuda, self.memory = [], []
        listener = os.environ.get("NVTX_LISTENER_OUT")
        self._heard = Path(listener) if listener else None
        if self._heard is not None:
            self._heard.write_bytes(b"")
        torch.cuda.profiler.start = lambda: self.cuda.append("start")
        torch.cuda.profiler.stop = lambda: self.cuda.append("stop")

    def imitate_memory(self):
        """A CUDA that has a history of memory."""

        def history(enabled="all", context="all", stacks="all", max_entries=0):
            del context, stacks
            self.memory.append(f"history {enabled} {max_entries if enabled else ''}".strip())

        torch.cuda.is_available = lambda: True
        torch.cuda.synchronize = torch.cuda.reset_peak_memory_stats = lambda *_: None
        torch.cuda.memory._record_memory_history = history
        torch.cuda.memory._dump_snapshot = lambda path: Path(path).write_bytes(b"snapshot")
        torch._C._cuda_attach_out_of_memory_observer = lambda _call: self.memory.append("observer")
        from verl.utils import memory_utils

        memory_utils.get_torch_device = lambda: torch.cuda

    def nvtx(self):
        """The names of the NVTX ranges and how often each was started, and how many never ended."""
        if self._heard is None:
            return None
        lines = [line.split(" ", 3) for line in self._heard.read_text().splitlines()]
        names = Counter(line[3] for line in lines if line[0] == "start")
        return {"names": dict(sorted(names.items())), "open": names.total() - sum(line[0] == "end" for line in lines)}  # fmt: skip


def run_cell(cell, folder):
    """What comes of a cell, in this process."""
    role, tool, mode, state = cell.split()
    told = {"values": [], "error": None, "servers": {}}
    marks = Marks()
    if tool == "torch_memory":
        marks.imitate_memory()
    config = composed(overrides(role, tool, mode, state, folder))
    if config is None:
        return {"absent": "this version has no schedule"}
    try:
        if role == "rollout":
            told["values"] = _rollout(config, told)
        else:
            _block, build, work = ROLES[role]
            told["values"] = _trained(role, build(config), work, continuous=mode == "continuous")
    except Exception as error:  # noqa: BLE001 - what a version raises is a fact, too
        traceback.print_exc()
        told["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return told | {"cuda": marks.cuda, "nvtx": marks.nvtx(), "memory": marks.memory}


def _rollout(config, told):
    """A rollout worker of its own, and the servers of both engines."""
    block = config.actor_rollout_ref.rollout.profiler
    values = _trained("rollout", hybrid(config, "rollout"), lambda _worker, step: [step], continuous=False)
    for kind in verl_servers.SERVERS:
        told["servers"][kind] = verl_servers.driven(kind, block)
    return values


WORKER = object()
GROUPS = {
    "ref": {"use_reference_policy": True, "ref_policy_wg": WORKER},
    "critic": {"use_critic": True, "critic_wg": WORKER},
}
"""What the trainer has of a role whose workers are not the actor's."""


class Absent:
    """A worker group that is not this cell's."""

    def start_profile(self, **told):
        """Nothing."""

    stop_profile = start_profile


def _trained(role, worker, work, *, continuous):
    """What is computed in four steps, some of them profiled, as the trainer of this version starts and stops it."""
    values, timing = [], {}
    for step in range(1, LAST + 1):
        trainer = types.SimpleNamespace(
            actor_rollout_wg=Absent(), use_reference_policy=False, use_critic=False, global_steps=step
        )
        vars(trainer).update(GROUPS.get(role, dict.fromkeys(["actor_rollout_wg"], WORKER)))
        vars(trainer).update({name: worker for name, what in vars(trainer).items() if what is WORKER})
        now, before, after = (number in STEPS for number in (step, step - 1, step + 1))
        with marked_timer("step", timing, color="pink"):
            RayPPOTrainer._start_profiling(trainer, now and not (continuous and before))
            values.append(work(worker, step))
            final = {"run_command": step == LAST} if _stop_takes_a_command() else {}
            RayPPOTrainer._stop_profiling(trainer, now and not (continuous and after), **final)
    return values


def _stop_takes_a_command():
    return "run_command" in RayPPOTrainer._stop_profiling.__code__.co_varnames


def files(folder):
    """The files of a profile without process and time, and the names of those that only describe it."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    described = [path for path in found if OWN.fullmatch(path.name)]
    names = {path: _alike(path.relative_to(folder)) for path in found}
    ranges = [
        _ranges(path)
        for path in found
        if path.suffix == ".gz" and "agent_loop" not in str(path) and "replica" not in path.name
    ]
    return {
        "files": sorted(names[path] for path in found if path not in described),
        "manifests": sorted(names[path] for path in described),
        "ranges": sorted(ranges, key=str),
    }


def _alike(name):
    text = str(name)
    for pattern, word in UNLIKE:
        text = pattern.sub(word, text)
    return text


def _ranges(path):
    """How often each range is in a trace; a word where it cannot be read."""
    try:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    except (OSError, ValueError) as error:
        return type(error).__name__
    names = (e["name"] for e in events if e.get("cat") == "user_annotation" and e.get("ph") == "X")
    return dict(sorted(Counter(name for name in names if not name.startswith("gloo:")).items()))


def in_a_process(cell, folder):
    """What comes of a cell in a process of its own, its end included."""
    folder.mkdir(parents=True)
    answer = folder.with_name(f"{folder.name}.json")
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr
        torch.set_num_threads(1)
        group = f"file://{folder.with_name(folder.name + '.group')}"
        torch.distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
        answer.write_text(json.dumps(run_cell(cell, folder)))
        torch.distributed.destroy_process_group()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    told = json.loads(answer.read_text()) if answer.exists() else {}
    return told | files(folder) | {"exit": os.waitstatus_to_exitcode(status)}


def main():
    """Every cell that matches one of the patterns."""
    out, patterns = Path(sys.argv[1]), sys.argv[2:] or ["*"]
    chosen = [cell for cell in CELLS if any(fnmatch.fnmatch(cell, one) for one in patterns)]
    told = {cell: in_a_process(cell, out / cell.replace(" ", "-")) for cell in chosen}
    switched = "capture" in sys.modules
    print(json.dumps({"version": verl.__version__, "switched": switched, "cells": told}))


if __name__ == "__main__":
    main()
