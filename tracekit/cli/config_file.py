"""Options of `analyze` from the table `[analyze]` of `tracekit.toml`; the command line takes precedence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import click

from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import did_you_mean

FILE_NAME = "tracekit.toml"

_TABLES = ("analyze", "gate", "tool")
_REFUSED = {
    "question": "it runs code, so only the command line can name it",
    "no-config": "a file cannot exclude itself",
    "help": "it is not a setting",
}
_PATH = "tracekit.config"


def _load_options(ctx: click.Context, _parameter: click.Parameter, is_excluded: bool) -> None:
    """Take the options of the nearest file as defaults of the command."""
    path = None if is_excluded or ctx.resilient_parsing else find_config_file(Path.cwd())
    if path is None:
        return
    table = _read_toml_file(path).get("analyze", {})
    if not isinstance(table, Mapping):
        raise TracekitError(f"{path}: analyze is not a table", "write [analyze]")
    try:
        ctx.default_map = {**(ctx.default_map or {}), **_parse_options(table, ctx)}
    except TracekitError as error:
        raise TracekitError(f"{path}: [analyze] {error.problem}", error.hint) from None
    ctx.meta[_PATH] = path


config = click.option(
    "--no-config",
    "reads_config",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_load_options,
    help=f"Do not read options from [analyze] in {FILE_NAME}.",
)
"""The option of a command that reads options from a file."""


def get_config_path() -> Path | None:
    """Get the file that the running command took options from; None if it took none."""
    path: Path | None = click.get_current_context().meta.get(_PATH)
    return path


def find_config_file(start: Path) -> Path | None:
    """Find the nearest file with `[analyze]`, from `start` up to the root of its repository.

    Outside a repository only `start` counts: a file of another user above it must not set options.
    """
    folders = [start, *start.parents]
    root = next((place for place, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    for folder in folders[: root + 1]:
        path = folder / FILE_NAME
        if path.is_file() and "analyze" in _read_toml_file(path):
            return path
    return None


def _read_toml_file(path: Path) -> Mapping[str, object]:
    """Read a TOML file; raises `TracekitError` for an unknown table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TracekitError(
            f"{path}: cannot be read: {error.strerror or error}", "fix it, or use --no-config"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TracekitError(f"{path}: not TOML: {error}", "fix it, or use --no-config") from error
    for name in content:
        if name not in _TABLES:
            near = did_you_mean(name, _TABLES)
            raise TracekitError(f"{path}: unknown key {name!r}{near}", f"there are: {', '.join(_TABLES)}")
    return content


def _parse_options(table: Mapping[str, object], ctx: click.Context) -> dict[str, object]:
    """Parse a table into defaults by parameter name; raises `TracekitError` for unknown keys and unfit values."""
    options = {
        flag.removeprefix("--"): option
        for option in ctx.command.get_params(ctx)
        if isinstance(option, click.Option)
        for flag in option.opts
        if flag.startswith("--")
    }
    known = [name for name in options if name not in _REFUSED]
    defaults: dict[str, object] = {}
    for key, value in table.items():
        if key in _REFUSED:
            raise TracekitError(f"{key} cannot be set here: {_REFUSED[key]}", f"remove {key}")
        if key not in options:
            raise TracekitError(f"unknown key {key!r}{did_you_mean(key, known)}", f"there are: {', '.join(known)}")
        defaults[str(options[key].name)] = _parse_value(options[key], key, value, ctx)
    return defaults


def _parse_value(option: click.Option, key: str, value: object, ctx: click.Context) -> object:
    """Parse the value of one key as the command line would."""
    if option.is_flag != isinstance(value, bool):
        wanted = "true or false" if option.is_flag else "a value, not true or false"
        raise TracekitError(f"{key} takes {wanted}", f"{key} = {'true' if option.is_flag else '…'}")
    if isinstance(value, list) and not option.multiple:
        raise TracekitError(f"{key} takes one value, not a list", f'{key} = "…"')
    if option.multiple and not isinstance(value, list):
        value = [value]
    try:
        option.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise TracekitError(f"{key}: {error.message}", f"tracekit analyze --help explains --{key}") from None
    return value
