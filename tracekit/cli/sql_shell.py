"""The interactive shell of `tracekit sql`; a statement ends with a semicolon."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from tracekit.cli import terminal
from tracekit.model.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.sql.session import SqlSession

_PROMPT, _MORE = "sql> ", "...> "
_REPEAT_S = 0.05
"""Time for Python to handle Ctrl-C before the thread passes it on, and between its attempts."""

_HELP = """a statement ends with ;    SHOW TABLES;  DESCRIBE kernels;  SELECT …;
.recipes   list the recipes           .recipe NAME   run one
.help      this                       .quit          leave (so does Ctrl-D)
"""


def run_sql_shell(
    session: SqlSession,
    show: Callable[[str], None],
    running: AbstractContextManager[None] = nullcontext(),  # noqa: B008 - nullcontext is reentrant
) -> None:
    """Read statements from the terminal until it ends, and show their results; `running` is entered for each one."""
    _set_up_completion(session)
    prompt = _Prompt()
    with _interrupt_on_signal(session, prompt):
        _read_statements(session, show, running, prompt)


def _read_statements(
    session: SqlSession, show: Callable[[str], None], running: AbstractContextManager[None], prompt: _Prompt
) -> None:
    """Read and answer statements until the terminal ends."""
    from tracekit.sql import statements

    terminal.print_message("SQL over the tables of the profiles; .help lists commands, .quit exits")
    lines: list[str] = []
    while True:
        try:
            line = prompt.read(_MORE if lines else _PROMPT)
        except EOFError:
            terminal.write_output("\n")
            return
        except KeyboardInterrupt:
            terminal.write_output("\n")
            lines = []
            continue
        if not lines and line.strip().lower() in (".quit", ".exit", "quit", "exit", "\\q"):
            return
        if not lines and line.strip().startswith("."):
            _run_guarded(prompt, running, _run_dot_command, line.strip(), show)
        elif line.strip() or lines:
            lines.append(line)
            if statements.strip_literals("\n".join(lines)).rstrip().endswith(";"):
                _run_guarded(prompt, running, _show_statements, "\n".join(lines), show, session)
                lines = []


class _Prompt:
    """The prompt, and the effect of Ctrl-C: it raises once while the shell waits for a line or runs a statement.

    A second Ctrl-C before that exception is caught is ignored. Elsewhere Ctrl-C waits until the shell is at one of the two:
    an exception there would end it.
    """

    def __init__(self) -> None:
        self._is_interruptible = self._is_pending = self._is_ignoring = False
        self.is_open = self.is_interrupted = False
        self.handled_count = 0

    def read(self, text: str) -> str:
        """Ask for a line."""
        self.is_interrupted = False
        with self.interruptible():
            self.is_open = True
            try:
                return input(text)
            finally:
                self.is_open = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C raise `KeyboardInterrupt` within the context."""
        self._is_interruptible = True
        try:
            if self._is_pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_interruptible = self._is_pending = False
            if self._is_ignoring:
                self._is_ignoring = False
                signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT."""
        self.handled_count += 1
        if not self._is_interruptible:
            self._is_pending = True
            return
        self._is_interruptible, self._is_ignoring, self.is_interrupted = False, True, not self.is_open
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # DuckDB calls handlers even with an exception set
        raise KeyboardInterrupt


@contextmanager
def _interrupt_on_signal(session: SqlSession, prompt: _Prompt) -> Iterator[None]:
    """Have Ctrl-C interrupt the running statement within the context: DuckDB rarely checks Python's signals.

    A thread does it until the statement has ended: an interrupt before DuckDB has begun is lost. The thread also wakes
    readline after a Ctrl-C between its prompt and its wait for keys, with SIGURG, which nobody else minds.
    Only the main thread gets signals: in another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    main = threading.get_ident()

    def wake_prompt() -> None:
        if prompt.is_open:
            signal.pthread_kill(main, signal.SIGURG)

    def watch() -> None:
        handled = 0
        while arrived := os.read(reading, 4096):
            if signal.SIGINT not in arrived:
                continue
            time.sleep(_REPEAT_S)
            while prompt.handled_count == handled or prompt.is_interrupted:
                session.interrupt()
                wake_prompt()
                time.sleep(_REPEAT_S)
            if select.select([reading], [], [], 0)[0]:  # two at once are handled once
                os.read(reading, 4096)
                time.sleep(_REPEAT_S)
                wake_prompt()
            handled = prompt.handled_count
        os.close(reading)

    handlers = {signal.SIGINT: prompt.interrupt, signal.SIGURG: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writing)
        watching.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_guarded(
    prompt: _Prompt, running: AbstractContextManager[None], function: Callable[..., None], *arguments: object
) -> None:
    """Call a function within `running`, and print its errors: the shell continues."""
    try:
        with running, prompt.interruptible():
            function(*arguments)
    except KeyboardInterrupt:
        terminal.print_message("interrupted")
    except TracekitError as error:
        if prompt.is_interrupted:  # DuckDB reported it as its own error
            terminal.print_message("interrupted")
        else:
            terminal.print_error(error)


def _show_statements(text: str, show: Callable[[str], None], session: SqlSession) -> None:
    """Show the result of each statement of a text."""
    for statement in session.statements(text):
        show(statement)


def _run_dot_command(line: str, show: Callable[[str], None]) -> None:
    """Run a line that begins with a dot."""
    from tracekit.sql import recipes

    word, _, argument = line.partition(" ")
    if word == ".help":
        terminal.write_output(_HELP)
    elif word == ".recipes":
        terminal.write_output(format_recipes(terminal.get_page_width()[0]))
    elif word == ".recipe":
        show(recipes.read_recipe(argument.strip()))
    else:
        raise TracekitError(f"no command {word!r}", ".help lists them")


def list_recipe_rows() -> list[dict[str, str]]:
    """List the recipes with their questions."""
    from tracekit.sql import recipes

    return [{"recipe": name, "answers": recipes.read_recipe_question(name)} for name in recipes.list_recipes()]


def format_recipes(width: int | None) -> str:
    """Format the recipes and their questions as text."""
    from tracekit.cli.text_tables import format_text_columns

    return format_text_columns(list_recipe_rows(), width=width) + "\n"


def _set_up_completion(session: SqlSession) -> None:
    """Complete names of tables and columns with Tab, if readline is available."""
    try:
        import readline
    except ImportError:
        return
    words = sorted({name for table in session.catalog.values() for name in (table.name, *table.columns)})

    def complete(start: str, number: int) -> str | None:
        matches = [word for word in words if word.startswith(start.lower())]
        return matches[number] if number < len(matches) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
