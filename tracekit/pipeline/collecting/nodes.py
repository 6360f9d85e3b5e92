"""Nsight Systems reports on the nodes of a Ray cluster: listing them, and copying them here with verification."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracekit.discover.arguments import expand_path_pattern
from tracekit.engine.ray_cluster import Cluster, NodeAnswer, run_on_every_node
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable
from tracekit.pipeline.collecting.file_copies import CopyResult, make_copy_error, put_verified
from tracekit.pipeline.collecting.ray_sessions import (
    CopyPlan,
    CopyRequest,
    SkippedFile,
    find_useless_reports,
    plan_copies,
)

CHUNK_BYTES = 8 << 20
"""Most bytes of a file held in memory at a time, on its node and here."""
_BLOCK_BYTES = 1 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

FileStamp = tuple[int, int, int]
"""(inode, size, mtime)."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The files that a node offers: the plan of copies, and the files that are probably useless."""

    plan: CopyPlan
    suspects: tuple[SkippedFile, ...]


def collect_offers(cluster: Cluster, patterns: Sequence[str], target: Path) -> NodeOffer:
    """Collect the offers of all nodes in order, each for a directory `host=<host>` of the session.

    A node that cannot be reached, or that has no such directory, is listed in `left_out`.
    """
    wanted: list[CopyRequest] = []
    left_out: list[SkippedFile] = []
    doubted: list[SkippedFile] = []
    for node in cluster.nodes:
        if node.id in cluster.lost:
            left_out.append(SkippedFile(Path(), cluster.lost[node.id], node.host))
            continue
        answers: Mapping[str, NodeAnswer[NodeOffer | str]] = run_on_every_node(
            cluster, _offer_files, list(patterns), str(target), node.host, nodes=[node.id]
        )
        answer = answers[node.id]
        if not isinstance(answer.value, NodeOffer):
            left_out.append(SkippedFile(Path(), answer.value or answer.problem, node.host))
            continue
        wanted += [replace(request, node=node.host) for request in answer.value.plan.wanted]
        left_out += [replace(skipped, node=node.host) for skipped in answer.value.plan.left_out]
        doubted += [replace(suspect, node=node.host) for suspect in answer.value.suspects]
    return NodeOffer(CopyPlan(tuple(wanted), tuple(left_out)), tuple(doubted))


def make_node_copier(cluster: Cluster) -> Callable[[CopyRequest], CopyResult]:
    """Make a function that copies one file of a node here, for `ray_sessions.copy_reports`."""
    ids = {node.host: node.id for node in cluster.nodes}

    def copy(request: CopyRequest) -> CopyResult:
        assert request.node is not None
        return put_verified(_RemoteFile.look_up(cluster, ids[request.node], request.path), request.target)

    return copy


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file of a node, read in chunks; each read checks on the node that the file is unchanged."""

    name: str
    cluster: Cluster
    node: str
    path: str
    stamp: FileStamp
    size_bytes: int
    mtime_ns: int
    atime_ns: int
    mode: int

    @classmethod
    def look_up(cls, cluster: Cluster, node: str, path: Path) -> _RemoteFile:
        """Get the file as it is now."""
        stamp, atime_ns, mode = _ask_node(cluster, node, path.name, _get_file_status, str(path))
        _, size, mtime_ns = stamp
        return cls(path.name, cluster, node, str(path), stamp, size, mtime_ns, atime_ns, mode)

    def blocks(self) -> Iterator[bytes]:
        for offset in range(0, self.size_bytes, CHUNK_BYTES):
            yield self._ask(_read_chunk, self.path, self.stamp, offset)

    def digest(self) -> bytes:
        digest: bytes = self._ask(_digest_unchanged, self.path, self.stamp)
        return digest

    def is_still(self, digest: bytes) -> bool:
        return self.digest() == digest

    def _ask(self, function: Callable[..., Any], *args: object) -> Any:
        return _ask_node(self.cluster, self.node, self.name, function, *args)


def _ask_node(cluster: Cluster, node: str, name: str, function: Callable[..., Any], *args: object) -> Any:
    """Run a function on a node and return its result; raises `TracekitError` if it fails."""
    answer = run_on_every_node(cluster, function, *args, nodes=[node])[node]
    if answer.problem:
        raise TracekitError(
            f"{make_displayable(name)}: not copied: {cluster.name(node)}: {answer.problem}",
            "run it again: finished copies stay",
        )
    return answer.value


def _offer_files(patterns: Sequence[str], target: str, host: str) -> NodeOffer | str:
    """List the files that this node offers. Runs on the node."""
    roots: list[str] = []
    for pattern in patterns:
        text = expand_path_pattern(pattern)
        paths = [text] if os.path.lexists(text) else sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - text as typed
        roots += [path for path in paths if os.path.isdir(path)]  # noqa: PTH112
    if not roots:
        return f"no such directory: {make_displayable(', '.join(patterns))}"
    try:
        planned = plan_copies(roots, Path(target), host)
    except TracekitError as error:
        return error.problem
    return NodeOffer(planned, find_useless_reports(planned.wanted))


def _get_file_status(path: str) -> tuple[FileStamp, int, int]:
    """Get (stamp, atime, permissions) of a file. Runs on the node."""
    with _open_without_links(path) as descriptor:
        status = os.fstat(descriptor)
    return _make_stamp(status), status.st_atime_ns, status.st_mode & 0o777


def _read_chunk(path: str, stamp: FileStamp, offset: int) -> bytes:
    """Read one chunk of a file. Runs on the node; raises `TracekitError` if the file changed since its stamp."""
    with _open_without_links(path) as descriptor:
        _check_stamp(path, descriptor, stamp)
        return os.pread(descriptor, CHUNK_BYTES, offset)


def _digest_unchanged(path: str, stamp: FileStamp) -> bytes:
    """Hash a whole file. Runs on the node; raises `TracekitError` if the file changed since its stamp."""
    digest = hashlib.sha256()
    with _open_without_links(path) as descriptor:
        while block := os.read(descriptor, _BLOCK_BYTES):
            digest.update(block)
        _check_stamp(path, descriptor, stamp)
    return digest.digest()


@contextlib.contextmanager
def _open_without_links(path: str) -> Iterator[int]:
    """Open a file that is not a link, and close it afterwards; raises `TracekitError` if that fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _NO_LINK)
    except OSError as error:
        raise make_copy_error(Path(path).name, error, path) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_stamp(path: str, descriptor: int, stamp: FileStamp) -> None:
    """Raise `TracekitError` if a file changed since its stamp."""
    if _make_stamp(os.fstat(descriptor)) != tuple(stamp):
        raise TracekitError(
            f"{make_displayable(Path(path).name)}: not copied: it changed meanwhile",
            "run it again when the run has ended",
        )


def _make_stamp(status: os.stat_result) -> FileStamp:
    return status.st_ino, status.st_size, status.st_mtime_ns
