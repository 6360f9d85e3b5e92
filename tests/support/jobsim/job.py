"""What a simulated job is: its size, its ranks and hosts, and the faults planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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
    pageable_bytes: int = 0
    """Of every micro-batch of the update, copied to the device from pageable memory."""
    logits_bytes: int = 0
    """Of every micro-batch of the update, copied to the host and waited for."""
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


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where, when, and how it changes what ranks do."""

    kind: str
    change: dict[str, Any]
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
    queue_depth: int = 1024
    sync_steps: bool = True
    """Whether a step ends when the device has done its work."""
    copy_stream: bool = False
    """Batches are copied on a stream of their own."""
    busbw: float = 250.0
    """GB/s of collectives."""
    layer_bytes: int = 0
    """0: as much as the tokens need not to wait for it."""
    faults: tuple[Fault, ...] = ()
    _behaviours: dict[tuple[int, int], Behaviour] = field(
        default_factory=dict, compare=False, repr=False
    )

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
            for fault in self.faults:
                if fault.hits(rank, step):
                    changes |= fault.change
            self._behaviours[key] = replace(Behaviour(), **changes)
        return self._behaviours[key]

    def without(self, *removed: Fault) -> Job:
        """The same job, with the same noise, without these faults."""
        kept = tuple(fault for fault in self.faults if fault not in removed)
        return replace(self, faults=kept, _behaviours={})

    def host_of(self, rank: int) -> int:
        """The index of the rank's host."""
        return rank // RANKS_OF_HOST

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The process groups of a rank: all ranks, those of equal data (`tp`), and those of equal weights (`dp`)."""
        size = self.tensor_parallel
        groups = {"default_pg": tuple(range(self.ranks))}
        if size > 1:
            first = rank // size * size
            groups["tp"] = tuple(range(first, first + size))
            groups["dp"] = tuple(range(rank % size, self.ranks, size))
        return groups

    def group_name(self, rank: int, kind: str) -> str:
        """The name that `torch.distributed` would have given: a number."""
        if kind == "default_pg":
            return "0"
        if kind == "dp":
            return str(1 + rank % self.tensor_parallel)
        return str(1 + self.tensor_parallel + rank // self.tensor_parallel)
