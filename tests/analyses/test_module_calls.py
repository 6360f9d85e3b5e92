"""Calls of modules, which are read by default, change no answer but the one about modules."""

import gzip
import json
import os
from pathlib import Path

import pytest
from chrome_builder import MAIN, annotation, kernel, launched, memory, op, step, write
from rules.firing import Document, write_sources
from rules.traces import FIRES

import tracekit
from tracekit.model.trace import Want
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.timeline import document

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

READ, DROPPED = "nn.Module", "nn_Module"
"""How rows begin that are read, and rows of equal length that are not."""


def call(name, ts, dur, tid=MAIN):
    return op(name, ts, dur, tid=tid) | {"cat": "python_function"}


def with_calls(rows, word):
    """The rows among calls that would be seen in any sum: around all, over every row's ends, on thread 0.

    Some come first, so that their threads are the first of the file; names are those that rules look for.
    """
    timed = [row for row in rows if row.get("ph") == "X"]
    low = min(row["ts"] for row in timed)
    whole = max(row["ts"] + row["dur"] for row in timed) - low
    first = [call(f"{word}: gc_0", low - 50, whole + 200, tid=0), call(f"{word}: Net_0", low - 7, whole + 20)]  # fmt: skip
    over = [
        call(f"{word}: Optimizer.step_{number}", row["ts"] + 0.4, row["dur"] + 0.7)
        for number, row in enumerate(timed[:60])
    ]
    every = [*first, *over[::2], *rows, *over[1::2], call(f"{word}: Empty_0", low, 0)]
    return Document(every, **rows.meta) if isinstance(rows, Document) else every


def sections(path):
    """All that the report on a path says, by section; and the rest of it."""
    told = json.loads(tracekit.render(analyze_uncached(path, Options(jobs=1)).report, "json"))
    for section in told["sections"]:
        without_places(section)
    return {one["id"]: one for one in told["sections"]}, told | {"sections": None, "contents": None}


BLAMING = ("idle", "gpu-time", "host", "data-loading")
"""Questions that name the Python functions, calls of modules among them, that held a GPU back."""


def without_places(section):
    """Nothing; afterwards a section does not say any more what held a GPU back, but still how long."""
    if section["id"] in BLAMING:
        for name in ("sheets", "charts"):
            parts = [(one, one.get("name") or one["id"]) for one in section[name]]
            section[name] = [one for one, called in parts if "blame" not in called]
        for finding in section["findings"]:
            del finding["claim"], finding["advice"]


def both(folder, sources):
    """What is said of sources with calls of modules, and with the same rows under another name; at one path."""
    told = []
    for word in (READ, DROPPED):
        some = {k: with_calls(rows, word) for k, rows in sources.items()} if hasattr(sources, "items") else with_calls(sources, word)  # fmt: skip
        told.append(sections(write_sources(folder, some)))
    return told


def assert_only_modules_differ(first, second):
    (one, head), (other, other_head) = first, second
    assert (one["modules"]["status"], other["modules"]["status"]) == ("ok", "skipped")
    del one["modules"], other["modules"]
    # Without a device the time of Python functions is told, and calls of modules are some.
    one.pop("cpu", None), other.pop("cpu", None)
    for each in (head, other_head):
        if each["overview"] and each["overview"]["title"].startswith("Python functions"):
            each["overview"] = None
    assert one == other
    assert head == other_head
    assert [name for name, part in one.items() if part["status"] == "failed"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    ["launch-bound", "host-sync-stalls", "unfused-optimizer", "unfused-operators", "straggler", "memory-growth"],
)  # fmt: skip
def test_calls_of_modules_change_no_answer_about_a_trace_on_which_a_rule_fires(tmp_path, rule):
    assert_only_modules_differ(*both(tmp_path, FIRES[rule].rows))


def test_calls_of_modules_change_no_answer_where_nothing_names_a_step(tmp_path):
    """The file is the step then; memory samples and idle time ask what the host was in."""
    rows = [
        annotation("gen", 10, 40), op("aten::mm", 12, 20), *launched("k", 15, 30, 9, 1), memory(13, 512, 512),
        op("aten::add", 60, 5), *launched("k", 61, 90, 4, 2), memory(62, -512, 0), kernel("late", 95, 70),
    ]  # fmt: skip
    assert_only_modules_differ(*both(tmp_path, rows))


