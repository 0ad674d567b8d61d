"""docker-compose.yml, as it stands and with two gateways."""

import collections
import contextlib
import os
import pathlib
import secrets
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from engine import IMAGE, docker, eventually, expect, get, has_quota_of_five, last_line

PROJECT = "tidegate-check"
TOKEN = secrets.token_hex(32)
GATEWAY, ADMIN = "http://127.0.0.1:8080/", "http://127.0.0.1:9900"
EXAMPLES = "config/examples"
# The quota of an address in compose.yaml. A window and a step later, earlier requests no longer count.
QUOTA, AFTER_WINDOW = 50, 13


def command():
    """`docker compose`, or the program that it replaced."""
    has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    return ["docker", "compose"] if has_plugin else ["docker-compose"]


class Project:
    """The services of docker-compose.yml with the checked image, in a file and with a configuration of their own."""

    def __init__(self, folder):
        self.file = pathlib.Path(folder) / "compose.yml"
        self.configuration = pathlib.Path(folder) / "examples" / "compose.yaml"
        os.chmod(folder, 0o755)
        shutil.copytree(EXAMPLES, self.configuration.parent)
        self.file.write_text(pathlib.Path("docker-compose.yml").read_text())
        change(self.file, "build: .", f"image: {IMAGE}")
        change(self.file, f"./{EXAMPLES}:", f"{self.configuration.parent}:")

    def run(self, *arguments):
        done = subprocess.run(
            [*command(), "--project-name", PROJECT, "--file", str(self.file), *arguments],
            env={**os.environ, "TIDEGATE_ADMIN_TOKEN": TOKEN, "TIDEGATE_SECRET": secrets.token_hex(32)}, capture_output=True, text=True,
        )
        expect(done.returncode == 0, f"compose {arguments[0]}: {last_line(done.stderr)}")
        return done.stdout

    def gateways(self):
        """The addresses of the gateways' published ports."""
        filters = [f"label=com.docker.compose.{key}" for key in (f"project={PROJECT}", "service=gateway")]
        names = docker("ps", "--quiet", "--filter", filters[0], "--filter", filters[1]).split()
        return [f"http://{docker('port', name, '8080/tcp').split()[0]}/" for name in names]

    def wait_answer(self, *addresses):
        """Waits until the sample server answers through each of these gateways."""
        for address in addresses:
            seen = set()

            def answered():
                status, body = get(address, "wait")
                seen.add(status)
                return "Hostname" in body

            # Each request counts for the quota of the address.
            expect(eventually(20, answered, pause=0.5), f"no response of the sample server, but the statuses {sorted(seen)}")


def change(file, old, new):
    text = file.read_text()
    expect(old in text, f"{file.name} has no {old!r}")
    file.write_text(text.replace(old, new))


@contextlib.contextmanager
def project():
    with tempfile.TemporaryDirectory() as folder:
        made = Project(folder)
        try:
            yield made
        finally:
            made.run("down", "--timeout", "1", "--volumes")


def up(made, *arguments):
    made.run("up", "--detach", *arguments)


def compose(breakage):
    with project() as made:
        if breakage:
            change(made.configuration, "http://whoami:80", "http://whoami:81")
        up(made)
        made.wait_answer(GATEWAY)
    return "the sample server answers"


def quota(breakage):
    with project() as made:
        if breakage:
            change(made.configuration, "limits: [per-caller, per-address]", "limits: [per-address]")
        up(made)
        made.wait_answer(GATEWAY)
        return has_quota_of_five(GATEWAY)


def token(breakage):
    with project() as made:
        if breakage:
            # What a client would see of an admin API without a token.
            change(made.file, '      - "127.0.0.1:9900:9900"\n', "")
            change(made.file, "image: traefik/whoami:v1.10", 'image: traefik/whoami:v1.10\n    ports: ["127.0.0.1:9900:80"]')
        up(made)
        made.wait_answer(GATEWAY)
        status = get(f"{ADMIN}/api/config")[0]
    expect(status == 401, f"the admin API answers without its token: {status}")
    return "401 without its token"


def metrics(breakage):
    with project() as made:
        if breakage:
            change(made.file, "${TIDEGATE_ADMIN_TOKEN:?", f"{secrets.token_hex(32)}${{TIDEGATE_ADMIN_TOKEN:?")
        up(made)
        made.wait_answer(GATEWAY)
        status, text = get(f"{ADMIN}/metrics", TOKEN)
    expect(status == 200 and "tidegate_" in text, f"no metrics with the token: {status}")
    return f"{sum(line.startswith('tidegate_') for line in text.splitlines())} series with the token"


def up_two(made):
    """Starts two gateways, whose ports the engine chooses. Returns their addresses."""
    for port in (8080, 9900):
        change(made.file, f'"127.0.0.1:{port}:{port}"', f'"127.0.0.1::{port}"')
    up(made, "--scale", "gateway=2")
    addresses = made.gateways()
    expect(len(addresses) == 2, f"there are {len(addresses)} gateways, not two")
    made.wait_answer(*addresses)
    time.sleep(AFTER_WINDOW)
    return addresses


def at_once(addresses, count, query=""):
    """The statuses of requests that are sent at once, to the gateways in turn. Each has a token of its own, so that the
    quota of their address applies."""
    def ask(number):
        return get(addresses[number % len(addresses)] + query, f"caller-{number}", timeout=40)[0]

    with ThreadPoolExecutor(min(count, 20)) as pool:
        return collections.Counter(pool.map(ask, range(count)))


def scaled(breakage):
    with project() as made:
        if breakage:
            change(made.configuration, "  redis:\n    shards:\n      - primary: redis://redis:6379\n", "  memory: {}\n")
        seen = at_once(up_two(made), 100)
    expect(seen[200] == QUOTA, f"two gateways admitted {seen[200]} of 100 requests, the quota is {QUOTA}; statuses: {dict(seen)}")
    return f"100 requests at once: {seen[200]} admitted, the quota is {QUOTA}"


def down(breakage):
    with project() as made, ThreadPoolExecutor(1) as pool:
        if breakage:
            change(made.file, "stop_grace_period: 35s", "stop_grace_period: 1s")
        in_flight = pool.submit(at_once, up_two(made), 20, "?wait=8s")
        time.sleep(2)
        began = time.monotonic()
        made.run("down")
        seconds = time.monotonic() - began
        seen = in_flight.result()
    expect(seen[200] == 20, f"compose down lost requests: {dict(seen)}")
    expect(seconds > 1, f"compose down ended after {seconds:.2f} s: nothing was in flight")
    return f"20 answered, ended after {seconds:.2f} s"
