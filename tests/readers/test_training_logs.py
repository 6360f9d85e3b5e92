"""Training logs of every framework, in the forms of their versions, and the stores of experiment trackers."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_logs import (
    areal_table,
    event,
    event_file,
    history,
    message,
    mlflow_store,
    offline_run,
    record,
    scalar,
    verl_line,
)

import tracekit
from tracekit.job.driver_log import get_timer_seconds, parse_timed_stage
from tracekit.model.errors import TraceFormatError
from tracekit.model.recording.rl_frameworks import FRAMEWORKS, find_framework
from tracekit.model.trace import Source, Want
from tracekit.readers import driver_log, find_reader
from tracekit.readers.loading import sniff

CASES = Path(__file__).parents[1] / "data" / "cases"
STEP = {"timing_s/gen": 30.25, "timing_s/update_actor": 20.5, "timing_s/step": 55.0, "perf/total_num_tokens": 1000}
PREFIX = "\x1b[36m(TaskRunner pid=4711, ip=10.0.0.1)\x1b[0m "


def put(tmp_path, content, name="train.log"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, reader):
    (trace,) = find_reader(reader).read(Source(path, path.name, reader, "log"), Want(), None)
    return trace


def load(path, reader="driver_log"):
    """The values by step of a file, which must be recognized as one of this reader."""
    assert sniff(path).reader == reader
    return by_step(read(path, reader))


def by_step(trace):
    steps = {}
    frame = trace["log_values"]
    for step, name, value in zip(frame["step"], frame["name"], frame["value"], strict=True):
        steps.setdefault(int(step), {})[str(name)] = float(value)
    return steps


def notes(trace):
    return {note.code: note.count for note in trace.notes}


# verl


@pytest.mark.parametrize("prefix", ["", "(TaskRunner pid=4711) ", PREFIX, "(main_task pid=1) "])
@pytest.mark.parametrize(
    "number",
    [str, "np.float64({})".format, "'np.float64({})'".format, "tensor({}, device='cuda:0')".format, "{:.3f}".format],
)
def test_verls_console_with_every_prefix_and_form_of_numbers(tmp_path, prefix, number):
    text = "".join(verl_line(step, STEP, prefix, number) for step in (1, 2))
    assert load(put(tmp_path, text)) == {1: STEP, 2: STEP}


@pytest.mark.parametrize("width", [40, 57, 80, 100])
def test_lines_of_verl_that_a_terminal_wrapped_are_whole_again(tmp_path, width):
    lines = [verl_line(step, STEP | {"response_length/clip_ratio": 0.125}).rstrip("\n") for step in (1, 2, 3)]
    wrapped = "".join(line[at : at + width] + "\n" for line in lines for at in range(0, len(line), width))
    assert load(put(tmp_path, wrapped + "\nTraining finished - bye\n")) == dict.fromkeys(
        (1, 2, 3), STEP | {"response_length/clip_ratio": 0.125}
    )


def test_other_output_after_a_step_does_not_continue_it(tmp_path):
    text = verl_line(1, STEP) + "INFO 09-01 10:00:00 loading - done: 5\n" + verl_line(2, STEP)
    assert load(put(tmp_path, text)) == {1: STEP, 2: STEP}


def test_the_progress_bar_gives_the_elapsed_time_of_a_step(tmp_path):
    bar = "\rTraining Progress:  50%|█████     | {}/4 [{}<1:00:00, 60.00s/it]"
    text = verl_line(1, STEP, PREFIX) + PREFIX + bar.format(1, "01:01") + "\n"
    text += verl_line(2, STEP, PREFIX) + PREFIX + bar.format(2, "1 day, 2:03:04") + "\n"
    steps = load(put(tmp_path, text))
    assert [steps[step]["progress/elapsed_s"] for step in (1, 2)] == [61.0, 93_784.0]


def test_a_progress_bar_of_an_earlier_step_is_no_restart(tmp_path):
    bar = "Training Progress:  25%|██ | 1/4 [01:01<1:00:00, 60.00s/it]\n"
    trace = read(put(tmp_path, verl_line(1, STEP) + verl_line(2, STEP) + bar + verl_line(3, STEP)), "driver_log")
    assert trace["log_values"]["part"].unique().tolist() == [0]


def test_the_file_logger_with_null_and_a_truncated_end(tmp_path):
    lines = [json.dumps({"step": step, "data": STEP | {"actor/kl": None}}) for step in (41, 42)]
    trace = read(put(tmp_path, "\n".join(lines) + '\n{"step": 43, "data": {"timing_s/gen": 1', "m.jsonl"), "driver_log")
    assert by_step(trace) == {41: STEP, 42: STEP}
    assert notes(trace) == {"log-line": 1, "log-begins-late": 40}


@pytest.mark.parametrize(
    ("kept", "values"), [("timing_s/gen:30.2", {}), ("timing_s/gen:30.25 - timing_s/upd", {"timing_s/gen": 30.25})]
)
def test_the_last_number_of_a_truncated_line_is_not_trusted(tmp_path, kept, values):
    text = "".join(verl_line(step, STEP, PREFIX) for step in (1, 2)) + f"{PREFIX}step:3 - {kept}"
    trace = read(put(tmp_path, text), "driver_log")
    assert by_step(trace) == {1: STEP, 2: STEP} | ({3: values} if values else {})
    assert notes(trace) == {"log-truncated": 1}


def test_the_last_line_of_a_whole_log_is_trusted(tmp_path):
    """Also without a line feed, after a validation with more names, and where it has names of its own."""
    for last in (STEP, STEP | {"val-core/acc": 0.5}):
        text = "".join(verl_line(step, STEP) for step in (1, 2)) + verl_line(3, STEP | {"val-core/acc": 0.5})
        trace = read(put(tmp_path, (text + verl_line(4, last)).rstrip("\n")), "driver_log")
        assert by_step(trace)[4] == last
        assert notes(trace) == {}


def test_verl_omni(tmp_path):
    values = {"timing_s/gen": 5.0, "timing_per_image_ms/gen": 2.5, "perf/total_num_images": 64, "perf/throughput": 3.5}
    steps = load(put(tmp_path, verl_line(1, values) + verl_line(2, values)))
    assert steps == {1: values, 2: values}
    assert find_framework(steps[1]).title == "VeRL-Omni"


def test_a_log_whose_first_step_is_far_below_its_beginning(tmp_path):
    assert load(put(tmp_path, "loading weights\n" * 20_000 + verl_line(1, STEP))) == {1: STEP}
    path = put(tmp_path, "loading weights\n" * 20_000, "other.log")
    assert sniff(path).reader is None


# OpenRLHF, slime, TRL, ROLL, AReaL, NeMo-RL

RLHF = {"timing/generation": 10.5, "timing/ppo_train": 5.25, "timing/broadcast": 0.5, "timing/step_total": 17.0}


@pytest.mark.parametrize(
    "form",
    [
        "2026-09-01 10:00:00 INFO  ✨ Global step {}: {}",
        "Global step {}: {}",
        "(PPOTrainer pid=77) ✨ Global step {}: {}",
    ],
)
def test_openrlhf(tmp_path, form):
    printed = repr(RLHF | {"text": "it's", "samples": ["a", "b"], "flag": True, "kl": None})
    steps = load(put(tmp_path, "".join(form.format(step, printed) + "\n" for step in (1, 2))))
    assert steps == {1: RLHF, 2: RLHF}
    assert find_framework(steps[1]).title == "OpenRLHF"


def test_numbers_of_numpy_and_torch_within_a_dictionary(tmp_path):
    line = "Global step 3: {'timing/step_total': np.float64(17.0), 'a': tensor(0.5, device='cuda:0'), 'b': nan}\n"
    assert load(put(tmp_path, line)) == {3: {"timing/step_total": 17.0, "a": 0.5}}


ROLLOUT = {"perf/rollout_time": 40.0, "perf/longest_sample_tokens_per_sec": 55.5, "rollout/response_len/mean": 900.0}


@pytest.mark.parametrize("total", ["perf/step_time", "perf/total_train_time"])
@pytest.mark.parametrize("prefix", ["", "[2026-09-01 10:00:00] train_metric_utils.py:90 - ", "(RolloutManager pid=9) "])
def test_slime(tmp_path, prefix, total):
    train = {"perf/train_wait_time": 42.0, "perf/train_time": 18.0, "perf/actor_train_time": 12.0, total: 60.0}
    # Asynchronous training: the rollout of the next step ends before the training of this one.
    lines = [f"perf 0: {ROLLOUT}", f"perf 1: {ROLLOUT}", f"perf 0: {train}", f"perf 2: {ROLLOUT}", f"perf 1: {train}"]
    path = put(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))
    assert load(path) == {0: ROLLOUT | train, 1: ROLLOUT | train, 2: ROLLOUT}
    assert read(path, "driver_log")["log_values"]["part"].unique().tolist() == [0]
    assert find_framework(train).title == "slime"


TRL = {
    "loss": 0.5,
    "num_tokens": 1000.0,
    "completions/mean_length": 200.0,
    "completions/max_length": 512.0,
    "step_time": 8.5,
}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("bar", [True, False])
def test_trl(tmp_path, as_text, bar):
    printed = {name: f"{value:g}" for name, value in TRL.items()} if as_text else TRL
    lines = []
    for step in (10, 20):
        bar_text = f"\r  2%|▏         | {step}/500 [01:40<1:20:00,  9.80s/it]\r" if bar else ""
        lines.append(bar_text + "\n" * bar + f"{printed}\n")
    path = put(tmp_path, "".join(lines) + "{'train_runtime': 100.5, 'train_loss': 0.1}\n")
    assert load(path) == ({10: TRL, 20: TRL} if bar else {1: TRL, 2: TRL})
    assert ("log-numbered" in notes(read(path, "driver_log"))) is not bar
    assert find_framework(TRL).title == "TRL"


def test_trl_under_srun_with_labels(tmp_path):
    lines = (f"0:   1%|          | {step}/2264 [01:22<2:55:16,  4.68s/it]\n0: {TRL}\n" for step in (17, 18))
    assert load(put(tmp_path, "".join(lines))) == {17: TRL, 18: TRL}


def test_a_dictionary_of_trl_that_follows_the_progress_bar_on_its_line(tmp_path):
    """The bar goes to the error stream without a line break, so both are on one line of a joined log."""
    lines = (f" {step}%|█▎        | {step}/400 [20:01<2:01:46, 20.94s/it]{TRL}\n" for step in (51, 52))
    path = put(tmp_path, "".join(lines))
    assert load(path) == {51: TRL, 52: TRL}
    assert "log-numbered" not in notes(read(path, "driver_log"))


@pytest.mark.parametrize(
    "prefix", ["", "[2026-09-01 10:00:00,123] [INFO] [pipeline.py (99)] ", "(RLVRPipeline pid=5) "]
)
def test_roll(tmp_path, prefix):
    values = {"time/step_generate": 30.5, "time/step_train": 20.25, "time/step_total": 60.0, "system/tps": 1000.5}
    prompts = prefix + json.dumps([{"prompt": "a secret", "response": "b", "episode_score": 1.0}]) + "\n"
    text = "".join(prompts + prefix + json.dumps({**values, "system/step": step}) + "\n" for step in (0, 1))
    assert load(put(tmp_path, text)) == {0: values, 1: values}
    assert find_framework(values).title == "ROLL"


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_areal(tmp_path, columns):
    values = {
        "timeperf/rollout": 12.5,
        "timeperf/train_step": 20.0,
        "timeperf/update_weights": 1.25,
        "rollout/accepted": 64,
    }
    steps = load(put(tmp_path, "".join(areal_table(step, values, columns) for step in (5, 6))))
    assert steps == {5: values, 6: values}
    assert find_framework(values).title == "AReaL"


NEMO = """
========================= Step {step}/150 =========================
📊 Training Results:
  • Loss: 0.0001
  • Avg Reward: 0.31
  • Mean Generation Length: 1390.1250
