"""What verl 0.9 has only for a GPU or for vLLM, for a machine that has neither.

    VERL_USE_EXTERNAL_MODULES=verl_on_cpu python -m verl.trainer.main_ppo …

verl imports this in every process. It replaces, and no more than that:

- the platform: verl knows cuda, rocm and npu (`Host`), and asks torch for two process groups (`gloo` alone here);
- the attention of the critic: verl asks for flash attention by name, here it is torch's own;
- the inference server: vLLM and SGLang need a GPU (`Server`, `Replica`, `Adapter`: rollout.name=host);
- the order of a batch: verl takes samples as they arrive, which differs between runs (`InOrder`).

The trainer, its loop, the workers, FSDP, losses, optimisers, metrics and the profiler are verl's own.
"""

from __future__ import annotations

import contextlib
import functools
import zlib

import ray
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA


class Host(PlatformCUDA):
    """The CPU in the place of a GPU; what Ray counts as GPUs are slots for processes."""

    device_name = "cpu"
    vendor_name = "host"
    device_module = torch.cpu
    open = None

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        """Nothing: there is one."""

    def synchronize(self, device_index=None):
        """Nothing: the CPU has done what it returns from."""

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        """Nothing: they are the GPU's."""

    def empty_cache(self):
        """Nothing: there is none."""

    def communication_backend_name(self):
        return "gloo"

    def nvtx_range(self, msg):
        return contextlib.nullcontext(msg)

    def profiler_start(self):
        """Begin the range `training_step`, where none is open: for `capture-range=nvtx`, as cudaProfilerApi is CUDA's."""
        with contextlib.suppress(ImportError):
            import nvtx

            self.open = self.open or nvtx.start_range("training_step")

    def profiler_stop(self):
        if self.open:
            import nvtx

            nvtx.end_range(self.open)
            self.open = None


def nothing(*_arguments):
    """The bytes that the device's allocator holds: the host has none."""
    return 0


def unpinned(tensor, *_device):
    """The tensor: memory is pinned for a GPU to read it."""
    return tensor


for name in ("allocated", "reserved"):
    setattr(torch.cpu, f"memory_{name}", nothing)
    setattr(torch.cpu, f"max_memory_{name}", nothing)
torch.cpu.empty_cache = nothing
torch.Tensor.pin_memory = unpinned
torch.set_num_threads(1)  # sums have one order
set_platform(Host())

# These look up the platform when they are imported.
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # noqa: E402
from verl.utils import model as models  # noqa: E402
from verl.workers import engine_workers  # noqa: E402
from verl.workers.rollout import base  # noqa: E402
from verl.workers.rollout.replica import (  # noqa: E402
    RolloutReplica,
    RolloutReplicaRegistry,
    TokenOutput,
)


def value_model(local_path, torch_dtype, model_config, trust_remote_code):
    """The critic's model, as verl loads it but for flash attention."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


@ray.remote(num_cpus=0)
class Server:
    """An inference server of one process: the actor's model, whose weights the trainer sends after each step."""

    def __init__(self, path, tokens):
        self.model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()
        self.tokens, self.steps = tokens, 0

    async def update(self, weights, steps):
        self.model.load_state_dict(weights)
        self.steps = steps

    async def generate(self, prompt_ids, sampling_params, **_others):
        """Sampled tokens; the prompt and the step are the seed."""
        with torch.no_grad():
            return self._generated(prompt_ids, sampling_params)

    def _generated(self, prompt_ids, sampling_params):
        draw = torch.Generator().manual_seed(zlib.crc32(repr((self.steps, prompt_ids)).encode()))
        ids, chances = torch.tensor([prompt_ids]), []
        for _ in range(self.tokens):
            logits = self.model(ids).logits[0, -1] / sampling_params["temperature"]
            token = torch.multinomial(logits.softmax(-1), 1, generator=draw)
            chances.append(logits.log_softmax(-1)[token].item())
            ids = torch.cat([ids, token[None]], 1)
            if token.item() == self.model.config.eos_token_id:
                break
        return TokenOutput(
            token_ids=ids[0, len(prompt_ids) :].tolist(),
            log_probs=chances if sampling_params["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.steps},
        )

    async def nothing(self, **_options):
        """Asleep or awake, profiled or not, it is the same."""

    sleep = wake_up = start_profile = stop_profile = nothing
    abort_all_requests = resume_generation = clear_kv_cache = nothing


def server_name(replica):
    """What Ray calls the server of a replica."""
    return f"host_server_{replica}"


class Replica(RolloutReplica):
    """The server as the trainer holds it."""

    async def launch_servers(self):
        """Start it."""
        name = server_name(self.replica_rank)
        tokens = self.config.response_length
        self._server_handle = Server.options(name=name).remote(self.model_config.path, tokens)
        self._server_address = name
        self.servers = [self._server_handle]


class Adapter(base.BaseRollout):
    """The server as the trainer's workers hold it."""

    async def resume(self, tags):
        """Nothing: it does not sleep."""

    async def release(self):
        """Nothing: it does not sleep."""

    async def update_weights(self, weights, global_steps=None, **_options):
        """Send what all ranks gather to the server, from the first rank of the replica."""
        named = {name: tensor.detach().float().clone() for name, tensor in weights}
        place = self.device_mesh.get_coordinate()
        if place[1:] == [0, 0]:
            server = ray.get_actor(server_name(place[0]))
            await server.update.remote(named, global_steps or 0)


class InOrder(ReplayBuffer):
    """verl's, with the samples of a batch in the order of their prompts."""

    def __init__(self, **settings):
        super().__init__(**{"poll_interval": 0.1, **settings})

    def _select_prompt_uids(self, partition_id, sampleable_keys, batch_size):
        first = dict.fromkeys(uid for uid in self.prompt_global_steps[partition_id] if uid in sampleable_keys)
        return super()._select_prompt_uids(partition_id, first, batch_size)

    def _materialize_batch(self, partition_id, selected_prompt_uids, partition_snapshot):
        place = {uid: number for number, uid in enumerate(selected_prompt_uids)}
        chosen = [key for key in partition_snapshot if key.split("_")[0] in place]
        chosen.sort(key=lambda key: (place[key.split("_")[0]], key))
        ordered = {key: partition_snapshot[key] for key in chosen}
        return super()._materialize_batch(partition_id, selected_prompt_uids, ordered)


models.load_valuehead_model = value_model
engine_workers.initialize_global_process_group_ray = functools.partial(
    engine_workers.initialize_global_process_group_ray, backend="gloo"
)
base._ROLLOUT_REGISTRY["host", "async"] = f"{__name__}.Adapter"  # noqa: SLF001 - verl has no function for it
RolloutReplicaRegistry.register("host", lambda: Replica)
