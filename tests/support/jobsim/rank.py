"""One simulated process: a host clock, its streams, and the rows that a profiler would record of both.

A method that launches work returns when that work ends, whatever the host's clock says by then. What
follows on a stream is thereby known at once, so that nothing has to be simulated twice; only where
ranks meet a program yields, and is sent the end that they share.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from jobsim import noise
from jobsim.job import Job
from jobsim.kernels import PAGEABLE_BYTES_PER_NS, PINNED_BYTES_PER_NS, traffic_ns
from jobsim.proposals import is_in

START_NS = 1_795_160_500_000_000_000
COMPUTE, COPY, FSDP, TENSOR, CONTROL, PIPE = 7, 13, 20, 24, 28, 32
"""Streams: each process group has one of its own."""
STREAM_OF = {"default_pg": CONTROL, "dp": FSDP, "tp": TENSOR}
LAUNCH_LATENCY_NS, STREAM_GAP_NS = 3_800, 900
OP_NS, CALL_NS = 7_000, 4_200
SYNC_NAMES = {
    "cudaStreamSynchronize": "Stream Sync", "cudaEventSynchronize": "Event Sync", "cudaDeviceSynchronize": "Context Sync",
}  # fmt: skip
GRAPH_CALL_NS = 9_000
CLOCK_NS = 1_000_000
"""Time in which the clock of a device follows its load."""
CBID = {
    "cudaMalloc": 20, "cudaFree": 22, "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131, "cudaEventRecord": 135, "cudaEventSynchronize": 137,
    "cudaStreamWaitEvent": 147, "cudaDeviceSynchronize": 165, "cudaLaunchKernel": 211,
    "cudaGraphLaunch": 311, "cudaLaunchKernelExC": 430, "cuLibraryLoadData": 670,
    "cuModuleLoadData": 42, "cuLaunchKernelEx": 652, "cuMemMap": 580, "cuMemCreate": 576,
    "cuMemUnmap": 582, "cuMemSetAccess": 584,
}  # fmt: skip
NCCL = {
    "_allgather_base": ("AllGather_RING_LL", "_all_gather_base"),
    "_reduce_scatter_base": ("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base"),
    "allreduce": ("AllReduce_Sum_f32_RING_LL", "all_reduce"),
    "broadcast": ("Broadcast_RING_LL", "broadcast"),
    "all_to_allv": ("SendRecv", "all_to_all"),
}
WIDTH = {"BFloat16": 2, "Float": 4, "Long": 8}
SHAPE = '"registers per thread": 64, "shared memory": 0, "blocks per SM": 4.0, "warps per SM": 16.0, "grid": [528, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 25'
NCCL_SHAPE = '"registers per thread": 96, "shared memory": 82240, "blocks per SM": 0.181818, "warps per SM": 3.090909, "grid": [24, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 5'


class Meeting(NamedTuple):
    """A collective as one rank comes to it."""

    group: tuple[int, ...]
    name: str
    start: int
    transfer: int


class Transfer(NamedTuple):
    """When a collective transferred, from the begin of the step on."""

    step: int
    begin: int
    end: int


Joined = Generator[Meeting, int, int]
"""A part of a program that returns when a collective ends."""


class SyncRow(NamedTuple):
    """A record of who waited: a stream (-1: the host), for what was launched last by a call on a stream."""

    name: str
    stream: int
    start: int
    end: int
    correlation: int
    on_stream: int
    record: int


class HostRow:
    """A row of the host; its end is written when it is over."""

    __slots__ = ("args", "category", "end", "external", "name", "shadows", "start", "tid")

    def __init__(self, category: str, name: str, tid: int, start: int, args: str) -> None:
        self.category, self.name, self.tid = category, name, tid
        self.start, self.end, self.args = start, start, args
        self.external = 0
        self.shadows: dict[int, list[int]] | None = None


class DeviceRow(NamedTuple):
    """A kernel, copy or fill."""

    category: str
    name: str
    stream: int
    start: int
    end: int
    correlation: int
    external: int
    args: str


@dataclass
class Seen:
    """A collective after it took place, as one rank saw it."""

    name: str
    group: tuple[int, ...]
    start: int
    end: int
    transfer: int
    size_bytes: int


def join_intervals(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, in order."""
    joined: list[tuple[int, int]] = []
    for begin, over in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], over)
        else:
            joined.append((begin, over))
    return joined


