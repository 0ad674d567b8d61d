"""Makes the calls of one case at an address and prints what a caller sees of them, as JSON.

    client.py ADDRESS CASE [AUTHORITIES NAME]

With the last two it speaks TLS to a server of that name.
"""

import json
import sys
import threading

import grpc

import service


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else value


def metadata(pairs):
    return {key: text(value) for key, value in pairs or ()}


def outcome(call, replies):
    """The outcome of a call that has ended."""
    return {
        "replies": [text(reply) for reply in replies],
        "code": call.code().name,
        "details": call.details(),
        "initial": metadata(call.initial_metadata()),
        "trailing": metadata(call.trailing_metadata()),
    }


def single(method, request, **options):
    """A call with one reply."""
    try:
        reply, call = method.with_call(request, timeout=service.CALL_SECONDS, **options)
        return outcome(call, [reply])
    except grpc.RpcError as error:
        return outcome(error, [])


def stream(call):
    """A call with any number of replies."""
    replies = []
    try:
        for reply in call:
            replies.append(reply)
    except grpc.RpcError:
        pass
    return outcome(call, replies)


def unary(channel):
    method = channel.unary_unary(service.path("Unary"))
    sent = (("x-sent", "by the client"),)
    large = b"x" * 1_000_000
    reply, call = method.with_call(large, timeout=service.CALL_SECONDS)
    return {
        "small": single(method, b"hello", metadata=sent),
        "empty": single(method, b""),
        "large_is_equal": reply == large,
    }


def streams(channel):
    count = channel.unary_stream(service.path("Count"))
    join = channel.stream_unary(service.path("Join"))
    numbers = (str(number).encode() for number in range(100))
    return {
        "count": stream(count(b"100", timeout=service.CALL_SECONDS)),
        "none": stream(count(b"0", timeout=service.CALL_SECONDS)),
        "join": single(join, numbers),
        "join_none": single(join, iter(())),
    }


def chat(channel):
    """Sends each message only when the reply to the one before it has arrived."""
    method = channel.stream_stream(service.path("Chat"))
    turn = threading.Semaphore(1)

    def requests():
        for number in range(50):
            turn.acquire()
            yield str(number).encode()

    replies = []
    call = method(requests(), timeout=service.CALL_SECONDS)
    for reply in call:
        replies.append(reply)
        turn.release()
    return outcome(call, replies)


def failures(channel):
    fail_late = channel.unary_stream(service.path("FailLate"))
    return {
        "trailers_only": single(channel.unary_unary(service.path("Refuse")), b""),
        "late": stream(fail_late(b"", timeout=service.CALL_SECONDS)),
        "unknown_method": single(channel.unary_unary(service.path("Missing")), b""),
    }


def report(channel):
    """What the server has observed: calls begun, calls ended by callers, the longest time left."""
    return [int(word) for word in channel.unary_unary(service.path("Report"))(b"").split()]


def deadline(channel):
    hang = channel.unary_unary(service.path("Hang"))
    call = hang.future(b"", timeout=2)
    code = call.exception().code().name
    service.wait_until("the server sees the end", lambda: report(channel)[1] == 1)
    return {"code": code, "server": report(channel)}


def cancel(channel):
    hang = channel.unary_unary(service.path("Hang"))
    call = hang.future(b"")
    service.wait_until("the call begins", lambda: report(channel)[0] == 1)
    call.cancel()
    service.wait_until("the server sees the end", lambda: report(channel)[1] == 1)
    return {"code": call.code().name, "server": report(channel)}


def cut_off(channel):
    stall = channel.unary_stream(service.path("Stall"))
    crash = channel.stream_stream(service.path("Crash"))
    received = threading.Semaphore(0)

    def requests():
        received.acquire(timeout=service.CALL_SECONDS)
        yield b""

    stalled = stream(stall(b"", timeout=service.CALL_SECONDS))
    call = crash(requests(), timeout=service.CALL_SECONDS)
    replies = [next(call)]
    received.release()
    return {"stalled": stalled, "crashed": stream(call), "replies": len(replies)}


def calls(channel):
    """Three calls of `Unary`, one after the other."""
    method = channel.unary_unary(service.path("Unary"))
    return [single(method, b"hello") for _ in range(3)]


def gateway_failures(channel):
    """Calls that the gateway answers itself."""
    lost = channel.unary_unary("/tidegate.Lost/Unary")
    slow = channel.unary_unary(service.path("Hang"))
    large = channel.unary_unary(service.path("Unary"))
    nowhere = channel.unary_unary("/tidegate.Nowhere/Unary")
    return {
        "lost": single(lost, b""),
        "slow": single(slow, b""),
        "large": single(large, b"x" * 5_000),
        "nowhere": single(nowhere, b""),
    }


CASES = [unary, streams, chat, failures, deadline, cancel, cut_off, calls, gateway_failures]


def main():
    address, name, *tls = sys.argv[1:]
    case = {case.__name__: case for case in CASES}[name]
    # Failed calls are not repeated, so that each is seen as it is.
    options = [("grpc.enable_retries", 0), ("grpc.max_receive_message_length", -1)]
    if tls:
        authorities, server = tls
        options.append(("grpc.ssl_target_name_override", server))
        credentials = grpc.ssl_channel_credentials(service.read(authorities))
        channel = grpc.secure_channel(address, credentials, options=options)
    else:
        channel = grpc.insecure_channel(address, options=options)
    with channel:
        print(json.dumps(case(channel)))


main()
