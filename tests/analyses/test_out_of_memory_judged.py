"""Failed requests judged from tables made by hand: what others hold, which leak led there, and what is not known."""

import pytest
from analyses.memory_sections import sheet
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import out_of_memory
from tracekit.model.inputs.facts import Facts

MIB = 2**20
OWNER = {"run": "r", "rank": 0, "pid": 7, "source": "a", "memory": "device", "device": 0}


def failed(asked=10, requested=40, reserved=50, free=20, **more):
    """A row of `out_of_memory`, in MiB."""
    sizes = {"asked_bytes": asked, "requested_bytes": requested, "reserved_bytes": reserved, "device_free_bytes": free}
    return {**OWNER, "cause": "capacity", **{n: None if v is None else v * MIB for n, v in sizes.items()}} | more


def judged(*failures, card=100, levels=None, **tables):
    levels = [{**OWNER, "entry_count": 3}] if levels is None else levels
    facts = Facts(device_memory=None if card is None else card * MIB)
    measured = make_measured(facts=facts, snapshot_levels=levels, out_of_memory=failures, **tables)
    return out_of_memory.judge(measured, load_default_thresholds())


def only(section):
    (found,) = section.findings
    return found


def causes(section):
    return [(row["cause"], row.get("outside_bytes")) for row in sheet(section, "out_of_memory")]


@pytest.mark.parametrize(
    ("change", "card", "cause", "outside"),
    [
        ({}, 80, "outside", 10),  # 80 less 50 reserved and 20 free, an eighth of it
        ({"free": 40}, 100, "outside", 10),  # a tenth
        ({"free": 41}, 100, "capacity", 9),
        ({"asked": 60, "free": 40}, 100, "outside", 10),  # it would have fitted just so
        ({"asked": 61, "free": 40}, 100, "capacity", 10),
        ({"free": 50}, 100, "capacity", 0),
        ({"free": 51}, 100, "capacity", None),  # more than the card has
        ({"free": None}, 100, "capacity", None),
        ({"reserved": None}, 100, "capacity", None),
        ({}, None, "capacity", None),
        ({"cause": "fragmentation"}, 100, "fragmentation", 30),
        ({"cause": "unknown"}, 100, "unknown", 30),
    ],
)
def test_others_are_the_cause_if_they_hold_a_tenth_and_the_request_would_fit(change, card, cause, outside):
    ((found, held),) = causes(judged(failed(**change), card=card))
    assert (found, held) == (cause, None if outside is None else outside * MIB)


def test_the_finding_is_of_the_last_of_like_failures():
    rows = [failed(asked=5), failed(asked=9, stage="actor_update", site="f.py:1 f", step=4)]
    found = only(judged(*rows, card=60))
    assert (found.rule, found.severity) == ("out-of-memory", "high")
    assert found.claim == (
        "rank 0, GPU 0 ran out of memory (OOM) during update_actor, 2 times: 9.00 MiB were requested, and too much was in use"
    )
    (place,) = found.places
    assert (place.rank, place.device, place.step, place.stage, place.name) == (0, 0, 4, "update_actor", "f.py:1 f")
    assert {metric.name: metric.value for metric in found.evidence} == {
        "asked_bytes": 9 * MIB, "requested_bytes": 40 * MIB, "reserved_bytes": 50 * MIB, "device_free_bytes": 20 * MIB,
        "free_bytes": None, "largest_free_bytes": None, "card_bytes": 60 * MIB,
    }  # fmt: skip
    assert found.caveats == ()
    assert [metric.value for metric in judged(*rows, card=60).metrics] == [2]


def test_each_cause_of_each_memory_is_a_finding():
    other = {"rank": 1, "source": "b", "pid": 8}
    levels = [{**OWNER, "entry_count": 3}, {**OWNER, **other}]
    section = judged(failed(), failed(cause="fragmentation"), failed(), failed(**other), card=60, levels=levels)
    assert [found.claim.split(":")[0] for found in section.findings] == [
        "rank 0, GPU 0 ran out of memory (OOM), 2 times", "rank 0, GPU 0 ran out of memory (OOM)",
        "rank 1, GPU 0 ran out of memory (OOM)",
    ]  # fmt: skip


