"""Flight recorders, stacks, watchdogs and RAS: every form, what is refused, and what nothing can break."""

import json
import os
import pickle
import random
from pathlib import Path

import pytest
from flight_dumps import dump, pending, pickled, ras, record, timed, watchdog
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.readers import READERS, find_reader
from tracekit.readers.hangs import pickled as pickle_loader
from tracekit.readers.loading import load, load_all, sniff

DATA = Path(__file__).parents[1] / "data"
REAL = sorted((DATA / "hangs").iterdir())
BOTH_FORMS = [folder for folder in REAL if (folder / "trace_rank_0.json").exists()]
PYSPY = (
    'Process 5224: python -c import time\npassword = "secret"\ntrain()\nPython v3.11.7 (/usr/bin/python3.11)\n\n'
    'Thread 5301 (active+gil): "loader"\n    poll (multiprocessing/popen_fork.py:27)\n'
    'Thread 5224 (idle): "MainThread"\n    read (ssl.py:1166)\n    compute_score (/job/judge.py:88)\n'
    "    update (/job/train.py:7)\n"
)


def put(tmp_path, data, name):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(path, reader):
    return find_reader(reader).read(Source(path, path.name, reader, "log"), Want(), None)


@pytest.mark.parametrize("folder", BOTH_FORMS, ids=lambda folder: folder.name)
def test_a_pickle_and_the_json_of_one_rank_have_the_same_rows(folder):
    for rank in range(3):
        pickle_, text = (load(folder / f"trace_rank_{rank}{suffix}") for suffix in ("", ".json"))
        assert pickle_.source.rank == text.source.rank == rank
        records = [trace["collective_records"].drop(columns=["frame", "stack"]) for trace in (pickle_, text)]
        assert records[0].equals(records[1])
        assert pickle_["collective_records"]["frame"].notna().all()
        groups = [trace["collective_groups"].drop(columns="written_ns") for trace in (pickle_, text)]
        assert groups[0].equals(groups[1])


def test_a_real_record_is_read_field_by_field():
    rows = load(DATA / "hangs" / "size" / "trace_rank_1")["collective_records"]
    last = rows.iloc[-1]
    assert (last["op"], last["seq"], last["input_sizes"], last["dtypes"]) == (
        "all_reduce",
        2,
        "[[16]]",
        "Float → Float",
    )
    assert (last["backend"], last["state"], last["retired"], last["is_p2p"]) == ("gloo", "scheduled", False, False)
    assert last["timeout_ns"] == 120 * 10**9
    assert last["frame"] == "reduce_gradients (/opt/trainer/code-gpu/train.py:115)"
    assert last["stack"].splitlines()[0].startswith("all_reduce (")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_7", 7),
        ("nccl_trace_rank_container-node02_5", 5),
        ("hccl_trace_rank_12.pickle", 12),
        ("comm_lib_trace_rank_3.bin", 3),
        ("rank_4.json", 4),
        ("dump", None),
    ],
)
def test_the_rank_is_the_number_that_the_name_ends_in(tmp_path, name, rank):
    trace = load(put(tmp_path, dump([record(1)]), name))
    assert trace.source.rank == rank
    assert [note.code for note in trace.notes] == ([] if rank is not None else ["no-rank"])


