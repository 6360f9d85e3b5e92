"""Files that real profilers wrote: none may break us, cut ones lose only what was cut off."""

import gzip
import json
import random
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from recorded import GPU, REAL, open_text

import tracekit
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.stages import is_collective_range
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.readers.chrome import stream as chrome_stream

needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
ROOT = Path(REAL) if REAL else GPU


READABLE_OURS = {
    ".": 0,
    "pairs": 17,
    "compare": 10,
    "no_marks": 10,
    "rl/off": 1,
    "rl/torch": 3,
    "rl/torch_memory": 3,
    "snapshots": 4,
}
"""How many files of each folder of ours are profiles or metrics; truths and the program must be refused."""


def folders():
    """The folders whose files are tried together: small enough to spread over workers."""
    if REAL is None:
        return list(READABLE_OURS)
    inner = [p for top in sorted(Path(REAL).iterdir()) if top.is_dir() for p in sorted(top.iterdir())]
    return [".", *(str(p.relative_to(REAL)) for p in inner)]


def files_of(folder):
    root = ROOT / folder
    if folder == ".":
        return [p for p in sorted(root.iterdir()) if p.is_file()]
    # Reports of nsys take an nsys to be read: see test_nsys_rep.py.
    found = (p for p in root.rglob("*") if p.is_file() and p.suffix not in (".nsys-rep", ".qdrep"))
    return [root] if root.is_file() else sorted(found)


def refusal(function, path):
    """The error that refuses a file; None if it is taken. Any error but ours goes through."""
    try:
        function(path)
    except TracekitError as error:
        return error
    return None


def report_on(path):
    report = analyze_uncached(path, Options(jobs=1)).report
    assert [s.id for s in report.sections if s.status == "failed"] == []
    assert [r.code for r in report.remarks if r.code.startswith("failed:")] == []
    assert [r for r in report.remarks if r.severity == "error"] == []


READABLE = {
    "chrome/gloo_cpu": 40,
    "chrome/hta": 11,
    "chrome/kineto_tb_plugin": 4,
    "chrome/rl_insight": 6,
    "chrome/tracelens": 9,
    "chrome/verl_cpu": 67,
    "memory/CPU_torch2.13": 5,
    "memory/LfieLike+SketchKV2": 1,
    "memory/MAGMA27+assignment2-systems": 1,
    "memory/NiuHuangxiaozi+assignment2-systems": 4,
    "memory/SIMULATED_cpu_allocsim": 9,
    "memory/Yiyi-philosophy+LLM-inference": 3,
    "memory/bcrafton+assignment2-systems": 1,
    "memory/facebookresearch+HolisticTraceAnalysis": 1,
    "memory/facebookresearch+mosaic": 1,
    "nsys/GindaChen_nsys-ai": 5,
    "nsys/amir-ghz_DynamicViT": 2,
    "nsys/frasertajima_WeatherBench2": 1,
    "nsys/nvtx_tap_verl_cpu": 1,
    "nsys/real_cpu": 28,
}
"""How many files of each folder are traces; the others must be refused."""


MANY = {
    *("chrome/gloo_cpu", "chrome/hta", "chrome/kineto_tb_plugin", "chrome/tracelens", "chrome/verl_cpu"),
    *("memory/NiuHuangxiaozi+assignment2-systems", "memory/SIMULATED_cpu_allocsim"),
    *("nsys/GindaChen_nsys-ai", "nsys/real_cpu"),
}
"""Folders of so many or so large files that all questions about each of them take minutes."""

AT_ONCE_OR_SLOW = [pytest.param(folder, marks=pytest.mark.slow) if folder in MANY else folder for folder in folders()]


@pytest.mark.parametrize("folder", AT_ONCE_OR_SLOW)
def test_every_file_there_is_gives_a_report_or_one_line_that_says_why_not(folder):
    read = 0
    for path in files_of(folder):
        refused = refusal(report_on, path)
        if refused is None:
            read += 1
            continue
        for error in (refused, refusal(tracekit.load, path)):
            assert str(error)
            assert "\n" not in str(error)
            assert "\n" not in error.hint
    assert read == (READABLE if REAL else READABLE_OURS).get(folder, 0)


CUT = {"2026": "pairs/cuda_graph.pt.trace.json.xz"}
if REAL:
    CUT = {
        "2021": "chrome/kineto_tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        "2023": "chrome/hta/nccl_parser_config/nccl_data.json.gz",
        "2026": "chrome/verl_cpu/v091_e2e_all_ranks/outputs/profile",
    }


