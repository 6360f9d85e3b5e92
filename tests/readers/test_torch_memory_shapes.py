"""What is no memory snapshot is refused with its place, and reading leaves nothing behind."""

import gc
import pickle

import pytest
from memory_builder import page, pickled, segments_of, snapshot, written_by_cpp, zipped
from memory_reading import read, small_program

from tracekit.discover import discover
from tracekit.model.errors import TraceFormatError
from tracekit.readers import READERS, torch_memory
from tracekit.readers.loading import load, sniff
from tracekit.readers.torch_memory import bytes as snapshot_bytes

SPOILT = {
    "no dictionary": (lambda s: "text", "top: no dictionary with segments or device_traces"),
    "another dictionary": (lambda s: {"a": 1}, "top: no dictionary with segments or device_traces"),
    "segments": (lambda s: s | {"segments": 5}, "segments: expected a list, found an integer"),
    "a segment": (lambda s: s["segments"].append("x"), "segments[2]: expected a dictionary, found text"),
    "an address": (
        lambda s: s["segments"][1].update(address="x"),
        "segments[1].address: expected an integer, found text",
    ),
    "a truth": (
        lambda s: s["segments"][1].update(address=True),
        "segments[1].address: expected an integer, found a truth value",
    ),
    "expandable": (
        lambda s: s["segments"][1].update(is_expandable=1),
        "segments[1].is_expandable: expected a truth value",
    ),
    "blocks": (
        lambda s: s["segments"][1].update(blocks={}),
        "segments[1].blocks: expected a list, found a dictionary",
    ),
    "a block": (
        lambda s: s["segments"][1]["blocks"].append(None),
        "segments[1].blocks[2]: expected a dictionary, found nothing",
    ),
    "a block's size": (
        lambda s: s["segments"][1]["blocks"][1].update(size=-1),
        "segments[1].blocks[1].size: expected a number of bytes, found -1",
    ),
    "traces": (
        lambda s: s.update(device_traces={}),
        "device_traces: expected a list",
    ),
    "a trace": (
        lambda s: s["device_traces"].append(None),
        "device_traces[1]: expected a list, found nothing",
    ),
    "an entry": (
        lambda s: s["device_traces"].append([[]]),
        "device_traces[1][0]: expected a dictionary, found a list",
    ),
    "an action": (
        lambda s: s["device_traces"][0][2].update(action=7),
        "device_traces[0][2].action: expected text, found an integer",
    ),
    "no action": (
        lambda s: s["device_traces"][0][2].pop("action"),
        "device_traces[0][2].action: expected text, found nothing",
    ),
    "a size": (
        lambda s: s["device_traces"][0][2].update(size=2**51),
        "device_traces[0][2].size: expected a number of bytes, found 2251799813685248",
    ),
    "a time": (
        lambda s: s["device_traces"][0][2].update(time_us=2**61),
        "device_traces[0][2].time_us: expected a time in µs",
    ),
    "a half time": (
        lambda s: s["device_traces"][0][2].update(time_us=0.5),
        "device_traces[0][2].time_us: expected an integer, found a number",
    ),
    "frames": (
        lambda s: s["device_traces"][0][2].update(frames="abc"),
        "device_traces[0][2].frames: expected a list, found text",
    ),
    "a frame": (
        lambda s: s["device_traces"][0][2].update(frames=[5]),
        "a frame is neither a dictionary nor text",
    ),
    "a line": (
        lambda s: s["device_traces"][0][2].update(frames=[{"line": 2**63}]),
        "a frame's name, filename or line is of a wrong kind",
    ),
    "forward frames": (
        lambda s: s["device_traces"][0][2].update(forward_frames=[[]]),
        "a frame is neither a dictionary nor text",
    ),
    "a pool": (
        lambda s: s["device_traces"][0][2].update(pool_id=[1, 2, 3]),
        "device_traces[0][].pool_id: expected pairs of integers",
    ),
    "a key": (
        lambda s: s["device_traces"][0][2].update({5: 5}),
        "device_traces[0][2]: expected text as key, found an integer",
    ),
    "metadata": (
        lambda s: s["device_traces"][0][2].update(user_metadata={}),
        "device_traces[0][2].user_metadata: expected text, found a dictionary",
    ),
    "annotations": (
        lambda s: s.update(external_annotations=[0]),
        "external_annotations[0]: expected a dictionary, found an integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", SPOILT)
def test_what_no_snapshot_is_like_is_refused_with_its_place(tables_of, part):
    made = snapshot(small_program())
    spoil, said = SPOILT[part]
    changed = spoil(made)
    with pytest.raises(TraceFormatError) as refused:
        tables_of(changed if part in ("no dictionary", "another dictionary", "segments") else made)
    assert said in str(refused.value)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickled(snapshot(small_program())))
    with pytest.raises(TraceFormatError, match=r"a pickle of 1,\d\d\d bytes or more: over 1,000"):
        snapshot_bytes.read_pickle(path, max_bytes=1000)


