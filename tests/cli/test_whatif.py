"""`tracekit whatif`: its report, its errors, and the page that explains it."""

import json
import re
from pathlib import Path

import pytest
from command_line import invoke

import tracekit
from tracekit.replay.changes import VERBS, Selection, format_change, make_change, parse_change
from tracekit.replay.edges import KINDS
from tracekit.replay.what_if_tables import KIND_LABELS

ROOT = Path(__file__).parents[2]
PROFILE = str(ROOT / "examples/simulated_gpu/outputs/profile")
PAGE = (ROOT / "docs/whatif.md").read_text()


@pytest.fixture(scope="module")
def report():
    return tracekit.whatif(PROFILE, ["unwait by=aten::item", {"do": "equalise", "rank": 1}])


def rows(report, name):
    return report.tables[name].to_dict("records")


def test_each_step_is_the_one_before_it_less_what_was_saved(report):
    first, second = rows(report, "changes")
    assert second["step_ns"] == pytest.approx(first["step_ns"] - second["gain_ns"])
    assert first["gain_ns"] == pytest.approx(first["alone_ns"])
    assert "63.7 ms → 51.7 ms" in report.answer


def test_the_first_line_states_the_facts_of_the_run(report):
    assert "SIMULATED DATA" in report.identity
    assert "ranks 0, 1 of 2" in report.identity
    assert "steps 6, 7 of 5–7 (5: warm-up step)" in report.identity


def test_only_chosen_steps_are_listed_and_timed():
    report = tracekit.whatif(PROFILE, "equalise rank=1", steps=6)
    assert "step 6" in report.identity
    assert "65.2 ms →" in report.answer


def test_a_change_lists_the_names_and_stages_that_it_touches(report):
    touched = [row for row in rows(report, "touched") if row["number"] == 1]
    assert [(row["kind"], row["name"]) for row in touched] == [("sync return", "cudaStreamSynchronize")]
    assert touched[0]["waits_count"] == touched[0]["pieces_count"] == rows(report, "changes")[0]["waits_count"]
    by_stage = {row["stage"]: row["waits_count"] for row in rows(report, "touched.stages") if row["number"] == 1}
    assert set(by_stage) == {"gen", "update_actor"}
    assert sum(by_stage.values()) == touched[0]["waits_count"]


def test_the_rows_of_the_critical_path_add_up_to_it(report):
    assert sum(row["share_ratio"] for row in rows(report, "critical_path")) == pytest.approx(1)


def test_work_and_owners_add_up_to_the_window_of_each_rank(report):
    windows = rows(report, "ledger.ranks")
    assert [row["rank"] for row in windows] == [0, 1]
    for window in windows:
        owned = sum(row["step_ns"] for row in rows(report, "ledger") if row["rank"] == window["rank"])
        assert owned == pytest.approx(window["rest_ns"])
        assert window["work_ns"] + owned == pytest.approx(window["window_ns"])


def test_marks_of_several_steps_are_one_owner(report):
    names = [row["name"] for row in rows(report, "ledger") if (row["rank"], row["owner_rank"]) == (0, 0)]
    assert names.count("ProfilerStep") == 1
    assert not any(name.startswith("ProfilerStep#") for name in names if name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scale device rank=7 factor=0.5", "rank: recorded are 0, 1"),
        ("scale device step=9 factor=0.5", "step: recorded are 5–7"),
        ("hide op=reduce_scatter until=Optimizer", "did you mean ncclDevKernel_ReduceScatter"),
        ("hide op=ReduceScatter until=optimizer", "did you mean Optimizer.step#AdamW.step?"),
        ("scale device factor=1", "changes nothing"),
        ('remove op="Memcpy HtoD', "a quote is not closed"),
        ("scale gpu factor=0.5", "'gpu' is not name=value"),
    ],
)
def test_an_error_names_what_was_recorded_or_can_be_written(change, message):
    result = invoke("whatif", PROFILE, "-c", change)
    assert result.exit_code == 2
    assert message in result.stderr


def test_several_runs_and_paths_without_traces_are_errors():
    several = invoke("whatif", str(ROOT / "examples/compare_cpu"))
    assert several.exit_code == 2
    assert "a replay needs one run, and 8 runs are here" in several.stderr
    memory = invoke("whatif", str(ROOT / "examples/simulated_memory/leaking"))
    assert memory.exit_code == 2
    assert "nothing to replay" in memory.stderr
    saved = invoke("whatif", "run.tkm")
    assert saved.exit_code == 2
    assert "run.tkm: saved measurements contain no events to replay" in saved.stderr


def test_steps_in_several_files_are_noted():
    result = invoke("whatif", str(ROOT / "examples/verl_cpu/outputs/profile"), "-c", "scale host factor=0.5", "--json")
    cautions = " ".join(json.loads(result.stdout)["cautions"])
    assert "some ranks recorded a step in several files" in cautions
    assert "the critical path covers the last" in cautions


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("scale device rank=0-2,5 factor=0.8", "scale device factor=0.8 rank=0,1,2,5"),
        ("unwait by=aten::item", "unwait by=aten::item"),
        ('remove op="Memcpy HtoD"', 'remove device op="Memcpy HtoD"'),
        (r"prefetch range=enumerate\(DataLoader workers=4", r"prefetch range=enumerate\(DataLoader workers=4"),
        ("set host silent=true to_us=0 at_least_us=0.5", "set host to_us=0 silent=true at_least_us=0.5"),
        ("""graph range='say "a b"'""", """graph range='say "a b"'"""),
    ],
)
def test_a_change_is_written_as_it_is_read(text, written):
    change = parse_change(text)
    assert sorted(change.describe().split()) == sorted(written.split())
    assert parse_change(change.describe()) == change


def test_a_name_with_both_kinds_of_quotes_is_written_as_json():
    change = make_change({"do": "graph", "range": """it's "a" """})
    assert format_change(change).startswith("{")
    assert parse_change(format_change(change)) == change


def page_rows(heading):
    """The cells of the table of the page that begins with this heading."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def quoted(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_the_page_lists_every_verb_with_its_targets_and_fields():
    table = "\n".join(line.replace("| |", "|  |").replace("| |", "|  |") for line in PAGE.splitlines())
    for verb, record in VERBS.items():
        line = next(line for line in table.splitlines() if line.startswith(f"| `{verb}` |"))
        _, targets, required, optional = [cell.strip() for cell in line.strip("|").split("|")][:4]
        assert quoted(targets) == record.targets, verb
        assert quoted(required) == record.required, verb
        assert quoted(optional) == record.optional, verb
    assert {row[0].strip("`") for row in page_rows("verb")} == set(VERBS)


def test_the_page_lists_every_field_that_selects():
    assert {name for row in page_rows("field") for name in quoted(row[0])} == set(Selection.__dataclass_fields__)


def test_the_page_lists_every_kind_of_owner():
    assert set(KIND_LABELS) == set(KINDS)
    assert {name for row in page_rows("kind") for name in quoted(row[0])} == set(KIND_LABELS.values())


def test_the_changes_that_the_page_recommends_are_changes():
    recommended = [text for row in page_rows("you think of") for text in quoted(row[1])]
    assert len(recommended) >= 9
    for text in recommended:
        parse_change(text)


def test_the_help_lists_every_verb():
    text = invoke("whatif", "--help").stdout
    for verb, record in VERBS.items():
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{verb} "))
        assert all(f"{name}=" in line for name in record.required), line
