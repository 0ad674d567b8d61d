"""Three gateways with the same configuration, each on its host."""

import json
import os
import pathlib
import urllib.error
import urllib.request

import engine
from cluster import eventually
from engine import Failed
from network import GATEWAYS, REDIS, UPSTREAM, back, back_address, front, together

TOKEN = "the-admin-token-of-the-checks"
QUOTA = 100
# Without Redis, each of three gateways admits a third, rounded up.
SHARE = 34

CONFIGURATION = """
listen: [{address: '0.0.0.0:8080'}]
admin: {address: '0.0.0.0:9900', token: env:TIDEGATE_ADMIN_TOKEN}
workers: 2
drain_delay: 2s
drain_timeout: 10s
STORE
throttle: {max_active: 1000, memory: 30m}
upstreams:
  app: {targets: [http://UPSTREAM]}
limits:
  strict: {quota: 100, window: 10m, strict: true, key: [token], on_failure: POLICY}
  leased: {quota: 100, window: 10m, key: [token], reserve: 20, on_failure: POLICY}
  passing: {quota: 100, window: 10m, key: [token], on_failure: PASSING}
  refusing: {quota: 100, window: 10m, key: [token], on_failure: closed}
  short: {quota: 10, window: 10s, strict: true, key: [token], on_failure: POLICY}
  in-flight: {algorithm: concurrency, quota: 10, window: PERMIT, key: [token], on_failure: POLICY}
routes:
  - {name: strict, match: {path: /strict}, upstream: app, limits: [strict], throttle: false}
  - {name: leased, match: {path: /leased}, upstream: app, limits: [leased], throttle: false}
  - {name: passing, match: {path: /passing}, upstream: app, limits: [passing], throttle: false}
  - {name: refusing, match: {path: /refusing}, upstream: app, limits: [refusing], throttle: false}
  - {name: short, match: {path: /short}, upstream: app, limits: [short], throttle: false}
  - {name: in-flight, match: {path: /in-flight}, upstream: app, limits: [in-flight], throttle: false}
  - {name: users, match: {path: /users}, upstream: app}
"""

STORE = """
store:
  redis:
    cluster: [NODES]
    secret: env:TIDEGATE_SECRET
    connect_timeout: 400ms
    response_timeout: 400ms
"""


def configuration(breakage):
    """The configuration; a breakage makes the check of that name fail, to show that it can."""
    nodes = ", ".join(f"'redis://{back_address(node)}:6379'" for node in REDIS)
    values = {
        "STORE": "" if breakage == "no Redis" else STORE.replace("NODES", nodes),
        "UPSTREAM": back(UPSTREAM),
        "POLICY": "open" if breakage == "open" else "local",
        "PASSING": "local" if breakage == "not open" else "open",
        "PERMIT": "1m" if breakage == "long lease" else "5s",
    }
    text = CONFIGURATION
    for name, value in values.items():
        text = text.replace(name, value)
    return text


class Gateways:
    """What starts, stops and asks the three gateways."""

    def __init__(self, options, work, breakage):
        self.image = options.image
        self.binary = options.binary
        self.folder = pathlib.Path(work) / "etc"
        self.folder.mkdir()
        (self.folder / "tidegate.yaml").write_text(configuration(breakage))
        self.preload = pathlib.Path(work) / "libfaketimeMT.so.1"
        os.chmod(work, 0o755)

    def start(self, name, clock=None):
        """Starts a gateway on its host and waits until it is ready. `clock` shifts its time of day, such as `+180s`."""
        arguments = ["--user", "65532:65532", "--read-only", "--cap-drop", "ALL", "--volume", f"{self.folder}:/etc/tidegate:ro"]
        arguments += ["--env", f"TIDEGATE_ADMIN_TOKEN={TOKEN}", "--env", "TIDEGATE_SECRET=the secret of the checks"]
        if clock:
            arguments += ["--volume", f"{self.preload}:/libfaketimeMT.so.1:ro", "--env", "LD_PRELOAD=/libfaketimeMT.so.1"]
            arguments += ["--env", f"FAKETIME={clock}", "--env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "--env", "FAKETIME_DISABLE_SHM=1"]
        if self.image:
            arguments += [self.image, "serve", "/etc/tidegate/tidegate.yaml"]
        else:
            arguments += ["--volume", f"{self.binary}:/usr/bin/tidegate:ro", engine.TOOLS, "tidegate", "serve", "/etc/tidegate/tidegate.yaml"]
        engine.run_beside(f"{name}-gateway", name, *arguments)
        try:
            eventually(f"{name} is ready", lambda: is_ready(name) or not engine.is_running(f"{name}-gateway"))
            if not engine.is_running(f"{name}-gateway"):
                raise Failed(f"{name} has ended")
        except Failed as fault:
            raise Failed(f"{fault}\n{engine.logs(f'{name}-gateway')}") from None

    def stop(self, name):
        """Stops a gateway with SIGTERM, as an orchestrator does; its container is removed."""
        engine.docker("stop", "--time", "20", f"{engine.PREFIX}{name}-gateway")
        self.remove(name)

    def kill(self, name):
        engine.docker("kill", f"{engine.PREFIX}{name}-gateway")
        self.remove(name)

    def remove(self, name):
        engine.docker("rm", "--force", f"{engine.PREFIX}{name}-gateway")


def ask(name, path, method="GET", body=None):
    """The body of a response of a gateway's admin API."""
    request = urllib.request.Request(f"http://{front(GATEWAYS[name])}:9900{path}", method=method, data=body)
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=2) as response:
        return response.read().decode()


def is_ready(name):
    try:
        return json.loads(ask(name, "/readyz"))["ready"]
    except OSError:
        return False


def store(name):
    return json.loads(ask(name, "/readyz"))["store"]


def metric(name, series):
    """The value of a series; 0 if there is none."""
    for line in ask(name, "/metrics").splitlines():
        if line.startswith(series + " "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def throttle(name):
    return json.loads(ask(name, "/api/throttle"))


def set_throttle(mode, names=GATEWAYS):
    body = json.dumps({"mode": mode}).encode()
    together(lambda name: ask(name, "/api/throttle", "PUT", body), names)


def has_redis(name):
    """True if every worker of the gateway uses every server of Redis."""
    state = store(name)
    return state["healthy"] and state["workers_without_redis"] == 0 and not state["lost_shards"]


def wait_shared(names=GATEWAYS, gateways=3):
    """Waits until the gateways use Redis and know each other. Returns the seconds."""
    def shared():
        return all(has_redis(name) and store(name)["gateways"] == gateways for name in names)

    return eventually("all gateways use Redis and know each other", shared)


def wait_redis(names=GATEWAYS):
    """Waits until the gateways use every server of Redis. Returns the seconds."""
    return eventually("all gateways use Redis again", lambda: all(has_redis(name) for name in names))


def wait_lost(names):
    """Waits until each of the gateways has noticed that it lost a server of Redis."""
    eventually("the gateways have noticed the loss", lambda: not any(has_redis(name) for name in names))
