"""Profiling never changes what the caller gets, whatever goes wrong in it."""

import asyncio
import logging
import os
import sys
import types

import fake_torch
import pytest

import capture
from capture import DistProfiler, DistProfilerExtension, ProfilerConfig, TorchProfilerToolConfig
from capture.endings import close_all


def config(folder, tool="torch", *, discrete=False, **changes):
    """An enabled configuration that writes to the folder."""
    tool_config = {"discrete": discrete} if tool != "torch_memory" else {}
    values = {"enable": True, "save_path": str(folder), "tool_config": tool_config, **changes}
    return ProfilerConfig(tool=tool, **values)


class Worker:
    def __init__(self, profiler):
        self.profiler = profiler
        self.ran = []

    @DistProfiler.annotate(color="blue", role="actor_compute_log_prob")
    def compute_log_prob(self, value):
        """A docstring."""
        self.ran.append("log_prob")
        return value

    @DistProfiler.annotate(message="named")
    def fail(self):
        self.ran.append("fail")
        raise RuntimeError("of the stage")

    @DistProfiler.annotate()
    async def wait(self):
        await asyncio.sleep(0)
        return "waited"

    @DistProfiler.annotate()
    async def fail_later(self):
        await asyncio.sleep(0)
        raise RuntimeError("of the coroutine")


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, [0]),
        ({"enable": False}, []),
        ({"ranks": [1, 2]}, [1, 2]),
        ({"all_ranks": True}, [0, 1, 2]),
        ({"all_ranks": True, "ranks": [1]}, [0, 1, 2]),
    ],
)
def test_the_ranks_of_the_configuration_are_profiled(tmp_path, torch, changes, ranks):
    for rank in range(3):
        profiler = DistProfiler(rank, config(tmp_path, **changes))
        profiler.start(profile_step=1)
        assert profiler.check_this_step() is (rank in ranks)
        assert bool(torch.running) is (rank in ranks)
        profiler.stop()
        assert not profiler.check_this_step()


def test_without_a_configuration_nothing_is_profiled(torch):
    profiler = DistProfiler(0)
    profiler.start()
    assert (profiler.check_enable(), profiler.check_this_rank(), profiler.is_discrete_mode()) == (False, False, False)  # fmt: skip
    profiler.step()
    profiler.stop()
    assert Worker(profiler).compute_log_prob(3) == 3
    assert torch.log == []


def test_a_stage_outside_a_profiled_step_is_a_plain_call(tmp_path, torch):
    worker = Worker(DistProfiler(0, config(tmp_path)))
    assert worker.compute_log_prob(3) == 3
    worker.profiler.start(profile_step=1)
    assert worker.compute_log_prob(4) == 4
    worker.profiler.stop()
    assert worker.compute_log_prob(5) == 5
    assert torch.log == ["+actor_compute_log_prob", "-actor_compute_log_prob"]
    assert Worker.compute_log_prob.__doc__ == "A docstring."


def test_an_object_without_a_profiler_or_with_another_one_is_called_plainly(torch):
    for profiler in (None, object()):
        assert Worker(profiler).compute_log_prob(3) == 3
    worker = Worker(None)
    del worker.profiler
    assert worker.compute_log_prob(3) == 3
    assert torch.log == []


@pytest.mark.parametrize("tool", ["torch", "nsys"])
@pytest.mark.parametrize("discrete", [False, True])
def test_a_stage_that_raises_runs_once_and_everything_is_closed(tmp_path, torch, nvtx, tool, discrete):
    worker = Worker(DistProfiler(0, config(tmp_path, tool, discrete=discrete)))
    worker.profiler.start(profile_step=1)
    with pytest.raises(RuntimeError, match="of the stage") as caught:
        worker.fail()
    if tool == "torch":
        # It ends when the body does: not when the last who knows of the error, and with it of the frame, is gone.
        assert torch.log == ["+named", "-named"]
    assert caught.tb is not None
    worker.profiler.stop()
    assert worker.ran == ["fail"]
    assert torch.running is None
    if tool == "torch":
        assert torch.log == ["+named", "-named"]
        assert len(list(tmp_path.glob("*.gz"))) == 1
    else:
        assert torch.log == ["open", "close"]
        assert nvtx == [("start", "named", None, None, None), ("end", "named")]


def test_a_coroutine_is_a_stage_until_it_is_done(tmp_path, torch):
    worker = Worker(DistProfiler(0, config(tmp_path)))
    assert asyncio.run(worker.wait()) == "waited"
    worker.profiler.start()
    assert asyncio.run(worker.wait()) == "waited"
    assert torch.log == ["+wait", "-wait"]  # now, not when the profiler stops: what comes next is not in it
    worker.compute_log_prob(1)
    with pytest.raises(RuntimeError, match="of the coroutine") as caught:
        asyncio.run(worker.fail_later())
    assert caught.tb is not None  # its frames are alive, and what they hold
    named = "actor_compute_log_prob"
    ended = ["+wait", "-wait", f"+{named}", f"-{named}", "+fail_later", "-fail_later"]
    assert torch.log == ended
    worker.profiler.stop()
    assert torch.log == ended


