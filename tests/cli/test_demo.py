"""`tracekit demo`: an answer for somebody who has nothing yet but tracekit."""

import subprocess
import sys
from pathlib import Path


def run(*args):
    command = [sys.executable, "-m", "tracekit", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_shows_the_answer_and_what_to_type_next():
    shown = run("demo")
    assert shown.returncode == 0
    assert "SIMULATED DATA" in shown.stdout
    assert "Top issues" in shown.stdout
    typed = [line.split() for line in shown.stderr.splitlines() if "tracekit analyze" in line]
    path = Path(typed[0][-1])
    assert shown.stdout.startswith(f"{path} · ")
    assert all(str(path) in words for words in typed)


def test_the_path_alone():
    shown = run("demo", "--path")
    assert shown.returncode == 0
    assert len(list(Path(shown.stdout.strip()).iterdir())) == 2
