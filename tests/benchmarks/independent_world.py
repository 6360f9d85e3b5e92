"""Simulate a training job of several GPUs event by event, and write one Kineto trace per rank.

Each host thread, stream and collective is a process on one clock. A host thread issues ops in program
order. A stream runs its commands one after the other. A collective begins when the last rank has
arrived, and ends on all ranks together. No result is computed from a formula of the whole step.

Simulated: launch latency, a bounded launch queue, events between streams, blocking calls, pageable and
pinned copies, allocator calls that wait for the device, the autograd thread, CUDA graphs, and lognormal
lengths with a median per op and rank. Also pauses of the operating system, clock offsets between ranks,
and kernels that are 10 to 25 % slower during a transfer.

Not simulated: cores that threads share, links that two collectives share, copies that slow each other,
GPU clocks that follow the load, the overhead of the profiler, memory sizes, and ranges on the GPU.
"""

import gzip
import heapq
import json
import math
import random
import zlib
from collections import deque
from pathlib import Path

QUEUE_DEPTH = 1024
GAP_NS = 900
COMPUTE, COMM, COPY = 7, 24, 28
CALLS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaStreamWaitEvent": 147,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaGraphLaunch": 311,
    "cudaMemsetAsync": 51,
}


class Engine:
    """The clock, and the calls that are due."""

    def __init__(self):
        self.now = 0
        self.due = []
        self.count = 0

    def call_at(self, when, action, *args):
        self.count += 1
        heapq.heappush(self.due, (when, self.count, action, args))

    def resume(self, process):
        """Run a process until it waits for a time or a signal."""
        for wait in process:
            if isinstance(wait, int):
                self.call_at(self.now + wait, self.resume, process)
                return
            if not wait.fired:
                wait.then(lambda: self.resume(process))
                return

    def run(self):
        while self.due:
            self.now, _, action, args = heapq.heappop(self.due)
            action(*args)


class Signal:
    """A moment that others wait for."""

    def __init__(self):
        self.fired = False
        self.actions = []

    def then(self, action):
        self.actions.append(action)

    def fire(self):
        self.fired = True
        actions, self.actions = self.actions, []
        for action in actions:
            action()


class Stream:
    """A queue of commands of one device. The first one runs."""

    def __init__(self, device, number):
        self.device, self.number = device, number
        self.queue = deque()
        self.blocked = False
        self.free_at = 0

    def push(self, command):
        self.queue.append(command)
        if not self.blocked:
            self.advance()

    def advance(self):
        while self.queue:
            self.blocked = True
            if not self.queue[0].begin(self):
                return
            self.queue.popleft()
        self.blocked = False

    def finish_first(self):
        self.queue.popleft()
        self.blocked = False
        self.advance()


class Mark:
    """Fire a signal when all earlier commands are done."""

    def __init__(self, signal):
        self.signal = signal

    def begin(self, stream):
        self.signal.fire()
        return True


class Wait:
    """Hold a stream until a signal fires."""

    def __init__(self, signal):
        self.signal = signal

    def begin(self, stream):
        if self.signal.fired:
            return True
        self.signal.then(stream.finish_first)
        return False


class Work:
    """A kernel or a copy."""

    def __init__(self, name, length, row, category="kernel", args=None, latency=4500):
        self.name, self.category, self.args = name, category, args or {}
        self.left, self.row, self.latency = float(length), row, latency
        self.done = Signal()
        self.ready = self.began = self.updated = 0
        self.version = 0
        self.factor = 1.0

    def begin(self, stream):
        self.stream = stream
        now = stream.device.engine.now
        start = max(self.ready, stream.free_at + GAP_NS, now)
        stream.device.engine.call_at(start, self.start)
        return False

    def start(self):
        device = self.stream.device
        device.leave_queue()
        self.began = self.updated = device.engine.now
        self.run()

    def run(self):
        device = self.stream.device
        if self.category == "kernel":
            device.running.add(self)
            self.factor = device.slowdown()
        self.plan_end()

    def plan_end(self):
        engine = self.stream.device.engine
        self.version += 1
        engine.call_at(engine.now + max(1, round(self.left * self.factor)), self.end, self.version)

    def change_factor(self, factor):
        now = self.stream.device.engine.now
        self.left = max(0.0, self.left - (now - self.updated) / self.factor)
        self.updated, self.factor = now, factor
        self.plan_end()

    def end(self, version):
        if version != self.version:
            return
        device = self.stream.device
        device.running.discard(self)
        self.close()

    def close(self):
        stream = self.stream
        now = stream.device.engine.now
        stream.free_at = now
        stream.device.rank.add_device_row(self, self.began, now)
        self.done.fire()
        stream.finish_first()


