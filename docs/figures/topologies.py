"""Where counters live: the four kinds of Redis."""

from kit import Figure


def panel(figure, left, top, title, key):
    figure.rect(left, top, 342, 236, "plain", rx=6)
    figure.text(left + 14, top + 24, title, "b")
    figure.text(left + 328, top + 24, key, "m s", "end")


def gateways(figure, left, top):
    """Two gateways. Returns the middle of each one's lower edge."""
    for index in range(2):
        figure.box(left + 14 + 166 * index, top + 38, 148, 34, [f"gateway {index + 1}"], "ok")
    return [(left + 88 + 166 * index, top + 72) for index in range(2)]


def single(figure, left, top):
    panel(figure, left, top, "One server", "shards: [one]")
    for x, y in gateways(figure, left, top):
        figure.arrow(x, y, left + 171 + (x - left - 171) / 3, top + 122)
    figure.box(left + 96, top + 124, 150, 48, ["Redis", "all keys"], "own")
    figure.lines(left + 14, top + 200, ["One script call decides all limits of a", "request: all are charged, or none."], "s")


def shards(figure, left, top):
    panel(figure, left, top, "Shards", "shards: [several]")
    for x, y in gateways(figure, left, top):
        for index in range(3):
            figure.arrow(x, y, left + 62 + 109 * index, top + 110)
    for index, keys in enumerate(("keys a, d", "keys b", "keys c, e")):
        x = left + 14 + 109 * index
        figure.box(x, top + 112, 96, 42, [f"primary {index + 1}", keys], "own")
        figure.line(x + 48, top + 154, x + 48, top + 164, "a dash")
        figure.box(x, top + 164, 96, 24, ["replica"], "fill")
    figure.lines(left + 14, top + 208, ["The gateway hashes a key to a primary.", "Replicas serve GET /api/limits/NAME alone."], "s")


def cluster(figure, left, top):
    panel(figure, left, top, "Redis Cluster", "cluster: [nodes]")
    for x, y in gateways(figure, left, top):
        for index in range(3):
            figure.arrow(x, y, left + 62 + 109 * index, top + 110)
    for index, slots in enumerate(("0–5460", "–10922", "–16383")):
        x = left + 14 + 109 * index
        figure.box(x, top + 112, 96, 48, ["node", slots], "own")
        if index < 2:
            figure.line(x + 96, top + 136, x + 109, top + 136, "a")
    figure.lines(left + 14, top + 190, ["The slot map is read from any node, and again", "when a node redirects or is lost. A redirected", "call is made once more, at the other node."], "s")


def sentinel(figure, left, top):
    panel(figure, left, top, "Sentinel", "sentinel: {master, nodes}")
    (x1, y), (x2, _) = gateways(figure, left, top)
    figure.arrow(x1, y, left + 88, top + 110)
    figure.arrow(x2, y, left + 130, top + 110)
    figure.box(left + 14, top + 112, 148, 30, ["primary"], "own")
    figure.line(left + 88, top + 142, left + 88, top + 156, "a dash")
    figure.box(left + 14, top + 156, 148, 26, ["replica"], "fill")
    for index in range(3):
        figure.rect(left + 216 + 38 * index, top + 118, 32, 24, "wait", rx=12)
    figure.text(left + 270, top + 162, "Sentinels", "b", "middle")
    figure.arrow(x2 + 30, y, left + 276, top + 114, "a dash")
    figure.text(left + 270, top + 180, "each gateway asks", "s", "middle")
    figure.lines(left + 14, top + 206, ["Asked each second, and when it is lost. The", "server itself must confirm that it is a primary."], "s")


def topologies():
    figure = Figure(
        "redis-topologies", (740, 552), "Four topologies of Redis",
        "One server has all keys. With shards, the gateway hashes each key to one of several independent primaries; replicas serve "
        "reads of the admin API alone. In a Cluster the slot map says which node has a key. With Sentinel there is one primary, "
        "and the Sentinels name it.",
    )
    figure.text(20, 32, "store.redis: where gateways share counters", "h")
    single(figure, 20, 50)
    shards(figure, 378, 50)
    cluster(figure, 20, 298)
    sentinel(figure, 378, 298)
    return figure


FIGURES = [topologies]
