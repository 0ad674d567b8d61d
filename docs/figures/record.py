#!/usr/bin/env python3
"""Records a terminal: the gateway on config/tidegate.yaml, and a client that gets a 429.

    docs/figures/record.py TIDEGATE     writes docs/src/images/terminal.svg

Runs the program and curl, on the ports 8080 and 9900 of loopback. The picture plays the run once, in real time with pauses
before commands; where animations do not run, it shows the end.
"""

import os
import pty
import re
import select
import subprocess
import sys
import time
from html import escape

import kit

ROOT = kit.FOLDER.parent.parent.parent
COLUMNS, COLUMN, LINE = 96, 8.0, 17
WIDTH = int(COLUMNS * COLUMN) + 32
SERVE = "tidegate serve config/tidegate.yaml"
LOOP = """for i in 1 2 3 4 5 6; do
  curl -so /dev/null -w '%{http_code} %header{x-ratelimit-remaining} left\\n' localhost:8080
done"""
LAST = "curl -i localhost:8080"
STYLES = {"2": "dim", "3": "dim", "31": "red", "32": "green", "33": "yellow"}
# Of the gateway's lines: where it listens, and requests.
SHOWN = re.compile(r"^listening on|(200|429)\S* GET ")
PAUSE = 1.2


class Terminal:
    """A program in a pseudo-terminal, and its lines with the time of each."""

    def __init__(self, command):
        own, other = pty.openpty()
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.file, self.text, self.lines = own, "", []

    def read(self, until):
        """Reads until the program has printed `until`, or its end."""
        deadline = time.monotonic() + 20
        while until is None or not any(until in line for _, line in self.lines):
            if time.monotonic() > deadline:
                sys.exit(f"expected `{until}` within 20 s, got {self.lines}")
            if select.select([self.file], [], [], 0.1)[0] and not self._read_some():
                break

    def read_for(self, seconds):
        """Reads what the program prints in this time: the access log is written about once a second."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.file], [], [], 0.1)[0]:
                self._read_some()

    def _read_some(self):
        try:
            read = os.read(self.file, 65_536)
        except OSError:
            return False
        *lines, self.text = (self.text + read.decode()).split("\n")
        self.lines += [(time.monotonic(), line.rstrip("\r")) for line in lines]
        return bool(read)

    def stop(self):
        self.process.terminate()
        self.read(None)
        self.process.wait()


def run(program):
    """Both terminals: lists of (second, line)."""
    # On one core there is one worker, which logs requests in their order.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gateway = Terminal([program, "serve", "config/tidegate.yaml"])
    server, client = [(0.0, "$ " + SERVE)], []
    try:
        gateway.read("listening on")
        second = PAUSE
        server += [(second, line) for _, line in gateway.lines if SHOWN.search(line)]
        for command in (LOOP, LAST):
            seen = len(gateway.lines)
            second += PAUSE
            client += [(second, ("> " if index else "$ ") + line) for index, line in enumerate(command.split("\n"))]
            start = time.monotonic() - second - PAUSE
            own = Terminal(["bash", "-c", command])
            own.read(None)
            own.process.wait()
            client += [(at - start, line) for at, line in own.lines]
            gateway.read_for(2)
            logged = [line for _, line in gateway.lines[seen:] if SHOWN.search(line)]
            second = client[-1][0] + PAUSE / 2
            server += [(second, line) for line in logged]
    finally:
        gateway.stop()
    return server, client


def spans(line):
    """The line's parts: (text, style). A longer line ends with its last whole field."""
    parts, style, left = [], None, COLUMNS - (2 if "\x1b" in line else 0)
    for piece in re.split(r"(\x1b\[[\d;]*m)", line):
        if piece.startswith("\x1b["):
            style = STYLES.get(piece[2:-1])
        elif len(piece) > left:
            return parts[:-1] + [("…", "dim")]
        elif piece:
            parts.append((piece, style))
            left -= len(piece)
    return parts


def wrapped(line):
    """The line as a terminal breaks it, if it has no colours."""
    if "\x1b" in line:
        return [line]
    return [line[start : start + COLUMNS] for start in range(0, len(line), COLUMNS)] or [""]


def styled(line):
    """What the run printed, in colours; commands in bold."""
    if line.startswith(("$ ", "> ")):
        prompt, words = escape(line[0]), escape(line[1:], quote=False)
        return f'<tspan class="green">{prompt}</tspan><tspan class="bold">{words}</tspan>'
    status = re.match(r"(200|429)( \d left)|(HTTP/1.1 )(429.*)", line)
    if status:
        word, rest = (status[1], status[2]) if status[1] else (status[4], "")
        colour = "green" if word == "200" else "red"
        return f'{status[3] or ""}<tspan class="{colour}">{word}</tspan>{rest}'
    words = []
    for text, style in spans(line):
        shown = escape(text, quote=False)
        words.append(f'<tspan class="{style}">{shown}</tspan>' if style else shown)
    return "".join(words)


def window(top, name, lines):
    """A terminal's frame with its lines. Returns the elements and its lower edge."""
    rows = [(at, row) for at, line in lines for row in wrapped(line)]
    height = 34 + LINE * len(rows) + 10
    parts = [
        f'<rect x="0.5" y="{top + 0.5}" width="{WIDTH - 1}" height="{height}" rx="8" class="bg"/>',
        f'<text x="16" y="{top + 23}" class="dim">{name}</text>',
    ]
    for index, (at, row) in enumerate(rows):
        y = top + 34 + LINE * (index + 1) - 4
        parts.append(f'<text x="16" y="{y}" xml:space="preserve" style="animation-duration:{at:.2f}s">{styled(row)}</text>')
    return parts, top + height


def picture(server, client):
    above, edge = window(0, "terminal 1", server)
    below, edge = window(edge + 10, "terminal 2", client)
    height = edge + 2
    style = (
        "text{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dde4;"
        "animation-name:hide}@keyframes hide{from,to{opacity:0}}"
        "@media (prefers-reduced-motion:reduce){text{animation-name:none}}"
        ".bg{fill:#10161d;stroke:#3a434d}.dim{fill:#97a3af}.bold{font-weight:600;fill:#fff}"
        ".green{fill:#56d364}.yellow{fill:#e3b341}.red{fill:#ff8a80}"
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="t d">',
        '<title id="t">Tidegate in a terminal</title>',
        '<desc id="d">The gateway starts. Five requests get 200, with 4, 3, 2, 1 and 0 left; the sixth gets 429. '
        "Another one shows the headers of the 429: Retry-After, X-RateLimit-Limit, Remaining, Used and Reset.</desc>",
        f"<style>{style}</style>",
    ]
    return "\n".join(head + above + below + ["</svg>"]) + "\n"


def main(arguments):
    if len(arguments) != 1:
        sys.exit("usage: docs/figures/record.py TIDEGATE")
    server, client = run(os.path.abspath(arguments[0]))
    statuses = [line[:3] for _, line in client if re.match(r"\d{3} ", line)]
    if statuses != ["200"] * 5 + ["429"]:
        sys.exit(f"expected five times 200 and then 429, got {statuses}")
    (kit.FOLDER / "terminal.svg").write_text(picture(server, client), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
