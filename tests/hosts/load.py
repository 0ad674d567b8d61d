"""Requests of the clients, and what came of them."""

import collections
import json
import subprocess

import engine
from engine import Failed
from network import GATEWAYS, front

COMMAND = ["docker", "exec", "--interactive", engine.PREFIX + "client", "python3", "/hosts/client.py"]


class Totals:
    """What all checks have seen so far."""

    requests = 0
    errors = 0


class Burst:
    """The responses to requests that were sent at once."""

    def __init__(self, results):
        self.results = results
        names = {front(number): name for name, number in GATEWAYS.items()}
        self.admitted = collections.Counter(names[one["gateway"]] for one in results if one["status"] == 200)
        self.statuses = collections.Counter(one["status"] for one in results)
        self.slowest = max(one["seconds"] for one in results)

    def total(self):
        return self.admitted.total()

    def at(self, name):
        return self.admitted[name]

    def of(self, name):
        """The results of one gateway."""
        return [one for one in self.results if one["gateway"] == front(GATEWAYS[name])]


def send(path, token, counts, parallel=24, tolerated=()):
    """Sends requests to gateways at once: `counts` has their number for each gateway. Statuses other than 200, 429 and the
    tolerated ones fail the check."""
    rounds = range(max(counts.values()))
    # In turn, so that all gateways are asked at the same time.
    requests = [[front(GATEWAYS[name]), path, token] for turn in rounds for name in counts if turn < counts[name]]
    return send_requests(requests, parallel, tolerated)


def send_tokens(path, tokens, name, parallel=24):
    """Sends one request for each token to one gateway."""
    return send_requests([[front(GATEWAYS[name]), path, token] for token in tokens], parallel, ())


def send_requests(requests, parallel, tolerated):
    order = {"kind": "burst", "requests": requests, "parallel": min(parallel, len(requests))}
    done = subprocess.run(COMMAND, input=json.dumps(order) + "\n", capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(f"the clients failed: {done.stderr}")
    burst = Burst(json.loads(done.stdout))
    Totals.requests += len(requests)
    wrong = [one for one in burst.results if one["status"] not in (200, 429, *tolerated)]
    Totals.errors += len(wrong)
    if wrong:
        raise Failed(f"{len(wrong)} of {len(requests)} requests were not answered with 200 or 429, such as {wrong[0]}")
    return burst


class Known:
    """Asks gateways for users until all are admitted: `groups` has a gateway and its tokens."""

    def __init__(self, path, groups, seconds):
        groups = [[front(GATEWAYS[name]), tokens] for name, tokens in groups]
        self.process = start({"kind": "known", "path": path, "groups": groups, "seconds": seconds})

    def seconds_since(self, began):
        """Waits until the end. Returns the seconds from this time of day until the last user that was refused before was
        admitted."""
        results = json.loads(self.process.communicate(timeout=60)[0])
        left = [one["left"] for one in results]
        if any(left):
            raise Failed(f"after {results[0]['at'] - began:.0f} s gateways do not know {left} users that they should know")
        return max(one["at"] for one in results) - began


def start(order):
    """Starts the clients, which go on by themselves."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return process


class Steady:
    """Requests that go on until `end`, to the gateways that are ready."""

    def __init__(self, path, token, parallel):
        order = {"kind": "steady", "path": path, "token": token, "parallel": parallel}
        order["gateways"] = [front(number) for number in GATEWAYS.values()]
        self.process = start(order)

    def end(self):
        """Returns the number of responses, and the faults: responses of 500 and above, and broken connections."""
        result = json.loads(self.process.communicate(timeout=60)[0])
        total = sum(result["counts"].values())
        failed = sum(count for key, count in result["counts"].items() if key.split()[1] not in ("200", "429"))
        Totals.requests += total
        Totals.errors += failed
        return total, failed, result["faults"]
