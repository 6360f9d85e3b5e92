"""What rows have at a key is the same by the pass in C and without it, whatever the rows hold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.readers.torch_memory import columns, stacks
from tracekit.readers.torch_memory.columns import MAX_SIZE, SnapshotRecords

pytestmark = pytest.mark.skipif(columns.native is None, reason="built without a compiler")

SHARED = ["a frame", {"name": "f"}, [], (0, 1), 2**80, "text", "te" + "xt"]
LEAVES = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(-5, 5), st.integers(-(2**70), 2**70),
    st.sampled_from([-(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64]), st.text(max_size=3), st.sampled_from(SHARED),
    st.lists(st.sampled_from(SHARED), max_size=4), st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
INTEGERS = st.one_of(st.none(), st.integers(-3, MAX_SIZE), st.integers(-(2**63), 2**64 - 1))


def rows_of(values):
    return st.lists(st.one_of(st.just({}), values.map(lambda value: {"key": value})), max_size=12)


def both(monkeypatch, make):
    """What is made in C, and without it; of an error what it says."""
    results = []
    for native in (columns.native, None):
        with monkeypatch.context() as patch:
            patch.setattr(columns, "native", native)
            patch.setattr(stacks, "native", native)
            try:
                results.append(make())
            except TraceFormatError as error:
                results.append(str(error))
    return results


def records(rows):
    return SnapshotRecords(Path("snapshot.pickle"), rows, lambda _: "rows", [0])


@pytest.fixture(scope="module")
def patching():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(
    st.one_of(rows_of(LEAVES), rows_of(INTEGERS)),
    st.sampled_from(["read_byte_sizes", "read_addresses", "read_record_times"]),
)
def test_integers(patching, rows, column):
    def made():
        numbers = getattr(columns, column)(records(rows), "key")
        return numbers.values.tolist(), numbers.missing.tolist()

    in_c, in_python = both(patching, made)
    assert in_c == in_python


@given(st.one_of(rows_of(LEAVES), rows_of(st.one_of(st.none(), st.sampled_from(["a", "b"])))))
def test_texts(patching, rows):
    def made():
        codes, names = columns.read_distinct_texts(records(rows), "key")
        return codes.tolist(), names

    in_c, in_python = both(patching, made)
    assert in_c == in_python


@given(rows_of(LEAVES))
def test_things_are_told_apart_by_what_object_they_are(patching, rows):
    def made():
        things = columns.find_distinct_objects(records(rows), "key")
        return things.number.tolist(), things.first.tolist(), list(map(id, things.things))

    in_c, in_python = both(patching, made)
    assert in_c == in_python
    recorded = [row.get("key") for row in rows]
    assert [in_c[2][number] for number in in_c[0]] == list(map(id, recorded))


@given(rows_of(st.one_of(st.none(), st.lists(st.sampled_from(SHARED[:2]), max_size=4))))
def test_stacks(patching, rows):
    """The same frames are the same stack, be they in one list or in two."""

    def made():
        found = stacks.SnapshotStacks(Path("snapshot.pickle"))
        numbers = stacks.make_stack_column(found, records(rows), "key")
        frames = {key: codes.tolist() for key, codes in found.frame_codes.items()}
        return numbers.values.tolist(), numbers.missing.tolist(), list(frames.items())

    in_c, in_python = both(patching, made)
    assert in_c == in_python
    hashes = dict(zip(map(repr, (row.get("key") for row in rows)), in_c[0], strict=True))
    assert len(set(hashes.values())) == len(hashes)


def test_many_lists_that_differ_in_one_object_are_told_apart():
    frames = [{"line": number} for number in range(300)]
    lists = [[frames[i], frames[j]] for i in range(300) for j in range(10)]
    number, first = np.empty(6000, np.int64), np.empty(6000, np.int64)
    assert columns.native.alike([*lists, *map(list, lists)], number, first) == 3000
    assert number.tolist() == [*range(3000), *range(3000)]
    assert first[:3000].tolist() == list(range(3000))


@pytest.mark.parametrize("name", ["integers", "identified"])
def test_arrays_of_another_length_are_refused(name):
    short = np.empty(1, np.int64)
    with pytest.raises(ValueError, match="another length"):
        getattr(columns.native, name)([{}, {}], "key", short, short.astype(np.bool_) if name == "integers" else short)


def test_what_is_no_list_is_refused():
    two = np.empty(2, np.int64)
    with pytest.raises(TypeError, match="neither a list nor None"):
        columns.native.alike([[], "text"], two, two.copy())
    with pytest.raises(TypeError, match="no dictionary"):
        columns.native.identified([{}, []], "key", two, two.copy())


KEYS = ("size", "addr", "action", "pool_id", "frames", "forward_frames")
ROWS = st.lists(st.dictionaries(st.sampled_from((*KEYS, "odd")), LEAVES, max_size=6), max_size=12)
USUAL = st.lists(
    st.fixed_dictionaries(
        {"size": INTEGERS, "action": st.sampled_from([None, "alloc", "free"])},
        optional={
            "addr": INTEGERS,
            "frames": st.one_of(st.none(), st.lists(st.sampled_from(SHARED[:2]), max_size=4)),
            "odd": LEAVES,
        },
    ),
    max_size=12,
)


def taken(rows):
    return columns.read_keys_natively(records(rows), KEYS[:2], KEYS[2:4], KEYS[4:])


@given(st.one_of(USUAL, ROWS))
def test_one_pass_takes_what_the_passes_over_each_key_take(patching, rows):
    """The keys, the integers, the things and the stacks, or the error that names what is wrong."""

    def made(of, of_key):
        try:
            return of_key(of)
        except TraceFormatError as error:
            return str(error)

    def stacks_of(key):
        def column(of):
            found = stacks.SnapshotStacks(Path("snapshot.pickle"))
            numbers = stacks.make_stack_column(found, of, key)
            codes = [(hash_, codes.tolist()) for hash_, codes in found.frame_codes.items()]
            return numbers.values.tolist(), numbers.missing.tolist(), codes

        return column

    def integers(key):
        def column(of):
            numbers = columns.read_addresses(of, key)
            return numbers.values.tolist(), numbers.missing.tolist()

        return column

    def things(key):
        def column(of):
            found = columns.find_distinct_objects(of, key)
            return found.number.tolist(), found.first.tolist(), list(map(id, found.things))

        return column

    at_once, one_by_one = taken(rows), records(rows)
    assert at_once.taken is not None
    asked = [columns.list_record_keys]
    for ask, keys in ((integers, KEYS[:2]), (things, KEYS[2:4]), (stacks_of, KEYS[4:])):
        asked += list(map(ask, keys))
    for of_key in asked:
        assert made(at_once, of_key) == made(one_by_one, of_key)


def test_stacks_are_told_apart_however_long_they_are():
    """Lists of 0 to 300 frames, each in two lists and in three rows; one differs in its last frame alone."""
    frames = [{"line": number} for number in range(301)]
    lists = [frames[:length] for length in range(300)] + [[*frames[:298], frames[300]], None]
    rows = [{"frames": each} for each in (*lists, *lists, *(each and [*each] for each in lists))]
    found = taken(rows).taken.lists["frames"]
    assert found.number.tolist() == [*range(302)] * 3
    assert found.first.tolist() == [*range(302)]
    assert found.things == lists


@pytest.mark.parametrize("row", [
    [], {1: 2}, {"k" * 65: 1}, {str(number): 1 for number in range(32)}, {str(number): 1 for number in range(27)},
])  # fmt: skip
def test_rows_as_no_snapshot_has_them_are_left_to_other_passes(row):
    assert taken([{"size": 1}, row]).taken is None
    assert taken([{"size": 1}, {str(number): 1 for number in range(26)}]).taken is not None


def test_what_does_not_fit_the_rows_is_refused():
    two, truths = np.empty(2, np.int64), np.empty(2, np.bool_)
    for asked in (
        ((("size", two[:1], truths),), (), ()), ((("size", two, truths[:1]),), (), ()),
        ((), (("action", two, two[:1]),), ()), ((), (), (("frames", two[:1], two),)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="another length"):
            columns.native.taken([{}, {}], *asked)
    with pytest.raises(ValueError, match="too many keys"):
        columns.native.taken([{}, {}], (), tuple((str(n), two, two.copy()) for n in range(33)), ())
    with pytest.raises(TypeError):
        columns.native.taken([{}, {}], (("size", two),), (), ())
    with pytest.raises(TypeError):
        columns.native.taken(({}, {}), (), (), ())
