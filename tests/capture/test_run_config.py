"""Whole configurations, of verl 0.9 and of 2025-06, give the same plan and role blocks."""

import logging
import re

import pytest

from capture import ProfilerConfig, run_config
from capture.run_config import colocated, read_global, read_role, surprises
from capture.steps import StepPlan

NSYS = {"trace": "cuda,nvtx", "capture-range": "cudaProfilerApi", "capture-range-end": None}
NEW = {
    "global_profiler": {
        "_target_": "verl.utils.profiler.ProfilerConfig",
        "tool": "torch_memory",
        "steps": [5, 1, 2],
        "profile_continuous_steps": True,
        "save_path": "out",
        "global_tool_config": {
            "nsys": {"worker_nsight_options": NSYS, "controller_nsight_options": {"trace": "nvtx"}},
            "torch_memory": {"context": "alloc", "stacks": "python", "kw_args": {"clear_history": True}},
        },
    },
    "actor_rollout_ref": {
        "actor": {
            "profiler": {
                "_target_": "capture.ProfilerConfig",
                "tool": "torch_memory",
                "enable": True,
                "all_ranks": True,
                "ranks": [],
                "tool_config": {"torch_memory": {"stack_depth": 8, "name": "torch_memory"}, "npu": {}},
            }
        },
        "ref": {"profiler": {"tool": None, "enable": False}},
    },
}  # fmt: skip
OLD = {
    "trainer": {"profile_steps": [1, 2, 5], "worker_nsight_options": NSYS},
    "actor_rollout_ref": {
        "actor": {"profiler": {"discrete": True, "all_ranks": False, "ranks": [0, 1]}},
        "ref": {"profiler": {"discrete": False, "all_ranks": False, "ranks": None}},
    },
}


def changed(config, **changes):
    """The configuration with other values at dotted paths (`__` for the dot)."""
    config = {key: changed(value) if isinstance(value, dict) else value for key, value in config.items()}
    for path, value in changes.items():
        *above, last = path.split("__")
        place = config
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value
    return config


def test_the_global_block_is_read_though_it_cannot_be_instantiated():
    found = read_global(NEW)
    assert found.tool == "torch_memory"
    assert found.plan == StepPlan((1, 2, 5), continuous=True)
    assert found.save_path == "out"
    assert found.worker_nsight_options == NSYS
    assert found.controller_nsight_options == {"trace": "nvtx"}
    assert read_global(NEW["global_profiler"]) == found


def test_the_form_of_2025_means_nsys():
    found = read_global(OLD)
    assert (found.tool, found.plan.steps, found.worker_nsight_options) == ("nsys", (1, 2, 5), NSYS)
    assert read_global({"trainer": {"profile_steps": None}}).tool is None
    assert read_global({}).plan.steps == ()


def test_unknown_keys_are_passed_over_with_a_word(caplog):
    with caplog.at_level(logging.WARNING, "capture"):
        found = read_global({"global_profiler": {"steps": [1], "discrete": True, "dir": "x"}})
    assert found.plan.steps == (1,)
    assert "dir, discrete" in caplog.text


def test_a_role_takes_what_it_leaves_open_from_the_global_block():
    block = read_role(NEW, "actor_rollout_ref.actor")
    assert isinstance(block, ProfilerConfig)
    assert (block.tool, block.enable, block.all_ranks, block.save_path) == ("torch_memory", True, True, "out")  # fmt: skip
    assert (block.tool_config.stack_depth, block.tool_config.trace_alloc_max_entries) == (8, 100_000)
    assert block.global_tool_config["torch_memory"]["stacks"] == "python"
    ref = read_role(NEW, "actor_rollout_ref.ref")
    assert (ref.tool, ref.enable) == ("torch_memory", False)


def test_a_role_block_of_2025_is_enabled_by_the_steps():
    block = read_role(OLD, "actor_rollout_ref.actor")
    assert (block.tool, block.enable, block.ranks) == ("nsys", True, [0, 1])
    assert block.tool_config.discrete is True
    assert read_role(OLD, "actor_rollout_ref.ref").ranks == []
    without = changed(OLD, trainer__profile_steps=None)
    assert read_role(without, "actor_rollout_ref.actor").enable is False


def test_what_a_tool_refuses_is_refused():
    wrong = changed(NEW, actor_rollout_ref__actor__profiler__tool_config__torch_memory={"stack_depth": 0})  # fmt: skip
    with pytest.raises(AssertionError, match="stack_depth must be positive"):
        read_role(wrong, "actor_rollout_ref.actor")
    torch = changed(
        NEW,
        actor_rollout_ref__actor__profiler={
            "tool": "torch",
            "enable": True,
            "tool_config": {"torch": {"contents": ["cpu"], "schedule": {"active": 2, "_target_": "x.y"}}},
        },
    )
    tool = read_role(torch, "actor_rollout_ref.actor").tool_config
    assert (tool.contents, tool.schedule.active, tool.schedule.enabled) == (["cpu"], 2, True)