class Streams:
    """A worker whose stages give one thing after another."""

    def __init__(self, profiler, log):
        self.profiler, self.log = profiler, log

    @DistProfiler.annotate(role="rollout")
    def rollout(self, count):
        for number in range(count):
            self.log.append(number)
            yield number
        return "done"

    @DistProfiler.annotate(role="stream")
    async def stream(self, count):
        for number in range(count):
            self.log.append(number)
            yield number


def test_a_generator_is_a_stage_until_it_is_exhausted_or_closed(tmp_path, torch):
    streams = Streams(DistProfiler(0, config(tmp_path)), torch.log)
    assert [*streams.rollout(2)] == [0, 1]
    streams.profiler.start()
    assert torch.log == [0, 1]
    assert [*streams.rollout(2)] == [0, 1]
    assert torch.log[2:] == ["+rollout", 0, 1, "-rollout"]
    started = streams.rollout(2)
    assert next(started) == 0
    started.close()
    assert torch.log[6:] == ["+rollout", 0, "-rollout"]
    with pytest.raises(StopIteration) as end:
        next(streams.rollout(0))
    assert end.value.value == "done"


def test_an_asynchronous_generator_is_a_stage_until_it_is_exhausted_or_closed(tmp_path, torch):
    async def taken(streams, count, most=9):
        items = streams.stream(count)
        found = []
        async for item in items:
            found.append(item)
            if len(found) == most:
                await items.aclose()
                break
        return found

    streams = Streams(DistProfiler(0, config(tmp_path)), torch.log)
    streams.profiler.start()
    assert asyncio.run(taken(streams, 2)) == [0, 1]
    assert torch.log == ["+stream", 0, 1, "-stream"]
    assert asyncio.run(taken(streams, 2, most=1)) == [0]
    assert torch.log[4:] == ["+stream", 0, "-stream"]


def test_a_tool_that_cannot_start_costs_one_line_in_the_log(tmp_path, torch, caplog):
    torch.start = RuntimeError("Profiler is already enabled on this thread")
    worker = Worker(DistProfiler(3, config(tmp_path, ranks=[3])))
    for step in (1, 2):
        worker.profiler.start(profile_step=step)
        assert worker.compute_log_prob(step) == step
        worker.profiler.stop()
    assert worker.ran == ["log_prob"] * 2
    assert caplog.text.count("already enabled") == 1
    assert "rank 3" in caplog.text
    torch.start = None
    worker.profiler.start(profile_step=3)
    worker.profiler.stop()
    assert len(list(tmp_path.glob("*.gz"))) == 1


@pytest.mark.parametrize("discrete", [False, True])
def test_a_full_disk_loses_the_trace_and_nothing_else(tmp_path, torch, caplog, discrete):
    torch.export = OSError(28, "No space left on device")
    worker = Worker(DistProfiler(0, config(tmp_path, discrete=discrete)))
    worker.profiler.start(profile_step=1)
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert [path.suffix for path in tmp_path.iterdir()] == [".manifest"]
    assert "MB are free there" in caplog.text
    torch.export = None
    worker.profiler.start(profile_step=2)
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert len(list(tmp_path.glob("*step2*.json.gz"))) == 1


def test_a_trace_that_torch_left_empty_is_no_trace(tmp_path, torch, caplog):
    # Without room for its temporary file torch raises nothing and compresses an empty one.
    torch.wrote_nothing = True
    worker = Worker(DistProfiler(0, config(tmp_path)))
    worker.profiler.start(profile_step=1)
    worker.profiler.stop()
    assert list(tmp_path.glob("*.gz")) == list(tmp_path.glob(".*")) == []
    assert "torch wrote only part of it" in caplog.text
    assert '"files": []' in next(tmp_path.glob("*.manifest")).read_text()


def test_a_path_that_cannot_be_written_loses_the_profile_and_nothing_else(tmp_path, torch, caplog):
    (tmp_path / "file").touch()
    worker = Worker(DistProfiler(0, config(tmp_path / "file" / "profile")))
    worker.profiler.start(profile_step=1)
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert torch.running is None
    assert "Not a directory" in caplog.text


def test_no_path_is_verls_default_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profiler = DistProfiler(0, config("", save_path=None))
    profiler.start(profile_step=1)
    profiler.stop()
    assert len(list((tmp_path / "outputs/profile").glob("*.gz"))) == 1