def test_a_cause_that_is_not_known_says_why():
    found = only(judged(failed(cause="unknown")))
    assert found.claim.endswith("and the location of free memory was not recorded")
    assert found.caveats == ("expandable segments, or no recorded segments: free pieces are unknown",)
    assert {metric.name: metric.value for metric in found.evidence}["outside_bytes"] == 30 * MIB


def holding(*levels, **more):
    """A stack that holds so many MiB at one step after the other."""
    row = {**OWNER, "basis": "snapshot", "stack": 1, "site": "train.py:1 f", "frames": "f", "cohort_count": 4} | more
    del row["memory"]
    return [{**row, "window": at, "step": at + 1, "live_bytes": level * MIB} for at, level in enumerate(levels)]


def test_a_leak_of_the_process_is_the_cause_of_the_last_failure():
    """Two stacks keep 3 and 30 MiB after the first step."""
    stacks = [*holding(0, 2, 3, 4, 5), *holding(0, 10, 20, 30, 40, stack=2, site="data.py:2 g")]
    found = only(judged(failed(), card=60, survivors=stacks))
    assert found.severity == "medium"
    assert found.claim.endswith("and 33.0 MiB were kept from step to step by data.py:2 g")
    assert found.advice.startswith("fix the growth first (memory-growth); then lower the micro-batch")
    assert only(judged(failed(cause="unknown"), survivors=stacks)).severity == "medium"


def test_a_leak_is_not_the_cause_of_what_others_or_pieces_are():
    stacks = holding(0, 2, 3, 4, 5)
    for change, card in (({"cause": "fragmentation"}, 60), ({}, 80)):
        assert only(judged(failed(**change), card=card, survivors=stacks)).severity == "high"
    assert only(judged(failed(), card=60, survivors=holding(0, 2, 3, 4, 5, rank=1))).severity == "high"
    assert only(judged(failed(), card=60, survivors=holding(2, 3, 4))).severity == "high"


def test_what_is_not_known_of_the_card_is_said():
    assert len(judged(failed()).caveats) == 1
    assert judged(failed(), card=None).caveats[1].startswith("device size unknown, give --device-memory")
    pausable = [{**OWNER, "pool": "1,0", "class": "paused region"}]
    (_, said) = judged(failed(), card=None, memory_pools=pausable).caveats
    assert said.startswith("private pools that an engine may have unmapped")
    other = {"rank": 1, "source": "b", "pid": 8}
    levels = [{**OWNER, "entry_count": 3}, {**OWNER, **other}]
    both = judged(failed(), failed(**other), card=None, levels=levels, memory_pools=pausable).caveats
    assert [said.split(" ")[0] for said in both[1:]] == ["private", "device"]


def test_where_nothing_failed_the_reason_is_said():
    assert judged().reason == "no request failed in the recorded histories"
    assert judged(levels=[{**OWNER}]).reason == "no history of allocations was recorded"
    both = [{**OWNER}, {**OWNER, "source": "b", "entry_count": 1}]
    assert judged(levels=both).reason == "no request failed in the recorded histories"
    assert out_of_memory.judge(make_measured(), load_default_thresholds()) is None


def test_the_last_actions_are_those_before_the_last_failure():
    rows = [failed(entry=5), failed(entry=9)]
    actions = [{**OWNER, "entry": entry, "before": before, "size_bytes": 10 * entry + before, "action": "alloc"}
               for entry in (9, 5) for before in (2, 1)]  # fmt: skip
    actions += [{**actions[0], "source": "b", "size_bytes": 1}]
    shown = sheet(judged(*rows, last_actions=actions), "last_actions")
    assert [(row["before"], row["size_bytes"]) for row in shown] == [(1, 91), (2, 92)]
