"""Hosts on two private networks, and what can go wrong between them.

A host is a container that only holds an address. A gateway or a server of Redis runs in a container beside it, so the address
stays when the program is killed or replaced. Rules of iptables in the host cut it off, lose packets, or send connections through a relay.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import engine

# The first two numbers of all addresses.
BASE = os.environ.get("TIDEGATE_HOSTS_NETWORK", "10.231")
FRONT = f"{BASE}.1.0/24"
BACK = f"{BASE}.0.0/24"
FRONT_NAME = f"{engine.PREFIX}{BASE}-front"
BACK_NAME = f"{engine.PREFIX}{BASE}-back"
RELAY_PORT = "7000"
RELAY_USER = "77"

GATEWAYS = {"g1": "11", "g2": "12", "g3": "13"}
REDIS = {f"r{number}": str(20 + number) for number in range(1, 7)}
UPSTREAM = "31"
CLIENT = "41"


def front(number):
    return f"{BASE}.1.{number}"


def back(number):
    return f"{BASE}.0.{number}"


def back_address(host):
    """The address by which gateways, servers of Redis and the upstream reach each other."""
    return back({**GATEWAYS, **REDIS}[host])


def together(work, items):
    """Does the work for all items at the same time, and returns the results in their order."""
    items = list(items)
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


def make_networks():
    engine.make_network(FRONT_NAME, FRONT)
    engine.make_network(BACK_NAME, BACK)


def start_host(name, number, tests):
    """Starts a host on the network of servers."""
    engine.run(
        name, "--network", BACK_NAME, "--ip", back(number), "--cap-add", "NET_ADMIN", "--init",
        "--volume", f"{tests}:/hosts:ro", "--volume", "/data", engine.TOOLS, "sleep", "infinity",
    )
    # Chains of their own, so that `heal` removes only the rules of this file.
    script = """
        iptables -N HOSTS-IN && iptables -I INPUT -j HOSTS-IN
        iptables -N HOSTS-OUT && iptables -I OUTPUT -j HOSTS-OUT
        iptables -t nat -N HOSTS-RELAY && iptables -t nat -I OUTPUT -j HOSTS-RELAY
    """
    engine.execute(name, "sh", "-ec", script)


def join_front(name, number):
    """Connects a host to the network of clients as well."""
    engine.docker("network", "connect", "--ip", front(number), FRONT_NAME, engine.PREFIX + name)


def cut(name, peers):
    """Drops every packet between the host and its peers: neither side learns of it."""
    rules = [
        f"iptables -A HOSTS-IN -s {back_address(peer)} -j DROP; iptables -A HOSTS-OUT -d {back_address(peer)} -j DROP"
        for peer in peers
    ]
    engine.execute(name, "sh", "-ec", "\n".join(rules))


def vanish(name):
    """Drops every packet of the host, as when its power fails."""
    engine.execute(name, "sh", "-ec", "iptables -A HOSTS-IN -j DROP; iptables -A HOSTS-OUT -j DROP")


def lose(name, peers, probability):
    """Drops a share of the packets between the host and its peers, in each direction."""
    loss = f"-m statistic --mode random --probability {probability} -j DROP"
    rules = [
        f"iptables -A HOSTS-IN -s {back_address(peer)} {loss}; iptables -A HOSTS-OUT -d {back_address(peer)} {loss}"
        for peer in peers
    ]
    engine.execute(name, "sh", "-ec", "\n".join(rules))


def relay(name, delay_ms):
    """Sends new connections to Redis through a relay that holds every byte for this time, in each direction."""
    set_delay(name, delay_ms)
    engine.start_command(name, "python3", "/hosts/relay.py", RELAY_PORT, user=RELAY_USER)
    rule = f"-p tcp -d {BACK} --dport 6379 -m owner ! --uid-owner {RELAY_USER} -j REDIRECT --to-ports {RELAY_PORT}"
    engine.execute(name, "sh", "-ec", f"iptables -t nat -A HOSTS-RELAY {rule}")


def set_delay(name, delay_ms):
    engine.execute(name, "sh", "-ec", f"echo {delay_ms} > /tmp/delay.new; mv /tmp/delay.new /tmp/delay")


def heal(name):
    """Removes all rules of this file. Connections through the relay remain until the gateway ends."""
    engine.execute(name, "sh", "-ec", "iptables -F HOSTS-IN; iptables -F HOSTS-OUT; iptables -t nat -F HOSTS-RELAY")
