"""Ranges close and times are kept, whatever the body does and whatever is installed."""

import asyncio

import fake_torch
import pytest

from capture import mark_annotate, mark_end_range, mark_start_range, marked_timer, simple_timer


def test_a_range_is_started_and_ended_as_nvtx_has_it(nvtx):
    mark_end_range(mark_start_range("a", "red", domain="d", category="c"))
    assert nvtx == [("start", "a", "red", "d", "c"), ("end", "a")]


@pytest.mark.parametrize(
    ("color", "given"),
    [("olive", 0x808000), ("brown", 0xA52A2A), ("pink", 0xFFC0CB), ("gray", 0x808080), (0xFF, 0xFF), ("no such", None), (None, None)],
)  # fmt: skip
def test_a_colour_that_nvtx_does_not_know_by_name_is_no_error(nvtx, color, given):
    # In verl `ref` is olive, `adv` brown and `update_critic` pink: under nsys they raise.
    mark_end_range(mark_start_range("ref", color))
    assert nvtx[0] == ("start", "ref", given, None, None)


def test_a_range_that_cannot_be_made_is_told_and_not_raised(nvtx, caplog):
    mark_end_range(mark_start_range("a", color=["red"]))
    assert nvtx == [] or nvtx[0][2] == ["red"]
    mark_end_range(None)


@pytest.mark.parametrize("timer", [marked_timer, simple_timer])
def test_a_timer_adds_up_and_keeps_the_time_of_a_body_that_raises(nvtx, timer):
    times = {"gen": 1.0}
    with timer("gen", times):
        pass
    with pytest.raises(ValueError), timer("gen", times), timer("new", times):
        raise ValueError
    assert 1.0 < times["gen"] < 2.0
    assert 0.0 < times["new"] < 1.0
    if timer is marked_timer:
        names = [(entry[0], entry[1]) for entry in nvtx]
        assert names == [
            *[("start", "gen"), ("end", "gen"), ("start", "gen")],
            *[("start", "new"), ("end", "new"), ("end", "gen")],
        ]


def test_a_function_and_a_coroutine_are_ranges_until_they_end(nvtx):
    @mark_annotate(color="blue")
    def work(value):
        raise KeyError(value)

    @mark_annotate("named")
    async def wait():
        await asyncio.sleep(0)
        return list(nvtx)

    with pytest.raises(KeyError, match="3"):
        work(3)
    assert nvtx == [("start", "work", "blue", None, None), ("end", "work")]
    assert asyncio.run(wait())[-1] == ("start", "named", None, None, None)
    assert nvtx[-1] == ("end", "named")


def test_without_nvtx_only_the_timers_remain(monkeypatch):
    fake_torch.without(monkeypatch, "nvtx")
    times = {}
    with marked_timer("gen", times, color="red"):
        pass
    assert list(times) == ["gen"]
    assert mark_start_range("a") is None
    assert mark_annotate("a")(lambda: 3)() == 3