class Transfer(Work):
    """The kernel of one rank in a collective."""

    def __init__(self, name, meeting, row, args):
        super().__init__(name, 0, row, "kernel", args)
        self.meeting = meeting

    def run(self):
        device = self.stream.device
        device.spinning += 1
        device.update_slowdown()
        self.meeting.arrive(self)

    def transfer(self):
        device = self.stream.device
        device.spinning -= 1
        device.transferring += 1
        device.update_slowdown()

    def end_transfer(self):
        device = self.stream.device
        device.transferring -= 1
        device.update_slowdown()
        self.close()


class Meeting:
    """One collective: it begins when all ranks have arrived."""

    def __init__(self, engine, size, length):
        self.engine, self.size, self.length = engine, size, length
        self.parts = []

    def arrive(self, part):
        self.parts.append(part)
        if len(self.parts) < self.size:
            return
        for other in self.parts:
            other.transfer()
            skew = zlib.crc32(repr((other.row, self.length)).encode()) % 1500
            self.engine.call_at(self.engine.now + self.length + skew, other.end_transfer)


class Group:
    """A process group with its link."""

    def __init__(self, engine, name, ranks, gigabytes_per_s, seed):
        self.engine, self.name, self.ranks, self.seed = engine, name, ranks, seed
        self.rate = gigabytes_per_s
        self.latency = 18_000
        self.meetings = {}

    def meet(self, kind, volume, tag):
        """The meeting with this tag. The first rank to ask creates it."""
        meeting = self.meetings.get(tag)
        if meeting is None:
            size = len(self.ranks)
            share = {"allreduce": 2 * (size - 1) / size, "broadcast": 1.0, "send": 1.0, "recv": 1.0}
            moved = volume * share.get(kind, (size - 1) / size)
            noise = random.Random(f"{self.seed} {self.name} {tag}").gauss(0, 0.04)
            length = round((self.latency + moved / self.rate) * math.exp(noise))
            meeting = self.meetings[tag] = Meeting(self.engine, size, length)
        return meeting


class Device:
    """A GPU: its streams, its launch queue, and its contention."""

    def __init__(self, engine, rank, contention):
        self.engine, self.rank, self.contention = engine, rank, contention
        self.streams = {number: Stream(self, number) for number in (COMPUTE, COMM, COPY)}
        self.running = set()
        self.spinning = self.transferring = self.queued = 0
        self.room = Signal()

    def slowdown(self):
        share = 1.0 if self.transferring else 0.25 if self.spinning else 0.0
        return 1.0 + self.contention * share

    def update_slowdown(self):
        factor = self.slowdown()
        for work in sorted(self.running, key=lambda item: item.row):
            if work.factor != factor:
                work.change_factor(factor)

    def leave_queue(self):
        self.queued -= 1
        room, self.room = self.room, Signal()
        room.fire()


class Rank:
    """One process: its rows, its random numbers, and its device."""

    def __init__(self, engine, number, seed, host, gpu, contention):
        self.engine, self.number, self.seed = engine, number, seed
        self.host, self.gpu = host, gpu
        self.device = Device(engine, self, contention)
        self.host_rows, self.device_rows, self.sync_rows = [], [], []
        self.next_row = self.next_op = self.next_frame = 0
        self.step = 0
        self.last_end = {}
        self.random = random.Random(0)
        self.extra = random.Random(f"{seed} {number} fault")

    def reseed(self, *place):
        """Give each place of the program its own numbers, whatever ran before."""
        self.random = random.Random(f"{self.seed} {self.number} {self.step} {place}")

    def draw(self, median_us, spread):
        return median_us * 1000 * math.exp(self.random.gauss(0, spread))

    def add_device_row(self, work, began, ended):
        self.device_rows.append((work, began, ended))
        step = work.args.get("_step", self.step)
        self.last_end[step] = max(self.last_end.get(step, 0), ended)


