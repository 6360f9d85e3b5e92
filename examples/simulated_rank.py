"""One rank of a run that never took place: a host clock, streams, and what it has recorded.

A clock stands for the host and a time for each stream at which it is free, so where every piece of
work lies is known to the nanosecond, without reading it back from a trace.

Standard library only, seeded, the same on every machine. All times are integer ns since 1970.
"""

import random
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

WORLD = 2
START_NS = 1_795_160_500_000_000_000

COMPUTE, COPY, COMM = 7, 13, 20
LATENCY_NS = 4_200
FLOP_PER_S, HBM_BYTES_PER_S, NVLINK_BYTES_PER_S = 4e14, 2.4e12, 2e11
PINNED_BYTES_PER_S, PAGEABLE_BYTES_PER_S = 5e10, 6e9
FIRST_CORRELATION = 9_000
"""Work below it was launched before the window: its launch is in no trace."""

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {0}, std::array<char*, 3ul>>(int, {0})"
CBID = {
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaStreamWaitEvent": 147,
    "cudaDeviceSynchronize": 165,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
}
COLLECTIVES = {  # Collective name: (kernel, range); the op is c10d:: and the name
    "_allgather_base": ("AllGather_RING_LL", "_all_gather_base"),
    "_reduce_scatter_base": ("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base"),
    "allreduce": ("AllReduce_Sum_f32_RING_LL", "all_reduce"),
}

Meeting = tuple[int, int]
"""A collective as one rank sees it: (start of its kernel, length of the transfer)."""
Joined = Generator[Meeting, int, int]
"""A part of a program that returns when a collective ends."""


@dataclass
class Placed:
    """One kernel, copy or memset where the simulation put it."""

    name: str
    category: str
    kind: str
    stream: int
    dur: int
    args: dict[str, Any]
    start: int = 0
    correlation: int = 0
    step: int | None = None
    stage: str | None = None
    autograd: bool = False

    @property
    def end(self) -> int:
        """The first ns that is not its own."""
        return self.start + self.dur


@dataclass
class Span:
    """One host row: an op, a range, a runtime call, or the instant of an allocation."""

    name: str
    category: str
    tid: int
    start: int
    args: dict[str, Any]
    dur: int = 0


@dataclass
class Collective:
    """One collective as one rank saw it."""

    sequence: int
    name: str
    size_bytes: int
    start: int
    transfer: int
    end: int
    step: int | None
    stage: str | None


