from hypothesis import given
from hypothesis import strategies as st

from tracekit.engine.schedule import Schedule

COSTS = st.lists(st.integers(0, 100), max_size=12)


@given(COSTS, st.integers(1, 4), st.one_of(st.none(), st.integers(0, 150)), st.randoms())
def test_every_source_runs_once_within_budget_or_alone(costs, workers, budget, random):
    schedule = Schedule(costs, workers, budget)
    running, done = set(), []
    while len(done) < len(costs):
        while (index := schedule.next()) is not None:
            running.add(index)
            assert len(running) <= workers
            held = sum(costs[i] for i in running)
            assert budget is None or held <= budget or len(running) == 1
        ended = random.choice(sorted(running))
        schedule.end(ended)
        running.remove(ended)
        done.append(ended)
    assert sorted(done) == list(range(len(costs)))
    assert schedule.next() is None


def test_the_most_costly_starts_first_and_smaller_ones_fill_the_rest():
    schedule = Schedule([10, 90, 50, 20], workers=3, budget=100)
    assert [schedule.next(), schedule.next(), schedule.next()] == [1, 0, None]


def test_many_of_about_the_same_cost_start_in_their_order_after_those_that_cost_much_more():
    costs = [1_000 + at % 7 for at in range(100)]
    costs[80] = 9_000
    schedule = Schedule(costs, workers=100, budget=None)
    order = [schedule.next() for _ in costs]
    assert order == [80, *range(80), *range(81, 100)]


def test_few_start_strictly_by_their_cost():
    schedule = Schedule([1_000, 1_001, 1_002], workers=3, budget=None)
    assert [schedule.next() for _ in range(3)] == [2, 1, 0]


def test_a_lost_source_runs_alone_after_all_others_and_only_once_more():
    schedule = Schedule([1, 1, 1], workers=2, budget=None)
    assert (schedule.next(), schedule.next()) == (0, 1)
    assert schedule.retry(0)
    assert schedule.next() == 2
    schedule.end(1)
    assert schedule.next() is None
    schedule.end(2)
    assert schedule.next() == 0
    assert schedule.is_retry(0)
    assert not schedule.retry(0)
