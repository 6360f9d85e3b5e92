"""Logs of rollout engines and machines: every form and version, what is skipped, and what nothing can break."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.readers import READERS, engine_log
from tracekit.readers.engine_log.values import MAX_NAME
from tracekit.readers.lines import MAX_LINE_BYTES
from tracekit.readers.loading import load

SECOND = 10**9

V1 = (
    "(APIServer pid=5120) INFO 09-01 10:00:10 [loggers.py:259] Engine 003: Avg prompt throughput: 900.0 tokens/s, "
    "Avg generation throughput: 3100.5 tokens/s, Running: 96 reqs, Waiting: 252 reqs, Preemptions: 8, "
    "GPU KV cache usage: 97.8%, Prefix cache hit rate: 41.2%"
)
V0 = (
    "INFO 08-05 10:00:00 metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 24.9 "
    "tokens/s, Running: 1 reqs, Swapped: 2 reqs, Pending: 3 reqs, GPU KV cache usage: 0.2%, CPU KV cache usage: 0.0%."
)
RAY = (
    "\x1b[36m(vLLMHttpServer pid=77, ip=10.0.0.2)\x1b[0m INFO 12-31 23:59:55 [loggers.py:1] Engine 000: Avg prompt "
    "throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: 1.0%, Prefix cache hit rate: n/a"
)
DECODE = (
    "[2026-09-13 16:06:00 DP1 TP0] Decode batch, #running-req: 66, #token: 84642, token usage: 0.97, cuda graph: "
    "False, gen throughput (token/s): 2574.67, #queue-req: 11"
)
PREFILL = (
    "[2026-09-13 16:06:01 DP1 TP0] Prefill batch, #new-seq: 3, #new-token: 1024, #cached-token: 256, token usage: "
    "0.10, #running-req: 5, #queue-req: 2"
)
RETRACT = (
    "[2026-09-13 16:06:02 DP1 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    "#new_tokens_gained: 646, #new_token_ratio: 0.0980 -> 0.3487"
)
SCRAPE = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
    'vllm:num_preemptions_total{{engine="0",model_name="m"}} {preempted}\n'
    'vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}\n'
    'vllm:request_success_total{{engine="0",finished_reason="stop"}} 5.0\n'
    'vllm:request_success_total{{engine="0",finished_reason="length"}} 2.0\n'
    'vllm:request_queue_time_seconds_sum{{engine="0"}} 3.5\n'
)


def put(tmp_path, text, name="engine.log"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(tmp_path, *lines):
    """{(engine, key): value} of these lines, by the registry."""
    rows = load(put(tmp_path, "\n".join(lines) + "\n"))["engine_log"]
    return dict(zip(zip(rows["engine"], rows["key"], strict=True), rows["value"], strict=True))


def test_a_v1_line_gives_ratios_and_the_preemptions_since_the_last_line(tmp_path):
    assert values(tmp_path, V1) == pytest.approx({
        ("3", "prompt_tokens_per_s"): 900.0, ("3", "generation_tokens_per_s"): 3100.5, ("3", "running"): 96,
        ("3", "waiting"): 252, ("3", "preemptions"): 8, ("3", "kv_ratio"): 0.978, ("3", "prefix_hit_ratio"): 0.412,
    })  # fmt: skip


def test_a_v0_line_calls_waiting_requests_pending(tmp_path):
    found = values(tmp_path, V0)
    assert (found["0", "running"], found["0", "swapped"], found["0", "waiting"]) == (1, 2, 3)
    assert found["0", "kv_ratio"] == pytest.approx(0.002)


def test_v0_counts_preemptions_since_the_start_and_v1_prints_sleeps(tmp_path):
    found = values(
        tmp_path, V0,
        "WARNING 12-01 00:00:00 scheduler.py:1] Sequence group 1 is preempted by PreemptionMode.RECOMPUTE mode because "
        "there is not enough KV cache space. total_num_cumulative_preemption=51",
        "INFO 09-01 10:00:00 [cumem.py:1] CuMemAllocator: sleep freed 64.00 GiB memory in total, of which 14.00 GiB is "
        "backed up in CPU and the rest 50.00 GiB is discarded directly.",
        "INFO 09-01 10:00:01 [x.py:1] Sleep mode freed 64.00 GiB memory, 3.50 GiB memory is still in use.",
        "INFO 09-01 10:00:01 [x.py:1] It took 1.250000 seconds to fall asleep.",
        "INFO 09-01 10:00:09 [x.py:1] It took 0.5 seconds to wake up tags {'weights'}.",
        "INFO 09-01 10:00:09 [x.py:1] GPU KV cache size: 123,456 tokens",
    )  # fmt: skip
    assert found["0", "preemptions"] == 51
    assert found["0", "sleep_freed_bytes"] == 64 * 2**30
    assert found["0", "sleep_in_use_bytes"] == 3.5 * 2**30
    assert (found["0", "fall_asleep_s"], found["0", "wake_up_s"]) == (1.25, 0.5)
    assert found["0", "kv_cache_tokens"] == 123_456


def test_the_new_year_does_not_go_back_in_time_and_rays_processes_tell_engines_apart(tmp_path):
    other = RAY.replace("pid=77", "pid=78").replace("12-31 23:59:55", "01-01 00:00:05")
    rows = load(put(tmp_path, f"{RAY}\n{other}\n"))["engine_log"]
    assert set(rows["engine"]) == {"0 (pid 77, 10.0.0.2)", "0 (pid 78, 10.0.0.2)"}
    assert "prefix_hit_ratio" not in set(rows["key"])
    times = sorted(set(rows["ts_ns"]))
    assert times[1] - times[0] == 10 * SECOND


def test_sglangs_decode_prefill_and_retraction(tmp_path):
    rows = load(put(tmp_path, f"{DECODE}\n{PREFILL}\n{RETRACT}\n"))["engine_log"]
    assert set(rows["system"]) == {"sglang"}
    assert set(rows["engine"]) == {"DP1 TP0"}
    by_line = {line: dict(zip(part["key"], part["value"], strict=True)) for line, part in rows.groupby("line")}
    assert by_line[1] == {
        "running": 66, "kv_ratio": 0.97, "cuda_graph": 0, "generation_tokens_per_s": 2574.67, "waiting": 11,
    }  # fmt: skip
    assert by_line[2] == {"prefill_tokens": 1024, "cached_tokens": 256, "kv_ratio": 0.1, "running": 5, "waiting": 2}
    assert by_line[3] == {"preemptions": 2}


def test_settings_are_numbers_of_known_names_only(tmp_path):
    found = values(
        tmp_path, V1,
        "INFO 09-01 10:00:00 [utils.py:1] non-default args: {'model': '/secret/7', 'max_num_seqs': 64, 'seed': 3, "
        "'gpu_memory_utilization': 0.85}",
        "[2026-09-13 16:06:00] server_args=ServerArgs(model_path='/secret/8', tp_size=4, max_running_requests=128)",
    )  # fmt: skip
    named = {key for _, key in found}
    assert {"max_num_seqs", "gpu_memory_utilization", "tp_size", "max_running_requests"} < named
    assert not {"seed", "model", "model_path"} & named
    assert found["0", "max_num_seqs"] == 64


def test_a_scrape_sums_counters_over_reasons_and_a_repeated_sample_begins_the_next(tmp_path):
    one, two = (SCRAPE.format(running=r, preempted=p, tokens=t) for r, p, t in ((62, 10, 1000), (60, 16, 3000)))
    rows = load(put(tmp_path, f"1756720800\n{one}1756720810.5\n{two}", "metrics.prom"))["engine_log"]
    assert (
        rows.groupby("line")["key"].apply(set).tolist()
        == [{"running", "preemptions", "generation_tokens", "requests", "queue_s_sum"}] * 2
    )
    assert set(rows["value"][rows["key"] == "requests"]) == {7.0}
    assert sorted(set(rows["ts_ns"])) == [1_756_720_800 * SECOND, 1_756_720_810 * SECOND + SECOND // 2]
    untimed = load(put(tmp_path, one + two, "untimed.prom"))["engine_log"]
    assert untimed["ts_ns"].isna().all()
    assert untimed["line"].nunique() == 2


def test_sglangs_scrape(tmp_path):
    text = 'sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 5\nsglang:token_usage{tp_rank="0",dp_rank="1"} 0.5\n'
    assert values(tmp_path, *text.splitlines()) == {("DP1 TP0", "running"): 5, ("DP1 TP0", "kv_ratio"): 0.5}


def test_nvidia_smi_with_and_without_units_leaves_out_what_is_not_available(tmp_path):
    header = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"
    found = values(
        tmp_path,
        header,
        "2026/09/01 10:00:00.123, 0, 93 %, 70000 MiB, 512.5 W",
        "2026/09/01 10:00:00.130, 1, [N/A], 100, 70.1",
    )
    assert found == {
        ("GPU 0", "gpu_busy_ratio"): pytest.approx(0.93), ("GPU 0", "memory_used_bytes"): 70_000 * 2**20,
        ("GPU 0", "power_w"): 512.5, ("GPU 1", "memory_used_bytes"): 100 * 2**20, ("GPU 1", "power_w"): 70.1,
    }  # fmt: skip


def test_dcgm_has_no_times_and_an_entity_seen_again_is_the_next_sample(tmp_path):
    text = "#Entity   SMACT  TENSO  DRAMA\nID\nGPU 0   0.93  0.41  0.5\nGPU 1  N/A 0.1 0.2\nGPU 0 0.9 0.3 0.4\n"
    rows = load(put(tmp_path, text, "dcgm.txt"))["engine_log"]
    assert rows["line"].tolist() == [3, 3, 3, 3, 3, 5, 5, 5]
    assert rows["value"].tolist() == [0.93, 0.41, 0.5, 0.1, 0.2, 0.9, 0.3, 0.4]


DMON = (
    "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk     fb   bar1   ccpm \n"
    "# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz     MB     MB     MB \n"
    "    0    294     81      -     98     57      0      0      0      0  13365   1897  90538      4      0 \n"
    "    1    292     68      -     99     55      0      0      0      0  13365   2017  90536      4      0 \n"
)


def test_dmon_of_nvidia_smi_repeats_its_header_and_begins_a_sample_where_a_gpu_comes_again(tmp_path):
    rows = load(put(tmp_path, DMON + DMON.replace("  98 ", "  42 "), "dmon.txt"))["engine_log"]
    assert set(rows["system"]) == {"nvidia-smi"}
    assert sorted(set(rows["line"])) == [3, 7]
    first = rows[(rows["line"] == 3) & (rows["engine"] == "GPU 0")]
    assert dict(zip(first["key"], first["value"], strict=True)) == {
        "power_w": 294, "temperature_c": 81, "gpu_busy_ratio": pytest.approx(0.98), "sm_clock_mhz": 1897,
        "memory_busy_ratio": pytest.approx(0.57), "memory_used_bytes": 90_538 * 2**20,
    }  # fmt: skip
    busy = rows[(rows["line"] == 7) & (rows["key"] == "gpu_busy_ratio")]
    assert busy["value"].tolist() == pytest.approx([0.42, 0.99])
    assert rows["ts_ns"].isna().all()


def test_dmon_gives_times_with_a_date_only(tmp_path):
    text = (
        "#Date       Time        gpu     sm\n#YYYYMMDD   HH:MM:SS    Idx      %\n 20260901   10:00:05      1     50\n"
    )
    rows = load(put(tmp_path, text, "dated.txt"))["engine_log"]
    assert (rows["engine"].tolist(), rows["value"].tolist()) == (["GPU 1"], [0.5])
    assert rows["ts_ns"].tolist() == [1_788_256_805 * SECOND]  # date -u -d '2026-09-01 10:00:05' +%s
    text = "#Time        gpu     sm\n#HH:MM:SS    Idx      %\n 10:00:05      1     50\n"
    assert load(put(tmp_path, text, "timed.txt"))["engine_log"]["ts_ns"].isna().all()


PMON = (
    "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command \n"
    "# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name \n"
    "    0       3485     C     93     41      -      -      -      -  70000      0    python         \n"
    "    0       3490   C+G      -      -      -      -      -      -     16      0    chrome --type=g\n"
    "    1          -     -      -      -      -      -      -      -      -      -    -              \n"
    "    2          -     -      -      -      -      -      -      -      -      -                   \n"
)


def test_pmon_has_a_row_per_process_and_none_for_a_gpu_without_one(tmp_path):
    rows = load(put(tmp_path, PMON + PMON.replace(" 93 ", " 42 "), "pmon.txt"))["engine_log"]
    assert set(rows["system"]) == {"nvidia-smi pmon"}
    first = rows[rows["line"] == 3]
    assert dict(zip(zip(first["engine"], first["key"], strict=True), first["value"], strict=True)) == {
        ("GPU 0, python 3485", "gpu_busy_ratio"): pytest.approx(0.93),
        ("GPU 0, python 3485", "memory_busy_ratio"): pytest.approx(0.41),
        ("GPU 0, python 3485", "memory_used_bytes"): 70_000 * 2**20,
        ("GPU 0, chrome --type=g 3490", "memory_used_bytes"): 16 * 2**20,
    }  # fmt: skip
    again = rows[rows["line"] == 9]
    assert again["value"].tolist()[0] == pytest.approx(0.42)
    assert sorted(set(rows["line"])) == [3, 9]
    assert rows["ts_ns"].isna().all()


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("# gpu        pid  type    sm   mem   enc   dec   command", "    0      25729     C    94    57     0     0   python"),
        ("# gpu        pid  type    fb    sm   mem   enc   dec   command", "    0  25729     C  7669    94    57     -     -   python"),
        ("#Time        gpu         pid   type     sm    mem    command", " 10:00:05      0      25729      C     94     57    python"),
    ],
    ids=["older", "memory first", "time only"],
)  # fmt: skip
def test_other_columns_and_orders_of_pmon(tmp_path, header, row):
    rows = load(put(tmp_path, f"{header}\n{row}\n", "pmon.txt"))["engine_log"]
    busy = rows[rows["key"] == "gpu_busy_ratio"]
    assert (busy["engine"].tolist(), busy["value"].tolist()) == (["GPU 0, python 25729"], [pytest.approx(0.94)])
    assert rows["ts_ns"].isna().all()


def test_pmon_gives_times_with_a_date(tmp_path):
    text = (
        "#Date       Time        gpu         pid   type     sm    mem    command\n"
        "#YYYYMMDD   HH:MM:SS    Idx           #    C/G      %      %    name\n"
        " 20260901   10:00:05      1        3485      C     50      7    python\n"
    )
    rows = load(put(tmp_path, text, "dated.txt"))["engine_log"]
    assert rows["engine"].tolist() == ["GPU 1, python 3485"] * 2
    assert set(rows["ts_ns"]) == {1_788_256_805 * SECOND}  # date -u -d '2026-09-01 10:00:05' +%s


def test_dcgm_gives_the_levels_of_the_device_too(tmp_path):
    text = "#Entity   GPUTL  FBUSD  SMACT  POWER  TMPTR\nID\nGPU 0   93  500  0.41  512.5  N/A\n"
    assert values(tmp_path, *text.splitlines()) == {
        ("GPU 0", "gpu_busy_ratio"): pytest.approx(0.93), ("GPU 0", "memory_used_bytes"): 500 * 2**20,
        ("GPU 0", "sm_active_ratio"): 0.41, ("GPU 0", "power_w"): 512.5,
    }  # fmt: skip


def test_samples_without_an_index_are_of_no_certain_gpu(tmp_path):
    lines = "timestamp, utilization.gpu [%]", "2026/09/01 10:00:00.123, 93 %"
    assert values(tmp_path, *lines) == {("GPU (no index)", "gpu_busy_ratio"): pytest.approx(0.93)}
    lines = "timestamp, pci.bus_id, utilization.gpu [%]", "2026/09/01 10:00:00.123, 00000000:1B:00.0, 93 %"
    assert values(tmp_path, *lines) == {("GPU 00000000:1B:00.0", "gpu_busy_ratio"): pytest.approx(0.93)}


def test_samples_without_a_header_are_refused_with_a_remedy(tmp_path):
    path = put(tmp_path, "2026/09/01 10:00:00.123, 0, 93 %, 70000 MiB\n", "smi.csv")
    with pytest.raises(TraceFormatError, match="without their header: record them without noheader"):
        load(path)


@pytest.mark.parametrize("text", [
    b"# gpu         pid   type     sm    mem\n", b"# gpu         pid   type    command\n",
    b"# HELP gpu sm\n", b"# gpu\n", b"", b"\0", b"{}", b"[]", b"hello\n", b"INFO 09-01 10:00:00 something else\n", b"timestamp,value\n1,2\n",
    b'{"traceEvents": [{"name": "Avg prompt throughput: 1.0 tokens/s"}]}', b'[{"name": "Decode batch"}]',
    b"# TYPE python_gc_objects counter\npython_gc_objects 1\n", b"step:3 - timing_s/gen:1.2 - a:1\n",
])  # fmt: skip
def test_other_files_are_left_alone(text):
    assert not engine_log.sniff(text)


def test_a_drivers_log_stays_a_drivers_log_though_engines_print_into_it():
    head = f"(TaskRunner pid=1) step:3 - timing_s/gen:1.2 - timing_s/step:2.0\n{RAY}\n".encode()
    assert next(reader.name for reader in READERS if reader.claims(head)) == "driver_log"


def test_a_drivers_log_has_both_its_steps_and_its_engines(tmp_path):
    step = "(TaskRunner pid=1) step:3 - timing_s/gen:1.2 - timing_s/step:2.0"
    start = "INFO 09-01 10:00:00 [x.py:1] vLLM API server version 0.11\n" + "loading\n" * 10_000
    for text in (f"{step}\n{RAY}\n", f"{start}{RAY}\n{step}\n"):
        trace = load(put(tmp_path, text, "train.log"))
        assert trace.source.reader == "driver_log"
        assert set(trace["log_values"]["step"]) == {3}
        assert dict(zip(trace["engine_log"]["key"], trace["engine_log"]["value"], strict=True))["running"] == 4


def test_lines_without_statistics_are_never_kept(tmp_path):
    secret = 'INFO 09-01 10:00:00 [x.py:1] Received request cmpl-1: prompt: "my secret", params: max_num_seqs=3'
    rows = load(put(tmp_path, f"{V1}\n{secret}\n"))["engine_log"]
    assert set(rows["line"]) == {1}
    assert "secret" not in rows.to_json()


def test_a_line_over_the_limit_is_passed_over_and_counted(tmp_path):
    trace = load(put(tmp_path, f"{V1}\n{'x' * (MAX_LINE_BYTES + 1)}\n{V1}\n"))
    assert [note.code for note in trace.notes] == ["log-long-line"]
    assert set(trace["engine_log"]["line"]) == {1, 3}


def read(path):
    return engine_log.read(Source(path, path.name, "engine_log", "log"), Want(frozenset({"engine_log"})))


LINES = [V1, V0, RAY, DECODE, PREFILL, RETRACT, *SCRAPE.format(running=1, preempted=2, tokens=3).splitlines(),
         "timestamp, index, utilization.gpu [%]", "2026/09/01 10:00:00.123, 0, 93 %", "#Entity SMACT", "GPU 0 0.5",
         *DMON.splitlines(), "#Date Time gpu sm", "20260901 10:00:05 0 50"]  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_damaged_logs_give_rows_or_the_documented_error(tmp_path_factory, seed):
    rng = random.Random(seed)
    data = bytearray("\n".join(rng.choices(LINES, k=12)).encode())
    for _ in range(rng.randrange(12)):
        at = rng.randrange(len(data))
        piece = rng.choice([b"", b"\0", b"\xff", b"9" * 400, b"\n", b"NaN", b"-", b"{", b'"', b"e999", b"[", b"13-45"])
        data[at : at + rng.randrange(4)] = piece
    path = put(tmp_path_factory.mktemp("fuzz"), bytes(data))
    try:
        (trace,) = read(path)
    except TraceFormatError:
        return
    if not trace.has("engine_log"):
        assert trace.notes, "no row is explained"
        return
    rows = trace["engine_log"]
    assert rows["value"].abs().lt(float("inf")).all()
    assert rows["engine"].astype(str).str.len().le(MAX_NAME).all()


VERL_MEMORY = (
    "\x1b[36m(WorkerDict pid=41, ip=10.0.0.2)\x1b[0m DEBUG:2026-09-01 10:00:02,250:After resume weights, memory allocated (GB): 1.50, "
    "memory reserved (GB): 2.25, device memory used/total (GB): 3.75/79.10"
)
SLIME_MEMORY = (
    "[2026-09-01 10:00:03] memory_utils.py:40 - [Rank 3] Memory-Usage after offload model (cleared before print): {'gpu': '1', "
    "'total_GB': 80.0, 'free_GB': 70.0, 'used_GB': 10.0, 'allocated_GB': 6.0, 'reserved_GB': 8.0, 'host_used_GB': 120.5}"
)


def memory_lines(tmp_path, *lines):
    """The rows of `device_memory_lines` of these lines."""
    return load(put(tmp_path, "\n".join(lines) + "\n"))["device_memory_lines"].to_dict("records")


def test_verls_memory_line_alone_is_a_log(tmp_path):
    (row,) = memory_lines(tmp_path, VERL_MEMORY)
    assert (row["logged_pid"], row["point"], row["mark"]) == (41, "After resume weights", "wake")
    sizes = [row[f"{name}_bytes"] / 2**30 for name in ("allocated", "reserved", "used", "total")]
    assert sizes == pytest.approx([1.5, 2.25, 3.75, 79.1])
    assert row["logged_ns"] % (86_400 * SECOND) == (10 * 3600 + 2) * SECOND + SECOND // 4


def test_slimes_memory_line_has_the_host_too(tmp_path):
    (row,) = memory_lines(tmp_path, SLIME_MEMORY)
    assert (row["logged_rank"], row["device"], row["mark"]) == (3, 1, "sleep")
    assert row["point"] == "after offload model (cleared before print)"
    sizes = [row[f"{name}_bytes"] / 2**30 for name in ("allocated", "reserved", "used", "total", "host_used")]
    assert sizes == [6.0, 8.0, 10.0, 80.0, 120.5]


def test_both_lines_of_one_sleep_count_once_and_the_next_line_has_their_time(tmp_path):
    slept, woke, line = memory_lines(
        tmp_path,
        "INFO 09-01 10:00:00 [cumem.py:1] CuMemAllocator: sleep freed 64.00 GiB memory in total, of which 14.00 GiB is backed up",
        "INFO 09-01 10:00:01 [x.py:1] Sleep mode freed 64.00 GiB memory, 3.50 GiB memory is still in use.",
        "INFO 09-01 10:00:09 [x.py:1] It took 0.5 seconds to wake up tags {'weights'}.",
        "Before update_actor, memory allocated (GB): 1, memory reserved (GB): 2, device memory used/total (GB): 3/80",
    )
    assert (slept["mark"], slept["freed_bytes"]) == ("sleep", 64 * 2**30)
    assert woke["mark"] == "wake"
    assert (line["point"], line["mark"], line["logged_ns"]) == ("Before update_actor", "none", woke["logged_ns"])
    assert line["logged_ns"] - slept["logged_ns"] == 9 * SECOND


@pytest.mark.parametrize("used", ["81.00/80.00", "9999999999999/80", "x/80", "1.00/"])
def test_impossible_sizes_are_left_out(tmp_path, used):
    """The first sleep makes it a log; a line that is not whole adds nothing, an impossible size no size."""
    rows = memory_lines(
        tmp_path,
        "INFO 09-01 10:00:01 [x.py:1] Sleep mode freed 64.00 GiB memory, 3.50 GiB memory is still in use.",
        f"x, memory allocated (GB): 1, memory reserved (GB): 2, device memory used/total (GB): {used}",
    )
    assert [row["used_bytes"] for row in rows] == [None] * len(rows)
