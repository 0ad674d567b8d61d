"""Serves WebSocket on a free port of 127.0.0.1, which it prints, until its input ends.

    echo.py [CERTIFICATE KEY]

It sends each message back. Some are commands: `ping`, `close`, and `last close`.
"""

import asyncio
import ssl
import sys

import websockets

# How the last connection was closed: code and reason.
last_close = ""


async def serve(connection):
    global last_close
    try:
        async for message in connection:
            if message == "ping":
                pong = await connection.ping(b"by the server")
                await asyncio.wait_for(pong, 10)
                await connection.send("pong")
            elif message == "close":
                await connection.close(4002, "by the server")
            elif message == "last close":
                await connection.send(last_close)
            else:
                await connection.send(message)
    except websockets.ConnectionClosed:
        pass
    finally:
        last_close = f"{connection.close_code} {connection.close_reason}"


async def main():
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[1:])
    server = await websockets.serve(
        serve, "127.0.0.1", 0, ssl=context, max_size=None, subprotocols=["chat.v2"]
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
