"""Directories in which one thing went wrong, each with a near miss that is healthy: `TORCH` and `NSYS`."""

import lzma
import os
import shutil
import sqlite3

import chrome_builder as chrome
import memory_builder as memory
import nsys_builder as nsys
import nsys_programs


def trace(path, rank=None, world=None, steps=(1, 2), gpu=True, collective=False, pid=100, **meta):
    """A torch trace with the given steps, one kernel in each."""
    rows = []
    for place, number in enumerate(steps):
        at = 100 * place
        rows += [chrome.step(number, at, 90), chrome.op("aten::mm", at + 1, 50)]
        if gpu:
            name = "ncclDevKernel_AllReduce" if collective else "gemm"
            rows += chrome.launched(name, at + 5, at + 10, 20, correlation=place + 1)
    for row in rows:
        row["pid"] = pid if row["pid"] == chrome.HOST_PID else row["pid"]
    named = {} if rank is None else {"rank": rank, "world_size": world}
    return chrome.write(path, rows, **named, **meta)


def export(path, *, pid=100, rank=None, world=None, at=1_000, length=1_000, session=None, more=(), **options):
    """An export of one process with one NVTX range."""
    rows = [nsys.nvtx("update_actor", at, at + length, pid=pid, tid=pid), *more]
    rows += [nsys.variable("RANK", str(rank))] if rank is not None else []
    rows += [nsys.variable("WORLD_SIZE", str(world))] if world is not None else []
    rows += [nsys.captured("PROFILING_SESSION_UUID", session)] if session else []
    return nsys.write(path, rows, duration_ns=10_000_000, **options)


