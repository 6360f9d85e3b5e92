import pytest

from tracekit.engine import local
from tracekit.engine.local import MAX_BATCH_SOURCES, SMALL_SOURCE_BYTES, group_into_batches


def collect(function, sources, combine, **options):
    options = {"jobs": 2, "where": "processes", **options}
    return list(local.run_locally(function, sources, combine=combine, **options))


def names_of(count):
    return [f"a{number}" for number in range(count)]


def test_small_sources_are_sent_as_neighbours_put_together_in_their_order(work, make_sources):
    sources = make_sources(*names_of(20))
    values = [o.value for o in collect(work.name_of, sources, work.with_its_batch)]
    assert values[:6] == [f"a{n} with a{n - n % 2}" for n in range(6)]  # 20 for 2 workers: 2 at once
    assert [o.source for o in collect(work.name_of, sources, work.with_its_batch)] == sources


def test_few_sources_stay_apart(work, make_sources):
    outcomes = collect(work.name_of, make_sources("a", "b", "c"), work.with_its_batch)
    assert [o.value for o in outcomes] == ["a", "b", "c"]


def test_what_fails_in_a_batch_fails_alone(work, make_sources):
    names = names_of(18)
    names[3] = "format.json"
    outcomes = collect(work.fail_if_named, make_sources(*names), work.with_its_batch)
    assert outcomes[3].failure.problem == "byte 7: not a trace"
    assert outcomes[3].value is None
    assert [o.value for o in outcomes[:3]] == ["a0 with a0", "a1 with a0", "a2 with a2"]
    assert sum(o.failure is not None for o in outcomes) == 1


@pytest.mark.parametrize(("function", "culprit"), [("die_always", "die"), ("no_memory_once", "big")])
def test_a_source_that_takes_its_batch_with_it_loses_only_itself(work, make_sources, function, culprit):
    names = names_of(18)
    names[2] = culprit
    outcomes = collect(getattr(work, function), make_sources(*names), work.with_its_batch)
    failed = [o.source.name for o in outcomes if o.failure is not None]
    assert failed == (["die"] if culprit == "die" else [])
    named = [str(o.value).partition(" ")[0] for o in outcomes if o.failure is None]
    assert named == [name for name in names if name not in failed]


def test_progress_counts_files_not_batches(work, make_sources):
    told = []
    names = names_of(18)
    names[3] = "format.json"
    collect(work.fail_if_named, make_sources(*names), work.with_its_batch, on_progress=told.append)
    assert (told[0].file_count, told[0].byte_count) == (18, 1800)
    assert (told[-1].files_done, told[-1].bytes_done, told[-1].failure_count) == (18, 1800, 1)


def test_every_source_is_in_one_batch_in_order_and_large_ones_are_alone(make_sources):
    sources = make_sources(*names_of(300))
    large = make_sources("large", size_bytes=SMALL_SOURCE_BYTES + 1)
    mixed = [*sources[:40], *large, *sources[40:]]
    batches = group_into_batches(mixed, list(range(len(mixed))), workers=2)
    assert [source for batch in batches for source in batch.sources] == mixed
    assert max(len(batch.sources) for batch in batches) == MAX_BATCH_SOURCES
    assert [b.cost_bytes for b in batches if large[0] in b.sources] == [40]
    assert [len(b.sources) for b in batches if large[0] in b.sources] == [1]
    assert group_into_batches(sources[:15], [1] * 15, workers=2) == []
