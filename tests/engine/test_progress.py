import io

import pytest
from chrome_builder import step, write

from tracekit.analyses import ANALYSES
from tracekit.engine import Progress
from tracekit.engine.progress import format_progress, show_count_line, show_progress_line
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.measure_source import scale_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def screen(text):
    """What a terminal shows of `text`, trailing blanks aside."""
    line, at = [], 0
    for character in text:
        if character == "\r":
            at = 0
        else:
            line[at : at + 1] = [character]
            at += 1
    return "".join(line).rstrip()


HALF = Progress(file_count=4, byte_count=2000, files_done=2, bytes_done=1000)


def test_nothing_is_written_to_what_is_not_a_terminal():
    stream = io.StringIO()
    with show_progress_line(stream) as on_progress:
        on_progress(HALF)
    assert stream.getvalue() == ""


def test_nothing_is_written_when_not_wanted_or_to_a_dumb_or_closed_terminal(monkeypatch):
    stream = Terminal()
    with show_progress_line(stream, enabled=False) as on_progress:
        on_progress(HALF)
    monkeypatch.setenv("TERM", "dumb")
    with show_progress_line(stream) as on_progress:
        on_progress(HALF)
    assert stream.getvalue() == ""
    stream.close()
    monkeypatch.setenv("TERM", "xterm")
    with show_progress_line(stream) as on_progress:
        on_progress(HALF)


def test_the_line_is_redrawn_in_place_and_erased_at_the_end():
    stream, clock = Terminal(), Clock()
    with show_progress_line(stream, clock=clock, width=lambda: 80) as on_progress:
        on_progress(HALF)
        assert screen(stream.getvalue()).startswith("reading  2 of 4 files")
        clock.now = 1.0
        on_progress(Progress(file_count=4, byte_count=2000, files_done=3, bytes_done=1500))
        assert screen(stream.getvalue()).startswith("reading  3 of 4 files")
    assert screen(stream.getvalue()) == ""
    assert "\n" not in stream.getvalue()


def test_the_line_is_erased_when_the_run_is_interrupted():
    stream = Terminal()

    def interrupted():
        with show_progress_line(stream) as on_progress:
            on_progress(HALF)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen(stream.getvalue()) == ""


def test_it_is_not_redrawn_more_often_than_a_person_can_see():
    stream, clock = Terminal(), Clock()
    with show_progress_line(stream, clock=clock) as on_progress:
        for _ in range(1000):
            clock.now += 0.0001
            on_progress(HALF)
        assert stream.getvalue().count("\r") <= 2


@pytest.mark.parametrize("width", [1, 5, 20, 40])
def test_it_never_reaches_the_edge_of_the_terminal(width):
    stream = Terminal()
    with show_progress_line(stream, width=lambda: width) as on_progress:
        on_progress(HALF)
    assert all(len(part) < width for part in stream.getvalue().split("\r"))


def test_a_terminal_that_goes_away_does_not_end_the_run():
    stream = Terminal()
    with show_progress_line(stream) as on_progress:
        stream.close()
        on_progress(HALF)


def test_failures_are_told_while_reading():
    line = format_progress(Progress(3, 100, files_done=2, bytes_done=50, failure_count=1), 0.1)
    assert line == "reading  2 of 3 files (1 failed)  50 of 100 B  50 %"


def test_the_rate_is_told_only_once_it_means_something():
    assert "/s" not in format_progress(HALF, 0.5)
    assert "500 B/s" in format_progress(HALF, 2.0)
    assert format_progress(HALF, 4000.0).endswith("  67 min left")
    assert format_progress(HALF, 40000.0).endswith("  11 h 07 min left")


def test_what_comes_after_the_files_is_counted_in_the_time_left():
    line = format_progress(Progress(4, 2000, 4, 2000), 8.0, "measuring", share=0.8)
    assert line == "measuring  4 of 4 files  1.95 of 1.95 KiB  80 %  250 B/s  2 s left"


def test_files_without_bytes_are_counted_alone():
    assert format_progress(Progress(2, 0), 5.0) == "reading  0 of 2 files"


def test_pieces_of_work_are_counted_and_the_line_is_erased():
    stream, clock = Terminal(), Clock()
    with show_count_line(stream, "judging {} questions", 3, clock=clock, width=lambda: 80) as count:
        assert screen(stream.getvalue()) == "judging 0 of 3 questions"
        clock.now = 1.0
        count()
        assert screen(stream.getvalue()) == "judging 1 of 3 questions"
        clock.now = 1.01
        count()
        assert screen(stream.getvalue()) == "judging 1 of 3 questions"  # not more often than can be seen
    assert screen(stream.getvalue()) == ""


def test_nothing_is_counted_where_nobody_watches():
    stream = io.StringIO()
    with show_count_line(stream, "judging {} questions", 3) as count:
        count()
    assert stream.getvalue() == ""


def test_reading_and_every_question_count_towards_the_bytes_of_a_file(tmp_path):
    path = write(tmp_path / "rank0.json", [step(1, 0, 100)])
    (source,) = pipeline.discover_sources([tmp_path]).sources
    told = []
    pipeline.measure_source(source, told.append)
    size = path.stat().st_size
    assert size - len(ANALYSES) <= sum(told) <= size
    # Reading is a part of it, and the rest comes question by question.
    assert len([count for count in told if 0 < count < size / 10]) >= len(ANALYSES) - 1


def test_parts_of_bytes_are_told_in_whole_bytes_and_none_is_lost():
    told = []
    tell = scale_progress(told.append, 0.25)
    for _ in range(12):
        tell(1)
    assert sum(told) == 3
    assert set(told) == {0, 1}
