"""capture's configuration agrees with verl 0.9.1, and costs next to nothing to import.

The expected values were taken from verl 0.9.1 itself; nothing of it is needed to run these tests.
"""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys

import pytest

from capture import config as C  # noqa: N812 - as the classes are written in a configuration

FIELDS = {
    "NsightToolConfig": {"_target_": "", "discrete": False, "name": "nsight"},
    "TorchProfilerScheduleConfig": {
        "_target_": "",
        "skip_first": 0,
        "wait": 0,
        "warmup": 0,
        "active": 0,
        "repeat": 0,
        "name": "torch_schedule",
    },
    "TorchProfilerToolConfig": {
        "_target_": "",
        "contents": [],
        "discrete": False,
        "profile_token_start": None,
        "profile_token_end": None,
        "schedule": None,
        "name": "torch",
    },
    "TorchMemoryToolConfig": {
        "_target_": "",
        "trace_alloc_max_entries": 100_000,
        "stack_depth": 32,
        "memory_snapshot_num_steps": 1,
        "name": "torch_memory",
    },
    "ProfilerConfig": {
        "_target_": "",
        "tool": "???",
        "enable": False,
        "all_ranks": False,
        "ranks": [],
        "save_path": "???",
        "tool_config": "???",
        "global_tool_config": None,
        "relocate_results": False,
        "finish_hook_cmd": None,
        "finish_hook_all_ranks": False,
        "finish_hook_ranks": [],
    },
}
CONTENTS = ["cuda", "cpu", "memory", "shapes", "stack"]

each_config = pytest.mark.parametrize("name", FIELDS)


def run(code, *options):
    """What a fresh interpreter prints."""
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@each_config
def test_fields_their_order_and_defaults_are_verls(name):
    made = getattr(C, name)()
    assert [(f.name, getattr(made, f.name)) for f in dataclasses.fields(made)] == list(FIELDS[name].items())


@each_config
def test_a_config_reads_like_a_mapping_of_its_fields(name):
    made = getattr(C, name)()
    assert dict(made) == dict(**made) == FIELDS[name]
    assert list(made) == list(FIELDS[name])
    assert len(made) == len(FIELDS[name])
    assert made.get("_target_", 7) == made["_target_"] == ""
    assert made.get("nope", 7) == 7
    assert made.get("nope") is None


@each_config
def test_a_key_is_in_a_config_when_it_is_a_field(name):
    made = getattr(C, name)()
    assert all(key in made for key in FIELDS[name])
    assert not any(key in made for key in ("nope", "get", "union", 1, None))


@each_config
def test_an_unknown_key_is_an_attribute_error_as_in_verl(name):
    with pytest.raises(AttributeError, match="nope"):
        getattr(C, name)()["nope"]


@each_config
def test_an_unknown_field_is_refused(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        getattr(C, name)(steps=[1])


@each_config
def test_a_field_cannot_be_changed(name):
    made = getattr(C, name)()
    for field in FIELDS[name]:
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"Field '{field}' is frozen"):
            setattr(made, field, 1)
    with pytest.raises(TypeError, match="does not support item assignment"):
        made["_target_"] = "x"
    assert dict(made) == FIELDS[name]


@each_config
def test_copies_and_pickles_are_equal(name):
    made = getattr(C, name)(_target_="x")
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert dataclasses.replace(made) == made
    assert made != getattr(C, name)()


def test_two_configs_do_not_share_their_lists():
    C.ProfilerConfig().ranks.append(3)
    C.TorchProfilerToolConfig().contents.append("cpu")
    assert C.ProfilerConfig().ranks == C.TorchProfilerToolConfig().contents == []


