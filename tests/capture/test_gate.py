"""Stages and the end of a capture of all threads take turns, and neither waits for ever."""

import threading
import time

import pytest

from capture import gate
from capture.gate import Gate


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(gate, "WAIT_S", 0.2)


def on_thread(action):
    """The started thread, which sets its `result`."""
    box = []
    thread = threading.Thread(target=lambda: box.append(action()))
    thread.box = box
    thread.start()
    return thread


def test_closing_waits_until_no_other_thread_is_in_a_stage():
    one, inside, leave = Gate(), threading.Event(), threading.Event()

    def stage():
        token = one.enter()
        inside.set()
        leave.wait(5)
        one.leave(token)

    thread = on_thread(stage)
    inside.wait(5)
    with one.closed() as alone:
        assert not alone
    leave.set()
    with one.closed() as alone:
        assert alone
    thread.join()


def test_a_stage_of_the_closing_thread_does_not_hinder_it():
    one = Gate()
    token = one.enter()
    with one.closed() as alone:
        assert alone
        one.leave(one.enter())
    one.leave(token)


def test_a_stage_that_begins_meanwhile_waits_for_the_end(monkeypatch):
    monkeypatch.setattr(gate, "WAIT_S", 5)
    one, order = Gate(), []
    with one.closed():
        thread = on_thread(lambda: (one.enter(), order.append("stage")))
        time.sleep(0.05)
        order.append("closed")
    thread.join(5)
    assert order == ["closed", "stage"]


def test_a_stage_waits_no_longer_than_the_limit():
    one = Gate()
    with one.closed():
        thread = on_thread(one.enter)
        thread.join(5)
        assert thread.box


def test_a_stage_inside_another_one_never_waits(monkeypatch):
    monkeypatch.setattr(gate, "WAIT_S", 5)
    one, inside, go, done = Gate(), threading.Event(), threading.Event(), threading.Event()

    def stages():
        outer = one.enter()
        inside.set()
        go.wait(5)
        one.leave(one.enter())
        done.set()
        one.leave(outer)

    thread = on_thread(stages)
    inside.wait(5)
    closer = on_thread(lambda: one.closed().__enter__())
    time.sleep(0.05)
    go.set()
    assert done.wait(2)
    thread.join()
    closer.join(5)
    assert closer.box == [True]


def test_a_stage_may_end_on_another_thread_than_it_began_on():
    one = Gate()
    token = one.enter()
    on_thread(lambda: one.leave(token)).join()
    thread = on_thread(lambda: one.closed().__enter__())
    thread.join(5)
    assert thread.box == [True]