class Thread:
    """A host thread that issues ops. Its methods with `yield` are processes."""

    def __init__(self, rank, tid):
        self.rank, self.tid, self.engine = rank, tid, rank.engine
        self.open = []
        self.pause_rate = 1 / 4000

    def host(self, median_us):
        """A length of host work, now and then with a pause of the operating system."""
        rank = self.rank
        length = rank.draw(median_us, 0.22) * rank.host
        if rank.random.random() < self.pause_rate:
            length += rank.random.uniform(60_000, 250_000)
        return max(200, round(length))

    def enter(self, name, category="cpu_op", args=None):
        """Open a row. Ops and frames of Python have numbers of their own, as in Kineto."""
        if category == "python_function":
            self.rank.next_frame += 1
            number = self.rank.next_frame
        else:
            self.rank.next_op += 1
            number = self.rank.next_op
        self.open.append((name, category, self.engine.now, number, args))

    def leave(self):
        name, category, began, row, args = self.open.pop()
        parent = next((item[3] for item in reversed(self.open) if item[1] == "python_function"), 0)
        self.rank.host_rows.append((category, name, began, self.engine.now, self.tid, row, args, parent))

    def external(self):
        return next((item[3] for item in reversed(self.open) if item[1] != "python_function"), 0)

    def call(self, name, body_us=4.5):
        """A call of the runtime. It yields in its middle, where its command enters the queue."""
        self.rank.next_row += 1
        row = self.rank.next_row
        began = self.engine.now
        length = self.host(body_us)
        yield length * 3 // 5
        return row, began, length - length * 3 // 5

    def end_call(self, name, row, began):
        args = {"External id": self.external(), "cbid": CALLS[name], "correlation": row}
        category = "cuda_runtime"
        self.rank.host_rows.append((category, name, began, self.engine.now, self.tid, row, args, 0))

    def issue(self, work, call="cudaLaunchKernel", stream=COMPUTE):
        device = self.rank.device
        row, began, rest = yield from self.call(call)
        while device.queued >= QUEUE_DEPTH:
            yield device.room
        self.submit(work, row, stream)
        yield rest
        self.end_call(call, row, began)

    def submit(self, work, row, stream):
        device = self.rank.device
        work.row = row
        work.ready = self.engine.now + work.latency
        work.args["_step"] = self.rank.step
        work.args["External id"] = self.external()
        device.queued += 1
        device.streams[stream].push(work)

    def kernel(self, op, name, median_us, shapes=None, spread=0.025):
        """An op with one kernel. Its grid follows from its length."""
        rank = self.rank
        self.enter(op, args=shapes)
        yield self.host(12)
        work = Work(
            name, rank.draw(median_us, spread) * rank.gpu, 0, args={"grid": [max(1, round(8 * median_us)), 1, 1]}
        )
        yield from self.issue(work)
        yield self.host(1.5)
        self.leave()

    def graph(self, kernels):
        """Launch kernels as one CUDA graph."""
        rank = self.rank
        row, began, rest = yield from self.call("cudaGraphLaunch", 14)
        for index, (name, median) in enumerate(kernels):
            length = rank.draw(median, 0.025) * rank.gpu
            latency = 4500 if index == 0 else 0
            self.submit(
                Work(name, length, 0, args={"grid": [max(1, round(8 * median)), 1, 1]}, latency=latency), row, COMPUTE
            )
        yield rest
        self.end_call("cudaGraphLaunch", row, began)

    def record_event(self, stream=COMPUTE):
        signal = Signal()
        row, began, rest = yield from self.call("cudaEventRecord", 1.2)
        self.rank.device.streams[stream].push(Mark(signal))
        yield rest
        self.end_call("cudaEventRecord", row, began)
        signal.row, signal.stream = row, stream
        return signal

    def wait_event(self, signal, stream):
        row, began, rest = yield from self.call("cudaStreamWaitEvent", 1.2)
        self.rank.device.streams[stream].push(Wait(signal))
        yield rest
        self.end_call("cudaStreamWaitEvent", row, began)
        self.note_sync("Stream Wait Event", row, stream, began, signal)

    def note_sync(self, kind, row, stream, began, signal=None):
        args = {"cuda_sync_kind": kind, "stream": stream, "correlation": row, "device": 0, "context": 1}
        args["External id"] = row
        if signal is not None:
            args["wait_on_stream"] = signal.stream
            args["wait_on_cuda_event_record_corr_id"] = signal.row
            args["wait_on_cuda_event_id"] = signal.row % 64
        self.rank.sync_rows.append((kind, began, self.engine.now, stream, args))

    def sync_event(self, signal):
        row, began, rest = yield from self.call("cudaEventSynchronize", 2)
        yield signal
        yield rest + self.host(2.5)
        self.end_call("cudaEventSynchronize", row, began)
        self.note_sync("Event Sync", row, -1, began, signal)

    def sync_stream(self, stream=COMPUTE):
        signal = Signal()
        row, began, rest = yield from self.call("cudaStreamSynchronize", 2)
        self.rank.device.streams[stream].push(Mark(signal))
        yield signal
        yield rest + self.host(2.5)
        self.end_call("cudaStreamSynchronize", row, began)
        self.note_sync("Stream Sync", row, stream, began)

    def sync_device(self, call="cudaDeviceSynchronize", own_us=2.0):
        row, began, rest = yield from self.call(call, own_us)
        for stream in self.rank.device.streams.values():
            signal = Signal()
            stream.push(Mark(signal))
            yield signal
        yield rest + self.host(2.5)
        self.end_call(call, row, began)
        if call == "cudaDeviceSynchronize":
            self.note_sync("Context Sync", row, -1, began)

    def copy(self, direction, volume, pinned=True, stream=COMPUTE, op="aten::copy_", block=False):
        """A copy. From or to pageable memory, its call returns when the copy is done."""
        rank = self.rank
        side = "Pinned" if pinned else "Pageable"
        names = {"H": f"Memcpy HtoD ({side} -> Device)", "D": f"Memcpy DtoH (Device -> {side})"}
        rate = 25.0 if pinned else 6.0
        length = (1500 + volume / rate) * math.exp(rank.random.gauss(0, 0.03))
        args = {"bytes": volume, "memory bandwidth (GB/s)": round(volume / length, 3)}
        self.enter(op)
        yield self.host(4)
        work = Work(names[direction[0]], length, 0, "gpu_memcpy", args)
        row, began, rest = yield from self.call("cudaMemcpyAsync", 6)
        self.submit(work, row, stream)
        if not pinned and volume > 65536:
            yield work.done
        yield rest
        self.end_call("cudaMemcpyAsync", row, began)
        if block or not pinned:
            yield from self.sync_stream(stream)
        yield self.host(1)
        self.leave()
        return work

    def item(self):
        """Read a scalar back."""
        self.enter("aten::item")
        yield self.host(1.5)
        yield from self.copy("D", 4, pinned=False, op="aten::_local_scalar_dense")
        yield self.host(1)
        self.leave()

    def allocate(self, call, own_us):
        """A call of the driver's allocator. A release waits for the device."""
        if call == "cudaFree":
            yield from self.sync_device(call, own_us)
            return
        row, began, rest = yield from self.call(call, own_us)
        yield rest
        self.end_call(call, row, began)

    def collective(self, group, kind, volume, tag, after=True):
        """Begin a collective on the stream for communication; its work is returned."""
        rank = self.rank
        names = {
            "allreduce": ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "c10d::allreduce_", "nccl:all_reduce"),
            "_allgather_base": ("ncclDevKernel_AllGather_RING_LL", "c10d::_allgather_base_", "nccl:_all_gather_base"),
            "_reduce_scatter_base": (
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
                "c10d::_reduce_scatter_base_",
                "nccl:_reduce_scatter_base",
            ),
            "broadcast": ("ncclDevKernel_Broadcast_RING_LL", "c10d::broadcast_", "nccl:broadcast"),
            "send": ("ncclDevKernel_SendRecv", "c10d::send", "nccl:send"),
            "recv": ("ncclDevKernel_SendRecv", "c10d::recv_", "nccl:recv"),
        }
        kernel, op, note = names[kind]
        args = describe_collective(group, kind, volume)
        self.enter(op)
        yield self.host(6)
        self.enter("record_param_comms", args={**args, "Rank": rank.number})
        if after:
            signal = yield from self.record_event(COMPUTE)
            yield from self.wait_event(signal, COMM)
        self.enter(note, "user_annotation")
        yield self.host(4)
        name = f"{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        work = Transfer(name, group.meet(kind, volume, tag), 0, {**args, "grid": [16, 1, 1]})
        yield from self.issue(work, "cudaLaunchKernelExC", COMM)
        self.leave()
        done = yield from self.record_event(COMM)
        yield self.host(2)
        self.leave()
        self.leave()
        return done


