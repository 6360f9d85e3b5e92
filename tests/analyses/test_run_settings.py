"""Advice that names settings: the present value from the run's configuration, a proposed one, and a bound on the effect."""

import json
from pprint import pformat

import pytest
from command_line import invoke
from hypothesis import given
from hypothesis import strategies as st
from rules.firing import write_sources
from rules.traces_run_log import FIRES, log_of
from training_logs import verl_line

from tracekit.pipeline import analyze
from tracekit.readers.driver_log.run_settings import MAX_CONFIG_EVENTS, parse_yaml_settings, select_known_settings

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"

ADVICE = {
    # 20 % of waiting: 1 / 0.8 = 1.25 times 4 nodes.
    "trainer-wait": (
        {"rollout.nnodes": 4, "async_training.staleness_threshold": 0.1, "async_training.partial_rollout": False},
        ("; try rollout.nnodes=5 (now 4 in .hydra/config.yaml), or async_training.partial_rollout=True (now false): "
        "saves at most 20.0 s per step (bound)"),
    ),
    "rollouter-wait": (
        {"rollout.nnodes": 4},
        "; try rollout.nnodes=3 (now 4 in .hydra/config.yaml): saves at most 25.0 s per step (bound), of the rollout GPUs",
    ),
    "evicted-samples": (
        {"trainer.v1.sampler.max_off_policy_threshold": 8, "trainer.v1.sampler.max_off_policy_strategy": "drop"},
        ("; try trainer.v1.sampler.max_off_policy_strategy=wait (now drop in .hydra/config.yaml): at most 6.0 % of the "
        "samples are kept instead (bound)"),
    ),
    # The 95th percentile of an exponential distribution of mean 250 is 250 · ln 20 = 748.9; generation takes 60 s, and its
    # longest answer has 1,000 tokens: 60 s · (1 − 748.9 / 1,000) = 15.06 s.
    "generation-tail": (
        {"data.max_response_length": 1000, f"{ROLLOUT}.over_sample_rate": 0},
        ("; try data.max_response_length=748 (now 1000 in .hydra/config.yaml), or "
        f"{ROLLOUT}.over_sample_rate=0.05 (now 0): saves at most 15.1 s per step (bound), without the longest 5 % of the "
        "answers, if lengths fall off exponentially"),
    ),
    # Tools take 60 % of the slowest sample: 0.6 · 0.6 / (0.4 · 0.4) = 2.25 times faster they take 40 %. With three times as
    # many calls, two thirds of 6 s are saved.
    "tool-tail": (
        {f"{ROLLOUT}.multi_turn.max_parallel_calls": 1},
        (f"; try {ROLLOUT}.multi_turn.max_parallel_calls=3 (now 1 in .hydra/config.yaml): saves at most 4,000 ms per step "
        "(bound), until tools take less than 40 % of the slowest sample, if calls scale with it"),
    ),
    # Rewards of 5 s of 100 s are at the limit: one worker more is below it, and saves 5 s / 9.
    "reward-time": (
        {"reward.num_workers": 8},
        ("; try reward.num_workers=9 (now 8 in .hydra/config.yaml): saves at most 556 ms per step (bound), until rewards "
        "take less than 5.0 % of the step, if they scale with it"),
    ),
    "sequence-imbalance": (
        {"trainer.balance_batch": False, f"{ACTOR}.use_dynamic_bsz": True},
        "; try trainer.balance_batch=True (now false in .hydra/config.yaml): saves at most 6,000 ms per step (bound)",
    ),
    # 60 s at an MFU of 0.19 are 57 s at 0.2. The memory of the GPU is unknown, and so is a larger micro-batch.
    "training-mfu": (
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2, f"{ACTOR}.fsdp_config.param_offload": True,
         f"{ACTOR}.ulysses_sequence_parallel_size": 2},
        (f"; try {ACTOR}.fsdp_config.param_offload=False (now true in .hydra/config.yaml): saves at most 3,000 ms per step "
        "(bound), at an MFU of 20 %"),
    ),
    # 40 s in every n-th step of 100 s are 5 % of the wall time at 40 / n = 5 / 95 · 100, n = 7.6: less from 8 on.
    # Then 8 s per step are 5 s.
    "logged-chores": (
        {"trainer.test_freq": 5},
        ("; try trainer.test_freq=8 (now 5 in .hydra/config.yaml): saves at most 3,000 ms per step (bound), until it "
        "takes less than 5.0 % of the wall time"),
    ),
}  # fmt: skip
"""By rule: settings of the run, and the end of the advice."""

