"""Ignore signals while a program ends."""

import signal
import threading


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM from here on, where this is the main thread: the work is done."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
