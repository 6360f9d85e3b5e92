"""A Ray cluster: connecting to it, describing its nodes, and running a function on every node.

Ray is imported where it is used: it is an optional dependency and takes most of a second to import.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, NoReturn, TextIO, TypeVar

from tracekit.discover.runs import number_repeated_names
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.system.capacity import count_cores
from tracekit.model.system.installed import install_command
from tracekit.model.system.lifetime import find_descendants, find_marked_descendants, read_start_time, start_guard
from tracekit.model.text.labels import make_displayable, make_natural_key
from tracekit.model.version import VERSION

T = TypeVar("T")

_PROBE_S = 120.0
"""Time a node may take to start its first worker and answer the probe."""
_KNOCK_S = 10.0
NODE_HINT = "run it again when the node is back"
"""Advice for files on a lost node."""
_AUTH = "RAY_AUTH_MODE"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster: id, display name, cores, free memory (None if unknown).

    `host` is the hostname as a valid directory name, numbered where several nodes share one.
    """

    id: str
    name: str
    core_count: int = 1
    memory_bytes: int | None = None
    host: str = ""


@dataclass(slots=True)
class Cluster:
    """The nodes that answered, in order of their names; `lost` maps nodes found dead since to the reason."""

    nodes: tuple[Node, ...]
    driver: str | None = None
    lost: dict[str, str] = field(default_factory=dict[str, str])

    def name(self, node: str) -> str:
        """Get the display name of a node."""
        return next((n.name for n in self.nodes if n.id == node), node[:8])

    def alive(self) -> list[Node]:
        """List the nodes not known to be dead."""
        return [node for node in self.nodes if node.id not in self.lost]


@dataclass(frozen=True, slots=True)
class NodeAnswer(Generic[T]):
    """The answer of one node, or the problem that prevented it; `gone` if the node is dead."""

    value: T | None = None
    problem: str = ""
    gone: bool = False


@contextlib.contextmanager
def connect_cluster(address: str | None = None) -> Iterator[Cluster]:
    """Connect to the cluster at `address`, else at RAY_ADDRESS, else start a local one; disconnect afterwards.

    A program that is already connected stays connected. Raises `TracekitError` before anything is read if Ray is missing
    or unreachable, or if a node has another version of tracekit or Python.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield _probe_cluster(ray)
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    is_ours = address == "local"
    with _sigterm_as_interrupt(), _restore_token_mode(ray), _silence_ray(), _kill_leftover_processes(is_ours=is_ours):
        _start_or_join_cluster(ray, address)
        try:
            yield _probe_cluster(ray)
        finally:
            _leave(ray)


def run_on_every_node(
    cluster: Cluster,
    function: Callable[..., T],
    *args: object,
    nodes: Sequence[str] | None = None,
    timeout_s: float | None = None,
) -> dict[str, NodeAnswer[T]]:
    """Run `function(*args)` once on every live node, or on `nodes`; map node ids to answers."""
    asked = [node.id for node in cluster.alive()] if nodes is None else list(nodes)
    answers = _ask_nodes(_import_ray(), asked, function, args, timeout_s)
    for node, answer in answers.items():
        if answer.gone:
            cluster.lost.setdefault(node, answer.problem)
    return answers


def pin_to_node(node: str) -> Any:
    """Build the Ray scheduling strategy that runs a task on this node or not at all."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def is_node_loss(error: BaseException) -> bool:
    """Whether a Ray error means that a node, or an object on it, is gone."""
    from ray import exceptions

    gone = (
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.ActorUnschedulableError,
        exceptions.ObjectLostError,
        exceptions.ObjectFetchTimedOutError,
    )
    return isinstance(error, gone) and not isinstance(error, exceptions.RayTaskError)


