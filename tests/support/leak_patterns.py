"""Programs that leak memory, and programs that only look so, on the model of the allocator. SIMULATED: no GPU ran.

Each program is a class with `step(device, rng, number)`; `LEAKS` has the functions in which each leak allocates, `CLEAN`
the programs without a leak. `write_snapshots` runs one for some steps and writes a snapshot after each, as verl does.
All programs run the same training step around it: activations of a batch whose size varies, gradients, and an
optimizer whose state is made in the first step.
"""

from __future__ import annotations

from memory_builder import MIB, Allocator, DeviceFullError, frame, pickled, snapshot

STEPS = 12
GRAPH_POOL, KV_POOL = (1, 0), (0, 2)


def at(*names):
    """A stack within the training program: the innermost first, then its callers."""
    return [*(frame(name, line=10 + len(name)) for name in names), frame("train_step", line=7), frame("main", line=3)]


class Clean:
    """A training step without a leak; subclasses add to it."""

    steps, ranks = STEPS, 1
    capacity = None
    clears = True
    """Whether the history begins again after each snapshot."""

    def __init__(self, rng):
        self.rng, self.kept, self.state = rng, [], []

    def start(self, device):
        for _ in range(6):
            device.alloc(24 * MIB, at("build_model"))

    def run(self, device, number):
        if not self.state:
            self.state = [device.alloc(48 * MIB, at("init_state", "adam_step")) for _ in range(6)]
        batch = self.rng.uniform(0.7, 1.3)
        held = [device.alloc(int(batch * size) * 1024, at("forward", "layer")) for size in (3000, 9000, 5000, 700) * 4]
        self.step(device, number)
        for address in reversed(held):
            work = device.alloc(2 * MIB, at("backward"))
            device.free(address)
            device.free(work)

    def step(self, device, number):
        """Do the rest of the program's step."""

    def keep(self, device, size, *names, stream=0, pool=(0, 0)):
        self.kept.append(device.alloc(int(size), at(*names), stream=stream, pool=pool))

    def drop(self, device, count=None):
        """Free the oldest blocks that are kept."""
        count = len(self.kept) if count is None else count
        for address in self.kept[:count]:
            device.free(address)
        self.kept = self.kept[count:]


# --- leaks ------------------------------------------------------------------------------------------


class KeptTensors(Clean):
    def step(self, device, number):
        self.keep(device, 4 * MIB, "log_metrics")


class KeptOfAnySize(Clean):
    def step(self, device, number):
        self.keep(device, MIB * self.rng.uniform(0.5, 12), "collect_rollout")


class KeptGraph(Clean):
    """A loss kept with its graph: blocks of several functions, of all layers."""

    def step(self, device, number):
        for _ in range(8):
            self.keep(device, 600 * 1024 * self.rng.uniform(0.8, 1.2), "attention", "loss_forward")
            self.keep(device, 200 * 1024, "mlp", "loss_forward")


class ManySmall(Clean):
    def step(self, device, number):
        for _ in range(300):
            self.keep(device, 4096, "hook")


class EverySecondStep(Clean):
    steps = 16

    def step(self, device, number):
        if number % 2:
            self.keep(device, 6 * MIB, "evaluate")


class EveryFourthStep(Clean):
    steps = 20

    def step(self, device, number):
        if number % 4 == 3:
            self.keep(device, 16 * MIB, "validate")


class OneRankOfFour(Clean):
    ranks = 4

    def step(self, device, number):
        if device.rank == 2:
            self.keep(device, 4 * MIB, "save_samples")


class AllRanks(Clean):
    ranks = 3

    def step(self, device, number):
        self.keep(device, 3 * MIB, "append_history")


class FromTheFourthStep(Clean):
    steps = 14

    def step(self, device, number):
        if number >= 4:
            self.keep(device, 5 * MIB, "curriculum")


class TwoSites(Clean):
    def step(self, device, number):
        self.keep(device, 3 * MIB, "first_leak")
        self.keep(device, 7 * MIB, "second_leak")


class HistoryNotCleared(Clean):
    clears = False

    def step(self, device, number):
        self.keep(device, 4 * MIB, "log_metrics")


class SideStream(Clean):
    def step(self, device, number):
        self.keep(device, 5 * MIB, "prefetch", stream=7)


