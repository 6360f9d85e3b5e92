"""What NVTX itself hears of a worker and a driver: every range started is ended, in a colour, whatever raises.

Needs a C compiler and a Python with torch and nvtx (`TRACEKIT_VERL_PYTHON`); else nothing here is collected.
"""

import subprocess
from collections import Counter

import pytest
import tools
import verl_python

PROGRAM = """
import contextlib, sys
from capture import DistProfiler, ProfilerConfig, marked_timer
from capture.nemo import wrap_with_nvtx_name

class Worker:
    def __init__(self, discrete):
        tool = {"discrete": discrete}
        config = ProfilerConfig(tool="nsys", enable=True, save_path=sys.argv[1], tool_config=tool)
        self.profiler = DistProfiler(0, config)

    @DistProfiler.annotate(color="olive", role="ref_compute_log_prob")
    def compute_ref_log_prob(self):
        return 1

    @DistProfiler.annotate(color="pink", role="critic_update")
    def fail(self):
        self.compute_ref_log_prob()
        raise RuntimeError

    @wrap_with_nvtx_name("dtensor_policy_worker/train")
    def train(self):
        raise RuntimeError

for discrete in (False, True):
    worker, times = Worker(discrete), {}
    worker.compute_ref_log_prob()
    worker.profiler.start(profile_step=1)
    for stage, color in (("adv", "brown"), ("update_critic", "pink"), ("gen", "red")):
        with contextlib.suppress(RuntimeError), marked_timer(stage, times, color=color):
            worker.train() if stage == "gen" else worker.fail()
    worker.profiler.stop()
    assert sorted(times) == ["adv", "gen", "update_critic"]
"""

if verl_python.PYTHON and tools.COMPILER:

    @pytest.fixture(scope="module")
    def heard(tmp_path_factory):
        """The lines that a listener in the place of nsys wrote."""
        folder = tmp_path_factory.mktemp("nvtx")
        library, lines = folder / "listener.so", folder / "heard"
        source = verl_python.ROOT / "tests" / "support" / "nvtx_listener.c"
        subprocess.run([tools.COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)
        told = {"NVTX_INJECTION64_PATH": str(library), "NVTX_LISTENER_OUT": str(lines)}
        verl_python.run("-c", PROGRAM, folder, **told)
        return [line.split(" ", 3) for line in lines.read_text().splitlines()]

    @pytest.mark.slow
    def test_every_range_that_is_started_is_ended_once_and_in_the_order_of_nesting(heard):
        open_now = []
        for kind, number, *_ in heard:
            if kind == "start":
                open_now.append(number)
            else:
                assert open_now.pop() == number
        assert open_now == []

    @pytest.mark.slow
    def test_ranges_have_verls_names_and_colours_without_matplotlib(heard):
        expected = {
            ("adv", "a52a2a"): 2,
            ("update_critic", "ffc0cb"): 2,
            ("gen", "ff0000"): 2,
            ("critic_update", "ffc0cb"): 4,
            ("ref_compute_log_prob", "808000"): 4,
            ("dtensor_policy_worker/train", "0000ff"): 2,
        }
        found = Counter((line[3], line[2]) for line in heard if line[0] == "start")
        assert found == expected
