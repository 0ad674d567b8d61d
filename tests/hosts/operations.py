"""What operators do, and what happens to hosts: a wrong clock, an upgrade, a killed gateway."""

import email.utils
import threading
import time

import cluster
import gateways
import load
from gateways import QUOTA, SHARE
from load import Steady, send
from network import GATEWAYS, REDIS, cut, heal, vanish
from quotas import EACH, admits_nothing, expect
from users import ask_for, become_active, is_refused

AHEAD = 180


def restart(state, name, clock=None):
    state.gateways.stop(name)
    state.gateways.start(name, clock)
    gateways.wait_shared()


def clock(state):
    """The clock of one gateway is three minutes ahead."""
    restart(state, "g1", f"+{AHEAD}s")
    if state.breakage == "own clock":
        # Without Redis, a gateway's own clock decides.
        cut("g1", REDIS)
    first = send("/short", "clock", {name: 20 for name in GATEWAYS})
    # A refusal has the gateway's own date; other responses have that of the upstream.
    wrong = next(one for one in first.of("g1") if one["status"] == 429)
    ahead = email.utils.parsedate_to_datetime(wrong["rate"]["Date"]).timestamp() - wrong["at"]
    expect(AHEAD - 5 < ahead < AHEAD + 5, f"the clock of g1 is ahead by {ahead:.0f} s, expected {AHEAD}")
    resets = {name: max(int(one["rate"]["X-RateLimit-Reset"]) - one["at"] for one in first.of(name)) for name in GATEWAYS}
    expect(all(0 < reset <= 13 for reset in resets.values()), f"seconds until the reset: {resets}, the window has 10")
    expect(first.total() == 10, f"{first.total()} admitted, the quota is 10")
    time.sleep(max(resets.values()) + 0.1)
    second = send("/short", "clock", {name: 20 for name in GATEWAYS})
    expect(second.total() == 10, f"{second.total()} admitted after the reset, the quota is 10")

    cut("g1", REDIS)
    burst = send("/strict", "clock", EACH)
    expect(burst.at("g1") <= SHARE, f"without Redis g1 admitted {burst.at('g1')}, its share is {SHARE}")
    expect(burst.total() - burst.at("g1") == QUOTA, f"the others admitted {burst.total() - burst.at('g1')}")
    heal("g1")
    gateways.wait_redis()
    admits_nothing("/strict", "clock")

    seconds = agree_on_users()
    restart(state, "g1")
    return (f"{first.total()} of 60 admitted, {second.total()} after the reset, the quota is 10; resets of the three gateways differ by "
            f"{max(resets.values()) - min(resets.values()):.1f} s; without Redis {burst.total()}, the bound is {QUOTA + SHARE}; "
            f"filters agree after {seconds:.2f} s")


def agree_on_users():
    """Users of the gateway with the wrong clock and of another one are known at both. Returns the seconds."""
    become_active("ahead", "g1")
    become_active("right", "g2")
    began = time.time()
    gateways.set_throttle("on")
    try:
        seconds = ask_for([("g2", "ahead"), ("g3", "ahead"), ("g1", "right")]).seconds_since(began)
        expect(all(is_refused(f"new-{name}", name) for name in GATEWAYS), "a new user was admitted")
    finally:
        gateways.set_throttle("auto")
    expect(seconds < 3, f"filters agreed after {seconds:.2f} s, expected two exchanges of at most 1.2 s each")
    return seconds


def upgrade(state):
    """Gateways are replaced one after the other, under load."""
    before = send("/strict", "upgrade", {name: 20 for name in GATEWAYS}).total()
    steady = Steady("/users", "upgrade", 8)
    leased = 0
    slowest = 0
    try:
        time.sleep(1)
        for name in GATEWAYS:
            leased += send("/leased", "upgrade", {name: 10}).total()
            began = time.monotonic()
            if state.breakage == "kill":
                state.gateways.kill(name)
            else:
                state.gateways.stop(name)
            state.gateways.start(name)
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.5)
    finally:
        total, failed, faults = steady.end()
    expect(failed == 0, f"{failed} of {total} requests failed: {faults}")
    gateways.wait_shared()
    strict = before + send("/strict", "upgrade", EACH).total()
    expect(strict == QUOTA, f"{strict} admitted over the upgrade, the quota is {QUOTA}")
    for _ in range(6):
        if leased < QUOTA:
            leased += send("/leased", "upgrade", {name: 40 for name in GATEWAYS}).total()
    expect(leased == QUOTA, f"{leased} admitted with leases over the upgrade, the quota is {QUOTA}")
    return (f"{failed} of {total} requests failed; {strict} admitted before and after, with leases {leased}, the quota is {QUOTA}; "
            f"at most {slowest:.1f} s for a gateway")


def killed_gateway(state):
    """A host with leased units loses its power."""
    held = send("/leased", "killed", {"g1": 5}).total()
    outstanding = int(gateways.metric("g1", "tidegate_store_tokens_outstanding"))
    vanish("g1")
    state.gateways.kill("g1")
    if state.breakage == "lost counts":
        cluster.forget()
    expect(outstanding > 0, "the gateway held no leased units when it was killed")
    rest = 0
    for _ in range(6):
        rest += send("/leased", "killed", {"g2": 60, "g3": 60}).total()
    total = held + rest
    revive(state)
    expect(total <= QUOTA, f"{total} admitted, the quota is {QUOTA}")
    expect(total >= QUOTA - outstanding, f"{total} admitted, the quota is {QUOTA} and {outstanding} units were lost")
    return f"{total} admitted, {outstanding} leased units lost with the host, the quota is {QUOTA}"


def killed_permits(state):
    """A host with requests in flight loses its power: their permits return when their lease ends."""
    lost = threading.Thread(target=hold_permits)
    lost.start()
    time.sleep(1.5)
    began = time.monotonic()
    vanish("g1")
    state.gateways.kill("g1")
    at_once = in_flight("killed-permits")
    time.sleep(max(0, 5.6 - (time.monotonic() - began)))
    later = in_flight("killed-permits")
    lost.join()
    revive(state)
    expect(at_once == 5, f"{at_once} admitted beside 5 permits of the killed host, the quota is 10")
    expect(later == 10, f"{later} admitted 5.6 s later, the quota is 10 and the lease 5 s")
    return f"{at_once} of 10 requests in flight admitted at once, {later} after the lease of 5 s; the host held 5 permits"


def hold_permits():
    """Five requests that are in flight at g1 when it ends."""
    order = [[load.front(GATEWAYS["g1"]), "/in-flight?wait=30", "killed-permits"]] * 5
    load.send_requests(order, 5, [0])


def in_flight(token):
    return send("/in-flight?wait=1", token, {"g2": 10}).total()


def revive(state):
    """Starts the host's gateway again and waits until it has taken the place of the killed one."""
    heal("g1")
    state.gateways.start("g1")
    gateways.wait_shared()
