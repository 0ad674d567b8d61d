"""Quotas while servers of Redis lose each other, or packets between a gateway and Redis are late or lost."""

import time

import cluster
import gateways
from cluster import eventually
from gateways import QUOTA, SHARE
from load import send
from network import GATEWAYS, REDIS, cut, heal, lose, relay, set_delay, together
from quotas import EACH, admits_nothing, expect

USED = 45


def use_some(token):
    """Uses a part of the quota. Returns the master that counts it and its replica, which has the count as well."""
    masters = cluster.masters()
    earlier = {node: cluster.keys(node, "strict") for node in masters}
    used = send("/strict", token, {"g1": USED // 3, "g2": USED // 3, "g3": USED // 3}).total()
    expect(used == USED, f"{used} of {USED} requests were admitted before the fault")
    master = next(node for node in masters if cluster.keys(node, "strict") - earlier[node])
    replica = cluster.replica_of(master)
    cluster.wait_replicated(master, replica)
    return master, replica


def wait_recovered():
    """Waits until the Cluster is whole and every gateway uses it."""
    cluster.wait_healthy()
    gateways.wait_shared()


def partition(token, minority):
    """Cuts a master off from the other servers. The gateways of the minority are alone with it; if there are none, all
    gateways still reach both sides."""
    master, replica = use_some(token)
    others = [node for node in REDIS if node != master]
    majority = [name for name in GATEWAYS if name not in minority]
    together(lambda sides: cut(*sides), [
        (master, others + majority if minority else others),
        *[(name, others) for name in minority],
    ])
    began = time.monotonic()
    admitted = USED
    # The rest of the quota: what the old master counts now is lost when it becomes a replica.
    beside = minority or majority
    admitted += send("/strict", token, {beside[0]: QUOTA - USED}).total()
    # Before, the old master would refuse what is too much, and gateways would remember that.
    cluster.wait_refusing(master)
    while not cluster.is_master(replica):
        admitted += send("/strict", token, EACH).total()
        expect(time.monotonic() - began < 30, "the replica does not take over")
    takeover = time.monotonic() - began
    gateways.wait_redis(majority)
    admitted += send("/strict", token, EACH).total()
    together(heal, [master, *minority])
    back = gateways.wait_redis()
    wait_recovered()
    admits_nothing("/strict", token)
    bound = QUOTA + 3 * SHARE + (QUOTA - USED)
    expect(admitted <= bound, f"{admitted} admitted, the bound is {bound}")
    expect(admitted > QUOTA, f"only {admitted} admitted: the partition had no effect")
    return (f"{admitted} admitted, the bound is {QUOTA} + {3 * SHARE} + {QUOTA - USED} lost counts; "
            f"replica took over after {takeover:.1f} s; shared again {back:.2f} s after the partition")


def split(_):
    """A master and one gateway on one side, all others on the other side."""
    return partition("split", ["g1"])


def isolated(_):
    """A master cannot reach the other servers; gateways reach all."""
    return partition("isolated", [])


def killed_master(_):
    """A master is killed; its replica has its counts."""
    master, replica = use_some("killed-master")
    cluster.kill_server(master)
    first = send("/strict", "killed-master", EACH)
    takeover = eventually("the replica takes over", lambda: cluster.is_master(replica))
    back = gateways.wait_redis()
    second = send("/strict", "killed-master", EACH)
    cluster.start_server(master)
    wait_recovered()
    admits_nothing("/strict", "killed-master")
    total, bound = USED + first.total() + second.total(), QUOTA + 3 * SHARE
    expect(total <= bound, f"{total} admitted, the bound is {bound}")
    expect(total >= QUOTA, f"{total} admitted, the quota is {QUOTA}")
    return f"{total} admitted, the bound is {QUOTA} + {3 * SHARE}; replica took over after {takeover:.1f} s, shared again {back:.2f} s later"


def delay(state):
    """Redis is slow for one gateway, then slower than `response_timeout`."""
    state.gateways.stop("g1")
    relay("g1", 20)
    state.gateways.start("g1")
    gateways.wait_shared()
    slow = send("/strict", "delay", EACH)
    expect(slow.total() == QUOTA, f"with 40 ms {slow.total()} were admitted, the quota is {QUOTA}")

    set_delay("g1", 1000)
    stalled = send("/strict", "stall", EACH)
    expect(stalled.at("g1") <= SHARE, f"the slow gateway admitted {stalled.at('g1')}, its share is {SHARE}")
    set_delay("g1", 20)
    back = gateways.wait_redis()
    total, bound = stalled.total(), QUOTA + SHARE
    # Charges that timed out are given back when their replies arrive.
    for _ in range(4):
        if total - stalled.at("g1") < QUOTA:
            total += send("/strict", "stall", {name: 30 for name in GATEWAYS}).total()
    expect(total <= bound, f"with 2 s {total} were admitted, the bound is {bound}")
    state.gateways.stop("g1")
    heal("g1")
    state.gateways.start("g1")
    gateways.wait_shared()
    return (f"40 ms: {slow.total()} admitted, the quota is {QUOTA}; 2 s: {total}, the bound is {bound}, "
            f"slowest response {stalled.slowest:.2f} s, shared again after {back:.2f} s")


def loss(state):
    """Packets between one gateway and Redis are lost."""
    results = []
    # TCP sends a fifth again in time: only heavier losses make a gateway decide alone, as `on_failure` says.
    for percent in (5, 90 if state.breakage else 20):
        lose("g1", REDIS, percent / 100)
        bursts = [send("/strict", f"loss-{percent}-{number}", EACH) for number in range(4)]
        heal("g1")
        back = gateways.wait_redis()
        most, bound = max(burst.total() for burst in bursts), QUOTA + SHARE
        expect(most <= bound, f"{most} admitted with {percent} % lost, the bound is {bound}")
        least = min(burst.total() for burst in bursts)
        expect(least > QUOTA - 10, f"only {least} admitted with {percent} % lost, the quota is {QUOTA}")
        slowest = max(burst.slowest for burst in bursts)
        results.append(f"{percent} %: {least} to {most} admitted, slowest response {slowest:.2f} s, shared again after {back:.2f} s")
    return f"{'; '.join(results)}; the bound is {bound}"