def cancel_tasks(ray: Any, tasks: Sequence[Any], grace_s: float = 1.0) -> None:
    """Cancel tasks: first gently, so that they remove temporary files, then by killing their workers.

    Finished tasks are skipped: Ray may abort this process if a task is cancelled right after it returned.
    """
    left = _wait_for_tasks(ray, tasks, 0)
    for force in (False, True):
        for task in left:
            with contextlib.suppress(Exception):
                ray.cancel(task, force=force)
        left = _wait_for_tasks(ray, left, grace_s)


def _wait_for_tasks(ray: Any, tasks: Sequence[Any], timeout_s: float) -> list[Any]:
    """Wait for the tasks up to a timeout; list those that still run."""
    left = list(tasks)
    if left:
        with contextlib.suppress(Exception):
            _, left = ray.wait(left, num_returns=len(left), timeout=timeout_s, fetch_local=False)
    return left


def _ask_nodes(
    ray: Any, nodes: Sequence[str], function: Callable[..., T], args: Sequence[object], timeout_s: float | None
) -> dict[str, NodeAnswer[T]]:
    """Run a function on each node and collect the answers; raise a `TracekitError` that a node raised."""
    remote = ray.remote(num_cpus=0, max_retries=0)(function)
    tasks = {}
    for node in nodes:
        tasks[node] = remote.options(scheduling_strategy=pin_to_node(node)).remote(*args)
    try:
        # Wait for all together, so that each gets the full timeout; then collect each result.
        if tasks and timeout_s is not None:
            ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=timeout_s)
        answers = {node: _get_task_answer(ray, task, None if timeout_s is None else 0) for node, task in tasks.items()}
    except BaseException:
        cancel_tasks(ray, list(tasks.values()))
        raise
    # Raised only after all have answered: running tasks then need no cancelling, see `cancel_tasks`.
    for answer in answers.values():
        if isinstance(answer, TracekitError):
            raise answer
    return {node: answer for node, answer in answers.items() if isinstance(answer, NodeAnswer)}


def _get_task_answer(ray: Any, task: Any, timeout_s: float | None) -> NodeAnswer[Any] | TracekitError:
    """Get the answer of one task; a `TracekitError` that it raised is returned, as it is meant for the user."""
    try:
        return NodeAnswer(ray.get(task, timeout=timeout_s))
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and what the task raised
        if isinstance(error, ray.exceptions.GetTimeoutError):
            cancel_tasks(ray, [task])
            return NodeAnswer(problem="it does not answer", gone=True)
        cause = getattr(error, "cause", None)
        for raised in (cause, error):
            if isinstance(raised, TracekitError):
                return raised
        gone = is_node_loss(error)
        return NodeAnswer(problem="the node was lost" if gone else format_ray_error(error), gone=gone)


def format_ray_error(error: BaseException) -> str:
    """Format a Ray error in one line; the last line of its stack says what happened."""
    cause = getattr(error, "cause", None) or error
    lines = ["", *(line.strip() for line in str(cause).splitlines() if line.strip())]
    return make_displayable(f"{type(cause).__name__}: {lines[-1]}"[:300])


def _import_ray() -> Any:
    """Import Ray, or raise a `TracekitError` with the install command."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise TracekitError(
            f"--engine ray needs Ray, which cannot be imported: {format_ray_error(error)}",
            f"{install_command('ray')}, or leave --engine out",
        ) from error
    return ray


def _start_or_join_cluster(ray: Any, address: str) -> None:
    """Connect to `address`, or start a cluster on this machine for "local"."""
    options: dict[str, Any] = {}
    _check_address_listens(address)
    if address == "local":
        options = {"num_cpus": count_cores(), "include_dashboard": False}
    try:
        _init_ray(
            ray,
            address=address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            ignore_reinit_error=True,
            **options,
        )
    except Exception as error:
        _leave(ray)
        what = "Ray could not be started" if options else f"no Ray cluster reached at {make_displayable(address)}"
        raise TracekitError(
            f"{what}: {format_ray_error(error)}",
            "check the address (ray status shows it) and that Ray and Python are of the same version here and there",
        ) from error


def _check_address_listens(address: str) -> None:
    """Raise `TracekitError` if nobody listens at `host:port`; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise TracekitError(
            f"no Ray cluster reached at {make_displayable(address)}: {format_ray_error(error)}",
            "check the address: ray status shows it",
        ) from error


