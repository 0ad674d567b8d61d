"""Limits that keep a rate, and the one that counts requests in flight."""

from kit import Axis, Figure, number
from models import LeakyBucket, TokenBucket
from windows import key

BURST_TIMES = [1, 1.2, 1.4, 1.6, 1.8, 2.2, 3.2, 4, 5.2, 12, 12.3, 12.6]


def token_bucket():
    limit = TokenBucket(5, 10_000)
    points, verdicts = [(0, 5.0)], []
    for at in BURST_TIMES:
        now = int(1000 * at)
        full = limit.full_at / 1000
        if points[-1][0] < full <= at:
            points.append((full, 5.0))
        points.append((at, limit.tokens(now)))
        verdicts.append(limit.admit(now))
        points.append((at, limit.tokens(now)))
    points.append((16, limit.tokens(16_000)))
    assert [at for at, verdict in zip(BURST_TIMES, verdicts) if not verdict] == [2.2, 4]
    full_at = limit.full_at / 1000
    figure = Figure(
        "token-bucket", (740, 356), "Token bucket: a burst, then a constant rate",
        "A quota of 5 in 10 s: the bucket holds 5 tokens and gets one every 2 s. Five requests from 1 s on take all tokens; "
        "those at 2.2 s and 4 s find less than one and are refused; those at 3.2 s and 5.2 s take the one that has been "
        "refilled. The record is the time at which the bucket is full again.",
    )
    figure.text(20, 30, "token_bucket: quota 5, window 10s: one token every 2 s", "h")
    axis = Axis(figure, 60, 690, 16)
    base, unit = 240, 32
    for level in range(6):
        y = base - unit * level
        figure.line(60, y, 690, y, "l dash" if level == 5 else "l")
        figure.text(50, y + 4, str(level), "s", "end")
    figure.text(690, base - unit * 5 - 8, "full", "s", "end")
    path = "L".join(f"{number(axis.x(at))},{number(base - unit * level)}" for at, level in points)
    figure.path("M" + path, "lown")
    figure.text(axis.x(7), base - unit * 2.1, "tokens left", "town b")
    for at, verdict in zip(BURST_TIMES, verdicts):
        axis.request(at, 256, verdict)
    axis.draw(278, range(0, 17, 2))
    key(figure, 328)
    figure.text(262, 328, f"stored: one point in time, when it is full again; here now {number(full_at)} s", "s")
    return figure


ARRIVALS = [100, 130, 160, 190, 220, 250, 700, 1900]


def leaky_bucket():
    limit = LeakyBucket(4, 1000, 1000)
    slots = [limit.release(at) for at in ARRIVALS]
    assert slots == [100, 350, 600, 850, 1100, None, 1350, 1900]
    figure = Figure(
        "leaky-bucket", (740, 300), "Leaky bucket: a constant rate, excess waits for its slot",
        "A quota of 4 a second is one release every 250 ms; max_wait is 1 s. Of six requests at once the first is released at "
        "once, four wait for the slots at 350, 600, 850 and 1,100 ms, and the sixth would wait longer than 1 s and is "
        "refused. A request at 700 ms takes the slot at 1,350 ms. One at 1,900 ms finds the bucket empty and does not wait.",
    )
    figure.text(20, 30, "leaky_bucket: quota 4, window 1s, max_wait 1s: one release every 250 ms", "h")
    axis = Axis(figure, 112, 690, 2200)
    figure.text(20, 82, "requests", "b")
    figure.text(20, 100, "arrive", "s")
    figure.text(20, 190, "released", "b")
    figure.text(20, 208, "to the server", "s")
    figure.line(112, 84, 704, 84)
    for at, slot in zip(ARRIVALS, slots):
        axis.request(at, 84, slot is not None)
        if slot is not None:
            figure.arrow(axis.x(at), 92, axis.x(slot), 182, "lwait" if slot > at else "a")
            figure.circle(axis.x(slot), 190, 5, "fullok")
    figure.text(axis.x(270), 70, "the sixth would wait 1.1 s: 429", "tno")
    figure.line(axis.x(350), 218, axis.x(600), 218, "lown")
    figure.text(axis.x(620), 222, "250 ms", "town b")
    figure.text(axis.x(1050), 140, "waiting, body unread", "twait b")
    axis.draw(244, range(0, 2001, 500), " ms")
    figure.text(20, 286, "All gateways share the slots: together they release at most one request in 250 ms.", "s")
    return figure


# A permit's holder: its name, when it is taken, when it is free again, and how it ends.
PERMITS = [("A", 2, 14, "ends"), ("B", 4, 52, "ends"), ("C", 6, 46.4, "dies"), ("E", 16, 40, "ends"), ("G", 48, 58, "ends")]
REFUSED = [("D", 10), ("F", 30)]


def concurrency():
    for name, at in REFUSED:
        held = [own for own, start, end, _ in PERMITS if start <= at < end]
        assert len(held) == 3, (name, held)
    for name, at, _, _ in PERMITS:
        assert sum(start < at < end for _, start, end, _ in PERMITS) < 3, name
    figure = Figure(
        "concurrency", (740, 326), "Concurrency: permits held while requests are in flight",
        "A quota of 3 in flight with leases of 30 s. A, B and C hold the permits, so D at 10 s is refused. A ends at 14 s and E "
        "takes its permit. B lasts 48 s: its lease is renewed every 10 s. The gateway of C dies at 20 s; its permit was last "
        "renewed at 16 s and is free again when that lease ends, after 46 s. So F at 30 s is refused, and G at 48 s is admitted.",
    )
    figure.text(20, 30, "concurrency: quota 3, window 30s: three in flight, leases of 30 s", "h")
    axis = Axis(figure, 60, 690, 60)
    for row, (name, start, end, how) in enumerate(PERMITS):
        top = 52 + 34 * row
        figure.text(40, top + 17, name, "b", "middle")
        until = 20 if how == "dies" else end
        figure.rect(axis.x(start), top, axis.x(until) - axis.x(start), 24, "ok", rx=4)
        if how == "dies":
            figure.rect(axis.x(20), top, axis.x(end) - axis.x(20), 24, "wait", rx=4)
            figure.text(axis.x(33), top + 17, "its gateway died: leased to here", "twait", "middle")
        for renewal in range(start + 10, int(min(until, end)), 10):
            figure.line(axis.x(renewal), top, axis.x(renewal), top + 24, "lok")
    figure.text(axis.x(42), 69, "B: renewed every 10 s", "tok")
    for name, at in REFUSED:
        axis.request(at, 232, False)
        figure.text(axis.x(at) + 10, 237, f"{name}: 429", "tno b")
    axis.draw(256, range(0, 61, 10))
    figure.text(20, 306, "A permit returns with the last byte of the response, or when the client disconnects.", "s")
    return figure


FIGURES = [token_bucket, leaky_bucket, concurrency]
