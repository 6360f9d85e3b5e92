"""A Ray cluster of three nodes on this machine, each with a directory of its own; only where Ray is installed."""

import importlib
import os
import shutil
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "verl_cpu"
NAMES = ("one", "two", "three")
SMALLEST_STORE = 80 << 20

# Not skipped but not there: where real profiles are, a skipped test is a failure.
collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


class Nodes:
    """The cluster, and what each node has by itself: an id, a directory."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.members = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.cluster = Cluster()
        for name in NAMES:
            self.add(name)

    @property
    def address(self):
        return self.cluster.address

    def root(self, name):
        return self.folder / name

    def mark(self, name, path, word):
        """A file of a node that says something about one of its sources; see `node_workloads`."""
        return self.root(name) / "marks" / f"{path.name}.{word}"

    def id(self, name):
        return self.members[name].node_id

    def add(self, name, **more):
        """Start a node; the first one is the head."""
        (self.root(name) / "marks").mkdir(parents=True, exist_ok=True)
        paths = [str(HERE), str(HERE.parent / "engine")]
        variables = {"NODE_ROOT": str(self.root(name)), "PYTHONPATH": os.pathsep.join(paths), **more}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.members[name] = self.cluster.add_node(
                num_cpus=2, object_store_memory=SMALLEST_STORE, include_dashboard=False, env_vars=variables
            )  # fmt: skip

    def kill(self, name):
        """End a node without a word, as a machine that loses its power does."""
        self.cluster.remove_node(self.members.pop(name), allow_graceful=False)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Nodes(tmp_path_factory.mktemp("nodes"))
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.cluster.shutdown()


@pytest.fixture
def nodes(cluster, monkeypatch):
    """The cluster with its three nodes alive and no marks on them; what tests call is importable here too."""
    for name in NAMES:
        if name not in cluster.members:
            cluster.add(name)
    for name in set(cluster.members) - set(NAMES):
        cluster.kill(name)
    cluster.cluster.wait_for_nodes()  # until those that were killed are known to be dead, too
    for mark in cluster.folder.glob("*/marks/*"):
        mark.unlink()
    for folder in (HERE, HERE.parent / "engine"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    import ray

    assert not ray.is_initialized()


@pytest.fixture
def work(nodes):
    sys.modules.pop("node_workloads", None)
    return importlib.import_module("node_workloads")


@pytest.fixture
def spread(nodes, tmp_path, monkeypatch, request):
    """A function that spreads files over the nodes, and puts their union into one local directory."""
    case = request.node.name.replace("[", "-").rstrip("]")
    monkeypatch.chdir(tmp_path)
    union = tmp_path / "$NODE_ROOT" / case

    def put(files):
        """The pattern that finds these files ({name: (node, bytes)}) on every node, and in the union."""
        for name, (node, data) in files.items():
            for folder in (nodes.root(node) / case, union):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return f"$NODE_ROOT/{case}/outputs/profile"

    yield put
    for name in NAMES:
        shutil.rmtree(nodes.root(name) / case, ignore_errors=True)


@pytest.fixture
def example():
    """The small example of verl, its files dealt out to the three nodes: {name: (node, bytes)}."""
    traces = sorted((EXAMPLE / "outputs" / "profile").iterdir())
    dealt = {f"outputs/profile/{path.name}": (NAMES[n % 3], path.read_bytes()) for n, path in enumerate(traces)}
    return {**dealt, "metrics.jsonl": ("one", (EXAMPLE / "metrics.jsonl").read_bytes())}
