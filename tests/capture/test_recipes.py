"""The recipes in `examples/capture.md` are what Hydra and verl's configuration take, and do what they say."""

import json
import re
import shlex

import pytest
import verl_python

from capture.nemo import nsight_config, step_range

TEXT = (verl_python.ROOT / "examples" / "capture.md").read_text(encoding="utf-8")


def recipes(program):
    """The words after the program, of every command that runs it."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    commands = [shlex.split(block.replace("\\\n", " ")) for block in blocks]
    return [words[words.index(program) + 1 :] for words in commands if program in words]


def test_no_override_adds_what_is_there_already():
    scripts = (
        "examples/flowgrpo_trainer/qwen_image/run_qwen_image_ocr_lora.sh",
        "examples/gspo_trainer/qwen3_omni/run_qwen3_omni_thinker_gspo_lora_v1.sh",
    )
    commands = [*recipes("verl.trainer.main_ppo"), *(c for script in scripts for c in recipes(script))]  # fmt: skip
    assert len(commands) == 9
    for word in (word for words in commands for word in words):
        assert re.fullmatch(r"[a-z_]+(\.[a-z_-]+)+=\S+", word), word


def test_the_variables_of_nemo_mean_what_is_said():
    (block,) = re.findall(r"```sh\n(NRL_.*?)```", TEXT, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    variables = dict(word.split("=", 1) for word in words if word.startswith("NRL_"))
    assert list(step_range(variables)) == [3, 4]
    assert nsight_config("vllm_generation_worker", variables)["nsight"]["cuda-memory-usage"] == "true"
    assert nsight_config("megatron_value_worker", variables) == {}


if verl_python.PYTHON:

    @pytest.fixture(scope="module")
    def composed():
        """What verl's trainer makes of each recipe."""
        given = json.dumps(recipes("verl.trainer.main_ppo"))
        done = verl_python.run(verl_python.ROOT / "tests" / "support" / "hydra_overrides.py", given=given)
        return json.loads(done.stdout.splitlines()[-1])

    @pytest.mark.slow
    def test_verls_configuration_takes_every_recipe(composed):
        submitted, whole, switched, by_stage, memory, nsys = composed
        assert (submitted["tool"], submitted["steps"], submitted["enable"]) == ("torch", [2, 4], True)
        assert (whole["tool"], whole["steps"], whole["enable"]) == ("torch", [1, 2, 5], True)
        assert whole["tool_config"]["contents"] == ["cpu", "cuda"]
        assert switched["target"] == "verl.utils.profiler.ProfilerConfig"  # nothing is edited
        assert (switched["tool"], switched["steps"], switched["enable"]) == ("torch", [1, 2, 5], True)
        assert by_stage["tool_config"]["discrete"] is True
        assert by_stage["tool_config"]["schedule"]["active"] == 2
        assert memory["tool"] == "torch_memory"
        assert nsys["range_end"] == f"repeat-shutdown:{nsys['captures']}"
        # verl's rollout inherits `enable` and `discrete` from the actor, and its servers need both.
        assert by_stage["surprises"] == []
        for recipe, why in ((whole, "in discrete mode"), (memory, "with torch"), (nsys, "with torch")):
            (text,) = recipe["surprises"]
            assert text.startswith(
                (
                    "actor_rollout_ref.rollout: vllm servers record only",
                    "actor_rollout_ref.rollout: vllm servers record with torch or npu only",
                )
            )
            assert why in text
