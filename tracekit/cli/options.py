"""Options shared by several commands, each declared once.

A command lists its options in help order. `reading` and `statistics` pass it one value each, `options` and `choices`,
instead of a parameter per option.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tracekit.cli import terminal
from tracekit.cli.completions import complete_exports, complete_names, list_question_ids
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.render import RENDERERS

if TYPE_CHECKING:
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.pipeline.options import Options

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

_MAX_WORK = 1e15


class WholeNumber(click.IntRange):
    """A whole number with bounds; an error names the violated bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a number, or raise `BadParameter`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(_describe_violation(self, value, "a whole number"), param, ctx)


class Number(click.FloatRange):
    """A number with bounds; an error names the violated bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a number, or raise `BadParameter`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(_describe_violation(self, value, "a number"), param, ctx)


def _describe_violation(bounds: click.IntRange | click.FloatRange, value: Any, kind: str) -> str:
    """Describe the bound that a value violates, or that it is not of this kind."""
    wanted = kind
    low, high = bounds.min, bounds.max
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if low is not None and (number < low or (bounds.min_open and number == low)):
            wanted = f"above {low:g}" if bounds.min_open else f"at least {low:g}"
        elif high is not None and number > high:
            wanted = f"at most {high:g}"
    return f"must be {wanted}, not {value}"


def _check_ranges(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check numbers and ranges such as `0,2,8-15`; raises `TracekitError` with the option."""
    if value is not None:
        from tracekit.discover import parse_numbers

        try:
            parse_numbers(value)
        except TracekitError as error:
            raise TracekitError(f"{parameter.opts[0]}: {error.problem}", error.hint) from None
    return value