@dataclass
class Rank:
    """One process: its host clock, its streams, and everything it has recorded.

    A method that launches work returns when that work ends.
    """

    rank: int
    now: int = START_NS
    spans: list[Span] = field(default_factory=list)
    memory: list[Span] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    free: dict[int, int] = field(default_factory=lambda: dict.fromkeys((COMPUTE, COPY, COMM), 0))
    layer_ends: list[int] = field(default_factory=lambda: [0, 0])
    open: list[Span] = field(default_factory=list)
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    step: int | None = None
    stage: str | None = None
    correlation: int = FIRST_CORRELATION
    external: int = 0
    allocated: int = 30 * 2**30
    reserved: int = 30 * 2**30
    address: int = 0x7F00_0000_0000

    def __post_init__(self) -> None:
        self.rng = random.Random(1000 + self.rank)
        self.pid = 41_000 + self.rank
        self.main, self.tid = self.pid, self.pid
        self.autograd = self.pid + 61

    def about(self, ns: float, spread: float = 0.02) -> int:
        """That many ns, give or take a little."""
        return round(ns * (1 + spread * (2 * self.rng.random() - 1)))

    @contextmanager
    def span(self, category: str, name: str, cost: float = 6_000, **args: object) -> Iterator[None]:
        """A host row that lasts as long as the block, plus its own cost."""
        self.external += 1
        made = Span(name, category, self.tid, self.now, {"External id": self.external, **args})
        self.spans.append(made)
        self.open.append(made)
        self.now += self.about(cost * 0.6, 0.15)
        yield
        self.now += self.about(cost * 0.4, 0.15)
        self.open.pop()
        made.dur = self.now - made.start

    def marked(self, name: str) -> AbstractContextManager[None]:
        """A `record_function` range."""
        return self.span("user_annotation", name, 3_000)

    def call(self, name: str, cost: float = 1_800, until: int = 0) -> Span:
        """A runtime call; one that waits returns a little after `until`."""
        self.correlation += 1
        args = {"cbid": CBID[name], "correlation": self.correlation}
        made = Span(name, "cuda_runtime", self.tid, self.now + 300, args)
        made.dur = max(self.about(cost, 0.15), until + 1_400 - made.start)
        self.now = made.start + made.dur
        self.spans.append(made)
        return made

    def launch(self, call: Span, work: Placed) -> int:
        """When the work ends that this call puts on its stream."""
        work.correlation = call.args["correlation"]
        work.start = max(work.start, call.start + LATENCY_NS, self.free[work.stream])
        external = {"External id": self.open[-1].args["External id"]}
        call.args |= external
        return self.place(work, external)

    def place(self, work: Placed, linked: dict[str, Any]) -> int:
        """When the work ends, which is recorded as it stands."""
        work.step, work.stage, work.autograd = self.step, self.stage, self.tid != self.main
        where = {"device": self.rank, "context": 1, "stream": work.stream}
        work.args = {**linked, **where, "correlation": work.correlation, **work.args}
        self.free[work.stream] = work.end
        self.placed.append(work)
        return work.end

    def op(self, name: str, kernel: str, ns: float, cost: float = 6_000, **args: object) -> int:
        """An op with one kernel."""
        with self.span("cpu_op", name, cost, **args):
            call = self.call("cudaLaunchKernel")
            shape: dict[str, Any] = {"registers per thread": 64, "blocks per SM": 4.0}
            shape |= {"shared memory": 0, "grid": [528, 1, 1], "block": [128, 1, 1]}
            work = Placed(kernel, "kernel", "compute", COMPUTE, self.about(ns), shape)
            return self.launch(call, work)

    def elementwise(self, name: str, nbytes: float, cost: float = 6_000) -> int:
        """An op that reads and writes that many bytes."""
        functor = f"at::native::{name.removeprefix('aten::').strip('_')}_functor<c10::BFloat16>"
        ns = 2_000 + 1e9 * nbytes / HBM_BYTES_PER_S
        return self.op(name, ELEMENTWISE.format(functor), ns, cost)

    def mm(self, rows: int, inner: int, columns: int, cost: float = 6_000) -> int:
        """A matrix product; it takes as long as its arithmetic or its right-hand side."""
        arithmetic = 2 * rows * inner * columns / FLOP_PER_S
        ns = 3_000 + 1e9 * max(arithmetic, 2 * inner * columns / HBM_BYTES_PER_S)
        shapes = {"Input Dims": [[rows, inner], [inner, columns]]}
        types = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
        return self.op("aten::mm", GEMM, ns, cost, **shapes, **types)

    def copy(self, direction: str, nbytes: int, stream: int = COMPUTE) -> int:
        """A copy, named as `HtoD (Pinned -> Device)`; the host waits for a pageable one."""
        pageable = "Pageable" in direction
        rate = PAGEABLE_BYTES_PER_S if pageable else PINNED_BYTES_PER_S
        if "DtoD" in direction:
            rate = HBM_BYTES_PER_S / 2
        ns = self.about(1_500 + 1e9 * nbytes / rate)
        args = {"bytes": nbytes, "memory bandwidth (GB/s)": nbytes / ns}
        with self.span("cpu_op", "aten::copy_"):
            call = self.call("cudaMemcpyAsync", 2_600)
            work = Placed(f"Memcpy {direction}", "gpu_memcpy", "memcpy", stream, ns, args)
            end = self.launch(call, work)
            if pageable:
                self.call("cudaStreamSynchronize", until=end)
        return end

    def memset(self, nbytes: int) -> int:
        """A memset."""
        ns = self.about(1_000 + 1e9 * nbytes / HBM_BYTES_PER_S)
        args = {"bytes": nbytes, "memory bandwidth (GB/s)": nbytes / ns}
        with self.span("cpu_op", "aten::zero_"):
            call = self.call("cudaMemsetAsync")
            work = Placed("Memset (Device)", "gpu_memset", "memset", COMPUTE, ns, args)
            return self.launch(call, work)

    def item(self) -> None:
        """Nothing; the host has read one number from the device and waited for it."""
        with self.span("cpu_op", "aten::item"), self.span("cpu_op", "aten::_local_scalar_dense"):
            end = self.copy("DtoH (Device -> Pinned)", 4)
            self.call("cudaStreamSynchronize", until=end)

    def allocate(self, key: str, nbytes: int) -> None:
        """Nothing; the block of that name is there."""
        self.address += nbytes
        self.live[key] = (self.address, nbytes)
        self._count(self.address, nbytes)

    def release(self, key: str) -> None:
        """Nothing; the block of that name is gone."""
        address, nbytes = self.live.pop(key)
        self._count(address, -nbytes)

    def _count(self, address: int, delta: int) -> None:
        self.allocated += delta
        self.reserved = max(self.reserved, -(-self.allocated // 2**21) * 2**21)
        args = {"Total Reserved": self.reserved, "Total Allocated": self.allocated, "Bytes": delta}
        args |= {"Addr": address, "Device Id": self.rank, "Device Type": 1}
        self.memory.append(Span("[memory]", "cpu_instant_event", self.tid, self.now, args))
        self.now += 200

    def collective(self, name: str, sent: int, received: int, dtype: str, ready: int = 0) -> Joined:
        """A collective: on both ranks it ends at once, a transfer after the later one starts."""
        kernel, mark = COLLECTIVES[name]
        sequence = len(self.collectives) + 1
        size = max(sent, received) * (4 if dtype == "Float" else 2)
        transfer = 9_000 + round(1e9 * size / 2 / NVLINK_BYTES_PER_S)
        about: dict[str, Any] = {
            "Collective name": name,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "Group size": WORLD,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str([*range(WORLD)]),
            "Seq": sequence,
        }
        with (
            self.span("cpu_op", f"c10d::{name.rstrip('_')}_"),
            self.span("cpu_op", "record_param_comms", Rank=self.rank, **about),
            self.span("user_annotation", f"nccl:{mark}", 2_000),
        ):
            self.call("cudaStreamWaitEvent", 700)
            call = self.call("cudaLaunchKernelExC", 4_000)
            start = max(call.start + 2 * LATENCY_NS, self.free[COMM], ready)
            end = yield start, transfer
            full = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
            shape = {"registers per thread": 96, "shared memory": 82_240, "blocks per SM": 24 / 132}
            args = {**shape, "grid": [24, 1, 1], "block": [544, 1, 1], **about}
            self.launch(call, Placed(full, "kernel", "comm", COMM, end - start, args, start))
        seen = Collective(sequence, name, size, start, transfer, end, self.step, self.stage)
        self.collectives.append(seen)
        return end

    def wait_for(self, end: int) -> None:
        """Nothing; later compute work starts no earlier than that."""
        self.call("cudaStreamWaitEvent", 700)
        self.free[COMPUTE] = max(self.free[COMPUTE], end)
