"""Exports of reports by the installed `nsys`, cached by content: each report is exported once, never into the user's folder.

A reader holds its export while it reads; `model.system.cache` describes location and eviction.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tracekit.discover.contents import digest_content
from tracekit.discover.nsys_files import get_export_path
from tracekit.model.errors import TraceFormatError, TracekitError, make_format_error
from tracekit.model.inputs.note_codes import Data, Reason, explain_os_error
from tracekit.model.records import dataclass
from tracekit.model.system import cache
from tracekit.model.system.lifetime import guarded_programs
from tracekit.model.system.temporaries import IN_TMPDIR, new_folder
from tracekit.model.text.labels import make_displayable
from tracekit.readers.nsys.files import find_export_problem, is_whole_report, read_report_version

PROGRAM_VARIABLE = "TRACEKIT_NSYS"
EXPORT_NAME = "export.sqlite"

TIME_LIMIT_S = 600.0
"""Time limit of one export in seconds, plus one second per megabyte. Reports of 1 GB took eight minutes."""
QUESTION_LIMIT_S = 60.0
"""Seconds that nsys may take to print its version."""
FRESH_S = 30.0
"""Seconds after its last change during which a report may still be being written."""

_WITH_BLOBS = (2026, 1)
"""First release known to export payloads. 2024.2 rejects the option."""
_SAID_BYTES = 1 << 14
_NOT_RUN = (126, 127)
"""Exit statuses of a shell, and of the loader, for a program that they cannot start."""
_LONGEST = 200
_LATER = "run it again when the run has ended"
_NO_EXPORT = Reason("no-export", "no export was made")
_NUMBER = re.compile(r"([0-9]{4}(?:\.[0-9]{1,9}){1,3})")
_NEWER = re.compile(r"newer than|version number is invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NsysProgram:
    """An installed nsys: path, reported version, and whether it can export NVTX payloads."""

    path: str
    version: str
    takes_blobs: bool


def find_nsys_program() -> NsysProgram | None:
    """Find nsys: `$TRACEKIT_NSYS`, else PATH. None if not installed.

    Raises `TracekitError` if the variable does not name a program or nsys does not answer.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    program_path = shutil.which(named or "nsys")
    if program_path is None:
        if named:
            raise TracekitError(
                f"{PROGRAM_VARIABLE}={make_displayable(named)}: no program of that name can be run",
                "name the nsys program itself, or unset the variable",
            )
        return None
    return _query_nsys_program(os.path.abspath(program_path))  # noqa: PTH100 - a link's name may matter to it


def export_report(report: Path, nsys: NsysProgram, folder: Path) -> Path:
    """Export `report` with `nsys` into `folder`, which must be private and empty.

    Raises `TraceFormatError` with nsys's message if the export fails or takes too long.
    """
    before = report.stat()
    target = folder / EXPORT_NAME
    limit_s = TIME_LIMIT_S + before.st_size / 1e6
    output = _run_nsys_export(nsys, folder, _link_report(report, folder), limit_s)
    if output is None:
        text = f"nsys {nsys.version} took longer than {limit_s / 60:.0f} min to export it and was stopped"
        reason = Reason("export-timeout", text, Data(version=nsys.version, limit_s=limit_s))
        raise make_format_error(report, reason, f"export it yourself: {command(report)}")
    problem = find_export_problem(target) if target.exists() else _NO_EXPORT
    if problem is not None:
        raise _build_export_error(report, nsys, output or problem.text)
    after = report.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        reason = Reason("changed-meanwhile", "it changed while nsys read it")
        raise make_format_error(report, reason, _LATER)
    return target


def build_no_nsys_error(report: Path) -> TraceFormatError:
    """Build the error for a report that cannot be exported because nsys is not installed."""
    version = read_report_version(report)
    wrote = f" (nsys {_format_nsys_version(version)} wrote it)" if version else ""
    text = f"a report of Nsight Systems{wrote}, and there is no nsys here to export it"
    hint = f"put nsys on PATH (or name it in {PROGRAM_VARIABLE}), or run where it is: {command(report)}"
    return make_format_error(report, Reason("no-nsys", text, Data(wrote=_format_nsys_version(version))), hint)


def command(report: Path) -> str:
    """Format the nsys command that exports a report to where tracekit finds it."""
    target = shlex.quote(make_displayable(get_export_path(report).name))
    version = read_report_version(report)
    include = " --include-blobs=true" if version and version >= _WITH_BLOBS else ""
    return f"nsys export --type sqlite{include} -o {target} {shlex.quote(make_displayable(report.name))}"