NEEDS_NO_CHANGE = {
    "trainer-wait": {"async_training.staleness_threshold": 0.9, "async_training.partial_rollout": True},
    "sequence-imbalance": {"trainer.balance_batch": True},
    "logged-chores": {"trainer.test_freq": -1},
    "training-mfu": {f"{ACTOR}.fsdp_config.param_offload": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": "null"},
}


def write_yaml(settings):
    """Write dotted settings as block mappings; independent of the reader."""
    tree = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        level = tree
        for name in parents:
            level = level.setdefault(name, {})
        level[last] = value
    return "\n".join(list_yaml_lines(tree, 0)) + "\n"


def list_yaml_lines(tree, indent):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{' ' * indent}{key}:"
            yield from list_yaml_lines(value, indent + 2)
        else:
            yield f"{' ' * indent}{key}: {str(value).lower() if isinstance(value, bool) else value}"


def advise(tmp_path, rule, settings=None):
    """The advice of one rule on the log that makes it fire."""
    write_sources(tmp_path, FIRES[rule].rows)
    if settings is not None:
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra" / "config.yaml").write_text(write_yaml(settings))
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == rule]
    return found.advice


@pytest.mark.parametrize("rule", ADVICE)
def test_a_rule_proposes_values_for_the_settings_of_the_run(tmp_path, rule):
    settings, ending = ADVICE[rule]
    assert advise(tmp_path, rule, settings).endswith(ending)


@pytest.mark.parametrize("rule", ADVICE)
def test_without_a_configuration_the_advice_names_keys_only(tmp_path, rule):
    advice = advise(tmp_path, rule)
    assert "try" not in advice
    assert "(now" not in advice


@pytest.mark.parametrize("rule", NEEDS_NO_CHANGE)
def test_a_setting_that_needs_no_change_is_not_proposed(tmp_path, rule):
    assert "try" not in advise(tmp_path, rule, NEEDS_NO_CHANGE[rule])


def test_the_weight_sync_of_a_log(tmp_path):
    """8 s of 100 s; a bucket of 2,048 MB."""
    write_sources(tmp_path, log_of(lambda _: {"timing_s/update_weights": 8.0}))
    engine = f"{ROLLOUT}.checkpoint_engine"
    settings = {f"{engine}.backend": "naive", f"{engine}.update_weights_bucket_megabytes": 2048}
    (tmp_path / "config.yaml").write_text(write_yaml(settings))
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == "weight-sync"]
    assert found.advice.endswith(
        f"; try {engine}.backend=nccl (now naive in config.yaml): saves at most 8,000 ms per step (bound)"
    )


def test_text_markdown_and_json_have_the_proposal(tmp_path):
    write_sources(tmp_path, FIRES["logged-chores"].rows)
    (tmp_path / "config.yaml").write_text(write_yaml({"trainer.test_freq": 5}))
    proposal = "try trainer.test_freq=8 (now 5 in config.yaml): saves at most 3,000 ms per step (bound)"
    text = invoke("analyze", tmp_path, "-v").stdout
    assert proposal in " ".join(text.split())
    assert "Settings of the run" in text
    for name in ("report.md", "report.json"):
        assert invoke("analyze", tmp_path, "-o", tmp_path / name).exit_code == 0
        content = (tmp_path / name).read_text().replace("\\_", "_").replace("`", "")
        assert "trainer.test_freq=8 (now 5 in config.yaml)" in content, name


