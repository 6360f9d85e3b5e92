"""A `dataclass` decorator that takes a quarter of the standard library's time; about 200 classes are made at each start.

For a frozen class with slots, the standard library (Python 3.11 to 3.13) compiles seven functions one by one, which
takes 0.5 ms. This one compiles only `__init__`; the other functions need just the names of the fields.
`fields`, `replace`, `asdict`, equality, hash, repr, pickling and `FrozenInstanceError` behave as in the standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

OWN = {"frozen", "slots", "eq", "repr"}
"""Options of the classes that are made here; others are passed on to the standard library."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know the standard one
else:

    def dataclass(cls: type | None = None, **options: bool) -> Any:
        """Make the class a dataclass like `dataclasses.dataclass`; without a class, make a decorator."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        is_plain = not any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
        if is_plain and options.get("frozen") and options.get("slots") and options.keys() <= OWN:
            return _make_frozen_class(cls, options.get("eq", True), options.get("repr", True))
        return dataclasses.dataclass(cls, **options)


def _make_frozen_class(cls: type, has_values: bool, is_shown: bool) -> type:
    """Make a frozen dataclass with slots; functions that the class defines itself are kept."""
    made: Any = dataclasses.dataclass(cls, init=False, eq=False, repr=False, slots=True)
    fields = dataclasses.fields(made)
    names = [field.name for field in fields]
    all_values = _make_value_getter(names)
    functions: dict[str, Any] = {
        "__getstate__": lambda record: list(all_values(record)),
        "__setstate__": _make_setstate([vars(made)[name].__set__ for name in names]),
    }
    if is_shown:
        functions["__repr__"] = _format_record
    if has_values:
        values = _make_value_getter([field.name for field in fields if field.compare])
        functions |= {"__eq__": _make_eq(values), "__hash__": lambda record: hash(values(record))}
    for name, function in functions.items():
        if vars(cls).get(name) is None:
            setattr(made, name, function)
    made.__init__ = _compile_init(fields, has_more=hasattr(cls, "__post_init__"))
    made.__setattr__ = made.__delattr__ = _refuse_assignment
    made.__dataclass_params__.frozen = True
    return made  # type: ignore[no-any-return]


def _compile_init(fields: tuple[dataclasses.Field[Any], ...], *, has_more: bool) -> Callable[..., None]:
    """Compile the `__init__` function."""
    missing = dataclasses.MISSING
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": missing}
    parameters, lines = ["self"], []
    for field in fields:
        parameter = value = field.name
        default = f"_default_{field.name}"
        if field.default is not missing:
            known[default] = field.default
            parameter = f"{field.name}={default}"
        elif field.default_factory is not missing:
            known[default] = field.default_factory
            parameter = f"{field.name}=_missing"
            value = f"{default}() if {field.name} is _missing else {field.name}"
        if field.init:
            parameters.append(parameter)
        else:
            value = default if field.default is not missing else f"{default}()"
        lines.append(f"    _set(self, {field.name!r}, {value})")
    if has_more:
        lines.append("    self.__post_init__()")
    source = "\n".join([f"def __init__({', '.join(parameters)}):", *lines, "    pass"])
    exec(source, known)  # noqa: S102 - made from the names of our own fields
    init: Callable[..., None] = known["__init__"]
    return init


def _make_value_getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Make a function that reads the values of these fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _make_eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    """Make an `__eq__` function that compares these values."""

    def equal(record: Any, other: object) -> Any:
        if other.__class__ is not record.__class__:
            return NotImplemented
        return values(record) == values(other)

    return equal


@recursive_repr()
def _format_record(record: Any) -> str:
    """Format an object like the standard `__repr__`: class name and fields."""
    values = [f"{f.name}={getattr(record, f.name)!r}" for f in dataclasses.fields(record) if f.repr]
    return f"{type(record).__qualname__}({', '.join(values)})"


def _refuse_assignment(_record: Any, name: str, *_value: Any) -> NoReturn:
    """Raise `FrozenInstanceError`: fields can be neither assigned nor deleted."""
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _make_setstate(setters: list[Callable[[Any, Any], None]]) -> Callable[[Any, list[Any]], None]:
    """Make a `__setstate__` function that sets the slots directly, because the frozen class refuses assignment."""

    def fill(record: Any, state: list[Any]) -> None:
        for set_value, value in zip(setters, state, strict=True):
            set_value(record, value)

    return fill
