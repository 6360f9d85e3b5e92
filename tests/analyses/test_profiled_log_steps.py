"""Steps that a profiler recorded, by the configuration that the driver printed: they are longer and do not count."""

from pprint import pformat

import pytest
from command_line import invoke
from training_logs import verl_line

PREFIX = "\x1b[36m(TaskRunnerV1 pid=77)\x1b[0m "
PROFILER = {"tool": "torch", "steps": [3, 5]}


def write_log(path, profiler=PROFILER, *, steps=range(1, 9), break_at=(), extra=None):
    """Write a log of steps of 1 s, or of 4 s in steps 3 and 5, after its configuration in the form of verl under Ray.

    Lines of the configuration with one of the words `break_at` are printed as two, after their colon.
    """
    config = {
        "actor_rollout_ref": {"actor": {"use_dynamic_bsz": False}},
        "data": {"name": "it's"},
        "global_profiler": profiler,
    }
    lines = []
    for line in pformat(config, width=60).splitlines():
        head, colon, rest = line.partition(": ")
        is_broken = any(word in head for word in break_at)
        lines += [head + colon, rest] if is_broken else [line]
        if extra and "use_dynamic_bsz" in line:
            lines.append(extra)
    for step in steps:
        lines.append(
            verl_line(step, {"timing_s/gen": 0.9, "timing_s/step": 4.0 if step in (3, 5) else 1.0}).rstrip("\n")
        )
    path.write_text("".join(f"{PREFIX}{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"break_at": ("tool",)}, {"break_at": ("steps", "use_dynamic_bsz", "name")},
        {"extra": "WARNING:2026-01-01: 2 threads"}, {"break_at": ("steps",), "extra": "WARNING: x"},
    ],
)  # fmt: skip
def test_profiled_steps_do_not_count(tmp_path, changes):
    """Of 8 steps, the first 2 and the profiled steps 3 and 5 are left out: a step takes 1 s."""
    text = " ".join(invoke("analyze", write_log(tmp_path / "train.log", **changes)).stdout.split())
    assert "(step, wall) 1,000.0 100.0 %" in text
    assert "Mean of 4 steps without the first 2 and profiled steps 3, 5." in text
    assert "8 steps, no profile. By its configuration, a profiler recorded steps 3, 5." in text


@pytest.mark.parametrize(
    "profiler", [{"tool": None, "steps": [3, 5]}, {"tool": "torch", "steps": None}, {"tool": "torch", "steps": "a/b"}]
)
def test_steps_count_without_a_profiler(tmp_path, profiler):
    text = " ".join(invoke("analyze", write_log(tmp_path / "train.log", profiler)).stdout.split())
    assert "(step, wall) 2,000.0 100.0 %" in text
    assert "Mean of 6 steps without the first 2. Stages" in text
    assert "a profiler recorded" not in text


def test_a_comparison_leaves_profiled_steps_out(tmp_path):
    """Equal runs of which one was profiled: no difference."""
    write_log(tmp_path / "base.log")
    write_log(tmp_path / "opt.log", {"tool": None, "steps": None}, steps=[1, 2, 4, 6, 7, 8])
    text = " ".join(invoke("compare", tmp_path / "base.log", tmp_path / "opt.log").stdout.split())
    assert "step, un-profiled 1,000 ms → 1,000 ms" in text