class Rank:
    """One process and its GPU."""

    def __init__(self, job: Job, rank: int, beside: Sequence[Transfer] = ()) -> None:
        self.job, self.rank = job, rank
        self.now = START_NS
        self.pid = 40_000 + 7 * rank
        self.main, self.autograd, self.loader = self.pid, self.pid + 61, self.pid + 83
        self.tid = self.main
        self.host_rows: list[HostRow] = []
        self.calls: list[tuple[str, str, int, int, int, int, int]] = []
        self.device_rows: list[DeviceRow] = []
        self.frames: list[tuple[str, int, int, int, int, int]] = []
        self.collectives: list[Seen] = []
        self.pinnings: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.kept_steps: list[int] = [*job.step_numbers()]
        self.free = dict.fromkeys((COMPUTE, COPY, FSDP, TENSOR, CONTROL, PIPE), 0)
        self.queue: deque[int] = deque()
        self.open_ranges: dict[int, list[HostRow]] = {self.main: [], self.autograd: []}
        self.open_frames: list[int] = []
        self.open_names: list[str] = []
        self.stage = ""
        self._launching = 0
        self.external, self.correlation, self.frame_count = 0, 1_000, 0
        self.sequences: dict[str, int] = {}
        self.behaviour = job.behaviour(rank, job.first_step)
        self._kernel = noise.factors(job.seed, "kernel", job.noise, job.spikes)
        self._host = noise.factors(job.seed, "host", job.host_noise)
        self._at = self._origin = 0
        self._pace = 1.0
        self.step = job.first_step
        self._transfers: deque[tuple[int, int]] = deque(maxlen=8)
        self.device_ends: list[int] = []
        self._clock = 0, 0.0
        self.transfers: list[Transfer] = []
        self.syncs: list[SyncRow] = []
        self._op_ending: dict[int, tuple[int, int]] = {}
        self._known_transfers, self._beside = beside, join_intervals([])

    # Clocks and noise

    def begin(self, step: int, stage: str) -> None:
        """Nothing; what is drawn from now on belongs to this stage."""
        if stage == "start":
            self._origin = self.now
            mine = [each for each in self._known_transfers if each.step == step]
            self._beside = join_intervals([(self.now + each.begin, self.now + each.end) for each in mine])
        self.behaviour = self.job.behaviour(self.rank, step)
        self._at = noise.offset(self.job.seed, self.rank, step, stage)
        self._where, self.step = (step, stage), step
        if self.job.wander:
            drawn = noise.normal(self.job.seed, self.rank, step, "wander")
            self._pace = math.exp(self.job.wander * drawn)

    @contextmanager
    def apart(self, label: str) -> Iterator[None]:
        """What a fault adds draws from elsewhere, so that the draws of all else stay as they are."""
        before, self._at = self._at, noise.offset(label, *self._where, self.rank, self.now)
        yield
        self._at = before

    @contextmanager
    def in_stage(self, name: str) -> Iterator[None]:
        """A stage; where it is launched as a graph, with the call that launches it."""
        self.stage = name
        if is_in(self.job.proposal.graphs, name):
            self.now += GRAPH_CALL_NS
        yield
        self.stage = ""

    @contextmanager
    def in_op(self, name: str) -> Iterator[None]:
        """The time in an op or call, of which a graph leaves nothing."""
        self._launching += 1
        self.open_names.append(name)
        yield
        self.open_names.pop()
        self._launching -= 1

    def stall(self, ns: int, silence_ns: int | None = None) -> None:
        """Nothing; the host has done something of which nothing is recorded, as a part of a longer silence if given."""
        if not self.job.proposal.ends_silence(self.stage, ns if silence_ns is None else silence_ns):
            self.now += ns

    def spend(self, ns: float) -> None:
        """Nothing; the host has done something that takes so long on an idle core."""
        if self._launching and is_in(self.job.proposal.graphs, self.stage):
            ns = 0
        at = self._at = (self._at + 1) & noise.MASK
        behaviour = self.behaviour
        self.now += int(ns * behaviour.host * self._host[at])
        if behaviour.preempted and (at * 2_654_435_761 & 0xFFFF) < behaviour.preempted * 0x10000:
            self.now += int(behaviour.preempted_ns * self._host[at])
        if self.job.os_noise and (at * 2_654_435_761 & 0xFFFF) < self.job.os_noise * 0x10000:
            self.now += int(150_000 * self._host[at])

    def lasting(self, ns: float) -> int:
        """How long a kernel takes here that takes so long on average."""
        at = self._at = (self._at + 1) & noise.MASK
        behaviour = self.behaviour
        if behaviour.shared:
            ns *= 1 + 2 * behaviour.shared * ((at // 8) * 2_654_435_761 & 0xFFFF) / 0x10000
        return int(ns * behaviour.clock * self._kernel[at] * self._pace)

    def reads(self) -> bool:
        """Whether the host reads numbers from the device in this step."""
        return self.step % self.job.sync_every == 0

    # Host rows

    def open(self, name: str, category: str = "cpu_op", args: str = "") -> HostRow:
        """A row that begins now."""
        row = HostRow(category, name, self.tid, self.now, args)
        self.external += 1
        row.external = self.external
        self.host_rows.append(row)
        if category == "user_annotation":
            row.shadows = {}
            self.open_ranges[self.tid].append(row)
        return row

    def close(self, row: HostRow) -> None:
        """Nothing; the row ends now."""
        row.end = self.now
        if row.shadows is not None:
            self.open_ranges[row.tid].remove(row)

    @contextmanager
    def op(self, name: str, ns: float = OP_NS, args: str = "") -> Iterator[None]:
        """An op that takes so long, besides what is done in it."""
        row = self.open(name, "cpu_op", args)
        with self.in_op(name):
            self.spend(ns * 0.6)
            yield
            self.spend(ns * 0.4)
        self.close(row)

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """A `record_function` range."""
        row = self.open(name, "user_annotation")
        self.open_names.append(name)
        self.spend(2_000)
        yield
        self.spend(1_000)
        self.open_names.pop()
        self.close(row)

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        """A Python function, where stacks are recorded."""
        if not self.job.stacks:
            yield
            return
        self.frame_count += 1
        number, parent, start = self.frame_count, (self.open_frames or [0])[-1], self.now
        self.open_frames.append(number)
        yield
        self.open_frames.pop()
        self.frames.append((name, self.main, start, self.now, number, parent))

    def pinned(self, start: int, ns: int) -> None:
        """Nothing; the loader's thread has pinned a batch meanwhile."""
        self.external += 1
        row = HostRow("cpu_op", "aten::pin_memory", self.loader, start, "")
        row.end, row.external = start + ns, self.external
        self.host_rows.append(row)
        self.pinnings.append((start, start + ns))

    def loader_frames(self) -> None:
        """Nothing; the stack of the loader's thread is there, where stacks are recorded."""
        if not self.job.stacks or not self.pinnings:
            return
        start, end = self.steps[0][1], max(self.now, self.pinnings[-1][1])
        loop, parent = self.frame_count + 1, 0
        name = "torch/utils/data/_utils/pin_memory.py(30): _pin_memory_loop"
        self.frames.append((name, self.loader, start, end, loop, parent))
        name = "torch/utils/data/_utils/pin_memory.py(68): pin_memory"
        for number, (begin, over) in enumerate(self.pinnings, start=loop + 1):
            self.frames.append((name, self.loader, begin, over, number, loop))
        self.frame_count += 1 + len(self.pinnings)

    def call(self, name: str, ns: float = CALL_NS, until: int = 0) -> tuple[int, int]:
        """(start, correlation) of a runtime call; one that waits returns a little after `until`."""
        self.correlation += 1
        start = self.now
        with self.in_op(name):
            self.spend(ns)
        if self.job.proposal.frees(self.stage, name, self.open_names):
            until = 0
        if until > self.now:
            self.now = until + 1_500
        if name in SYNC_NAMES and until in self._op_ending:
            stream, record = self._op_ending[until]
            self.syncs.append(SyncRow(SYNC_NAMES[name], stream, start, self.now, self.correlation, stream, record))
        category = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        self.calls.append((category, name, self.tid, start, self.now, self.correlation, self.external))
        return start, self.correlation

    # Device rows

    def room(self) -> None:
        """Nothing; the launch queue has room, for which the host may have had to wait."""
        queue = self.queue
        while queue and queue[0] <= self.now:
            queue.popleft()
        if len(queue) >= self.job.queue_depth:
            self.now = max(self.now, queue[len(queue) - self.job.queue_depth] + 500)

    def launch_call(self, name: str, ns: float) -> tuple[int, int]:
        """(when the device may begin, correlation) of a launch, which blocks while the queue is full."""
        start = self.now
        self.room()
        issued = self.now
        self.correlation += 1
        with self.in_op(name):
            self.spend(ns)
        category = "cuda_driver" if name.startswith("cuL") else "cuda_runtime"
        self.calls.append((category, name, self.tid, start, self.now, self.correlation, self.external))
        return issued + LAUNCH_LATENCY_NS, self.correlation

    def place(self, category: str, name: str, stream: int, ready: int, dur: int, correlation: int, args: str) -> int:
        """When this work ends, which begins when it is ready and its stream is free."""
        start = max(ready, self.free[stream] + STREAM_GAP_NS)
        if self.job.rising_clock and stream == COMPUTE and category == "kernel":
            dur = self.lasting_at_clock(start, dur)
        end = start + dur
        if self._beside and stream == COMPUTE and category == "kernel":
            end = self.slowed_end(start, dur)
        if self.job.contention and stream == COMPUTE and category == "kernel":
            shared = sum(max(0, min(end, over) - max(start, begin)) for begin, over in self._transfers)
            end += int(self.job.contention * shared)
        self.free[stream] = end
        self._op_ending[end] = stream, correlation
        self.queue.append(end)
        self.device_rows.append(DeviceRow(category, name, stream, start, end, correlation, self.external, args))
        for row in self.open_ranges[self.tid]:
            shadows = row.shadows
            assert shadows is not None
            if stream in shadows:
                shadows[stream][1] = end
            else:
                shadows[stream] = [start, end]
        return end

    def slowed_end(self, start: int, dur: int) -> int:
        """When a kernel ends that makes less progress while a collective transfers."""
        rate, left, at = 1 / (1 + self.job.slowdown), float(dur), float(start)
        place = bisect.bisect_right(self._beside, (start, 1 << 63)) - 1
        for begin, over in self._beside[max(place, 0) :]:
            if left <= max(0.0, begin - at):
                break
            if over <= at:
                continue
            left -= max(0.0, begin - at)
            at = max(at, begin)
            if left <= (over - at) * rate:
                return round(at + left / rate)
            left -= (over - at) * rate
            at = over
        return round(at + left)

    def lasting_at_clock(self, start: int, dur: int) -> int:
        """How long a kernel takes at the clock that the work before it leaves: lower after idle time."""
        since, busy = self._clock
        busy *= math.exp(-max(0, start - since) / CLOCK_NS)
        dur = int(dur * (1 + self.job.rising_clock * (1 - busy)))
        self._clock = start + dur, 1 - (1 - busy) * math.exp(-dur / CLOCK_NS)
        return dur

    def kernel(
        self, op: str, name: str, ns: float, *, cost: float = OP_NS, args: str = "",
        stream: int = COMPUTE, after: int = 0,
    ) -> int:  # fmt: skip
        """When the one kernel of this op ends."""
        row = self.open(op, "cpu_op", args)
        with self.in_op(op):
            self.spend(cost * 0.6)
            ready, correlation = self.launch_call("cudaLaunchKernel", CALL_NS)
            ready = max(ready, after)
            end = self.place("kernel", name, stream, ready, self.lasting(ns), correlation, SHAPE)
            self.spend(cost * 0.4)
        row.end = self.now
        return end

    def graph(self, kernels: list[tuple[str, float]]) -> int:
        """When a graph of these kernels ends."""
        ready, correlation = self.launch_call("cudaGraphLaunch", GRAPH_CALL_NS)
        end = 0
        for index, (name, ns) in enumerate(kernels):
            args = f'{SHAPE}, "graph id": 3, "graph node id": {12884901889 + index}'
            end = self.place("kernel", name, COMPUTE, ready, self.lasting(ns), correlation, args)
        return end

    def copy(
        self, kind: str, size: int, *, stream: int = COMPUTE, blocking: bool = False, op: str = "aten::copy_"
    ) -> int:  # fmt: skip
        """When a copy ends; from or to pageable memory the host waits for it whatever it asked for."""
        pageable = "Pageable" in kind
        blocking = blocking or pageable
        ns = 1_400 + size / (PAGEABLE_BYTES_PER_NS if pageable else PINNED_BYTES_PER_NS)
        if kind.startswith("DtoD"):
            ns = traffic_ns(2 * size)
        nested = [self.open(name) for name in ("aten::to", "aten::_to_copy")] if op == "aten::to" else []  # fmt: skip
        with self.op("aten::copy_", 3_000):
            start = self.now
            self.room()
            self.correlation += 1
            correlation = self.correlation
            issued = self.now
            self.spend(CALL_NS)
            self.lasting(0)
            dur = int(ns * self._kernel[self._at])
            args = f'"bytes": {size}, "memory bandwidth (GB/s)": {size / dur:.6f}'
            ready = issued + LAUNCH_LATENCY_NS
            end = self.place("gpu_memcpy", f"Memcpy {kind}", stream, ready, dur, correlation, args)
            if pageable and size > 64_000 and not self.job.proposal.frees(self.stage, "cudaMemcpyAsync", [op]):
                self.now = max(self.now, end + 2_000)
            self.calls.append(
                ("cuda_runtime", "cudaMemcpyAsync", self.tid, start, self.now, correlation, self.external)
            )  # fmt: skip
            if blocking:
                self.call("cudaStreamSynchronize", 2_200, until=end)
        for row in reversed(nested):
            self.spend(1_500)
            row.end = self.now
        return end

    def item(self) -> None:
        """Nothing; the host has read one number from the device."""
        with self.op("aten::item", 1_500), self.op("aten::_local_scalar_dense", 2_500):
            ready, correlation = self.launch_call("cudaMemcpyAsync", CALL_NS)
            dur = self.lasting(1_300)
            args = f'"bytes": 4, "memory bandwidth (GB/s)": {4 / dur:.6f}'
            end = self.place(
                "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", COMPUTE, ready, dur, correlation, args
            )  # fmt: skip
            self.call("cudaStreamSynchronize", 2_500, until=end)

    def wait_for(self, end: int, stream: int = COMPUTE) -> None:
        """Nothing; what follows on the stream begins no earlier than that."""
        self.wait_on_stream(stream, end)
        self.free[stream] = max(self.free[stream], end)

    def wait_on_stream(self, stream: int, end: int) -> None:
        """Nothing; a stream has been told to wait for what ends then, if anything does."""
        start, correlation = self.call("cudaStreamWaitEvent", 900)
        if end in self._op_ending:
            record = self._op_ending[end]
            self.syncs.append(SyncRow("Stream Wait Event", stream, start, self.now, correlation, *record))

    # Collectives

    def collective(self, name: str, kind: str, nelems: int, dtype: str = "BFloat16", *, after: int = 0) -> Joined:
        """A collective of a group: it ends on all ranks when the last has come and the bytes are across.

        `nelems` is the larger of what goes in and what comes out.
        """
        job = self.job
        group = job.groups(self.rank).get(kind) or job.groups(self.rank)["default_pg"]
        kind = kind if kind in job.groups(self.rank) else "default_pg"
        label, stream, size = job.group_name(self.rank, kind), STREAM_OF[kind], len(group)
        sequence = self.sequences[label] = self.sequences.get(label, 0) + 1
        kernel, mark = NCCL[name]
        size_bytes = nelems * WIDTH[dtype]
        inward = nelems // size if name == "_allgather_base" else nelems
        outward = nelems // size if name == "_reduce_scatter_base" else nelems
        about = (
            f'"Collective name": "{name}", "In msg nelems": {inward}, "Out msg nelems": {outward}, '
            f'"Group size": {size}, "dtype": "{dtype}", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{label}", "Process Group Description": "{kind}", '
            f'"Process Group Ranks": "{list(group)}", "Seq": {sequence}'
        )
        with (
            self.op(f"c10d::{name.strip('_')}_" if name[0] != "_" else f"c10d::{name}_", 3_000),
            self.op("record_param_comms", 4_000, f'"Rank": {self.rank}, {about}'),
            self.marked(f"nccl:{mark}"),
        ):
            self.call("cudaEventRecord", 700)
            self.wait_on_stream(stream, after)
            ready, correlation = self.launch_call("cudaLaunchKernelExC", 5_500)
            start = max(ready + LAUNCH_LATENCY_NS, self.free[stream] + STREAM_GAP_NS, after)
            transfer = self.transfer(label, name, size, size_bytes)
            if job.link_noise:
                drawn = noise.normal(job.seed, "link", label, sequence)
                transfer = int(transfer * math.exp(job.link_noise * drawn))
            if job.jitter_ns:
                transfer += int(job.jitter_ns * noise.uniform(job.seed, label, sequence, start // 1_000, "jitter"))
            end = yield Meeting(group, f"{label} {sequence} {name}", start, transfer)
            self.lasting(0)
            end += self._at * 37 % 13 * 250  # ranks leave within a few µs of each other
            full = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
            args = f"{NCCL_SHAPE}, {about}"
            self.place("kernel", full, stream, start, end - start, correlation, args)
        self._transfers.append((end - transfer, end))
        self.transfers.append(Transfer(self.step, end - transfer - self._origin, end - self._origin))
        self.collectives.append(Seen(name, group, start, end, transfer, size_bytes))
        return end

    def peer(self, name: str, other: int, nelems: int, *, after: int = 0) -> Joined:
        """Return when a `send` to another rank or a `recv` from it ends."""
        source, target = (self.rank, other) if name == "send" else (other, self.rank)
        group = tuple(sorted((self.rank, other)))
        label = f"{10 + group[0]}"
        key = f"{label} {source} {target}"
        sequence = self.sequences[key] = self.sequences.get(key, 0) + 1
        about = (
            f'"Collective name": "{name}", "In msg nelems": {nelems}, "Out msg nelems": {nelems}, '
            f'"Group size": 2, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{label}", "Process Group Description": "pp", '
            f'"Process Group Ranks": "{list(group)}", "Src Rank": {source}, "Dst Rank": {target}, "Seq": {sequence}'
        )
        arrow = f"{source}->{target}" if name == "send" else f"{target}<-{source}"
        with (
            self.op(f"c10d::{name}{'_' if name == 'recv' else ''}", 3_000),
            self.op("record_param_comms", 4_000, f'"Rank": {self.rank}, {about}'),
            self.marked(f"nccl:{name} {arrow}"),
        ):
            self.call("cudaEventRecord", 700)
            self.wait_on_stream(PIPE, after)
            ready, correlation = self.launch_call("cudaLaunchKernelExC", 5_500)
            start = max(ready + LAUNCH_LATENCY_NS, self.free[PIPE] + STREAM_GAP_NS, after)
            transfer = 9_000 + int(2 * nelems / self.job.busbw)
            end = yield Meeting(group, key + f" {sequence}", start, transfer)
            self.lasting(0)
            full = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            self.place("kernel", full, PIPE, start, end - start, correlation, f"{NCCL_SHAPE}, {about}")
        return end

    def transfer(self, label: str, name: str, size: int, size_bytes: int) -> int:
        """How long the bytes take once all ranks are there: the same on every rank of the group."""
        behaviour = self.behaviour
        busbw = self.job.busbw * (behaviour.busbw if behaviour.slow_group == label else 1.0)
        share = (size - 1) / size * (2 if name == "allreduce" else 1)
        return 11_000 + 700 * size + int(share * size_bytes / busbw)