def test_the_actors_block_counts_and_the_others_must_agree_on_discrete():
    make = lambda enable, discrete: ProfilerConfig(  # noqa: E731
        tool="torch", enable=enable, tool_config={"discrete": discrete}
    )
    actor, ref = make(True, True), make(True, False)
    assert colocated({"ref": make(True, True), "actor": actor}) is actor
    assert colocated({"rollout": ref, "ref": make(False, True)}) is ref
    with pytest.raises(ValueError, match="must agree on discrete, got actor: True, ref: False"):
        colocated({"actor": actor, "ref": ref})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"global_profiler__tool": "nsys"}, ["actor_rollout_ref.actor: the role records with torch_memory"]),
        ({"global_profiler__steps": None}, ["actor_rollout_ref.actor: enabled, but"]),
        ({"actor_rollout_ref__actor__profiler__enable": False}, ["global_profiler.steps names steps, but no role"]),
        (
            {
                "actor_rollout_ref__actor__profiler__enable": False,
                "actor_rollout_ref__ref__profiler__enable": True,
                "actor_rollout_ref__ref__profiler__tool": "torch_memory",
            },
            ["actor_rollout_ref.ref: enabled without the actor"],
        ),
        (
            {
                "global_profiler__tool": "torch",
                "actor_rollout_ref__actor__profiler__tool": "torch",
                "actor_rollout_ref__ref__profiler": {
                    "enable": True,
                    "tool_config": {"torch": {"discrete": True}},
                },
            },
            ["actor_rollout_ref.actor, actor_rollout_ref.ref: discrete differs"],
        ),
        ({"global_profiler__steps": "[1,2]"}, ["global_profiler.steps is '[1,2]', not a list"]),
        ({"global_profiler__steps": 3}, ["global_profiler.steps is 3, not a list"]),
        (
            {"global_profiler__tool": None, "actor_rollout_ref__actor__profiler__tool": None},
            ["actor_rollout_ref.actor: enabled, but neither the role nor the global block names a tool"],
        ),
        (
            {"actor_rollout_ref__actor__profiler__relocate_results": True},
            ["actor_rollout_ref.actor: relocate_results: no effect, the tool torch_memory writes to save_path"],
        ),
        (
            {
                "global_profiler__tool": "nsys",
                "actor_rollout_ref__actor__profiler__tool": "nsys",
                "actor_rollout_ref__actor__profiler__relocate_results": True,
                "global_profiler__global_tool_config__nsys": {
                    "worker_nsight_options": {"output": "here", "capture-range-end": None}
                },
            },
            [
                "actor_rollout_ref.actor: relocate_results: nsys writes its reports when",
                "worker_nsight_options.output: Ray passes `-o` to nsys too",
            ],
        ),
        (
            {
                "global_profiler__tool": "torch",
                "actor_rollout_ref__actor__profiler": {
                    "tool": "torch",
                    "enable": True,
                    "tool_config": {"torch": {"profile_token_end": 5}},
                },
            },
            ["actor_rollout_ref.actor: profile_token_end: no effect here"],
        ),
    ],
)  # fmt: skip
def test_what_surprises_is_told(changes, told):
    found = surprises(changed(NEW, **changes))
    assert len(found) == len(told)
    assert all(text.startswith(start) for text, start in zip(found, told, strict=True))


def test_reading_the_global_block_logs_what_surprises_once_and_never_fails_for_a_role(caplog):
    wrong = changed(
        NEW,
        global_profiler__tool="nsys",
        global_profiler__save_path="somewhere/else",
        actor_rollout_ref__actor__profiler__ranks=[7],
    )
    run_config._warn_run_once.cache_clear()
    with caplog.at_level(logging.WARNING, "capture"):
        for _ in range(2):
            assert read_global(wrong).tool == "nsys"
    assert [r.getMessage() for r in caplog.records] == [f"profiler configuration: {text}" for text in surprises(wrong)]
    refused = changed(NEW, actor_rollout_ref__actor__profiler__tool_config__torch_memory={"stack_depth": 0})  # fmt: skip
    assert read_global(refused).plan.steps


