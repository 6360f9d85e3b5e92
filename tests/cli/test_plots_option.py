"""`analyze --plots`: images where they were asked for, refused before the work where they cannot be."""

import sys

import pytest


def test_plots_are_written_into_their_directory(call, pipeline, tmp_path, monkeypatch):
    from tracekit.render.plots import images as plots

    monkeypatch.setattr(plots, "import_matplotlib", lambda: None)
    monkeypatch.setattr(plots, "paint_report_charts", lambda report: iter([("a-b.png", b"1"), ("a-b.svg", b"2")]))
    result = call("analyze", "x", "--plots", tmp_path / "images")
    assert result.exit_code == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "images").iterdir()} == {"a-b.png": b"1", "a-b.svg": b"2"}
    assert f"wrote 2 images to {tmp_path / 'images'}" in result.stderr


@pytest.mark.parametrize(
    ("names", "message"), [([], "wrote no image: nothing in this report has a chart"), (["a.svg"], "wrote 1 image to ")]
)
@pytest.mark.usefixtures("pipeline")
def test_the_number_of_images_is_reported(call, tmp_path, monkeypatch, names, message):
    from tracekit.render.plots import images as plots

    monkeypatch.setattr(plots, "import_matplotlib", lambda: None)
    monkeypatch.setattr(plots, "paint_report_charts", lambda report: iter([(name, b"1") for name in names]))
    assert message in call("analyze", "x", "--plots", tmp_path / "images").stderr


def test_plots_without_matplotlib_are_refused_before_the_work(call, pipeline, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call("analyze", "x", "--plots", tmp_path / "images")
    assert result.exit_code == 2
    assert "pip install '.[plots]' (in a checkout of tracekit)" in result.stderr
    assert pipeline.calls == []
    assert not (tmp_path / "images").exists()
