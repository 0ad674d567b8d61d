"""Containers and networks of the Docker engine. Everything made here is removed at the end."""

import subprocess
import sys
import time

PREFIX = "tidegate-hosts-"
LABEL = "tidegate.hosts"
TOOLS = "tidegate-hosts"


class Failed(Exception):
    """A check that does not hold, or a command that failed."""


def docker(*arguments, text=None, timeout=60):
    """Runs a command of docker and returns its standard output."""
    done = subprocess.run(["docker", *arguments], input=text, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise Failed(f"docker {' '.join(arguments[:4])} ...: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def run(name, *arguments):
    """Starts a container in the background. The arguments are those of `docker run`."""
    full = PREFIX + name
    docker("run", "--detach", "--name", full, "--hostname", name, "--label", LABEL, *arguments)


def run_beside(name, host, *arguments):
    """Starts a container that shares the network of another one."""
    docker("run", "--detach", "--name", PREFIX + name, "--label", LABEL, "--network", f"container:{PREFIX}{host}", *arguments)


def execute(name, *command, user="root"):
    """Runs a command in a container and returns its standard output."""
    return docker("exec", "--user", user, PREFIX + name, *command)


def start_command(name, *command, user="root"):
    """Starts a command in a container, in the background."""
    docker("exec", "--detach", "--user", user, PREFIX + name, *command)


def is_running(name):
    return docker("inspect", "--format", "{{.State.Running}}", PREFIX + name).strip() == "true"


def logs(name, lines=15):
    """The end of a container's output."""
    done = subprocess.run(["docker", "logs", "--tail", str(lines), PREFIX + name], capture_output=True, text=True)
    return done.stdout + done.stderr


def make_network(name, subnet):
    docker("network", "create", "--label", LABEL, "--subnet", subnet, name)


def remove_all():
    """Removes every container and network with the label, also those of an earlier run that was killed."""
    containers = docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}").split()
    if containers:
        docker("rm", "--force", "--volumes", *containers, timeout=120)
    for network in docker("network", "ls", "--quiet", "--filter", f"label={LABEL}").split():
        remove_network(network)


def remove_network(network):
    """Removes a network. A warning if the engine still counts a container that has ended: only its restart helps."""
    for _ in range(10):
        try:
            docker("network", "rm", network)
            return
        except Failed as fault:
            reason = fault
            time.sleep(0.5)
    print(f"scripts/check-hosts: {reason}\nUse other addresses until the engine was restarted: TIDEGATE_HOSTS_NETWORK=10.232", file=sys.stderr)
