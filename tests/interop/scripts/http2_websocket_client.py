"""Speaks WebSocket on a stream of HTTP/2 (RFC 8441) with a server that echoes, and prints what it saw in JSON.

    http2_websocket_client.py PORT HOST MESSAGES [AUTHORITIES]

With the file of the certificate authorities it connects by TLS.
"""

import json
import os
import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.events
import wsproto.connection
from wsproto import events

# Small messages that are on their way at a time: a peer may bound them.
IN_FLIGHT = 100


class Connection:
    """An HTTP/2 connection with one stream, which carries a WebSocket."""

    def __init__(self, port, host, authorities):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        if authorities:
            context = ssl.create_default_context(cafile=authorities)
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
            assert self.socket.selected_alpn_protocol() == "h2"
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(config)
        self.http2.initiate_connection()
        self.http2.increment_flow_control_window(1 << 24)
        self.websocket = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
        self.received = []
        self.headers = None
        self.is_ended = False
        self.is_reset = False
        self.settings_arrived = False
        while not self.settings_arrived:
            self.read()
        assert self.http2.remote_settings.enable_connect_protocol == 1
        self.stream = self.http2.get_next_available_stream_id()
        headers = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https" if authorities else "http"),
            (":path", "/chat"),
            (":authority", f"{host}:{port}"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "chat.v1, chat.v2"),
        ]
        self.http2.send_headers(self.stream, headers)
        while self.headers is None:
            self.read()

    def read(self):
        """Sends what is due and handles what arrives."""
        self.flush()
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError("the connection ended")
        for event in self.http2.receive_data(data):
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self.settings_arrived = True
            elif isinstance(event, h2.events.ResponseReceived):
                self.headers = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                # The frame that ends the stream may be empty.
                if event.data:
                    self.websocket.receive_data(event.data)
                    self.received.extend(self.websocket.events())
            elif isinstance(event, h2.events.StreamEnded):
                self.is_ended = True
            elif isinstance(event, h2.events.StreamReset):
                # Envoy resets a stream behind the last message when the server closes its connection.
                self.is_ended = self.is_reset = True
            elif isinstance(event, h2.events.ConnectionTerminated):
                raise ConnectionError(f"{event}")
        self.flush()

    def flush(self):
        self.socket.sendall(self.http2.data_to_send())

    def send(self, event):
        data = self.websocket.send(event)
        while data:
            window = self.http2.local_flow_control_window(self.stream)
            size = min(window, self.http2.max_outbound_frame_size, len(data))
            if size > 0:
                self.http2.send_data(self.stream, data[:size])
                data = data[size:]
            else:
                self.read()
        self.flush()

    def end(self):
        if not self.is_reset:
            self.http2.end_stream(self.stream)
            self.flush()

    def event(self):
        """The next event of the WebSocket. Answers a ping by itself."""
        while True:
            while not self.received:
                if self.is_ended:
                    raise EOFError("the stream ended")
                self.read()
            event = self.received.pop(0)
            if not isinstance(event, events.Ping):
                return event
            self.send(event.response())

    def message(self):
        """The next whole message."""
        parts = []
        while True:
            event = self.event()
            assert isinstance(event, events.Message), event
            parts.append(event.data)
            if event.message_finished:
                return type(event.data)().join(parts)

    def echo(self, text):
        self.send(events.TextMessage(data=text))
        return self.message()


def converse(connection, count):
    """Sends each kind of message, and closes."""
    seen = {"status": connection.headers[":status"]}
    seen["subprotocol"] = connection.headers.get("sec-websocket-protocol")
    seen["text"] = connection.echo("hello \u00e9")
    binary = os.urandom(1 << 20)
    connection.send(events.BytesMessage(data=binary))
    seen["binary_is_equal"] = connection.message() == binary
    for part, is_last in (("one ", False), ("two ", False), ("three", True)):
        connection.send(events.TextMessage(data=part, message_finished=is_last))
    seen["fragments"] = connection.message()
    connection.send(events.Ping(payload=b"by the client"))
    pong = connection.event()
    seen["ponged"] = isinstance(pong, events.Pong) and pong.payload == b"by the client"
    seen["pinged"] = connection.echo("ping")
    seen["version"] = connection.echo("version")
    received = []
    for number in range(count):
        if number - len(received) >= IN_FLIGHT:
            received.append(connection.message())
        connection.send(events.TextMessage(data=f"message {number}"))
    while len(received) < count:
        received.append(connection.message())
    seen["messages_are_equal"] = received == [f"message {number}" for number in range(count)]
    connection.send(events.CloseConnection(code=4001, reason="by the client"))
    # Both servers discard their answer if the stream ends before it.
    close = connection.event()
    connection.end()
    seen["own_close"] = f"{close.code} {close.reason}"
    return seen


def main(port, host, count, authorities=None):
    connection = Connection(int(port), host, authorities)
    seen = converse(connection, int(count))
    connection.socket.close()
    connection = Connection(int(port), host, authorities)
    # The server may still be at the end of the first connection.
    for _ in range(500):
        seen["last_close"] = connection.echo("last close")
        if seen["last_close"]:
            break
    connection.send(events.TextMessage(data="close"))
    close = connection.event()
    seen["their_close"] = f"{close.code} {close.reason}"
    if not connection.is_reset:
        connection.send(close.response())
    connection.end()
    while not connection.is_ended:
        connection.read()
    print(json.dumps(seen))


main(*sys.argv[1:])
