"""A model server with the HTTP APIs of OpenAI and Anthropic. It answers with what it received, and reports fixed numbers of tokens.

Arguments: the port, and the key that each request must have. A request for the model `broken` gets a 503. A stream stops after
its first event until someone gets /v1/models/continue, which shows that events are not held back.
"""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, KEY = int(sys.argv[1]), sys.argv[2]
INPUT, OUTPUT = 12, 34
may_continue = threading.Event()


def digest(data):
    return hashlib.sha256(data).hexdigest()


def chat_usage():
    return {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}


def response_usage():
    return {
        "input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }


def response(text, status="completed"):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "r", "object": "response", "created_at": 0, "model": "small", "status": status, "output": [message],
        "usage": response_usage(), "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
    }


def events_of_chat(text, has_usage):
    def chunk(choices, **other):
        return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "small", "choices": choices, **other}

    words = text.split(" ")
    for n, word in enumerate(words):
        delta = {"role": "assistant", "content": word if n == 0 else " " + word}
        yield None, chunk([{"index": 0, "delta": delta, "finish_reason": None}])
    yield None, chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    if has_usage:
        yield None, chunk([], usage=chat_usage())


def events_of_response(text):
    created = response(text, "in_progress")
    created.update(output=[], usage=None)
    yield "response.created", {"type": "response.created", "sequence_number": 0, "response": created}
    for n, word in enumerate(text.split(" ")):
        yield "response.output_text.delta", {
            "type": "response.output_text.delta", "sequence_number": n + 1, "item_id": "m", "output_index": 0,
            "content_index": 0, "delta": word if n == 0 else " " + word, "logprobs": [],
        }
    yield "response.completed", {"type": "response.completed", "sequence_number": 99, "response": response(text)}


def events_of_message(text):
    start = message([], {"input_tokens": INPUT, "output_tokens": 1})
    start.update(stop_reason=None)
    yield "message_start", {"type": "message_start", "message": start}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield "ping", {"type": "ping"}
    for n, word in enumerate(text.split(" ")):
        delta = {"type": "text_delta", "text": word if n == 0 else " " + word}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": {"output_tokens": OUTPUT}}
    yield "message_stop", {"type": "message_stop"}


def message(content, usage):
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "small", "content": content,
        "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
    }


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass

    def reply(self, body, status=200, content_type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def stream(self, events, last=None):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        may_continue.clear()
        is_first = True
        for name, data in events:
            self.send_event(name, json.dumps(data))
            if is_first and not may_continue.wait(20):
                self.close_connection = True
                return
            is_first = False
        if last:
            self.send_event(None, last)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def send_event(self, name, data):
        text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def read_body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def has_key(self):
        """The customer's key must have been removed; the operator's must be there."""
        bearer, own = self.headers.get("Authorization"), self.headers.get("X-Api-Key")
        return (bearer, own) in [(f"Bearer {KEY}", None), (None, KEY)]

    def do_GET(self):
        if not self.has_key():
            self.reply({"error": {"message": f"wrong key: {self.headers}"}}, 401)
        elif self.path == "/v1/models/continue":
            may_continue.set()
            self.reply({"id": "continue", "object": "model", "created": 0, "owned_by": "us"})
        elif self.path == "/v1/models":
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "us"} for name in ("small", "broken")]
            self.reply({"object": "list", "data": models})
        else:
            self.reply({"error": {"message": f"no {self.path}"}}, 404)

    def do_POST(self):
        body = self.read_body()
        if not self.has_key():
            self.reply({"error": {"message": f"wrong key: {self.headers}"}}, 401)
        elif self.headers["Content-Type"].startswith("multipart/form-data"):
            self.upload(body)
        else:
            self.answer(body, json.loads(body))

    def upload(self, body):
        # The part with the file: its content begins after an empty line and ends before the boundary.
        boundary = b"--" + self.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
        parts = [part.partition(b"\r\n\r\n") for part in body.split(boundary)]
        content = next(content[:-2] for head, _, content in parts if b'filename="' in head)
        if self.path == "/v1/audio/transcriptions":
            self.reply({"text": digest(content)})
        else:
            self.reply({
                "id": "f", "object": "file", "bytes": len(content), "created_at": 0, "filename": digest(content),
                "purpose": "batch", "status": "processed",
            })

    def answer(self, body, asked):
        if asked["model"] == "broken":
            return self.reply({"error": {"message": "overloaded"}}, 503)
        text, streams = "I have read " + digest(body), asked.get("stream")
        if self.path == "/v1/chat/completions":
            has_usage = (asked.get("stream_options") or {}).get("include_usage")
            if streams:
                return self.stream(events_of_chat(text, has_usage), "[DONE]")
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self.reply({
                "id": "c", "object": "chat.completion", "created": 0, "model": "small", "choices": [choice], "usage": chat_usage(),
            })
        elif self.path == "/v1/responses":
            return self.stream(events_of_response(text)) if streams else self.reply(response(text))
        elif self.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
            usage = {"prompt_tokens": INPUT, "total_tokens": INPUT}
            self.reply({"object": "list", "model": "small", "data": data, "usage": usage})
        elif self.path == "/v1/audio/speech":
            self.reply(bytes(range(256)) * 4096, content_type="audio/mpeg")
        elif self.path == "/v1/messages":
            if streams:
                return self.stream(events_of_message(text))
            usage = {"input_tokens": INPUT, "output_tokens": OUTPUT}
            self.reply(message([{"type": "text", "text": text}], usage))
        elif self.path == "/v1/messages/count_tokens":
            self.reply({"input_tokens": INPUT})
        else:
            self.reply({"error": {"message": f"no {self.path}"}}, 404)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


Server(("127.0.0.1", PORT), Model).serve_forever()
