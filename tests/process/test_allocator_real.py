"""Real histories replayed: those of a GPU that are part of the tests, and all of TRACEKIT_REAL_DATA."""

import lzma
import os
from pathlib import Path

import pytest
from memory_reading import read

from tracekit.model.errors import TraceFormatError
from tracekit.process.memory.allocator.beginning import UnreplayableError
from tracekit.process.memory.allocator.history import build_program
from tracekit.process.memory.allocator.identity import compare_with_history
from tracekit.process.memory.allocator.run import run_program
from tracekit.process.memory.replay import replay_all_devices

GPU = Path(__file__).parents[1] / "data/gpu"
REAL = os.environ.get("TRACEKIT_REAL_DATA")
MIB = 2**20


def replay_file(path):
    """Each device's (program, run, match), or the reason why there is none."""
    results = []
    trace = read(path)
    for replay in trace.derived(replay_all_devices):
        try:
            program = build_program(trace, replay)
        except UnreplayableError as error:
            results.append(str(error))
            continue
        run = run_program(program)
        results.append((program, run, compare_with_history(replay, program, run)))
    return results


@pytest.mark.parametrize(
    ("name", "segments", "peak_mib"),
    [
        ("fragmented", 46, 1054),
        ("leak_2MiB_per_step", None, 182),
        ("out_of_memory", 34, 139398),
        ("private_pool_free", 2, 710),
    ],
)
def test_a_history_of_an_h200_replays_exactly(name, segments, peak_mib):
    """torch 2.11 on an H200: fragments, a private pool, and memory that runs out after 34 segments of 4 GiB."""
    ((program, run, match),) = replay_file(GPU / f"snapshots/{name}.pickle")
    assert match.is_exact, match
    assert segments in (None, match.segments)
    assert run.peak_reserved == peak_mib * MIB
    assert ("0,1" in program.pools) == (name == "private_pool_free")


@pytest.mark.parametrize("step", [4, 6])
def test_a_step_of_a_training_loop_replays_exactly(tmp_path, step):
    """764 MiB were reserved before the history; 6,652 allocations got the recorded addresses."""
    (packed,) = (GPU / f"rl/torch_memory/outputs/profile/step{step}").glob("*.pickle.xz")
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    ((_, run, match),) = replay_file(path)
    assert match.is_exact, match
    assert match.allocations == 6652
    assert run.reserved_before == 764 * MIB


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
def test_real_histories_replay_exactly():
    """Every history of PyTorch with segments: 15 of 15. The others have no history, or no segments of an allocator."""
    exact, reasons = [], []
    for path in sorted((Path(REAL) / "memory").rglob("*.pickle")):
        try:
            results = replay_file(path)
        except TraceFormatError:
            continue
        for result in results:
            if isinstance(result, str):
                reasons.append(result)
            else:
                assert result[2].is_exact, (path, result[2])
                exact.append(path)
    assert len(exact) == 15
    assert sorted(set(reasons)) == [
        "no history of allocations was recorded",
        "no segments of the allocator were recorded",
        "pages of expandable segments are not at multiples of 2 MiB",
    ]
