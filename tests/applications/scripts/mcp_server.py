"""A server of tools (Model Context Protocol over streamable HTTP), of the official library. Argument: the port."""

import asyncio
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("tools", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def length(text: str) -> int:
    """The length of a text."""
    return len(text)


@server.tool()
async def count(to: int, context: Context) -> str:
    """Counts to a number, and reports each step before the next."""
    for step in range(to):
        await context.report_progress(step + 1, to)
        await asyncio.sleep(0.05)
    return f"counted to {to}"


uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
