"""A request that is left in a directory is followed at a coming step, by all ranks at the same one, and costs nothing else."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import types

import pytest
import verl_python

from capture import DistProfiler, ProfilerConfig, driver, trigger
from capture.ray import profiling
from capture.trigger import AHEAD, Watch


@pytest.fixture(autouse=True)
def usr2():
    """SIGUSR2 is as it was afterwards."""
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


class Worker:
    """A worker whose configuration profiles nothing."""

    def __init__(self, rank=0, **config):
        block = {"tool": "torch", "save_path": "nowhere", "tool_config": {}, **config}
        self.profiler = DistProfiler(rank, ProfilerConfig(**block), save_file_prefix="actor")

    @DistProfiler.annotate(role="actor_update")
    def update(self):
        return 7


def traces(folder):
    return sorted(path.name.split("_rank")[0] for path in folder.glob("*.json.gz"))


def run(watch, worker, steps):
    """The numbers of the steps in which the worker was profiled."""
    profiled = []
    for step in steps:
        with watch.profiling(worker.profiler, step):
            assert worker.update() == 7
            if worker.profiler.check_this_step():
                profiled.append(step)
    return profiled


def test_without_a_request_nothing_is_profiled_and_nothing_written(tmp_path, torch):
    assert run(Watch(tmp_path / "none", alone=True), Worker(), range(1, 5)) == []
    assert list(tmp_path.iterdir()) == []


def test_the_next_step_is_profiled_and_then_no_more(tmp_path, torch):
    watch, worker = Watch(tmp_path, alone=True), Worker()
    assert run(watch, worker, [1, 2]) == []
    trigger.trigger(tmp_path, contents=["cpu"])
    assert run(watch, worker, [3, 4, 5]) == [3]
    assert traces(tmp_path) == ["actor_train_step3"]
    trigger.trigger(tmp_path, steps=2)
    assert run(watch, worker, [6, 7, 8]) == [6, 7]
    (path,) = tmp_path.glob("*.manifest")
    account = json.loads(path.read_text())
    assert (account["steps"], account["stages"]) == ([3, 6, 7], ["actor_update"])


def test_a_request_from_before_the_run_is_an_old_one(tmp_path, torch):
    trigger.trigger(tmp_path)
    assert run(Watch(tmp_path, alone=True), Worker(), range(1, 9)) == []


def test_only_the_ranks_that_it_names_are_profiled(tmp_path, torch):
    watch = Watch(tmp_path, alone=True)
    trigger.trigger(tmp_path, ranks=[1])
    request = watch.due(5).settings()
    for rank, expected in ((0, False), (1, True)):
        worker = Worker(rank, enable=True)  # configured for rank 0: that counts on other steps
        worker.profiler.start(profile_step=5, on_demand=request)
        assert worker.profiler.check_this_step() is expected
        worker.profiler.stop()
    trigger.trigger(tmp_path, ranks=None)
    assert watch.due(6).settings()["ranks"] is None


def test_afterwards_the_configuration_counts_again(tmp_path, torch):
    worker = Worker(0, enable=True, save_path=str(tmp_path / "own"))
    watch = Watch(tmp_path, alone=True)
    trigger.trigger(tmp_path)
    assert run(watch, worker, [1, 2]) == [1]
    worker.profiler.start(profile_step=3)
    worker.profiler.stop()
    assert traces(tmp_path) == ["actor_step1".replace("step", "train_step")]
    assert traces(tmp_path / "own") == ["actor_step3"]


def test_a_request_within_a_profiled_step_does_not_disturb_it(tmp_path, torch, caplog):
    worker = Worker(0, enable=True, save_path=str(tmp_path / "own"))
    worker.profiler.start(profile_step=1)
    worker.profiler.start(profile_step=1, on_demand={"tool": "torch", "folder": str(tmp_path)})
    worker.profiler.stop()
    assert "a step is being profiled already" in caplog.text
    assert (traces(tmp_path), traces(tmp_path / "own")) == ([], ["actor_step1"])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": "other"}', '{"schema": "capture/request/1"}', "x" * 100_000,
     '{"schema": "capture/request/1", "id": "1", "ranks": 3}'],
)  # fmt: skip
def test_what_is_no_request_is_logged_once_and_the_run_goes_on(tmp_path, torch, caplog, text):
    watch, worker = Watch(tmp_path, alone=True), Worker()
    (tmp_path / ".capture").mkdir()
    (tmp_path / ".capture" / "request").write_text(text)
    assert run(watch, worker, range(1, 5)) == []
    assert caplog.text.count("request for a profile not followed") == 1


def test_a_tool_that_there_is_none_of_is_logged(tmp_path, torch, caplog):
    watch = Watch(tmp_path, alone=True)
    path = trigger.trigger(tmp_path)
    path.write_text(path.read_text().replace('"torch"', '"none"'))
    run(watch, Worker(), [1, 2])
    assert "there is no tool 'none'" in caplog.text
    assert traces(tmp_path) == []


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"tool": "none"}, "there is no tool 'none'; tools are torch, torch_memory, nsys"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"ranks": []}, "ranks must be 0 or above"),
        ({"ranks": [0, -1]}, "ranks must be 0 or above"),
        ({"contents": ["cpu", "cudda"]}, "gets cudda"),
        ({"content": ["cpu"]}, "torch has no setting content; it has contents, discrete"),
        ({"tool": "torch_memory", "contents": ["cpu"]}, "torch_memory has no setting contents"),
        ({"tool": "torch_memory", "stack_depth": 0}, "stack_depth must be positive"),
    ],
)
def test_a_request_that_no_job_could_follow_is_refused_where_it_is_made(tmp_path, request_, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        trigger.trigger(tmp_path, **request_)
    assert list(tmp_path.iterdir()) == []


def test_the_log_names_the_step_that_a_request_profiles(tmp_path, torch, caplog):
    watch = Watch(tmp_path, alone=True)
    trigger.trigger(tmp_path, ranks=[0, 4])
    run(watch, Worker(), [7, 8])
    said = f"profiling on request: step 7, ranks [0, 4], tool torch, into {tmp_path}"
    assert caplog.text.count("profiling on request") == caplog.text.count(said) == 1
    trigger.trigger(tmp_path, ranks=None, steps=2)
    run(watch, Worker(), [9, 10, 11])
    assert "profiling on request: 2 steps from 9, all ranks" in caplog.text


@pytest.mark.parametrize(("rank", "speaks"), [("0", False), ("2", True), ("3", False)])
def test_without_a_driver_the_first_rank_of_a_request_logs_it(tmp_path, torch, caplog, monkeypatch, rank, speaks):
    monkeypatch.setenv("RANK", rank)
    watch = Watch(tmp_path, on_signal=False)
    trigger.trigger(tmp_path, ranks=[3, 2])
    assert watch.due(1) is None
    assert ("profiling on request: step 3" in caplog.text) is speaks


RANK = """
    import pathlib, sys, time
    import fake_torch, pytest
    sys.path.insert(0, sys.argv[3])
    from capture import DistProfiler
    from capture.trigger import Watch
    folder, rank = sys.argv[1], int(sys.argv[2])
    with pytest.MonkeyPatch.context() as patch:
        fake_torch.Torch().install(patch)
        profiler, watch = DistProfiler(rank), Watch(folder, on_signal=False)
        pathlib.Path(folder, f"{rank}.at").write_text("0")
        while len(list(pathlib.Path(folder).glob("*.at"))) < 3:
            time.sleep(0.001)
        pathlib.Path(folder, f"ready{rank}").touch()
        profiled = []
        for step in range(1, 2000):
            with watch.profiling(profiler, step):
                time.sleep(0.01 + 0.002 * rank % 0.005)
                if profiler.check_this_step():
                    profiled.append(step)
            # Ranks of one job wait for one another; here by files, at most a step apart.
            pathlib.Path(folder, f"{rank}.at").write_text(str(step))
            while min(steps := [int(path.read_text() or 0) for path in pathlib.Path(folder).glob("*.at")]) < step - 1:
                time.sleep(0.001)
            if profiled and step > profiled[-1] + 3 or max(steps) == 9999:
                break
        pathlib.Path(folder, f"{rank}.at").write_text("9999")
    print(profiled)
