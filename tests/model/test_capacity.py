import pytest

from tracekit.model.system import capacity
from tracekit.model.system.capacity import count_cores, count_own_cores, limit_cores, read_available_memory

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Lay out files of a machine: path and text."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


MEMINFO = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 16777216 kB\n"}


def test_memory_is_what_the_system_says_is_available(machine):
    assert read_available_memory(machine(MEMINFO)) == 16 * GIB


def test_a_container_limit_below_it_counts_without_droppable_file_pages(machine):
    group = "sys/fs/cgroup/jobs/mine/"
    root = machine(
        MEMINFO
        | {
            "proc/self/cgroup": "0::/jobs/mine\n",
            group + "memory.max": f"{8 * GIB}\n",
            group + "memory.current": f"{3 * GIB}\n",
            group + "memory.stat": f"anon 5\ninactive_file {GIB}\n",
        }
    )
    assert read_available_memory(root) == 6 * GIB


def test_a_limit_of_an_outer_group_counts_too(machine):
    root = machine(
        MEMINFO
        | {
            "proc/self/cgroup": "0::/jobs/mine\n",
            "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/jobs/memory.current": f"{GIB}\n",
        }
    )
    assert read_available_memory(root) == GIB


def test_the_older_kind_of_limit_counts_and_its_no_limit_does_not(machine):
    files = {
        "proc/self/cgroup": "4:memory:/elsewhere\n3:cpu,cpuacct:/elsewhere\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}\n",
    }
    assert read_available_memory(machine(MEMINFO | files)) == GIB
    unlimited = files | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    assert read_available_memory(machine(MEMINFO | unlimited)) == 16 * GIB


def test_a_group_that_is_over_its_limit_leaves_nothing(machine):
    root = machine(
        MEMINFO
        | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "200\n"}
    )
    assert read_available_memory(root) == 0


def test_without_such_files_memory_is_what_posix_tells(tmp_path):
    assert read_available_memory(tmp_path) > 0


def test_a_group_path_that_climbs_out_is_not_followed(machine):
    root = machine(
        MEMINFO
        | {"proc/self/cgroup": "0::/../../other\n", "sys/other/memory.max": "1\n", "sys/other/memory.current": "0\n"}
    )
    assert read_available_memory(root) == 16 * GIB


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr("os.process_cpu_count", lambda: 8, raising=False)


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_cores_are_limited_by_the_quota_of_the_container(machine, eight_cores, quota, cores):
    root = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    assert count_cores(root) == cores


def test_cores_are_limited_by_the_older_kind_of_quota(machine, eight_cores):
    files = {
        "proc/self/cgroup": "1:cpu,cpuacct:/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert count_cores(machine(files)) == 3
    files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = "-1\n"
    assert count_cores(machine(files)) == 8


def test_there_is_always_a_core_and_some_memory_here():
    assert count_cores() >= 1
    assert read_available_memory() > 0


def test_work_beside_other_work_has_its_share_of_the_cores_and_never_more_than_there_are(monkeypatch):
    monkeypatch.setattr(capacity, "count_cores", lambda: 6)
    assert count_own_cores() == 6
    with limit_cores(2):
        assert count_own_cores() == 2
        with limit_cores(1):
            assert count_own_cores() == 1
        assert count_own_cores() == 2
    with limit_cores(9):
        assert count_own_cores() == 6
    assert count_own_cores() == 6
