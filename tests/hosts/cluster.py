"""A Redis Cluster of three masters, each with a replica."""

import time

import engine
from engine import Failed
from network import REDIS, back_address, together

NODE_TIMEOUT_MS = 1500


def start_server(node):
    """Starts the server of a node, empty and in no Cluster unless `/data` of its host has the file of an earlier one."""
    engine.run_beside(
        f"{node}-redis", node, "--volumes-from", engine.PREFIX + node,
        engine.TOOLS, "redis-server", "--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "",
        "--appendonly", "no", "--dir", "/data", "--cluster-enabled", "yes", "--cluster-config-file", "/data/nodes.conf",
        "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-allow-replica-migration", "no",
        "--repl-diskless-sync-delay", "0",
    )


def kill_server(node):
    """Kills the server of a node; its host stays."""
    engine.docker("kill", f"{engine.PREFIX}{node}-redis")
    engine.docker("rm", "--force", f"{engine.PREFIX}{node}-redis")


def start():
    """Makes the Cluster of the servers on the hosts."""
    together(start_server, REDIS)
    addresses = [f"{back_address(node)}:6379" for node in REDIS]
    eventually("every server of Redis replies", lambda: all(ping(node) for node in REDIS))
    command("r1", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes")
    wait_healthy()


def command(node, *arguments):
    """Runs redis-cli at a node."""
    return engine.execute(node, "redis-cli", *arguments).strip()


def ping(node):
    try:
        return command(node, "PING") == "PONG"
    except Failed:
        return False


def replication(node):
    text = command(node, "INFO", "replication")
    return dict(line.split(":", 1) for line in text.split() if ":" in line)


def is_master(node):
    return replication(node)["role"] == "master"


def masters():
    return [node for node, master in zip(REDIS, together(is_master, REDIS)) if master]


def is_healthy():
    """True if every node serves, there are three masters, and every replica is connected."""
    def state(node):
        info = replication(node)
        serves = "cluster_state:ok" in command(node, "CLUSTER", "INFO")
        return info["role"], serves and info.get("master_link_status", "up") == "up"

    try:
        states = together(state, REDIS)
    except Failed:
        return False
    return all(healthy for _, healthy in states) and [role for role, _ in states].count("master") == 3


def wait_healthy():
    eventually("the Cluster is healthy", is_healthy, seconds=60)


def replica_of(master):
    for node in REDIS:
        if replication(node).get("master_host") == back_address(master):
            return node
    raise Failed(f"{master} has no replica")


def keys(node, limit):
    """The records of a limit at a node."""
    return set(command(node, "--scan", "--pattern", f"tidegate:*:{limit}:*").split())


def forget():
    """Removes all records."""
    together(lambda node: command(node, "FLUSHALL"), masters())


def wait_replicated(master, replica):
    """Waits until the replica has the counts that the master has now."""
    offset = int(replication(master)["master_repl_offset"])
    eventually("the replica has all writes", lambda: int(replication(replica)["slave_repl_offset"]) >= offset)


def wait_refusing(master):
    """Waits until a master that is in the minority refuses commands."""
    eventually("the master refuses commands", lambda: "cluster_state:fail" in command(master, "CLUSTER", "INFO"))


def eventually(what, holds, seconds=30):
    """Waits until this holds, and returns the seconds that it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began