@contextlib.contextmanager
def _kill_leftover_processes(*, is_ours: bool) -> Iterator[None]:
    """Kill all processes of a cluster started here, even if a signal arrived before Ray knew of them.

    Ray's agents poll for their raylet and outlive one that ends while they start. A guard process kills them if this
    process is killed.
    """
    if not is_ours or sys.platform != "linux":
        yield
        return
    # Only Ray's own processes: the calling program may have others.
    marks = (f"{Path(_import_ray().__file__).parent}{os.sep}", "ray::")
    before = find_descendants(os.getpid())
    guard = start_guard(marks)
    try:
        yield
    except BaseException:
        started = find_marked_descendants(os.getpid(), marks)
        _leave(_import_ray())
        started |= find_marked_descendants(os.getpid(), marks)
        started.pop(guard.pid, None)  # its command line contains the marks
        for pid, since in started.items():
            if before.get(pid) != since and read_start_time(pid) == since:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        raise
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM a KeyboardInterrupt within the context, and pass it to its handler afterwards.

    Ray's calls let a KeyboardInterrupt through, but report the SystemExit of a handler as an error of their own,
    which looks like a failed task.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_terminated = threading.Event()

    def interrupt(*_: object) -> NoReturn:
        is_terminated.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if is_terminated.is_set():
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _restore_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray replaces it to connect, and its C++ part resets it to the default to leave."""
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _leave(ray: Any) -> None:
    """Leave the cluster, and end one that was started here. SIGTERM may end this process at once meanwhile."""
    with _restore_sigterm():
        ray.shutdown()


def _init_ray(ray: Any, **options: Any) -> None:
    """Connect; handle SIGTERM as before, where Ray would exit with status 15."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _restore_sigterm():
            ray.init(**options)
    except SystemExit:
        if hasattr(signal, "alarm"):
            signal.alarm(0)  # Ray's C++ handler aborts the process 3 s after SIGTERM
        if callable(handler):
            handler(signal.SIGTERM, None)
        raise


@contextlib.contextmanager
def _restore_token_mode(ray: Any) -> Iterator[None]:
    """Restore whether workers must present a token.

    Starting a cluster here turns token authentication on for the rest of this process. Workers of another cluster have no
    tokens and could no longer exchange objects with it.
    """
    before = os.environ.get(_AUTH)
    try:
        yield
    finally:
        if before is None and os.environ.pop(_AUTH, None) is not None:
            with contextlib.suppress(Exception):  # no public API, and not in every Ray version
                inside = ray._raylet  # noqa: SLF001
                inside.Config.initialize("")
                inside.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _silence_ray() -> Iterator[None]:
    """Silence Ray on standard output; the report contains what matters."""
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update({name: value for name, value in _QUIET.items() if before[name] is None})
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(_StreamWithoutRay(sys.stdout)):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


