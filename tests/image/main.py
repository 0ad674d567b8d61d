"""Runs the checks, one after the other. Called by scripts/check-image."""

import argparse
import signal
import sys
from dataclasses import dataclass

import alone
import composed
import engine
import mounts


@dataclass
class Row:
    name: str
    title: str
    run: object
    # What `--break` changes, and the beginning of the message with which the check must then fail.
    breakage: str
    message: str


ROWS = [
    Row("build", "build", alone.build, "the Dockerfile's build has a wrong option", "docker build: "),
    Row("size", "size", alone.size, "a file of 40 MiB more", "the image has "),
    Row("user", "user", alone.user, "the image's user is root", "it runs as root"),
    Row("shell", "shell, package manager", alone.shell, "a file /usr/bin/sh", "the image has usr/bin/sh"),
    Row("start", "start to the first response", alone.start, "its configuration listens on loopback", "no response: "),
    Row(
        "rights", "read-only root, no capabilities", alone.rights,
        "its configuration writes a log into /tmp", "no response: tidegate: cannot open the access log",
    ),
    Row(
        "quota", "its own configuration", alone.quota,
        "a quota of 50 in place of 5", "the quota is 5, and six requests are answered with 200 200 200 200 200 200",
    ),
    Row(
        "health", "health check", alone.health,
        "it asks for a file that is not there", "the gateway is not healthy: tidegate: /etc/other.yaml: the file does not exist",
    ),
    Row("log", "log", alone.log, "--log off", "the log does not name the listener"),
    Row("hup", "SIGHUP", mounts.hang_up, "the file is faulty", "no reload after SIGHUP"),
    Row("term", "SIGTERM", alone.term, "the image stops by SIGKILL", "exit code 137 after its stop signal"),
    Row(
        "changed", "a file of a mounted folder changes", mounts.changed,
        "the file is mounted, not its folder", "a change in a mounted folder was not noticed",
    ),
    Row(
        "faulty", "a faulty file", mounts.faulty,
        "the container is started again with it", "a faulty file ended the service",
    ),
    Row("fault", "the fault of the file", mounts.fault, "the file has none", "the log does not name the fault"),
    Row(
        "swapped", "a link is swapped, as by Kubernetes", mounts.swapped,
        "the file is mounted, as by `subPath`", "a swapped link was not noticed",
    ),
    Row("volume", "a new volume for certificates", mounts.volume, "it belongs to root", "the storage was refused: "),
    Row(
        "compose", "compose up", composed.compose,
        "another port of the sample server", "no response of the sample server, but the statuses ",
    ),
    Row(
        "compose-quota", "compose: the quota", composed.quota,
        "the route has no limit by caller", "the quota is 5, and six requests are answered with 200 200 200 200 200 200",
    ),
    Row(
        "compose-token", "compose: the admin API", composed.token,
        "a server without tokens has its port", "the admin API answers without its token: ",
    ),
    Row(
        "compose-metrics", "compose: metrics", composed.metrics,
        "the gateway has another token", "no metrics with the token: 401",
    ),
    Row(
        "scaled", "two gateways, one Redis", composed.scaled,
        "each counts in its memory", "two gateways admitted 100 of 100 requests",
    ),
    Row(
        "down", "compose down with 20 requests in flight", composed.down,
        "a grace period of 1 s", "compose down lost requests",
    ),
]


def parse():
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="scripts/check-image")
    parser.add_argument("--built", action="store_true", help="checks the image as it is")
    parser.add_argument("--only", metavar="ROW", action="append", choices=names, help="runs one check; may be repeated")
    parser.add_argument(
        "--break", dest="broken", metavar="ROW", choices=[*names, "all"],
        help="runs one check of a built image with a fault that must make it fail; `all`: each, and fails if one does not",
    )
    return parser.parse_args()


def run_checks(rows):
    print("| check | result |\n|---|---|", flush=True)
    for row in rows:
        print(f"| {row.title} | {row.run(None)} |", flush=True)


def broken(row):
    """Runs a check with its fault, and returns the message with which it failed."""
    try:
        result = row.run(row.breakage)
    except engine.Failed as fault:
        message = str(fault)
    else:
        raise engine.Failed(f"{row.name} does not notice: {row.breakage}; {result}")
    if not message.startswith(row.message):
        raise engine.Failed(f"{row.name} failed for another reason than {row.message!r}: {message}")
    return message


def run_broken(rows):
    print("| check | broken by | message |\n|---|---|---|", flush=True)
    for row in rows:
        print(f"| {row.title} | {row.breakage} | {broken(row)} |", flush=True)


def main():
    options = parse()
    # An interrupt or SIGTERM ends the checks as a fault does, so that containers are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = [row for row in ROWS if row.name in (options.only or [row.name]) and not (options.built and row.name == "build")]
    engine.remove_all()
    try:
        if options.broken == "all":
            run_broken(ROWS)
        elif options.broken:
            raise engine.Failed(broken(next(row for row in ROWS if row.name == options.broken)))
        else:
            run_checks(rows)
    except engine.Failed as fault:
        print(f"scripts/check-image: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("scripts/check-image: interrupted", file=sys.stderr)
        return 1
    finally:
        engine.remove_all()
    return 0


sys.exit(main())
