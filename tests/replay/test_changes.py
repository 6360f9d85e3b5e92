"""Changes as data: what a person may write, what they mean, and what is refused with which words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.replay.changes import (
    FIELDS,
    VERBS,
    ChangeError,
    RunChange,
    Selection,
    describe_change,
    make_change,
    parse_change,
)

EVERY_VERB = [
    (
        "scale device rank=2 op=^(?!Mem) factor=0.8",
        {"do": "scale", "on": "device", "rank": 2, "op": "^(?!Mem)", "factor": 0.8},
        RunChange("scale", "device", Selection(rank=frozenset({2}), op="^(?!Mem)"), factor=0.8),
    ),
    (
        "scale range=gen factor=0",
        {"do": "scale", "range": "gen", "factor": 0},
        RunChange("scale", "host", Selection(range="gen"), factor=0.0),
    ),
    (
        "set host silent=true range=reward at_least_us=1000 to_us=0.5",
        {"do": "set", "on": "host", "silent": True, "range": "reward", "at_least_us": 1000, "to_us": 0.5},
        RunChange("set", "host", Selection(range="reward", silent=True, at_least_us=1000.0), to_us=0.5),
    ),
    (
        "remove op=Pageable by=aten::to host=aten::to longer_than_us=3",
        {"do": "remove", "op": "Pageable", "by": "aten::to", "host": "aten::to", "longer_than_us": 3},
        RunChange("remove", "device", Selection(by="aten::to", op="Pageable", longer_than_us=3.0), host="aten::to"),
    ),
    (
        "remove range range=validation step=1-3,7 nth=0",
        {"do": "remove", "on": "range", "range": "validation", "step": [1, 2, 3, 7], "nth": 0},
        RunChange("remove", "range", Selection(range="validation", step=frozenset({1, 2, 3, 7}), nth=frozenset({0}))),
    ),
    (
        "unwait by=aten::item",
        {"do": "unwait", "by": "aten::item"},
        RunChange("unwait", "host", Selection(by="aten::item")),
    ),
    (
        "unwait row=cudaEventSynchronize not_range=gen",
        {"do": "unwait", "row": "cudaEventSynchronize", "not_range": "gen"},
        RunChange("unwait", "host", Selection(row="cudaEventSynchronize", not_range="gen")),
    ),
    ("unblock op=HtoD", {"do": "unblock", "op": "HtoD"}, RunChange("unblock", "device", Selection(op="HtoD"))),
    (
        "hide op=ReduceScatter group=^201$ until=Optimizer.step",
        {"do": "hide", "op": "ReduceScatter", "group": "^201$", "until": "Optimizer.step"},
        RunChange("hide", "collective", Selection(op="ReduceScatter", group="^201$"), until="Optimizer.step"),
    ),
    ("equalise rank=2", {"do": "equalise", "rank": 2}, RunChange("equalise", "device", Selection(rank=frozenset({2})))),
    ("equalise host", {"do": "equalise", "on": "host"}, RunChange("equalise", "host", Selection())),
    (
        "equalise across=step step=7-8",
        {"do": "equalise", "across": "step", "step": [7, 8]},
        RunChange("equalise", "device", Selection(step=frozenset({7, 8})), across="step"),
    ),
    (
        "scale range requests_below=16 factor=0.1",
        {"do": "scale", "on": "range", "requests_below": 16, "factor": 0.1},
        RunChange("scale", "range", Selection(requests_below=16.0), factor=0.1),
    ),
    (
        "fuse by=Optimizer.step factor=0.35",
        {"do": "fuse", "by": "Optimizer.step", "factor": 0.35},
        RunChange("fuse", "device", Selection(by="Optimizer.step"), factor=0.35),
    ),
    (
        "accumulate op=ReduceScatter stage=update_actor",
        {"do": "accumulate", "op": "ReduceScatter", "stage": "update_actor"},
        RunChange("accumulate", "collective", Selection(op="ReduceScatter", stage="update_actor")),
    ),
    (
        "prefetch collective op=AllGather",
        {"do": "prefetch", "on": "collective", "op": "AllGather"},
        RunChange("prefetch", "collective", Selection(op="AllGather")),
    ),
    ("hide op=ReduceScatter", {"do": "hide", "op": "ReduceScatter"}, RunChange("hide", "collective", Selection(op="ReduceScatter"))),
    (
        "prefetch range=DataLoader workers=4 before=x after=y",
        {"do": "prefetch", "range": "DataLoader", "workers": 4, "before": "x", "after": "y"},
        RunChange("prefetch", "range", Selection(range="DataLoader", before="x", after="y"), workers=4),
    ),
    (
        "graph range=execute_context_0 factor=0.1",
        {"do": "graph", "range": "execute_context_0", "factor": 0.1},
        RunChange("graph", "range", Selection(range="execute_context_0"), factor=0.1),
    ),
    (
        "graph stage=gen by=decode",
        {"do": "graph", "stage": "gen", "by": "decode"},
        RunChange("graph", "range", Selection(stage="gen", by="decode")),
    ),
    ("remove range stage=gen", {"do": "remove", "on": "range", "stage": "gen"}, RunChange("remove", "range", Selection(stage="gen"))),
    (
        "scale collective stage= work=c(h smaller_bytes=4096 factor=0.5",
        {"do": "scale", "on": "collective", "stage": "", "work": "c(h", "smaller_bytes": 4096, "factor": 0.5},
        RunChange("scale", "collective", Selection(stage="", work="c(h", smaller_bytes=4096.0), factor=0.5),
    ),
]  # fmt: skip


def test_every_verb_is_tried():
    assert {change.do for _, _, change in EVERY_VERB} == set(VERBS)
    assert {name for _, fields, _ in EVERY_VERB for name in fields} == set(FIELDS)


@pytest.mark.parametrize(("words", "fields", "change"), EVERY_VERB)
def test_words_fields_and_json_mean_the_same(words, fields, change):
    assert parse_change(words) == make_change(fields) == parse_change(f"  {json.dumps(fields)}") == change


@pytest.mark.parametrize("change", [change for *_, change in EVERY_VERB])
def test_a_described_change_is_read_again(change):
    assert make_change(describe_change(change)) == change
    assert parse_change(change.describe()) == change


def test_a_graph_takes_no_host_time_unless_told():
    assert make_change({"do": "graph", "range": "decode"}).factor is None
    assert make_change({"do": "graph", "range": "decode", "factor": 0}).factor == 0
    assert make_change({"do": "graph", "range": "decode", "factor": 1}).factor == 1


def test_fields_of_other_verbs_are_not_set():
    change = parse_change("unwait by=aten::item")
    own = (change.factor, change.to_us, change.host, change.until, change.across, change.workers)
    assert own == (None,) * 6
    assert parse_change("prefetch range=x").workers is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("scale device rank=0-2,5 factor=0.8", "scale device rank=0,1,2,5 factor=0.8"),
        ("unwait by=aten::item", "unwait by=aten::item"),
        ('remove op="Memcpy HtoD"', 'remove device op="Memcpy HtoD"'),
        (r"prefetch range=enumerate\(DataLoader workers=4", r"prefetch range range=enumerate\(DataLoader workers=4"),
        ("set host silent=true to_us=0 at_least_us=0.5", "set host silent=true at_least_us=0.5 to_us=0"),
        ("""graph range='say "a b"'""", """graph range='say "a b"'"""),
        ('unwait by=x stage=""', 'unwait stage="" by=x'),
    ],
)
def test_a_change_is_written_in_words(text, written):
    assert parse_change(text).describe() == written


def test_a_name_with_both_kinds_of_quotes_is_written_as_json():
    fields = {"do": "graph", "on": "range", "range": """it's "a" """, "factor": 0.0}
    assert json.loads(make_change(fields).describe()) == fields


