"""The names that frameworks record for a stage, and the one name that the report gives it."""

import pytest
from chrome_builder import annotation, op, write
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.stages import STAGES, get_canonical_stage, get_scope_stage, is_collective_range, is_possible_stage
from tracekit.pipeline.run import Options, analyze_uncached

RECORDED = {
    # The controller of verl, by its timers.
    "gen": "gen", "reward": "reward", "old_log_prob": "old_log_prob", "ref": "ref", "values": "values",
    "adv": "adv", "update_critic": "update_critic", "update_actor": "update_actor",
    "update_weights": "update_weights", "save_checkpoint": "save", "testing": "test",
    "generate_async": "gen", "sync_rollout_weights": "update_weights",
    # Its workers: 0.9.1, then by method as until 0.9.0, then older.
    "actor_compute_log_prob": "old_log_prob", "ref_compute_log_prob": "ref", "actor_update": "update_actor",
    "compute_log_prob": "old_log_prob", "compute_ref_log_prob": "ref",
    "rollout_generate": "gen", "generate_sequences": "gen", "compute_values": "values",
    "critic_update": "update_critic", "critic_compute_values": "values", "compute_rm_score": "reward",
    "update_policy": "update_actor", "agent_loop/generate_sequences": "gen",
    # VeRL-Omni.
    "infer_actor_batch": "old_log_prob", "infer_ref_batch": "ref", "infer_teacher_batch": "teacher", "teacher": "teacher",
    # NeMo-RL: ranges of its workers (one of them misspelt there), then its timers.
    "dtensor_policy_worker/get_logprobs": "old_log_prob",
    "dtensor_policy_worker_v2/get_reference_policy_logprobs": "ref",
    "megatron_policy_worker/stream_weights_via_ipc_zmq": "update_weights",
    "policy_worker/get_logprobs_presharded": "old_log_prob",
    "vllm_genertion_worker/generate": "gen", "vllm_genertion_worker/generate_text": "gen",
    "vllm_genertion_worker/update_weights_via_ipc_zmq": "update_weights",
    "vllm_genertion_worker/update_weights_from_collective": "update_weights",
    "sglang_genertion/generate": "gen", "megatron_value_worker/get_values": "values",
    "exposed_generation": "gen", "generation": "gen", "policy_training": "update_actor",
    "advantage_calculation": "adv", "reward_calculation": "reward", "weight_sync": "update_weights",
    "value_training": "update_critic", "checkpointing": "save", "total_validation_time": "test",
}  # fmt: skip

NO_KNOWN_STAGE = (
    "dump_rollout_generations", "start_profile", "stop_profile", "switch_to_trainer", "switch_wait",
    "wait_for_enough_samples", "env_interact_step", "rollout_corr", "prepare_actor_batch", "feed",
    "policy_and_reference_logprobs", "logprob_inference_prep", "training_prep", "data_processing",
    "megatron_policy_worker/offload_before_refit", "idle/refit_bubble", "my own stage",
    "step[0]", "step", "dynamo_timed", "classify", "enumerate", "execute", "model_inference",
)  # fmt: skip

NO_STAGES = (
    "mini_batch0", "micro_batch12", "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "DistributedDataParallel.forward",
    "FullyShardedDataParallel._pre_forward", "nccl:all_reduce", "gloo:all_gather", "record_param_comms",
    "ProfilerStep#3", "Torch-Compiled Region: 0/0", "execute_context_1(64)_generation_3(3)",
    "step[DECODE bs=32]", "step[EXTEND bs=2 toks=1025]", "step[DRAFT_EXTEND]", "step[IDLE]",
    "entire_frame_compile (dynamo_timed)", "_recursive_post_grad_passes (dynamo_timed)",
    "<class 'torch.nn.modules.linear.Linear'>", "enumerate(DataPipe)#ShufflerIterDataPipe", "", " ",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_name_has_its_stage(name):
    assert get_canonical_stage(name) == RECORDED[name]
    assert is_possible_stage(name)


@pytest.mark.parametrize("name", NO_KNOWN_STAGE)
def test_a_name_that_is_not_known_stays_as_it_is(name):
    assert get_canonical_stage(name) == name


@pytest.mark.parametrize("name", NO_STAGES)
def test_parts_of_stages_are_no_stages(name):
    assert not is_possible_stage(name)


@given(st.sampled_from(sorted(RECORDED)))
def test_file_names_spell_the_same_with_hyphens(name):
    plain = name.rpartition("/")[2]
    assert get_scope_stage(plain.replace("_", "-")) == RECORDED[name]


@pytest.mark.parametrize("scope", [None, "train", "e2e", "step"])
def test_a_scope_of_the_whole_step_is_no_stage(scope):
    assert get_scope_stage(scope, "actor-rollout-ref") is None


@pytest.mark.parametrize(
    ("role", "stage"),
    [("value-model", "update_critic"), ("critic", "update_critic"), ("actor-rollout-ref", "update_actor"),
     ("language-model", "update_actor"), (None, "train_batch")],
)  # fmt: skip
def test_a_training_batch_is_the_update_of_its_role(role, stage):
    assert get_canonical_stage("train_batch", role) == stage


def test_every_alias_leads_to_one_stage_and_every_stage_to_itself():
    aliases = [alias for names in STAGES.values() for alias in names]
    assert len(aliases) == len(set(aliases))
    assert all(get_canonical_stage(stage) == stage for stage in STAGES)
    assert all(get_canonical_stage(alias) == stage for stage, names in STAGES.items() for alias in names)


def test_collectives_are_told_by_their_backend():
    assert is_collective_range("nccl:_all_gather_base")
    assert not is_collective_range("all_reduce_gradients")


@pytest.mark.parametrize("name", ["actor_update", "update_actor", "dtensor/policy_training"])
def test_whatever_a_framework_calls_it_the_report_gives_it_one_name(tmp_path, name):
    write(tmp_path / "rank0.json", [annotation(name, 0, 50), op("a", 0, 9)])
    report = analyze_uncached(tmp_path, Options(jobs=1)).report
    assert [cells[0] for cells in report.overview.rows] == ["update_actor"]
