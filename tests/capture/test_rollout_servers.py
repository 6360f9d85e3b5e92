"""Rollout servers are processes of their own: they record when enabled, selected and discrete, whatever the actor does."""

import itertools
import json

import pytest
import verl_python

from capture.run_config import surprises

ROLE = "actor_rollout_ref.rollout"


def whole(engine="vllm", *, tool="torch", discrete=True, ranks=(0,), enable=True, actor=None, size=2):
    """A run of two replicas on four GPUs, its rollout profiled so; the actor's block where one is given."""
    settings = {name: {"discrete": discrete} for name in ("torch", "npu", "nsys")}
    profiler = {"tool": tool, "enable": enable, "all_ranks": ranks is None, "ranks": list(ranks or ()), "tool_config": settings}  # fmt: skip
    config = {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 2 * size},
        "global_profiler": {"tool": tool, "steps": [1]},
        "actor_rollout_ref": {"rollout": {"name": engine, "nnodes": 0, "n_gpus_per_node": 2, "profiler": profiler}},
    }
    if actor is not None:
        config["actor_rollout_ref"]["actor"] = {"profiler": actor}
    return config


def test_enabled_alone_is_no_fault():
    off = {"tool": "torch", "enable": False, "tool_config": {"torch": {"discrete": False}}}
    assert surprises(whole(actor=off)) == []


def test_other_than_the_actor_in_discrete_is_no_fault():
    whole_step = {"tool": "torch", "enable": True, "tool_config": {"torch": {"discrete": False}}}
    assert surprises(whole(actor=whole_step)) == []


@pytest.mark.parametrize("engine", ["vllm", "vllm_omni", "sglang"])
@pytest.mark.parametrize("tool", ["torch", "npu"])
def test_without_discrete_servers_write_nothing_and_it_is_said(engine, tool):
    assert surprises(whole(engine, tool=tool, discrete=False)) == [
        (
            f"{ROLE}: {engine} servers record only in discrete mode: they write no trace; set "
            f"{ROLE}.profiler.tool_config.{tool}.discrete=True"
        )
    ]
    assert surprises(whole(engine, tool=tool, discrete=True)) == []


def test_other_tools_record_no_server():
    assert surprises(whole("sglang", tool="nsys")) == [
        f"{ROLE}: sglang servers record with torch or npu only, not nsys: they write no trace"
    ]
    assert surprises(whole("trtllm", tool="nsys", discrete=False)) == []


def test_ranks_of_a_pool_of_its_own_exist():
    config = whole(ranks=[5])
    assert surprises(config) == [f"{ROLE}: ranks [5] do not exist: the run has ranks 0 to 3; nothing is profiled"]
    config["actor_rollout_ref"]["rollout"]["nnodes"] = 1
    assert surprises(config) == []


def test_the_reward_models_servers_are_checked_as_well():
    config = whole()
    rollout = config["actor_rollout_ref"].pop("rollout")
    config["reward"] = {"reward_model": {"rollout": rollout}}
    rollout["profiler"]["tool_config"]["torch"]["discrete"] = False
    (said,) = surprises(config)
    assert said.startswith("reward.reward_model.rollout: vllm servers record only in discrete mode")


if verl_python.PYTHON:

    @pytest.mark.slow
    def test_a_warning_is_given_exactly_where_none_of_verls_own_servers_records():
        choices = itertools.product(
            ("vllm", "sglang", "trtllm"),
            ("torch", "nsys", "torch_memory", None),
            (True, False),
            (True, False),
            (None, (), (0,), (3,), (99,)),
        )
        cases = [
            {"engine": engine, "tool": tool, "discrete": discrete, "enable": enable, "ranks": ranks}
            for engine, tool, discrete, enable, ranks in choices
        ]
        configs = [whole(**case) for case in cases]
        asked = []
        for case, config in zip(cases, configs, strict=True):
            block = config["actor_rollout_ref"]["rollout"]["profiler"]
            profiler = {**block, "save_path": "out", "tool_config": {"discrete": case["discrete"]}}
            if case["engine"] == "trtllm":  # its nsys settings come from the global block
                profiler["global_tool_config"] = {"nsys": None}
            asked += [
                {"engine": case["engine"], "replica": replica, "size": 2, "profiler": profiler} for replica in (0, 1)
            ]
        program = verl_python.ROOT / "tests" / "support" / "rollout_servers.py"
        done = verl_python.run(program, given=json.dumps(asked))
        records = json.loads(done.stdout.splitlines()[-1])
        recorded = [any(records[place : place + 2]) for place in range(0, len(records), 2)]
        assert 0 < sum(recorded) < len(recorded)
        wrong = []
        for case, config, does in zip(cases, configs, recorded, strict=True):
            said = surprises(config)
            if bool(said) == does:
                wrong.append((case, does, said))
        assert wrong == []