def test_a_description_leaves_out_what_is_not_chosen():
    assert describe_change(parse_change("unwait by=aten::item")) == {"do": "unwait", "on": "host", "by": "aten::item"}
    described = describe_change(parse_change("scale device rank=3,1 factor=0.5"))
    assert described == {"do": "scale", "on": "device", "rank": [1, 3], "factor": 0.5}


@given(
    st.builds(
        Selection,
        rank=st.none() | st.frozensets(st.integers(0, 99), min_size=1),
        step=st.none() | st.frozensets(st.integers(0, 99), min_size=1),
        range=st.none() | st.sampled_from(["gen", "a b", "é=x", "(x|y)\n"]),
        op=st.none() | st.just('"quoted"'),
        silent=st.booleans(),
        at_least_us=st.floats(0, 1e9),
        longer_than_us=st.just(0.0) | st.floats(0.001, 1e9),
        smaller_bytes=st.just(0.0) | st.floats(1, 1e9),
        stage=st.none() | st.sampled_from(["", "gen", "it's", "a (b"]),
        nth=st.none() | st.frozensets(st.integers(0, 9), min_size=1),
    ),
    st.floats(0, 1e6).filter(lambda factor: factor != 1),
)
def test_any_change_survives_its_description(where, factor):
    change = RunChange("scale", "device", where, factor=factor)
    assert parse_change(change.describe()) == change


