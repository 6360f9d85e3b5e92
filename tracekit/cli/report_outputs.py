"""Report outputs: targets are parsed and checked before the analysis, and written after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from tracekit.cli import terminal
from tracekit.cli.options import RequestedOutputs, refuse_format
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.system.files import check_writable, write_atomically
from tracekit.model.text.labels import did_you_mean
from tracekit.render import RENDERERS, refuse_without_library, render

STANDARD_OUTPUT, STANDARD_ERROR = "-", "standard error"
JUNIT, GITHUB = "junit", "github"

_TEXT_FORMATS = ("text", "md")
_SUFFIXES = {suffix: renderer.name for renderer in RENDERERS for suffix in renderer.suffixes}
_SUFFIXES |= {".xml": JUNIT, ".gz": "perfetto", ".tkm": "tkm"}
_FURTHER_SUFFIXES = {("perfetto", ".json"), (GITHUB, ".txt"), ("openmetrics", ".txt")}
"""Suffixes that a format may have, although another format has them by default."""
_NEVER_PRINTED = {"parquet": "rows.parquet", "perfetto": "timeline.json.gz", "tkm": "run.tkm"}
"""Formats that only go to a file, each with an example of one."""


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """One output: its format and its path, `-` for standard output."""

    format: str
    path: str

    @property
    def printed(self) -> bool:
        """Whether it is written to standard output."""
        return self.path == STANDARD_OUTPUT

    @property
    def width(self) -> int | None:
        """Width of its terminal; None for files and pipes."""
        return terminal.get_page_width()[0] if self.printed else None


def list_targets(requested: RequestedOutputs, *, quiet: bool = False) -> list[OutputTarget]:
    """List all requested outputs, with the text on standard output in front.

    The text is left out if another target is printed, with `quiet`, or if files replace it. Raises `TracekitError` if
    a target cannot be written, or if several go to standard output.
    """
    targets = [_parse_output(path, requested) for path in requested.files]
    targets += [_parse_export(text, requested) for text in requested.exports]
    if requested.format and not requested.files:
        targets.append(make_target(requested.format, STANDARD_OUTPUT, requested))
    targets = list(dict.fromkeys(targets))
    printed = [target.format for target in targets if target.printed]
    if len(printed) > 1:
        raise TracekitError(f"standard output can take one of {', '.join(printed)}", "name files for the others")
    if printed or quiet or (targets and requested.is_moved):
        return targets
    return [OutputTarget("text", STANDARD_OUTPUT), *targets]


def make_target(name: str, path: str, requested: RequestedOutputs) -> OutputTarget:
    """Make a target; raises `TracekitError` if the command cannot write the format, or the path cannot be written."""
    if name not in requested.formats:
        raise TracekitError(*refuse_format(name, requested.formats, click.get_current_context().command_path))
    if any(name == renderer.name for renderer in RENDERERS):
        refuse_without_library(name)
    if name in requested.folders:
        if path == STANDARD_OUTPUT:
            raise TracekitError(f"{name} writes one file per table: name a directory", f"--format {name} -o tables/")
        _refuse_unusable_folder(Path(path))
    elif path != STANDARD_OUTPUT:
        check_writable(path)
    elif name in _NEVER_PRINTED:
        raise TracekitError(f"{name} needs a file", f"-o {_NEVER_PRINTED[name]}")
    elif name == GITHUB:
        path = STANDARD_ERROR
    return OutputTarget(name, path)


def _parse_output(path: str, requested: RequestedOutputs) -> OutputTarget:
    """Parse `-o FILE`, in the format of `--format` or of its suffix."""
    if requested.format is not None:
        _refuse_other_suffix(path, requested.format, f"-o {path} and --format {requested.format}")
        return make_target(requested.format, path, requested)
    name = _get_format_of_suffix(path, requested)
    if name in requested.folders:
        folder = Path(path).with_suffix("")
        raise TracekitError(
            f"{path}: {name} writes one file per table, and needs a directory", f"--format {name} -o {folder}"
        )
    return make_target(name, path, requested)


def _refuse_other_suffix(path: str, name: str, typed: str) -> None:
    """Raise a usage error if the suffix of a path names another format than `name`; `typed` is the text that names both."""
    suffix = _find_suffix(path)
    if _SUFFIXES.get(suffix, name) != name and (name, suffix) not in _FURTHER_SUFFIXES:
        raise click.UsageError(f"{typed} name two formats")


def check_saved_path(path: str) -> None:
    """Raise `TracekitError` unless measurements can be saved at `path`: its suffix is `.tkm`, or it is a device."""
    check_writable(path)
    target = Path(path)
    if target.suffix.lower() == ".tkm" or (target.exists() and not target.is_file()):
        return
    format_ = _SUFFIXES.get(_find_suffix(path))
    hint = f"--save {target.with_suffix('.tkm')}"
    if format_ is not None and format_ != "perfetto":
        hint += f"; -o {path} writes the report"
    raise TracekitError(f"--save {path}: saved measurements are a .tkm file", hint)


def _find_suffix(path: str) -> str:
    """Find the suffix that names a format; of a packed file both suffixes, unless it is packed JSON."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    if suffixes[-1:] == [".gz"] and _SUFFIXES.get(suffixes[0], "json") != "json":
        return "".join(suffixes)
    return "".join(suffixes[-1:])


