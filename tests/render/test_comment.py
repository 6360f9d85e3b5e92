"""The comment of a pull request: one line that decides, the attribution, one link, never more than 6 KB."""

import re

import pytest
from command_line import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from recorded import GPU
from sample_report import HOSTILE

from tracekit.cli.ci_outputs import find_page_link
from tracekit.cli.report_outputs import OutputTarget
from tracekit.model.report import Gate, Heading, Report, Section, Sheet
from tracekit.render.ci.comment import MAX_COMMENT_BYTES, PageLink, make_comment_marker, make_pull_request_comment

LINK = PageLink("Page", "https://ci.example/runs/7")
SIDES = ("main", "change")


def gate(outcome="fail", value=0.12, rule="step_time: at most +3 %", severity="error", **more):
    numbers = {"limit": 0.03, "unit": "ratio", "metric_unit": "ns", "base": 1.0, "opt": 1.12} | more
    return Gate(rule, rule.partition(":")[0], outcome, severity, "a claim", value=value, **numbers)


def comment(gates=(), answer="1.12× slower · gate: fail", link=LINK, **parts):
    return make_pull_request_comment(Report("t", "0", answer=answer, **parts), gates, SIDES, link)


def first_line(text):
    return text.splitlines()[1]


def test_the_first_line_has_rule_value_limit_and_margin():
    line = first_line(comment([gate(low=0.1, high=0.14)]))
    assert line.startswith("**tracekit: 1.12× slower · gate: fail")
    for part in ("step_time: at most +3 %", "found +12 %", "+10 %, +14 %", "margin −9.0 %"):
        assert part in line


@pytest.mark.parametrize(
    ("given", "margin"),
    [
        (gate("pass", -0.107), "+14 %"),
        (gate("fail", -0.12, "throughput: at least −3 %"), "−9.0 %"),
        (gate("pass", 0.02, "throughput: at least −3 %"), "+5.0 %"),
        (gate("pass", 9e6, "step_time: at most 30 ms", unit="ns", limit=30e6, base=None), "+21.0 ms"),
        (gate("fail", 0.5, "gpu_busy: at least 60 %", limit=0.6, base=None), "−10.0 %"),
    ],
)
def test_a_margin_is_negative_beyond_the_limit(given, margin):
    assert f"margin {margin}**" in first_line(comment([given]))


def test_the_gravest_rule_decides_and_warnings_do_not():
    warned = gate("fail", 0.9, "memory.peak: at most +3 %", "warn")
    near, far = gate("fail", 0.05, "gen: at most +3 %"), gate("fail", 0.5, "step_time: at most +3 %")
    text = comment([warned, gate("pass", 0.0, "other: at most +3 %"), near, far])
    assert "step_time: at most" in first_line(text)
    assert "- fail (only warns): memory.peak" in text
    assert "- fail: gen" in text
    assert "- 1 more passed" in text


def test_verdict_and_gate_are_said_once_and_a_red_gate_has_no_outlook():
    basis = ("4 v 4 runs", "chance that a slower step is called slower: 3 %", "record 9 more runs")
    red, green = comment([gate()], basis=basis), comment([gate("pass", 0.0)], basis=basis)
    assert "4 v 4 runs" in red
    assert "chance" not in red
    assert "more runs" not in red
    assert sum(line in green for line in basis) == 2
    for text in (red, green):
        assert text.count("1.12× slower") == text.count("gate: fail") == 1


@pytest.mark.parametrize(
    ("sides", "outcome"),
    [(("base", "opt"), "pass"), (("opt", "base"), "fail"), (("again", "base"), "inconclusive")],
)
def test_a_real_comparison_has_its_attribution_and_one_link(monkeypatch, sides, outcome):
    monkeypatch.setenv("CI_JOB_URL", LINK.url)
    rules = ("--isolated", "--fail-on", "step_time>5%", "--fail-on", "stage.optimizer.time>10%")
    text = invoke("compare", *(GPU / "compare" / side for side in sides), *rules, "--export", "md=-", "-q").stdout
    assert len(text.encode()) <= MAX_COMMENT_BYTES
    assert text.count("](<") == text.count(LINK.url) == 1
    assert len(re.findall(r"^\| (?:optimizer|backward|forward) \|", text, re.MULTILINE)) >= 5
    assert f"gate: {outcome}" in first_line(text)
    assert text.count("gate: ") == 1
    assert "chance" not in text


