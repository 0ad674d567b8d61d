"""Leases: units of a quota that a gateway takes in advance."""

from kit import Axis, Figure
from models import taken


def leases():
    first = taken(600, 100, 2)
    second = taken(600 - first, 100, 2)
    assert (first, second, taken(40, 100, 2), taken(4, 100, 2)) == (101, 101, 10, 1)
    figure = Figure(
        "leases", (740, 500), "Leases: one call takes units for many requests",
        "Two gateways share a quota of 600 with reserve: 100. The first request of gateway A makes one call, which charges 101 "
        "units in Redis; A decides the next 100 requests alone. B does the same, and returns the 41 units that it has not spent "
        "when its caller has been idle for a second. Of the last units a gateway takes at most a quarter in advance, so they are "
        "taken one at a time.",
    )
    figure.text(20, 30, "A quota of 600 a minute, two gateways, reserve: 100 (time is not to scale)", "h")
    axis = Axis(figure, 130, 700, 10)
    rows = {"A": 74, "Redis": 164, "B": 254}
    for name, y in rows.items():
        label = f"gateway {name}" if name != "Redis" else name
        figure.text(20, y + 5, label, "b")
        figure.line(120, y, 714, y)
    lane(figure, axis, rows["A"], 0.4)
    figure.arrow(axis.x(0.4), rows["A"] + 6, axis.x(0.4), rows["Redis"] - 24)
    figure.lines(axis.x(0.4) + 10, 110, ["one call: 1 unit for the request", "and 100 in advance"], "town")
    figure.text(axis.x(0.4), 58, f"{first - 1} more requests are decided by A alone", "tok")
    lane(figure, axis, rows["B"], 4.2, 24)
    figure.arrow(axis.x(4.2), rows["B"] - 6, axis.x(4.2), rows["Redis"] + 24)
    figure.lines(axis.x(4.2) + 10, 212, ["the same for B:", f"{second} units"], "town")
    figure.text(axis.x(4.2), 284, "60 requests", "tok")
    figure.line(axis.x(6.75), 264, axis.x(8.4), 264, "lwait")
    figure.text(axis.x(7.57), 284, "idle for 1 s", "twait", "middle")
    figure.arrow(axis.x(8.4), rows["B"] - 6, axis.x(8.4), rows["Redis"] + 24, "lwait")
    figure.lines(axis.x(8.4) + 10, 212, ["returns the 41", "that are left"], "twait")
    used = [(0, 0.4, 0), (0.4, 4.2, first), (4.2, 8.4, first + second), (8.4, 10, first + second - 41)]
    for start, end, count in used:
        left, width = axis.x(start), axis.x(end) - axis.x(start)
        figure.rect(left, 144, width, 40, "plain", rx=2)
        if count:
            figure.rect(left, 144 + 40 * (1 - count / 600), width, 40 * count / 600, "own", rx=0)
            figure.text(left + width - 8, 160, f"{count} used", "s", "end")
    figure.line(20, 304, 720, 304)
    figure.text(20, 330, "What one call takes, with two gateways and one waiting request", "b")
    for index, left in enumerate((600, 40, 4)):
        y = 356 + 30 * index
        units = taken(left, 100, 2)
        figure.text(40, y + 14, f"{left} left", "", None)
        figure.rect(130, y, 400, 20, "plain", rx=3)
        figure.rect(130, y, 400 * units / left, 20, "own", rx=3)
        words = f"takes 1 + {units - 1}" if units > 1 else "takes 1: one at a time"
        figure.text(544, y + 15, words, "town")
    figure.lines(20, 464, [
        "In advance: at most 1/(2 × gateways) of the units that remain beyond the request's own.",
        "Units are charged before they are spent, and spent only in the sub-window to which they were charged.",
    ], "s")
    return figure


def lane(figure, axis, y, start, count=26):
    """Requests that one gateway decides: the first asks Redis."""
    figure.circle(axis.x(start), y, 6, "fullown")
    for index in range(1, count):
        figure.circle(axis.x(start + 0.1 * index + 0.15), y, 3, "fullok")


FIGURES = [leases]