NO_CHANGE = 'write {"do": "scale", "on": "device", "factor": 0.8}'
KNOWN_FIELDS = f"fields: {', '.join(FIELDS)}"
KNOWN_VERBS = "one of scale, set, remove, unwait, unblock, hide, accumulate, fuse, equalise, prefetch, graph"
REFUSED = [
    ("", "do: '' is not a change", KNOWN_VERBS),
    ("scal device factor=1", "do: 'scal' is not a change; did you mean 'scale'?", KNOWN_VERBS),
    ('{"on": "device"}', "do: None is not a change", KNOWN_VERBS),
    ('{"do": 3}', "do: 3 is not a change", KNOWN_VERBS),
    ("scale factr=1", "a change has no field 'factr'; did you mean 'factor'?", KNOWN_FIELDS),
    ("scale device host factor=1", "'host' is not name=value", KNOWN_FIELDS),
    ("scale gpu factor=1", "'gpu' is not name=value", KNOWN_FIELDS),
    ("scale device", "scale needs 'factor'", "Multiply the length by a factor; of a range with all that it launches."),
    ("set device", "set needs 'to_us'", "Shorten to a length in µs."),
    ("unblock", "unblock needs 'op'", "Make copies asynchronous: their calls return at once."),
    (
        "accumulate",
        "accumulate needs 'op'",
        "Reduce gradients only in the last backward pass before each step of the optimizer.",
    ),
    ("prefetch", "prefetch names no range", "name it: range=enumerate, or collectives: prefetch collective"),
    ("fuse factor=0.5", "fuse names no ops", "name them: by=Optimizer.step"),
    ("fuse host by=aten::add", "fuse names no calls", "name them: row=aten::add"),
    ("scale range factor=0.5", "scale names no range", "name it: range=decode, or stage=gen"),
    ("equalise across=stage", "across: 'stage' is neither rank nor step", ""),
    ("scale device across=step factor=2", "scale has no 'across'", "Multiply the length by a factor; of a range with all that it launches."),
    ("graph", "graph names no range", "name it: range=decode, or stage=gen"),
    ("graph op=x stage=", "graph names no range", "name it: range=decode, or stage=gen"),
    ("scale device factor=1", "factor: 1 changes nothing", "0.8 makes the selected work last 80 % as long"),
    ("scale device smaller_bytes=-1 factor=2", "smaller_bytes: -1 is not a number from 0 to 1,000,000,000,000", ""),
    ('{"do": "unwait", "stage": 3}', "stage: 3 is not a text", ""),
    ("remove op='x", "remove op='x: a quote is not closed", 'write op="Pageable -> Device", or JSON'),
    ("set range to_us=1", "set cannot be done on 'range'", "on: host, device, collective"),
    ("unwait device by=x", "unwait cannot be done on 'device'", "on: host"),
    ("hide host until=x", "hide cannot be done on 'host'", "on: collective"),
    ('{"do": "scale", "on": ["device"], "factor": 1}', "scale cannot be done on ['device']", "on: host, device, collective, range"),
    ("unwait by=x factor=2", "unwait has no 'factor'", "Do not wait for the device in the selected calls."),
    ("scale factor=2 workers=2", "scale has no 'workers'", "Multiply the length by a factor; of a range with all that it launches."),
    ("unwait", "unwait names no calls", "name the op that waits: by=aten::item"),
    ("unwait range=", "unwait names no calls", "name the op that waits: by=aten::item"),
    ("remove rank=1", "remove names no ops", 'name them: op="Pageable -> Device", or by=aten::to'),
    ("remove collective rank=1", "remove names no ops", "name them: op=ReduceScatter"),
    ("remove range by=x", "remove names no range", "name it: range=validation"),
    ("scale factor=-1", "factor: -1 is not a number from 0 to 1,000,000", ""),
    ("scale factor=nan", "factor: 'nan' is not a number from 0 to 1,000,000", ""),
    ("scale factor=NaN", "factor: nan is not a number from 0 to 1,000,000", ""),
    ("scale factor=Infinity", "factor: inf is not a number from 0 to 1,000,000", ""),
    ("scale factor=1e12", "factor: 1000000000000.0 is not a number from 0 to 1,000,000", ""),
    ("scale factor=true", "factor: True is not a number from 0 to 1,000,000", ""),
    ("scale factor=", "factor: '' is not a number from 0 to 1,000,000", ""),
    ("scale factor=0.5x", "factor: '0.5x' is not a number from 0 to 1,000,000", ""),
    ('{"do": "scale", "factor": null}', "factor: None is not a number from 0 to 1,000,000", ""),
    ("set to_us=-0.5", "to_us: -0.5 is not a number from 0 to 1,000,000,000,000", ""),
    ("scale factor=1 at_least_us=-3", "at_least_us: -3 is not a number from 0 to 1,000,000,000,000", ""),
    ("scale factor=1000001", "factor: 1000001 is not a number from 0 to 1,000,000", ""),
    ("prefetch range=x workers=1.5", "workers: 1.5 is not a whole number from 1 on", ""),
    ("prefetch range=x workers=0", "workers: 0 is not a whole number from 1 on", ""),
    ("scale factor=1 silent=1", "silent: 1 is neither true nor false", ""),
    ("scale factor=1 silent=yes", "silent: 'yes' is neither true nor false", ""),
    ("scale factor=1 rank=-1", "rank: '-1' is not a number or a range", "write it like 0-3,7"),
    ("scale factor=1 step=5-2", "step: the range 5-2 ends before it begins", "write it like 0-3,7"),
    ("scale factor=1 step=0-999999999", "step: the range 0-999999999 is too long", "write it like 0-3,7"),
    ("scale factor=1 nth=x", "nth: 'x' is not a number or a range", "write it like 0-3,7"),
    ('{"do": "scale", "factor": 1, "rank": -1}', "rank: -1 is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ('{"do": "scale", "factor": 1, "rank": [1, 1e9]}', "rank: [1, 1000000000.0] is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ('{"do": "scale", "factor": 1, "rank": [true]}', "rank: [True] is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ('{"do": "scale", "factor": 1, "step": []}', "step: [] is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ('{"do": "scale", "factor": 1, "nth": null}', "nth: None is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ('{"do": "scale", "factor": 1, "rank": 10000000000000000000000}', "rank: 10000000000000000000000 is not a number, a list of numbers, or a text such as 0-3,7", ""),
    ("scale factor=1 range=(", "range: '(' is not a regular expression: missing ), unterminated subpattern at position 0", ""),
    ("scale factor=1 op=a{99999999999}", "op: 'a{99999999999}' is not a regular expression: the repetition number is too large", ""),
    ("remove op=x host=[", "host: '[' is not a regular expression: unterminated character set at position 0", ""),
    ('{"do": "unwait", "by": 3}', "by: 3 is not a text", ""),
    ('{"do": "unwait", "by": null}', "by: None is not a text", ""),
    ('{"do": ', "not JSON: Expecting value: line 1 column 8 (char 7)", NO_CHANGE),
    ("{} {}", "not JSON: Extra data: line 1 column 4 (char 3)", NO_CHANGE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem", "hint"), REFUSED)
def test_what_cannot_be_meant_is_refused(text, problem, hint):
    with pytest.raises(ChangeError) as caught:
        parse_change(text)
    assert (caught.value.problem, caught.value.hint) == (problem, hint)


@pytest.mark.parametrize("values", [None, 3, "scale", ["scale"], [("do", "scale")]])
def test_what_is_no_object_is_no_change(values):
    with pytest.raises(ChangeError, match="a change is an object") as caught:
        make_change(values)
    assert caught.value.hint == NO_CHANGE


@pytest.mark.parametrize(
    "text", ['{"do":' + "[" * 100_000, "scale factor=" + "[" * 100_000, "scale factor=1 op=" + "(" * 50_000]
)
def test_deeply_nested_texts_are_refused(text):
    with pytest.raises(ChangeError):
        parse_change(text)


def test_a_pattern_of_a_form_that_will_change_gives_no_warning():
    """Python warns of "[[" as of a set within a set; here warnings are errors."""
    assert parse_change("scale factor=2 op=[[a]x").where.op == "[[a]x"


HOSTILE = ["\x1b[31m", "\x07", "\u202e", "\x9b", "\udcff", "\n"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "write",
    [
        lambda text: {"do": text},
        lambda text: {"do": "scale", "factor": 1, f"x{text}": 1},
        lambda text: {"do": "scale", "on": text, "factor": 1},
        lambda text: {"do": "scale", "factor": text},
        lambda text: {"do": "scale", "factor": 1, "silent": text},
        lambda text: {"do": "scale", "factor": 1, "rank": text},
        lambda text: {"do": "scale", "factor": 1, "op": f"({text}"},
        lambda text: {"do": "scale", "factor": 1, "op": [text]},
        lambda text: {"do": "prefetch", "range": "x", "workers": text},
    ],
)
def test_what_is_quoted_in_an_error_cannot_control_a_terminal(text, write):
    with pytest.raises(ChangeError) as caught:
        make_change(write(text))
    assert text not in caught.value.problem
    assert caught.value.problem.isprintable()


@given(st.text())
def test_any_text_is_a_change_or_refused(text):
    try:
        change = parse_change(text)
    except ChangeError:
        return
    assert parse_change(change.describe()) == change


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.sampled_from([*VERBS]))
def test_any_fields_are_a_change_or_refused(values, verb):
    try:
        change = make_change({**values, "do": verb})
    except ChangeError:
        return
    assert make_change(describe_change(change)) == change
