"""verl's own workers, as the installed version of verl builds them, on an engine that needs no model and no GPU.

The workers are verl's `ActorRolloutRefWorker` and `TrainingWorker`, their stages verl's (`compute_log_prob`,
`update_actor`, `train_batch`), with the decorators that verl put on them. Ours is the engine: it multiplies. The inner
workers and the critic are built from the lines of `init_model` and of verl's trainer that hand on the profiler's
configuration; those methods themselves would load a model. Nothing in here names capture.
"""

import contextlib

import torch
import verl
from packaging.version import Version
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine import BaseEngine, EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig

ROWS, MINI_BATCHES = 8, 4
INNER_ARE_PROFILED = Version(verl.__version__) >= Version("0.9")
"""Since then the trainer gives the critic, and `init_model` the inner workers, a profiler's configuration."""

if not hasattr(torch.cpu, "max_memory_allocated"):  # verl 0.8 asks the CPU for its memory
    torch.cpu.max_memory_allocated = torch.cpu.max_memory_reserved = lambda: 0


class Settings(dict):
    """A configuration that takes whatever it is told."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Multiplying(BaseEngine):
    """An engine whose model is one weight."""

    def __init__(self, **_configs):
        self.weight = 1.0

    def initialize(self):
        """Nothing to load."""

    def is_param_offload_enabled(self):
        """No."""
        return False

    is_optimizer_offload_enabled = is_param_offload_enabled

    def train_mode(self, **_options):
        """A context that does nothing."""
        return contextlib.nullcontext()

    eval_mode = train_mode

    def get_data_parallel_size(self):
        """One."""
        return 1

    def get_data_parallel_rank(self):
        """The first."""
        return 0

    def get_data_parallel_group(self):
        """None: nothing is gathered."""

    def is_mp_src_rank_with_outputs(self):
        """Yes."""
        return True

    def infer_batch(self, data, loss_function=None):
        """The values, multiplied."""
        del loss_function
        return {"model_output": {"log_probs": data["x"] * self.weight}, "loss": [0.0], "metrics": {}}

    def train_batch(self, data, loss_function):
        """The loss of the values; the weight is another afterwards."""
        loss = loss_function(data["x"] * self.weight)
        self.weight *= 0.5
        return {"model_output": {}, "loss": [float(loss)], "metrics": {"weight": self.weight}}

    def lr_scheduler_step(self):
        """The learning rate."""
        return 0.1


for _model in ("language_model", "value_model"):
    EngineRegistry.register(_model, "multiplying", ["cpu", "cuda"])(Multiplying)


def training_worker(model, profiler):
    """verl's TrainingWorker; `profiler` is the role's block, None where nothing is told of it."""
    engine = Settings(
        strategy="multiplying", forward_only=False, use_dynamic_bsz=False, max_token_len_per_gpu=64,
        micro_batch_size_per_gpu=2, infer_max_token_len_per_gpu=64, infer_micro_batch_size_per_gpu=2,
    )  # fmt: skip
    engine.__dict__.update(engine)  # verl sets some of them anew
    told = omega_conf_to_dataclass(profiler) if profiler and INNER_ARE_PROFILED else None
    made = TrainingWorker(
        TrainingWorkerConfig(model_type=model, model_config=Settings(), engine_config=engine, profiler_config=told)
    )
    made.device_name = "cpu"
    made.reset()
    made.set_loss_fn(torch.sum)
    return made


def hybrid(config, role):
    """verl's ActorRolloutRefWorker of a role, with the inner workers that `init_model` would build."""
    made = ActorRolloutRefWorker(config.actor_rollout_ref, role=role)
    if "ref" in role:
        made.ref = training_worker("language_model", config.actor_rollout_ref.ref.get("profiler"))
    if "actor" in role:
        made.actor = training_worker("language_model", config.actor_rollout_ref.actor.get("profiler"))  # fmt: skip
    return made


def batch(step):
    """The data of a step."""
    x = torch.arange(float(ROWS * 2)).reshape(ROWS, 2) + step
    return tensordict_utils.get_tensordict({"x": x}, {"num_mini_batch": MINI_BATCHES})


def _log_probs(output):
    return float(output["log_probs"].sum())


def _losses(output):
    metrics = tensordict_utils.get(output, "metrics")
    return [metrics["loss"], metrics["lr"], metrics["weight"]]


def actor_step(worker, step):
    """What an actor computes in a step."""
    return [
        _log_probs(worker.compute_log_prob(batch(step))),
        _log_probs(worker.compute_ref_log_prob(batch(step))),
        _losses(worker.update_actor(batch(step))),
    ]


def ref_step(worker, step):
    """What a reference worker of its own computes."""
    return [_log_probs(worker.compute_ref_log_prob(batch(step)))]


def critic_step(worker, step):
    """What a critic computes."""
    return [_log_probs(worker.infer_batch(batch(step))), _losses(worker.train_mini_batch(batch(step)))]  # fmt: skip


ROLES = {
    "actor": ("actor_rollout_ref.actor", lambda config: hybrid(config, "actor_rollout_ref"), actor_step),
    "ref": ("actor_rollout_ref.ref", lambda config: hybrid(config, "ref"), ref_step),
    "critic": ("critic", lambda config: training_worker("value_model", config.critic.get("profiler")), critic_step),
}  # fmt: skip
"""Of a role: where its configuration is, how its worker is built, what that does in a step."""
