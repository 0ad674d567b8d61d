"""What a client sees around a 429."""

from kit import Axis, Figure
from models import SlidingWindow

TIMES = [0.2, 0.9, 1.6, 2.4, 3.2, 4.5, 8]


def refusal():
    limit = SlidingWindow(5, 10_000, 5)
    rows = []
    for at in TIMES:
        rows.append(sent(limit, int(1000 * at)))
    again = int(1000 * TIMES[-1]) + 1000 * rows[-1]["retry"]
    rows.append(sent(limit, again))
    assert [row["status"] for row in rows] == [200] * 5 + [429, 429, 200], rows
    figure = Figure(
        "client-429", (740, 420), "What a client sees around a 429",
        "A quota of 5 in 10 s, in steps of 2 s. Five requests are admitted, and X-RateLimit-Remaining falls from 4 to 0. The "
        "sixth gets a 429 with Retry-After. A retry that comes too early gets a 429 with a shorter wait: it is not charged and does "
        "not move the reset. After Retry-After the same request is admitted.",
    )
    figure.text(20, 30, "sliding_window: quota 5, window 10s, resolution 5; one caller", "h")
    axis = Axis(figure, 40, 690, 13)
    base = 132
    for at, row in zip(TIMES + [again / 1000], rows):
        axis.request(at, base - 16, row["status"] == 200)
    axis.draw(base, range(0, 14, 2))
    reset = rows[5]["reset"]
    figure.line(axis.x(reset), 50, axis.x(reset), base, "lwait dash")
    figure.text(axis.x(reset) - 8, 62, "X-RateLimit-Reset", "twait", "end")
    early, last = axis.x(4.5), axis.x(4.5 + rows[5]["retry"])
    figure.arrow(early, 100, last, 100, "lno")
    figure.text((early + last) / 2, 92, f"Retry-After: {rows[5]['retry']}", "tno b", "middle")
    table(figure, rows, again / 1000)
    return figure


def sent(limit, now):
    """A request, and the headers of its response."""
    admitted = limit.admit(now)
    used = limit.used(now)
    row = {"status": 200 if admitted else 429, "remaining": limit.quota - used, "reset": limit.reset(now) // 1000}
    row["retry"] = None if admitted else max(1, -(-(limit.retry(now) - now) // 1000))
    return row


def table(figure, rows, again):
    columns = (20, 100, 176, 300, 400, 506)
    for x, name in zip(columns, ("sent at", "status", "Remaining", "Reset", "Retry-After", "")):
        figure.text(x, 186, name, "b")
    figure.line(20, 194, 720, 194)
    shown = [0, 1, 4, 5, 6, 7]
    notes = [
        "the first of five", "", "0: the next one is refused", "too many: wait 7 s",
        "too early: not charged", "as promised: admitted",
    ]
    for place, (index, note) in enumerate(zip(shown, notes)):
        row, y = rows[index], 216 + 26 * place
        at = (TIMES + [again])[index]
        colour = "tok" if row["status"] == 200 else "tno"
        figure.text(columns[0], y, f"{at:g} s", "m")
        figure.text(columns[1], y, str(row["status"]), f"m {colour}")
        figure.text(columns[2], y, str(row["remaining"]), "m")
        figure.text(columns[3], y, f"{row['reset']} s", "m")
        figure.text(columns[4], y, f"{row['retry']} s" if row["retry"] else "–", "m")
        figure.text(columns[5] - 12, y, note, "s")
    figure.text(20, 216 + 26 * len(shown) + 10, "Remaining and Reset: X-RateLimit-…; Reset is in seconds since the epoch, here from the left edge.", "s")
    figure.text(20, 216 + 26 * len(shown) + 30, "On a 429 without Retry-After, do not retry: the request costs more than the quota.", "s")


FIGURES = [refusal]
