"""What a simulated job is: its size, its ranks and hosts, and the faults planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from jobsim.proposals import Proposal

RANKS_OF_HOST = 8


@dataclass(frozen=True)
class Behaviour:
    """How one rank behaves in one step; as it stands here, nothing is wrong.

    Faults change some of it for some ranks and steps. Times are ns of that step.
    """

    clock: float = 1.0
    """Kernels last so many times as long."""
    host: float = 1.0
    """What the host does lasts so many times as long."""
    preempted: float = 0.0
    """Share of ops in which another process has the core for `preempted_ns`."""
    preempted_ns: int = 0
    tokens: float = 1.0
    """So many times the tokens in training and log-probs."""
    slow_group: str = ""
    """Collectives of this group have `busbw` times the rate of others."""
    busbw: float = 1.0
    overlap: bool = True
    """Whether collectives run beside compute."""
    items: bool = False
    """The host reads each of the job's norms as it is computed."""
    batch_bytes: int = 0
    """Of every micro-batch of the update, copied to the device."""
    logits_bytes: int = 0
    """Of every micro-batch of the update, copied to the host."""
    pageable: bool = False
    """Whether batches, logits, offloaded state and weights that go through the host lie in pageable memory there.

    The host waits for such a copy. One of pinned memory takes its bytes at the rate of the link, and the host goes on.
    """
    churn: int = 0
    """cudaFree and cudaMalloc calls in every micro-batch of the update."""
    gc_at: tuple[str, ...] = ()
    """Where garbage is collected for `gc_ns`: `update_actor`, `adv`, `ref`."""
    gc_ns: int = 0
    pauses: tuple[int, ...] = ()
    """Pauses in the update of which nothing is recorded, one after each mini-batch."""
    loader_ns: int = 0
    """The data loader sleeps in the training process."""
    loader_lag_ns: int = 0
    """The loader's worker is behind by so much: the training process waits in its queue."""
    preprocess_ns: int = 0
    """Python work on the batch in old_log_prob."""
    recompile_ns: int = 0
    """Compiling in the first micro-batch of the update."""
    module_load_ns: int = 0
    """Loading of code in the first launches of each kind."""
    tiny_eager: bool = False
    """The job's tiny kernels are launched one by one and not as a graph."""
    decode_eager: bool = False
    """The kernels of decode iterations are launched one by one and not as a graph."""
    unaligned: bool = False
    """The vocabulary is odd: the logits' products leave the fast kernels."""
    fp32: bool = False
    """The reference model multiplies in 32 bits."""
    conv32: bool = False
    """The vision tower convolves in 32 bits."""
    foreach: bool = True
    """Whether the optimizer updates all tensors in one kernel."""
    fused_activation: bool = True
    """Whether the activation of each layer is one kernel."""
    fused_attention: bool = True
    tail: int = 0
    """Decode iterations more, with few requests running."""
    scheduler_ns: int = 0
    """Host time of the rollout engine between two iterations, with the device idle."""
    contiguous: int = 0
    """Copies of the activations in every layer."""
    log_ns: int = 0
    """A log is written to a file at the end of the update."""
    sync_tensors: int = 0
    """New weights are sent in so many messages, one by one."""
    late_ns: int = 0
    """The rank begins its step so late."""
    prompts: float = 1.0
    """Factor on the tokens of the rollout's prefill."""
    preemptions: int = 0
    """Decode iterations in which a preempted request is prefilled again."""
    wake_calls: int = 0
    """Driver calls that map memory before generation."""
    reshard_tensors: int = 0
    """Tensors gathered one by one before generation; the host waits for each."""
    reward_ns: int = 0
    """Host time in the reward stage."""
    reward_waits: bool = False
    """Whether that time is a wait for a server instead of work in Python."""
    offload_bytes: int = 0
    """Optimizer state copied to the device before the optimizer and back after it."""
    cpu_optimizer_ns: int = 0
    """The optimizer runs on the host: gradients go there and weights come back."""
    hot_expert: float = 1.0
    """Factor on the tokens of this rank's experts."""
    reduce_often: bool = False
    """Gradients are reduced in every micro-batch."""
    reduce_tensors: int = 0
    """Gradients of each layer are reduced in so many messages."""
    bare_compile_ns: int = 0
    """Compiling that leaves no ranges: the host is silent and loads modules."""
    shared: float = 0.0
    """Another process takes the GPU in slices: kernels last longer by this share on average."""
    end_ns: int = 0
    """Host time outside of any stage at the end of the step."""
    device_syncs: bool = False
    """The host waits for the device after every layer of the update's forward."""
    finite_checks: int = 0
    """Tensors that the host checks for NaN one by one after the backward."""
    casts: int = 0
    """Casts of the activations in every layer."""
    layer_offload_bytes: int = 0
    """Activations of every layer copied to the host in the forward and back in the backward."""
    through_host: bool = False
    """New weights go through host memory."""
    objects_ns: int = 0
    """Python objects pickled and broadcast before each micro-batch of the update."""
    checkpoint_ns: int = 0
    """A checkpoint is written at the end of the step, in a stage of its own."""
    validate_decodes: int = 0
    """A validation generates so many iterations at the end of the step, in a stage of its own."""

    @property
    def memory(self) -> str:
        """The kind of host memory, as the profiler names it."""
        return "Pageable" if self.pageable else "Pinned"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where, when, and how it changes what ranks do."""

    kind: str
    change: dict[str, Any]
    repair: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """The part of the change that stays in the repaired run: copies of pageable memory become copies of pinned memory."""
    ranks: tuple[int, ...] | None = None
    """None: all."""
    steps: tuple[int, ...] | None = None
    stage: str = ""
    place: str = ""
    """The frame, op, kernel or group at which a person would look."""
    warm_up: bool = False
    """It costs only the first steps, which do not count."""

    def hits(self, rank: int, step: int) -> bool:
        """Whether it is there on this rank in this step."""
        on_rank = self.ranks is None or rank in self.ranks
        return on_rank and (self.steps is None or step in self.steps)


@dataclass(frozen=True)
class Job:
    """A job: `steps` steps of `ranks` ranks, from step `first_step` on."""

    name: str
    ranks: int = 4
    steps: int = 4
    seed: int = 0
    first_step: int = 3
    tensor_parallel: int = 1
    tokens: int = 1024
    """Of a micro-batch of the update; log-probs take four times as many at once."""
    layers: int = 3
    minis: int = 2
    micros: int = 2
    decodes: int = 20
    decode_kernels: int = 0
    """Kernels of one decode iteration, of `decode_kernel_ns` each; 0: six that take what the tokens take."""
    decode_kernel_ns: int = 15_000
    tiny: int = 0
    """Kernels of `tiny_ns` in adv."""
    tiny_ns: int = 3_000
    eager_tiny: bool = False
    """Whether they are always launched one by one, and not as a graph."""
    norms: int = 0
    """Norms of activations computed in each layer of the update's forward."""
    vision: bool = False
    stacks: bool = False
    noise: float = 0.015
    """Spread of kernel times."""
    host_noise: float = 0.12
    step_spread: float = 0.02
    """Of the tokens from step to step, on all ranks alike."""
    rank_spread: float = 0.004
    """Of the tokens from rank to rank, anew in every step."""
    odd_tokens: bool = False
    skew_ns: int = 0
    """Clocks of hosts differ by up to so much."""
    ranks_of_host: int = RANKS_OF_HOST
    queue_depth: int = 1024
    sync_steps: bool = True
    """Whether a step ends when the device has done its work."""
    sync_rows: bool = False
    """Whether the profiler records who waits for whom, as with `enable_cuda_sync_events`."""
    copy_stream: bool = False
    """Batches are copied on a stream of their own."""
    busbw: float = 250.0
    """GB/s of collectives."""
    layer_bytes: int = 0
    """0: as much as the tokens need not to wait for it."""
    rollout: bool = True
    """Whether a step generates and sends new weights."""
    async_rollout: bool = False
    """Whether the second half of the ranks generates while the first half trains."""
    pipeline: int = 1
    """Pipeline stages that the ranks are split into."""
    moe: bool = False
    """Whether layers have experts on all ranks, to which tokens are sent."""
    reward: bool = False
    """Whether a step has a reward stage."""
    sync_every: int = 1
    """Steps between two reads of a number from the device: the host runs ahead in the others."""
    validate_every: int = 0
    """Steps between two validations, which are part of the job and not a fault."""
    checkpoint_every: int = 0
    preempt_every: int = 0
    """Decode iterations between two in which a preempted request is prefilled again."""
    contention: float = 0.0
    """Compute lasts longer by this share while a collective transfers."""
    slowdown: float = 0.0
    """Kernels run at 1 / (1 + this) of their rate while a collective transfers, whichever was launched first."""
    rising_clock: float = 0.0
    """Kernels last longer by up to this share on a device that was idle before: its clock rises as it works."""
    jitter_ns: int = 0
    """Longest delay of a transfer, drawn anew when the collective begins at another time."""
    wander: float = 0.0
    """Spread of the clock of each rank from step to step."""
    spikes: float = 0.0
    """Share of kernels that last three times as long."""
    os_noise: float = 0.0
    """Share of host ops in which another process has the core for 150 µs, on every rank."""
    link_noise: float = 0.0
    """Spread of transfers."""
    batch_spread: float = 0.0
    """Spread of the tokens from micro-batch to micro-batch and rank to rank."""
    tail_spread: int = 0
    """Largest number of decode iterations that a rank has more than another, drawn in every step."""
    loader_jitter_ns: int = 0
    """Longest wait for the data loader, drawn for every rank and step."""
    small_gc_ns: int = 0
    """A short collection of garbage at a random stage of every rank and step."""
    hiccup_ns: int = 0
    """The host of one rank stops once in the run."""
    faults: tuple[Fault, ...] = ()
    repaired: tuple[Fault, ...] = ()
    """Faults that were removed; their `repair` stays."""
    proposal: Proposal = field(default_factory=Proposal, compare=False)
    """Fixes that findings proposed."""
    _behaviours: dict[tuple[int, int], Behaviour] = field(default_factory=dict, compare=False, repr=False)

    def gathered_bytes(self) -> int:
        """What is gathered and reduced for one layer."""
        return self.layer_bytes or min(self.tokens, 1024) * 48 * 2**10

    def step_numbers(self) -> range:
        """The numbers of its steps."""
        return range(self.first_step, self.first_step + self.steps)

    def behaviour(self, rank: int, step: int) -> Behaviour:
        """What is wrong with this rank in this step."""
        key = rank, step
        if key not in self._behaviours:
            changes: dict[str, Any] = {}
            for fault in self.repaired:
                if fault.hits(rank, step):
                    changes |= fault.repair
            for fault in self.faults:
                if fault.hits(rank, step):
                    changes |= fault.change
            self._behaviours[key] = replace(Behaviour(), **changes)
        return self._behaviours[key]

    def without(self, *removed: Fault) -> Job:
        """The same job, with the same noise, without these faults."""
        kept = tuple(fault for fault in self.faults if fault not in removed)
        gone = tuple(fault for fault in self.faults if fault in removed)
        return replace(self, faults=kept, repaired=(*self.repaired, *gone), _behaviours={})

    def host_of(self, rank: int) -> int:
        """The index of the rank's host."""
        return rank // self.ranks_of_host

    def is_generator(self, rank: int) -> bool:
        """Whether the rank only generates."""
        return self.async_rollout and rank >= self.ranks // 2

    def pipeline_stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.ranks // self.pipeline)

    def trainers(self) -> str:
        """Return the kind of group of all ranks that train."""
        return "dp" if self.async_rollout else "default_pg"

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The process groups of a rank: all ranks, those of equal data (`tp`), and those of equal weights (`dp`)."""
        size = self.tensor_parallel
        groups = {"default_pg": tuple(range(self.ranks))}
        if self.async_rollout and not self.is_generator(rank):
            groups["dp"] = tuple(range(self.ranks // 2))
        if self.pipeline > 1:
            many, stage = self.ranks // self.pipeline, self.pipeline_stage(rank)
            groups["dp"] = tuple(range(stage * many, stage * many + many))
        if size > 1:
            first = rank // size * size
            groups["tp"] = tuple(range(first, first + size))
            groups["dp"] = tuple(range(rank % size, self.ranks, size))
        return groups

    def group_name(self, rank: int, kind: str) -> str:
        """The name that `torch.distributed` would have given: a number."""
        if kind == "default_pg":
            return "0"
        if kind == "dp" and self.pipeline > 1:
            return str(1 + self.pipeline_stage(rank))
        if kind == "dp":
            return str(1 + rank % self.tensor_parallel)
        return str(1 + self.tensor_parallel + rank // self.tensor_parallel)
