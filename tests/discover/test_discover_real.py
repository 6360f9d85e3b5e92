"""Real trees of profiles: their runs, roles, ranks and steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from discovered import REAL, by_run, find, real, sniff

from tracekit.discover import discover
from tracekit.discover import nsys_files as nsys_pairs
from tracekit.readers import loading


def real_tree(*parts):
    return find(Path(REAL or "").joinpath("chrome", *parts))


def kinds(discovery):
    return {(s.role, s.scope, s.step, s.rank, s.part) for s in discovery.sources}


@real
def test_real_verl_091_gives_each_role_rank_and_step_once():
    got = real_tree("verl_cpu", "v091_e2e_all_ranks")
    assert len(got.sources) == 12
    assert kinds(got) == {
        (role, scope, step, rank, None)
        for role, scope in (("actor-rollout-ref", "train"), ("value-model", None))
        for step in (1, 2, 4)
        for rank in (0, 1)
    }
    assert {(s.run, s.world_size, s.notes) for s in got.sources} == {("v091_e2e_all_ranks", 2, ())}
    assert {i.path.name for i in got.ignored} == {
        "config_profiler.yaml", "meta.json", "metrics.jsonl", "overrides.txt", "ray_timeline.json",
    }  # fmt: skip


@real
def test_real_verl_091_schedule_gives_the_windows_as_parts():
    got = real_tree("verl_cpu", "v091_schedule_discrete", "outputs", "profile")
    assert {(s.scope, s.part) for s in got.sources} == {
        ("actor-compute-log-prob", None), ("actor-update", "mb1"), ("actor-update", "mb3"),
        ("ref-compute-log-prob", None), ("rollout-generate", None),
    }  # fmt: skip


@real
@pytest.mark.parametrize(("version", "role"), [("v080_e2e", None), ("v090_e2e", "actor-rollout-ref")])
def test_real_verl_folders_give_successive_captures(version, role):
    got = real_tree("verl_cpu", version)
    assert kinds(got) == {(role, "e2e", None, rank, f"capture{n}") for rank in (0, 1) for n in (1, 2, 3)}
    assert len({s.run for s in got.sources}) == 1


@real
@pytest.mark.parametrize(("version", "joint"), [("v080_discrete", "_"), ("v090_discrete", "-")])
def test_real_verl_stage_folders_are_one_run(version, joint):
    got = real_tree("verl_cpu", version)
    stages = ("actor compute log prob", "actor update", "ref compute log prob", "rollout generate")
    assert {s.scope for s in got.sources} == {s.replace(" ", joint) for s in stages}
    assert {(s.run, s.rank, s.step) for s in got.sources} == {(version, 0, None)}


@real
def test_real_runs_below_one_directory_are_told_apart():
    assert sorted(by_run(real_tree("verl_cpu"))) == [
        "v080_discrete", "v080_e2e", "v090_discrete", "v090_e2e", "v091_contents_default",
        "v091_contents_full", "v091_discrete", "v091_e2e_all_ranks", "v091_e2e_continuous",
        "v091_schedule_discrete", "v091_schedule_e2e", "v091_straggler",
    ]  # fmt: skip
    gloo = {run: len(names) for run, names in by_run(real_tree("gloo_cpu")).items()}
    assert gloo == {
        "base_mem": 1, "base_run1": 4, "base_run2": 4, "base_run3": 4, "fault_leak": 2, "fault_tiny_ops": 1,
        "opt_run1": 4, "opt_run2": 4, "opt_run3": 4, "straggler": 4, "verl_like_perstep": 8,
    }  # fmt: skip
    assert len(by_run(real_tree("hta"))) == 9


@real
def test_real_rl_insight_tree_is_one_run_with_a_rollout_replica():
    got = real_tree("rl_insight")
    assert kinds(got) == {
        *((None, "actor_update", None, rank, None) for rank in (0, 1)),
        ("rollout", None, None, None, "capture1"),
        ("rollout", None, None, None, "capture2"),
    }  # fmt: skip
    assert {s.replica for s in got.sources if s.role == "rollout"} == {0}
    # Its stubs of two stages hold the same text, compressed at two times.
    assert [n.source for n in got.notes if n.code == "same-content"] == [
        "torch_data/torch_profile/actor_compute_log_prob/prof_rank-0_031847.json.gz"
    ]
    assert got.state_counts() == {"duplicate": 2}
    assert {s.run for s in got.sources} == {"rl_insight"}


@real
def test_real_tensorboard_directories_are_two_runs_of_two_captures():
    got = real_tree("kineto_tb_plugin")
    assert [(s.run, s.part, s.rank) for s in got.sources] == [
        (f"resnet50_num_workers_{n}", f"capture{c}", None) for n in (0, 4) for c in (1, 2)
    ]


@real
def test_real_nsys_reports_are_read_from_the_exports_beside_them():
    got = discover([Path(REAL or "") / "nsys"], sniff=loading.sniff)
    counts = got.ignored_counts()
    assert counts[nsys_pairs.EXPORT_IS_READ.text] == 29
    assert counts["Git LFS pointer: the file itself was not downloaded"] == 1
    by_reader = [s.path.suffix for s in got.sources if s.tool == "nsys"]
    assert (by_reader.count(".sqlite"), by_reader.count(".qdrep")) == (36, 1)


@real
def test_real_ray_workers_are_told_by_pid_and_capture_range():
    got = discover([Path(REAL or "") / "nsys" / "real_cpu" / "ray_steps"], sniff=loading.sniff)
    assert [(s.pid, s.part, s.step) for s in got.sources] == [
        (pid, f"range{n}", None) for pid in (24151, 24231) for n in (1, 2, 3)
    ]
    assert len({s.run for s in got.sources}) == 1


@real
def test_real_snapshots_are_ignored_by_name_and_pointers_by_content():
    memory = discover([Path(REAL or "") / "memory"], sniff=sniff)
    assert "Git LFS pointer: the file itself was not downloaded" in memory.ignored_counts()
