"""pandas is imported when it is first used."""

import json
import subprocess
import sys
from pathlib import Path

import chrome_builder as chrome
import nsys_builder as nsys
import pandas as real_pandas  # noqa: ICN001
import pytest
from nsys_payload_builder import call, init, layout, peer

from tracekit.model.system.lazy_pandas import pd

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_its_names_are_those_of_pandas():
    assert pd.DataFrame is real_pandas.DataFrame


@pytest.mark.parametrize("example", ["simulated_gpu", "simulated_memory/leaking", "verl_cpu"])
def test_an_answer_in_text_needs_no_pandas(example):
    code = f"""
import sys
from tracekit.cli import main
try:
    main(["analyze", {str(EXAMPLES / example)!r}, "-q", "--no-cache", "--jobs", "1"])
except SystemExit as end:
    print(end.code, "pandas" in sys.modules)
"""
    assert printed(code)[-2:] == ["0", "False"]


def write_nsys_export(folder):
    """Ranges with every kind of argument, GPU memory and GPU metrics in steps and stages."""
    counters = [nsys.metric_name(name, number) for number, name in enumerate(("SMs Active", "PCIe RX"))]
    group = [("ncclGroupStart", None), ("ncclSend", peer(64, 1)), ("ncclRecv", peer(64, 1)), ("ncclGroupEnd", None)]
    rows = [
        *(nsys.nvtx(f"step {n}", 1000 * n, 1000 * n + 900) for n in range(3)),
        nsys.nvtx("generate_sequences", 100, 500, category=3, jsonText='{"tokens": 7}'),
        nsys.nvtx("aten::mm, seq = 5, op_id = 3, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0)]", 120, 130),
        nsys.nvtx("update", 200, 300, uint64Value=7),
        nsys.category("rollout", 3),
        nsys.memory(10, 4096, 0xA),
        nsys.memory(900, 4096, 0xA, free=True),
        *counters,
        *(nsys.metric(100 * n, n % 2, 50 + n) for n in range(20)),
        *nsys.launched("gemm", 210, 220, 280, 1),
        call("ncclCommInitRank", 10, init(0, 2)),
        *(call(name, 600 + 20 * n, data) for n, (name, data) in enumerate(group)),
        *layout(),
    ]
    nsys.write(folder / "worker_process_100.sqlite", rows, schema="3.25", duration_ns=4000)


def write_old_nsys_export(folder):
    """GPU metrics as JSON."""
    source = nsys.generic_source("GpuMetrics", 5, (nsys.METRICS,))
    rows = [*source, *(nsys.generic(10 * n, {"SM Active": n}) for n in range(5))]
    nsys.write(folder / "worker_process_100.sqlite", rows, schema="3.0")


def write_engine_trace(folder):
    """Iterations of a rollout engine and counters."""
    names = ("execute_context_2(512)_generation_3(3)", "step[DECODE bs=4]", "execute_new_1_cached_5")
    counters = [{"ph": "C", "name": "power", "ts": 10 * n, "pid": 1, "args": {"watts": 0.1 * n}} for n in range(9)]
    chrome.write(folder / "rank0.json", [*(chrome.annotation(names[n % 3], 10 * n, 8) for n in range(9)), *counters])


def write_memory_log(folder):
    """Memory by step of two ranks, in JSON lines and CSV."""
    rows = [{"step": n, "rank": n % 2, "point": "update", "allocated_gb": 10 + n} for n in range(20)]
    (folder / "memory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "memory.csv").write_text("step,reserved_mb\n" + "".join(f"{n},{5000 + n}\n" for n in range(20)))


def write_engine_log(folder):
    """Metrics of a trainer with the requests and tokens of its engine."""
    rows = [{"step": n, "data": {"timing_s/gen": 5.5, "timing_s/step": 9.5, "perf/throughput": 20}} for n in range(9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


WRITERS = (write_nsys_export, write_old_nsys_export, write_engine_trace, write_memory_log, write_engine_log)


@pytest.mark.parametrize("write", WRITERS)
def test_an_answer_in_text_needs_no_pandas_for(write, tmp_path):
    write(tmp_path)
    test_an_answer_in_text_needs_no_pandas(tmp_path)