ONE = {
    "trainer": {"nnodes": 2, "n_gpus_per_node": 4, "total_training_steps": None},
    "global_profiler": {"tool": "torch", "steps": [1, 2]},
    "actor_rollout_ref": {
        "actor": {
            "profiler": {
                "tool": "torch",
                "enable": True,
                "all_ranks": False,
                "ranks": [0],
                "tool_config": {"torch": {"discrete": False}},
            }
        }
    },
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"actor_rollout_ref__actor__profiler__ranks": [7]}, []),
        (
            {"actor_rollout_ref__actor__profiler__ranks": [99]},
            ["actor_rollout_ref.actor: ranks [99] do not exist: the run has ranks 0 to 7; nothing is profiled"],
        ),
        (
            {"actor_rollout_ref__actor__profiler__ranks": [0, 8]},
            ["actor_rollout_ref.actor: ranks [8] do not exist: the run has ranks 0 to 7; only the others are profiled"],
        ),
        (
            {"actor_rollout_ref__actor__profiler__ranks": [99], "actor_rollout_ref__actor__profiler__all_ranks": True},
            [],
        ),
        ({"actor_rollout_ref__actor__profiler__ranks": [99], "trainer__nnodes": None}, []),
        ({"global_profiler__steps": [0]}, ["steps [0]: steps count from 1; nothing is profiled"]),
        ({"global_profiler__steps": [0, 3]}, ["steps [0]: steps count from 1; the other steps are profiled"]),
        (
            {"global_profiler__steps": [500], "trainer__total_training_steps": 5},
            ["steps [500]: this run has steps 1 to 5; nothing is profiled"],
        ),
        ({"global_profiler__steps": [5], "trainer__total_training_steps": 5}, []),
        (
            {"trainer__profile_steps": [1, 2], "global_profiler__steps": None, "actor_rollout_ref__actor__profiler__enable": False},
            ["trainer.profile_steps: old key without effect, use global_profiler.steps"],
        ),
        (
            {"trainer__worker_nsight_options": {"trace": "cuda"}},
            [
                ("trainer.worker_nsight_options: old key without effect, use "
                "global_profiler.global_tool_config.nsys.worker_nsight_options")
            ],
        ),
        (
            {"actor_rollout_ref__actor__profiler__discrete": True},
            [
                ("actor_rollout_ref.actor.profiler.discrete: old key without effect, use "
                "actor_rollout_ref.actor.profiler.tool_config.torch.discrete")
            ],
        ),
        (
            {"global_profiler__tool": None, "actor_rollout_ref__actor__profiler__tool": None},
            [
                ("actor_rollout_ref.actor: enabled, but neither the role nor the global block names a tool: "
                "nothing is profiled; set global_profiler.tool")
            ],
        ),
        (
            {"actor_rollout_ref__actor__profiler__tool": "torhc"},
            [
                ("actor_rollout_ref.actor: there is no tool 'torhc': nothing is profiled; "
                "tools are nsys, torch, torch_memory, npu, precision_debugger")
            ],
        ),
        (
            {
                "critic": {"profiler": {"tool": "torch", "enable": True, "ranks": [99]}},
                "actor_rollout_ref__actor__profiler__ranks": [99],
            },
            [
                ("actor_rollout_ref.actor, critic: ranks [99] do not exist: the run has ranks 0 to 7; "
                "nothing is profiled")
            ],
        ),
        (
            {"actor_rollout_ref__actor__profiler__tool": None, "actor_rollout_ref__actor__profiler__ranks": [99]},
            [
                ("actor_rollout_ref.actor: enabled, but its own tool is null, which the global tool torch does not replace: "
                "nothing is profiled; set actor_rollout_ref.actor.profiler.tool=torch")
            ],
        ),
    ],
)  # fmt: skip
def test_what_is_never_profiled_is_said_once_and_precisely(changes, said):
    assert surprises(changed(ONE, **changes)) == said


ACTOR = "actor_rollout_ref__actor__profiler"
TOOLS = {
    "a tool": {},
    "no tool": {"global_profiler__tool": None, f"{ACTOR}__tool": None},
    "no tool of its own": {f"{ACTOR}__tool": None},
    "not enabled": {f"{ACTOR}__enable": False},
}


@pytest.mark.parametrize("steps", [[1, 2], [0, 2], [0], [2, 500], None])
@pytest.mark.parametrize("ranks", [[0], [0, 99], [99]])
@pytest.mark.parametrize("tool", TOOLS)
def test_no_sentence_claims_a_profile_that_nobody_takes(tool, ranks, steps):
    changes = {**TOOLS[tool], f"{ACTOR}__ranks": ranks, "global_profiler__steps": steps}
    is_profiled = tool == "a tool" and 0 in ranks and bool({1, 2} & {*(steps or ())})
    sentences = surprises(changed(ONE, trainer__total_training_steps=5, **changes))
    claims = [text for text in sentences if re.search(r"(others|steps) are profiled", text)]
    assert is_profiled or not claims
    is_asked = tool != "not enabled" or steps is not None
    is_refused = any("nothing is profiled" in text for text in sentences)
    assert is_refused == (is_asked and not is_profiled)


@pytest.mark.parametrize("elsewhere", [{"RANK": "3"}, {"RANK": "0", "WG_BACKEND": "ray"}])
def test_a_run_logs_it_once_in_its_driver_or_on_rank_0(caplog, monkeypatch, elsewhere):
    wrong = changed(ONE, global_profiler__steps=[0])
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    read_global(wrong)
    assert caplog.text == ""
    assert run_config.without_effect == ["steps [0]: steps count from 1; nothing is profiled"]
    run_config._warn_run_once.cache_clear()
    monkeypatch.delenv("WG_BACKEND", raising=False)
    monkeypatch.setenv("RANK", "0")
    read_global(wrong)
    assert caplog.text.count("steps [0]") == 1
