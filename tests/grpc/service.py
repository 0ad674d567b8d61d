"""The methods of the test's service. Messages are bytes, so no code is generated.

A method ends only because of its caller: waits are bounded by CALL_SECONDS.
"""

import os
import threading
import time

import grpc

SERVICE = "tidegate.Test"
CALL_SECONDS = 20


def path(method):
    """The path of a method in requests."""
    return f"/{SERVICE}/{method}"


def read(file):
    """The bytes of a file."""
    with open(file, "rb") as opened:
        return opened.read()


class State:
    """What the server has observed of its callers."""

    def __init__(self):
        self.lock = threading.Lock()
        self.begun = 0
        self.cancelled = 0
        self.remaining_ms = []

    def text(self):
        with self.lock:
            return f"{self.begun} {self.cancelled} {max(self.remaining_ms, default=-1)}".encode()


def handlers():
    """The handlers of all methods."""
    state = State()

    def unary(request, context):
        """Answers with the request, and with metadata before and after it."""
        received = dict(context.invocation_metadata())
        context.send_initial_metadata((("x-initial", "first"),))
        context.set_trailing_metadata((
            ("x-trailing", "last"),
            ("x-binary-bin", b"\x00\xff"),
            ("x-received", received.get("x-sent", "")),
        ))
        return request

    def count(request, context):
        """Answers with as many messages as the request asks for."""
        for number in range(int(request)):
            yield str(number).encode()

    def join(requests, context):
        """Answers with all messages, joined."""
        return b",".join(requests)

    def chat(requests, context):
        """Answers each message before the next one is sent."""
        for request in requests:
            yield b"re: " + request

    def refuse(request, context):
        """Fails before any message: one block of headers."""
        context.set_trailing_metadata((("x-reason", "test"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not ready: 100% \u00e9")

    def fail_late(request, context):
        """Fails after a message."""
        yield b"one"
        context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    def stall(request, context):
        """Answers with a message, and then with nothing."""
        ended = threading.Event()
        context.add_callback(ended.set)
        yield b"one"
        ended.wait(CALL_SECONDS)

    def crash(request, context):
        """Answers with a message and ends the process when the caller has it."""
        yield b"one"
        next(request)
        os._exit(1)

    def hang(request, context):
        """Does not answer before its caller has gone."""
        ended = threading.Event()
        with state.lock:
            state.begun += 1
            remaining = context.time_remaining()
            # Without a deadline it is absent or some hundred years.
            if remaining is not None and remaining < 3600:
                state.remaining_ms.append(int(remaining * 1000))

        def on_end():
            with state.lock:
                state.cancelled += 1
            ended.set()

        if context.add_callback(on_end):
            ended.wait(CALL_SECONDS)
        return b""

    def report(request, context):
        """Calls of `Hang` begun, those ended by the caller, and the longest time one had, in ms."""
        return state.text()

    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Join": grpc.stream_unary_rpc_method_handler(join),
        "Chat": grpc.stream_stream_rpc_method_handler(chat),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
        "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
        "Stall": grpc.unary_stream_rpc_method_handler(stall),
        "Crash": grpc.stream_stream_rpc_method_handler(crash),
        "Hang": grpc.unary_unary_rpc_method_handler(hang),
        "Report": grpc.unary_unary_rpc_method_handler(report),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def wait_until(what, condition):
    """Waits until `condition` is true."""
    deadline = time.monotonic() + CALL_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)
