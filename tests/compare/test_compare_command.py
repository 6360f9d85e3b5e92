"""`tracekit compare` as it is typed: what it prints, writes and returns, and that names control nothing."""

import json
import re

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, report, step_rows

from tracekit.render import write_report_json

HOSTILE = "</script><img src=x onerror=alert(1)>|`\x1b[31m\u202e=cmd()\r\n"


def kept(folder, name, rows, **facts):
    path = folder / f"{name}.json"
    path.write_text(write_report_json(report(rows, **facts)), encoding="utf-8")
    return path


@pytest.fixture
def pair(tmp_path):
    return kept(tmp_path, "before", step_rows(*BASE_RUNS)), kept(tmp_path, "after", step_rows(*OPT_RUNS))


def test_the_answer_is_the_ratio_with_its_interval(call, pair):
    result = call("compare", *pair, "--drop-first", 0)
    assert result.exit_code == 0
    assert "1.11× faster [1.10×, 1.13×]" in result.stdout
    assert "%\u00a0faster" not in result.stdout
    assert "% faster" not in result.stdout


def test_a_slower_side_is_told_the_other_way_round(call, pair):
    assert "1.11× slower [1.10×, 1.13×]" in call("compare", *pair[::-1]).stdout


def test_runs_may_be_named_one_by_one_in_any_order(call, tmp_path):
    base, opt = (
        [kept(tmp_path, f"{side}{n}", step_rows(run, label=f"{side}{n}-")) for n, run in enumerate(runs)]
        for side, runs in (("base", BASE_RUNS), ("opt", OPT_RUNS))
    )
    outputs = set()
    for order in (1, -1):
        named = [part for path in base[::order] for part in ("--base", path)]
        named += [part for path in opt[::-order] for part in ("--opt", path)]
        outputs.add(call("compare", *named, "--export", "json=-").stdout)
    (text,) = outputs
    assert json.loads(text)["headline"]["ratio"] == pytest.approx(1.112979, abs=1e-6)


@pytest.mark.parametrize("args", [(), ("one",), ("a", "b", "c"), ("--base", "a"), ("a", "b", "--base", "c")])
def test_two_sides_are_needed(call, args):
    result = call("compare", *args)
    assert result.exit_code == 2
    assert "two sides are needed" in result.stderr
    assert result.stdout == ""


def test_what_is_not_comparable_is_no_success(call, tmp_path):
    sides = [kept(tmp_path, gpu, step_rows(*BASE_RUNS), gpu=gpu) for gpu in ("A100", "H100")]
    result = call("compare", *sides)
    assert result.exit_code == 2
    assert result.stdout.splitlines()
    assert "not comparable" in result.stdout
    assert "gpu differs (A100 · H100)" in " ".join(result.stdout.split())
    assert call("compare", *sides, "--force").exit_code == 0


def test_a_missing_side_or_no_step_is_no_verdict(call, tmp_path, pair):
    empty = kept(tmp_path, "empty", [])
    for other in (tmp_path / "missing", empty):
        result = call("compare", pair[0], other)
        assert result.exit_code == 2
        assert not re.search("faster|slower|no change", result.stdout)


@pytest.mark.parametrize(
    "option", [("--min-effect", "-1"), ("--level", "20"), ("--drop-first", "-1"), ("--pair", "rank")]
)
def test_senseless_choices_are_refused(call, pair, option):
    assert call("compare", *pair, *option).exit_code == 2


def test_the_least_effect_is_given_in_percent(call, pair):
    assert "inconclusive" in call("compare", *pair, "--min-effect", 10).stdout
    assert "inconclusive" not in call("compare", *pair, "--min-effect", 5).stdout.split("Step and stages")[0]


def test_names_control_no_output(call, tmp_path):
    def side(name, k):
        rows = [
            *step_rows([9 * k, 10 * k], label=HOSTILE),
            *step_rows([5 * k, 6 * k], label=HOSTILE, name="stage_time", stage=HOSTILE, role=HOSTILE),
        ]
        return kept(tmp_path, name, rows, versions=f"{HOSTILE}{k}")

    args = ["compare", side("one", 1), side("two", 2), "--drop-first", 1]
    files = {kind: tmp_path / f"out.{kind}" for kind in ("txt", "md", "html", "json")}
    written = [part for path in files.values() for part in ("-o", path)]
    result = call(*args, *written, "--export", f"csv={tmp_path / 'tables'}", "-v")
    assert result.exit_code == 0
    texts = {kind: path.read_text(encoding="utf-8") for kind, path in files.items()}
    tables = [path.read_text(encoding="utf-8") for path in sorted((tmp_path / "tables").glob("*.csv"))]
    assert tables
    for text in (result.stdout, *texts.values(), *tables):
        assert "\x1b[31m" not in text
        assert "img src=x" in text or text in tables
    assert any("img src=x" in table for table in tables)
    for shown in (result.stdout, texts["txt"], texts["md"], texts["html"]):
        assert "\u202e" not in shown
    assert "<img src=x" not in texts["html"]
    assert "<img src=x" not in texts["md"]
    assert HOSTILE in {change["stage"] for change in json.loads(texts["json"])["changes"]}


def test_what_is_said_twice_is_the_same_bytes(call, pair):
    assert len({call("compare", *pair, "--export", "json=-").stdout for _ in range(2)}) == 1
