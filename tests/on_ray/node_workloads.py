"""What tests let nodes run; imported by Ray's workers there, and answering to files of the node."""

import os
import signal
import time
from pathlib import Path

from tracekit.pipeline import run as pipeline


def mark(source, word):
    """A file of this node that says something about a source."""
    return Path(os.environ["NODE_ROOT"], "marks", f"{source.path.name}.{word}")


def wait_for(path):
    """Nothing, once a file is there; gives up in the end, so that no worker outlives the tests."""
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)


def die_once(source, advance, **chosen):
    """Measured; but the first worker that gets a source with a `fatal` file dies in the middle of it."""
    if mark(source, "fatal").exists() and not mark(source, "died").exists():
        mark(source, "died").touch()
        advance(source.size_bytes // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    return pipeline.measure_source(source, advance, **chosen)


def hold(source, advance, **chosen):
    """Measured, once a source with a `held` file may go on; says that it has begun."""
    if mark(source, "held").exists():
        mark(source, "begun").write_text(str(os.getpid()))
        wait_for(mark(source, "go"))
    return pipeline.measure_source(source, advance, **chosen)


def node_of(source, advance):
    """The directory of the node that this runs on."""
    advance(source.size_bytes)
    return os.environ["NODE_ROOT"]


def tick(source, advance, **chosen):
    """Goes on for a minute, and says so ten times a second."""
    for number in range(600):
        mark(source, "ticks").write_text(str(number))
        advance(1)
        time.sleep(0.1)


def half_way(source, advance):
    """Reads half of its source, and takes its time for the rest."""
    advance(source.size_bytes // 2)
    for _ in range(4):
        time.sleep(0.6)
        advance(0)


def die_always(source, advance):
    """Its worker dies, and leaves a mark each time."""
    count = sum(mark(source, f"died{n}").exists() for n in range(9))
    mark(source, f"died{count}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def size(data):
    """How much a node was given."""
    return len(data)
