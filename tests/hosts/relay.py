"""A relay that connections are redirected to by iptables. It passes every byte on after a delay, in order.

The delay, in ms, is in /tmp/delay and may change at any time.
"""

import asyncio
import socket
import struct
import sys
import time

SO_ORIGINAL_DST = 80


def delay():
    with open("/tmp/delay") as file:
        return int(file.read()) / 1000


def original_destination(writer):
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack("!2xH4s8x", raw)
    return socket.inet_ntoa(address), port


async def read(reader, queue):
    while data := await reader.read(65536):
        queue.put_nowait((time.monotonic() + delay(), data))
    queue.put_nowait((time.monotonic() + delay(), b""))


async def write(queue, writer):
    while True:
        due, data = await queue.get()
        await asyncio.sleep(due - time.monotonic())
        if not data:
            return
        writer.write(data)
        await writer.drain()


async def pass_on(reader, writer):
    queue = asyncio.Queue()
    await asyncio.gather(read(reader, queue), write(queue, writer))


async def serve(reader, writer):
    other = None
    try:
        far_reader, other = await asyncio.open_connection(*original_destination(writer))
        ways = [asyncio.create_task(pass_on(reader, other)), asyncio.create_task(pass_on(far_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
    except OSError:
        pass
    finally:
        for end in (writer, other):
            if end is not None:
                end.close()


async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