def test_a_file_that_is_not_there_is_an_error_of_one_line(tmp_path):
    with pytest.raises(TraceFormatError, match="cannot be read: No such file"):
        read(tmp_path / "none.pickle")


def test_reading_leaves_nothing_behind(tables_of, tmp_path):
    seen = []
    made = snapshot(small_program())
    assert gc.isenabled()
    tables_of(made, on_bytes=seen.append)
    assert gc.isenabled()
    with pytest.raises(TraceFormatError):
        tables_of(pickle.dumps({1, 2}))
    assert gc.isenabled()
    tables_of(made)
    assert [path.name for path in tmp_path.iterdir()] == ["s.pickle"]
    assert seen == [(tmp_path / "s.pickle").stat().st_size]


def test_snapshots_are_told_by_content():
    data = pickled(snapshot(small_program()))
    for claimed in (data, written_by_cpp(snapshot(small_program())), page(data)):
        assert torch_memory.sniff(claimed[: 2**16])
        assert not any(r.claims(claimed[: 2**16]) for r in READERS if r.name != "torch_memory")
    assert torch_memory.sniff(pickled(segments_of(small_program())))
    for other in (
        b"", b"\x80", b"\x80\x04N.", pickled({"lr": 0.1}), b"<html>segments</html>",
        b'{"traceEvents": []}', b"segments device_traces",
    ):  # fmt: skip
        assert not torch_memory.sniff(other)


def test_snapshots_are_found_by_content_and_named_by_their_path(tmp_path):
    # No two of them hold the same: that would count once.
    data = [pickled(snapshot(small_program(), number=number)) for number in range(5)]
    files = {
        "step3/torch_memory_rank1_pid77.pickle": data[0],
        "step4/torch_memory_rank1_pid77.pickle": zipped(data[1]),
        "oom_20261120-101500/torch_memory_oom_rank1_pid77.pickle": data[2],
        "memory_snapshot_time1790000000_rank5_rollout": data[3],
        "shown.html": page(data[4]),
        "other.pickle": pickled({"lr": 0.1}),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = discover([tmp_path], sniff=sniff)
    assert {s.name: (s.tool, s.step, s.rank, s.pid) for s in found.sources} == {
        "memory_snapshot_time1790000000_rank5_rollout": ("torch_memory", None, 5, None),
        "oom_20261120-101500/torch_memory_oom_rank1_pid77.pickle": ("torch_memory", None, 1, 77),
        "shown.html": ("torch_memory", None, None, None),
        "step3/torch_memory_rank1_pid77.pickle": ("torch_memory", 3, 1, 77),
        "step4/torch_memory_rank1_pid77.pickle": ("torch_memory", 4, 1, 77),
    }
    assert [i.reason.code for i in found.ignored] == ["no-snapshot"]
    for source in found.sources:
        assert len(load(source.path)["allocations"]) == 7