@functools.cache
def _query_nsys_program(path: str) -> NsysProgram:
    """Query the program's version and options. Cached per process."""
    version = _ask_nsys(path, "--version")
    number = _NUMBER.search(version)
    options = _ask_nsys(path, "export", "--help")
    return NsysProgram(path, number[1] if number else "unknown", "--include-blobs" in options)


def _ask_nsys(path: str, *arguments: str) -> str:
    """Run nsys with these arguments and return its output."""
    try:
        with _started([path, *arguments], stdout=subprocess.PIPE) as child:
            output, _ = child.communicate(timeout=QUESTION_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _build_unrunnable_error(path, reason or "it does not answer") from error
    answer = output[: 1 << 20].decode("utf-8", "replace")
    if child.returncode in _NOT_RUN:
        raise _build_unrunnable_error(path, _shorten_nsys_output(answer) or "no program")
    return answer


def _build_unrunnable_error(path: str, reason: str) -> TracekitError:
    """Build the error for an nsys that the system cannot run."""
    return TracekitError(
        f"{make_displayable(path)} cannot be run: {reason}", f"name another nsys in {PROGRAM_VARIABLE}"
    )


def _link_report(report: Path, folder: Path) -> str:
    """Link the report into `folder` under a name without options, quotes or nsys `%` macros."""
    name = f"report{report.suffix.lower()}"
    try:
        (folder / name).symlink_to(report.absolute())
    except OSError:
        return str(report.absolute())
    return name


def _run_nsys_export(nsys: NsysProgram, folder: Path, report: str, limit_s: float) -> str | None:
    """Export `report` into `folder`; return the output of nsys, or None if it was stopped after the limit.

    nsys runs in `folder`, with names relative to that.
    """
    arguments = [nsys.path, "export", "--type", "sqlite", "--force-overwrite", "true"]
    arguments += ["--quiet", "true"]
    if nsys.takes_blobs:
        arguments.append("--include-blobs=true")
    arguments += ["--output", EXPORT_NAME, report]
    output_path = folder / "said.txt"
    with output_path.open("wb") as stream:
        try:
            with _started(arguments, cwd=folder, stdout=stream) as child:
                child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
    with output_path.open("rb") as stream:
        stream.seek(-min(_SAID_BYTES, output_path.stat().st_size), os.SEEK_END)
        return _shorten_nsys_output(stream.read().decode("utf-8", "replace"))


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], *, stdout: int | BinaryIO, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run nsys in a session of its own; end it and its children afterwards, also where this process is killed."""
    child = None
    with guarded_programs() as start:
        try:
            with _defer_signals():  # until the child is known, nobody could stop it
                child = start(arguments, cwd=cwd, stdout=stdout, stderr=subprocess.STDOUT)
            yield child
        finally:
            if child is not None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                if child.stdout is not None:
                    child.stdout.close()


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until afterwards, whichever of our threads receives them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers run only in the main thread
        return
    received: list[int] = []
    asking = (signal.SIGINT, signal.SIGTERM)
    before = {asked: signal.signal(asked, lambda number, _: received.append(number)) for asked in asking}
    try:
        yield
    finally:
        for asked, handler in before.items():
            signal.signal(asked, handler or signal.SIG_DFL)
        for number in received:
            signal.raise_signal(number)


def _shorten_nsys_output(text: str) -> str:
    """Shorten a program's output to one line without control characters."""
    line = " ".join(make_displayable(part) for part in text.split())
    line = line.replace("Exportation error: ", "")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _build_export_error(report: Path, nsys: NsysProgram, says: str) -> TraceFormatError:
    """Build the error for a report that nsys failed to export."""
    wrote = read_report_version(report)
    number = _NUMBER.fullmatch(nsys.version)
    version = tuple(int(part) for part in number[1].split(".")) if number else None
    data = Data(wrote=_format_nsys_version(wrote), here=nsys.version, says=says)
    # Releases have three numbers; the fourth is a build.
    if _NEWER.search(says) or (wrote and version and wrote[:3] > version[:3]):
        newer = _explain_newer_report(data)
        needed = f"nsys {_format_nsys_version(wrote[:3])} or newer" if wrote else "a newer nsys"
        hint = f"install {needed} (or name it in {PROGRAM_VARIABLE}), or run where it is: {command(report)}"
        return make_format_error(report, newer, hint)
    if is_whole_report(report):
        hint = (
            f"try a newer nsys (or name it in {PROGRAM_VARIABLE}), or compare it with the original: {command(report)}"
        )
        return make_format_error(report, _explain_refused_report(data), hint)
    age_s = max(0.0, time.time() - report.stat().st_mtime)
    if age_s < FRESH_S:
        text = f"still being written? It changed {age_s:.0f} s ago, and nsys says: {says}"
        return make_format_error(report, Reason("being-written", text, Data(age_s=age_s, says=says)), _LATER)
    text = f"damaged or cut off: nsys {nsys.version} says: {says}"
    hint = f"copy it again from where it was written, or see: {command(report)}"
    return make_format_error(report, Reason("truncated-report", text, data), hint)