ranks = click.option("--ranks", callback=_check_ranges, metavar="SPEC", help="Only these ranks: 0,2,8-15.")
sample = click.option(
    "--sample",
    type=WholeNumber(min=1),
    metavar="K",
    help="Read only K ranks, spread over all. A straggler among the others is missed.",
)
steps = click.option("--steps", callback=_check_ranges, metavar="SPEC", help="Only these steps: 3,10-20.")
stages = click.option("--stages", multiple=True, metavar="GLOB", help="Only these stages. Repeatable.")
exclude = click.option("--exclude", multiple=True, metavar="GLOB", help="Skip files whose name matches. Repeatable.")
jobs = click.option(
    "-j",
    "--jobs",
    type=WholeNumber(min=1),
    metavar="N",
    help="Files read in parallel [default: one per core, as memory allows].",
)
cache = click.option(
    "--cache/--no-cache",
    default=True,
    help="Cache the measurements of each file, and reuse them while it is unchanged [default: --cache].",
)
device_memory = click.option(
    "--device-memory",
    metavar="SIZE",
    help="Memory of each GPU (80GiB), for peaks as a share of it and steps until OOM [default: as recorded].",
)
gpu_hour_price = click.option(
    "--gpu-hour-price",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PRICE",
    help="Price of one GPU-hour, for the cost of stages and findings of a run's log.",
)
drop_first = click.option(
    "--drop-first",
    type=WholeNumber(min=0),
    metavar="N",
    help="Drop the first N steps of every run [default: the detected warm-up steps].",
)
top = click.option(
    "--top",
    type=WholeNumber(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Rows to show per table.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    callback=terminal.set_verbose,
    help="Show all sections; on an error, show the stack. --top sets the rows per table.",
)


def add_paths(metavar: str = "PATH...", *, required: bool = True) -> Decorator:
    """Add the arguments of a command that reads profiles."""
    return click.argument("paths", nargs=-1, required=required, type=click.Path(), metavar=metavar)


def require_paths(paths: Sequence[str], on_every_node: Sequence[str], name: str) -> None:
    """Raise click's usage error if neither a path nor a pattern was given."""
    if not paths and not on_every_node:
        raise click.UsageError(f"Missing argument '{name}...'.")


REPORT_FORMATS = tuple(renderer.name for renderer in RENDERERS)
COMPARISON_FORMATS = (*REPORT_FORMATS, "junit", "github")
EXPORT_FORMATS = ("perfetto", *COMPARISON_FORMATS, "tkm")
FOLDER_FORMATS = tuple(renderer.name for renderer in RENDERERS if renderer.files)
"""Formats of a report that are a folder with one file per table."""
LIST_FORMATS = ("text", "json", "csv", "md")
"""Formats of a command that lists rows."""


@dataclass(frozen=True, slots=True)
class RequestedOutputs:
    """Requested outputs of a command: `-o`, `--export` and `--format`, and the formats that the command can write.

    `folders` are those formats that need a folder. With `is_moved`, a file replaces the output on the screen. `fallback` is
    the format of a file whose suffix names none.
    """

    files: tuple[str, ...]
    exports: tuple[str, ...]
    format: str | None
    formats: tuple[str, ...]
    folders: tuple[str, ...] = ()
    is_moved: bool = False
    fallback: str | None = None


class ResultFormat(click.Choice[str]):
    """The formats that a command can write, by name or suffix; any other is refused by a sentence that lists them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the format, or raise `TracekitError`."""
        value = next((one.name for one in RENDERERS if f".{value}" in one.suffixes), value)
        if value not in self.choices:
            command = "tracekit" if ctx is None else ctx.command_path
            raise TracekitError(*refuse_format(str(value), self.choices, command))
        return super().convert(value, param, ctx)


def refuse_format(name: str, formats: Sequence[str], command: str) -> tuple[str, str]:
    """Describe that a command cannot write a format, as (problem, hint)."""
    from tracekit.model.text.labels import did_you_mean

    if name in EXPORT_FORMATS:
        return f"{command} cannot write {name}", f"it writes {', '.join(formats)}"
    return f"no output format {name!r}{did_you_mean(name, formats)}", f"there are: {', '.join(formats)}"


def _combine_format(parameters: Mapping[str, Any]) -> str | None:
    """Combine `--format` and its alias `--json`; raises a usage error if they differ.

    A format of the configuration file gives way to `--json` and to `-o` on the command line.
    """
    context = click.get_current_context()
    name: str | None = parameters["format_"]
    if context.get_parameter_source("format_") is ParameterSource.DEFAULT_MAP:
        is_overruled = ParameterSource.COMMANDLINE in map(context.get_parameter_source, ("files", "as_json"))
        name = None if is_overruled else name
    if not parameters["as_json"]:
        return name
    if name not in (None, "json"):
        raise click.UsageError(f"--json and --format {name} name two formats")
    return "json"


def add_results(
    thing: str,
    formats: tuple[str, ...] = LIST_FORMATS,
    *,
    exports: str = "",
    folders: tuple[str, ...] = (),
    is_moved: bool = False,
    fallback: str | None = None,
    flags: tuple[str, ...] = ("--format",),
) -> Decorator:
    """Add `-o`, `--format` and `--json`, which the command receives as `requested`.

    `exports` describes the kinds of `--export KIND=PATH`, which is hidden where empty.
    """

    def make_request(parameters: Mapping[str, Any]) -> RequestedOutputs:
        format_ = _combine_format(parameters)
        files, kinds = parameters["files"], parameters["exports"]
        return RequestedOutputs(files, kinds, format_, formats, folders, is_moved, fallback)

    also, several = ("Write the", "") if is_moved else ("Also write the", " Repeatable.")
    return chain_decorators(
        collect_options("requested", make_request, ("files", "exports", "format_", "as_json")),
        click.option(
            "-o",
            "--output",
            "files",
            multiple=True,
            type=click.Path(),
            metavar="FILE",
            help=f"{also} {thing} to FILE. The suffix sets the format.{several}",
        ),
        click.option(
            *flags,
            "format_",
            type=ResultFormat(formats),
            metavar="FORMAT",
            help=f"Print the {thing} as {join_choices(formats)}; with -o, the format of FILE.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Same as --format json."),
        click.option(
            "--export",
            "exports",
            multiple=True,
            metavar="KIND=PATH",
            shell_complete=complete_exports(formats),
            hidden=not exports,
            help=f"Also write the {thing} as KIND: {exports}. Repeatable.",
        ),
    )


def join_choices(choices: Sequence[str]) -> str:
    """Join choices with commas, and the last with `or`.

    >>> join_choices(["text", "json", "md"])
    'text, json or md'
    """
    *leading, last = choices
    return f"{', '.join(leading)} or {last}" if leading else last


def add_strict(case: str = "any file could not be read") -> Decorator:
    """Add `--strict`: exit status 2 in this case."""
    return click.option("--strict", is_flag=True, help=f"Exit with status 2 if {case}.")


def chain_decorators(*decorators: Decorator) -> Decorator:
    """Combine several decorators, in the order in which they would be written above a command."""

    def decorated(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


def collect_options(name: str, value_of: Callable[[Mapping[str, Any]], Any], fields: Sequence[str]) -> Decorator:
    """Make a decorator that passes the command one value, `value_of` all parameters, instead of the `fields`."""

    def decorated(command: Command) -> Command:
        @wraps(command)
        def with_value(**given: Any) -> Any:
            remaining = {field: value for field, value in given.items() if field not in fields}
            return command(**remaining, **{name: value_of(given)})

        return with_value

    return decorated


selection = chain_decorators(ranks, sample, steps, stages, exclude)

questions = chain_decorators(
    click.option(
        "--only",
        "questions",
        multiple=True,
        metavar="QUESTION",
        shell_complete=complete_names(list_question_ids),
        help="Answer only this question, by the id of its section (kernels). Repeatable.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="QUESTION",
        shell_complete=complete_names(list_question_ids),
        help="Skip this question. Repeatable.",
    ),
    click.option(
        "--question",
        "question_files",
        multiple=True,
        type=click.Path(),
        metavar="FILE.py",
        help="Also run the question in this Python file. Repeatable.",
    ),
)

cluster = chain_decorators(
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Read here, or with Ray on the nodes that have the files (needs ray).",
    ),
    click.option("--ray-address", metavar="ADDR", help="Ray cluster [default: RAY_ADDRESS, else a new local one]."),
    click.option(
        "--on-every-node",
        multiple=True,
        metavar="PATTERN",
        help="With Ray: read PATTERN on each node; ~ and $VARIABLES expand there. Repeatable.",
    ),
)


class Percent(Number):
    """A number of per cent, with or without the sign."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a number of per cent."""
        number: Any = value.rstrip(" %") if isinstance(value, str) else value
        return super().convert(number, param, ctx)


_WORK = {
    "tokens": "Tokens per step{}: adds time per token and tokens/s.",
    "samples": "Samples per step.",
    "images": "Images per step.",
}

work = chain_decorators(
    *(
        click.option(f"--{name}", type=Number(min=0, min_open=True, max=_MAX_WORK), metavar="N", help=text.format(""))
        for name, text in _WORK.items()
    )
)
"""The amount of work per step of a profile."""


def _get_both_work(parameters: Mapping[str, Any]) -> dict[str, str | None]:
    """Get the work of both sides by name, as typed."""
    return {name: parameters[f"both_{name}"] for name in _WORK}


work_of_two = chain_decorators(
    collect_options("both_work", _get_both_work, [f"both_{name}" for name in _WORK]),
    *(
        click.option(f"--{name}", f"both_{name}", metavar="N[,N]", help=text.format(", or before,after"))
        for name, text in _WORK.items()
    ),
)
"""The amount of work per step of two sides, as texts: one number, or before and after."""

_READING_OPTIONS = (
    "ranks",
    "sample",
    "steps",
    "stages",
    "exclude",
    "jobs",
    "cache",
    "engine",
    "ray_address",
    "on_every_node",
    "device_memory",
    "gpu_hour_price",
    "questions",
    "skip",
    "question_files",
)
_STATISTICS_OPTIONS = ("drop_first", "min_effect", "level", "paired", "assume_independent_steps", "force")


def _make_reading_options(parameters: Mapping[str, Any]) -> Options:
    """Make the options of reading; progress is shown by commands that have --quiet, unless it is given."""
    from tracekit.pipeline.options import parse_options

    counts = {name: parameters[name] for name in _WORK if parameters.get(name) is not None}
    # Treat repeatable options that were not given like the others: None.
    stated = {name: parameters.get(name) for name in _READING_OPTIONS if parameters.get(name) != ()}
    shows_progress = not parameters.get("quiet", True)
    if shows_progress:
        from tracekit.discover import fetched

        fetched.watchers[:] = [terminal.show_fetching]
    return parse_options({**stated, "work": counts, "progress": shows_progress})


def _make_statistics_choices(parameters: Mapping[str, Any]) -> ComparisonChoices:
    """Make the choices of a comparison; percentages become fractions."""
    from tracekit.compare.changes import ComparisonChoices

    stated = {name: parameters[name] for name in _STATISTICS_OPTIONS if name in parameters}
    stated |= {name: stated[name] / 100 for name in ("min_effect", "level") if name in stated}
    return ComparisonChoices(**stated)


reading = collect_options("options", _make_reading_options, (*_READING_OPTIONS, *_WORK))
statistics = collect_options("choices", _make_statistics_choices, _STATISTICS_OPTIONS)