class Evil:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize(
    "object_",
    [
        {"entries": [Evil()], "pg_config": {}, "record_id": 1},
        {"entries": [print], "pg_config": {}, "record_id": 1},
        {"entries": [{1, 2}], "pg_config": {}, "record_id": 1},
        {"entries": [b"bytes"], "pg_config": {}, "record_id": 1},
        {"entries": [2**70], "pg_config": {}, "record_id": 1},
        {"entries": [], ("a", "b"): 1, "pg_config": {}, "record_id": 1},
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_with_more_than_a_dump_needs_is_refused_and_not_run(tmp_path, capsys, object_, protocol):
    path = put(tmp_path, pickle.dumps(object_, protocol), "nccl_trace_rank_0")
    with pytest.raises(TraceFormatError) as caught:
        read(path, "flight_recorder")
    assert caught.value.code == "no-dump"
    assert "byte" in caught.value.where
    assert capsys.readouterr().out == ""


def nest(depth):
    """Pairs in pairs through the memo, as a key: hashing the last one takes 2**depth steps."""
    data = b"\x80\x02}(X\x07\x00\x00\x00entriesX\x01\x00\x00\x00aX\x01\x00\x00\x00a\x86q\x00"
    data += b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(depth))
    return data + b"Nu."


@pytest.mark.parametrize(
    "data",
    [
        nest(60),
        b"\x80\x02" + b"X\x01\x00\x00\x00a" * 2 + b"\x86" + b"X\x01\x00\x00\x00a\x86" * 100_000 + b"Nu.",
        b"\x80\x02" + b"]" * 1_000_000 + b".",
        b"\x80\x02" + b"(" * 1_000_000 + b".",
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02h\x05.",
        b"\x80\x02u.",
    ],
    ids=["pairs in the memo", "pairs in pairs", "lists", "marks", "a far place", "no such place", "no mark"],
)
def test_a_pickle_that_would_exhaust_the_loader_is_refused_at_once(tmp_path, data):
    with pytest.raises(TraceFormatError):
        read(put(tmp_path, data, "nccl_trace_rank_0"), "flight_recorder")


@pytest.mark.parametrize("folder", REAL, ids=lambda folder: folder.name)
def test_dumps_of_torch_take_the_fast_way_and_the_machine_loads_the_same(folder):
    for rank in range(3):
        path = folder / f"trace_rank_{rank}"
        data = path.read_bytes()
        assert pickle_loader._PLAIN.fullmatch(data)
        assert pickle_loader._run_machine(data, path) == pickle_loader.load_pickled_dump(data, path)


def test_a_pickle_that_ends_early_is_said_to_be_cut_at_every_byte(tmp_path):
    data = (DATA / "hangs" / "missing" / "trace_rank_0").read_bytes()
    for end in range(2, len(data) - 1, 7):
        with pytest.raises(TraceFormatError) as caught:
            read(put(tmp_path, data[:end], "trace_rank_0"), "flight_recorder")
        assert caught.value.code == "cut-dump"


def test_times_and_numbers_of_json_are_those_of_a_pickle(tmp_path):
    text = dump([record(1, time_discovered_started_ns=0), pending(2, time_created_ns=0)])
    first, second = (
        load(put(tmp_path, data, name))["collective_records"]
        for data, name in ((text, "trace_rank_0.json"), (pickled(text), "trace_rank_0"))
    )
    assert first["started_ns"].isna().all()
    assert first["created_ns"].isna().tolist() == [False, True]
    assert first.equals(second)


def test_a_status_that_json_writes_as_text_is_a_number(tmp_path):
    root = json.loads(dump([record(1)]))
    root["pg_status"] = {"0": {"last_enqueued_collective": "3", "last_completed_collective": "-1"}}
    groups = load(put(tmp_path, json.dumps(root), "trace_rank_0.json"))["collective_groups"]
    assert groups[["last_enqueued", "last_completed"]].iloc[0].tolist() == [3, 0]
    assert groups["members"].tolist() == ["0,1,2"]


def test_py_spy_is_read_beyond_a_command_of_several_lines_which_is_not_kept(tmp_path):
    (trace,) = load_all(put(tmp_path, PYSPY, "pyspy_rank2.txt"))
    assert (trace.source.rank, trace.source.pid) == (2, 5224)
    rows = trace["thread_stacks"]
    assert rows["thread"].tolist() == ["loader", "MainThread"]
    assert rows["state"].tolist() == ["active+gil", "idle"]
    assert rows["is_main"].tolist() == [False, True]
    assert rows["frame"].tolist() == ["poll (multiprocessing/popen_fork.py:27)", "compute_score (/job/judge.py:88)"]
    assert "secret" not in rows.to_json()


def test_py_spy_json_gives_the_same_without_local_variables(tmp_path):
    frames = [
        {"name": "read", "filename": "/usr/lib/python3.11/ssl.py", "short_filename": "ssl.py", "line": 1166},
        {"name": "score", "filename": "/job/judge.py", "line": 88, "locals": [{"name": "key", "repr": "secret"}]},
    ]
    thread = {
        "pid": 7,
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": 7,
        "active": True,
        "owns_gil": True,
    }
    text = json.dumps([thread | {"frames": frames}, thread | {"pid": 8, "os_thread_id": 9, "thread_name": None}])
    first, second = load_all(put(tmp_path, text, "pyspy_rank1.json"))
    assert first["thread_stacks"]["frame"].tolist() == ["score (/job/judge.py:88)"]
    assert first["thread_stacks"]["state"].tolist() == ["active+gil"]
    assert (first.source.pid, second.source.pid) == (7, 8)
    assert first.source.rank is None, "the file has two processes, so its name does not say whose rank it is"
    assert "secret" not in first["thread_stacks"].to_json()


def test_faulthandler_lists_the_innermost_frame_first_and_the_main_thread_last():
    rows = load(DATA / "hangs" / "python" / "stacks_rank2.txt")["thread_stacks"]
    assert rows["frame"].iloc[-1] == "compute_reward (/opt/trainer/code-gpu/train.py:129)"
    assert rows["stack"].iloc[-1].splitlines()[1].startswith("python (")


def test_the_status_of_a_group_is_read_in_the_words_of_every_version(tmp_path):
    lines = (
        "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7753, last enqueued NCCL work: "
        "7755, last completed NCCL work: 7752.\n"
        "[PG ID 2 PG GUID 9(tp) Rank 4] Exception (either an error or timeout) detected by watchdog. Timeout at NCCL work: 610, "
        "last enqueued NCCL work: 612, last completed NCCL work: 609.\n"
        "[rank3]:[E901] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: 41 PG status: "
        "last enqueued work: 42, last completed work: 40\n"
        "[rank5]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives\n"
        "[rank6]: Stack trace of the failed collective not found, potentially because FlightRecorder is disabled\n"
    )
    rows = load(put(tmp_path, lines, "err.log"))["watchdog_lines"]
    assert rows["kind"].tolist() == ["status", "status", "status", "heartbeat", "no-recorder"]
    # `[rank3]` is global; `Rank 1` counts within the group.
    assert rows["printed_by"].tolist() == [0, 4, 3, 5, 6]
    assert rows["seq"].tolist()[:3] == [7753, 610, 41]
    assert rows["last_enqueued"].tolist()[:3] == [7755, 612, 42]
    assert rows["last_completed"].tolist()[:3] == [7752, 609, 40]
    assert rows["group_desc"].tolist()[1:3] == ["tp", "default_pg"]
    assert rows["waited_ns"].iloc[3] == 480 * 10**9


def test_a_line_of_the_watchdog_is_found_in_a_drivers_log_and_far_below_the_head_of_a_ranks_log(tmp_path):
    step = "step:1 - timing_s/gen:1.0 - timing_s/step:3.0 - training/global_step:1\n"
    driver = load(put(tmp_path, step + watchdog(2, 41), "driver.log"))
    assert driver.has("log_values", "watchdog_lines")
    assert driver["watchdog_lines"]["waited_ns"].iloc[0] == 600_029 * 10**6
    far = put(tmp_path, "loading weights\n" * 20_000 + watchdog(2, 41), "rank2.log")
    assert sniff(far).reader == "watchdog_log"
    assert load(far)["watchdog_lines"]["line"].tolist() == [20_001, 20_002]
    assert sniff(put(tmp_path, "loading weights\n" * 20_000, "quiet.log")).reader is None


def test_the_text_and_the_json_of_ras_give_the_same_counts(tmp_path):
    text = load(put(tmp_path, ras(64, 60), "ras.txt"))["communicator_counts"]
    assert text[["launched", "rank_count", "ranks"]].values.tolist() == [[64, 3, ""], [60, 1, "1"]]
    counts = [{"rank": rank, "collective_counts": {"AllReduce": 60 if rank == 1 else 64}} for rank in range(4)]
    report = {"nccl_version": "2.28.9", "communicators": [{"hash": "0xab", "ranks": counts, "missing_ranks": []}]}
    # NCCL 2.28.9 forgets the comma after this array.
    body = json.dumps(report, indent=1).replace('"communicators"', '"x": [\n]\n "communicators"')
    rows = load(put(tmp_path, body + "\n" + body, "ras.json"))["communicator_counts"]
    assert rows[["sample", "launched", "ranks"]].values.tolist() == [
        [0, 64, "0,2,3"], [0, 60, "1"], [1, 64, "0,2,3"], [1, 60, "1"]
    ]  # fmt: skip
    assert "10.0.0.7" not in text.to_json()


SEEDS = [
    ("flight_recorder", (DATA / "hangs" / "op" / "trace_rank_1").read_bytes()),
    ("flight_recorder", (DATA / "hangs" / "op" / "trace_rank_1.json").read_bytes()),
    ("thread_stacks", PYSPY.encode()),
    ("thread_stacks", (DATA / "hangs" / "op" / "stacks_rank1.txt").read_bytes()),
    ("thread_stacks", b'[{"pid": 1, "os_thread_id": 1, "frames": [{"name": "f", "filename": "g.py", "line": 3}]}]'),
    ("watchdog_log", watchdog(3, 41).encode()),
    ("ras", (ras(64, 60) * 2).encode()),
    (
        "ras",
        b'{"nccl_version": "2", "communicators": [{"hash": "0x1", "ranks": [{"rank": 0, "collective_counts": {"a": 1}}]}]}',
    ),
]
PIECES = [b"", b"\0", b"\xff", b"9" * 400, b"\n", b"NaN", b"-", b"{", b'"', b"e999", b"[", b"]", b"}", b"\x80\x02", b"\x86",
          b"h\x05", b"c", b"R", b".", b"(", b"\xed\xa0\x80", b"null", b"1e999"]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_give_rows_or_the_documented_error(tmp_path_factory, seed):
    rng = random.Random(seed)
    reader, data = rng.choice(SEEDS)
    data = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(4)] = rng.choice(PIECES)
    path = put(tmp_path_factory.mktemp("fuzz"), bytes(data), "trace_rank_1")
    try:
        traces = read(path, reader)
    except TraceFormatError:
        return
    for trace in traces:
        for name in trace:
            assert trace[name].to_json(force_ascii=True)


