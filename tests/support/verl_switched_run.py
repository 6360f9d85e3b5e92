"""verl's own workers as verl builds them, through profiled steps: `python verl_switched_run.py OUT`.

Run with a Python that has verl, once with VERL_USE_EXTERNAL_MODULES=capture.verl and once without: nothing in here
names capture. OUT gets `<tool>-<mode>/` with what was written; standard output is what the workers computed.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29" + str(os.getpid())[-3:].zfill(3)
)  # fmt: skip

import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.debug import marked_timer
from verl.utils.profiler import DistProfiler
from verl.workers.engine_workers import ActorRolloutRefWorker

BLOCK = "actor_rollout_ref.actor.profiler"
MODES = {
    "step": (),
    "stage": (f"{BLOCK}.tool_config.torch.discrete=True",),
    "schedule": (
        f"{BLOCK}.tool_config.torch.discrete=True",
        f"{BLOCK}.tool_config.torch.schedule.wait=1",
        f"{BLOCK}.tool_config.torch.schedule.active=1",
    ),
    "off": (f"{BLOCK}.enable=False",),
}
TOOLS = ("null", "torch", "torch_memory")


class Worker(ActorRolloutRefWorker):
    """verl's own, with two stages that need no model."""

    @DistProfiler.annotate(color="olive", role="ref_compute_log_prob")
    def measured(self, number):
        """A stage."""
        return float(torch.full((8,), float(number)).exp().sum())

    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def updated(self, number):
        """A stage of mini-batches."""
        total = 0.0
        for part in range(4):
            with torch.profiler.record_function(f"mini_batch{part}"):
                total += float(torch.full((4,), float(number + part)).sum())
            self.profiler.step()
        return total


def main():
    """Every tool in every mode."""
    out, values, timing = Path(sys.argv[1]), {}, {}
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")  # noqa: PTH118, PTH120 - hydra takes text
    for tool in TOOLS:
        for mode, overrides in MODES.items():
            name = f"{tool}-{mode}"
            with initialize_config_dir(folder, version_base=None):
                config = compose(
                    "ppo_trainer",
                    overrides=[
                        f"global_profiler.tool={tool}",
                        "global_profiler.steps=[1,3]",
                        f"global_profiler.save_path={out / name}",
                        f"{BLOCK}.enable=True",
                        f"{BLOCK}.all_ranks=True",
                        f"{BLOCK}.tool_config.torch.contents=[cpu]",
                        *overrides,
                    ],
                )
            OmegaConf.resolve(config)
            worker = Worker(config.actor_rollout_ref, role="actor_rollout_ref")
            for step in (1, 2, 3):
                with marked_timer("step", timing, color="pink"):
                    if step in (1, 3):
                        worker.start_profile(role="train", profile_step=step)
                    values[f"{name} {step}"] = [worker.measured(step), worker.updated(step)]
                    if step in (1, 3):
                        worker.stop_profile(run_command=step == 3)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