@pytest.mark.parametrize("prefix", ["", "\x1b[36m(TaskRunner pid=7)\x1b[0m "])
def test_a_configuration_that_the_driver_prints(tmp_path, prefix):
    """Other actors print between its lines; what it prints is resolved, so it counts before files."""
    config = {
        "actor_rollout_ref": {"actor": {"use_dynamic_bsz": False, "name": "a {b"}},
        "trainer": {"test_freq": 5, "logger": ["console"], "project": "p" * 90, "nnodes": None},
    }
    lines = pformat(config).splitlines()
    assert len(lines) > 3
    text = f"(WorkerDict pid=8) {'{'}'other': 1\n".join(f"{prefix}{line}\n" for line in lines)
    values = {"timing_s/gen": 50.0, "timing_s/update_actor": 49.0, "timing_s/step": 100.0}
    for step in range(1, 16):
        text += verl_line(step, values | ({"timing_s/testing": 40.0} if step % 5 == 0 else {}), prefix)
    (tmp_path / "train.log").write_text(text)
    (tmp_path / "config.yaml").write_text(write_yaml({"trainer.test_freq": 7}))
    report = analyze(tmp_path)
    (found,) = [finding for finding in report.findings if finding.rule == "logged-chores"]
    assert "try trainer.test_freq=8 (now 5 in train.log)" in found.advice
    (sheet,) = [sheet for sheet in report.section("run-log").sheets if sheet.name == "settings"]
    assert {row[0]: row[1] for row in sheet.rows} == {
        "trainer.test_freq": "5", f"{ACTOR}.use_dynamic_bsz": "False", "trainer.nnodes": "None"
    }  # fmt: skip


def test_the_configuration_of_weights_and_biases():
    text = (
        "_wandb:\n    value:\n        cli_version: 0.19\ntrainer:\n    desc: null\n    value:\n        test_freq: 5\n"
    )
    assert select_known_settings(parse_yaml_settings(text)) == {"trainer.test_freq": "5"}


def test_references_are_resolved_and_endless_ones_are_not():
    text = (
        "trainer:\n  nnodes: 2\nrollout:\n  nnodes: ${trainer.nnodes}\n  n_gpus_per_node: ${oc.select:trainer.n,8}\n"
        "a:\n  b: ${a.c}\n  c: ${a.b}\n"
    )
    assert parse_yaml_settings(text) == {
        "trainer.nnodes": "2", "rollout.nnodes": "2", "rollout.n_gpus_per_node": "8"
    }  # fmt: skip


YAML = """\
# a comment
'quoted': 1
text: |
  trainer:
    test_freq: 1
folded: "a long
  text: 2"
items:
- name: x
  value: 3
- !!python/object/apply:os.system ["true"]
anchor: &a {x: 1}
trainer:
  logger:
    - console
  test_freq: 5 # every five
  empty:
last: 6
"""


def test_yaml_is_read_as_scalars_and_lists_of_scalars():
    """A text that looks like a mapping is not one, no tag is followed, and lists of mappings are skipped."""
    assert parse_yaml_settings(YAML) == {
        "quoted": "1", "text": "trainer:\n  test_freq: 1\n", "folded": "a long text: 2", "anchor.x": "1",
        "trainer.logger": "[console]", "trainer.test_freq": "5", "trainer.empty": "", "last": "6",
    }  # fmt: skip


def test_steps_of_the_profiler_as_a_block_list(tmp_path):
    """Hydra writes lists as blocks. Steps 4 and 5 are profiled, and 3 warm up: 10 of 15 count."""
    write_sources(tmp_path, log_of(count=15))
    config = "global_profiler:\n  tool: torch\n  steps:\n  - 4\n  - 5\n"
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(config)
    section = analyze(tmp_path).section("run-log")
    (sheet,) = [sheet for sheet in section.sheets if sheet.name == "logged_stages"]
    assert "Mean of 10 steps without the first 3 and profiled steps 4, 5." in sheet.caption


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        (BOMB, {"a": f"[{', '.join('x' * 9)}]"}),
        ("a: &a\n  b: *a\n  c: 1\n", {"a.c": "1"}),
        ("x: &x 1\ny: *x\nz: 2\n", {"x": "1", "z": "2"}),
        ("? [a, b]\n: {c: 1}\nd: 2\n", {"d": "2"}),
        ("a: 1\n---\nb: 2\n", {"a": "1"}),
        ("a: 1\nb: [2\nc: 3\n", {"a": "1"}),
        ("a: 1\nb: \x00\n", {}),
        ("- a\n- b\n", {"": "[a, b]"}),
        ("", {}),
    ],
    ids=["bomb", "cycle", "alias", "complex key", "second document", "damaged", "NUL", "list", "empty"],
)
def test_aliases_are_not_expanded_and_damage_ends_the_settings(text, leaves):
    assert parse_yaml_settings(text) == leaves