class PartlyFreed(Clean):
    """Of each step's five blocks one stays."""

    def step(self, device, number):
        blocks = [device.alloc(2 * MIB, at("gather_rewards")) for _ in range(5)]
        self.kept.append(blocks.pop(int(self.rng.integers(5))))
        for address in blocks:
            device.free(address)


class GraphPerShape(Clean):
    """A CUDA graph is captured in each step, in one private pool of graphs, and kept."""

    def step(self, device, number):
        for _ in range(4):
            self.keep(device, 1.5 * MIB, "capture_begin", "graph_for_shape", pool=GRAPH_POOL)


class GrownTensor(Clean):
    """torch.cat of all results so far: in each step a larger tensor replaces the one before."""

    def step(self, device, number):
        new = device.alloc((number + 1) * 5 * MIB, at("cat_results"))
        self.drop(device)
        self.kept = [new]


class GrownCache(Clean):
    """A KV cache that is allocated again in each step, for one more turn, on all layers."""

    def step(self, device, number):
        self.drop(device)
        for _ in range(8):
            self.keep(device, (number + 2) * 700 * 1024, "allocate_kv_cache")


class OutOfMemory(Clean):
    """The device is full before the last step."""

    capacity = 850 * MIB

    def step(self, device, number):
        self.keep(device, 40 * MIB, "log_metrics")


class SlowNextToNoise(Clean):
    """A small leak next to a buffer whose size varies much more, and which is in use when the snapshot is taken."""

    steps = 16
    buffer = None

    def step(self, device, number):
        if self.buffer is not None:
            device.free(self.buffer)
        self.buffer = device.alloc(int(MIB * self.rng.uniform(20, 60)), at("prepare_batch"))
        self.keep(device, MIB, "log_metrics")


LEAKS = {
    KeptTensors: ("log_metrics",),
    KeptOfAnySize: ("collect_rollout",),
    KeptGraph: ("attention", "mlp"),
    ManySmall: ("hook",),
    EverySecondStep: ("evaluate",),
    EveryFourthStep: ("validate",),
    OneRankOfFour: ("save_samples",),
    AllRanks: ("append_history",),
    FromTheFourthStep: ("curriculum",),
    TwoSites: ("first_leak", "second_leak"),
    HistoryNotCleared: ("log_metrics",),
    SideStream: ("prefetch",),
    PartlyFreed: ("gather_rewards",),
    GraphPerShape: ("capture_begin",),
    GrownTensor: ("cat_results",),
    GrownCache: ("allocate_kv_cache",),
    OutOfMemory: ("log_metrics",),
    SlowNextToNoise: ("log_metrics",),
}
"""Programs that leak, with the functions whose blocks stay."""


# --- no leaks ---------------------------------------------------------------------------------------


class NoisyBuffer(Clean):
    """A buffer of the batch is in use when the snapshot is taken; its size varies."""

    def step(self, device, number):
        self.drop(device)
        self.keep(device, MIB * self.rng.uniform(20, 60), "prepare_batch")


class Sawtooth(Clean):
    """A replay buffer that is emptied in every fourth step."""

    steps = 14

    def step(self, device, number):
        if number % 4 == 0:
            self.drop(device)
        self.keep(device, 8 * MIB, "replay_buffer")


class FillingCache(Clean):
    """A cache by shape: new shapes become rare."""

    steps = 16
    shapes = frozenset()

    def step(self, device, number):
        for shape in self.rng.integers(0, 6, 5).tolist():
            if shape not in self.shapes:
                self.shapes |= {shape}
                self.keep(device, 4 * MIB, "cached_mask")


class LimitedCache(Clean):
    """The last four batches are kept."""

    def step(self, device, number):
        if len(self.kept) == 4:
            self.drop(device, 1)
        self.keep(device, 6 * MIB, "last_batches")


class LevelShift(Clean):
    """A second model is loaded in the sixth step."""

    def step(self, device, number):
        if number == 5:
            for _ in range(6):
                self.keep(device, 20 * MIB, "load_reward_model")


class TwoShifts(Clean):
    def step(self, device, number):
        if number in (4, 8):
            self.keep(device, 60 * MIB, "load_adapter")


