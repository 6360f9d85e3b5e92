"""A small input of every kind of recording: `MADE`, by the code of the kind."""

import json
import pickle

import chrome_builder as chrome
import nsys_builder as nsys

GPU = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}},
    "entries": [{"record_id": 0, "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}],
}
LOG = "".join(json.dumps({"step": n, "data": {"timing_s/gen": 1.0}}) + "\n" for n in (1, 2, 3))


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def events(*names, count=1, category=None, processes=()):
    """Chrome JSON of another program: rows of these names, and the processes that they run in."""
    rows = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in enumerate(processes)
    ]
    for place, name in enumerate(names * count):
        row = {"ph": "X", "name": name, "ts": 10 * place, "dur": 5, "pid": 0, "tid": 1}
        rows.append(row if category is None else row | {"cat": category})
    return json.dumps({"traceEvents": rows})


def ops(count, dur, name="aten::mm"):
    return [chrome.op(name, at * (dur + 10), dur) for at in range(count)]


def launches(count):
    return [chrome.launch(10 * at, at + 1) for at in range(count)]


def torch(rows, name="rank0.json", **meta):
    return lambda folder: chrome.write(folder / name, rows, **meta)


def export(*rows):
    return lambda folder: nsys.write(folder / "a.sqlite", list(rows), duration_ns=10**7)


def snapshot(folder, name="snapshot.pickle"):
    blocks = [
        {"size": size, "requested_size": size, "state": state, "address": address}
        for address, size, state in ((0, 2, "active_allocated"), (2, 8, "inactive"))
    ]
    segment = {
        "device": 0, "address": 0, "total_size": 10, "allocated_size": 2, "active_size": 2,
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "blocks": blocks,
    }  # fmt: skip
    put(folder / name, pickle.dumps({"segments": [segment], "device_traces": []}, protocol=2))


CALL = nsys.api("cudaMalloc_v3020", 1_100, 1_200, 1)
LAUNCH = nsys.api("cudaLaunchKernel_v7000", 1_100, 1_200, 1)
RANGE = nsys.nvtx("update_actor", 1_000, 2_000)