def describe_collective(group, kind, volume):
    """The fields that torch writes about a collective."""
    elements, size = volume // 2, len(group.ranks)
    inputs = {"_allgather_base": elements // size}.get(kind, elements)
    outputs = {"_reduce_scatter_base": elements // size}.get(kind, elements)
    return {
        "Collective name": kind,
        "In msg nelems": inputs,
        "Out msg nelems": outputs,
        "Group size": size,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": "default_pg" if group.name == "0" else "undefined",
        "Process Group Ranks": str(list(group.ranks)),
    }


def write_trace(rank, groups, folder, world_size, offset_ns, with_sync):
    """Write the rows of a rank in the form of Kineto."""
    base = 1_750_000_000_000_000_000 + rank.number * 1_234_567
    shift = 1_750_000_100_000_000_000 + offset_ns - base
    pid = 4000 + rank.number

    def stamp(when):
        return round((when + shift) / 1000, 3)

    def row(category, name, began, ended, pid, tid, args):
        fields = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        return {**fields, "ts": stamp(began), "dur": (ended - began) / 1000, "args": args}

    events = list(name_tracks(pid, rank.number, stamp(0)))
    begins = {}
    for category, name, began, ended, tid, number, args, parent in rank.host_rows:
        known = dict(args or {})
        if category == "python_function":
            known = {"Python parent id": parent or None, "Python id": number}
        elif category == "cuda_runtime":
            begins[number] = (began, tid)
        else:
            known.update({"External id": number, "Record function id": 0, "Ev Idx": number - 1})
        events.append(row(category, name, began, ended, pid, tid, known))
    linked = set()
    for work, began, ended in rank.device_rows:
        args = {key: value for key, value in work.args.items() if key[0] != "_"}
        stream = work.stream.number
        args.update({"device": 0, "context": 1, "stream": stream, "correlation": work.row})
        if work.category == "kernel":
            args.update({"queued": 0, "block": [256, 1, 1], "registers per thread": 64, "shared memory": 0})
        events.append(row(work.category, work.name, began, ended, 0, stream, args))
        if work.row not in linked:
            linked.add(work.row)
            flow = {"id": work.row, "cat": "ac2g", "name": "ac2g"}
            start, tid = begins[work.row]
            events.append({"ph": "s", "pid": pid, "tid": tid, "ts": stamp(start), **flow})
            events.append({"ph": "f", "bp": "e", "pid": 0, "tid": stream, "ts": stamp(began), **flow})
    if with_sync:
        events += [row("cuda_sync", kind, b, e, 0, stream, args) for kind, b, e, stream, args in rank.sync_rows]
    last = max(item[3] for item in rank.host_rows)
    window = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
    events.append({**window, "ts": stamp(0), "dur": last / 1000, "args": {"Op count": 0}})
    events.append({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": stamp(last)})
    document = {
        "schemaVersion": 1,
        "deviceProperties": [describe_gpu()],
        "cupti_version": 26,
        "cuda_runtime_version": 12060,
        "distributedInfo": describe_job(rank, groups, world_size),
        "traceEvents": events,
        "traceName": f"rank{rank.number}.pt.trace.json",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
    }
    path = Path(folder) / f"rank{rank.number}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def name_tracks(pid, number, when):
    for track, label in ((pid, "CPU"), (0, "GPU 0")):
        yield {"ph": "M", "name": "process_name", "pid": track, "tid": 0, "ts": when, "args": {"name": "python"}}
        yield {"ph": "M", "name": "process_labels", "pid": track, "tid": 0, "ts": when, "args": {"labels": label}}
    for tid in (pid, pid + 500):
        name = {"name": f"thread {tid} (python)"}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": when, "args": name}
    for stream in (COMPUTE, COMM, COPY):
        name = {"name": f"stream {stream} "}
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "ts": when, "args": name}


def describe_gpu():
    return {
        "id": 0,
        "name": "Simulated GPU",
        "totalGlobalMem": 85_000_000_000,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "sharedMemPerBlock": 49152,
        "numSms": 132,
    }


def describe_job(rank, groups, world_size):
    configs = [
        {
            "pg_name": group.name,
            "pg_desc": "default_pg" if group.name == "0" else "undefined",
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in groups
        if rank.number in group.ranks
    ]
    fields = {"backend": "nccl", "rank": rank.number, "world_size": world_size, "pg_count": len(configs)}
    return {**fields, "pg_config": configs, "nccl_version": "2.21.5"}