def _explain_newer_report(data: Data) -> Reason:
    """Explain that the report was recorded by a newer nsys than the installed one."""
    by = f"nsys {data['wrote']}" if data["wrote"] else "a newer nsys"
    what = f"recorded by {by}, a version that the nsys {data['here']} here cannot read"
    return Reason("newer-report", f"{what}: {data['says']}", Data(what=what, **data))


def _explain_refused_report(data: Data) -> Reason:
    """Explain that the installed nsys cannot export a complete report."""
    by = f", recorded by nsys {data['wrote']}" if data["wrote"] else ""
    what = f"it ends as whole reports do{by}, and nsys {data['here']} cannot export it"
    return Reason("refused-report", f"{what}: {data['says']}", Data(what=what, **data))


def _format_nsys_version(version: tuple[int, ...] | None) -> str:
    """Format a version with dots."""
    return ".".join(str(number) for number in version or ())


_KIND = "nsys"


@dataclass(frozen=True, slots=True)
class CachedExport:
    """An export on disk with the version of nsys that made it. `made` if it was exported just now."""

    path: Path
    version: str
    made: bool


@contextlib.contextmanager
def open_export_of_report(report: Path) -> Iterator[CachedExport]:
    """Get the export of a report from the cache, or make it. The file is held until the block ends.

    Raises `TraceFormatError` if it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            export = _get_or_make_export(stack, report)
        except OSError as error:
            text = f"cannot be exported: {error.strerror or type(error).__name__}"
            reason = replace(explain_os_error(error), text=text)
            raise make_format_error(report, reason, f"see {cache.CACHE_VARIABLE}, and the free space") from error
        yield export


def _get_or_make_export(stack: contextlib.ExitStack, report: Path) -> CachedExport:
    """Get the export of a report. `stack` releases its resources."""
    nsys = find_nsys_program()
    limit = cache.read_cache_limit()
    folder = cache.make_kind_folder(_KIND)
    digest = digest_content(report)
    if folder is not None:
        stored = _find_cached_export(stack, folder, digest, nsys)
        if stored is not None:
            return stored
    if nsys is None:
        raise build_no_nsys_error(report)
    prefix = cache.PARTIAL if folder is not None else IN_TMPDIR
    work = stack.enter_context(new_folder(folder, prefix))
    new_export = export_report(report, nsys, work)
    if folder is None:
        return CachedExport(new_export, nsys.version, made=True)
    stored = _find_cached_export(stack, folder, digest, nsys)
    if stored is not None:  # another process was faster
        return stored
    new_export.chmod(0o600)
    cache.hold_cache_entry(stack, new_export)
    target = folder / _format_export_name(digest, nsys)
    new_export.replace(target)
    cache.evict_oldest(limit)
    return CachedExport(target, nsys.version, made=True)


def _format_export_name(digest: str, nsys: NsysProgram) -> str:
    """Format the file name of an export by content digest and nsys."""
    return f"{digest}-{nsys.version}-{'blobs' if nsys.takes_blobs else 'plain'}.sqlite"


def _find_cached_export(
    stack: contextlib.ExitStack, folder: Path, digest: str, nsys: NsysProgram | None
) -> CachedExport | None:
    """Find the cached export of this content and hold it until `stack` ends. Without nsys, any version matches."""
    if nsys is not None:
        names = [folder / _format_export_name(digest, nsys)]
    else:
        names = sorted(folder.glob(f"{digest}-*.sqlite"), reverse=True)
    for path in names:
        if not cache.hold_cache_entry(stack, path):
            continue
        if find_export_problem(path) is not None:
            path.unlink(missing_ok=True)
            continue
        os.utime(path)
        return CachedExport(path, path.name.split("-")[1], made=False)
    return None


def describe_export_state(report: Path) -> tuple[str, ...]:
    """Describe which export of a report would be read: the installed nsys and the cached exports."""
    nsys = find_nsys_program()
    folder = cache.make_kind_folder(_KIND)
    kept = folder.glob(f"{digest_content(report)}-*.sqlite") if folder is not None else ()
    return (nsys.version if nsys is not None else "no nsys", *sorted(path.name for path in kept))