def _get_format_of_suffix(path: str, requested: RequestedOutputs) -> str:
    """Get the format that the suffix of a path names; raises `TracekitError` with the known suffixes."""
    suffix = _find_suffix(path)
    name = _SUFFIXES.get(suffix)
    if name in requested.formats:
        return name
    if requested.fallback and name is None:
        return requested.fallback
    if path == STANDARD_OUTPUT:
        raise TracekitError("-o -: no format is named", "--format json prints JSON")
    suffixes = [known for known, format_ in _SUFFIXES.items() if format_ in requested.formats]
    near = did_you_mean(suffix, suffixes)
    raise TracekitError(f"{path}: no output format ends in {suffix!r}{near}", f"there are: {' '.join(suffixes)}")


def _parse_export(text: str, requested: RequestedOutputs) -> OutputTarget:
    """Parse `--export KIND=PATH`."""
    name, equals, path = text.partition("=")
    if not (equals and path):
        raise TracekitError(f"--export {text}: not KIND=PATH", "--export json=report.json")
    if name in requested.formats:
        _refuse_other_suffix(path, name, f"the kind and the suffix of --export {text}")
    return make_target(name, path, requested)


def write_results(
    targets: Sequence[OutputTarget], make_output: Callable[[OutputTarget], str | bytes], *, quiet: bool = False
) -> None:
    """Write the result of `make_output` for each target, and print which files were written unless `quiet`."""
    for target in targets:
        output = make_output(target)
        if target.printed:
            is_text = isinstance(output, str) and target.format in _TEXT_FORMATS
            terminal.write_output(output if is_text or isinstance(output, bytes) else output.encode("utf-8"))
            continue
        write_atomically(target.path, output if isinstance(output, bytes) else output.encode("utf-8"))
        if not quiet:
            terminal.print_message(f"wrote {target.path}")


def write_report(report: Report, target: OutputTarget, *, top: int, verbose: bool) -> None:
    """Write the report to the target."""
    width, color = terminal.get_page_width() if target.printed else (None, False)
    output = render(report, target.format, top=top, verbose=verbose, width=width, color=color)
    if isinstance(output, dict):
        folder = Path(target.path)
        _create_folder(folder)
        for name, data in output.items():
            write_atomically(folder / name, data)
    elif target.printed:
        if isinstance(output, str) and target.format not in _TEXT_FORMATS:
            output = output.encode("utf-8")
        terminal.write_output(output)
    else:
        write_atomically(target.path, output.encode() if isinstance(output, str) else output)


def refuse_plots(folder: str) -> None:
    """Raise `TracekitError` if charts cannot be drawn, or not be written to `folder`."""
    from tracekit.render.plots import images as plots

    _refuse_unusable_folder(Path(folder))
    plots.import_matplotlib()


def write_plots(report: Report, folder: str) -> int:
    """Write the report's charts to `folder` and return their number; other files there stay."""
    from tracekit.render.plots import images as plots

    _create_folder(Path(folder))
    count = 0
    for name, data in plots.paint_report_charts(report):
        write_atomically(Path(folder) / name, data)
        count += 1
    return count


def _refuse_unusable_folder(folder: Path) -> None:
    """Raise `TracekitError` if `folder` can be neither used nor created."""
    if folder.exists() and not folder.is_dir():
        raise TracekitError(f"{folder}: is a file, and a directory is wanted", "name another")
    check_writable(folder / "any" if folder.exists() else folder)


def _create_folder(folder: Path) -> None:
    """Create `folder` unless it exists."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise TracekitError(f"{folder}: cannot be made: {error.strerror}", "choose another place") from error
