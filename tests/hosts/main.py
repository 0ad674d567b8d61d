"""Runs the checks, one after the other. Called by scripts/check-hosts."""

import argparse
import pathlib
import re
import signal
import sys
import tempfile
from dataclasses import dataclass

import cluster
import engine
import gateways
import load
import network
import operations
import quotas
import redis_faults
import users


@dataclass
class Check:
    name: str
    title: str
    run: object
    # What `--break` changes, and a pattern of the message with which the check must then fail.
    breakage: str
    message: str


CHECKS = [
    Check("calm", "three gateways, no fault", quotas.calm, "no Redis", r"300 admitted, the quota is 100"),
    Check(
        "cut-one", "one gateway is cut off from Redis", quotas.cut_one,
        "open", r"the gateway without Redis admitted 100, its share is 34",
    ),
    Check("cut-all", "all gateways are cut off from Redis, twice", quotas.cut_all, "open", r".* admitted, the bound is 202"),
    Check(
        "policies", "the same with `on_failure: open` and `closed`", quotas.policies,
        "not open", r"`open` admitted 34 of 150",
    ),
    Check(
        "split", "a master and one gateway are cut off from the rest", redis_faults.split,
        "open", r"\d+ admitted, the bound is 257",
    ),
    Check(
        "isolated", "a master is cut off from the other servers of Redis", redis_faults.isolated,
        "open", r"\d+ admitted, the bound is 257",
    ),
    Check(
        "delay", "Redis is slow for one gateway", redis_faults.delay,
        "open", r"the slow gateway admitted 100, its share is 34",
    ),
    Check(
        "loss", "packets between one gateway and Redis are lost", redis_faults.loss,
        "open", r"\d+ admitted with \d+ % lost, the bound is 134",
    ),
    Check(
        "clock", "the clock of one gateway is 3 minutes ahead", operations.clock,
        "own clock", r"seconds until the reset: .*'g1': 1\d\d",
    ),
    Check(
        "upgrade", "gateways are replaced one after the other, under load", operations.upgrade,
        "kill", r"\d+ of \d+ requests failed",
    ),
    Check(
        "killed-gateway", "the host of a gateway is lost", operations.killed_gateway,
        "lost counts", r"10\d admitted, the quota is 100",
    ),
    Check(
        "killed-permits", "the same with requests in flight", operations.killed_permits,
        "long lease", r"5 admitted 5.6 s later, the quota is 10",
    ),
    Check(
        "killed-master", "a master of Redis is killed", redis_faults.killed_master,
        "open", r"\d+ admitted, the bound is 202",
    ),
    Check(
        "throttle", "users become active on both sides of a partition", users.throttle,
        "no healing", r"after \d+ s gateways do not know",
    ),
]


@dataclass
class State:
    """What a check can use."""

    gateways: gateways.Gateways
    breakage: str | None


def parse():
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(prog="scripts/check-hosts")
    parser.add_argument("--binary", type=pathlib.Path, help="the program, by default target/debug/tidegate")
    parser.add_argument("--image", help="an image with the program, such as tidegate, in place of --binary")
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="runs one check; may be repeated")
    parser.add_argument("--break", dest="broken", metavar="NAME", choices=[*names, "all"], help="runs one check that must fail; `all`: each")
    options = parser.parse_args()
    if options.binary and options.image:
        parser.error("--binary and --image exclude each other")
    options.binary = (options.binary or pathlib.Path("target/debug/tidegate")).resolve()
    if not options.image and not options.binary.is_file():
        parser.error(f"there is no {options.binary}: build it with cargo build, or name another one with --binary")
    return options


def start_all(state):
    tests = str(pathlib.Path(__file__).resolve().parent)
    network.make_networks()
    engine.run(
        "upstream", "--network", network.BACK_NAME, "--ip", network.back(network.UPSTREAM),
        "--volume", f"{tests}:/hosts:ro", engine.TOOLS, "python3", "/hosts/upstream.py",
    )
    engine.run(
        "client", "--network", network.FRONT_NAME, "--ip", network.front(network.CLIENT),
        "--init", "--volume", f"{tests}:/hosts:ro", engine.TOOLS, "sleep", "infinity",
    )
    engine.docker("cp", "--follow-link", f"{engine.PREFIX}client:/usr/lib/libfaketimeMT.so.1", str(state.gateways.preload))
    hosts = {**network.GATEWAYS, **network.REDIS}
    network.together(lambda name: network.start_host(name, hosts[name], tests), hosts)
    for name, number in network.GATEWAYS.items():
        network.join_front(name, number)
    cluster.start()
    network.together(state.gateways.start, network.GATEWAYS)
    if state.breakage != "no Redis":
        gateways.wait_shared()


def run_checks(state, checks):
    """Runs the checks. Gives a row for each result."""
    for check in checks:
        yield f"| {check.title} | {check.run(state)} |"
    yield f"| responses of 500 and above, and broken connections, in all checks | {load.Totals.errors} of {load.Totals.requests} |"


def run(options, checks, breakage):
    """Starts all hosts, runs the checks and removes the hosts. Gives the rows of the results."""
    engine.remove_all()
    with tempfile.TemporaryDirectory() as work:
        state = State(gateways.Gateways(options, work, breakage), breakage)
        try:
            start_all(state)
            yield from run_checks(state, checks)
        finally:
            engine.remove_all()


def broken(options, check):
    """Runs a check with its fault, and returns the message with which it failed."""
    try:
        rows = list(run(options, [check], check.breakage))
    except engine.Failed as fault:
        message = str(fault)
    else:
        raise engine.Failed(f"{check.name} does not notice: {check.breakage}; {rows[0]}")
    if not re.match(check.message, message):
        raise engine.Failed(f"{check.name} failed for another reason than {check.message!r}: {message}")
    return message


def main():
    options = parse()
    # An interrupt or SIGTERM ends the checks as a fault does, so that containers are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checks = [check for check in CHECKS if check.name in (options.only or [check.name])]
    try:
        if options.broken == "all":
            for check in CHECKS:
                print(f"--break {check.name} ({check.breakage}): {broken(options, check)}", flush=True)
        elif options.broken:
            raise engine.Failed(broken(options, next(check for check in CHECKS if check.name == options.broken)))
        else:
            print("| check | result |\n|---|---|", flush=True)
            for row in run(options, checks, None):
                print(row, flush=True)
    except engine.Failed as fault:
        print(f"scripts/check-hosts: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("scripts/check-hosts: interrupted", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