def test_calls_of_modules_do_not_bound_how_long_a_kernel_can_last(tmp_path):
    """Without them the capture lasts 20 µs, and a kernel of 1,000 µs cannot be true."""
    rows = [op("mm", 0, 20), kernel("k", 5, 1000)]
    path = write(tmp_path / "a.json", [*rows, call("nn.Module: Net_0", 0, 5000)])
    trace = tracekit.load(path)
    assert not trace.has("device_ops")
    assert [note.code for note in trace.notes] == ["overlong-ops"]


def test_calls_of_modules_alone_do_not_say_that_the_host_was_recorded(tmp_path):
    """A report on devices alone says so, and no count of host ops is 0."""
    one, other = both(tmp_path, [kernel("k", 5, 9)])
    assert one == other
    write_sources(tmp_path, with_calls([kernel("k", 5, 9)], READ))
    assert not tracekit.load(tmp_path / "rank0.json").has("host_ops")


def test_calls_of_modules_are_read_with_the_host_ops_and_only_with_them(tmp_path):
    path = write(tmp_path / "a.json", [op("mm", 0, 9), call("nn.Module: Net_0", 0, 10), call("f", 0, 5)])  # fmt: skip
    read = tracekit.load(path)
    assert read["host_ops"]["name"].tolist() == ["mm", "nn.Module: Net_0"]
    assert read["host_ops"]["kind"].tolist() == ["op", "python"]
    assert read.meta["skipped_count"] == {"python_function": 1}
    assert tracekit.load(path, tables=["counters"]).meta["skipped_count"] == {"python_function": 2}
    assert Want().modules


def test_a_merged_timeline_holds_them_only_with_all_python_functions(tmp_path):
    rows = [step(1, 0, 100), op("mm", 0, 9), call("nn.Module: Net_0", 0, 10), call("f", 0, 5)]
    write(tmp_path / "in/rank0.json", rows)
    texts = []
    for python in (False, True):
        target = tmp_path / f"{python}.json"
        document.export_timeline(tmp_path / "in", target, Options(jobs=1), python=python)
        texts.append(target.read_text("utf-8"))
    assert [text.count("nn.Module: Net_0") for text in texts] == [0, 1]
    assert [text.count('"python_function"') for text in texts] == [0, 2]


@needs_data
def test_calls_of_modules_change_no_answer_about_a_real_file(tmp_path):
    """Named otherwise, they are not read: all else is the same."""
    text = real("h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    told = []
    for word in (READ, DROPPED):
        changed = text.replace(b'"nn.Module: ', b'"' + word.encode() + b": ")
        (tmp_path / "rank0.json").write_bytes(changed)
        told.append(sections(tmp_path / "rank0.json"))
    assert_only_modules_differ(*told)


@needs_data
def test_rows_of_modules_that_are_gone_change_only_how_much_was_read(tmp_path, monkeypatch):
    # In a replay, rows of modules are host time of their own.
    monkeypatch.setattr(pipeline, "join_runs", lambda measured: [])
    whole = json.loads(real("b200/eager_trace.json.gz"))
    rows = whole["traceEvents"]
    left = [row for row in rows if not row.get("name", "").startswith("nn.Module: ")]
    assert len(rows) - len(left) == 436
    told = []
    for some in (rows, left):
        (tmp_path / "rank0.json").write_text(json.dumps(whole | {"traceEvents": some}))
        told.append(sections(tmp_path / "rank0.json")[0])
    one, other = told
    read, less = one.pop("data-quality"), other.pop("data-quality")
    elements, fewer = ({m["name"]: m["value"] for m in part["metrics"]} for part in (read, less))
    assert elements["elements"] - fewer["elements"] == 436
    assert read | {"metrics": None} == less | {"metrics": None}
    for name in ("modules", "gpu-time"):  # the latter names the calls around idle time
        del one[name], other[name]
    assert one == other


def real(name):
    return gzip.decompress((Path(REAL) / "chrome/tracelens" / name).read_bytes())
