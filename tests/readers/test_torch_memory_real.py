"""Snapshots that real runs wrote: exact to the byte, cut ones keep their curve, and the model replays them."""

import pickle
from functools import cache
from pathlib import Path

import pytest
from memory_builder import Allocator, pickled, segments_of
from memory_reading import curve, notes_of, read
from recorded import GPU, REAL

from tracekit.model.errors import TraceFormatError

needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

MANY = "NiuHuangxiaozi+assignment2-systems/cs336_systems_profile_memory_"
# file: actions, segments, blocks; requested bytes: in use before the history, at its peak, at its end;
# rounded bytes in use and reserved at its end. Worked out by `by_hand` below and by nothing of ours.
GOLDEN = {
    "bcrafton+assignment2-systems/memory_snapshot.pickle": (
        6_486,
        96,
        550,
        3_064_418_304,
        3_849_232_640,
        3_064_418_304,
        3_072_871_424,
        4_238_344_192,
    ),
    "CPU_torch2.13/cpu_profile_snapshot.pickle": (
        1_278,
        1,
        65,
        15_851_640,
        29_599_912,
        21_141_656,
        21_141_656,
        45_853_086_644_096,
    ),
    "LfieLike+SketchKV2/my_snapshot.pickle": (
        1,
        259,
        868,
        16_380_108_176,
        16_380_108_176,
        16_380_108_168,
        16_397_578_240,
        17_133_731_840,
    ),
    "MAGMA27+assignment2-systems/memory_snapshot.pickle": (
        5_163,
        216,
        455,
        1_373_919_236,
        13_923_997_700,
        1_373_919_236,
        1_377_753_600,
        14_180_941_824,
    ),
    f"{MANY}forward_and_backward_memory_snapshot_100.pickle": (
        11_300,
        65,
        213,
        0,
        682_735_240,
        420_190_612,
        423_759_360,
        786_432_000,
    ),
    f"{MANY}forward_and_backward_memory_snapshot_200.pickle": (
        11_480,
        83,
        224,
        0,
        1_229_753_640,
        460_198_612,
        464_721_920,
        1_390_411_776,
    ),
    f"{MANY}forward_and_backward_memory_snapshot_200_mixed_precision.pickle": (
        12_976,
        88,
        229,
        0,
        977_167_528,
        420_198_612,
        426_733_056,
        1_205_862_400,
    ),
    f"{MANY}forward_memory_snapshot_150.pickle": (2_317, 44, 77, 0, 626_943_088, 99_317_472, 100_300_800, 666_894_336),
    "SIMULATED_cpu_allocsim/step3/torch_memory_rank0_pid1.pickle": (
        323,
        10,
        49,
        85_713_048,
        120_365_476,
        86_253_720,
        86_258_688,
        136_314_880,
    ),
    "Yiyi-philosophy+LLM-inference/1.3b_snapshot.pickle": (
        1,
        257,
        948,
        5_692_346_376,
        5_692_346_376,
        5_683_449_864,
        5_683_450_880,
        7_608_467_456,
    ),
    "Yiyi-philosophy+LLM-inference/log1_1.3b_snapshot.pickle": (
        1,
        112,
        593,
        809_849_328,
        809_849_328,
        807_625_200,
        809_461_760,
        1_851_785_216,
    ),
    "Yiyi-philosophy+LLM-inference/oom_snapshot.pickle": (
        1,
        176,
        463,
        11_840_159_744,
        11_840_159_744,
        11_840_159_744,
        11_840_159_744,
        11_844_714_496,
    ),
}
COMPLETE = [name for name in GOLDEN if name.startswith(MANY)]
OURS = {
    "fragmented.pickle": (646, 53, 300, 137_363_456, 1_081_081_856, 609_222_656, 614_465_536, 1_105_199_104),
    "leak_2MiB_per_step.pickle": (159, 10, 27, 137_363_456, 177_211_400, 162_529_280, 162_529_280, 190_840_832),
    "out_of_memory.pickle": (
        69,
        41,
        47,
        137_363_456,
        146_166_251_520,
        146_166_251_520,
        146_166_251_520,
        146_169_397_248,
    ),
    "private_pool_free.pickle": (6, 9, 15, 137_363_456, 741_343_232, 204_472_320, 204_472_320, 744_488_960),
}
KNOWN = GOLDEN if REAL else OURS
FOLDER = Path(REAL) / "memory" if REAL else GPU / "snapshots"


class Restricted(pickle.Unpickler):
    """An unpickler of the standard library, which refuses names here too."""

    def find_class(self, module, name):
        raise AssertionError(module, name)


@cache
def objects(name):
    with (FOLDER / name).open("rb") as file:
        return Restricted(file).load()


