"""No path outside of the roots is read, however it is written."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from tracekit.agents import tools
from tracekit.agents.roots import resolve_inside_roots, resolve_roots
from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated_gpu" / "outputs" / "profile"
TRACES = sorted(EXAMPLE.iterdir())


@pytest.fixture
def tree(tmp_path):
    """A root with a run, and things outside of it that links in it lead to."""
    run = tmp_path / "root" / "run"
    run.mkdir(parents=True)
    shutil.copy(TRACES[0], run)
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.copy(TRACES[1], outside)
    return tmp_path


@pytest.fixture
def roots(tree):
    return resolve_roots([tree / "root"])


@pytest.mark.parametrize("given", ["run", "./run", "root/run", "run/", "root/run/."])
def test_a_path_is_relative_to_a_root_or_begins_with_its_name(roots, given):
    assert resolve_inside_roots(roots, given) == "root/run"


OUTSIDE = ["..", "../outside", "run/../../outside", "run/../run", "/etc/passwd", "~", "~root/x"]
OUTSIDE += ["file:///etc/passwd", "s3://bucket/x", "C:\\x", "\\\\host\\share", "..\\outside"]
OUTSIDE += ["", " ", "run\0", "outside", "root/../outside", "nothing", "base=run"]


@pytest.mark.parametrize("given", OUTSIDE)
def test_anything_else_is_refused_and_the_roots_are_named(roots, given):
    with pytest.raises(TracekitError) as caught:
        resolve_inside_roots(roots, given)
    assert "below: root" in caught.value.hint


def test_an_absolute_path_is_refused_even_inside(roots, tree):
    with pytest.raises(TracekitError, match="absolute"):
        resolve_inside_roots(roots, str(tree / "root" / "run"))


def test_a_link_is_judged_by_where_it_leads(roots, tree):
    (tree / "root" / "out").symlink_to(tree / "outside")
    (tree / "root" / "in").symlink_to(tree / "root" / "run")
    (tree / "root" / "loop").symlink_to(tree / "root" / "loop")
    assert resolve_inside_roots(roots, "in") == "root/in"
    for given in ("out", "root/out", f"out/{TRACES[1].name}"):
        with pytest.raises(TracekitError, match="nothing of this name in the roots"):
            resolve_inside_roots(roots, given)


def test_what_is_there_outside_is_not_told_apart_from_what_is_not(roots, tree):
    (tree / "root" / "out").symlink_to(tree / "outside")
    problems = []
    for name in (TRACES[1].name, "x" * len(TRACES[1].name)):
        with pytest.raises(TracekitError) as caught:
            resolve_inside_roots(roots, f"out/{name}")
        problems.append(str(caught.value).replace(name, "NAME"))
    assert problems[0] == problems[1]


def test_a_root_may_be_a_link_itself(tree):
    (tree / "link").symlink_to(tree / "root")
    assert resolve_inside_roots(resolve_roots([tree / "link"]), "run") == "root/run"


def test_of_two_roots_a_path_says_which_where_both_have_it(tree):
    (tree / "other" / "run").mkdir(parents=True)
    roots = resolve_roots([tree / "root", tree / "other", tree / "root"])
    assert roots.names == ("root", "other")
    assert resolve_inside_roots(roots, "other/run") == "other/run"
    with pytest.raises(TracekitError, match="could be root/run and other/run"):
        resolve_inside_roots(roots, "run")
    with pytest.raises(TracekitError, match="nothing of this name"):
        resolve_inside_roots(roots, "outside")


@pytest.fixture
def called(roots, monkeypatch):
    """A tool called as the server calls it."""
    monkeypatch.chdir(roots.base)
    return lambda name, **arguments: tools.call_tool(roots, name, arguments)


def test_links_in_a_directory_that_lead_out_are_not_followed(called, tree):
    run = tree / "root" / "run"
    (run / "linked.pt.trace.json.gz").symlink_to(tree / "outside" / TRACES[1].name)
    (run / "folder").symlink_to(tree / "outside")
    (run / "again").symlink_to(run / TRACES[0].name)
    _, answer = called("analyze", path="run")
    assert "rank 0 of 2" in answer["identity"]
    assert "1 file, " in str(answer["identity"])
    everything = pipeline.discover_sources([run], Options())
    assert len(everything.sources) == 2
    within = pipeline.discover_sources([run], Options(within=(os.path.realpath(tree / "root"),)))
    assert [source.path.name for source in within.sources] == [TRACES[0].name]
    assert {str(i.reason.text) for i in within.ignored if i.path.name in ("linked.pt.trace.json.gz", "folder")} == {
        "a link out of the directories that may be read"
    }  # fmt: skip
    _, listing = called("paths", path="run")
    assert [Path(entry["path"]).name for entry in listing["entries"]] == ["again", TRACES[0].name]


LOG = "step:{} - timing_s/gen:1.0 - timing_s/update_actor:2.0 - timing_s/step:3.5\n"


def test_no_log_above_the_root_is_looked_for(tree):
    """Beside `outputs/profile` a driver's log is found, unless the root ends below it."""
    folder = tree / "root" / "outputs" / "profile"
    folder.mkdir(parents=True)
    shutil.copy(TRACES[0], folder)
    (tree / "root" / "outputs" / "console.log").write_text("".join(map(LOG.format, range(5, 8))))

    def readers(root):
        options = Options(within=(os.path.realpath(root),))
        return {source.reader for source in pipeline.discover_sources([folder], options).sources}

    assert readers(tree / "root") == {"chrome", "driver_log"}
    assert readers(folder) == {"chrome"}
    (tree / "outside.log").write_text((tree / "root" / "outputs" / "console.log").read_text())
    (tree / "root" / "outputs" / "console.log").unlink()
    (tree / "root" / "outputs" / "console.log").symlink_to(tree / "outside.log")
    assert readers(tree / "root") == {"chrome"}


def test_no_link_in_an_archive_leads_out(called, tree):
    with tarfile.open(tree / "root" / "run.tar", "w") as archive:
        archive.add(TRACES[0], f"profile/{TRACES[0].name}")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo(f"profile/link{kind.decode()}.pt.trace.json.gz")
            member.type, member.linkname = kind, str(tree / "outside" / TRACES[1].name)
            archive.addfile(member)
    _, answer = called("analyze", path="run.tar")
    assert "rank 0 of 2" in answer["identity"]


@pytest.mark.parametrize("path", ["s3://bucket/run", "zip::run.zip", "s3:/run", "hf:run"])
def test_no_address_is_asked(called, path, monkeypatch):
    def asked(address):
        raise AssertionError(address)

    monkeypatch.setattr("tracekit.discover.fetched.fetch_address", asked)
    with pytest.raises(TracekitError) as caught:
        called("analyze", path=path)
    assert "below: root" in caught.value.hint
