"""The throttle: users that became active at one gateway are known at the others."""

import time

import gateways
from engine import Failed
from load import Known, send_tokens
from network import GATEWAYS, REDIS, cut, heal

USERS = 60
# Two seconds, and half a second for the check itself: healing takes a part of it, and all containers share the cores.
LIMIT = 2.5


def tokens(group):
    return [f"{group}-{number}" for number in range(USERS)]


def become_active(group, name):
    """Sends one request of each user to a gateway, while it admits all."""
    admitted = send_tokens("/users", tokens(group), name).total()
    if admitted != USERS:
        raise Failed(f"{name} admitted {admitted} of {USERS} new users while the throttle was off")


def are_known(group, name):
    """True if the gateway admits each user of the group while it refuses new ones."""
    return send_tokens("/users", tokens(group), name).total() == USERS


def is_refused(token, name):
    return send_tokens("/users", [token], name).total() == 0


def throttle(state):
    """One gateway is cut off from Redis; users become active on both sides; the partition heals."""
    cut("g1", REDIS)
    gateways.wait_lost(["g1"])
    become_active("cut-off", "g1")
    become_active("elsewhere", "g2")
    time.sleep(2)
    gateways.set_throttle("on")
    try:
        # The partition really separates them.
        if are_known("cut-off", "g3") or are_known("elsewhere", "g1"):
            raise Failed("users crossed the partition")
        seconds = heal_and_agree(state)
        if not all(is_refused(f"unknown-{name}", name) for name in GATEWAYS):
            raise Failed("a new user was admitted")
        estimates = [gateways.throttle(name)["active"] for name in GATEWAYS]
    finally:
        gateways.set_throttle("auto")
    expected = f"expected at most {LIMIT} s"
    if seconds > LIMIT:
        raise Failed(f"the gateways know {USERS} users of each side {seconds:.2f} s after the partition, {expected}")
    return f"{USERS} users of each side known at every gateway {seconds:.2f} s after the partition, {expected}; active users: {estimates}"


def heal_and_agree(state):
    """Heals the partition. Returns the seconds until each gateway knows the users of the other side."""
    asked = ask_for([("g2", "cut-off"), ("g3", "cut-off"), ("g1", "elsewhere")])
    time.sleep(1)
    began = time.time()
    if state.breakage != "no healing":
        heal("g1")
    return asked.seconds_since(began)


def ask_for(pairs):
    """Asks each gateway for the users of a group until it knows all of them, at most 20 s."""
    return Known("/users", [(name, tokens(group)) for name, group in pairs], 20)