"""


def test_ranks_without_a_driver_begin_at_one_step(tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANK))
    folder = tmp_path / "profile"
    folder.mkdir()
    tests = str(verl_python.ROOT / "tests" / "support")
    paths = os.pathsep.join((str(verl_python.ROOT), tests))
    ranks = [
        subprocess.Popen(
            [sys.executable, program, folder, str(rank), tests],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        for rank in range(3)
    ]
    until = time.monotonic() + 60
    while len(list(folder.glob("ready*"))) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    trigger.trigger(folder, ranks=[0, 2], contents=["cpu"])
    said = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
    assert said[0] == said[2] != []
    assert said[1] == []
    assert len(traces(folder)) == 2


def test_the_first_rank_to_see_it_leaves_the_others_time(tmp_path, torch, caplog):
    first, second, late = (Watch(tmp_path, on_signal=False) for _ in range(3))
    trigger.trigger(tmp_path, ranks=None)
    assert [first.due(step) is not None for step in (4, 5, 6, 7)] == [False, False, True, False]
    assert AHEAD == 2
    assert [second.due(step) is not None for step in (5, 6, 7)] == [False, True, False]
    assert late.due(9) is None
    assert "came too late: this is step 9" in caplog.text


def test_the_signal_leaves_a_request(tmp_path, torch):
    watch = Watch(tmp_path, alone=True)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert run(watch, Worker(), [1, 2]) == [1]


def test_a_program_that_minds_the_signal_itself_goes_on_doing_so(tmp_path):
    seen = []
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    Watch(tmp_path)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert seen == [signal.SIGUSR2]


def test_the_command_leaves_a_request_and_says_where(tmp_path):
    command = [sys.executable, "-m", "capture.trigger"]
    given = ["--ranks", "0,3", "--steps", "2", "--contents", "cpu,cuda"]
    done = subprocess.run(
        [*command, tmp_path, *given], capture_output=True, text=True, check=True, env=verl_python.environment()
    )  # fmt: skip
    request = json.loads((tmp_path / ".capture" / "request").read_text())
    assert done.stdout.strip() == str(tmp_path / ".capture" / "request")
    assert (request["ranks"], request["steps"]) == ([0, 3], 2)
    assert request["tool_config"] == {"contents": ["cpu", "cuda"]}
    assert f"profiles its next step into {tmp_path}" in done.stderr
    assert "created" not in done.stderr
    done = subprocess.run([*command, tmp_path / "new"], capture_output=True, text=True, check=True, env=verl_python.environment())  # fmt: skip
    assert f"created {tmp_path / 'new'}: check that it is the save_path of the job" in done.stderr
    (tmp_path / "file").touch()
    for wrong in (
        [tmp_path / "file"],
        [tmp_path, "--ranks", "one"],
        [tmp_path, "--ranks=-1"],
        [tmp_path, "--steps", "0"],
        [tmp_path, "--contents", "cpu,cudda"],
        [tmp_path, "--contents", "cpu", "--tool", "torch_memory"],
    ):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True, check=False, env=verl_python.environment())  # fmt: skip
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


class Group:
    """A worker group that answers at once."""

    def __init__(self, calls, name):
        self.calls, self.name = calls, name


@pytest.fixture
def calls(monkeypatch):
    """What drivers ask of worker groups: (start or stop, group, step or whether the command runs)."""
    made = []
    monkeypatch.setattr(
        "capture.ray.start",
        lambda group, step, **more: made.append(("start", getattr(group, "name", group), step, more["role"])),
    )
    monkeypatch.setattr(
        "capture.ray.stop",
        lambda group, **more: made.append(("stop", getattr(group, "name", group), more["run_command"])),
    )
    return made


def test_a_driver_asks_its_workers_in_the_step_that_sees_the_request(tmp_path, calls):
    watch = Watch(tmp_path, alone=True)
    for step in (1, 2, 3):
        with profiling("workers", step, watch=watch):
            calls.append(step)
        if step == 1:
            trigger.trigger(tmp_path)
    assert calls == [1, ("start", "workers", 2, "train"), 2, ("stop", "workers", False), 3]


TRAINERS = """
class RayPPOTrainer:
    def _start_profiling(self, do_profile):
        self.log.append(("verl starts", do_profile))
        return do_profile

    def _stop_profiling(self, do_profile, run_command=False):
        self.log.append(("verl stops", do_profile))
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch, calls):
    """A trainer as verl has it, in a module that is imported after the switch."""
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        package = types.ModuleType(name)
        package.__path__ = [str(tmp_path / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.delitem(sys.modules, "verl.trainer.ppo.ray_trainer", raising=False)
    folder = tmp_path / "verl" / "trainer" / "ppo"
    folder.mkdir(parents=True)
    (folder / "ray_trainer.py").write_text(TRAINERS)
    finder = driver.install()
    module = importlib.import_module("verl.trainer.ppo.ray_trainer")
    made = module.RayPPOTrainer()
    made.log, made.use_reference_policy, made.use_critic = calls, True, True
    made.actor_rollout_wg = made.ref_policy_wg = Group(calls, "actor")
    made.critic_wg = Group(calls, "critic")
    block = types.SimpleNamespace(save_path=str(tmp_path / "profile"), steps=[2])
    made.config = types.SimpleNamespace(global_profiler=block)
    yield made
    driver.uninstall(finder)
    sys.modules.pop("verl.trainer.ppo.ray_trainer", None)


def one_step(trainer, step):
    trainer.global_steps, profiled = step, step == 2
    assert trainer._start_profiling(profiled) is profiled
    trainer._stop_profiling(profiled)


def test_a_trainer_of_verl_follows_a_request_on_a_step_that_is_not_its_own(trainer, tmp_path, calls):
    one_step(trainer, 1)
    trigger.trigger(tmp_path / "profile")
    one_step(trainer, 2)
    one_step(trainer, 3)
    one_step(trainer, 4)
    asked = [call for call in calls if call[0] in ("start", "stop")]
    assert asked == [
        ("start", "actor", 3, "train"),
        ("start", "critic", 3, None),
        ("stop", "actor", False),
        ("stop", "critic", False),
    ]
    assert [call for call in calls if call not in asked] == [
        (verb, step == 2) for step in (1, 2, 3, 4) for verb in ("verl starts", "verl stops")
    ]


def test_ranks_that_the_run_does_not_have_are_logged(trainer, tmp_path, caplog):
    one_step(trainer, 1)
    trainer.actor_rollout_wg.world_size = trainer.critic_wg.world_size = 4
    trigger.trigger(tmp_path / "profile", ranks=[0, 3])
    one_step(trainer, 3)
    assert "do not exist" not in caplog.text
    trigger.trigger(tmp_path / "profile", ranks=[3, 4])
    one_step(trainer, 4)
    assert "ranks [4] do not exist: the run has ranks 0 to 3" in caplog.text


def test_what_goes_wrong_with_a_request_does_not_end_a_trainer(trainer, tmp_path, caplog):
    one_step(trainer, 1)
    trigger.trigger(tmp_path / "profile")
    del trainer.actor_rollout_wg
    one_step(trainer, 3)
    assert "request for a profile not followed: AttributeError" in caplog.text


def test_uninstalling_leaves_trainers_as_they_were(trainer):
    follows = type(trainer)._start_profiling
    assert follows.__wrapped__ is not None
    finders = [one for one in sys.meta_path if isinstance(one, driver.FollowWhenImported)]
    driver.uninstall(finders[-1])
    assert not hasattr(type(trainer)._start_profiling, "__wrapped__")
    assert finders[-1] not in sys.meta_path


class Base:
    """A trainer's base, as verl has it."""

    def _start_profiling(self, do_profile=False):
        self.log.append("starts")

    def _stop_profiling(self, do_profile=False):
        self.log.append("stops")


class Derived(Base):
    """One that adds worker groups, as verl's VLA trainer does."""

    def _start_profiling(self, do_profile=False):
        super()._start_profiling(do_profile)
        self.log.append("starts more")

    def _stop_profiling(self, do_profile=False):
        super()._stop_profiling(do_profile)
        self.log.append("stops more")


class Inheriting(Base):
    """One that changes neither."""


class Rollouter:
    """What drives rollout servers, in coroutines."""

    async def _start_profiling(self):
        """Nothing."""

    async def _stop_profiling(self):
        """Nothing."""


def made(kind, folder, calls):
    """A trainer of this kind, with one worker group."""
    trainer = kind()
    trainer.log, trainer.actor_rollout_wg = calls, Group(calls, "actor")
    block = types.SimpleNamespace(save_path=str(folder), steps=None)
    trainer.config = types.SimpleNamespace(global_profiler=block)
    return trainer


@pytest.fixture
def followed():
    """Undo whatever a test has let follow."""
    finder = driver.install()
    yield driver.follow
    driver.uninstall(finder)


def steps_with_request(trainer, folder, steps, attribute="global_steps"):
    """Go through steps, with a request after the first one."""
    for number, step in enumerate(steps):
        trainer.global_steps = number + 1
        setattr(trainer, attribute, step)
        trainer._start_profiling()
        trainer._stop_profiling()
        if number == 0:
            trigger.trigger(folder)


@pytest.mark.parametrize("kind", [Base, Derived, Inheriting])
def test_a_request_is_followed_once_whoever_overrides_what(kind, followed, tmp_path, calls):
    for one in reversed(kind.__mro__[:-1]):
        assert followed(followed(one)) is one
    steps_with_request(made(kind, tmp_path, calls), tmp_path, [1, 2, 3])
    assert [call for call in calls if isinstance(call, tuple)] == [
        ("start", "actor", 2, "train"),
        ("stop", "actor", False),
    ]
    assert calls.index(("start", "actor", 2, "train")) > calls.index("starts")


def test_a_class_that_only_inherits_follows_alone(followed, tmp_path, calls):
    followed(Inheriting)
    steps_with_request(made(Inheriting, tmp_path, calls), tmp_path, [1, 2])
    assert ("start", "actor", 2, "train") in calls
    assert not hasattr(Base._start_profiling, "__wrapped__")


def test_whoever_drives_servers_in_coroutines_stays_as_it_is(followed):
    before = Rollouter._start_profiling
    assert followed(Rollouter) is Rollouter
    assert Rollouter._start_profiling is before


def test_uninstalling_takes_back_inherited_methods_too(followed):
    followed(Inheriting)
    followed(Derived)
    driver.uninstall(driver.install())
    for kind in (Base, Derived, Inheriting):
        assert not hasattr(kind._start_profiling, "__wrapped__")
    assert "_start_profiling" not in vars(Inheriting)


def test_fully_asynchronous_training_is_asked_by_versions_and_named_by_steps(followed, tmp_path, calls):
    followed(Base)
    trainer = made(Base, tmp_path, calls)
    trainer.config.global_profiler.steps = [2]
    # Two updates make a version; the configuration profiles the second version, verl's trainer by itself.
    steps_with_request(trainer, tmp_path, [0, 0, 1, 1, 2, 2, 3], "current_param_version")
    starts = [call[2] for call in calls if call[0] == "start"]
    assert starts == [2]
    assert driver.step_of(trainer) == 4


def test_trainers_are_found_in_whatever_module_has_the_word(tmp_path, monkeypatch, followed):
    text = (
        "class Own:\n"
        "    def _start_profiling(self): pass\n"
        "    def _stop_profiling(self): pass\n"
        "class Half:\n"
        "    def _start_profiling(self): pass\n"
    )
    (tmp_path / "omni_diffusion_trainer.py").write_text(text)
    (tmp_path / "some_other_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, follows in (("omni_diffusion_trainer", True), ("some_other_module", False)):
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        assert hasattr(module.Own._start_profiling, "__wrapped__") is follows
        assert not hasattr(module.Half._start_profiling, "__wrapped__")
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        assert module.__spec__.loader is module.__loader__


def test_the_driver_says_which_steps_never_come(followed, tmp_path, calls, caplog):
    followed(Base)
    trainer = made(Base, tmp_path, calls)
    block = {"tool": "torch", "steps": [2, 500], "save_path": str(tmp_path)}
    actor = {"tool": "torch", "enable": True, "tool_config": {"torch": {}}}

    class Config(dict):
        global_profiler = types.SimpleNamespace(**block)

    trainer.config = Config(global_profiler=block, actor_rollout_ref={"actor": {"profiler": actor}})
    trainer.total_training_steps = 5
    steps_with_request(trainer, tmp_path, [1, 2])
    assert caplog.text.count("steps [500]: this run has steps 1 to 5; the other steps") == 1