def test_a_subclass_may_name_fields_that_change():
    @dataclasses.dataclass
    class Counted(C.NsightToolConfig):
        _mutable_fields = C.BaseConfig._mutable_fields | {"seen"}
        seen: int = 0

    counted = Counted()
    counted.seen = 2
    assert (counted.seen, list(counted)) == (2, ["_target_", "discrete", "name", "seen"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        counted.name = "other"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ProfilerConfig", {"ranks": None}, "ranks must be of type list, got .*NoneType"),
        ("ProfilerConfig", {"ranks": "0"}, "ranks must be of type list, got .*str"),
        ("ProfilerConfig", {"ranks": {0: 1}}, "ranks must be of type list, got .*dict"),
        ("ProfilerConfig", {"finish_hook_ranks": "0"}, "finish_hook_ranks must be of type list"),
        ("ProfilerConfig", {"finish_hook_cmd": 1}, "finish_hook_cmd must be str or None, got"),
        ("TorchProfilerToolConfig", {"contents": ["gpu"]}, "contents only supports .*gets gpu"),
        ("TorchProfilerToolConfig", {"contents": "cpu"}, "contents must be of type list, got"),
        ("TorchProfilerToolConfig", {"contents": ("cpu",)}, "contents must be of type list, got"),
        ("TorchProfilerToolConfig", {"contents": None}, "contents must be of type list, got"),
        ("TorchProfilerToolConfig", {"profile_token_start": -1}, "start must be >= 0, got -1"),
        ("TorchProfilerToolConfig", {"profile_token_start": 1.5}, "start must be int or None"),
        ("TorchProfilerToolConfig", {"profile_token_end": "9"}, "end must be int or None"),
        (
            "TorchProfilerToolConfig",
            {"profile_token_start": 5, "profile_token_end": 5},
            "profile_token_end must be > profile_token_start, got start=5, stop=5",
        ),
        ("TorchProfilerScheduleConfig", {"active": -1}, "active must be >= 0, got -1"),
        ("TorchProfilerScheduleConfig", {"wait": "1"}, "wait must be int, got <class 'str'>"),
        ("TorchMemoryToolConfig", {"stack_depth": 0}, "stack_depth must be positive, got 0"),
        ("TorchMemoryToolConfig", {"stack_depth": 1.0}, "stack_depth must be int, got"),
        ("TorchMemoryToolConfig", {"trace_alloc_max_entries": 0}, "entries must be positive"),
        ("TorchMemoryToolConfig", {"memory_snapshot_num_steps": 0}, "steps must be positive"),
    ],
)
def test_what_verl_refuses_is_refused(name, arguments, message):
    with pytest.raises(AssertionError, match=message):
        getattr(C, name)(**arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ProfilerConfig", {"tool": None}),
        ("ProfilerConfig", {"tool": "bogus"}),
        ("ProfilerConfig", {"ranks": (0,)}),
        ("ProfilerConfig", {"ranks": {0, 2}}),
        ("ProfilerConfig", {"ranks": ["a"]}),
        ("NsightToolConfig", {"discrete": "yes"}),
        ("TorchProfilerToolConfig", {"contents": CONTENTS}),
        ("TorchProfilerToolConfig", {"profile_token_start": 0, "profile_token_end": 1}),
        ("TorchProfilerToolConfig", {"profile_token_end": 0}),
        ("TorchProfilerScheduleConfig", {"skip_first": 1, "wait": 1, "warmup": 1, "active": True}),
        ("TorchMemoryToolConfig", {"memory_snapshot_num_steps": 3}),
    ],
)
def test_what_verl_accepts_is_kept_as_given(name, arguments):
    made = getattr(C, name)(**arguments)
    assert dict(made) == FIELDS[name] | arguments


def test_checks_hold_when_python_drops_assertions():
    code = (
        "from capture.config import TorchMemoryToolConfig as T\n"
        "try:\n    T(stack_depth=0)\nexcept AssertionError as error:\n    print(error)\n"
    )
    assert run(code, "-O") == "stack_depth must be positive, got 0\n"


@pytest.mark.parametrize(("active", "enabled"), [(0, False), (1, True), (3, True)])
def test_a_schedule_is_one_when_something_is_kept(active, enabled):
    assert C.TorchProfilerScheduleConfig(active=active).enabled is enabled


A = C.ProfilerConfig(
    tool="torch",
    enable=True,
    ranks=[3, 1, 3],
    save_path="a",
    tool_config={"of": "a"},
    relocate_results=True,
    finish_hook_ranks=(0, 1),
)
B = C.ProfilerConfig(
    tool="torch",
    all_ranks=True,
    ranks={1, 2},
    save_path="b",
    tool_config={"of": "b"},
    global_tool_config={"of": "b"},
    finish_hook_cmd="ship",
    finish_hook_all_ranks=True,
    finish_hook_ranks=[1, 2],
)
FROM_FIRST_OR_EITHER = {
    "tool": "torch",
    "save_path": "a",
    "tool_config": {"of": "a"},
    "global_tool_config": {"of": "b"},
    "finish_hook_cmd": "ship",
}


def test_a_union_profiles_what_either_would():
    assert dict(A.union(B)) == FIELDS["ProfilerConfig"] | FROM_FIRST_OR_EITHER | {
        "enable": True,
        "all_ranks": True,
        "ranks": [3, 1, 2],
        "relocate_results": True,
        "finish_hook_all_ranks": True,
        "finish_hook_ranks": [0, 1, 2],
    }


def test_an_intersection_profiles_what_both_would():
    assert dict(A.intersect(B)) == FIELDS["ProfilerConfig"] | FROM_FIRST_OR_EITHER | {
        "ranks": [1],
        "finish_hook_ranks": [1],
    }


@pytest.mark.parametrize("verb", ["union", "intersect"])
def test_different_tools_are_not_merged(verb):
    other = C.ProfilerConfig(tool="nsys")
    message = f"Cannot {verb} ProfilerConfig with different tools: torch vs nsys"
    with pytest.raises(AssertionError, match=message):
        getattr(A, verb)(other)


def test_a_hydra_target_reaches_every_config():
    for name, expected in FIELDS.items():
        assert dict(getattr(C, name)(**expected)) == expected


def test_importing_capture_brings_in_no_third_party_package_and_not_tracekit():
    code = (
        "import json, sys\nbefore = set(sys.modules)\nimport capture\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    new = set(json.loads(run(code)))
    assert "capture" in new
    assert new - set(sys.stdlib_module_names) == {"capture"}


def test_importing_capture_costs_little():
    # Processor time, so that a busy machine does not matter; verl takes seconds here.
    code = "import time\nstart = time.process_time()\nimport capture\nprint(time.process_time() - start)"
    assert min(float(run(code)) for _ in range(3)) < 0.1
