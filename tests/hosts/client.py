"""The clients. Runs in a container of its own; `load.py` starts it and reads its results as JSON.

`burst` sends requests at once; `steady` sends them to the gateways that are ready, as a load balancer does, until
its standard input ends.
"""

import collections
import http.client
import json
import queue
import select
import sys
import threading
import time

RATE_HEADERS = ("X-RateLimit-Reset", "X-RateLimit-Remaining", "Retry-After", "Date")


class Connections:
    """One connection to each gateway, kept open. Not shared between threads."""

    def __init__(self):
        self.open = {}

    def usable(self, gateway):
        """A connection; one that the gateway has closed meanwhile is not used again."""
        if gateway not in self.open:
            self.open[gateway] = http.client.HTTPConnection(gateway, 8080, timeout=20)
        connection = self.open[gateway]
        if connection.sock and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
        return connection

    def get(self, gateway, path, token):
        """The status and the headers; status 0 and the reason if there was no whole response."""
        connection = self.usable(gateway)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as fault:
            connection.close()
            return 0, {"fault": repr(fault)}
        return response.status, response.headers


def burst(order):
    """Sends all requests with `parallel` threads. Returns a list of results, one for each request."""
    waiting = queue.SimpleQueue()
    for request in order["requests"]:
        waiting.put(request)
    results = []

    def work():
        connections = Connections()
        while True:
            try:
                gateway, path, token = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            status, headers = connections.get(gateway, path, token)
            results.append({
                "gateway": gateway,
                "status": status,
                "token": token,
                "seconds": round(time.monotonic() - began, 3),
                "at": time.time(),
                "fault": headers.get("fault"),
                "rate": {name: headers.get(name) for name in RATE_HEADERS},
            })

    threads = [threading.Thread(target=work) for _ in range(order["parallel"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def is_ready(gateway):
    connection = http.client.HTTPConnection(gateway, 9900, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def steady(order):
    """Returns the number of responses of each status, and the first faults."""
    ready, over = set(), threading.Event()
    counts, faults = collections.Counter(), []

    def probe(gateway):
        while not over.is_set():
            (ready.add if is_ready(gateway) else ready.discard)(gateway)
            time.sleep(0.1)

    def work(number):
        connections, turn = Connections(), number
        while not over.is_set():
            gateways = sorted(ready)
            if gateways:
                turn += 1
                gateway = gateways[turn % len(gateways)]
                status, headers = connections.get(gateway, order["path"], f"{order['token']}-{number}")
                counts[f"{gateway} {status}"] += 1
                if status == 0 or status >= 500:
                    faults.append(f"{gateway}: {status} {headers.get('fault')}")
            time.sleep(0.03)

    threads = [threading.Thread(target=probe, args=[gateway]) for gateway in order["gateways"]]
    threads += [threading.Thread(target=work, args=[number]) for number in range(order["parallel"])]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    return {"counts": counts, "faults": faults[:5]}


def known(order):
    """Asks each gateway for its tokens until it has admitted all. Returns the times of day at which the last token that was
    refused before was admitted, and how many were left at the end."""
    end = time.time() + order["seconds"]

    def work(gateway, tokens, result):
        connections = Connections()
        was_refused = False
        result["at"] = time.time()
        while tokens and time.time() < end:
            # One after the other: while this token is unknown, the next ones need not be asked for. The time of asking for
            # those that were known meanwhile does not count.
            if connections.get(gateway, order["path"], tokens[0])[0] == 200:
                tokens = tokens[1:]
                if was_refused:
                    result["at"] = time.time()
                was_refused = False
            else:
                was_refused = True
                time.sleep(0.01)
        result["left"] = len(tokens)

    results = [{} for _ in order["groups"]]
    threads = [
        threading.Thread(target=work, args=[gateway, tokens, result])
        for (gateway, tokens), result in zip(order["groups"], results)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


order = json.loads(sys.stdin.readline())
json.dump({"burst": burst, "steady": steady, "known": known}[order["kind"]](order), sys.stdout)
