"""The switch puts capture wherever verl looks up its profiler, whatever is imported first, and takes it back.

Here with a package of verl's form; with a Python that has verl (`TRACEKIT_VERL_PYTHON`), with verl's own workers.
"""

import json
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import verl_python

import capture
from capture import endings, on_signal, verl_plugins

sys.modules["verl"] = None  # the real one stays as it is
try:
    from capture import verl as switch
finally:
    del sys.modules["verl"]

PROGRAM = Path(__file__).parents[1] / "support" / "verl_switched_run.py"
UNLIKE = re.compile(r"_pid\d+(_\d{17})?")


class Profiler:
    """verl's."""


class Extension:
    """verl's."""


class Config:
    """verl's."""


def build(replica_rank, replica_world_size, config=None, tool_config=None):
    """verl's."""
    del replica_world_size
    return sys.modules["verl.utils.profiler.profile"].DistProfiler(
        rank=replica_rank, config=config, tool_config=tool_config
    )


def convert(config, dataclass_type=None):
    """verl's: here a configuration is what it is converted to."""
    del dataclass_type
    return config


@pytest.fixture
def verl(monkeypatch):
    """Modules as verl has them, and one that has looked up what it needs before the switch."""
    modules = {
        "verl": {},
        "verl.utils": {},
        "verl.utils.config": {"omega_conf_to_dataclass": convert},
        "verl.utils.profiler": {"DistProfiler": Profiler, "ProfilerConfig": Config},
        "verl.utils.profiler.profile": {
            "DistProfiler": Profiler,
            "DistProfilerExtension": Extension,
            "build_rollout_dist_profiler": build,
        },
        "verl.utils.profiler.config": {"ProfilerConfig": Config},
        "verl.utils.profiler.performance": {"simple_timer": print},
        "verl.workers": {"Watch": Profiler, "omega_conf_to_dataclass": convert},
    }
    for name, values in modules.items():
        module = types.ModuleType(name)
        vars(module).update(values, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    yield sys.modules
    switch.uninstall()


def test_everything_of_verls_is_replaced_under_whatever_name(verl):
    verls = [Profiler]  # in a list: this module's own names are replaced as well
    assert switch.install()
    assert verl["verl.utils.profiler"].DistProfiler is switch.SwitchedProfiler
    assert verl["verl.utils.profiler.profile"].DistProfilerExtension is capture.DistProfilerExtension
    assert verl["verl.utils.profiler.config"].ProfilerConfig is capture.ProfilerConfig
    assert verl["verl.workers"].Watch is switch.SwitchedProfiler
    assert verl["verl.workers"].omega_conf_to_dataclass("x") == "x"
    assert [switch.original("DistProfiler")] == verls


def test_a_process_that_is_profiled_says_once_by_whom(verl, tmp_path, caplog):
    switch._tell_that_it_is_active.cache_clear()
    switch.install()
    profiler = verl["verl.workers"].Watch
    block = {"tool": "torch", "enable": True, "save_path": str(tmp_path), "tool_config": {}}
    profiler(0, {**block, "enable": False})
    profiler(1, block)
    profiler(0, {**block, "tool": None})
    assert caplog.text == ""
    profiler(0, {**block, "tool": "bogus"})
    profiler(0, {**block, "tool_config": {"contents": ["nonsense"]}})
    assert "capture replaces" not in caplog.text
    profiler(0, block)
    profiler(0, block)
    assert caplog.text.count("capture replaces verl's profiler in this process") == 1
    assert "profiles this process" not in caplog.text  # whether a step is due, no worker knows


@pytest.mark.parametrize("tool", ["torch_memory", "nsys"])
def test_a_process_whose_tool_cannot_record_says_so_and_claims_nothing(
    verl, torch, tmp_path, caplog, monkeypatch, tool
):
    switch._tell_that_it_is_active.cache_clear()
    switch.install()
    torch.cuda_available = False
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    block = {"tool": tool, "enable": True, "save_path": str(tmp_path), "tool_config": {}}
    verl["verl.workers"].Watch(0, block)
    assert "capture replaces verl's profiler" not in caplog.text
    assert {"torch_memory": "needs CUDA", "nsys": "not started under nsys"}[tool] in caplog.text


def test_a_rollout_server_is_told_verls_decision_and_nobody_claims_to_record(verl, tmp_path, caplog):
    switch._tell_that_it_is_active.cache_clear()
    switch.install()
    made = sys.modules["verl.utils.profiler.profile"].build_rollout_dist_profiler
    block = {"tool": "torch", "enable": True, "save_path": str(tmp_path), "tool_config": {"discrete": True}}
    server = made(0, 2, config=block, tool_config={"discrete": True})
    assert (server.check_enable(), server.check_this_rank(), server.is_discrete_mode()) == (True, True, True)
    assert not made(1, 2, config=block, tool_config={"discrete": True}).check_this_rank()
    assert caplog.text == ""
    assert endings.live == []
    verl["verl.workers"].Watch(0, block)  # a worker's, made later in the same process
    assert "capture replaces verl's profiler" in caplog.text


def test_uninstalling_leaves_everything_as_it_was(verl, monkeypatch):
    ray = types.ModuleType("ray")
    ray.init = dict
    monkeypatch.setitem(sys.modules, "ray", ray)
    before = {name: {**vars(verl[name])} for name in verl if name.partition(".")[0] == "verl"}
    assert switch.install()
    assert switch.install()
    switch.uninstall()
    assert not switch.active()
    assert {name: vars(verl[name]) for name in before} == before
    assert ray.init is dict


def test_the_processes_that_ray_starts_switch_too(verl, monkeypatch):
    asked = {}
    ray = types.ModuleType("ray")
    ray.init = asked.update
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv(switch.VARIABLE, "mine")
    switch.install()
    ray.init(runtime_env={"env_vars": {"A": "1"}, "working_dir": None}, num_cpus=2)
    assert asked == {
        "runtime_env": {"env_vars": {"A": "1", switch.VARIABLE: "mine,capture.verl", "CAPTURE_DRIVER": switch.on_signal.own_name()}, "working_dir": None},
        "num_cpus": 2,
    }  # fmt: skip


JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@pytest.mark.parametrize(
    ("set_here", "of_job", "given", "made"),
    [
        ({}, {}, None, {"env_vars": {"VERL_USE_EXTERNAL_MODULES": "capture.verl"}}),
        ({}, {}, {"env_vars": {"VERL_USE_EXTERNAL_MODULES": "verl_omni"}}, {"env_vars": {"VERL_USE_EXTERNAL_MODULES": "verl_omni,capture.verl"}}),
        # Ray does not start where a submitted job and `ray.init` name the same variable, whatever its values.
        ({"VERL_USE_EXTERNAL_MODULES": "capture.verl"}, {"VERL_USE_EXTERNAL_MODULES": "capture.verl"}, None, {}),
        ({"VERL_USE_EXTERNAL_MODULES": "capture.verl"}, {"VERL_USE_EXTERNAL_MODULES": "capture.verl"}, {"env_vars": {"A": "1"}}, {"env_vars": {"A": "1"}}),
        ({"VERL_USE_EXTERNAL_PLUGINS": "other, Capture", "VERL_USE_EXTERNAL_MODULES": "verl_omni"}, {}, None, {"env_vars": {"VERL_USE_EXTERNAL_PLUGINS": "other, Capture"}}),
        ({"VERL_USE_EXTERNAL_PLUGINS": "capture"}, {"VERL_USE_EXTERNAL_PLUGINS": "capture"}, None, {}),
    ],
)  # fmt: skip
def test_a_submitted_job_and_its_driver_never_name_the_same_variable(monkeypatch, set_here, of_job, given, made):
    for name in (switch.VARIABLE, verl_plugins.VARIABLE, JOB):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_here.items():
        monkeypatch.setenv(name, value)
    if of_job:
        monkeypatch.setenv(JOB, json.dumps({"runtime_env": {"env_vars": of_job}}))
    told = switch._with_variable(given)
    assert told["env_vars"].pop(on_signal.DRIVER) == on_signal.own_name()
    assert {key: value for key, value in told.items() if value} == made


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"runtime_env": null}'])
def test_a_jobs_configuration_that_says_nothing_is_none(monkeypatch, text):
    monkeypatch.setenv(JOB, text)
    monkeypatch.delenv(verl_plugins.VARIABLE, raising=False)
    assert switch.VARIABLE in switch._with_variable(None)["env_vars"]