⏱️  Timing:
  • Total step time: 86.07s
  • generation: 38.64s (44.9%)
  • prepare_for_generation/total: 6.40s (7.4%)
🔍 Performance Metrics:
  • Average Token Imbalance: 18.41%
    - Generated Tokens from Worker   0:■■□ Count: 182.0K
    - E2E (Tokens/sec/gpu): 1815.42
"""


@pytest.mark.parametrize("form", ["{}", "(driver pid=7) {}", "\x1b[1m{}\x1b[0m"])
def test_nemo_rl_and_the_values_that_it_prints_in_words(tmp_path, form):
    text = "".join(form.format(line) + "\n" for step in (1, 2) for line in NEMO.format(step=step).splitlines())
    steps = load(put(tmp_path, text))
    assert steps[2] == pytest.approx(
        {
            "train/loss": 0.0001, "train/reward": 0.31, "train/mean_gen_tokens_per_sample": 1390.125,
            "timing/train/total_step_time": 86.07, "timing/train/generation": 38.64,
            "timing/train/prepare_for_generation/total": 6.40, "performance/average_token_imbalance": 0.1841,
            "performance/tokens_per_sec_per_gpu": 1815.42,
        }
    )  # fmt: skip


def test_timers_of_every_framework_have_a_unit_and_a_stage():
    for framework in FRAMEWORKS:
        keys = {timer.key for timer in framework.timers}
        for timer in framework.timers:
            assert get_timer_seconds(timer.key) == timer.seconds
            assert timer.parent is None or timer.parent in keys
            assert timer.place in ("nested", "step") or timer.parent is None
        assert all(get_timer_seconds(key) == 1.0 for key in framework.step_keys)
    assert parse_timed_stage("timeperf/recompute_logp") == "old_log_prob"


TIMERS = {
    "verl": """gen reward old_log_prob ref values adv update_critic update_actor save_checkpoint update_weights
        dump_rollout_generations testing start_profile stop_profile switch_wait switch_to_trainer switch_to_rollout
        sync_rollout_weights generate_async timing_s/param_sync wait_for_enough_samples""",
    "verl_omni": "gen old_log_prob ref adv update_actor update_weights rollout_corr prepare_actor_batch feed teacher",
    "nemo_rl": """generation exposed_generation generation_time idle/buffer_starvation idle/refit_bubble
        idle/validation weight_sync offload_before_refit prepare_for_generation/total
        prepare_for_generation/transfer_and_update_weights policy_training policy_and_reference_logprobs""",
    "openrlhf": "make_experience ppo_train broadcast generation",
    "slime": "train train_wait actor_train log_probs ref_log_probs data_preprocess rollout update_weights sleep wake_up save_model",
    "areal": """rollout recompute_logp ref_logp critic_values compute_advantage train_step update_weights save eval
        rollout_pause""",
    "roll": "generate train model_update rollout ref_log_probs_values_reward old_log_probs_values",
    "trl": "queue_wait weight_sync forward wait_scoring",
}
"""Labels of the timers that each framework logs, by what its code is known to log."""

NAMES = {
    "nemo_rl": "timing/train/{}", "openrlhf": "timing/{}", "slime": "perf/{}_time", "areal": "timeperf/{}",
    "roll": "time/step_{}", "trl": "{}_time_s",
}  # fmt: skip


@pytest.mark.parametrize("code", TIMERS)
def test_the_one_registry_has_every_timer_that_a_framework_logs(code):
    """Readers and answers use this registry alone: a name that it lacks would be a stage of an unknown place."""
    (framework,) = (framework for framework in FRAMEWORKS if framework.code == code)
    for label in TIMERS[code].split():
        name = "wait_scoring_ms" if label == "wait_scoring" else NAMES.get(code, "timing_s/{}").format(label)
        timer = framework.find_timer(name)
        assert timer is not None, name
        assert framework.parse_timer(name) == label.removeprefix("timing_s/"), name


# Experiment trackers

STEPS = {step: {"timing_s/gen": 30.5 + step, "timing_s/step": 60.25} for step in (1, 2, 3)}


@pytest.mark.parametrize("form", ["simple", "tensor"])
def test_tensorboard_gives_values_and_times(tmp_path, form):
    path = put(tmp_path, event_file(STEPS, form=form), "events.out.tfevents.1800000000.host")
    assert load(path, "tensorboard") == STEPS
    times = read(path, "tensorboard")["log_values"].groupby("step")["ts_ns"].first()
    assert times.tolist() == [1_800_000_000_000_000_000 + position * 60_000_000_000 for position in range(3)]


def test_pictures_and_long_events_of_tensorboard_are_skipped(tmp_path):
    picture = event(1.8e9, 1, message(5, message(1, message(1, b"image") + message(4, b"x" * (3 << 20)))))
    histogram = event(1.8e9, 1, message(5, scalar("h", 0.0, "histogram")))
    body = event_file(STEPS)
    trace = read(put(tmp_path, body + picture + histogram + event_file({4: {"timing_s/step": 1.5}})), "tensorboard")
    assert by_step(trace) == STEPS | {4: {"timing_s/step": 1.5}}
    assert notes(trace) == {"log-long-line": 1}


def test_an_event_file_cut_or_damaged_keeps_what_is_whole(tmp_path):
    body = event_file(STEPS)
    trace = read(put(tmp_path, body[:-5]), "tensorboard")
    assert set(by_step(trace)) == {1, 2, 3}
    assert notes(trace)["log-truncated"] == 1
    damaged = bytearray(body)
    damaged[-8] ^= 1
    trace = read(put(tmp_path, bytes(damaged)), "tensorboard")
    assert by_step(trace)[3] == {"timing_s/gen": 33.5}
    assert notes(trace)["log-line"] == 1


def test_an_offline_run_of_wandb_gives_rows_with_times_and_no_configuration(tmp_path):
    config = message(5, message(1, message(1, b"secret") + message(16, b'"key"')))
    summary = message(3, message(1, message(2, b"timing_s/gen") + message(16, b"99")))
    rows = [history({**values, "_step": step, "_timestamp": 1.8e9 + step, "_runtime": 5, "table": "[1]", "big": '"' + "x" * 900 + '"'}, step) for step, values in STEPS.items()]  # fmt: skip
    path = put(tmp_path, offline_run([config, *rows, summary]), "run-a.wandb")
    assert load(path, "wandb") == STEPS
    assert read(path, "wandb")["log_values"]["ts_ns"].unique().tolist() == [(1_800_000_000 + n) * 10**9 for n in STEPS]


def test_rows_of_wandb_over_the_ends_of_blocks(tmp_path):
    steps = {step: {f"timing_s/t{n}": step + n / 8 for n in range(40)} for step in range(1, 60)}
    rows = [history(values | {"_step": step}, step) for step, values in steps.items()]
    assert load(put(tmp_path, offline_run(rows), "run-a.wandb"), "wandb") == steps


def test_the_trainers_own_step_counts_before_that_of_wandb(tmp_path):
    rows = [history({"train/step_time": 2.5, "train/global_step": 10 * n, "_step": n}, n) for n in (1, 2)]
    rows.append(history({"ray/node.0.mem_gb": 3.0, "ray/ray_step": 7, "_step": 3}, 3))
    steps = load(put(tmp_path, offline_run(rows), "run-a.wandb"), "wandb")
    assert {step: values["train/step_time"] for step, values in steps.items()} == {10: 2.5, 20: 2.5}


def test_a_damaged_record_of_wandb_is_left_out_and_counted(tmp_path):
    rows = [history(values | {"_step": step}, step) for step, values in STEPS.items()]
    body = bytearray(offline_run(rows))
    trace = read(put(tmp_path, bytes(body[:-3])), "wandb")
    assert by_step(trace) == {1: STEPS[1], 2: STEPS[2]}
    assert notes(trace) == {"log-truncated": 1}


def test_mlflow_gives_the_latest_run(tmp_path):
    rows = {
        run: [
            (name, value, time + 1000 * step, step) for step, values in STEPS.items() for name, value in values.items()
        ]
        for run, time in (("old", 1_700_000_000_000), ("new", 1_800_000_000_000))
    }
    path = tmp_path / "mlruns.db"
    mlflow_store(path, rows | {"other": [("timing_s/gen", 1.0, 1_600_000_000_000, 900)]})
    assert load(path, "mlflow") == STEPS
    trace = read(path, "mlflow")
    assert notes(trace) == {"log-other-runs": 2}
    assert trace["log_values"]["ts_ns"].min() == 1_800_000_001_000_000_000


def start(first, last, time, value=1.0):
    """The rows of one start of a run: a value for each step, a second apart."""
    return [("timing_s/gen", value, time + 1000 * step, step) for step in range(first, last + 1)]


def parts_of(path):
    """{part: steps} of a store."""
    rows = read(path, "mlflow")["log_values"]
    return {part: of_part["step"].tolist() for part, of_part in rows.groupby("part")}


FIRST, SECOND, THIRD = (1_700_000_000_000 + n * 10_000_000 for n in range(3))


def test_the_starts_of_one_run_of_mlflow_are_its_parts(tmp_path):
    path = tmp_path / "mlruns.db"
    runs = {"a": start(1, 20, FIRST), "b": start(17, 30, SECOND), "c": start(31, 40, THIRD), "x": start(1, 9, FIRST)}
    names = {"a": ("grpo", 1), "b": ("grpo", 1), "c": ("grpo", 1), "x": ("other", 1)}
    mlflow_store(path, runs, names)
    assert parts_of(path) == {0: [*range(1, 21)], 1: [*range(17, 31)], 2: [*range(31, 41)]}
    trace = read(path, "mlflow")
    assert notes(trace) == {"log-joined": 3, "log-other-runs": 1, "log-restarted": 2}


@pytest.mark.parametrize(
    ("names", "second", "expected"),
    [
        ({"a": ("grpo", 1), "b": ("grpo", 1)}, start(11, 30, SECOND), 2),
        ({"a": ("grpo", 1), "b": ("grpo", 2)}, start(11, 30, SECOND), 1),  # another experiment
        ({"a": ("grpo", 1), "b": ("ppo", 1)}, start(11, 30, SECOND), 1),  # another name
        ({"a": ("", 1), "b": ("", 1)}, start(11, 30, SECOND), 1),  # no names
        ({"a": ("grpo", 1), "b": ("grpo", 1)}, start(1, 30, SECOND), 1),  # from the beginning: a run of its own
        ({"a": ("grpo", 1), "b": ("grpo", 1)}, start(9, 30, SECOND), 1),  # repeats 12 of 20 steps
        ({"a": ("grpo", 1), "b": ("grpo", 1)}, start(11, 30, FIRST + 5_000), 1),  # at the same time
        ({}, start(11, 30, SECOND), 1),  # a store of metrics alone
    ],
)  # fmt: skip
def test_a_run_of_mlflow_continues_one_of_its_name_with_later_steps(tmp_path, names, second, expected):
    path = tmp_path / "mlruns.db"
    mlflow_store(path, {"a": start(1, 20, FIRST), "b": second}, names)
    assert len(parts_of(path)) == expected


def test_a_child_of_mlflow_continues_its_parent_and_its_sibling(tmp_path):
    path = tmp_path / "mlruns.db"
    runs = {"a": start(1, 10, FIRST), "b": start(11, 20, SECOND), "c": start(21, 30, THIRD)}
    names = {run: (run, 1) for run in runs}
    mlflow_store(path, runs, names, {"b": "a", "c": "a"})
    assert parts_of(path) == {0: [*range(1, 11)], 1: [*range(11, 21)], 2: [*range(21, 31)]}


def test_an_mlflow_store_with_values_of_other_types(tmp_path):
    path = tmp_path / "mlruns.db"
    mlflow_store(path, {"a": [("timing_s/gen", "x", 1_800_000_000_000, 1), ("timing_s/gen", 2.5, "y", 1),
                              (b"\xff", 1.0, 1_800_000_000_000, 1), ("timing_s/gen", 3.5, 1_800_000_000_000, 2)]})  # fmt: skip
    assert by_step(read(path, "mlflow")) == {2: {"timing_s/gen": 3.5}}
    other = tmp_path / "other.db"
    mlflow_store(other, {"a": []})
    assert by_step(read(other, "mlflow")) == {}


def test_directories_of_trackers_are_discovered(tmp_path):
    folder = tmp_path / "wandb" / "offline-run-20260901_100000-abc"
    folder.mkdir(parents=True)
    rows = [history(values | {"_step": step}, step) for step, values in STEPS.items()]
    put(folder, offline_run(rows), "run-abc.wandb")
    put(tmp_path, event_file(STEPS), "events.out.tfevents.1800000000.host")
    found = {trace.source.reader: by_step(trace) for trace in tracekit.load_all(tmp_path)}
    assert found == {"wandb": STEPS, "tensorboard": STEPS}


# Hostile input

SEEDS = {
    "driver_log": (
        verl_line(1, STEP, PREFIX) + f"Global step 2: {RLHF}\nperf 3: {ROLLOUT}\n{TRL}\n" + areal_table(4, {"timeperf/rollout": 1.5})
        + NEMO.format(step=5) + json.dumps({"system/step": 6, "time/step_train": 2.5}) + "\n"
    ).encode(),
    "tensorboard": event_file(STEPS) + event_file({4: {"timing_s/step": 1.5}}, form="tensor"),
    "wandb": offline_run([history(values | {"_step": step}, step) for step, values in STEPS.items()]),
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize("reader", SEEDS)
def test_any_bytes_give_a_trace_or_the_documented_error(tmp_path_factory, reader, data):
    body = bytearray(SEEDS[reader])
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=9))
    path = put(tmp_path_factory.mktemp("fuzz"), bytes(body))
    find_reader(reader).sniff(bytes(body))
    try:
        trace = read(path, reader)
    except TraceFormatError:
        return
    frame = trace["log_values"]
    assert frame["value"].notna().all()
    assert (frame["step"] >= 0).all()
    assert not frame.duplicated(["part", "step", "name"]).any()
    assert frame["name"].astype(str).str.len().max() <= driver_log.values.MAX_NAME if len(frame) else True


def test_a_damaged_store_of_mlflow_gives_a_trace_or_the_documented_error(tmp_path):
    path = tmp_path / "mlruns.db"
    mlflow_store(path, {"a": [(f"timing_s/t{n}", 1.5, 1_800_000_000_000, n) for n in range(500)]})
    body, rng = path.read_bytes(), random.Random(0)
    for case in range(60):
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 40)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        target = put(tmp_path, bytes(damaged[: rng.randrange(len(body) // 2, len(body) + 1)]), f"{case}.db")
        try:
            trace = read(target, "mlflow")
        except TraceFormatError:
            continue
        assert trace["log_values"]["value"].notna().all()


def test_hostile_names_are_shortened_text(tmp_path):
    name = "timing_s/" + "x" * 5000
    trace = read(put(tmp_path, event_file({1: {name: 1.0, "timing_s/\x1b[2J\0": 2.0}})), "tensorboard")
    assert max(map(len, by_step(trace)[1])) <= driver_log.values.MAX_NAME
    row = history({name: 1.0, "_step": 1}, 1)
    assert max(map(len, by_step(read(put(tmp_path, offline_run([row])), "wandb"))[1])) <= driver_log.values.MAX_NAME


def test_a_dictionary_of_deep_nesting_is_counted_as_damaged(tmp_path):
    deep = "Global step 2: {'timing/step_total': " + "[" * 50_000 + "]" * 50_000 + ", 'q': \"\"}\n"
    trace = read(put(tmp_path, deep + f"Global step 3: {RLHF}\n"), "driver_log")
    assert by_step(trace) == {3: RLHF}
    assert notes(trace)["log-line"] == 1


def test_a_record_of_length_zero_and_one_without_values(tmp_path):
    trace = read(put(tmp_path, event_file(STEPS) + record(b"") + event(1.8e9, 9)), "tensorboard")
    assert by_step(trace) == STEPS


# Copies of one run


@pytest.mark.parametrize(("change", "are_copies"), [(0.0, True), (0.0004, True), (2.0, False)])
def test_copies_count_once_and_logs_with_other_values_are_runs_of_their_own(tmp_path, change, are_copies):
    steps = {step: values | {"perf/total_num_tokens": 1000.0} for step, values in STEPS.items()}
    copy = {step: {name: value + change for name, value in values.items()} for step, values in STEPS.items()}
    put(
        tmp_path,
        "".join(json.dumps({"step": step, "data": values}) + "\n" for step, values in steps.items()),
        "m.jsonl",
    )
    put(tmp_path, event_file(copy), "events.out.tfevents.1800000000.host")
    report = tracekit.analyze(tmp_path)
    caveats = " ".join(
        caveat for section in report.sections if section.id == "driver-log" for caveat in section.caveats
    )
    assert ("1 more log file of the same run was not used" in caveats) is are_copies
    assert len({run for run, _ in report.contents}) == (1 if are_copies else 2)


def test_trackers_are_compared_as_logs(tmp_path):
    from tracekit.pipeline.comparing import is_step_log

    assert is_step_log(put(tmp_path, event_file(STEPS), "events.out.tfevents.1800000000.host"))


# Inputs with known truths


def series(steps, name):
    return [values[name] for _, values in sorted(steps.items()) if name in values]


def test_a_fully_asynchronous_run_of_verl_whose_trainer_waits():
    steps = load(CASES / "rl_01_trainer_wait" / "fully_async.jsonl")
    assert len(steps) == 24
    shares = [values["timing_s/gen"] / values["timing_s/step"] for values in steps.values()]
    assert sorted(shares)[12] == pytest.approx(0.527, abs=0.01)
    assert len(series(steps, "timing_s/timing_s/param_sync")) == 24
    assert sorted(series(steps, "fully_async/rollouter/idle_ratio"))[12] == pytest.approx(0.018, abs=0.005)
    gpus = {
        round(values["perf/total_num_tokens"] / (values["perf/time_per_step"] * values["perf/throughput"]))
        for values in steps.values()
    }
    assert gpus == {24}


def test_a_console_of_verl_with_quoted_numbers_whose_host_memory_grows():
    memory = series(load(CASES / "rl_02_host_ram_growth" / "train.log"), "actor/perf/cpu_memory_used_gb")
    assert len(memory) == 40
    assert (memory[-1] - memory[0]) / 39 == pytest.approx(4.6, abs=0.15)


def test_a_console_of_nemo_rl_with_imbalance_validation_and_refit():
    steps = load(CASES / "rl_05_nemo_rl" / "ray-driver.log")
    assert len(steps) == 16
    assert set(series(steps, "performance/average_token_imbalance")) == {0.1841}
    validated = {step for step, values in steps.items() if "timing/validation/total_validation_time" in values}
    assert validated == {4, 8, 12, 16}
    assert set(series(steps, "timing/validation/total_validation_time")) == {37.0}
    refit = "timing/train/prepare_for_generation/"
    assert set(series(steps, refit + "total")) == {6.4}
    assert set(series(steps, refit + "transfer_and_update_weights")) == {4.9}


def test_reading_costs_no_work_per_value(tmp_path):
    """Records of one shape are kept as one, so the names of a long log are stored once."""
    log = driver_log.LoggedValues()
    for step in range(1000):
        log.add_record(step, step, STEP)
    assert len(log.shapes) == 1
    assert len(log.numbers) == 4000
