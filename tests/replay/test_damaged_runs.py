"""Traces with damage or nonsense that readers accept: graphs are built, recorded times come back, and books close."""

import gzip
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import nsys_builder as nsys
import pytest
from chrome_builder import BASE_NS, step, text
from fuzz_readers import damaged
from hypothesis import given
from hypothesis import strategies as st
from replay.graphs import issue, meet, read_graphs, runtime
from replay.rules import aten, gloo_rank, several
from replay.whole import replay_graphs
from scan_comparison import real_documents

from tracekit.model.errors import TracekitError

DATA = Path(__file__).parents[1] / "data"


def replay_whole(path) -> bool:
    """Replay what is at a path, with every verb; False where readers refuse all of it."""
    try:
        graphs = read_graphs(path)
    except TracekitError:
        return False
    return replay_graphs(graphs)


def list_documents():
    """Small documents: hand-made ones, and cuts from recorded ones."""
    rows = [step(1, 0, 3_000), *several(late=False), runtime("cudaDeviceSynchronize", 2_200, 50, 99)]
    documents = [text(rows, rank=0, world_size=2), text(gloo_rank(100, 455), rank=0, world_size=2)]
    for path in sorted(DATA.glob("c*/**/*.json.gz"))[::3]:
        documents += [*real_documents(gzip.decompress(path.read_bytes())[: 2**19], 12_000)][:2]
    return documents


DOCUMENTS = list_documents()


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_replayed_or_refused(tmp_path, seed):
    replayed = 0
    for case in range(30):
        rng = random.Random(f"{seed} {case}")
        (tmp_path / "rank0.json").write_bytes(damaged(rng.choice(DOCUMENTS), rng))
        replayed += replay_whole(tmp_path)
    assert replayed > 15


NUMBERS = st.one_of(
    st.integers(-20, 400), st.floats(0, 400, allow_nan=False), st.sampled_from([0, 0.001, -1e-3, 1e9, 1e15, -1e15, 2**63, "7", None]),
)  # fmt: skip
DURATIONS = st.one_of(st.integers(0, 100), st.sampled_from([0, 0.001, 1e9, 1e13, -5, None, "3"]))
NAMES = st.sampled_from(
    [
        "k", "aten::mm", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventSynchronize",
        "cudaDeviceSynchronize", "cudaFree", "cudaGraphLaunch", "ProfilerStep#1", "ProfilerStep#2", "update_actor",
        "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pageable -> Device)", "gloo:all_reduce", "c10d::allreduce_",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "enumerate(DataLoader)#x", "",
    ]
)  # fmt: skip
CATEGORIES = st.sampled_from(
    [
        "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation", "cuda_sync",
        "python_function", "gpu_user_annotation", "ac2g", "odd",
    ]
)  # fmt: skip


@st.composite
def odd_rows(draw):
    """A row of any category, name, place and time, with or without links."""
    args = {"correlation": draw(st.integers(-1, 6)), "stream": draw(st.sampled_from([7, 9, "x", None, -1]))}
    args |= {"device": draw(st.sampled_from([0, 1, None])), "External id": draw(st.integers(0, 4))}
    if draw(st.booleans()):
        args |= {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
        args |= {"Group size": 2, "In msg nelems": 4, "dtype": "Float", "Seq": draw(st.integers(0, 3))}
    row = {"ph": "X", "cat": draw(CATEGORIES), "name": draw(NAMES), "pid": 100, "tid": draw(st.integers(1, 3))}
    return row | {"ts": draw(NUMBERS), "dur": draw(DURATIONS), "args": draw(st.sampled_from([args, {}]))}


@given(st.lists(st.lists(odd_rows(), max_size=25), min_size=1, max_size=3))
def test_rows_of_any_kind_and_time_are_replayed_or_refused(ranks):
    with TemporaryDirectory() as folder:
        for rank, rows in enumerate(ranks):
            about = {"backend": "nccl", "rank": rank, "world_size": len(ranks)}
            document = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "distributedInfo": about}
            (Path(folder) / f"rank{rank}.json").write_text(json.dumps(document | {"traceEvents": rows}))
        replay_whole(folder)


def test_what_odd_rows_consist_of_can_be_replayed(tmp_path):
    """So that the test before this one does not pass because all is refused."""
    rows = [step(1, 0, 400), aten("aten::mm", 0, 10), *issue("k", 2, 9, 20, 1), *meet(40, 50, 20, 2, 1)]
    (tmp_path / "rank0.json").write_bytes(text(rows, rank=0, world_size=2))
    assert replay_whole(tmp_path)


def write_export(path):
    """An export of nsys with launches, a copy, ranges and a synchronization."""
    rows = [row for at in (0, 10_000, 20_000) for row in nsys.launched("k", at, at + 3_000, at + 8_000, at + 1)]
    rows += [nsys.nvtx("step", 0, 40_000), nsys.api("cudaDeviceSynchronize_v3020", 25_000, 29_000, 9)]
    nsys.write(path, [*rows, nsys.sync(25_000, 29_000, 9)])
    return path


def test_damaged_exports_are_replayed_or_refused(tmp_path):
    whole = write_export(tmp_path / "whole.sqlite").read_bytes()
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.sqlite").write_bytes(whole)
    assert replay_whole(folder)
    replayed = 0
    for case in range(80):
        rng = random.Random(case)
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(100, len(data))] = rng.randrange(256)
        (folder / "a.sqlite").write_bytes(data)
        replayed += replay_whole(folder)
    assert replayed > 20