@pytest.mark.parametrize(("limit", "outcome", "sign"), [("30ms", "pass", "+"), ("5ms", "fail", "−")])
def test_a_budget_alone_has_a_comment_too(tmp_path, limit, outcome, sign):
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[gate.rule]]\nmetric = "step_time"\nmax = "{limit}"\n')
    text = invoke("gate", GPU / "compare/opt", "--config", rules, "--export", "md=-", "-q").stdout
    line = first_line(text)
    for part in (f"gate: {outcome}", "step_time: at most", "found 9.63 ms", f"margin {sign}"):
        assert part in line
    assert text.count("gate: ") == 1


def test_a_self_test_that_does_not_fail_never_says_that_the_gate_cannot(call):
    """Four runs whose spread hides 20 %: the rule can fail, and does not here."""
    done = call("gate", GPU / "compare/opt", "--self-test", "--isolated", "--fail-on", "step_time>5%")
    assert done.exit_code == 2
    words = " ".join(done.stdout.split())
    assert "the gate does not fail where steps take 20 % longer" in words
    assert "cannot fail" not in words
    assert "the gate can fail" not in words


words = st.one_of(
    st.text(max_size=400), st.sampled_from(HOSTILE), st.sampled_from(["k" * 5_000, "|@#&<" * 90, "核" * 300])
)
outcomes = st.sampled_from(["pass", "fail", "inconclusive", "not tested", "not comparable", "expired", "accepted"])


@st.composite
def gates_of_any_name(draw):
    number = st.one_of(st.none(), st.floats(-1e12, 1e12))
    made = [
        Gate(f"{name}: at most +3 %", name, draw(outcomes), draw(st.sampled_from(["error", "warn"])), name, 0.03, "ratio", "ns", value=draw(number), low=draw(number), high=draw(number))
        for name in draw(st.lists(words, max_size=5))
    ]  # fmt: skip
    return made * draw(st.sampled_from([1, 1, 40]))


@st.composite
def reports_of_any_name(draw):
    names = draw(st.lists(words, min_size=1, max_size=4))
    rows = tuple((name, number) for number, name in enumerate(names * draw(st.sampled_from([1, 5, 200]))))
    overview = Sheet(
        "overview", draw(words), (Heading("a", "what"), Heading("b", "change", "ns")), rows, caption=draw(words)
    )
    section = Section("gate", draw(words), sheets=(overview,) * 3, caveats=tuple(names))
    lines = tuple(draw(st.lists(words, max_size=9)))
    return Report(
        "t",
        "0",
        identity=lines,
        answer=draw(words),
        overview=overview,
        basis=lines,
        cautions=lines,
        sections=(section,) * 9,
    )


@settings(max_examples=120)
@given(reports_of_any_name(), gates_of_any_name(), words)
def test_any_comment_is_at_most_6_kb_and_ends_with_its_link(report, gates, address):
    text = make_pull_request_comment(report, gates, (address, address), PageLink("Page", "https://x/" + address[:300]))
    assert len(text.encode()) <= MAX_COMMENT_BYTES
    lines = text.splitlines()
    assert lines[0] == make_comment_marker(address, address)
    assert lines[1].startswith("**tracekit:")
    assert lines[-1].startswith("[Page](<https://x/")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    tags = set(re.findall(r"<(\w+)", html))
    assert tags <= {
        "p",
        "strong",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "ul",
        "li",
        "a",
        "br",
        "sub",
        "em",
    }


def test_the_marker_is_of_the_names_alone():
    assert re.fullmatch(r"<!-- tracekit:compare:[0-9a-f]{12} -->", make_comment_marker("base", "opt"))
    assert make_comment_marker("a", "b") == make_comment_marker("a", "b") != make_comment_marker("b", "a")
    assert re.fullmatch(r"<!-- [\w:]+ -->", make_comment_marker("--> <script>", "\ud800"))


def test_the_link_is_that_of_the_run_or_of_the_page(monkeypatch, tmp_path):
    wanted = [OutputTarget("md", "comment.md"), OutputTarget("html", "out/page.html")]
    for name in ("CI_JOB_URL", "GITHUB_RUN_ID", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert find_page_link(wanted) is None
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    found = find_page_link(wanted)
    assert found.url == "https://git.example/o/r/actions/runs/7"
    assert "page.html" in found.text
    monkeypatch.setenv("CI_JOB_URL", "https://lab.example/o/r/-/jobs/8")
    assert find_page_link(wanted).url == "https://lab.example/o/r/-/jobs/8/artifacts/file/out/page.html"