def test_other_files_are_not_claimed():
    texts = [b"", b"{}", b"[]", b'{"traceEvents": []}', b"step 1\nloss 2\n", b"Process started\n", b"\x80\x02}q\x00."]
    names = {"flight_recorder", "thread_stacks", "watchdog_log", "ras"}
    for reader in READERS:
        if reader.name in names:
            assert not any(reader.claims(text) for text in texts), reader.name


def test_the_reader_of_dumps_depends_on_when_a_file_was_written(tmp_path):
    path = put(tmp_path, dump([record(1)]), "nccl_trace_rank_0.json")
    reader = find_reader("flight_recorder")
    before = reader.describe_dependencies(path)
    os.utime(path, ns=(1, 1))
    assert reader.describe_dependencies(path) != before


def test_durations_are_in_ns_and_impossible_ones_are_unknown(tmp_path):
    values = [0.25, 3, 0, None, "0.5", True, -1.0, float("nan"), float("inf")]
    records = [timed(seq, value) for seq, value in enumerate(values, 1)]
    data = dump(records)
    for name, content in (("rank_0.json", data), ("rank_0", pickled(data))):
        (tmp_path / name).write_bytes(content)
        made = load(tmp_path / name)["collective_records"]["dur_ns"].astype(object)
        assert made.where(made.notna(), None).tolist() == [250_000, 3_000_000, 0, None, None, None, None, None, None]
