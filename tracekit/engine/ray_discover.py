"""File discovery in a cluster: which files match on which nodes, and which nodes see the driver's files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracekit.discover.surveys import Survey
from tracekit.engine import ray_surveys as node_surveys
from tracekit.engine.ray_cluster import NODE_HINT, Cluster, run_on_every_node
from tracekit.engine.ray_surveys import Sighting
from tracekit.model.errors import TracekitError
from tracekit.model.labels import make_displayable
from tracekit.model.trace import Failure, Note, Source
from tracekit.readers.loading import sniff

Stamp = tuple[str, int, int, int]


def survey_cluster(
    cluster: Cluster, patterns: Sequence[str], exclude: Sequence[str]
) -> tuple[list[Survey], list[Failure]]:
    """Survey each pattern on all nodes; return (one merged survey per pattern, failures of nodes that could not look).

    Notes list the nodes that hold no match. Raises `TracekitError` for a pattern without a match on any node.
    """
    if not patterns:
        return [], []
    away = dict(cluster.lost)
    answers = run_on_every_node(cluster, _look_at_patterns, list(patterns), list(exclude))
    # A node that cannot answer is missing data, not an empty directory.
    for node, answer in answers.items():
        if answer.value is None:
            away[node] = answer.problem
    holes = []
    for node, problem in away.items():
        reason = f"the node was not looked at: {problem}"
        holes.append(Failure(cluster.name(node), reason, NODE_HINT, "node-lost"))
    notes: list[Note] = []
    names = {node.id: node.name for node in cluster.nodes}
    hosts = {node.id: node.host for node in cluster.nodes}
    surveyed: list[Survey] = []
    for place, pattern in enumerate(patterns):
        seen: dict[str, Sighting] = {}
        for node, answer in answers.items():
            if answer.value is None:
                continue
            sighting = answer.value[place]
            if isinstance(sighting, str):
                notes.append(Note("info", "node", sighting, names[node]))
            else:
                seen[node] = sighting
        if not seen:
            more = f", and {len(away)} could not be asked" if away else ""
            raise TracekitError(
                f"{make_displayable(pattern)}: found on none of {len(answers)} nodes{more}",
                "check the spelling, and quote what the shell would expand: '$HOME/outputs'",
            )
        joined = node_surveys.merge_sightings(pattern, seen, names, hosts)
        surveyed.append(replace(joined, notes=(*joined.notes, *notes)))
        notes = []
    return surveyed, holes


def find_visible_nodes(
    cluster: Cluster, sources: Sequence[Source], nodes_by_source: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Map each source to the nodes that see its file, where that is more than its own node.

    `nodes_by_source` contains those found on several nodes. For files found by the driver, every node is asked.
    """
    nodes = dict(nodes_by_source)
    stamps: dict[str, Stamp] = {}
    for source in sources:
        if source.node is None and (stamp := _read_file_stamp(str(source.path))):
            stamps[source.name] = stamp
    if not stamps:
        return nodes
    answers = run_on_every_node(cluster, _check_same_files, list(stamps.values()))
    for place, name in enumerate(stamps):
        nodes[name] = tuple(node for node, answer in answers.items() if answer.value and answer.value[place])
    return nodes


def _look_at_patterns(patterns: Sequence[str], exclude: Sequence[str]) -> list[Sighting | str]:
    """Survey each pattern on this node; runs as a Ray task."""
    return [node_surveys.survey_node(pattern, exclude, sniff) for pattern in patterns]


def _check_same_files(stamps: Sequence[Stamp]) -> list[bool]:
    """Check whether this node sees these very files; runs as a Ray task."""
    return [_read_file_stamp(stamp[0]) == tuple(stamp) for stamp in stamps]


def _read_file_stamp(path: str) -> Stamp | None:
    """Read the identity of a file: path, inode, size and modification time. None if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - the path unchanged; it may be from another node
    except (OSError, ValueError):
        return None
    return path, status.st_ino, status.st_size, status.st_mtime_ns