@cache
def whole(era):
    """(the text of a file, where its events end by the json module, all of it as read whole)."""
    path = ROOT / CUT[era]
    path = next(iter(sorted(path.glob("*.json.gz")))) if path.is_dir() else path
    text = open_text(path)
    raw = path.read_bytes() if path.suffix == ".gz" else gzip.compress(text)
    decode = json.JSONDecoder(strict=False).raw_decode
    characters = text.decode("ascii")
    at = characters.index('"traceEvents"')
    at = characters.index("[", at) + 1
    ends = []
    while True:
        while characters[at] in " \t\r\n,":
            at += 1
        if characters[at] == "]":
            break
        _, at = decode(characters, at)
        ends.append(at)
    scan = chrome_stream.scan_trace(path, pure=False)
    assert len(scan.ts_ns) == len(ends)
    return raw, text, np.array(ends), scan


def places(size, count, seed):
    """Random places to cut, and the first and the last ones there are."""
    return [*random.Random(seed).sample(range(size), count - 2), 1, size - 1]


def check(path, complete, era, *, pure):
    """A cut file holds exactly the first `complete` events of the whole one."""
    if complete == 0:
        with pytest.raises(TraceFormatError):
            chrome_stream.scan_trace(path, pure=pure)
        return
    full = whole(era)[3]
    scan = chrome_stream.scan_trace(path, pure=pure)
    assert len(scan.ts_ns) == complete
    for name in ("ts_ns", "dur_ns", "has_dur"):
        assert np.array_equal(getattr(scan, name), getattr(full, name)[:complete])
    for name in ("ph", "cat", "name", "pid", "tid"):
        column, all_of_it = getattr(scan, name), getattr(full, name)
        assert np.array_equal(column.codes, all_of_it.codes[:complete])
        assert column.values == all_of_it.values[: len(column.values)]


def cut_plain(era, at, folder, *, pure):
    _, text, ends, _ = whole(era)
    path = folder / "cut.json"
    path.write_bytes(text[:at])
    check(path, int(np.searchsorted(ends, at, side="right")), era, pure=pure)


def cut_packed(era, at, folder, *, pure):
    raw, _, ends, _ = whole(era)
    path = folder / "cut.json.gz"
    path.write_bytes(raw[:at])
    left = len(zlib.decompressobj(31).decompress(raw[:at]))
    check(path, int(np.searchsorted(ends, left, side="right")), era, pure=pure)


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("reader", ["native", "pure"])
@pytest.mark.parametrize("form", ["plain", "packed"])
@pytest.mark.parametrize("era", CUT)
def test_a_file_cut_anywhere_keeps_every_event_before_the_cut(era, form, reader, quarter, tmp_path):
    """At 200 places in all, a quarter of them at a time."""
    cut_at_places(era, form, 50, 10 + quarter, tmp_path, pure=reader == "pure")


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "count"), [("native", 6), ("pure", 3)])
@pytest.mark.parametrize("era", CUT)
def test_a_file_cut_at_a_few_places_keeps_every_event_before_the_cut(era, reader, count, tmp_path):
    for form in ("plain", "packed"):
        cut_at_places(era, form, count, 2, tmp_path, pure=reader == "pure")


def cut_at_places(era, form, count, seed, folder, *, pure):
    raw, text, _, _ = whole(era)
    size, cut = (len(text), cut_plain) if form == "plain" else (len(raw), cut_packed)
    for at in places(size, count, seed):
        cut(era, at, folder, pure=pure)


def test_a_cut_file_gives_a_report_that_says_so(tmp_path):
    _, text, _, _ = whole("2026")
    path = tmp_path / "rank0.json"
    path.write_bytes(text[: len(text) // 2])
    report = analyze_uncached(path).report
    assert any(remark.code == "truncated" for remark in report.remarks)
    assert any("ends inside the event array" in line for line in report.unseen)
    assert "failed" not in {section.status for section in report.sections}


def manifest():
    if REAL is None:
        return []
    return json.loads((Path(REAL) / "chrome/verl_cpu/manifest.json").read_text())


@needs_data
@pytest.mark.parametrize("entries", [pytest.param(manifest()[i::4], id=f"quarter{i}") for i in range(4)])
def test_verls_own_files_hold_what_their_manifest_counts(entries):
    assert entries
    for entry in entries:
        trace = tracekit.load(Path(REAL) / "chrome/verl_cpu" / entry["file"], python=True)
        host = trace["host_ops"]
        ranges = Counter(host["name"][host["kind"] == "range"])
        found = {
            "events": trace.meta["element_count"],
            "x": {cat: int(n) for cat, n in host["cat"].value_counts().items() if n}
            | ({"Trace": len(trace["windows"])} if trace.has("windows") else {}),
            "stages": {name: n for name, n in ranges.items() if name in entry["stages"]},
            "mini": sum(n for name, n in ranges.items() if name.startswith("mini_batch")),
            "micro": sum(n for name, n in ranges.items() if name.startswith("micro_batch")),
            "gloo": sum(n for name, n in ranges.items() if is_collective_range(name)),
            "dist_rank": trace.source.rank,
        }
        assert found == {key: entry[key] for key in found}, entry["file"]
