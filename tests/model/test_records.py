"""Records are what the standard library's dataclasses are: each property is asked of both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import tracekit
from tracekit.model.records import dataclass

MAKERS = [dataclasses.dataclass, dataclass]


def each(question: Callable[[type], Any], **options: bool) -> None:
    """Asked of the class as either maker makes it, a question has the same answer."""
    standard, own = (question(sample(maker, **options)) for maker in MAKERS)
    assert own == standard


def sample(maker: Any, **options: bool) -> Any:
    """A class with all that fields may have."""

    class Sample:
        """One of both kinds."""

        kind: ClassVar[str] = "sample"
        name: str
        sizes: tuple[int, ...] = ()
        seen: list[str] = field(default_factory=list)
        cache: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
        limit: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name.upper())

    return maker(frozen=True, slots=True, **options)(Sample)


def raised(action: Callable[[], object]) -> type[BaseException] | None:
    """The type of what an action raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - its type is the answer
        return type(error)
    return None


def test_what_is_filled_in_is_the_same() -> None:
    def contents(kind: Any) -> list[Any]:
        records = [kind("a"), kind("b", (1,)), kind(name="c", seen=["x"], sizes=(2, 3))]
        return [dataclasses.asdict(record) for record in records]

    each(contents)
    assert contents(sample(dataclass))[1] == {"name": "B", "sizes": (1,), "seen": [], "cache": {}, "limit": 7}


def test_every_record_has_its_own_default() -> None:
    kind = sample(dataclass)
    first, second = kind("a"), kind("a")
    first.seen.append("x")
    assert second.seen == []


def test_a_wrong_call_is_refused() -> None:
    for wrong in ((), ("a", (), [], {}), ("a",)):
        each(lambda kind, wrong=wrong: raised(lambda: kind(*wrong)))
    each(lambda kind: raised(lambda: kind("a", limit=3)))
    each(lambda kind: raised(lambda: kind("a", nothing=3)))
    assert raised(sample(dataclass)) is TypeError


def test_equality_hash_and_text_are_the_same() -> None:
    def answers(kind: Any) -> list[Any]:
        one, same, other = kind("a", (1,)), kind("a", (1,)), kind("a", (2,))
        one.cache["hits"] = 3
        return [one == same, one == other, one == "a", one != same, repr(one), raised(lambda: hash(one))]

    each(answers)
    each(lambda kind: answers(kind)[:4], eq=False)
    each(lambda kind: answers(kind)[1:4], repr=False)


def test_hash_is_of_what_is_compared() -> None:
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int
        note: str = field(default="", compare=False)

    assert len({Point(1, 2), Point(1, 2, "again"), Point(2, 1)}) == 2


def test_a_record_of_one_field_or_none_is_compared_and_shown() -> None:
    def answers(maker: Any) -> list[Any]:
        @maker(frozen=True, slots=True)
        class One:
            value: int

        @maker(frozen=True, slots=True)
        class Nothing:
            pass

        return [One(1) == One(1), One(1) == One(2), hash(One(1)) == hash(One(1)), Nothing() == Nothing()]

    assert answers(dataclass) == answers(dataclasses.dataclass) == [True, False, True, True]


def test_nothing_is_assigned_nor_deleted() -> None:
    for change in (lambda record: setattr(record, "sizes", (1,)), lambda record: delattr(record, "sizes")):
        each(lambda kind, change=change: raised(lambda: change(kind("a"))))
    assert raised(lambda: setattr(sample(dataclass)("a"), "sizes", ())) is dataclasses.FrozenInstanceError


def test_it_is_a_dataclass_like_any_other() -> None:
    def answers(kind: Any) -> list[Any]:
        record = kind("a", (1,))
        parameters = inspect.signature(kind).parameters
        return [
            dataclasses.is_dataclass(record),
            [(entry.name, entry.init, entry.repr) for entry in dataclasses.fields(kind)],
            dataclasses.replace(record, sizes=(9,)).sizes,
            kind.__match_args__,
            kind.__slots__,
            kind.__doc__,
            kind.kind,
            list(parameters),
            hasattr(record, "__dict__"),
            kind.__dataclass_params__.frozen,
        ]

    each(answers)


@dataclass(frozen=True, slots=True)
class Kept:
    """One that can be pickled, as it has a place in a module."""

    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class More(Kept):
    """One with a field more; it is made by the standard library."""

    unit: str = "ns"


def test_it_is_pickled_and_copied() -> None:
    for record in (Kept("a", (1,)), More("b", (2,), "ms")):
        assert pickle.loads(pickle.dumps(record)) == record
        assert copy.copy(record) == record == copy.deepcopy(record)


def test_one_that_is_derived_is_another() -> None:
    assert More("a") != Kept("a")
    assert repr(More("a")) == "More(name='a', sizes=(), unit='ns')"
    assert raised(lambda: setattr(More("a"), "unit", "s")) is dataclasses.FrozenInstanceError


def test_functions_of_its_own_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd) and self.value % 2 == other.value % 2

        def __hash__(self) -> int:
            return self.value % 2

        def __repr__(self) -> str:
            return "odd"

    assert Odd(1) == Odd(3) != Odd(2)
    assert {Odd(1), Odd(3)} == {Odd(1)}
    assert repr(Odd(1)) == "odd"


def test_one_that_holds_itself_is_shown() -> None:
    record = Kept("a", [])  # type: ignore[arg-type]
    record.sizes.append(record)  # type: ignore[attr-defined]
    assert repr(record) == "Kept(name='a', sizes=[...])"


def test_others_are_left_to_the_standard_library() -> None:
    @dataclass(slots=True)
    class Open:
        value: int = 0

    @dataclass
    class Plain:
        value: int = 0

    changed = Open()
    changed.value = 3
    assert (changed, Plain(3).__dict__) == (Open(3), {"value": 3})


COUNT = """
import builtins, sys
compiled = []
plain = builtins.exec
builtins.exec = lambda source, *rest: (compiled.append(source), plain(source, *rest))[1]
from MODULE import dataclass
for _ in range(10):
    @dataclass(frozen=True, slots=True)
    class Record:
        a: int
        b: str = ""
print(sum(source.count("def ") for source in compiled if isinstance(source, str)))
"""


def test_one_function_is_compiled_where_the_standard_library_compiles_several() -> None:
    def compiled(module: str) -> int:
        source = COUNT.replace("MODULE", module)
        done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
        return int(done.stdout)

    assert compiled("tracekit.model.records") < compiled("dataclasses")


def test_every_file_of_tracekit_takes_the_quick_one() -> None:
    package = Path(tracekit.__file__).parent
    for path in sorted(package.rglob("*.py")):
        standard = re.search(r"^from dataclasses import .*\bdataclass\b", path.read_text(), re.MULTILINE)
        assert standard is None, f"{path}: import it from tracekit.model.records"
