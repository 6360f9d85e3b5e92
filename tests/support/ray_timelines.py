"""Rows of Ray timelines, in the two forms that Ray writes."""

DRIVER = "driver:01000000" + "f" * 48


def worker(number):
    """The name of a worker: its id has 56 hex digits."""
    return f"worker:{number:08x}" + "a" * 48


def row(category, tid, ts, dur, node="10.0.0.1", **args):
    """One row as `ray.timeline` writes it, times in µs."""
    return {
        "cat": category, "name": args.get("name", category), "pid": node, "tid": tid, "ts": ts, "dur": dur, "ph": "X",
        "cname": "generic_work", "args": args,
    }  # fmt: skip


def call(category, tid, ts, dur, node="10.0.0.1"):
    """A call of Ray: `submit_task`, `ray.get` …"""
    return row(category, tid, ts, dur, node)


def task(function, tid, ts, arguments=1.0, execute=10.0, outputs=1.0, node="10.0.0.1"):
    """The four rows of a task that starts at `ts`: its parts in turn, and the whole."""
    parts = {"deserialize_arguments": arguments, "execute": execute, "store_outputs": outputs}
    rows, at = [], ts
    for part, dur in parts.items():
        rows.append(row(f"task:{part}", tid, at, dur, node))
        at += dur
    name = function.rpartition(".")[2]
    return [*rows, row(f"task::{function}", tid, ts, at - ts, node, name=name, task_id="0" * 48)]


def dashboard(rows):
    """The same rows as the dashboard's download: numbers for nodes and workers, and rows that name them."""
    nodes = list(dict.fromkeys(one["pid"] for one in rows))
    workers = list(dict.fromkeys((one["pid"], one["tid"]) for one in rows))
    numbered = [
        one | {
            "pid": nodes.index(one["pid"]), "tid": workers.index((one["pid"], one["tid"])),
            "args": one["args"] | {"task_id": "0" * 48, "job_id": "01000000", "actor_id": None},
        }
        for one in rows
    ]  # fmt: skip
    of_nodes = [
        {"name": "process_name", "args": {"name": f"Node {node}"}, "pid": place, "tid": None, "ph": "M"}
        for place, node in enumerate(nodes)
    ]
    of_workers = [
        {"name": "thread_name", "args": {"name": tid}, "pid": nodes.index(node), "tid": place, "ph": "M"}
        for place, (node, tid) in enumerate(workers)
    ]
    return [*numbered, *of_nodes, *of_workers]
