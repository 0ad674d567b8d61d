"""Runs the checks, one after the other. Called by scripts/check-hosts."""

import argparse
import pathlib
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
    # What `--break` changes, to show that the check can fail.
    breakage: str


CHECKS = [
    Check("calm", "three gateways, no fault", quotas.calm, "no Redis"),
    Check("cut-one", "one gateway is cut off from Redis", quotas.cut_one, "open"),
    Check("cut-all", "all gateways are cut off from Redis, twice", quotas.cut_all, "open"),
    Check("policies", "the same with `on_failure: open` and `closed`", quotas.policies, "not open"),
    Check("split", "a master and one gateway are cut off from the rest", redis_faults.split, "open"),
    Check("isolated", "a master is cut off from the other servers of Redis", redis_faults.isolated, "open"),
    Check("delay", "Redis is slow for one gateway", redis_faults.delay, "open"),
    Check("loss", "packets between one gateway and Redis are lost", redis_faults.loss, "open"),
    Check("clock", "the clock of one gateway is 3 minutes ahead", operations.clock, "open"),
    Check("upgrade", "gateways are replaced one after the other, under load", operations.upgrade, "kill"),
    Check("killed-gateway", "the host of a gateway is lost", operations.killed_gateway, "no Redis"),
    Check("killed-permits", "the same with requests in flight", operations.killed_permits, "long lease"),
    Check("killed-master", "a master of Redis is killed", redis_faults.killed_master, "open"),
    Check("throttle", "users become active on both sides of a partition", users.throttle, "no healing"),
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
    parser.add_argument("--break", dest="broken", metavar="NAME", choices=names, help="runs one check that must fail")
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
    print("| check | result |\n|---|---|", flush=True)
    for check in checks:
        print(f"| {check.title} | {check.run(state)} |", flush=True)
    print(f"| responses of 500 and above, and broken connections, in all checks | {load.Totals.errors} of {load.Totals.requests} |")


def main():
    options = parse()
    # An interrupt or SIGTERM ends the checks as a fault does, so that containers are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checks = [check for check in CHECKS if not options.only or check.name in options.only]
    breakage = None
    if options.broken:
        checks = [check for check in CHECKS if check.name == options.broken]
        breakage = checks[0].breakage
    engine.remove_all()
    with tempfile.TemporaryDirectory() as work:
        state = State(gateways.Gateways(options, work, breakage), breakage)
        try:
            start_all(state)
            run_checks(state, checks)
        except engine.Failed as fault:
            print(f"scripts/check-hosts: {fault}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("scripts/check-hosts: interrupted", file=sys.stderr)
            return 1
        finally:
            engine.remove_all()
    return 0


sys.exit(main())
