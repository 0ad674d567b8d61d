"""Serves an application with Hypercorn on a free port of 127.0.0.1, which it prints, until its input ends.

    application.py [CERTIFICATE KEY]

It sends the body of each request back, and each message of a WebSocket. Some messages are commands, as in echo.py.
`x-http-version` is the version of HTTP in which the request arrived.
"""

import asyncio
import socket
import sys

from hypercorn.asyncio import serve
from hypercorn.config import Config

# How the last connection was closed.
last_close = ""


async def answer(scope, receive, send):
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        parts.append(message["body"])
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    headers = [
        (b"content-length", str(len(body)).encode()),
        (b"x-http-version", scope["http_version"].encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def converse(scope, receive, send):
    global last_close
    chosen = "chat.v2" if "chat.v2" in scope["subprotocols"] else None
    while True:
        message = await receive()
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept", "subprotocol": chosen})
        elif message["type"] == "websocket.disconnect":
            last_close = "closed"
            return
        elif message.get("text") == "close":
            await send({"type": "websocket.close", "code": 4002, "reason": "by the server"})
        elif message.get("text") == "last close":
            await send({"type": "websocket.send", "text": last_close})
        elif message.get("text") == "version":
            await send({"type": "websocket.send", "text": scope["http_version"]})
        elif message.get("text") is not None:
            await send({"type": "websocket.send", "text": message["text"]})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"]})


async def application(scope, receive, send):
    if scope["type"] == "http":
        await answer(scope, receive, send)
    elif scope["type"] == "websocket":
        await converse(scope, receive, send)
    else:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})


async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.loglevel = "WARNING"
    if len(sys.argv) > 1:
        config.certfile, config.keyfile = sys.argv[1:]
    print(listener.getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()

    async def input_ends():
        await loop.run_in_executor(None, sys.stdin.read)

    await serve(application, config, shutdown_trigger=input_ends)


asyncio.run(main())
