"""What recorded names say: one row a layout, with the answer worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.discover.names import NameFacts, read_name, states_any_fact, strip_format_suffixes
from tracekit.model.text.labels import make_displayable, make_natural_key, normalize_label_words

T1 = "20261120073304048"
ACTOR = "actor-rollout-ref"

VERL_FLAT = {
    f"{ACTOR}_train_step2_rank0-of-2_pid2064_{T1}.json.gz": {
        "role": ACTOR, "scope": "train", "step": 2, "rank": 0, "world_size": 2, "pid": 2064, "start": T1,
    },
    f"value-model_step4_rank1-of-2_pid2143_{T1}.json.gz": {
        "role": "value-model", "step": 4, "rank": 1, "world_size": 2, "pid": 2143, "start": T1,
    },
    f"language-model_train-batch_step7_rank3-of-8_tp1-pp0-dp3-cp0_pid9_{T1}.json.gz": {
        "role": "language-model", "scope": "train-batch", "step": 7, "rank": 3, "world_size": 8,
        "topology": "tp1-pp0-dp3-cp0", "pid": 9, "start": T1,
    },
    f"{ACTOR}_actor-update_step2_rank0-of-2_pid6671_{T1}_mb1.json.gz": {
        "role": ACTOR, "scope": "actor-update", "step": 2, "rank": 0, "world_size": 2, "pid": 6671,
        "start": T1, "part": "mb1",
    },
    f"{ACTOR}_actor-update_step2_rank0-of-2_pid6671_{T1}_mb3-4.json.gz": {
        "role": ACTOR, "scope": "actor-update", "step": 2, "rank": 0, "world_size": 2, "pid": 6671,
        "start": T1, "part": "mb3-4",
    },
    f"{ACTOR}_train_step2_rank0_pid5_{T1}_part2.json.gz": {
        "role": ACTOR, "scope": "train", "step": 2, "rank": 0, "pid": 5, "start": T1, "part": "part2",
    },
    f"train_step3_rank12-of-16_pid5_{T1}.json.gz": {
        "scope": "train", "step": 3, "rank": 12, "world_size": 16, "pid": 5, "start": T1,
    },
    f"rank0_pid5_{T1}.json.gz": {"rank": 0, "pid": 5, "start": T1},
    f"step3_rank1_pid5_{T1}.json.gz": {"step": 3, "rank": 1, "pid": 5, "start": T1},
    # A post-processor may put its own epoch between the suffixes.
    f"{ACTOR}_train_step2_rank0-of-2_pid2064_{T1}.json.1795000000.gz": {
        "role": ACTOR, "scope": "train", "step": 2, "rank": 0, "world_size": 2, "pid": 2064, "start": T1,
    },
    f"{ACTOR}_train_step2_rank0-of-2_pid2064_{T1}.json": {
        "role": ACTOR, "scope": "train", "step": 2, "rank": 0, "world_size": 2, "pid": 2064, "start": T1,
    },
    f"my.team+x=1_train_step2_rank0_pid1_{T1}.json.gz": {
        "role": "my.team+x=1", "scope": "train", "step": 2, "rank": 0, "pid": 1, "start": T1,
    },
    # A world that the rank does not fit into is not believed.
    f"rank5-of-2_pid5_{T1}.json.gz": {"rank": 5, "pid": 5, "start": T1},
}  # fmt: skip

VERL_FOLDERS = {
    f"e2e/{ACTOR}_e2e_rank1-of-2_pid3288_{T1}.json.gz": {
        "role": ACTOR, "scope": "e2e", "rank": 1, "world_size": 2, "pid": 3288, "start": T1,
    },
    f"actor_update/{ACTOR}_actor-update_rank0-of-2_pid3629_{T1}.json.gz": {
        "role": ACTOR, "scope": "actor-update", "rank": 0, "world_size": 2, "pid": 3629, "start": T1,
    },
    f"e2e/{ACTOR}_e2e_rank1-of-2_pid3288_{T1}_cycle3.json.gz": {
        "role": ACTOR, "scope": "e2e", "rank": 1, "world_size": 2, "pid": 3288, "start": T1,
        "part": "cycle3",
    },
    # 0.9.0 without a role: the one label repeats the directory, whatever stage it is.
    f"my_stage/my-stage_rank0-of-2_pid3_{T1}.json.gz": {
        "scope": "my-stage", "rank": 0, "world_size": 2, "pid": 3, "start": T1,
    },
    f"value_model/value-model_step1_rank0_pid3_{T1}.json.gz": {
        "role": "value-model", "step": 1, "rank": 0, "pid": 3, "start": T1,
    },
    f"e2e/prof_rank-0_9833_{T1}.json.gz": {"scope": "e2e", "rank": 0, "pid": 9833, "start": T1},
    f"actor_compute_log_prob/prof_rank-1_10258_{T1}.json.gz": {
        "scope": "actor_compute_log_prob", "rank": 1, "pid": 10258, "start": T1,
    },
    f"rollout_generate/actor_rollout_prof_rank-1_10258_{T1}.json.gz": {
        "role": "actor_rollout", "scope": "rollout_generate", "rank": 1, "pid": 10258, "start": T1,
    },
    f"profile/prof_rank-1_10258_{T1}.json.gz": {"rank": 1, "pid": 10258, "start": T1},
    "actor_compute_log_prob/prof_rank-0_031847.json.gz": {
        "scope": "actor_compute_log_prob", "rank": 0, "start": "031847",
    },
    "prof_start_1_end_3_rank_12.json": {"rank": 12, "part": "start1-end3"},
}  # fmt: skip

ENGINES = {
    "agent_loop_rollout_replica_0/huawei_372640.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 0, "host": "huawei", "pid": 372640,
        "worker": "huawei_372640", "start": "1771730291744166997",
    },
    "agent_loop_rollout_replica_2/dp0_pp0_tp1_dcp0_ep1_rank1.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 2, "rank": 1, "topology": "dp0-pp0-tp1-dcp0-ep1",
        "start": "1771730291744166997",
    },
    "dp0_pp0_tp0_dcp0_ep0_rank0.1771730291744166997.pt.trace.json.gz": {
        "rank": 0, "topology": "dp0-pp0-tp0-dcp0-ep0", "start": "1771730291744166997",
    },
    "agent_loop_rollout_replica_1/8f2c-rank-3.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 1, "rank": 3, "worker": "8f2c-rank-3",
        "start": "1771730291744166997",
    },
    "agent_loop_rollout_replica_0/node-7_17.async_llm.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 0, "host": "node-7", "pid": 17, "scope": "async_llm",
        "worker": "node-7_17.async_llm", "start": "1771730291744166997",
    },
    "agent_loop_rollout_replica_0/1771730291.25-TP-3.trace.json.gz": {
        "role": "rollout", "replica": 0, "rank": 3, "topology": "tp3", "start": "1771730291.25",
    },
    "1771730291.25-TP-1-DP-0-PP-0-EP-1.trace.json.gz": {
        "rank": 1, "topology": "tp1-dp0-pp0-ep1", "start": "1771730291.25",
    },
    # Behind another data or pipeline rank, the tensor rank is not the rank.
    "1771730291.25-TP-0-DP-1.trace.json.gz": {"topology": "tp0-dp1", "start": "1771730291.25"},
    "1771730291.25-TP-0-DP-0-PP-1-EP-0.trace.json.gz": {
        "topology": "tp0-dp0-pp1-ep0", "start": "1771730291.25",
    },
    "batch-1771730291-TP-0-DECODE.trace.json.gz": {
        "rank": 0, "topology": "tp0", "scope": "DECODE", "worker": "batch-1771730291",
    },
    "agent_loop_rollout_replica_0/1771730291.25/1771730291.25-TP-0.trace.json.gz": {
        "role": "rollout", "replica": 0, "rank": 0, "topology": "tp0", "start": "1771730291.25",
    },
    "reward_model/agent_loop_rollout_replica_1/x-rank-0.1771730291744166997.pt.trace.json.gz": {
        "role": "reward", "replica": 1, "rank": 0, "worker": "x-rank-0",
        "start": "1771730291744166997",
    },
    "rollout-replica1-globalrank5_dp0_pp0_tp1_dcp0_ep0_rank1.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 1, "rank": 1, "start": "1771730291744166997",
        "topology": "globalrank5-dp0-pp0-tp1-dcp0-ep0",
    },
    "rollout-replica0_huawei_372640.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 0, "host": "huawei", "pid": 372640,
        "worker": "huawei_372640", "start": "1771730291744166997",
    },
    "rollout-replica0-globalrank2_huawei_37.1771730291744166997.pt.trace.json.gz": {
        "role": "rollout", "replica": 0, "host": "huawei", "pid": 37, "topology": "globalrank2",
        "worker": "huawei_37", "start": "1771730291744166997",
    },
    "reward_model/rollout-replica1_1771730291.25-TP-0.trace.json.gz": {
        "role": "reward", "replica": 1, "rank": 0, "topology": "tp0", "start": "1771730291.25",
    },
}  # fmt: skip

TORCH = {
    "gpu-box.example.org_4711.1623143089861.pt.trace.json": {
        "host": "gpu-box.example.org", "pid": 4711, "worker": "gpu-box.example.org_4711",
        "start": "1623143089861",
    },
    "pod-0_1.1771730291744166997.pt.trace.json.gz": {
        "host": "pod-0", "pid": 1, "worker": "pod-0_1", "start": "1771730291744166997",
    },
    "worker0.1623143089861.pt.trace.json.gz": {"worker": "worker0", "start": "1623143089861"},
    "worker_3.1623143089861.pt.trace.json.gz": {"worker": "worker_3", "start": "1623143089861"},
    "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": {
        "rank": 0, "worker": "rank-0", "start": "Apr_03_18_51_38.1102",
    },
    "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": {
        "rank": 34, "worker": "rank-34", "start": "Jul_15_10_52_41.1074",
    },
    "rank0.json.gz": {"rank": 0},
    "rank0.pt.trace.json.gz": {"rank": 0},
    "RANK_07.json": {"rank": 7},
    "sampled_rank-1.json.gz": {"rank": 1},
    "profile_trace_rank_0.json.gz": {"rank": 0},
    "rank3-of-8.json.gz": {"rank": 3, "world_size": 8},
    "rank0 (1).json.gz": {"rank": 0},
    "step_12_rank_3.json.gz": {"step": 12, "rank": 3},
    "global_rank_3_local_rank_1.json": {"rank": 3},
    "rank3/trace.json.gz": {"rank": 3},
    "iteration_10/rank3_trace.json": {"step": 10, "rank": 3},
    "global_step_20/actor/rank1.json.gz": {"step": 20, "role": "actor", "rank": 1},
    # slime names its workers after what they record.
    "train_overall_rank_0.1771730291744166997.pt.trace.json.gz": {
        "scope": "train_overall", "rank": 0, "worker": "train_overall_rank_0",
        "start": "1771730291744166997",
    },
    "train_actor_rank_11.1771730291744166997.pt.trace.json.gz": {
        "scope": "train_actor", "rank": 11, "worker": "train_actor_rank_11",
        "start": "1771730291744166997",
    },
    "myjob_rank_2.1771730291744166997.pt.trace.json.gz": {
        "rank": 2, "worker": "myjob_rank_2", "start": "1771730291744166997",
    },
    # ROLL: `<worker>/<function>/…`, the function sometimes below the cluster's name.
    "actor_train-2-G2/train_step/host7_99.1771730291744166997.pt.trace.json": {
        "role": "actor_train", "scope": "train_step", "rank": 2, "host": "host7", "pid": 99,
        "start": "1771730291744166997",
    },
    "actor_infer-0-G01/actor_infer/my_func/host7_99.1771730291744166997.pt.trace.json": {
        "role": "actor_infer", "scope": "my_func", "rank": 0, "host": "host7", "pid": 99,
        "start": "1771730291744166997",
    },
    # NeMo-RL: `<worker>/<rank>/…`
    "dtensor_policy_worker/0/host7_99.1771730291744166997.pt.trace.json": {
        "role": "dtensor_policy_worker", "rank": 0, "host": "host7", "pid": 99,
        "start": "1771730291744166997",
    },
    "vllm_generation_worker/host7_99.1771730291744166997.pt.trace.json": {
        "role": "vllm_generation_worker", "host": "host7", "pid": 99, "start": "1771730291744166997",
    },
}  # fmt: skip

OTHER_TOOLS = {
    "step3/torch_memory_rank1_pid77.pickle": {"step": 3, "rank": 1, "pid": 77},
    "steps3-5/torch_memory_rank1_pid77.pickle": {
        "step": 3, "rank": 1, "pid": 77, "part": "steps3-5",
    },
    "oom_20261120-101500-123456/torch_memory_oom_rank0_pid77.pickle": {
        "rank": 0, "pid": 77, "part": "oom_20261120-101500-123456",
    },
    "20261120-1015/torch_memory_rank0_pid77.pickle": {
        "rank": 0, "pid": 77, "part": "20261120-1015",
    },
    "memory/snapshot_3.pickle": {"rank": 3},
    "memory/snapshot_oom_rank-3.pickle": {"rank": 3},
    "memory_snapshot_time1790000000_rank5_rollout": {"rank": 5},
    "actor_train-0/train_step/snapshot_20261120_101500.pickle": {
        "role": "actor_train", "scope": "train_step", "rank": 0,
    },
    "memory_snapshots/step_4/snapshot_rank07_p0d1c0t2.pickle": {"step": 4, "rank": 7},
    "iteration_12_exit/rank3_memory_snapshot.pickle": {"step": 12, "rank": 3},
    "worker_process_24151.nsys-rep": {"pid": 24151},
    "worker_process_24151.2.nsys-rep": {"pid": 24151, "part": "range2"},
    "node-3_worker_process_24151.1.nsys-rep": {"host": "node-3", "pid": 24151, "part": "range1"},
    "actor_rollout_node-3_worker_process_24151.sqlite": {
        "role": "actor_rollout", "host": "node-3", "pid": 24151,
    },
    "dtensor_policy_worker_2:3_1234.nsys-rep": {
        "role": "dtensor_policy_worker", "step": 2, "pid": 1234,
    },
    "vllm_tp_worker_2:5_1234.1.nsys-rep": {
        "role": "vllm_tp_worker", "step": 2, "pid": 1234, "part": "steps2-4-range1",
    },
}  # fmt: skip

SAY_NOTHING = (
    "trace.json.gz",
    "rank_non_gpu.json.gz",
    "benchmark_result_493459_1694039959_trace.json.gz",
    "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "control.json.gz",
    "ranking12.json",
    "crank3.json",
    "local_rank_3.json",
    "node_rank-1.json",
    "rank_20261120.json",
    "rank3_rank4.json",
    "rank3b.json",
    "step.json",
    "memory_timeline.raw.gz",
    "reference/trace.json.gz",
    "train/trace.json.gz",
    "baseline/trace.json.gz",
    "critic-2/outputs/trace.json.gz",
    "e2e/outputs/trace.json.gz",
    "20261120-1015/trace.json.gz",
    "7/trace.json.gz",
    "",
)

KNOWN = {**VERL_FLAT, **VERL_FOLDERS, **ENGINES, **TORCH, **OTHER_TOOLS}


def facts(path):
    return read_name(tuple(path.split("/")))


@pytest.mark.parametrize("path", KNOWN)
def test_a_known_layout_is_read_completely_and_nothing_is_added(path):
    want = NameFacts(**KNOWN[path])
    got = facts(path)
    if path.split("/")[0].split("-")[0] in ("actor_train", "actor_infer") or "_worker/" in path:
        assert got.worker is not None  # the directory or the file: either tells the process
        got = NameFacts(**{n: getattr(got, n) for n in NameFacts.__slots__ if n != "worker"})
    assert got == want


@pytest.mark.parametrize("path", SAY_NOTHING)
def test_a_name_that_states_nothing_gives_nothing(path):
    assert facts(path) == NameFacts()


def test_no_parts_give_nothing():
    assert read_name(()) == NameFacts()


@pytest.mark.parametrize("path", KNOWN)
def test_directories_above_that_say_nothing_change_nothing(path):
    assert facts(f"data/outputs/profile/{path}") == facts(path)


def test_a_directory_behind_one_that_says_nothing_is_not_believed():
    assert facts("actor/step3/old/rank1.json.gz") == NameFacts(rank=1)


def test_the_file_name_is_believed_before_its_directory():
    assert facts("step3/step_4_rank1.json.gz").step == 4


@pytest.mark.parametrize(
    "folder", ["e2e", "actor_update", "critic", "step3", "rank0", "agent_loop_rollout_replica_1", "value-model"]
)
def test_role_stage_step_rank_and_replica_folders_say_something(folder):
    assert states_any_fact(folder)


@pytest.mark.parametrize(
    "folder", ["run1", "outputs", "profile", "base", "reference", "v080_e2e", "20261120", "train", ""]
)
def test_other_folders_say_nothing(folder):
    assert not states_any_fact(folder)


def test_numbers_sort_as_numbers():
    names = ["rank10", "rank2", "a", "rank2b", "9", "10"]
    assert sorted(names, key=make_natural_key) == ["9", "10", "a", "rank2", "rank2b", "rank10"]


def test_shown_escapes_what_a_terminal_or_utf8_would_not_take():
    assert make_displayable("a\nb\x1b[31m\udcff\u202e€") == "a\\nb\\x1b[31m\\xff\\u202e€"


def test_suffixes_that_say_only_how_a_file_is_written_are_not_part_of_the_stem():
    assert {strip_format_suffixes(f"a{s}") for s in (".json", ".json.gz", ".pt.trace.json.gz", ".nsys-rep")} == {"a"}


names = st.text(max_size=80) | st.from_regex(
    r"(rank|step|pid|TP|prof_rank|_|-|\.|of|[0-9]{1,30}|dp|mb|json|gz|\n|%|\u0663){0,14}", fullmatch=True
)


@given(st.lists(names, max_size=6))
def test_any_name_is_read_without_an_error_and_unstated_numbers_stay_unknown(parts):
    got = read_name(tuple(parts))
    digits = "".join(parts)
    for number in (got.rank, got.step, got.world_size, got.replica, got.pid):
        assert number is None or (number >= 0 and str(number) in digits)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="0")), max_size=5))
def test_rank_zero_is_never_invented(parts):
    assert read_name(tuple(parts)).rank != 0


@given(st.text())
def test_shown_text_is_always_encodable_and_on_one_line(text):
    assert len(make_displayable(text).encode().splitlines()) <= 1


@given(st.text(), st.text())
def test_natural_keys_of_any_two_texts_can_be_compared(one, other):
    assert (make_natural_key(one) < make_natural_key(other)) or (make_natural_key(one) >= make_natural_key(other))


@pytest.mark.parametrize("one", ["actor-rollout-ref", "Actor_Rollout.Ref", " actor__rollout ref"])
def test_labels_match_in_any_spelling(one):
    assert normalize_label_words(one) == "actor_rollout_ref"


def test_labels_of_other_scripts_stay_distinct():
    assert len({normalize_label_words("演员"), normalize_label_words("评论家"), ""}) == 3
