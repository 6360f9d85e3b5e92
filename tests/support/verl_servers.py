"""verl's rollout servers without their engines: what verl asks of its profiler, and tells vLLM and SGLang.

The classes are verl's, and so are `start_profile` and `stop_profile`; the engines' packages are imitated so that verl's
modules can be imported, and the constructor's lines for the profiler are repeated here in their sense, since the rest of
it wants Ray and a model. Nothing in here names capture.
"""

import asyncio
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import json
import sys
import types
from pathlib import Path

from verl.utils import profiler as profilers
from verl.utils.config import omega_conf_to_dataclass

IMITATED = (
    *("vllm", "sglang", "compressed_tensors", "zmq", "msgspec", "cachetools", "aiohttp"),
    *("torchdata", "peft", "accelerate", "einops"),
)
"""What verl's servers, and its trainer and engines, import and this program never uses."""

VERSION = "0.19.0"
SERVERS = {
    "vllm": ("verl.workers.rollout.vllm_rollout.vllm_async_server", ("vLLMHttpServer", "vLLMHttpServerBase")),
    "sglang": ("verl.workers.rollout.sglang_rollout.async_sglang_server", ("SGLangHttpServer", "SGLangHttpServerBase")),
}  # fmt: skip


class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, _other):
        return cls

    __ror__ = __or__


class Anything(metaclass=_Meta):
    """Whatever a package may have: a class, a function, a decorator."""

    def __init__(self, *_args, **_kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(self, *given, **_kwargs):
        """What it is given, as a decorator gives it."""
        return given[0] if given else self


class _Imitation(types.ModuleType):
    __version__ = VERSION
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder:
    """Finds imitations of packages that are not here."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The imitation's spec, for those packages only."""
        del path, target
        if name.partition(".")[0] not in IMITATED:
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        """The module of a spec."""
        return _Imitation(spec.name)

    @staticmethod
    def exec_module(_module):
        """Nothing to run."""


def imitate():
    """Have the engines' packages found where they are not installed."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
        version = importlib.metadata.version
        importlib.metadata.version = lambda name: VERSION if name in SERVERS else version(name)


class Engine:
    """What an engine is told; at its start it writes the trace that it was configured for."""

    def __init__(self, folder=None):
        self.folder, self.told = folder, []

    async def start_profile(self, **told):
        """As vLLM's engine and SGLang's tokenizer manager have it."""
        self.told.append(["start", told])
        folder = Path(told.get("output_dir") or self.folder)
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing waits for it
        name = "1-TP-0.trace.json.gz" if "output_dir" in told else "host-rank-0.1.pt.trace.json.gz"
        (folder / name).write_bytes(b"trace")

    async def stop_profile(self):
        """As above."""
        self.told.append(["stop"])


def server_class(kind):
    """verl's class of server, and why it is not to be had where it is not."""
    imitate()
    module, names = SERVERS[kind]
    try:
        home = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever the imitation lacks
        return None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return next((getattr(home, name) for name in names if hasattr(home, name)), None), None


def configured(block):
    """The block's configuration and its tool's, as the servers' constructors take them."""
    config = omega_conf_to_dataclass(block)
    if config.tool not in ("torch", "npu"):
        return None, None
    return config, omega_conf_to_dataclass((config.tool_config or {}).get(config.tool))


def replica_profiler(rank, world_size, config, tool_config):
    """The profiler of a replica, by verl's own builder where this version has one."""
    build = getattr(profilers, "build_rollout_dist_profiler", None)
    if build is None:
        return profilers.DistProfiler(rank, config=config, tool_config=tool_config)
    return build(rank, world_size, config=config, tool_config=tool_config)


def driven(kind, block, rank=0, world_size=2):
    """What verl's server does with its profiler in a profiled step."""
    kind_class, missing = server_class(kind)
    config, tool_config = configured(block)
    profiler = replica_profiler(rank, world_size, config, tool_config)
    asked = [profiler.check_enable(), profiler.check_this_rank(), profiler.is_discrete_mode()]
    if kind_class is None:
        return {"server": missing, "asked": asked}
    made = object.__new__(getattr(kind_class, "__ray_actor_class__", kind_class))
    made.profiler_controller, made.node_rank = profiler, 0
    made.replica_rank, made.replica_world_size = rank, world_size
    keep = getattr(profilers, "rollout_profiler_global_ranks", None)
    made.profiler_keep_global_ranks = keep(config) if keep else None
    arguments = _vllm_arguments(profiler, rank) if kind == "vllm" else {}
    folder = json.loads(arguments.get("profiler_config", "{}")).get("torch_profiler_dir")
    engine = made.engine = made.tokenizer_manager = Engine(folder)

    async def step():
        await made.start_profile()
        await made.stop_profile()

    asyncio.run(step())
    return {"server": kind_class.__name__, "asked": asked, "arguments": arguments, "told": engine.told}


def _vllm_arguments(profiler, rank):
    build = profilers.build_vllm_profiler_args
    options = {"legacy_env": False} if "legacy_env" in inspect.signature(build).parameters else {}
    return build(profiler.config, profiler.tool_config, rank, **options)
