import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from any_report import reports
from hypothesis import given, settings

from tracekit.model.errors import TracekitError
from tracekit.render import RENDERERS, render

NAMES = [renderer.name for renderer in RENDERERS]


def test_a_format_nobody_writes_is_refused_with_those_there_are(sample):
    with pytest.raises(TracekitError, match="docx") as caught:
        render(sample, "docx")
    assert "json" in caught.value.hint


def test_no_two_outputs_share_a_name_or_a_suffix():
    suffixes = [suffix for renderer in RENDERERS for suffix in renderer.suffixes]
    assert len(set(NAMES)) == len(NAMES)
    assert len(set(suffixes)) == len(suffixes)


@pytest.mark.parametrize("renderer", RENDERERS, ids=NAMES)
def test_only_outputs_of_several_files_give_several(sample, renderer):
    assert isinstance(render(sample, renderer.name), dict) == renderer.files


@settings(max_examples=8, deadline=None)
@given(reports)
def test_every_output_takes_any_report(report):
    for name in NAMES:
        output = render(report, name, top=2, verbose=True, width=57)
        texts = output.values() if isinstance(output, dict) else [output]
        for text in texts:
            assert text is not None
            if isinstance(text, str):
                text.encode("utf-8")


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
from hashlib import sha256
from sample_report import sample_report
from tracekit.render import RENDERERS, render
for renderer in RENDERERS:
    out = render(sample_report(), renderer.name, verbose=True, color=True)
    parts = out.items() if isinstance(out, dict) else [("", out.encode())]
    print(renderer.name, *(f"{name}={sha256(data).hexdigest()}" for name, data in parts))
"""


def test_bytes_depend_on_nothing_but_report_and_options():
    found = set()
    for seed, columns, locale in (("0", "33", "C"), ("1", "210", "de_DE.UTF-8")):
        environment = {
            "PYTHONHASHSEED": seed,
            "COLUMNS": columns,
            "LC_ALL": locale,
            "NO_COLOR": seed,
            "FORCE_COLOR": seed,
            "TERM": "dumb",
            "TZ": f"UTC{seed}",
        }
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)]
        root = Path(__file__).parents[2]
        run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        found.add(hashlib.sha256(run.stdout.encode()).hexdigest())
        assert len(run.stdout.splitlines()) == len(RENDERERS)
    assert len(found) == 1


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = "import sys, tracekit.render; print([m for m in ('rich', 'matplotlib') if m in sys.modules])"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