class _StreamWithoutRay(io.TextIOBase):
    """A stream that drops what Ray's threads write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, unless the caller is a Ray thread."""
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the wrapped stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether the wrapped stream is a terminal."""
        return self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _make_node_probe() -> Callable[[], dict[str, Any]]:
    """Make a function that describes a node. It is local, so Ray ships its code to nodes without tracekit."""

    def who() -> dict[str, Any]:
        import sys

        facts: dict[str, Any] = {"python": sys.version_info[:2]}
        try:
            from tracekit.model.version import VERSION

            facts["version"] = VERSION
            from tracekit.model.system.capacity import count_cores, read_available_memory

            facts["cores"], facts["memory"] = count_cores(), read_available_memory()
        except Exception as error:  # noqa: BLE001 - whatever the cause, tracekit is not usable there
            facts["problem"] = f"{type(error).__name__}: {error}"
        return facts

    return who


def _probe_cluster(ray: Any) -> Cluster:
    """Probe every node and describe the cluster; raise `TracekitError` if a node is incompatible or none answers."""
    rows = [row for row in ray.nodes() if row["Alive"]]
    names = _name_nodes(rows)
    answers = _ask_nodes(ray, list(names), _make_node_probe(), (), _PROBE_S)
    wrong = [
        f"{names[node]}: {problem}"
        for node, answer in answers.items()
        if not answer.gone and (problem := answer.problem or _describe_incompatibility(answer.value))
    ]
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more nodes)" if len(wrong) > _SHOWN else ""
        raise TracekitError(
            "; ".join(wrong[:_SHOWN]) + more,
            f"install tracekit {VERSION} on every node of the cluster, for the same Python",
        )
    cpus = {row["NodeID"]: int(row["Resources"].get("CPU", 0)) for row in rows}
    hosts = _label_hosts({row["NodeID"]: str(row["NodeManagerHostname"]) for row in rows}, [*names])
    nodes = []
    for id_, name in names.items():
        facts = answers[id_].value
        nodes.append(Node(id_, name, _count_node_cores(cpus[id_], facts), _get_node_memory(facts), hosts[id_]))
    lost = {node: answer.problem for node, answer in answers.items() if answer.gone}
    if len(lost) == len(nodes):
        raise TracekitError("no node of the Ray cluster answers", "look at it with: ray status")
    return Cluster(tuple(nodes), str(ray.get_runtime_context().get_node_id()), lost)


def _describe_incompatibility(facts: Mapping[str, Any] | None) -> str:
    """Explain why a node cannot work with this driver; empty if it can."""
    if facts is None:
        return ""
    if facts.get("version", VERSION) != VERSION:
        return f"it has tracekit {make_displayable(str(facts['version']))}, and here is {VERSION}"
    if "problem" in facts:
        return f"tracekit cannot be imported there: {make_displayable(str(facts['problem'])[:200])}"
    if tuple(facts["python"]) != sys.version_info[:2]:
        other, this = _format_version(facts["python"]), _format_version(sys.version_info[:2])
        return f"it has Python {other}, and here is {this}"
    return ""


def _format_version(version: Iterable[int]) -> str:
    return ".".join(str(number) for number in version)


def _count_node_cores(cpus: int, facts: Mapping[str, Any] | None) -> int:
    """Count the cores of a node, limited to the CPUs that Ray may use there."""
    cores = int((facts or {}).get("cores", 1))
    return max(1, min(cores, cpus) if cpus else cores)


def _get_node_memory(facts: Mapping[str, Any] | None) -> int | None:
    """Get the free memory of a node at the time of the probe, in bytes."""
    memory = (facts or {}).get("memory")
    return memory if isinstance(memory, int) else None


def _name_nodes(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Build a display name per node id: `host (address)`, plus the start of the id if that is ambiguous."""
    plain = {}
    for row in rows:
        plain[row["NodeID"]] = make_displayable(f"{row['NodeManagerHostname']} ({row['NodeManagerAddress']})")
    labels = list(plain.values())
    names = {n: p if labels.count(p) == 1 else f"{p} {n[:8]}" for n, p in plain.items()}
    return dict(sorted(names.items(), key=lambda item: make_natural_key(item[1])))


def _label_hosts(hosts: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """Build a unique label for each node's host; `nodes` gives the order of numbering."""
    labels = [re.sub(r"[^0-9A-Za-z.-]+", "-", hosts[node]).strip("-.") or "host" for node in nodes]
    unique = number_repeated_names(labels)
    return {node: label.replace("#", "-") for node, label in zip(nodes, unique, strict=True)}
