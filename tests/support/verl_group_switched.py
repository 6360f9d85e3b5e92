"""verl's ActorRolloutRefWorker on two ranks of verl's RayWorkerGroup: `python verl_group_switched.py OUT`.

Run with a Python that has verl and Ray, once with VERL_USE_EXTERNAL_MODULES=capture.verl and once without: nothing in
here names capture. OUT gets `<mode>/` with what both ranks wrote; the last line of standard output is what they computed.
"""

import json
import os
import sys
from pathlib import Path

import ray
import torch
import verl_matrix
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.profiler import DistProfiler
from verl.workers.engine_workers import ActorRolloutRefWorker

MODES = ("step", "stage", "continuous")
STEPS = (1, 2)


class Worker(ActorRolloutRefWorker):
    """verl's own, with two stages that need no model and speak with the other rank."""

    def __init__(self, config, role):
        torch.set_num_threads(1)
        initialize_global_process_group_ray(backend="gloo")
        super().__init__(config, role)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
    def measured(self, number):
        """A stage with a collective."""
        total = torch.full((4,), float(number + self.rank))
        torch.distributed.all_reduce(total)
        return float(total.sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="red", role="actor_update")
    def updated(self, number):
        """A stage without one."""
        return float(torch.full((4,), float(number)).sum())


def main():
    """Every mode, in workers of its own."""
    out, told = Path(sys.argv[1]), {}
    paths = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False, runtime_env=paths)  # fmt: skip
    for mode in MODES:
        asked = verl_matrix.overrides("actor", "torch", mode, "on", out / mode)
        config = verl_matrix.composed(asked)
        made = RayClassWithInitArgs(cls=ray.remote(Worker), config=config.actor_rollout_ref, role="actor_rollout_ref")
        pool = RayResourcePool(process_on_nodes=[2], use_gpu=False, max_colocate_count=1)
        group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, device_name="cpu")
        continuous = mode == "continuous"
        for step in STEPS:
            if not continuous or step == STEPS[0]:
                group.start_profile(role="train", profile_step=step)
            told[f"{mode} {step}"] = [group.measured(step), group.updated(step)]
            if not continuous or step == STEPS[-1]:
                group.stop_profile()
        for worker in group.workers:
            ray.kill(worker)
    ray.shutdown()
    folders = {mode: verl_matrix.files(out / mode) for mode in MODES}
    print(json.dumps({"values": told, "files": folders}))


if __name__ == "__main__":
    main()
