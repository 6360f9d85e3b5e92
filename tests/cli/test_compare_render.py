"""A saved comparison shown again: the same bytes in every format, and no file that breaks `render`."""

import copy
import json
from pathlib import Path

import pytest
from command_line import invoke
from compare.made import BASE_RUNS, OPT_RUNS, report, step_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.cli import main
from tracekit.compare.comparison import SCHEMA
from tracekit.render import write_report_json

RULES = ("--fail-on", "step_time>3%", "--fail-on", "throughput>1%")
HOSTILE = "</script><img src=x>|`@octocat #1\x1b[31m\u202e\ud800\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison with a gate in every format, as `compare` writes them."""
    found = tmp_path_factory.mktemp("compared")
    for name, runs, stage in (("a", OPT_RUNS, [0.0, 3.0]), ("b", BASE_RUNS, [4.0, 5.0])):
        rows = [
            *step_rows(*runs),
            *step_rows(runs[0], name="stage_time", stage=HOSTILE, role="actor"),
            *step_rows(stage, name="gpu_idle"),
            *step_rows([7, 8], name="comm_bytes"),
        ]
        (found / f"{name}.json").write_text(write_report_json(report(rows)), encoding="utf-8")
    files = [part for kind in KINDS for part in ("-o", str(found / f"c.{kind}"))]
    others = ["--export", f"csv={found / 'c.csv'}", "--export", f"github={found / 'c.notes'}"]
    args = ["compare", str(found / "a.json"), str(found / "b.json"), "--drop-first", "0", "--isolated"]  # fmt: skip
    asked = [*args, *RULES, "--on-inconclusive", "fail", *files, *others, "-q"]
    assert main.status(asked) == 1
    return found


KINDS = ("json", "md", "html", "txt", "xml")


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_comparison_is_the_same_bytes_in_every_format(call, folder, tmp_path, kind):
    done = call("render", folder / "c.json", "-o", tmp_path / f"again.{kind}")
    assert done.exit_code == 0
    assert done.stdout == ""
    written = (tmp_path / f"again.{kind}").read_bytes()
    assert written == (folder / f"c.{kind}").read_bytes()
    assert len(written) > 400


def test_a_saved_comparison_is_the_same_tables_and_annotations(call, folder, tmp_path):
    assert call("render", folder / "c.json", "-f", "csv", "-o", tmp_path / "t").exit_code == 0
    tables = sorted((folder / "c.csv").iterdir())
    assert [path.name for path in tables] == sorted(path.name for path in (tmp_path / "t").iterdir())  # fmt: skip
    assert all(path.read_bytes() == (tmp_path / "t" / path.name).read_bytes() for path in tables)
    call("render", folder / "c.json", "-f", "github", "-o", tmp_path / "notes")
    assert (tmp_path / "notes").read_bytes() == (folder / "c.notes").read_bytes()
    assert b"::error title=" in (folder / "c.notes").read_bytes()


def test_a_comparison_of_an_older_version_has_chances_without_a_range(call, folder, tmp_path):
    document = json.loads((folder / "c.json").read_text(encoding="utf-8"))
    for row in document["outlook"]:
        del row["at_most"]
    (tmp_path / "old.json").write_text(json.dumps(document), encoding="utf-8")
    new, old = (" ".join(call("render", path).stdout.split()) for path in (folder / "c.json", tmp_path / "old.json"))
    assert "2 % (1–3 %) at +3 %" in new
    assert "2 % at +3 %" in old


def test_what_was_not_tested_still_is_an_error(call, folder):
    again = call("render", folder / "c.json", "-f", "junit").stdout
    assert '<error message="not tested: throughput' in again


def test_without_a_format_it_is_text_on_standard_output(call, folder):
    done = call("render", folder / "c.json", "--top", "3")
    assert "1.11× slower [1.10×, 1.13×]" in done.stdout
    assert done.stderr == ""


def test_a_report_has_no_format_of_comparisons(call, report_file, tmp_path):
    for kind in ("junit", "github"):
        done = call("render", report_file, "-f", kind)
        assert done.exit_code == 2
        assert f"{kind} is a format of gates" in done.stderr
    assert call("render", report_file, "-o", tmp_path / "x.xml").exit_code == 2


HEAD = f'{{"schema": "{SCHEMA}", "tool_version": "0", "base": "a", "opt": "b"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + "}", "not a comparison: comparison.verdict is missing"),
        (HEAD + ', "verdict": "great"}', "comparison.verdict is 'great', not one of"),
        (HEAD + ', "verdict": "same", "headline": 1}', "comparison.headline is int, not an object"),
        (HEAD.replace('"a"', "NaN") + "}", "NaN is not a number"),
        (HEAD.replace("compare/1", "compare/2") + "}", "a report or comparison of schema tracekit.compare/2"),
        ('{"schema": []}', "a report or comparison of schema []"),
        ("[" * 100_000, "not a report or comparison: nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_comparison_is_refused_on_one_line_with_its_place(call, tmp_path, text, reason):
    path = tmp_path / "x.json"
    path.write_text(text)
    done = call("render", path)
    assert done.exit_code == 2
    assert done.stdout == ""
    first, hint = done.stderr.splitlines()
    assert first.startswith(f"tracekit: {path}: ")
    assert reason in first
    assert hint.startswith("          try: ")


def test_a_ratio_of_zero_is_refused(call, folder, tmp_path):
    raw = json.loads((folder / "c.json").read_text())
    raw["headline"]["ratio"] = 0.0
    (tmp_path / "x.json").write_text(json.dumps(raw))
    done = call("render", tmp_path / "x.json")
    assert done.exit_code == 2
    assert "its numbers are none that one has" in done.stderr


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**4000),
    st.sampled_from([0.0, -1.0, 5e-324, 1.7e308, -1.7e308, [], {}, "regression", "ns", "same", "higher"]),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_comparison_with_any_values_exchanged_is_shown_or_refused(folder, tmp_path, data):
    raw = json.loads((folder / "c.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        at = raw
        for _ in range(data.draw(st.integers(0, 5))):
            keys = list(at) if isinstance(at, dict) else range(len(at))
            inner = [key for key in keys if isinstance(at[key], dict | list) and at[key]]
            if not inner:
                break
            at = at[data.draw(st.sampled_from(inner))]
        if not at:
            continue
        keys = list(at) if isinstance(at, dict) else range(len(at))
        at[data.draw(st.sampled_from(list(keys)))] = copy.deepcopy(data.draw(anything))
    path = tmp_path / "x.json"
    path.write_text(json.dumps(raw))
    kind = data.draw(st.sampled_from([*KINDS, "notes"]))
    args = ["-f", "github"] if kind == "notes" else []
    done = invoke("render", path, *args, "-o", tmp_path / f"y.{kind}", "-v")
    assert done.exit_code == 0 or done.stderr.startswith(f"tracekit: {path}: "), done.stderr


def test_a_hostile_name_is_itself_again_and_controls_nothing(call, folder):
    raw = json.loads((folder / "c.json").read_text(encoding="utf-8"))
    assert HOSTILE in {change["stage"] for change in raw["changes"]}
    shown = call("render", folder / "c.json", "-v").stdout
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown
    assert Path(folder / "c.xml").read_text(encoding="utf-8").count("<testcase") == 2
