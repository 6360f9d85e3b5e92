"""A session with `tracekit mcp` in a process of its own, over standard input and output, by the client of the SDK."""

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ENVIRONMENT = ("TRACEKIT_CACHE", "TRACEKIT_NO_CACHE", "COVERAGE_PROCESS_START")


@dataclass
class Session:
    """A client whose calls wait for their answers."""

    portal: BlockingPortal
    client: Client

    def call(self, tool, **arguments):
        """The result of a tool."""
        return self.portal.call(lambda: self.client.call_tool(tool, arguments))

    def data(self, tool, **arguments):
        """What a tool answered as data; it must not be an error."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.content[0].text
        return result.structured_content

    def error(self, tool, **arguments):
        """The lines of the error that a tool answers with."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.content[0].text
        assert result.structured_content is None
        return result.content[0].text.splitlines()

    def read(self, uri):
        """The text of a document."""
        (contents,) = self.portal.call(lambda: self.client.read_resource(uri)).contents
        return contents.text

    def tools(self) -> dict[str, Any]:
        """The tools by name."""
        listed = self.portal.call(self.client.list_tools)
        return {tool.name: tool for tool in listed.tools}


@contextlib.contextmanager
def session(*roots, mode="auto", errors=sys.__stderr__):
    """A session with a server over these roots."""
    arguments = ["-m", "tracekit", "mcp"]
    for root in roots:
        arguments += ["--root", str(root)]
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    with start_blocking_portal() as portal:
        client = Client(stdio_client(server, errlog=errors), mode=mode, read_timeout_seconds=300)
        with portal.wrap_async_context_manager(client):
            yield Session(portal, client)
