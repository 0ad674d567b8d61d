"""matrix-nio against config/examples/matrix.yaml. Argument: the gateway's URL."""

import asyncio
import hashlib
import io
import os
import sys
import time

from nio import AsyncClient, AsyncClientConfig, LoginError, RegisterResponse, RoomMessageText

GATEWAY = sys.argv[1]
POLL = 30_000


def connect(name):
    config = AsyncClientConfig(request_timeout=90, max_timeouts=1, max_limit_exceeded=0)
    return AsyncClient(GATEWAY, name, config=config)


async def register(name):
    client = connect(name)
    response = await client.register(name, "a long password")
    assert isinstance(response, RegisterResponse), response
    return client


async def idle_poll(client):
    """A poll in which nothing happens lasts as long as the client asks for."""
    await client.sync(timeout=0)
    start = time.monotonic()
    response = await client.sync(timeout=POLL)
    assert not response.rooms.join, response
    assert POLL / 1000 - 1 <= time.monotonic() - start <= POLL / 1000 + 20, time.monotonic() - start


async def talk(alice, bob):
    """A message ends the poll that waits for it."""
    room = (await alice.room_create(name="room", invite=[bob.user_id])).room_id
    await bob.join(room)
    await bob.sync(timeout=0)
    polled = asyncio.create_task(bob.sync(timeout=POLL))
    await asyncio.sleep(1.5)
    assert not polled.done(), "it waits"
    start = time.monotonic()
    await alice.room_send(room, "m.room.message", {"msgtype": "m.text", "body": "hello"})
    # The poll may end first for an event of another kind.
    messages = []
    while not messages:
        response = await polled
        events = response.rooms.join[room].timeline.events if room in response.rooms.join else []
        messages = [event.body for event in events if isinstance(event, RoomMessageText)]
        polled = asyncio.create_task(bob.sync(timeout=POLL))
    polled.cancel()
    assert messages == ["hello"] and time.monotonic() - start < POLL / 1000 / 2


async def share(alice, bob):
    """Media beyond the default of `max_body`."""
    data = os.urandom(20 << 20)
    uploaded, _ = await alice.upload(io.BytesIO(data), content_type="application/octet-stream", filesize=len(data))
    downloaded = await bob.download(uploaded.content_uri)
    assert hashlib.sha256(downloaded.body).digest() == hashlib.sha256(data).digest()


async def log_in():
    """Failed logins are limited, and the refusal is one that the client knows."""
    client = connect("alice")
    assert (await client.login("a long password")).user_id == "@alice:localhost"
    await client.close()
    statuses = []
    for _ in range(21):
        client = connect("alice")
        response = await client.login("guessed")
        assert isinstance(response, LoginError)
        statuses.append(response.transport_response.status)
        await client.close()
    assert statuses == [403] * 20 + [429], statuses


async def main():
    alice, bob, carol = [await register(name) for name in ("alice", "bob", "carol")]
    await asyncio.gather(idle_poll(carol), talk(alice, bob), share(alice, bob))
    await log_in()
    for client in (alice, bob, carol):
        await client.close()


asyncio.run(main())
print("passed")
