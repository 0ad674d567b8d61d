#!/usr/bin/env python3
"""Takes the screenshots of the dashboard: a gateway with limits, a throttle, two Redis servers and traffic for two minutes.

    target/python/bin/python docs/figures/dashboard.py TIDEGATE     writes docs/src/images/dashboard-*.png

Needs redis-server and chromium, and the ports below on loopback.
"""

import asyncio
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kit
from browser import Browser

PORT, ADMIN, REDIS, APPS = 18080, 19900, (16379, 16380), (13001, 13002)
SECONDS = 125
RULES = """
listen: [{address: "127.0.0.1:18080"}]
admin: {address: "127.0.0.1:19900"}
store: {redis: {shards: [{primary: "redis://127.0.0.1:16379"}, {primary: "redis://127.0.0.1:16380"}], response_timeout: 1s, connect_timeout: 2s}}
upstreams:
  app: {targets: ["http://127.0.0.1:13001", "http://127.0.0.1:13002", "http://127.0.0.1:13003"]}
limits:
  per-token: {quota: 30, window: 10s, resolution: 5, key: [token], block: {after: 60, within: 1m, for: 10m}}
  burst: {algorithm: token_bucket, quota: 5, window: 5s, key: [token], enforce: false}
  tokens-per-minute: {quota: 40000, window: 1m, key: [token], cost: {estimate: 40, actual: "json:usage.total_tokens"}}
throttle: {max_active: 300, resume_below: 270, memory: 5m, capacity: 1000, waiting_room: {ticket_ttl: 1m}}
routes:
  - {name: model, match: {path: "/v1/{*rest}"}, upstream: app, limits: [per-token, tokens-per-minute]}
  - {name: all, match: {path: "/{*rest}"}, upstream: app, limits: [per-token, burst]}
"""
OVERRIDES = [
    {"limit": "per-token", "key": "user-3", "quota": 600, "reason": "launch"},
    {"limit": "per-token", "key": "user-9", "quota": 5, "until": "2099-12-01", "reason": "crawls the archive"},
]


class App(BaseHTTPRequestHandler):
    """A server of the upstream: an answer with a usage, after some ms."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(random.expovariate(1 / 0.012))
        body = json.dumps({"usage": {"total_tokens": random.randrange(10, 90)}}).encode()
        self.send_response(500 if random.random() < 0.004 else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Caller(threading.Thread):
    """A client that sends requests of some users until `end`."""

    def __init__(self, end, number):
        super().__init__(daemon=True)
        self.end, self.random = end, random.Random(number)
        self.tickets = {}

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        begin = time.monotonic()
        while time.monotonic() < self.end:
            share = min(1, (time.monotonic() - begin) / 60)
            user = self.random.choice([self.random.randrange(7), self.random.randrange(int(60 + 290 * share))])
            try:
                self.ask(connection, f"user-{user}")
            except (OSError, http.client.HTTPException):
                connection.close()
            time.sleep(self.random.uniform(0.02, 0.1))

    def ask(self, connection, token):
        headers = {"Authorization": token}
        if token in self.tickets:
            headers["X-Tidegate-Ticket"] = self.tickets[token]
        connection.request("GET", self.random.choice(["/items/7", "/search", "/v1/completions"]), headers=headers)
        response = connection.getresponse()
        response.read()
        if ticket := response.getheader("X-Tidegate-Ticket"):
            self.tickets[token] = ticket


def admin(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", ADMIN, timeout=10)
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    response = connection.getresponse()
    text = response.read().decode()
    if response.status >= 300:
        sys.exit(f"{method} {path}: {response.status} {text}")
    return text


async def photograph(seconds):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = await Browser.start(profile)
        await browser.view(1280, 900)
        await browser.open(f"http://127.0.0.1:{ADMIN}/")
        await asyncio.sleep(seconds)
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            await browser.call("Emulation.setEmulatedMedia", features=[feature])
            height = await browser.evaluate("document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
            await browser.screenshot(kit.FOLDER / f"dashboard-{scheme}.png", clip)
        await browser.stop()


def start(program, folder):
    """The Redis servers and the gateway."""
    for port in REDIS:
        own = folder / str(port)
        own.mkdir()
        yield subprocess.Popen(["redis-server", "--port", str(port), "--dir", str(own), "--save", ""], stdout=subprocess.DEVNULL)
    for port in APPS:
        server = ThreadingHTTPServer(("127.0.0.1", port), App)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    rules = folder / "tidegate.yaml"
    rules.write_text(RULES, encoding="utf-8")
    time.sleep(1)
    yield subprocess.Popen([program, "serve", rules], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(3)


def main(arguments):
    if len(arguments) != 1:
        sys.exit("usage: docs/figures/dashboard.py TIDEGATE")
    with tempfile.TemporaryDirectory() as folder:
        processes = list(start(arguments[0], Path(folder)))
        try:
            for override in OVERRIDES:
                admin("PUT", "/api/overrides", override)
            admin("POST", "/api/reload")
            end = time.monotonic() + SECONDS + 20
            for number in range(14):
                Caller(end, number).start()
            asyncio.run(photograph(SECONDS))
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
