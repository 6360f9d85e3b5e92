"""The engine itself: where calls run, what becomes of those that die, and that nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracekit.engine import ray as engine
from tracekit.engine import ray_cluster
from tracekit.model.errors import TracekitError
from tracekit.model.trace import Source

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture
def sources(nodes):
    """A function that makes sources of these names, each on a node."""

    def make(**node_of):
        return [Source(Path(name), name, "none", size_bytes=100, node=nodes.id(node)) for name, node in node_of.items()]

    return make


def run(function, given, **more):
    with ray_cluster.connect_cluster() as cluster:
        return list(engine.run_on_ray(function, given, cluster=cluster, **more))


def test_every_call_runs_on_the_node_of_its_source_and_outcomes_keep_their_order(nodes, work, sources):
    told = []
    given = sources(a="three", b="one", c="two", d="one")
    outcomes = run(work.node_of, given, on_progress=told.append)
    roots = [str(nodes.root(name)) for name in ("three", "one", "two", "one")]
    assert [outcome.value for outcome in outcomes] == roots
    assert [outcome.source for outcome in outcomes] == given
    assert (told[-1].files_done, told[-1].bytes_done, told[-1].byte_count) == (4, 400, 400)


def test_bytes_are_told_while_a_file_is_read(work, sources):
    told = []
    run(work.half_way, sources(a="two"), on_progress=told.append)
    assert 50 in {progress.bytes_done for progress in told}


def test_a_worker_that_dies_twice_is_a_failure_that_names_its_node(nodes, work, sources):
    (outcome,) = run(work.die_always, sources(a="two"))
    assert outcome.failure.problem.startswith("the process that read it died on ")
    assert nodes.id("two")[:8] in outcome.failure.problem
    assert len(list((nodes.root("two") / "marks").glob("a.died*"))) == 2


def test_what_a_call_raises_is_a_failure_of_that_source_alone(work, sources):
    import workloads

    given = sources(**{"format.json": "one", "value.json": "two", "exit.json": "one", "a": "three"})
    form, value, left, fine = run(workloads.fail_if_named, given)
    assert (form.failure.problem, form.failure.hint) == ("byte 7: not a trace", "check the copy")
    assert value.failure.problem.startswith("internal error: ValueError")
    assert left.failure is not None
    assert fine.value == "a"


@pytest.fixture
def asking_for_tokens(nodes, tmp_path, monkeypatch):
    """This program asks whoever connects to it for a token, and the nodes have none."""
    from ray._raylet import AuthenticationTokenLoader, Config

    (tmp_path / "token").write_text("a" * 64)
    loader = AuthenticationTokenLoader.instance()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    Config.initialize("")
    loader.reset_cache()
    yield
    monkeypatch.undo()
    Config.initialize("")
    loader.reset_cache()


def test_nodes_that_cannot_reach_the_program_are_named(asking_for_tokens, nodes, work, sources):
    here, there = run(work.node_of, sources(a="one", b="two"))
    assert here.value == str(nodes.root("one"))
    assert there.failure.problem.endswith("cannot reach this program")
    assert nodes.id("two")[:8] in there.failure.problem
    assert "connect to the host where tracekit runs" in there.failure.hint


def test_a_file_that_two_nodes_see_is_read_by_the_one_that_lives(nodes, work, sources):
    (source,) = sources(a="three")
    both = {"a": (nodes.id("three"), nodes.id("two"))}
    with ray_cluster.connect_cluster() as cluster:
        nodes.kill("three")
        (outcome,) = engine.run_on_ray(work.node_of, [source], cluster=cluster, seen_by=both)
        (alone,) = engine.run_on_ray(work.node_of, [source], cluster=cluster)
    assert outcome.value == str(nodes.root("two"))
    assert "lost with its node" in alone.failure.problem


def still_ticking(nodes, name):
    """Whether a call goes on: its mark changes within a second."""
    mark = nodes.root(name) / "marks" / "a.ticks"
    before = mark.read_text()
    time.sleep(1)
    return mark.read_text() != before


def begun(nodes, name):
    mark = nodes.root(name) / "marks" / "a.ticks"
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_closing_the_iterator_leaves_no_call_behind(nodes, work, sources):
    ticks = nodes.root("two") / "marks" / "a.ticks"
    with ray_cluster.connect_cluster() as cluster:

        def closed(progress):
            if progress.bytes_done and ticks.exists():
                raise KeyboardInterrupt

        outcomes = engine.run_on_ray(work.tick, sources(b="one", a="two"), cluster=cluster, on_progress=closed)
        with pytest.raises(KeyboardInterrupt):
            next(outcomes)
        assert not still_ticking(nodes, "two")


SCRIPT = """
import sys, node_workloads
from tracekit.cli import main
from tracekit.pipeline import run
run.measure_source = node_workloads.tick
main(["analyze", "--engine", "ray", "--on-every-node", "$NODE_ROOT/interrupted"])
"""


def test_an_interrupt_ends_every_call_and_the_program(nodes, example):
    folder = nodes.root("two") / "interrupted"
    folder.mkdir()
    data = next(data for name, (_, data) in example.items() if name.startswith("outputs"))
    (folder / "a").write_bytes(data)
    paths = [str(HERE), str(HERE.parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    begun(nodes, "two")
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output == ""
    assert errors.count("interrupted") == 1
    assert "Traceback" not in errors
    assert not still_ticking(nodes, "two")


REFUSED = """
from tracekit.engine import ray_cluster
from tracekit.model.errors import TracekitError

def refuse():
    raise TracekitError("not here", "look elsewhere")

refusals = 0
with ray_cluster.connect_cluster() as cluster:
    for _ in range(100):
        try:
            ray_cluster.run_on_every_node(cluster, refuse)
        except TracekitError as error:
            refusals += error.problem == "not here"
print(refusals)
"""


def test_what_every_node_refuses_ends_only_the_question(nodes):
    # Ray aborts the whole process where a task is cancelled that it just answered; in one of five such questions.
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    process = subprocess.run(
        [sys.executable, "-c", REFUSED], check=False, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (0, "100\n"), process.stderr[-2000:]


def test_without_an_address_ray_is_started_here_and_ended(nodes, work, monkeypatch, capfd):
    import ray

    monkeypatch.delenv("RAY_ADDRESS")
    with ray_cluster.connect_cluster() as cluster:
        assert len(cluster.nodes) == 1
        assert cluster.nodes[0].id not in {nodes.id(name) for name in nodes.members}
    assert not ray.is_initialized()
    assert capfd.readouterr().out == ""
    monkeypatch.undo()
    # The workers of this cluster show no tokens, and ask for none.
    with ray_cluster.connect_cluster(nodes.address) as cluster:
        told = ray_cluster.run_on_every_node(cluster, work.size, ray.put(b"from the driver"))
    assert [one.value for one in told.values()] == [15] * 3, told


def test_an_address_where_nobody_listens_is_an_error_of_one_line():
    with (
        pytest.raises(TracekitError, match=r"no Ray cluster reached at 127\.0\.0\.1:9: Conn"),
        ray_cluster.connect_cluster("127.0.0.1:9"),
    ):
        pass
