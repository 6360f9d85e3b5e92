"""What tests let nodes run; imported by Ray's workers there, and answering to files beside the source."""

import os
import signal
import time

from tracekit import pipeline


def beside(source, word):
    """A file that says something about a source."""
    return source.path.with_name(f".{source.path.name}.{word}")


def wait_for(path):
    """Nothing, once a file is there; gives up in the end, so that no worker outlives the tests."""
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)


def die_once(source, advance, **chosen):
    """Measured; but the first worker that gets a source with a `fatal` file dies in the middle of it."""
    if beside(source, "fatal").exists() and not beside(source, "died").exists():
        beside(source, "died").touch()
        advance(source.size_bytes // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    return pipeline.measure_source(source, advance, **chosen)


def hold(source, advance, **chosen):
    """Measured, once a source with a `held` file may go on; says that it has begun."""
    if beside(source, "held").exists():
        beside(source, "begun").write_text(str(os.getpid()))
        wait_for(beside(source, "go"))
    return pipeline.measure_source(source, advance, **chosen)


def node_of(source, advance):
    """The directory of the node that this runs on."""
    advance(source.size_bytes)
    return os.environ["NODE_ROOT"]
