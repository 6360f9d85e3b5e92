"""Report outputs: targets are parsed and checked before the analysis, and written after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit.cli import terminal
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.system.files import check_writable, write_atomically
from tracekit.render import find_renderer, get_format_of_path, refuse_without_library, render

STANDARD_OUTPUT = "-"
_TEXT_FORMATS = ("text", "md")


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """One output: its format and its path, `-` for standard output."""

    format: str
    path: str

    @property
    def printed(self) -> bool:
        """Whether it goes to standard output."""
        return self.path == STANDARD_OUTPUT


def parse_output(path: str) -> OutputTarget:
    """Parse `-o FILE`, with the format of its suffix; raises if the file cannot be written."""
    if path == STANDARD_OUTPUT:
        raise TracekitError("-o -: no format is named", "--export json=- prints JSON")
    name = get_format_of_path(path)
    if find_renderer(name).files:
        folder = Path(path).with_suffix("")
        raise TracekitError(
            f"{path}: {name} is one file a table, and needs a directory",
            f"--export {name}={folder} (tracekit render: -f {name} -o {folder})",
        )
    check_writable(path)
    return OutputTarget(name, path)


def parse_export(text: str) -> OutputTarget:
    """Parse `--export KIND=PATH`; raises if the path cannot be written."""
    name, equals, path = text.partition("=")
    if not (equals and path):
        raise TracekitError(f"--export {text}: not KIND=PATH", "--export csv=tables/")
    refuse_without_library(name)
    if not find_renderer(name).files:
        if path != STANDARD_OUTPUT:
            check_writable(path)
        return OutputTarget(name, path)
    if path == STANDARD_OUTPUT:
        raise TracekitError(f"{name} is one file a table: name a directory", f"{name}=tables/")
    _refuse_unusable_folder(Path(path))
    return OutputTarget(name, path)


def parse_json_paths(exports: Sequence[str], *, as_json: bool) -> list[str]:
    """Parse `--export json=PATH` and `--json` into paths, for a command that only exports JSON."""
    paths = [STANDARD_OUTPUT] * as_json
    for text in exports:
        name, _, path = text.partition("=")
        if name != "json" or not path:
            raise TracekitError(f"--export {text}: only json is written here", "--export json=-")
        if path != STANDARD_OUTPUT:
            check_writable(path)
        paths.append(path)
    return list(dict.fromkeys(paths))


def write_json_outputs(text: str, paths: Sequence[str], *, quiet: bool = False) -> None:
    """Write the text to all these files, or print it for `-`."""
    for path in paths:
        if path == STANDARD_OUTPUT:
            terminal.write_output(text.encode("utf-8"))
        else:
            write_atomically(path, text.encode("utf-8"))
            if not quiet:
                terminal.print_message(f"wrote {path}")


def add_text_output(targets: Sequence[OutputTarget], *, quiet: bool) -> list[OutputTarget]:
    """Add the text on standard output in front, unless another target is printed or `quiet` is set.

    Raises `TracekitError` if several targets go to standard output.
    """
    printed = [target.format for target in targets if target.printed]
    if len(printed) > 1:
        raise TracekitError(f"standard output can take one of {', '.join(printed)}", "name files for the others")
    if printed or quiet:
        return list(targets)
    return [OutputTarget("text", STANDARD_OUTPUT), *targets]


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
    from tracekit.render.charts import images as plots

    _refuse_unusable_folder(Path(folder))
    plots.import_matplotlib()


def write_plots(report: Report, folder: str) -> int:
    """Write the report's charts to `folder` and return their number; other files there stay."""
    from tracekit.render.charts import images as plots

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