@pytest.mark.parametrize("tool", ["torch", "torch_memory", "nsys"])
def test_without_torch_nothing_is_profiled_and_everything_runs(tmp_path, monkeypatch, caplog, tool):
    fake_torch.without(monkeypatch, "torch", "torch.profiler", "torch.cuda", "torch.cuda.memory", "nvtx")  # fmt: skip
    worker = Worker(DistProfiler(0, config(tmp_path, tool)))
    worker.profiler.start(profile_step=1)
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert "torch" in caplog.text


def test_an_unknown_tool_is_told_and_profiles_nothing(tmp_path, torch, caplog):
    worker = Worker(DistProfiler(0, config(tmp_path, "bogus")))
    worker.profiler.start()
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert "no tool 'bogus'" in caplog.text
    assert torch.log == []


@pytest.mark.parametrize("tool", ["torch", "nsys"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_enabled_tool_without_its_configuration_has_the_tool_s_defaults(tmp_path, tool, rank):
    profiler = DistProfiler(rank, config(tmp_path, tool, tool_config=None, all_ranks=True))
    assert (profiler.check_this_rank(), profiler.is_discrete_mode()) == (True, False)
    DistProfiler(rank, config(tmp_path, tool, tool_config=None, enable=False))


def test_a_configuration_that_cannot_be_followed_costs_the_profile_and_not_the_run(tmp_path, torch, caplog):
    worker = Worker(DistProfiler(0, config(tmp_path, tool_config={"contents": ["gpu"]})))
    worker.profiler.start(profile_step=1)
    assert worker.compute_log_prob(1) == 1
    worker.profiler.stop()
    assert "contents only supports" in caplog.text
    assert torch.log == []


def test_the_configuration_of_the_tool_is_found_wherever_verl_puts_it(tmp_path):
    own = TorchProfilerToolConfig(discrete=True)
    for given in (own, {"discrete": True}, {"torch": own, "nsys": None}):
        assert DistProfiler(0, config(tmp_path, tool_config=given)).is_discrete_mode()
        assert DistProfiler(0, config(tmp_path), tool_config=given).is_discrete_mode()


def test_a_second_start_is_ignored_and_a_stop_without_a_start_is_nothing(tmp_path, caplog):
    profiler = DistProfiler(0, config(tmp_path))
    profiler.stop()
    profiler.start(profile_step=1)
    with caplog.at_level(logging.WARNING, "capture"):
        profiler.start(profile_step=2)
    assert "profiled already" in caplog.text
    profiler.stop()
    profiler.stop()
    assert len(list(tmp_path.glob("*step1*.gz"))) == len(list(tmp_path.glob("*.gz"))) == 1


@pytest.mark.parametrize("order", ["a+ b+ b- a-", "a+ b+ a- b-"])
def test_two_profilers_of_a_process_share_one_trace_that_its_opener_closes(tmp_path, torch, order):
    workers = {name: Worker(DistProfiler(0, config(tmp_path), save_file_prefix=name)) for name in "ab"}
    for name, action in order.split():
        profiler = workers[name].profiler
        if action == "+":
            profiler.start(profile_step=1)
        else:
            assert bool(torch.running) is (name == "a" or order.endswith("a-"))
            profiler.stop()
    assert torch.running is None
    assert [path.name[0] for path in tmp_path.glob("*.gz")] == ["a"]


def test_workers_of_a_process_that_disagree_on_discrete_do_not_profile_together(tmp_path, caplog):
    whole = DistProfiler(0, config(tmp_path))
    by_stage = DistProfiler(0, config(tmp_path, discrete=True))
    whole.start(profile_step=1)
    by_stage.start(profile_step=1)
    assert not by_stage.check_this_step()
    assert "the other value of discrete" in caplog.text
    whole.stop()
    by_stage.start(profile_step=2)
    assert by_stage.check_this_step()


def test_what_is_open_when_the_process_ends_is_written(tmp_path, torch):
    worker = Worker(DistProfiler(0, config(tmp_path)))
    worker.profiler.start(profile_step=1)
    worker.compute_log_prob(1)
    close_all()
    assert torch.running is None
    assert len(list(tmp_path.glob("*.gz"))) == 1
    assert '"closed"' in next(tmp_path.glob("*.manifest")).read_text()


def test_the_finish_command_runs_with_the_last_step_and_knows_whose_profile_it_is(tmp_path, caplog):
    command = 'echo "$VERL_PROFILE_RANK $VERL_PROFILE_TOOL $VERL_PROFILE_ROLE $VERL_PROFILE_PID $VERL_PROFILE_SAVE_PATH" >> "$VERL_PROFILE_SAVE_PATH/told"; exit 3'
    for rank in (0, 1):
        wanted = config(tmp_path, None, finish_hook_cmd=command, finish_hook_ranks=[1])
        profiler = DistProfiler(rank, wanted, save_file_prefix="actor")
        for last in (False, True):
            profiler.start(profile_step=1)
            profiler.stop(run_command=last)
    assert (tmp_path / "told").read_text() == f"1  actor {os.getpid()} {tmp_path}\n"
    assert "ended with 3" in caplog.text


def test_without_verl_its_own_tools_profile_nothing(tmp_path, monkeypatch, caplog):
    fake_torch.without(monkeypatch, "verl", "verl.utils")
    DistProfiler(0, config(tmp_path, "precision_debugger")).start()
    assert "precision_debugger needs verl" in caplog.text
    DistProfiler(0, config(tmp_path, "precision_debugger", enable=False)).start()


def test_a_tool_that_only_verl_has_is_verls_profiler_and_marks_our_stages(tmp_path, monkeypatch):
    class Verls:
        _this_step = True

        def __init__(self, rank, *arguments):
            self.log = [rank]

        @classmethod
        def annotate(cls, *arguments, **more):
            def decorate(function):
                def marked(self, *given):
                    self.profiler.log.append(more["role"])
                    return function(self, *given)

                return marked

            return decorate

    parts = {"verl": {}, "verl.utils": {}, "verl.utils.profiler": {"DistProfiler": Verls}, "verl.utils.profiler.config": {"NPUToolConfig": 7}}  # fmt: skip
    for name, content in parts.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    worker = Worker(DistProfiler(0, config(tmp_path, "npu")))
    assert worker.compute_log_prob(3) == 3
    assert worker.profiler.log == [0, "actor_compute_log_prob"]
    assert capture.NPUToolConfig == 7


def test_what_is_verls_own_is_missing_without_verl(monkeypatch):
    fake_torch.without(monkeypatch, "verl", "verl.utils", "verl.utils.profiler")
    with pytest.raises(AttributeError, match="NPUToolConfig comes from verl"):
        _ = capture.NPUToolConfig
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = capture.nothing


def test_a_worker_is_profiled_through_the_extension(tmp_path, torch):
    class Actor(DistProfilerExtension):
        def __init__(self):
            super().__init__(DistProfiler(0, config(tmp_path)))

    actor = Actor()
    actor.start_profile(role="train", profile_step=7)
    actor.step_profile()
    assert torch.running
    actor.stop_profile(run_command=False)
    actor.start_profile(role="train", profile_step=8)
    actor.__ray_shutdown__()
    assert sorted(path.name.split("_")[1] for path in tmp_path.glob("*.gz")) == ["step7", "step8"]


def test_closing_what_has_recorded_nothing_leaves_nothing_and_tells_nothing(tmp_path, torch, caplog):
    DistProfiler(0).close()  # has no folder to write to
    DistProfiler(0, config(tmp_path)).close()
    assert list(tmp_path.rglob("*")) == []
    assert caplog.messages == []


class Marks(DistProfiler):
    """Keeps the stages that are entered."""

    def enter(self, stage):
        self.stages = [*getattr(self, "stages", []), stage]
        return lambda: None


def test_a_stage_is_as_it_was_declared_and_follows_no_schedule_unless_it_says_so(tmp_path, torch):
    class Loops:
        profiler = Marks(0, config(tmp_path))

        @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
        def update(self):
            """Called by its role."""

        @DistProfiler.annotate("said", role="its_role", domain="d", category="c")
        def plain(self):
            """Called by its message."""

    loops = Loops()
    loops.profiler.start(profile_step=1)
    loops.update()
    loops.plain()
    loops.profiler.stop()
    told = [(s.name, s.scope, s.scheduled, s.color, s.domain, s.category) for s in loops.profiler.stages]
    assert told == [
        ("actor_update", "actor_update", True, "red", None, None),
        ("said", "its_role", False, None, "d", "c"),
    ]


@pytest.mark.parametrize(("step", "listed"), [("4", 4), (4, 4), ("4x", "4x"), ("²", "²"), ("9" * 5_000, "9" * 5_000)])
def test_a_step_given_as_text_is_a_number_and_no_text_ends_the_run(tmp_path, step, listed):
    config = ProfilerConfig(tool="torch", enable=True, all_ranks=True, save_path=str(tmp_path))
    begun = []
    profiler = DistProfiler(0, config)
    profiler._begin = lambda number, scope: begun.append(number)
    profiler._backend = types.SimpleNamespace(start=lambda scope, number: begun.append(number), stop=list)
    profiler.start(profile_step=step)
    assert set(begun) == {listed}
