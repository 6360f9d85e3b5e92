"""`tracekit.toml`: options of `analyze`, found up to the root of the repository."""

import pytest

from tracekit.cli import main
from tracekit.compare.gates import gate_file
from tracekit.model.errors import TracekitError


@pytest.fixture
def project(tmp_path, monkeypatch, pipeline):
    """A repository with a folder in it, where commands run; its file is written by `write`."""
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/runs").mkdir()
    monkeypatch.chdir(tmp_path / "repo/runs")

    def write(text, folder="repo"):
        path = tmp_path / folder / "tracekit.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def get_options(pipeline):
    return pipeline.calls[-1][1]


def test_options_come_from_the_file_and_the_command_line_wins(call, project, pipeline, tmp_path):
    project('[analyze]\nexclude = ["*.bak", "old*"]\nranks = "0-3"\ntokens = 512\nquiet = true\noutput = ["r.md"]\n')
    assert call("analyze", "x").stdout == ""
    assert get_options(pipeline).exclude == ("*.bak", "old*")
    assert get_options(pipeline).ranks == "0-3"
    assert dict(get_options(pipeline).work) == {"tokens": 512.0}
    assert (tmp_path / "repo/runs/r.md").is_file()
    call("analyze", "x", "--ranks", "5", "--exclude", "*.tmp")
    assert (get_options(pipeline).ranks, get_options(pipeline).exclude) == ("5", ("*.tmp",))


def test_verbose_names_the_file_and_no_config_excludes_it(call, project, pipeline):
    path = project('[analyze]\nranks = "1"\n')
    assert f"options from {path}\n" in call("analyze", "x", "-v").stderr
    assert "options from" not in call("analyze", "x").stderr
    assert "options from" not in call("analyze", "x", "-v", "--no-config").stderr
    assert get_options(pipeline).ranks is None


def test_the_nearest_file_with_options_counts_up_to_the_repository(call, project, pipeline):
    project('[analyze]\nranks = "9"\n', folder=".")
    call("analyze", "x")
    assert get_options(pipeline).ranks is None
    project('[analyze]\nranks = "1"\n')
    project('[gate]\nfail-on = ["regression"]\n', folder="repo/runs")
    call("analyze", "x")
    assert get_options(pipeline).ranks == "1"
    project('[analyze]\nranks = "2"\n', folder="repo/runs")
    call("analyze", "x")
    assert get_options(pipeline).ranks == "2"


def test_outside_a_repository_only_the_working_directory_counts(call, project, pipeline, tmp_path, monkeypatch):
    project('[analyze]\nranks = "9"\n', folder=".")
    (tmp_path / "apart").mkdir()
    monkeypatch.chdir(tmp_path / "apart")
    call("analyze", "x")
    assert get_options(pipeline).ranks is None
    project('[analyze]\nranks = "4"\n', folder="apart")
    call("analyze", "x")
    assert get_options(pipeline).ranks == "4"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[analyze]\nrank = "3"\n', "[analyze] unknown key 'rank'; did you mean 'ranks'?"),
        ("[analyse]\ntop = 3\n", "unknown key 'analyse'; did you mean 'analyze'?"),
        ('[analyze]\ntop = "many"\n', "[analyze] top: must be a whole number, not many"),
        ("[analyze]\ntop = 0\n", "[analyze] top: must be at least 1, not 0"),
        ("[analyze]\ntop = [1]\n", "[analyze] top takes one value, not a list"),
        ("[analyze]\nquiet = 1\n", "[analyze] quiet takes true or false"),
        ("[analyze]\nranks = true\n", "[analyze] ranks takes a value, not true or false"),
        ('[analyze]\nquestion = ["q.py"]\n', "[analyze] question cannot be set here: it runs code"),
        ('[analyze]\nformat = "pdf"\n', "[analyze] no output format 'pdf'"),
        ("analyze = 3\n", "analyze is not a table"),
        ("[analyze\n", "not TOML: "),
    ],
)
def test_what_is_wrong_in_the_file_is_an_error_that_names_it(call, project, pipeline, text, reason):
    path = project(text, folder="repo/runs")
    done = call("analyze", "x")
    assert (done.exit_code, done.stdout, pipeline.calls) == (2, "", [])
    assert done.stderr.startswith(f"tracekit: {path}: {reason}")
    assert len(done.stderr.splitlines()) == 2
    assert call("analyze", "x", "--no-config").exit_code == 0


def test_a_format_of_the_file_gives_way_to_the_command_line(call, project, tmp_path):
    project('[analyze]\nformat = "md"\n')
    assert call("analyze", "x").stdout.startswith("**verl**")
    assert call("analyze", "x", "--json").stdout.startswith("{")
    assert "1,842 ms" in call("analyze", "x", "-o", tmp_path / "r.html").stdout
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_file_with_options_alone_is_no_gate(project):
    below = project("[analyze]\ntop = 1\n", folder="repo/runs")
    assert gate_file.find_gate_file(below.parent) is None
    above = project('[gate]\nfail-on = ["regression"]\n[analyze]\ntop = 1\n')
    assert gate_file.find_gate_file(below.parent) == above
    assert gate_file.read(above).rules
    with pytest.raises(TracekitError, match="contains no gate"):
        gate_file.read(below)


def test_every_key_is_the_name_of_an_option(call, project):
    path = project("[analyze]\nxyzzy = 1\n", folder="repo/runs")
    keys = call("analyze", "x").stderr.splitlines()[1].partition("there are: ")[2].split(", ")
    flags = {flag for option in main.get_command(None, "analyze").params for flag in option.opts}
    assert {f"--{key}" for key in keys} == {f for f in flags if f.startswith("--")} - {"--question", "--no-config"}
    assert path.exists()