def by_hand(made):
    """What one device's history and blocks come to, one entry after the other."""
    blocks, live, orphans, levels, level = {}, {}, 0, [], 0
    for segment in made["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block.get("address", at)] = block
            at += block["size"]
    (entries,) = [trace for trace in made["device_traces"] if trace]
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
            level += entry["size"]
        elif entry["action"] == "free_completed":
            if live.pop(entry["addr"], None) is None:
                orphans += entry["size"]
            level -= entry["size"]
        levels.append(level)
    before = orphans + sum(b["requested_size"] for a, b in blocks.items() if a not in live)
    return (
        len(entries), len(made["segments"]), sum(len(s["blocks"]) for s in made["segments"]),
        before, before + max(0, *levels), before + level,
        sum(b["size"] for b in blocks.values()), sum(s["total_size"] for s in made["segments"]),
    )  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_real_snapshot_is_exact_to_the_byte(name):
    trace = read(FOLDER / name)
    rows, segments, blocks = (trace[t] for t in ("allocations", "memory_segments", "blocks"))
    levels = curve(trace)
    (balance,) = trace.meta["balances"]
    before = balance["ghost_bytes"] + balance["orphan_bytes"]
    used = blocks["state"] == "active"
    assert KNOWN[name] == (
        len(rows), len(segments), len(blocks),
        before, max(before, *levels), levels[-1],
        blocks["size_bytes"][used].sum(), segments["size_bytes"].sum(),
    )  # fmt: skip
    assert balance["off_bytes"] == balance["unlike_count"] == 0
    assert levels[-1] == blocks["requested_bytes"][used].sum()
    made_up = name.startswith("CPU_torch2.13/")
    assert [note.code for note in trace.notes] == ["from-profile"] * made_up


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_figures_come_from_the_file_itself(name):
    assert by_hand(objects(name)) == KNOWN[name]


@needs_data
def test_every_snapshot_there_is_balances():
    found = sorted((Path(REAL) / "memory/SIMULATED_cpu_allocsim").rglob("*.pickle"))
    assert len(found) == 9
    for path in found:
        trace = read(path)
        assert [b["off_bytes"] for b in trace.meta["balances"]] == [0]
        assert trace.notes == ()


@needs_data
def test_a_snapshot_that_a_script_made_up_is_said_not_to_add_up():
    trace = read(Path(REAL) / "memory/facebookresearch+mosaic/SYNTHETIC_output.pickle")
    assert notes_of(trace) == {"odd-segments": "5 of 5 segments are not the sum of their blocks"}
    assert set(trace["memory_segments"]["pool"]) == {"0,0"}


@needs_data
def test_a_pointer_to_a_snapshot_is_called_that():
    name = "memory/kbjiang+cs336-assignment2-systems-mine/cs336_systems_memory_256.pickle"
    with pytest.raises(TraceFormatError, match="a Git LFS pointer: the file itself was not"):
        read(Path(REAL) / name)


@needs_data
@pytest.mark.parametrize("name", COMPLETE)
def test_the_model_of_the_allocator_replays_a_complete_history_address_by_address(name):
    made = objects(name)
    (entries,) = made["device_traces"]
    got = iter([(e["addr"], e["size"]) for e in entries if e["action"] == "segment_alloc"])

    def recorded(size):
        address, recorded_size = next(got)
        assert size == recorded_size
        return address

    model = Allocator(addresses=recorded)
    for entry in entries:
        if entry["action"] == "alloc":
            assert model.alloc(entry["size"]) == entry["addr"]
        elif entry["action"] == "free_completed":
            model.free(entry["addr"])
    assert next(got, None) is None

    def plain(segments):
        kept = ("address", "total_size", "allocated_size", "active_size", "requested_size", "segment_type")
        return {
            tuple(s[key] for key in kept): [
                (b["address"], b["size"], b["state"], b["requested_size"] * (b["state"] != "inactive"))
                for b in s["blocks"]
            ]
            for s in segments
        }

    assert plain(segments_of(model)) == plain(made["segments"])


@pytest.mark.parametrize("percent", [75, 50, 25, 10, 2])
def test_a_history_cut_at_its_front_keeps_the_curve(percent, tmp_path):
    name = COMPLETE[-1] if REAL else "fragmented.pickle"
    made = objects(name)
    whole = curve(read(FOLDER / name))
    (entries,) = made["device_traces"]
    kept = entries[-(len(entries) * percent // 100) :]
    path = tmp_path / "cut.pickle"
    path.write_bytes(pickled(made | {"device_traces": [kept]}))
    trace = read(path)
    assert curve(trace) == whole[-len(kept) :]
    assert trace.meta["balances"][0]["off_bytes"] == 0
