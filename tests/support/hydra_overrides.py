"""What verl's trainer makes of overrides: `python hydra_overrides.py` reads JSON lists of them and prints the blocks.

Run with a Python that has verl and Hydra. Standard input: a list of lists of overrides. Standard output:
for each, what `capture.run_config` reads of the composed configuration.
"""

import json
import sys
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir

from capture.run_config import read_global, read_role, surprises


def told(overrides):
    """The plan, the actor's block and what surprises, of the configuration with these overrides."""
    config = compose("ppo_trainer", overrides=overrides)
    shared, actor = read_global(config), read_role(config, "actor_rollout_ref.actor")
    return {
        "tool": shared.tool,
        "steps": list(shared.plan.steps),
        "captures": shared.plan.captures(),
        "range_end": shared.worker_nsight_options.get("capture-range-end"),
        "enable": actor.enable,
        "target": config.actor_rollout_ref.actor.profiler["_target_"],
        "tool_config": None
        if actor.tool_config is None
        else json.loads(json.dumps(dict(actor.tool_config), default=dict)),
        "surprises": surprises(config),
    }


if __name__ == "__main__":
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        print(json.dumps([told(overrides) for overrides in json.load(sys.stdin)]))
