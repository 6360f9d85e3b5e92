"""Whoever names a kernel, an op, a stage or a file controls nothing: from the file to every output."""

import json
import re
import unicodedata

import pytest
from chrome_builder import BASE_NS, annotation, kernel, launch, memcpy, memory, op, step

import tracekit
from tracekit.pipeline.run import analyze_uncached
from tracekit.render import RENDERERS, read_report_json, render, write_report_json

NAMES = {
    "long": "kernel_" + "x" * 5_000,
    "surrogate": "a\ud800b",
    "pair": "\ud83d\ude00",
    "control": "a\x00\x07\x1b[31mred\x1b[2J\r\n\x7fb",
    "invisible": "a\u202e\u200b\u2066\ufeffb",
    "prototype": "__proto__",
    "constructor": "constructor",
    "empty": "",
    "blank": "   ",
    "markup": "</script><img src=x onerror=alert(1)><b>",
    "table": "a|b`c``d\\|e",
    "template": "{{ 7*7 }} {% raw %} %s {0}",
    "formula": "=cmd|'/c calc'!A1,\"x\"",
    "number": "-0",
    "wide": "表" * 300,
    "path": "../../etc/passwd",
    "step": "ProfilerStep#99999999999999999999",
    "combining": "e" + "\u0301" * 200,
}

AT_ONCE = ("long", "surrogate", "control", "invisible", "empty", "markup", "table", "formula", "step")
"""The others are slow tests: one more report each."""


def rows(name):
    return [
        step(1, 0, 100),
        annotation(name, 1, 90), op(name, 2, 20), launch(3, 1, name=name),
        kernel(name, 30, 10, 1, **{"Collective name": name, "Process Group Name": name}),
        memcpy(f"Memcpy {name}", 45, 5, 64, 2), memory(50, 8, 8),
        {"ph": "C", "name": name, "pid": name, "tid": name, "ts": 1, "args": {name: 1}},
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": name}},
        {"ph": "X", "cat": name, "name": name, "pid": name, "tid": name, "ts": 60, "dur": 1, "args": {name: name}},
    ]  # fmt: skip


@pytest.fixture(params=[n if n in AT_ONCE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES], scope="module")
def profile(request, tmp_path_factory):
    name = NAMES[request.param]
    document = {
        "baseTimeNanoseconds": BASE_NS, "host_name": name, name: name, "cuda_runtime_version": name,
        "deviceProperties": [{"id": 0, "name": name}],
        "distributedInfo": {"backend": name, "rank": 0, "world_size": 1, "nccl_version": name},
        "traceEvents": rows(name),
    }  # fmt: skip
    path = tmp_path_factory.mktemp("hostile") / "rank0.json"
    path.write_bytes(json.dumps(document).encode())
    return name, path


@pytest.fixture(scope="module")
def report(profile):
    return analyze_uncached(profile[1]).report


def test_a_name_is_kept_as_recorded(profile):
    name, path = profile
    kept = re.sub("[\ud800-\udfff]", "\ufffd", name.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    trace = tracekit.load(path)
    assert trace["device_ops"]["name"].iloc[0] == kept
    assert trace.arg("Collective name", "device_ops").iloc[0] == kept
    assert kept in set(trace["host_ops"]["name"])


def test_no_section_fails_over_a_name(report):
    assert {section.status for section in report.sections} <= {"ok", "skipped"}
    assert not [remark for remark in report.remarks if remark.code.startswith("failed:")]


def texts(output):
    parts = output.values() if isinstance(output, dict) else [output]
    return [part if isinstance(part, str) else part.decode("utf-8", "replace") for part in parts]


@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda renderer: renderer.name)
def test_every_output_is_made_and_can_be_written(report, renderer):
    output = render(report, renderer.name, verbose=True)
    if isinstance(output, str):
        output.encode("utf-8")
    if isinstance(output, dict):
        assert all(re.fullmatch(r"[a-z0-9_.-]+", name) for name in output)


@pytest.mark.parametrize("kind", ["text", "md", "html"])
def test_nothing_invisible_reaches_a_reader(report, kind):
    (text,) = texts(render(report, kind, verbose=True))
    odd = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co")}
    assert not odd


def test_a_page_holds_no_markup_of_others(report):
    (page,) = texts(render(report, "html", verbose=True))
    assert "<img" not in page
    assert page.lower().count("</script>") == page.lower().count("<script")
    assert "49 {% raw" not in page


def test_the_report_survives_its_json_form(report):
    again = read_report_json(write_report_json(report))
    for renderer in RENDERERS:
        assert render(again, renderer.name) == render(report, renderer.name)


def test_a_hostile_file_name_is_shown_safely(tmp_path):
    folder = tmp_path / "a\x1b[31m\u202e|<b>`\n"
    folder.mkdir()
    for rank in (0, 1):
        path = folder / f"\x1b]0;x\x07rank{rank}.json"
        path.write_text(json.dumps({"traceEvents": rows("k")}))
    report = analyze_uncached(folder).report
    for kind in ("text", "md", "html"):
        (text,) = texts(render(report, kind, verbose=True))
        assert not {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    (page,) = texts(render(report, "html", verbose=True))
    assert "|<b>`" not in page


@pytest.mark.parametrize("count", [3_000])
def test_thousands_of_distinct_names_are_summed_up_not_all_printed(tmp_path, count):
    path = tmp_path / "many.json"
    many = [step(1, 0, 10 * count), *(op(f"op{i}", 10 * i, 5) for i in range(count))]
    path.write_text(json.dumps({"traceEvents": many}))
    report = analyze_uncached(path).report
    assert len(texts(render(report, "text", verbose=True))[0].splitlines()) < 300
