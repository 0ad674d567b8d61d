"""Speaks WebSocket of HTTP/1.1 with a server that echoes, and prints what it saw in JSON.

    websocket_client.py PORT HOST MESSAGES [AUTHORITIES]

With the file of the certificate authorities it connects by TLS.
"""

import asyncio
import json
import os
import ssl
import sys

import websockets

TIMEOUT = 20


async def receive(connection):
    return await asyncio.wait_for(connection.recv(), TIMEOUT)


async def echo(connection, message):
    await connection.send(message)
    return await receive(connection)


async def converse(connection, count):
    """Sends each kind of message, and closes."""
    seen = {"subprotocol": connection.subprotocol}
    seen["text"] = await echo(connection, "hello \u00e9")
    binary = os.urandom(1 << 20)
    seen["binary_is_equal"] = await echo(connection, binary) == binary
    seen["fragments"] = await echo(connection, ["one ", "two ", "three"])
    pong = await connection.ping(b"by the client")
    await asyncio.wait_for(pong, TIMEOUT)
    seen["ponged"] = True
    seen["pinged"] = await echo(connection, "ping")
    seen["version"] = await echo(connection, "version")

    async def send_all():
        for number in range(count):
            await connection.send(f"message {number}")

    sender = asyncio.create_task(send_all())
    received = [await receive(connection) for _ in range(count)]
    await sender
    seen["messages_are_equal"] = received == [f"message {number}" for number in range(count)]
    await connection.close(4001, "by the client")
    seen["own_close"] = f"{connection.close_code} {connection.close_reason}"
    return seen


async def main(port, host, count, authorities=None):
    context = authorities and ssl.create_default_context(cafile=authorities)
    url = f"{'wss' if context else 'ws'}://{host}:{port}/chat"

    def connect():
        return websockets.connect(
            url,
            host="127.0.0.1",
            port=int(port),
            ssl=context,
            max_size=None,
            open_timeout=TIMEOUT,
            # Hypercorn does not end its stream of HTTP/2 after the closing handshake.
            close_timeout=1,
            subprotocols=["chat.v1", "chat.v2"],
        )

    async with connect() as connection:
        seen = await converse(connection, int(count))
    async with connect() as connection:
        # The server may still be at the end of the first connection.
        for _ in range(500):
            seen["last_close"] = await echo(connection, "last close")
            if seen["last_close"]:
                break
            await asyncio.sleep(0.01)
        await connection.send("close")
        try:
            await receive(connection)
        except websockets.ConnectionClosed as closed:
            seen["their_close"] = f"{closed.rcvd.code} {closed.rcvd.reason}"
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
