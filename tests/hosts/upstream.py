"""The upstream: answers every request with 200, after the seconds in its query (`?wait=5`)."""

import http.server
import os
import re
import signal
import time


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body in one segment.
    wbufsize = -1

    def do_GET(self):
        wait = re.search(r"[?&]wait=(\d+)", self.path)
        if wait:
            time.sleep(int(wait[1]))
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


# Process 1 ignores signals that it does not handle.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
Server(("", 80), Answer).serve_forever()
