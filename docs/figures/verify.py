#!/usr/bin/env python3
"""Holds the figures of limits against the program: `tidegate replay` must decide about their requests as they show.

    docs/figures/verify.py TIDEGATE
"""

import json
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import buckets, client, windows
from models import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket

# A multiple of every window, so that sub-windows begin where the figures show it.
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

WINDOW_TIMES = [10 * index + nth / 2 for index, count in enumerate(windows.COUNTS) for nth in range(count)]
# At `now` the figure has 4 left, and 1 with `strict`.
WINDOW_TIMES += [windows.NOW + nth / 100 for nth in range(6)]
CLIENT_TIMES = [*client.TIMES, 11]

# The name of each figure's limit, its configuration, its model, and the times of its requests in s.
LIMITS = [
    ("sliding-window", "{quota: 15, window: 1m, resolution: 6}", SlidingWindow(15, 60_000, 6), WINDOW_TIMES),
    ("strict", "{quota: 15, window: 1m, resolution: 6, strict: true}", SlidingWindow(15, 60_000, 6, True), WINDOW_TIMES),
    ("sliding-log", "{algorithm: sliding_log, quota: 5, window: 10s}", SlidingLog(5, 10_000), windows.LOG_TIMES),
    ("fixed-window", "{algorithm: fixed_window, quota: 4, window: 10s}", FixedWindow(4, 10_000), windows.FIXED_TIMES),
    ("token-bucket", "{algorithm: token_bucket, quota: 5, window: 10s}", TokenBucket(5, 10_000), buckets.BURST_TIMES),
    ("leaky-bucket", "{algorithm: leaky_bucket, quota: 4, window: 1s, max_wait: 1s}", LeakyBucket(4, 1000, 1000),
     [at / 1000 for at in buckets.ARRIVALS]),
    ("client-429", "{quota: 5, window: 10s, resolution: 5}", SlidingWindow(5, 10_000, 5), CLIENT_TIMES),
]


def configuration():
    limits = "".join(f"  {name}: {settings}\n" for name, settings, _, _ in LIMITS)
    routes = "".join(
        f"  - {{name: {name}, match: {{path: /{name}}}, upstream: hello, limits: [{name}]}}\n" for name, _, _, _ in LIMITS)
    return f"upstreams: {{hello: {{respond: {{body: hello}}}}}}\nlimits:\n{limits}routes:\n{routes}"


def line(name, second):
    time = (START + timedelta(milliseconds=round(1000 * second))).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    request = {"time": time, "client": "192.0.2.1", "method": "GET", "host": "example.com", "path": f"/{name}",
               "protocol": "HTTP/1.1", "status": 200}
    return json.dumps(request)


def decided(program, folder, name, times):
    """True for each request that the program admits."""
    rules, log = folder / "limits.yaml", folder / f"{name}.log"
    rules.write_text(configuration(), encoding="utf-8")
    log.write_text("".join(line(name, at) + "\n" for at in times), encoding="utf-8")
    command = [program, "replay", "--config", rules, "--decisions", log]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    decisions = [row.split("\t")[3] for row in out.splitlines()]
    if len(decisions) != len(times) or not set(decisions) <= {"admitted", "refused", "delayed"}:
        sys.exit(f"{name}: replay printed\n{out}")
    return [decision != "refused" for decision in decisions]


def modelled(model, now):
    return model.release(now) is not None if isinstance(model, LeakyBucket) else model.admit(now)


def main(arguments):
    if len(arguments) != 1:
        sys.exit("usage: docs/figures/verify.py TIDEGATE")
    with tempfile.TemporaryDirectory() as folder:
        for name, _, model, times in LIMITS:
            shown = [modelled(model, round(1000 * at)) for at in times]
            admitted = decided(arguments[0], Path(folder), name, times)
            if shown != admitted:
                sys.exit(f"{name}: at {times} s the figure shows {shown}, and tidegate decides {admitted}")
    print(f"{len(LIMITS)} limits decide as their figures show")


if __name__ == "__main__":
    main(sys.argv[1:])
