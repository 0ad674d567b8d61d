"""Opens WebSockets, several at a time, and prints how many closed with each code.

    websocket_closes.py PORT HOST COUNT

The client closes every other one, the server the rest.
"""

import asyncio
import collections
import sys

import websockets

TIMEOUT = 20
AT_A_TIME = 10


async def close_code(port, host, number, slots):
    async with slots, websockets.connect(
        f"ws://{host}:{port}/chat",
        host="127.0.0.1",
        port=port,
        open_timeout=TIMEOUT,
        subprotocols=["chat.v2"],
    ) as connection:
        await connection.send("hello")
        await asyncio.wait_for(connection.recv(), TIMEOUT)
        if number % 2 == 0:
            await connection.close()
        else:
            await connection.send("close")
            await asyncio.wait_for(connection.wait_closed(), TIMEOUT)
    return connection.close_code


async def main(port, host, count):
    slots = asyncio.Semaphore(AT_A_TIME)
    closes = [close_code(int(port), host, number, slots) for number in range(int(count))]
    codes = collections.Counter(await asyncio.gather(*closes))
    print(", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))


asyncio.run(main(*sys.argv[1:]))