class DoubleBuffer(Clean):
    def step(self, device, number):
        if len(self.kept) == 2:
            self.drop(device, 1)
        self.keep(device, 10 * MIB * self.rng.uniform(0.9, 1.1), "prefetch")


class SameCacheAgain(Clean):
    """A KV cache of one size, allocated again in each step."""

    def step(self, device, number):
        self.drop(device)
        for _ in range(8):
            self.keep(device, 16 * MIB, "allocate_kv_cache")


class LongAndShort(Clean):
    """Long and short batches in turns."""

    def step(self, device, number):
        self.drop(device)
        self.keep(device, (60 if number % 2 else 20) * MIB, "prepare_batch")


class Shrinking(Clean):
    def start(self, device):
        super().start(device)
        for _ in range(STEPS):
            self.keep(device, 8 * MIB, "queue")

    def step(self, device, number):
        self.drop(device, 1)


class EmptiedCache(Clean):
    def step(self, device, number):
        for _ in range(3):
            device.free(device.alloc(int(MIB * self.rng.uniform(30, 90)), at("generate")))
        device.empty_cache(at("empty_cache"))


class RandomQueue(Clean):
    """A queue whose length rises and falls, around four."""

    def step(self, device, number):
        for _ in range(int(self.rng.integers(0, 4))):
            self.keep(device, 3 * MIB, "enqueue")
        while len(self.kept) > 6 or (self.kept and self.rng.uniform() < 0.55):
            self.drop(device, 1)


class EnginePool(Clean):
    """The KV cache of an engine in a pool of its own: allocated once, filled while it runs, never freed."""

    def start(self, device):
        super().start(device)
        for _ in range(6):
            frames = [frame("initialize_kv_cache", "vllm/v1/worker/gpu_model_runner.py", 50), *at()]
            device.alloc(64 * MIB, frames, pool=KV_POOL)


CLEAN = (
    Clean, NoisyBuffer, Sawtooth, FillingCache, LimitedCache, LevelShift, TwoShifts, DoubleBuffer, SameCacheAgain,
    LongAndShort, Shrinking, EmptiedCache, RandomQueue, EnginePool,
)  # fmt: skip
"""Programs without a leak."""


def write_snapshots(program, folder, rng):
    """Run a program on each of its ranks and write a snapshot after every step, as verl lays them out."""
    for rank in range(program.ranks):
        run = program(rng)
        device = Allocator(capacity=run.capacity)
        device.rank = rank
        run.start(device)
        for number in range(program.steps):
            try:
                run.run(device, number)
                is_full = False
            except DeviceFullError:
                is_full = True
            path = folder / f"step{number}" / f"torch_memory_rank{rank}_pid{100 + rank}.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickled(snapshot(device, rank=rank)))
            if program.clears:
                device.clear_history()
            if is_full:
                break


# --- reserved memory that grows at constant use -----------------------------------------------------


class Pieces(Clean):
    """A block of 30 MiB moves into a new segment of 58 MiB in each step, whose rest is too small for the next one."""

    def start(self, device):
        super().start(device)
        for _ in range(self.steps):
            self.keep(device, 30 * MIB, "load_shard")

    def step(self, device, number):
        device.free(device.alloc(58 * MIB, at("logits")))
        self.keep(device, 30 * MIB, "load_shard")
        self.drop(device, 1)
        device.empty_cache(at("empty_cache"))


class GrowingPeak(Clean):
    """Each step needs a larger block than the one before, and frees it: those before are cached, and too small."""

    def step(self, device, number):
        device.free(device.alloc((number + 2) * 10 * MIB, at("logits")))


class StreamPerStep(Clean):
    """In each step a new stream copies: memory that another stream cached is not used again."""

    def step(self, device, number):
        device.free(device.alloc(24 * MIB, at("prefetch"), stream=number + 1))


class PoolPerGraph(Clean):
    """In each step a graph is captured in a pool of its own, whose blocks are free between replays."""

    def step(self, device, number):
        device.free(device.alloc(24 * MIB, at("capture_begin", "graph_for_shape"), pool=(number + 1, 0)))


RESERVED = {
    Pieces: "in pieces",
    GrowingPeak: "in cached segments",
    StreamPerStep: "in cached segments",
    PoolPerGraph: "in private pools",
}
"""Programs whose reserved memory grows although no more is in use, with the place of the growing part."""