@pytest.mark.parametrize(
    "text", ["a:\n" * 9, "[" * 200_000, "{" * 100_000, "a: {" * 50_000, "? " * 50_000, "- " * 50_000]
)
def test_deep_nesting_is_bounded(text):
    assert len(parse_yaml_settings(text)) <= 1


def test_a_long_configuration_is_read_up_to_its_limit():
    leaves = parse_yaml_settings("".join(f"k{n}: {n}\n" for n in range(MAX_CONFIG_EVENTS)))
    assert len(leaves) == pytest.approx(MAX_CONFIG_EVENTS / 2, abs=3)


@given(st.text(st.sampled_from("ab:-?[]{}&*!|>'\"%@#, \n\t\x00\ud800\\U12"), max_size=60))
def test_any_text_gives_settings_or_none(text):
    for key, value in parse_yaml_settings(text.encode("utf-8", "replace").decode()).items():
        assert isinstance(key, str)
        assert isinstance(value, str)


def test_the_configuration_of_a_log_is_not_a_skipped_file(tmp_path):
    """Other hidden folders, and one that the user excludes, are."""
    write_sources(tmp_path, FIRES["logged-chores"].rows)
    for name in (".hydra", "files", ".cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(write_yaml({"trainer.test_freq": 5}))
    (tmp_path / "config.yaml").write_text(write_yaml({"trainer.test_freq": 5}))
    files = [fact for fact in analyze(tmp_path).unseen if "file" in fact]
    assert files == ["1 file: hidden"]
    files = [fact for fact in analyze(tmp_path, exclude=[".hydra"]).unseen if "file" in fact]
    assert sorted(files) == ["1 file: excluded by '.hydra'", "1 file: hidden"]


def test_a_hidden_folder_without_a_log_is_a_skipped_one(tmp_path):
    write_sources(tmp_path, FIRES["logged-chores"].rows)
    (tmp_path / "other" / ".hydra").mkdir(parents=True)
    assert [fact for fact in analyze(tmp_path).unseen if "file" in fact] == ["1 file: hidden"]


def test_secrets_and_addresses_are_never_kept(tmp_path):
    """Neither other settings nor unexpected values of known ones reach the report, in any output."""
    write_sources(tmp_path, FIRES["logged-chores"].rows)
    config = "trainer:\n  test_freq: hf_SECRETvalue\n  api_key: sk-SECRET\n  save_freq: https://user:SECRET@host/x\n"
    (tmp_path / "config.yaml").write_text(config)
    for arguments in (("-v",), ("--format", "json"), ("--save", tmp_path / "run.tkm")):
        result = invoke("analyze", tmp_path, *arguments)
        assert result.exit_code == 0
        assert "SECRET" not in result.stdout
    assert b"SECRET" not in (tmp_path / "run.tkm").read_bytes()


def test_a_changed_configuration_is_read_again(tmp_path):
    """The cache of measurements and reports knows the files next to a log."""
    write_sources(tmp_path, FIRES["logged-chores"].rows)
    config = tmp_path / "config.yaml"
    for value in (5, 6):
        config.write_text(write_yaml({"trainer.test_freq": value}))
        report = json.loads(invoke("analyze", tmp_path, "--format", "json").stdout)
        assert f"(now {value} in" in json.dumps(report)


def test_a_truncated_configuration_hides_no_steps(tmp_path):
    text = "{'actor_rollout_ref': {'actor': {'use_dynamic_bsz': False,\n" + "".join(
        verl_line(step, {"timing_s/gen": 50.0, "timing_s/step": 100.0}) for step in range(1, 9)
    )
    (tmp_path / "train.log").write_text(text)
    assert "8 steps of verl" in " ".join(analyze(tmp_path).identity)


@pytest.mark.parametrize(("limit", "oldest", "fires"), [(4, 2, True), (4, 1, False), (5, 7, False), (None, 7, False)])
def test_staleness_at_its_threshold(tmp_path, limit, oldest, fires):
    """Of 7 steady steps the last `oldest` have samples 4 versions old: 2 are 29 %, 1 is 14 %."""
    write_sources(
        tmp_path, log_of(lambda n: {"training/off_policy/trajectory_staleness/max": 4 if n > 10 - oldest else 2})
    )
    if limit is not None:
        (tmp_path / "config.yaml").write_text(write_yaml({"trainer.v1.sampler.max_off_policy_threshold": limit}))
    found = [finding for finding in analyze(tmp_path).findings if finding.rule == "evicted-samples"]
    assert bool(found) == fires
    if fires:
        assert found[0].claim.startswith("samples are as old as allowed, 4 weight versions, in 29 % of the steps")
        # Nothing is thrown away, so no age is known that would keep more.
        assert "try" not in found[0].advice


@pytest.mark.parametrize(
    ("reserved", "words"),
    [
        (76.5, "reserved at most 76.5 GiB of 80.0 GiB, 4.4 % is left: smaller micro-batches or less of"),
        (47.0, "reserved at most 47.0 GiB of 80.0 GiB, 41 % is left: larger micro-batches"),
        (76.0, None), (48.0, None), (90.0, None),
    ],
)  # fmt: skip
def test_gpu_memory_that_is_short_or_unused(tmp_path, reserved, words):
    """Below 5 % or above 40 % of the given size; more than the size is unmapped memory."""
    write_sources(tmp_path, log_of(lambda _: {"actor/perf/max_memory_reserved_gb": reserved}))
    caveats = analyze(tmp_path, device_memory="80GiB").section("run-log").caveats
    assert [text for text in caveats if "GPU memory" in text and (words is None or words in text)] == [
        text for text in caveats if "GPU memory" in text
    ]
    assert any("GPU memory" in text for text in caveats) == (words is not None)
    assert not any("GPU memory" in text for text in analyze(tmp_path).section("run-log").caveats)


def test_advice_on_a_run_of_nemo_rl_names_its_own_settings(tmp_path):
    """Validation of 40 s within every fifth step of 100 s; a token imbalance of 10 %. No setting of verl is named."""
    lines = []
    for step in range(1, 16):
        values = {
            "timing/train/total_step_time": 100.0, "timing/train/generation": 60.0,
            "timing/train/policy_training": 38.0, "performance/average_token_imbalance": 0.1,
        }  # fmt: skip
        if step % 5 == 0:
            values |= {"timing/train/total_step_time": 140.0, "timing/validation/total_validation_time": 40.0}
        lines.append(json.dumps({"step": step, "data": values}) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "config.yaml").write_text(write_yaml({"grpo.val_period": 5}))
    report = analyze(tmp_path)
    (recording,) = report.recordings
    assert "in NeMo-RL" in recording.advice
    advice = {finding.rule: finding.advice for finding in report.findings}
    assert {"logged-chores", "sequence-imbalance"} <= set(advice)
    assert "try grpo.val_period=8 (now 5 in config.yaml)" in advice["logged-chores"]
    assert not [text for text in advice.values() if "trainer." in text or "actor." in text]


def test_the_share_of_evicted_samples_counts_samples_with_their_prompts(tmp_path):
    """8,000 tokens in samples of 500 and 300 are 10 samples; 2 more were thrown away: a sixth."""
    values = {
        "training/off_policy/evicted_samples": 2, "perf/total_num_tokens": 8_000, "prompt_length/mean": 300.0
    }  # fmt: skip
    write_sources(tmp_path, log_of(lambda _: values))
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == "evicted-samples"]
    assert {metric.name: metric.value for metric in found.evidence}["evicted_ratio"] == pytest.approx(1 / 6)


