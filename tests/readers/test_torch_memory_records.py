"""What rows have at a key is the same by the pass in C and without it, whatever the rows hold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.readers.torch_memory import columns, stacks
from tracekit.readers.torch_memory.columns import MAX_SIZE, Records

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
    return Records(Path("snapshot.pickle"), rows, lambda _: "rows", [0])


@pytest.fixture(scope="module")
def patching():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(
    st.one_of(rows_of(LEAVES), rows_of(INTEGERS)),
    st.sampled_from(["sizes", "addresses", "nanoseconds"]),
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
        codes, names = columns.distinct(records(rows), "key")
        return codes.tolist(), names

    in_c, in_python = both(patching, made)
    assert in_c == in_python


@given(rows_of(LEAVES))
def test_things_are_told_apart_by_what_object_they_are(patching, rows):
    def made():
        things = columns.things_at(records(rows), "key")
        return things.number.tolist(), things.first.tolist(), list(map(id, things.things))

    in_c, in_python = both(patching, made)
    assert in_c == in_python
    recorded = [row.get("key") for row in rows]
    assert [in_c[2][number] for number in in_c[0]] == list(map(id, recorded))


@given(rows_of(st.one_of(st.none(), st.lists(st.sampled_from(SHARED[:2]), max_size=4))))
def test_stacks(patching, rows):
    """The same frames are the same stack, be they in one list or in two."""

    def made():
        found = stacks.Stacks(Path("snapshot.pickle"))
        numbers = stacks.stack_column(found, records(rows), "key")
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
        getattr(columns.native, name)(
            [{}, {}], "key", short, short.astype(np.bool_) if name == "integers" else short
        )


def test_what_is_no_list_is_refused():
    two = np.empty(2, np.int64)
    with pytest.raises(TypeError, match="neither a list nor None"):
        columns.native.alike([[], "text"], two, two.copy())
    with pytest.raises(TypeError, match="no dictionary"):
        columns.native.identified([{}, []], "key", two, two.copy())
