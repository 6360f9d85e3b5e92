"""Logs of RL drivers: what is one, what of it is read, and that nothing breaks the reader."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.pipeline.run import discover_sources
from tracekit.readers import driver_log
from tracekit.readers.driver_log import sniff
from tracekit.readers.lines import MAX_LINE_BYTES

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

VERL_JSON = '{"step": 3, "data": {"timing_s/gen": 1.25, "timing_s/step": 2.5, "perf/throughput": 7}}\n'
VERL_LINE = (
    "\x1b[36m(TaskRunner pid=4711)\x1b[0m step:3 - actor/entropy:np.float64(-0.5) - timing_s/gen:1.25 - "
    "val-core/openai/gsm8k:v1/mean@1:nan - timing_s/step:2.5e+00\n"
)
NEMO = """
========================= Step 3/10 =========================
▶ Preparing batch...
  ⏱️  Validation Timing:
    • Total validation time: 4.50s
⏱️  Timing:
  • Total step time: 12.34s
  • policy_training: 8.45s (68.5%)
  • prepare_for_generation/transfer_and_update_weights: 0.50s (4.1%)
  • Mean Generation Length: 9.0000
"""


def put(tmp_path, text, name="driver.log"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(trace):
    frame = trace["log_values"]
    return {
        (int(step), str(name)): float(value)
        for step, name, value in zip(frame["step"], frame["name"], frame["value"], strict=True)
    }


def read(path):
    """The one trace, read by this reader whatever the file begins like."""
    (trace,) = driver_log.read(Source(path, path.name, "driver_log", "log"), Want())
    return trace


def notes(trace):
    return {note.code: note.count for note in trace.notes}


# What is read


def test_verls_file_logger(tmp_path):
    trace = tracekit.load(put(tmp_path, VERL_JSON))
    assert values(trace) == {
        (3, "timing_s/gen"): 1.25, (3, "timing_s/step"): 2.5, (3, "perf/throughput"): 7.0,
    }  # fmt: skip
    assert trace["log_values"]["line"].tolist() == [1, 1, 1]
    assert trace["log_values"]["ts_ns"].isna().all()
    assert (trace.source.tool, trace.source.rank, trace.notes) == ("log", None, ())


def test_verls_console_with_rays_prefix_colours_and_numpy_numbers(tmp_path):
    trace = tracekit.load(put(tmp_path, "noise\n" + VERL_LINE))
    assert values(trace) == {
        (3, "actor/entropy"): -0.5, (3, "timing_s/gen"): 1.25, (3, "timing_s/step"): 2.5,
    }  # fmt: skip
    assert trace["log_values"]["line"].tolist() == [2, 2, 2]


def test_nemo_rls_console(tmp_path):
    assert values(tracekit.load(put(tmp_path, NEMO))) == {
        (3, "timing/validation/total_validation_time"): 4.5,
        (3, "timing/train/total_step_time"): 12.34,
        (3, "timing/train/policy_training"): 8.45,
        (3, "timing/train/prepare_for_generation/transfer_and_update_weights"): 0.5,
        (3, "train/mean_gen_tokens_per_sample"): 9.0,
    }


def test_flat_lines_with_the_step_among_the_values_and_a_time(tmp_path):
    line = json.dumps({"_step": 4, "_timestamp": 1.8e9, "timing_s/gen": 1, "flag": True, "text": "x", "list": [1]})  # fmt: skip
    trace = tracekit.load(put(tmp_path, line))
    assert values(trace) == {(4, "timing_s/gen"): 1.0}
    assert trace["log_values"]["ts_ns"].tolist() == [1_800_000_000_000_000_000]


def test_gzip_is_inflated(tmp_path):
    assert values(tracekit.load(put(tmp_path, gzip.compress(VERL_JSON.encode()), "m.jsonl.gz")))


def numbered(step, text=VERL_JSON):
    return text.replace('"step": 3', f'"step": {step}')


def parts(trace):
    frame = trace["log_values"].drop_duplicates(["part", "step"])
    return [(int(part), int(step)) for part, step in zip(frame["part"], frame["step"], strict=True)]


def test_a_restart_begins_a_new_part_and_keeps_the_one_before(tmp_path):
    again = VERL_JSON.replace("1.25", "9.5")
    trace = read(put(tmp_path, VERL_JSON + numbered(4) + again))
    assert parts(trace) == [(0, 3), (0, 4), (1, 3)]
    gen = trace["log_values"].query("name == 'timing_s/gen'")
    assert gen["value"].tolist() == [1.25, 1.25, 9.5]
    assert notes(trace) == {"log-restarted": 1, "log-begins-late": 2}


def test_a_restart_at_a_step_never_logged_is_a_restart(tmp_path):
    trace = read(put(tmp_path, numbered(10) + numbered(11) + numbered(9) + numbered(10)))
    assert parts(trace) == [(0, 10), (0, 11), (1, 9), (1, 10)]


def test_records_of_one_step_are_joined_and_the_last_value_counts(tmp_path):
    rollout = '{"step": 3, "data": {"fully_async/rollouter/idle_ratio": 0.5, "perf/throughput": 8}}\n'
    trace = read(put(tmp_path, VERL_JSON + rollout + numbered(4)))
    assert parts(trace) == [(0, 3), (0, 4)]
    assert values(trace)[3, "perf/throughput"] == 8
    assert values(trace)[3, "timing_s/gen"] == 1.25


def test_a_late_record_of_other_values_is_no_restart(tmp_path):
    late = '{"step": 3, "data": {"val-core/mean": 0.5}}\n'
    trace = read(put(tmp_path, VERL_JSON + numbered(4) + late + numbered(5)))
    assert parts(trace) == [(0, 3), (0, 4), (0, 5)]


def test_a_record_repeated_in_its_step_is_counted(tmp_path):
    trace = read(put(tmp_path, VERL_JSON + VERL_JSON.replace("1.25", "9.5") + numbered(4)))
    assert values(trace)[3, "timing_s/gen"] == 9.5
    assert notes(trace) == {"log-repeated": 1, "log-begins-late": 2}


def test_another_driver_process_begins_a_new_part(tmp_path):
    trace = read(put(tmp_path, VERL_LINE + VERL_LINE.replace("4711", "4712").replace("step:3", "step:4")))
    assert parts(trace) == [(0, 3), (1, 4)]


# What is a log


@pytest.mark.parametrize("text", [VERL_JSON, VERL_LINE, NEMO, "starting\n" * 50 + VERL_LINE])
def test_a_drivers_log_is_told_by_what_it_says(text):
    assert sniff(text.encode())


def test_a_console_that_has_not_reached_a_step_is_told_by_the_drivers_prefix(tmp_path):
    text = "(TaskRunner pid=4711) loading\n" * 10
    assert sniff(text.encode())
    trace = tracekit.load(put(tmp_path, text))
    assert not len(trace["log_values"])
    assert notes(trace) == {"log-empty": 1}


@pytest.mark.parametrize(
    "text",
    ["", "\0" + VERL_JSON, "timing_s/gen is the time of generation\n", '{"step": 1, "data": {"loss": 2}}\n',
     '{"timing_s/gen": 1.5}\n', "step:3 - loss:0.5 - lr:1e-5\n", '{"step": 1, "text": "timing_s/gen"\n',
     "========== Step 3/10 ==========\nTotal: 5\n", '{"schemaVersion": 1, "traceEvents": []}',
     "actor_rollout_ref.rollout.n=4\ntrainer.total_epochs=1\n", "  • loading: 1.50s\n"],
)  # fmt: skip
def test_other_files_are_none(text):
    assert not sniff(text.encode())


@needs_data
def test_of_all_real_files_the_metrics_of_verl_and_the_timeline_of_ray_are_logs():
    found = {s.path.name for s in discover_sources(REAL).sources if s.tool == "log"}
    assert found == {"metrics.jsonl", "ray_timeline.json"}


@needs_data
def test_real_logs_hold_every_number_of_every_step():
    for path in sorted(Path(REAL).glob("chrome/verl_cpu/*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        expected = {(d["step"], name): value for d in lines for name, value in d["data"].items()}
        assert values(tracekit.load(path)) == expected


# Where a log is found


def profile(tmp_path, *folders):
    folder = tmp_path.joinpath(*folders)
    folder.mkdir(parents=True)
    name = "/".join(folders)  # no two of them hold the same: that would count once
    (folder / "rank0.json").write_text(f'{{"traceName": "{name}", "traceEvents": []}}')
    return folder


def logs_of(path, **options):
    found = discover_sources(path, **options)
    return [(s.name, s.run) for s in found.sources if s.tool == "log"], found


def test_a_log_beside_the_profile_or_its_outputs_belongs_to_it(tmp_path):
    folder = profile(tmp_path, "run7", "outputs", "profile")
    put(tmp_path / "run7", VERL_JSON, "metrics.jsonl")
    put(tmp_path / "run7", VERL_LINE, "console.log")
    put(tmp_path / "run7", "unrelated\n", "notes.txt")
    put(tmp_path, VERL_JSON, "other.jsonl")
    assert logs_of(folder)[0] == [("../../metrics.jsonl", "profile")]
    assert logs_of(tmp_path / "run7")[0] == [("console.log", "run7"), ("metrics.jsonl", "run7")]
    assert logs_of(tmp_path / "run7" / "outputs" / "profile" / "rank0.json")[0] == []


def test_nothing_is_sought_above_a_directory_of_another_name(tmp_path):
    folder = profile(tmp_path, "seven")
    put(tmp_path, VERL_JSON, "metrics.jsonl")
    assert logs_of(folder)[0] == []


def test_of_several_logs_above_none_is_guessed(tmp_path):
    folder = profile(tmp_path, "profile")
    put(tmp_path, VERL_JSON, "a.jsonl")
    put(tmp_path, VERL_JSON, "b.jsonl")
    found, discovery = logs_of(folder)
    assert found == []
    assert [n.code for n in discovery.notes] == ["log"]
    from tracekit.pipeline.run import Options

    assert logs_of(folder, options=Options(exclude=("b*",)))[0] == [("../a.jsonl", "profile")]


def test_each_run_has_the_log_that_lies_in_it(tmp_path):
    for run in ("base", "opt"):
        profile(tmp_path, run, "outputs", "profile")
        put(tmp_path / run, VERL_JSON, "metrics.jsonl")
    found, discovery = logs_of(tmp_path)
    assert found == [("base/metrics.jsonl", "base"), ("opt/metrics.jsonl", "opt")]
    assert {s.run for s in discovery.sources} == {"base", "opt"}


def test_a_log_says_nothing_of_rank_or_role_by_its_name(tmp_path):
    put(tmp_path, VERL_JSON, "actor_step5_rank3.jsonl")
    (source,) = discover_sources(tmp_path).sources
    assert (source.role, source.step, source.rank) == (None, None, None)


# Hostile and damaged logs


def test_values_that_are_no_finite_numbers_are_left_out_and_counted(tmp_path):
    data = '{"timing_s/a": NaN, "timing_s/b": Infinity, "timing_s/c": 1e999, "timing_s/d": ' + "9" * 400 + ', "timing_s/e": 5}'  # fmt: skip
    trace = tracekit.load(put(tmp_path, '{"step": 1, "data": ' + data + "}"))
    assert values(trace) == {(1, "timing_s/e"): 5.0}
    assert notes(trace) == {"log-not-finite": 4}


def test_a_line_without_end_costs_only_itself(tmp_path):
    text = VERL_JSON + '{"step": 4, "data": "' + "x" * (3 * MAX_LINE_BYTES) + '"}\n' + VERL_JSON.replace("3", "5", 1)  # fmt: skip
    trace = tracekit.load(put(tmp_path, text))
    assert sorted({step for step, _ in values(trace)}) == [3, 5]
    assert notes(trace) == {"log-long-line": 1}


@pytest.mark.parametrize("step", ["-1", "1.5", "true", '"3"', "null", str(2**70), "[3]"])
def test_a_step_that_is_none_is_no_step(tmp_path, step):
    text = VERL_JSON + '{"step": ' + step + ', "data": {"timing_s/gen": 1}}\n'
    assert {n for n, _ in values(tracekit.load(put(tmp_path, text)))} == {3}


def test_names_of_any_kind_are_text(tmp_path):
    data = json.dumps({"timing_s/\ud800": 1, "": 2, "x" * 5000: 3, "a\x00\x1b[2J": 4})
    trace = tracekit.load(put(tmp_path, '{"step": 1, "data": ' + data + "}"))
    names = [name for _, name in values(trace)]
    assert "timing_s/\ufffd" in names
    assert max(map(len, names)) == 300


def test_a_deeply_nested_line_is_passed_over(tmp_path):
    deep = '{"step": 1, "timing_s/gen": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    trace = tracekit.load(put(tmp_path, VERL_JSON + deep + VERL_JSON))
    assert {n for n, _ in values(trace)} == {3}


def test_a_log_cut_anywhere_keeps_every_whole_line(tmp_path):
    lines = [VERL_JSON.replace('"step": 3', f'"step": {n}') for n in range(20)]
    body = "".join(lines).encode()
    rng = random.Random(1)
    for at in rng.sample(range(len(lines[0]), len(body)), 40):
        trace = read(put(tmp_path, body[:at]))
        whole = body[:at].count(b"\n") + (body[at : at + 1] == b"\n")
        assert {n for n, _ in values(trace)} == set(range(whole))
    packed = gzip.compress(body)
    for at in rng.sample(range(10, len(packed)), 20):
        trace = read(put(tmp_path, packed[:at]))
        assert any(note.severity == "data_loss" for note in trace.notes)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_give_traces_or_the_documented_error(tmp_path_factory, data):
    body = bytearray((VERL_JSON + VERL_LINE + NEMO).encode())
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        new = data.draw(st.binary(max_size=6) | st.sampled_from((b'"', b"{", b"\n", b"1e999", b"\xed\xa0\x80", b":", b" - ")))  # fmt: skip
        body[at : at + data.draw(st.integers(0, 30))] = new
    path = put(tmp_path_factory.mktemp("fuzz"), bytes(body))
    sniff(bytes(body))
    try:
        trace = read(path)
    except TraceFormatError:
        return
    frame = trace["log_values"]
    assert frame["value"].notna().all()
    assert (frame["step"] >= 0).all()
    assert not frame.duplicated(["part", "step", "name"]).any()


def test_a_file_that_is_gone_is_the_documented_error(tmp_path):
    with pytest.raises(TraceFormatError):
        read(tmp_path / "gone.jsonl")
    with pytest.raises(TraceFormatError):
        read(tmp_path)


@pytest.mark.parametrize(
    ("head", "is_trace"),
    [
        (b'{\n  "schemaVersion": 1,\n  "traceEvents": [', True),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"', True),
        (b'{"schemaVersion": 1, "step": 3, "timing_s/step": 1.0}\n{"schemaVersion": 1', False),
        (b'{"step": 3, "timing_s/step": 1.0}\n', False),
        (b"{'actor': {\n 'a': 1}}\nstep:1 - timing_s/step:2.0\n", False),
    ],
)
def test_what_begins_as_a_trace_is_not_searched_for_lines_of_a_log(head, is_trace):
    assert driver_log.is_json_trace_head(head) == is_trace