def test_a_configuration_outside_the_directory_is_not_read(tmp_path):
    """A link may lead out of the directories that an agent may read."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    (outside / "config.yaml").write_text(write_yaml({"trainer.test_freq": 5}))
    write_sources(run, FIRES["logged-chores"].rows)
    (run / "config.yaml").symlink_to(outside / "config.yaml")
    (run / ".hydra").symlink_to(outside)
    assert "try" not in analyze(run).findings[0].advice


@pytest.mark.parametrize(
    "text",
    ["{'data': {[1]: 2}}", "{'data': {'a': __import__('os')}}", "{'data': {" * 400 + "}" * 800, "{'data': {'a': '"],
)
def test_a_printed_configuration_of_any_form_does_not_stop_the_reader(tmp_path, text):
    lines = "".join(verl_line(step, {"timing_s/gen": 50.0, "timing_s/step": 100.0}) for step in range(1, 9))
    (tmp_path / "train.log").write_text(f"{text}\n{lines}")
    assert "8 steps of verl" in " ".join(analyze(tmp_path).identity)


def test_the_threshold_that_keeps_all_samples_is_the_age_of_the_oldest_one_thrown_away(tmp_path):
    values = {
        "training/off_policy/evicted_samples": 6, "rollout/num_samples": 94,
        "training/off_policy/evicted_samples_staleness/max": 11,
    }  # fmt: skip
    write_sources(tmp_path, log_of(lambda _: values))
    (tmp_path / "config.yaml").write_text(write_yaml({"trainer.v1.sampler.max_off_policy_threshold": 8}))
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == "evicted-samples"]
    assert "; try trainer.v1.sampler.max_off_policy_threshold=11 (now 8 in config.yaml): at most 6.0 %" in found.advice


@pytest.mark.parametrize(
    ("reserved", "batch", "budget"),
    [
        # 0.95 · 80 / 30 = 2.53 times: 4 becomes 10, and 10,000 tokens 25,333.
        (30.0, "10", "25333"),
        # 0.95 · 80 / 70 = 1.086 times: no whole sample more.
        (70.0, None, "10857"),
        # More than the GPU has is unmapped memory; less than 5 % is left.
        (90.0, None, None), (79.0, None, None),
    ],
)  # fmt: skip
def test_micro_batches_grow_as_far_as_memory_allows(tmp_path, reserved, batch, budget):
    values = {"perf/mfu/actor": 0.19, "actor/perf/max_memory_reserved_gb": reserved}
    write_sources(tmp_path, log_of(lambda _: values, 13))
    keys = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu"
    (tmp_path / "config.yaml").write_text(write_yaml(dict(zip(keys, (4, 10_000), strict=True))))
    (found,) = [one for one in analyze(tmp_path, device_memory="80GiB").findings if one.rule == "training-mfu"]
    for key, value in zip(keys, (batch, budget), strict=True):
        assert (f"{key}={value} (now" in found.advice) == (value is not None)
        assert f"{key}=" in found.advice or value is None
    (unknown,) = [one for one in analyze(tmp_path).findings if one.rule == "training-mfu"]
    assert "try" not in unknown.advice


@pytest.mark.parametrize(
    ("rewards", "workers", "saved"),
    # Rewards of 10 s of 100 s: 10 · 0.95 / (0.05 · 90) = 2.11 times faster they take 5 %. 17 of 8 save 10 · 9 / 17.
    [(10.0, 17, "5,294 ms"), (60.0, 32, "45.0 s")],
)
def test_workers_grow_until_rewards_are_below_the_limit_but_at_most_fourfold(tmp_path, rewards, workers, saved):
    write_sources(
        tmp_path, log_of(lambda _: {"timing_s/reward": rewards, "timing_s/update_actor": 100 - 33 - rewards - 3})
    )
    (tmp_path / "config.yaml").write_text(write_yaml({"reward.num_workers": 8}))
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == "reward-time"]
    assert f"; try reward.num_workers={workers} (now 8 in config.yaml): saves at most {saved} per step" in found.advice
