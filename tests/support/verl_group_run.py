"""Two workers of verl's RayWorkerGroup go through profiled steps, with verl's profiler and with capture's.

    python verl_group_run.py OUT

Run with a Python that has verl and Ray. OUT gets `<who>/<mode>/` with what each wrote: who is `verl`
(all of it verl's), `target` (verl's workers, capture's configuration) and `capture` (both capture's).
"""

import sys
from pathlib import Path

import ray
import torch
from omegaconf import OmegaConf
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler as VerlProfiler
from verl.utils.profiler import DistProfilerExtension as VerlExtension
from verl_group_modes import MINI_BATCHES, MODES, STEPS

from capture import DistProfiler, DistProfilerExtension


def configuration(folder, mode, configs):
    """The block of a role as Hydra hands it to a worker, with the classes of one of the two packages."""
    tool = {"_target_": f"{configs}.config.TorchProfilerToolConfig", "contents": ["cpu"], **MODES[mode]}
    if "schedule" in tool:
        named = {"_target_": f"{configs}.config.TorchProfilerScheduleConfig"}
        tool["schedule"] = named | tool["schedule"]
    return OmegaConf.create(
        {
            "_target_": f"{configs}.config.ProfilerConfig",
            "tool": "torch",
            "enable": True,
            "all_ranks": True,
            "save_path": str(folder),
            "tool_config": {"torch": tool},
        }
    )


def worker_class(profiler, extension):
    """A worker of verl that is profiled by this profiler."""

    class ProfiledWorker(Worker, extension):
        def __init__(self):
            Worker.__init__(self)
            extension.__init__(self, profiler(self.rank))
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo")

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def use(self, block):
            """Build the profiler as verl's own workers do."""
            tool_config = omega_conf_to_dataclass(block.tool_config.torch)
            config = omega_conf_to_dataclass(block)
            self.profiler = profiler(self.rank, config, tool_config, save_file_prefix="actor_rollout_ref")

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        @profiler.annotate(color="olive", role="ref_compute_log_prob")
        def compute_ref_log_prob(self):
            """A stage with a collective."""
            torch.distributed.all_reduce(torch.ones(4))

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        @profiler.annotate(color="red", role="actor_update", scheduled=True)
        def update_actor(self):
            """A stage of mini-batches."""
            for number in range(MINI_BATCHES):
                with torch.profiler.record_function(f"mini_batch{number}"):
                    torch.ones(4) + 1
                self.profiler.step()

    return ProfiledWorker


def main():
    """All three, one after another."""
    out = Path(sys.argv[1])
    ray.init(num_cpus=2 * 3, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    verl, ours = worker_class(VerlProfiler, VerlExtension), worker_class(DistProfiler, DistProfilerExtension)  # fmt: skip
    kinds = {"verl": (verl, "verl.utils.profiler"), "target": (verl, "capture"), "capture": (ours, "capture")}
    for who, (kind, configs) in kinds.items():
        made = RayClassWithInitArgs(cls=ray.remote(kind))
        pool = RayResourcePool(process_on_nodes=[2], use_gpu=False, max_colocate_count=1)
        group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, device_name="cpu")
        for mode in MODES:
            group.use(configuration(out / who / mode, mode, configs))
            for step in STEPS:
                group.start_profile(role="train", profile_step=step)
                group.compute_ref_log_prob()
                group.update_actor()
                group.stop_profile(run_command=step == STEPS[-1])
        for worker in group.workers:
            ray.kill(worker)
    ray.shutdown()


if __name__ == "__main__":
    main()
