"""Writes `nsys_stats.json`: the figures that nsys itself prints of every readable export in a folder.

    python tests/data/nsys/make_nsys_stats.py FOLDER [NSYS]

FOLDER holds `.sqlite` exports at any depth; they are copied before nsys sees them. NSYS is a program, by
default the one on the PATH. Files that nsys cannot read are named with no figures. Of a report with more
than 60 rows the first 20 as printed and a digest of all rows are kept, of a name longer than 60 characters
its first 24 and a digest (`tests/nsys_tool.py`). Whether a range was pushed or started is left out.
"""

import argparse
import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path

MOST_ROWS, FIRST_ROWS = 60, 20

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import nsys_tool  # noqa: E402


def figures_of(program, path, folder):
    """What nsys prints of one file: `{report: stored rows}`, empty where it can read nothing."""
    try:
        printed = nsys_tool.stats(program, path, folder)
    except RuntimeError:
        return {}
    return {report: stored(*nsys_tool.shown(rows)) for report, rows in printed.items()}


def stored(columns, rows):
    """What is kept of a report: all its rows, or of many the first ones and a digest of all."""
    told = {"columns": columns, "row_count": len(rows), "rows": rows}
    if len(rows) > MOST_ROWS:
        told |= {"rows": rows[:FIRST_ROWS], "digest": nsys_tool.digest_of(rows)}
    return told


def main():
    """Run nsys on every file and write what it printed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("nsys", type=Path, nargs="?", default=None)
    options = parser.parse_args()
    program = options.nsys or nsys_tool.found()[0]
    files = {}
    for path in sorted(options.folder.rglob("*.sqlite")):
        with tempfile.TemporaryDirectory() as folder:
            figures = figures_of(program, path, Path(folder))
        name = path.relative_to(options.folder).as_posix()
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        files[name] = {"sha256": sha256, "reports": figures}
        print(f"{name}: {', '.join(figures) or 'nothing'}")
    told = {"nsys": nsys_tool.version(program), "files": files}
    text = json.dumps(told, ensure_ascii=False, indent=1)
    text = re.sub(r'\[\n\s+("[^\[\]]*")\n\s+\]', on_one_line, text)
    (HERE / "nsys_stats.json").write_text(text + "\n", encoding="utf-8")


def on_one_line(found):
    """A list of texts without its line breaks."""
    return "[" + re.sub(r"\n\s+", " ", found[1]) + "]"


if __name__ == "__main__":
    main()
