"""Quotas while gateways lose Redis: the bounds of docs/src/redis/failures.md."""

import gateways
from engine import Failed
from gateways import QUOTA, SHARE
from load import send
from network import GATEWAYS, REDIS, cut, heal, together

EACH = {name: 100 for name in GATEWAYS}


def expect(holds, fault):
    if not holds:
        raise Failed(fault)


def admits_nothing(path, token):
    """Redis' count of this caller is used up at every gateway."""
    after = send(path, token, {name: 30 for name in GATEWAYS}).total()
    expect(after == 0, f"{after} more requests were admitted when Redis was back")


def calm(_):
    """300 requests at once over three gateways."""
    strict = send("/strict", "calm", EACH).total()
    expect(strict == QUOTA, f"{strict} admitted, the quota is {QUOTA}")
    leased = send("/leased", "calm", EACH).total()
    # Units that a gateway could not use return after a second.
    for _ in range(5):
        if leased < QUOTA:
            leased += send("/leased", "calm", {name: 20 for name in GATEWAYS}).total()
    expect(leased == QUOTA, f"{leased} admitted with leases, the quota is {QUOTA}")
    return f"300 requests at once: {strict} admitted; with leases {leased}; the quota is {QUOTA}"


def cut_one(_):
    """One gateway cannot reach Redis."""
    cut("g1", REDIS)
    burst = send("/strict", "cut-one", EACH)
    alone, others = burst.at("g1"), burst.total() - burst.at("g1")
    expect(alone <= SHARE, f"the gateway without Redis admitted {alone}, its share is {SHARE}")
    expect(others == QUOTA, f"the others admitted {others}, the quota is {QUOTA}")
    expect(alone > SHARE - 5, f"the gateway without Redis admitted only {alone}, its share is {SHARE}")
    heal("g1")
    seconds = gateways.wait_redis()
    admits_nothing("/strict", "cut-one")
    return f"{others} + {alone} admitted, the bound is {QUOTA} + {SHARE}; slowest response {burst.slowest:.2f} s; shared again after {seconds:.2f} s"


def cut_all(_):
    """No gateway can reach Redis, twice; the quota was used up before."""
    before = send("/strict", "cut-all", {"g1": 34, "g2": 33, "g3": 33}).total()
    expect(before == QUOTA, f"{before} of 100 requests were admitted before the loss")
    during, seconds = [], 0
    for _ in range(2):
        together(lambda name: cut(name, REDIS), GATEWAYS)
        burst = send("/strict", "cut-all", EACH)
        during.append(burst.total())
        together(heal, GATEWAYS)
        seconds = max(seconds, gateways.wait_shared())
    total, bound = before + sum(during), QUOTA + 3 * SHARE
    expect(total <= bound, f"{before} + {during} admitted, the bound is {bound}")
    expect(during[0] > 3 * SHARE - 15, f"without Redis only {during[0]} were admitted, the shares are {3 * SHARE}")
    admits_nothing("/strict", "cut-all")
    return f"{before} before, {during[0]} and {during[1]} in two losses, the bound is {bound} in total; shared again after {seconds:.2f} s"


def policies(_):
    """What `open` and `closed` do at a gateway without Redis."""
    cut("g1", REDIS)
    passed = send("/passing", "policies", {"g1": 150}).total()
    expect(passed == 150, f"`open` admitted {passed} of 150")
    refused = send("/refusing", "policies", {"g1": 20}, tolerated=[503])
    waits = {one["rate"]["Retry-After"] for one in refused.results}
    expect(refused.statuses == {503: 20} and waits == {"1"}, f"`closed`: {refused.statuses}, Retry-After {waits}")
    heal("g1")
    gateways.wait_redis()
    return f"`open`: {passed} of 150 admitted; `closed`: 20 of 20 answered with 503 and `Retry-After: 1`, as configured"
