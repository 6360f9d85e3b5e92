"""Reports of Nsight Systems are copied from every node, each host's apart, and proven."""

import random

import pytest

from tracekit.engine import ray_cluster
from tracekit.model.errors import TracekitError
from tracekit.pipeline.collecting import nodes as node_collecting
from tracekit.pipeline.collecting.ray_sessions import CopyRequest

pytestmark = pytest.mark.slow

SESSION = "session_2026-11-20_07-33-03_123456_42"


@pytest.fixture
def reports(nodes):
    """A report of one name on two of the nodes, larger than a chunk on one: {node: bytes}."""
    made = {"one": random.Random(1).randbytes(1000), "two": random.Random(2).randbytes(node_collecting.CHUNK_BYTES + 1)}
    for name, data in made.items():
        folder = nodes.root(name) / "ray" / SESSION / "logs" / "nsight"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "worker_process_7.nsys-rep").write_bytes(data)
    return made


def test_reports_of_every_node_are_copied_once_and_kept_apart(reports, tmp_path, call):
    target = tmp_path / "kept"
    command = ("collect", "--engine", "ray", "--on-every-node", "$NODE_ROOT/r*y", "-o", target)
    done = call(*command)
    assert done.exit_code == 0
    copies = sorted((target / SESSION).glob("host=*/worker_process_7.nsys-rep"))
    assert sorted(path.read_bytes() for path in copies) == sorted(reports.values())
    assert "no such directory: $NODE_ROOT/r*y" in done.stdout
    again = call(*command)
    assert again.exit_code == 0
    assert sorted((target / SESSION).glob("host=*/*")) == copies
    copies[0].write_bytes(b"x" * copies[0].stat().st_size)
    spoiled = call(*command)
    assert spoiled.exit_code == 2
    assert "is there, and is different" in spoiled.stderr


def test_a_report_that_changes_or_vanishes_is_not_copied(nodes, reports, tmp_path):
    with ray_cluster.connect_cluster() as cluster:
        offer = node_collecting.collect_offers(cluster, ["$NODE_ROOT/ray"], tmp_path)
        large = max(offer.plan.wanted, key=lambda one: one.size_bytes)
        copy = node_collecting.make_node_copier(cluster)
        chunk = node_collecting.CHUNK_BYTES
        remote = node_collecting._RemoteFile.look_up(cluster, nodes.id("two"), large.path)
        blocks = remote.blocks()
        assert next(blocks) == reports["two"][:chunk]
        large.path.write_bytes(bytes(chunk + 1))
        with pytest.raises(TracekitError, match="changed meanwhile"):
            next(blocks)
        gone = CopyRequest(large.session, large.path.with_name("gone"), tmp_path / "x", 1, large.node)
        with pytest.raises(TracekitError, match="No such file"):
            copy(gone)
    assert not list(tmp_path.iterdir())


def test_no_root_is_taken_besides_the_nodes_own(call, tmp_path):
    done = call("collect", "--engine", "ray", tmp_path, "-o", tmp_path / "kept")
    assert done.exit_code == 2
    assert "neither ROOT nor --host" in done.stderr
