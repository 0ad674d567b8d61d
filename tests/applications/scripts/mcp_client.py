"""The official client of the Model Context Protocol against config/examples/mcp.yaml. Argument: the gateway's URL."""

import asyncio
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

GATEWAY, KEY = sys.argv[1], "foo"
TOOL_QUOTA = 100


async def statuses(http, body, headers):
    response = await http.post(f"{GATEWAY}/mcp", json=body, headers=headers)
    return response.status_code


async def use(mode):
    """Calls tools as a client of today (`auto`), or as one with a session and a stream of events (`legacy`)."""
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {KEY}"}) as http:
        transport = streamable_http_client(f"{GATEWAY}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            tools = await client.list_tools()
            assert [tool.name for tool in tools.tools] == ["add", "length", "count"]
            result = await client.call_tool("add", {"a": 1, "b": 2})
            assert result.structured_content == {"result": 3}, result
            # The name of the tool comes after the argument: the whole body is read.
            result = await client.call_tool("length", {"text": "x" * 3_000_000})
            assert result.structured_content == {"result": 3_000_000}, result
            steps = []

            async def note(progress, total, message):
                steps.append((progress, total))

            result = await client.call_tool("count", {"to": 5}, progress_callback=note)
            assert result.content[0].text == "counted to 5"
            assert steps == [(step, 5) for step in range(1, 6)], steps


async def exceed():
    """Each tool has a quota of its own, and a refusal is an error of the client."""
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {KEY}"}) as http:
        async with Client(streamable_http_client(f"{GATEWAY}/mcp", http_client=http)) as client:
            refused, admitted = [], 0

            async def note(response):
                if response.status_code == 429:
                    refused.append(int(response.headers["retry-after"]))

            http.event_hooks = {"response": [note]}
            try:
                while admitted <= TOOL_QUOTA:
                    await client.call_tool("add", {"a": 1, "b": 2})
                    admitted += 1
            except MCPError:
                pass
            assert admitted == TOOL_QUOTA - 2, f"{admitted}: two calls came before"
            assert len(refused) == 1 and refused[0] > 0, refused
            result = await client.call_tool("length", {"text": "abc"})
            assert result.structured_content == {"result": 3}, "another tool"


async def main():
    await use("auto")
    await use("legacy")
    async with httpx2.AsyncClient(trust_env=False) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert await statuses(http, body, {}) == 401
        assert await statuses(http, body, {"Authorization": "Bearer bar"}) == 401
    await exceed()


asyncio.run(main())
print("passed")