def put(path, data=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def healthy(folder):
    for rank in (0, 1):
        trace(folder / f"rank{rank}.json", rank, 2)


def with_operators(folder, numbers):
    """One kernel, and an op of 5 µs every 10 µs for each of these numbers."""
    rows = [
        chrome.op("aten::add", 2e9 + 10 * place, 5, **{"External id": number}) for place, number in enumerate(numbers)
    ]
    rows += chrome.launched("k", 2e9 + 1, 2e9 + 3, 5, 1)
    chrome.write(folder / "rank0.json", rows)


def timed(folder, host_at_zero=0, early=0, shift=0, without=(), length=20):
    """Ten launches 40 µs apart, each with a kernel of 20 µs 5 µs later; `length` is that of the third.

    The first `early` kernels lie a second before their launch, all of them `shift` µs off. Launches `without` have none.
    """
    rows = [chrome.op("a", 0, 0) for _ in range(host_at_zero)]
    for number in range(10):
        at = 2e9 + 40 * number
        begin = at + 5 + shift - (1e6 if number < early else 0)
        rows += [chrome.op("aten::mm", at, 30), chrome.launch(at, number + 1)]
        if number not in without:
            last = length if number == 2 else 20
            rows.append(chrome.kernel(f"k{number}", begin, last, number + 1))
    chrome.write(folder / "rank0.json", rows)


def interleaved(folder, first):
    """A file of ten launches, over which ten others were written from the middle of a row; these count from `first`."""
    texts = []
    for start in (0, first):
        rows = []
        for number in range(10):
            at = 40 * number
            rows += [chrome.op("aten::mm", at, 30), chrome.launch(at, start + number)]
        texts.append(chrome.text(rows))
    cut, other = (text.index(b'"dur"', len(text) // part) for text, part in zip(texts, (2, 3), strict=True))
    put(folder / "rank0.json", texts[0][: cut + 6] + texts[1][other:])


def merged(folder, *prefixes):
    """The rows of as many processes in one file, with these before their pids."""
    rows = []
    for place, prefix in enumerate(prefixes):
        own = [chrome.op("aten::mm", 0, 90), *chrome.launched("k", 5, 10, 20, 1)]
        rows += [row | {"pid": f"{prefix}{row['pid'] + place}"} for row in own]
    chrome.write(folder / "merged.json", rows)


def two(folder, first=None, second=None):
    """Two ranks of two, made with these options."""
    trace(folder / "rank0.json", 0, 2, **(first or {}))
    trace(folder / "rank1.json", 1, 2, **(second or {}))


def cut(path, keep=0.6):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def manifest(folder, files, status="closed"):
    text = f'{{"schema": "capture/1", "rank": 0, "pid": 7, "files": {files}, "status": "{status}"}}'
    put(folder / "capture_pid7.json", text.encode())


def wal(folder, copied):
    """An export in WAL mode of which the last rows are in the -wal file alone, copied without or with it."""
    made = export(folder.with_name(f"{folder.name}-made") / "report.sqlite", journal="wal")
    with sqlite3.connect(made) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("INSERT INTO StringIds VALUES (999, 'late')")
        connection.commit()
        folder.mkdir(parents=True)
        for suffix in ("", "-wal")[: 1 + copied]:
            shutil.copyfile(f"{made}{suffix}", folder / f"report.sqlite{suffix}")
    connection.close()


def session(root, name, *reports):
    for report in reports:
        export(root / name / "logs" / "nsight" / f"{report}.sqlite")
        put(root / name / "logs" / "nsight" / f"{report}.nsys-rep", nsys_programs.REPORT)
    (root / name).mkdir(parents=True, exist_ok=True)
    return root / name


# --- one directory on which it fires, and one on which it does not; each gets an empty folder

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
LOG = b'{"step": 1, "data": {"timing_s/gen": 1.5}}\n'
VERL = "{}_step1_rank0-of-1_pid{}_20261120073301000{}"


def beside(name, data=b""):
    """Two healthy ranks and one file more."""
    return lambda f: (healthy(f), put(f / name, data))


def renamed(name):
    return lambda f: (healthy(f), (f / "rank1.json").rename(f / name))


def told(files, status="closed"):
    return lambda f: (healthy(f), manifest(f, files, status))


def copied(name):
    return lambda f: (healthy(f), shutil.copy(f / "rank1.json", f / name))


def processes(*given):
    """Traces of rank 0 named by these (role, pid, suffix), each with steps of its own."""
    return lambda f: [trace(f / VERL.format(*one), steps=(1, 2 + n), pid=one[1]) for n, one in enumerate(given)]


TAR = lzma.compress(bytes(257) + b"ustar" + bytes(1000))


def without(key):
    """Three events that lack what stands under this key."""
    rows = [chrome.op("a", at, 5) for at in (1, 10, 20)]
    return [{name: value for name, value in row.items() if name != key} for row in rows]


NPU = [{"ph": "X", "cat": "npu_kernel", "name": "a", "ts": 1, "dur": 2, "pid": 0, "tid": 7}]
FOREIGN = b'{"traceEvents": [{"ph": "X", "cat": "build", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
SLOW_OPS = [chrome.op("aten::mm", 3_000 * n, 2_000) for n in range(20)]


def _snapshot(*, with_history):
    allocator = memory.Allocator()
    allocator.alloc(2**20)
    made = memory.snapshot(allocator)
    return made if with_history else made | {"device_traces": []}


NO_HISTORY, HISTORY = _snapshot(with_history=False), _snapshot(with_history=True)


TORCH = {
    # code: (sick, well)
    "no-profile": (lambda f: put(f / "README.md", b"text"), healthy),
    "lfs-pointer": (beside("rank2.json", LFS), beside("notes.md", LFS)),
    "empty-file": (beside("rank2.json.gz"), beside("stderr.log")),
    "temporary-file": (beside("rank2.json.gz.tmp", b"x"), beside("x.tmp", b"x")),
    "truncated-trace": (lambda f: (healthy(f), cut(f / "rank1.json")), healthy),
    "archive": (beside("rank2.tar.xz", TAR), beside("rank2.bin", b"no tar")),
    "other-text": (beside("rank2.json", '{"traceEvents": []}'.encode("utf-16")), beside("rank2.txt", b"text")),
    "empty-trace": (lambda f: (healthy(f), chrome.write(f / "rank2.json", [])), healthy),
    "no-times": (
        lambda f: (healthy(f), chrome.write(f / "rank2.json", without("ts"))),
        lambda f: (healthy(f), chrome.write(f / "rank2.json", without("tid"))),
    ),
    "impossible-times": (lambda f: timed(f, host_at_zero=3), timed),
    "unusable-kernels": (lambda f: timed(f, early=2), lambda f: timed(f, shift=-200_000)),
    "lost-kernels": (lambda f: timed(f, without=range(3)), lambda f: timed(f, without=range(7, 10))),
    "late-ends": (lambda f: timed(f, length=95), lambda f: timed(f, length=50)),
    "filtered-rows": (lambda f: with_operators(f, range(0, 300, 3)), lambda f: with_operators(f, range(100))),
    "interleaved-processes": (lambda f: interleaved(f, 0), lambda f: interleaved(f, 100)),
    "merged-ranks": (lambda f: merged(f, "[TP00] ", "[TP01-DP00] "), lambda f: merged(f, "[worker] ", "rank 1 ")),
    "odd-times": (
        lambda f: (healthy(f), chrome.write(f / "rank2.json", [chrome.op("a", 1, -5)])),
        lambda f: (healthy(f), chrome.write(f / "rank2.json", [chrome.op("a", 1, 0)])),
    ),
    "never-closed": (told('[{"path": "rank0.json"}]', "open"), told('[{"path": "rank0.json"}]')),
    "capture-problem": (
        told('[{"path": "rank0.json"}], "problems": ["stop: OSError: no space left"]'),
        told('[{"path": "rank0.json"}], "problems": []'),
    ),
    "lost-capture": (
        told(
            '[{"path": "rank0.json"}], "captures": [{"step": 1, "outcome": "file"}, '
            '{"step": 2, "outcome": "lost", "because": ["the trace was not written: no space left"]}]'
        ),
        told(
            '[{"path": "rank0.json"}], "captures": [{"step": 1, "outcome": "file", "because": []}, '
            '{"step": 2, "outcome": "elsewhere", "where": "rank1_step2", "because": []}]'
        ),
    ),
    "elsewhere": (
        told(
            '[], "tool": "nsys", "pid": 17, "captures": '
            '[{"step": 1, "outcome": "elsewhere", "where": "/tmp/ray/session_1/logs/nsight"}]'
        ),
        told('[{"path": "rank0.json"}], "tool": "nsys", "pid": 17, "captures": [{"step": 1, "outcome": "file"}]'),
    ),
    "no-effect": (
        told('[{"path": "rank0.json"}], "ignored": ["critic: relocate_results: nothing to move"]'),
        told('[{"path": "rank0.json"}], "ignored": []'),
    ),
    "missing-files": (told('[{"path": "gone.json"}]'), told('[{"path": "rank0.json"}]')),
    "missing-ranks": (
        lambda f: [trace(f / f"rank{r}.json", r, 4) for r in (0, 3)],
        lambda f: [trace(f / f"rank{r}.json", r, 3) for r in range(3)],
    ),
    "few-ranks": (lambda f: trace(f / "rank0.json", 0, 4), lambda f: trace(f / "rank0.json", 0, 1)),
    "missing-steps": (lambda f: two(f, {"steps": (1, 2, 3)}), lambda f: two(f, {"steps": (1, 2)}, {"steps": (2, 1)})),
    "same-content": (copied("rank1 (1).json"), beside("rank1.txt", b"no trace")),
    "same-identity": (
        processes(("actor", 7, ".json"), ("actor", 7, ".json.gz")),
        processes(("actor", 7, ".json"), ("critic", 7, ".json.gz")),
    ),
    "shared-rank": (
        processes(("actor", 7, ".json"), ("actor", 8, ".json")),
        processes(("actor", 7, ".json"), ("critic", 8, ".json")),
    ),
    "conflict": (renamed("rank5.json"), renamed("other.json")),
    "unknown-rank": (
        lambda f: (healthy(f), trace(f / "worker_pid9.json")),
        lambda f: trace(f / "worker_pid9.json", collective=True),
    ),
    "no-device-rows": (lambda f: two(f, {}, {"gpu": False}), lambda f: two(f, {"gpu": False}, {"gpu": False})),
    "no-common-clock": (lambda f: two(f, {}, {"base_ns": None}), lambda f: trace(f / "rank0.json", 0, 1, base_ns=None)),
    "unread-rows": (
        lambda f: chrome.write(f / "rank0.json", [*NPU, chrome.op("aten::mm", 1, 50)]),
        lambda f: trace(f / "rank0.json", 0, 1),
    ),
    "not-pytorch": (
        lambda f: put(f / "trace.json", FOREIGN),
        lambda f: put(f / "trace.json", FOREIGN.replace(b"build", b"cpu_op")),
    ),
    "ran-on-cpu": (
        lambda f: chrome.write(f / "rank0.json", SLOW_OPS, deviceProperties=[{"name": "H100"}]),
        lambda f: chrome.write(f / "rank0.json", SLOW_OPS),
    ),
    "cpu-only": (lambda f: trace(f / "rank0.json", 0, 1, gpu=False), lambda f: trace(f / "rank0.json", 0, 1)),
    "front-end": (
        lambda f: (healthy(f), trace(f / "host_7.async_llm.pt.trace.json", gpu=False)),
        lambda f: (healthy(f), trace(f / "host_7.async_llm.pt.trace.json")),
    ),
    "no-history": (
        lambda f: put(f / "a.pickle", memory.pickled(NO_HISTORY)),
        lambda f: put(f / "a.pickle", memory.pickled(HISTORY)),
    ),
    "saved-by-tracekit": (
        lambda f: put(f / "noise.json", b'{"fingerprint": {}, "schema": "tracekit.noise/1"}'),
        lambda f: (healthy(f), put(f / "noise.json", b'{"fingerprint": {}, "schema": "tracekit.noise/1"}')),
    ),
    "log-only": (lambda f: put(f / "metrics.jsonl", LOG), beside("metrics.jsonl", LOG)),
    "unreadable": (beside("rank2.json", b'{"schemaVersion": 1, "traceEvents": 5}'), beside("rank2.json", b"no trace")),
}


def report(name, data=nsys_programs.REPORT):
    """A report (not its export), long since written, beside a healthy export of another process."""

    def make(folder):
        export(folder / "worker_process_1.sqlite", pid=1)
        os.utime(put(folder / name, data), (1.7e9, 1.7e9))

    return make


def exports(*made):
    """Exports made with these options, by name."""
    return lambda f: [export(f / name, **options) for name, options in made]


def with_export(change=None, **options):
    """One export, changed as bytes."""

    def make(folder):
        path = export(folder / "report.sqlite", **options)
        if change is not None:
            path.write_bytes(change(path.read_bytes()))

    return make


def stale(late):
    """An export beside its report, which is from before or from after it."""

    def make(folder):
        export(folder / "report.sqlite")
        path = put(folder / "report.nsys-rep", nsys_programs.REPORT)
        when = (folder / "report.sqlite").stat().st_mtime
        os.utime(path, (when + late, when + late))

    return make


def numbered(*parts, pid=7, **options):
    """The files of capture ranges of one process, one after the other."""
    return lambda f: [
        export(f / f"worker_process_{pid}.{n}.sqlite", pid=pid, at=n * 10_000, session="s", **options) for n in parts
    ]


CALLS = [nsys.api("cudaLaunchKernel_v7000", 1_100, 1_200, 1)]
WORK = [*CALLS, nsys.kernel("gemm", 1_300, 1_400, 1)]
LOST = "Not all NVTX events might have been collected."
NSYS = {
    "no-nsys": (report("worker_process_2.nsys-rep"), stale(-10)),
    "interrupted-export": (with_export(lambda data: bytes(4096) + data[4096:]), with_export()),
    "truncated-database": (with_export(lambda data: data[:-4096]), with_export()),
    "truncated-report": (report("worker_process_2.nsys-rep", b"no report"), report("notes.txt", b"no report")),
    "stream-only": (report("worker_process_2.qdstrm", b"stream"), report("worker_process_1.txt", b"text")),
    "ray-check": (report("empty.nsys-rep"), report("notes_empty.txt")),
    "wal-missing": (lambda f: wal(f, copied=False), lambda f: wal(f, copied=True)),
    "stale-export": (stale(60), stale(-60)),
    "no-kernels": (with_export(more=[*CALLS, nsys.memset(1_300, 1_310, 64, 1)]), with_export(more=WORK)),
    "open-ranges": (
        with_export(more=[nsys.nvtx("left", 2_000, 10_000_000, kind=60)]),
        with_export(more=[nsys.nvtx("closed", 2_000, 3_000, kind=60)]),
    ),
    "lost-rows": (
        with_export(more=[nsys.diagnostic(LOST)]),
        with_export(more=[nsys.diagnostic("Number of NVTX events collected: 4.", severity=1)]),
    ),
    "missing-ranges": (numbered(1, 3), numbered(1, 2)),
    "nested-ranges": (numbered(1, 2, length=50_000), numbered(1, 2, length=5_000)),
    "pid-reuse": (
        exports(*((f"worker_process_7.{n}.sqlite", {"pid": 7, "session": f"s{n}"}) for n in (1, 2))),
        exports(*((f"worker_process_{n}.sqlite", {"pid": n, "session": f"s{n}"}) for n in (1, 2))),
    ),
    "empty-domains": (
        lambda f: nsys.write(f / "a.sqlite", [nsys.domain("verl", 1)], duration_ns=10**7),
        lambda f: nsys.write(
            f / "a.sqlite", [nsys.domain("verl", 1), nsys.nvtx("x", 1, 2, domain=1)], duration_ns=10**7
        ),
    ),
    "empty-capture": (
        lambda f: (
            export(f / "worker_process_1.sqlite", pid=1),
            nsys.write(f / "worker_process_2.sqlite", [nsys.os_call("poll", 10, 20, pid=2)]),
        ),
        exports(("worker_process_1.sqlite", {"pid": 1}), ("worker_process_2.sqlite", {"pid": 2})),
    ),
    "several-sessions": (
        lambda f: [session(f, f"session_2026-01-0{n}_{n}", "worker_process_7") for n in (1, 2)],
        lambda f: session(f, "session_2026-01-01_1", "worker_process_7", "worker_process_8"),
    ),
    "latest-session": (
        lambda f: (
            session(f, "session_2026-01-01_1", "worker_process_7"),
            (f / "session_latest").symlink_to(session(f, "session_2026-01-02_2")),
        ),
        lambda f: (
            session(f, "session_2026-01-01_1"),
            (f / "session_latest").symlink_to(session(f, "session_2026-01-02_2", "worker_process_7")),
        ),
    ),
}
