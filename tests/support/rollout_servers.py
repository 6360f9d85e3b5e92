"""Which of verl's own rollout servers record, case by case: `python rollout_servers.py` reads JSON and prints JSON.

Run with a Python that has verl. vllm, sglang and TensorRT-LLM are empty modules here; the classes are verl's. Standard
input: a list of {"engine", "replica", "size", "profiler"}, where `profiler` is the block of the rollout's role as plain
values. Standard output: for each, whether `start_profile` reaches the engine.
"""

import asyncio
import importlib
import importlib.metadata
import json
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

ENGINES = {
    "vllm": ("vllm_rollout.vllm_async_server", "vLLMHttpServer"),
    "sglang": ("sglang_rollout.async_sglang_server", "SGLangHttpServer"),
    "trtllm": ("trtllm_rollout.trtllm_async_server", "TRTLLMHttpServer"),
}
STUBBED = ("vllm", "sglang", "tensorrt_llm")


class Stub(types.ModuleType):
    """A module that has whatever it is asked for."""

    __path__ = ()
    __version__ = "0.13.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, value)
        return value


class Stubs(MetaPathFinder, Loader):
    """Finds the engines' modules."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        found = name.partition(".")[0] in STUBBED
        return ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def imported(engine):
    """verl's server class for an engine, which can be made without a node, a model or a GPU."""
    module_name, class_name = ENGINES[engine]
    module = importlib.import_module(f"verl.workers.rollout.{module_name}")
    module.omega_conf_to_dataclass = lambda config, dataclass_type=None: config
    module.get_max_position_embeddings = lambda config: 4096
    server = getattr(module, class_name)
    remote = getattr(server, "__ray_metadata__", None)  # the class below `ray.remote`
    server = server if remote is None else remote.modified_class
    for name in ("_init_config", "_init_model_config"):
        setattr(server, name, lambda self, config: config)
    server._validate_configs = lambda self: None
    server._post_init = lambda self, devices: None
    return server


def block(given):
    """The profiler's configuration object, its tool's settings in the form that Hydra gives them."""
    from verl.utils.profiler import config

    kinds = {
        "torch": config.TorchProfilerToolConfig,
        "nsys": config.NsightToolConfig,
        "torch_memory": config.TorchMemoryToolConfig,
    }
    discrete = given["tool_config"]["discrete"]
    tools = {name: kind() if name == "torch_memory" else kind(discrete=discrete) for name, kind in kinds.items()}
    return config.ProfilerConfig(**{**given, "tool_config": tools})


def records(engine, server, case):
    """Whether the server of one replica starts its engine's profiler."""
    rollout = SimpleNamespace(
        profiler=block(case["profiler"]),
        tensor_model_parallel_size=case["size"],
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
        full_determinism=False,
        max_model_len=10,
        disable_log_stats=True,
    )
    model = SimpleNamespace(hf_config=None)
    replica, engine_calls = case["replica"], AsyncMock()
    if engine == "trtllm":
        made = server.__new__(server)
        made.config, made.replica_rank, made.llm = rollout, replica, engine_calls
        made.profiler_controller = made._init_profiler_controller()
        asyncio.run(made.start_profile())
        return engine_calls.collective_rpc.called
    if engine == "vllm":
        made = server(rollout, model, None, [], replica, 1, 1, 2, "")
        made.engine = engine_calls
    else:
        made = server(rollout, model, None, [], replica, 1, 2, "", 0)
        made.tokenizer_manager = engine_calls
    made.node_rank = 0
    asyncio.run(made.start_profile())
    return engine_calls.start_profile.called


def main():
    import ray

    sys.meta_path.insert(0, Stubs())
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.13.0" if name in STUBBED else version(name)
    ray.get_runtime_context = MagicMock()
    ray.get_runtime_context().get_job_id.return_value = "1"
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    stdout, sys.stdout = sys.stdout, sys.stderr  # servers print
    servers = {engine: imported(engine) for engine in ENGINES}
    found = [records(case["engine"], servers[case["engine"]], case) for case in json.load(sys.stdin)]
    sys.stdout = stdout
    print(json.dumps(found))


if __name__ == "__main__":
    main()