def test_the_entry_point_is_declared_and_switches_only_where_it_is_named():
    project = tomllib.loads((verl_python.ROOT / "capture" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["verl.plugins"] == {verl_plugins.NAME: "capture.plugin"}
    named = ("capture", "other,capture", " CAPTURE , x")
    assert all(map(verl_plugins.is_named_in, named))
    assert not any(map(verl_plugins.is_named_in, ("", "auto", "none", "capture2", "my-capture")))


@pytest.mark.parametrize("missing", ["verl.utils.profiler", "verl.utils.profiler.profile"])
def test_a_verl_that_is_built_otherwise_keeps_its_own(verl, monkeypatch, caplog, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    assert not switch.install()
    assert "capture cannot replace verl's profiler, which stays in use" in caplog.text
    assert verl["verl.workers"].Watch is Profiler


def test_the_settings_of_the_global_block_reach_a_worker(verl):
    class Root(dict):
        def _get_root(self):
            return self

    given = {"torch_memory": {"stacks": "python"}}
    made = capture.ProfilerConfig(tool="torch_memory", save_path="x", tool_config={})
    root = Root(global_profiler={"tool": "torch_memory", "global_tool_config": given})
    switch._with_the_global_block(lambda config: made)(root)
    assert made.global_tool_config == given


def test_it_does_as_python_does_with_a_module(tmp_path):
    (tmp_path / "job.py").write_text(
        "import os, sys; print(__name__, sys.argv, os.environ['VERL_USE_EXTERNAL_MODULES'])"
    )
    code = [sys.executable, "-m", "capture.verl"]
    done = subprocess.run([*code, "job", "a=1"], cwd=tmp_path, env=verl_python.environment(), capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split()[0] == "__main__"
    assert "'a=1'] capture.verl" in done.stdout
    done = subprocess.run(code, env=verl_python.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")


if verl_python.PYTHON:

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("policy", "modules", "switched"),
        [
            (None, "", False),
            ("auto", "", False),
            ("none", "", False),
            ("other", "", False),
            ("capture", "", True),
            ("capture", "json", True),
            ("none", "capture.verl", True),
        ],
    )
    def test_verl_loads_the_installed_plugin(tmp_path, policy, modules, switched):
        info = tmp_path / "tracekit_rl_capture-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tracekit-rl-capture\nVersion: 9\n")
        (info / "entry_points.txt").write_text("[verl.plugins]\ncapture = capture.plugin\n")
        code = "import sys, verl; switch = sys.modules.get('capture.verl'); print(bool(switch and switch.active()))"
        more = {"PYTHONPATH": f"{tmp_path}:{verl_python.ROOT}", "VERL_USE_EXTERNAL_MODULES": modules}
        if policy is not None:
            more["VERL_USE_EXTERNAL_PLUGINS"] = policy
        assert verl_python.run("-c", code, **more).stdout.split()[-1] == str(switched)

    @pytest.mark.slow
    def test_ray_takes_what_the_driver_of_a_submitted_job_asks_for(tmp_path):
        code = (
            "import json, os, ray, capture.verl as switch\n"
            "from ray.runtime_env.runtime_env import _merge_runtime_env\n"
            "job = {'env_vars': {'VERL_USE_EXTERNAL_MODULES': 'capture.verl'}, 'working_dir': '/x'}\n"
            "os.environ['RAY_JOB_CONFIG_JSON_ENV_VAR'] = json.dumps({'runtime_env': job})\n"
            "merged = _merge_runtime_env(job, switch._with_variable({'env_vars': {'A': '1'}}))\n"
            "print(json.dumps(merged))\n"
        )
        done = verl_python.run("-c", code, VERL_USE_EXTERNAL_MODULES="capture.verl")
        merged = json.loads(done.stdout.splitlines()[-1])
        assert re.fullmatch(r"[0-9]+ on .+", merged["env_vars"].pop("CAPTURE_DRIVER"))
        assert merged == {"env_vars": {"VERL_USE_EXTERNAL_MODULES": "capture.verl", "A": "1"}, "working_dir": "/x"}

    @pytest.fixture(scope="module")
    def runs(tmp_path_factory):
        """What verl's own workers computed, and where they wrote, without the switch and with it."""
        made = {}
        for modules in ("", "capture.verl"):
            folder = tmp_path_factory.mktemp("run")
            done = verl_python.run(PROGRAM, folder, VERL_USE_EXTERNAL_MODULES=modules)
            made[modules] = json.loads(done.stdout.splitlines()[-1]), folder, done.stderr
        return made

    def files(folder):
        """The files below a folder, without process and time."""
        found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return sorted(UNLIKE.sub("", name) for name in found)

    @pytest.mark.slow
    def test_verls_own_workers_compute_the_same(runs):
        assert runs["capture.verl"][0] == runs[""][0]
        assert len(runs[""][0]) == 3 * 4 * 3

    @pytest.mark.slow
    def test_verls_own_workers_write_the_same_files_and_manifests(runs):
        written = files(runs["capture.verl"][1])
        traces = [name for name in written if name.endswith(".gz")]
        assert traces == files(runs[""][1])
        assert len(traces) == 2 + 4 + 6
        rest = [name for name in written if name not in traces]
        assert {Path(name).name for name in rest} == {
            f"capture_{tool}_actor-rollout-ref_rank0.manifest" for tool in ("torch", "torch-memory")
        }
        assert len(rest) == 2 * 3

    @pytest.mark.slow
    def test_stages_that_verls_decorator_marked_before_the_switch_are_in_the_trace(tmp_path):
        code = (
            "import sys, torch\n"
            "from verl.utils.profiler import DistProfiler as Verls\n"
            "class Worker:\n"
            "    @Verls.annotate(role='marked')\n"
            "    def work(self): return torch.ones(2).sum()\n"
            "import capture.verl\n"
            "from verl.utils.profiler import DistProfiler, ProfilerConfig, config\n"
            "assert capture.verl.original('DistProfiler') is not DistProfiler\n"
            "tool = config.TorchProfilerToolConfig(contents=['cpu'])\n"
            "worker = Worker()\n"
            "block = ProfilerConfig(tool='torch', enable=True, save_path=sys.argv[1], tool_config={'torch': tool})\n"
            "worker.profiler = DistProfiler(0, block)\n"
            "worker.profiler.start(profile_step=1)\n"
            "assert float(worker.work()) == 2\n"
            "worker.profiler.stop()\n"
        )
        verl_python.run("-c", code, tmp_path)
        (trace,) = tmp_path.glob("*.gz")
        from tracekit.readers.loading import load

        assert "marked" in set(load(trace)["host_ops"]["name"])

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["TorchProfilerToolConfig", "NsightToolConfig", "TorchMemoryToolConfig"])
    def test_verls_own_configuration_objects_are_understood(tmp_path, name):
        code = (
            "import sys, capture\n"
            "from verl.utils.profiler import config\n"
            "tool = {'T': 'torch', 'N': 'nsys'}[sys.argv[2][0]] if 'Memory' not in sys.argv[2] else 'torch_memory'\n"
            "made = getattr(config, sys.argv[2])()\n"
            "block = config.ProfilerConfig(tool=tool, enable=True, save_path=sys.argv[1], tool_config={tool: made})\n"
            "for given in (None, made, block.tool_config):\n"
            "    profiler = capture.DistProfiler(0, block, given)\n"
            "    assert profiler.check_this_rank() and not profiler._told, profiler._told\n"
        )
        verl_python.run("-c", code, tmp_path, name)
