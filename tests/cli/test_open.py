"""`open`: a page in a temporary place, and a browser only where there is a display."""

from pathlib import Path

import pytest

from tracekit.cli.commands import open as opening


@pytest.fixture
def opened(monkeypatch, tmp_path):
    pages = []
    monkeypatch.setattr(opening.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(opening.webbrowser, "open", pages.append)
    monkeypatch.setattr(opening.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    return pages


@pytest.mark.usefixtures("pipeline")
def test_profiles_become_a_page_that_is_opened(call, opened, tmp_path):
    done = call("open", "outputs/profile", "-q")
    page = Path(done.stdout.strip())
    assert done.exit_code == 0
    assert page.is_relative_to(tmp_path)
    assert "<html" in page.read_text(encoding="utf-8")
    assert opened == [page.as_uri()]


@pytest.mark.usefixtures("pipeline")
def test_a_saved_report_is_opened(call, opened, report_file):
    page = Path(call("open", report_file).stdout.strip())
    assert "outputs/profile" in page.read_text(encoding="utf-8")
    assert opened == [page.as_uri()]


def test_an_existing_page_is_opened_where_it_is(call, opened, tmp_path):
    page = tmp_path / "kept.html"
    page.write_text("<html></html>")
    assert call("open", page).stdout == f"{page}\n"
    assert opened == [page.as_uri()]
    assert page.read_text() == "<html></html>"


@pytest.mark.usefixtures("pipeline")
def test_without_a_display_only_the_path_is_printed(call, opened, monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    done = call("open", "outputs/profile", "-q")
    assert done.exit_code == 0
    assert Path(done.stdout.strip()).is_file()
    assert opened == []


def test_what_cannot_be_read_opens_nothing(call, opened, tmp_path):
    done = call("open", tmp_path / "nothing.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert opened == []
