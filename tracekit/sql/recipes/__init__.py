"""Named SQL recipes: one `.sql` file each, whose first line states the question it answers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import did_you_mean

_SUFFIX = ".sql"


@cache
def list_recipes() -> tuple[str, ...]:
    """List the names of all recipes in order."""
    names = sorted(path.name for path in files(__name__).iterdir())
    return tuple(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def read_recipe(name: str, hint: str = "tracekit sql --recipes lists them") -> str:
    """Return the statement of a recipe; raise `TracekitError` with this hint if there is none of the name."""
    if name not in list_recipes():
        near = did_you_mean(name, list_recipes())
        raise TracekitError(f"no recipe {name!r}{near}", hint)
    return (files(__name__) / f"{name}{_SUFFIX}").read_text("utf-8").strip()


def read_recipe_question(name: str) -> str:
    """Read a recipe's question: its first line."""
    return read_recipe(name).splitlines()[0].removeprefix("--").strip()