MADE = {
    # name: (kind, make, its sentence, the begin of its command)
    "gpu": (
        "gpu",
        torch([chrome.op("aten::mm", 0, 100), *chrome.launched("gemm", 1, 5, 9, 1)]),
        "GPU work was recorded: 1 kernel.",
        "",
    ),
    "gpu-nsys": (
        "gpu",
        export(LAUNCH, nsys.kernel("gemm", 1_300, 1_400, 1)),
        "GPU work was recorded: 1 kernel.",
        "",
    ),
    "launches-only": (
        "launches-only",
        torch([*ops(12, 5), *launches(7)], deviceProperties=GPU),
        "7 launches but no kernels were recorded: CUPTI failed, or activities=[CPU].",
        "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    ),
    "launches-and-copies": (
        "launches-only",
        torch([*launches(7), chrome.memcpy("Memcpy HtoD", 9, 5, 100)], deviceProperties=GPU),
        "7 launches but no kernels were recorded (only 1 copy or fill): CUPTI failed, or activities=[CPU].",
        "torch.profiler.profile(",
    ),
    "launches-only-nsys": (
        "launches-only",
        export(RANGE, LAUNCH),
        "1 launch but no kernels were recorded: CUPTI failed, or the capture missed the work.",
        "nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true",
    ),
    "start-up-nsys": (
        "start-up",
        export(CALL, nsys.memset(1_300, 1_310, 64, 1)),
        "Only start-up was recorded: 1 CUDA call, 1 copy or fill, no launch and no kernel.",
        "nsys profile --trace=cuda,nvtx --delay=60",
    ),
    "start-up": (
        "start-up",
        torch([chrome.launch(1, 1, name="cudaMemGetInfo")], deviceProperties=GPU),
        "Only start-up was recorded: 1 CUDA call, no launch and no kernel.",
        "torch.profiler.schedule(wait=1, warmup=1, active=3)",
    ),
    "cpu-only": (
        "cpu-only",
        torch(ops(20, 5)),
        "Only CPU activity was recorded: no GPU is listed and nothing was launched.",
        "torch.profiler.profile(",
    ),
    "cpu-only-gpu-listed": (
        "cpu-only",
        torch(ops(20, 5), deviceProperties=GPU),
        "Only CPU activity was recorded: NVIDIA A100-SXM4-80GB is listed, but nothing was launched on it.",
        "torch.profiler.profile(",
    ),
    "cpu-only-nsys": (
        "cpu-only",
        export(RANGE),
        "Only host activity was recorded: no GPU is listed and nothing was launched.",
        "nsys profile --trace=cuda,nvtx",
    ),
    "ran-on-cpu": (
        # 20 × 2,000 µs in 20 × 2,010 − 10 µs: 99.5 %.
        "ran-on-cpu",
        torch(ops(20, 2_000, "aten::addmm"), deviceProperties=GPU),
        "The model ran on the CPU although NVIDIA A100-SXM4-80GB is listed: aten::addmm takes 99.5 % of the time.",
        'model.to("cuda")',
    ),
    "unread-accelerator": (
        # 2 of 12 rows; 10 ops.
        "unread-accelerator",
        torch([*ops(10, 5), *(chrome._x("npu_kernel", "a", at, 2, 0, 7) for at in (1, 5))]),
        "2 of 12 rows have categories that tracekit does not read: npu_kernel 2.",
        "msprof-analyze advisor all -d DIR",
    ),
    "unread-other": (
        "unread-accelerator",
        torch([*ops(10, 5), chrome._x("mtia_ccp_events", "a", 1, 2, 0, 7)]),
        "1 of 11 rows have categories that tracekit does not read: mtia_ccp_events 1.",
        "tracekit sql PATH",
    ),
    "jax": (
        "jax",
        lambda folder: put(
            folder / "trace.json",
            events("fusion", "loop", count=2, processes=("/device:GPU:0", "/host:CPU")),
        ),
        "A trace of JAX or XLA, not of PyTorch: its 4 rows are not analyzed.",
        "nsys profile",
    ),
    "tensorflow": (
        "tensorflow",
        lambda folder: put(
            folder / "trace.json",
            events(
                "MatMul",
                category="Op",
                processes=("/job:localhost/replica:0/task:0/device:GPU:0 Compute",),
            ),
        ),
        "A trace of TensorFlow, not of PyTorch: its 1 row is not analyzed.",
        "nsys profile",
    ),
    "ebpf": (
        "ebpf",
        lambda folder: put(folder / "trace.json", events("read", "write", category="eBPF")),
        "A trace of an eBPF tool, not of PyTorch: its 2 rows are not analyzed.",
        "nsys profile",
    ),
    "chrome-json": (
        "chrome-json",
        lambda folder: put(folder / "trace.json", events("compile", category="build")),
        "A trace of another program, not of PyTorch: its 1 row is not analyzed.",
        "nsys profile",
    ),
    "front-end": (
        "front-end",
        torch([chrome._x("python_function", "api.py(1): serve", 1, 9, 0, 1)], "host_7.async_llm.17.pt.trace.json"),
        "This is the front end of a vLLM engine (async_llm): it has no GPU work by design.",
        "tracekit analyze DIR",
    ),
    "empty": (
        "empty",
        torch([]),
        "The recording is empty: it has no events.",
        "torch.profiler.schedule(",
    ),
    "unusable": (
        "unusable",
        torch([{"ph": "X", "cat": "cpu_op", "name": "a", "dur": 5, "pid": 1, "tid": 1}]),
        "No event can be used: 1 have no start (ts).",
        "prof.export_chrome_trace(",
    ),
    "snapshot-without-history": (
        "snapshot-without-history",
        snapshot,
        "No allocation history was recorded in the memory snapshot: 80 % of 10 B reserved is unused.",
        "torch.cuda.memory._record_memory_history(",
    ),
    "flight-recorder": (
        "hang",
        lambda folder: put(folder / "nccl_trace_rank_0.json", json.dumps(DUMP, sort_keys=True)),
        "Collectives, stacks or watchdog lines of a job that hangs.",
        "",
    ),
    "driver-log": (
        "driver-log",
        lambda folder: put(folder / "metrics.jsonl", LOG),
        "Only the driver's log was given: 3 steps, no profile.",
        "global_profiler.tool=torch",
    ),
}  # fmt: skip
"""What can be analyzed: by name (kind, function that writes it into a folder, sentence, begin of the command)."""
