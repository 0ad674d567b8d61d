"""Limits that count in windows: sliding window, sliding log, fixed window."""

from kit import Axis, Figure, number
from models import FixedWindow, SlidingLog, SlidingWindow

# Requests in each sub-window of 10 s.
COUNTS = [5, 1, 2, 0, 3, 1, 2]
NOW = 67


def sliding_window():
    figure = Figure(
        "sliding-window", (740, 372), "Sliding window: weighted counters of sub-windows",
        "A quota of 15 a minute with six sub-windows of 10 s, at second 67. The window reaches back to second 7. The counts "
        "of the sub-windows from 10 s on count in full: 9. Of the oldest count, 5, three tenths are still inside: 1.5, "
        "rounded up to 2. So 11 are used and 4 are left. With strict the oldest counts in full: 14 used, 1 left.",
    )
    limit = SlidingWindow(15, 60_000, 6)
    for index, count in enumerate(COUNTS):
        for nth in range(count):
            assert limit.admit(index * 10_000 + 500 * nth)
    used = limit.used(NOW * 1000)
    limit.strict = True
    assert (used, limit.used(NOW * 1000), limit.reset(NOW * 1000)) == (11, 14, 70_000)

    figure.text(20, 30, "sliding_window: quota 15, window 1m, resolution 6", "h")
    axis = Axis(figure, 40, 660, 80)
    base = 250
    figure.rect(axis.x(NOW - 60), 62, axis.x(NOW) - axis.x(NOW - 60), base - 62, "own", rx=0)
    figure.text(axis.x(37), 80, "the window: the 60 s before now", "town b", "middle")
    for index, count in enumerate(COUNTS):
        left, width, height = axis.x(10 * index) + 3, axis.x(10) - axis.x(0) - 6, 24 * count
        if index == 0:
            inside = 0.3 * width
            figure.rect(left, base - height, width - inside, height, "fill", rx=2)
            figure.rect(left + width - inside, base - height, inside, height, "fullown", rx=0)
        elif count:
            figure.rect(left, base - height, width, height, "fullown", rx=2)
        figure.text(left + width / 2, base - height - 6, str(count), "b", "middle")
    axis.draw(base, range(0, 81, 10))
    figure.line(axis.x(NOW), 52, axis.x(NOW), base, "lno")
    figure.text(axis.x(NOW), 46, "now", "tno b", "middle")
    figure.line(axis.x(70), 96, axis.x(70), base, "lwait dash")
    figure.lines(axis.x(70) + 6, 108, ["X-RateLimit-Reset:", "the oldest count", "has left"], "twait")
    figure.text(20, 302, "weighted", "b")
    figure.text(120, 302, "oldest: 5 × 3 s of 10 s inside = 1.5, rounded up 2;  the others in full: 9;  used 11, left 4")
    figure.text(20, 326, "strict: true", "b")
    figure.text(120, 326, "the oldest counts in full until it has left: 5 + 9;  used 14, left 1")
    figure.text(20, 354, "Redis keeps the seven counters and the reset: 40 bytes, whatever the quota.", "s")
    return figure


LOG_TIMES = [0.5, 1.5, 2.5, 4, 5, 6.5, 9, 10.6, 11.2, 11.6, 13]


def sliding_log():
    limit = SlidingLog(5, 10_000)
    verdicts = [limit.admit(int(1000 * at)) for at in LOG_TIMES]
    charged = [at for at, verdict in zip(LOG_TIMES, verdicts) if verdict]
    assert charged == [0.5, 1.5, 2.5, 4, 5, 10.6, 11.6, 13]
    figure = Figure(
        "sliding-log", (740, 346), "Sliding log: each charge counts for exactly one window",
        "A quota of 5 in 10 s. Each admitted request is a bar of 10 s. At most five bars overlap at any time. The requests at "
        "6.5 s, 9 s and 11.2 s find five and are refused; those at 10.6, 11.6 and 13 s find room, because a bar has ended.",
    )
    figure.text(20, 30, "sliding_log: quota 5, window 10s", "h")
    axis = Axis(figure, 40, 690, 16)
    for row, at in enumerate(charged):
        top = 50 + 22 * row
        end = min(at + 10, 16)
        figure.rect(axis.x(at), top, axis.x(end) - axis.x(at), 14, "ok", rx=3)
        if at + 10 <= 16:
            figure.line(axis.x(at + 10), top, axis.x(at + 10), top + 14, "lok")
    for at, verdict in zip(LOG_TIMES, verdicts):
        axis.request(at, 246, verdict)
    axis.draw(268, range(0, 17, 2))
    key(figure, 318)
    figure.text(262, 318, "a bar: the 10 s for which a charge counts; at most 5 at once", "s")
    return figure


def key(figure, y):
    """Explains the marks of requests."""
    figure.circle(30, y - 4, 5, "fullok")
    figure.text(42, y, "admitted", "tok")
    figure.path(f"M{number(126)},{number(y - 8)}l8,8m0,-8l-8,8", "lno")
    figure.text(142, y, "refused: 429", "tno")


FIXED_TIMES = [2, 5, 10.5, 11, 11.5, 13, 13.4, 13.8, 14.2, 15.5, 21]


def fixed_window():
    limit = FixedWindow(4, 10_000)
    verdicts, resets = [], []
    for at in FIXED_TIMES:
        verdicts.append(limit.admit(int(1000 * at)))
        resets.append(limit.reset)
    assert [at for at, verdict in zip(FIXED_TIMES, verdicts) if not verdict] == [11.5, 15.5, 21]
    assert sorted(set(resets)) == [12_000, 23_000]
    figure = Figure(
        "fixed-window", (740, 300), "Fixed window: one counter, and a stored end",
        "A quota of 4 in 10 s. The first charge, at 2 s, stores the end of its window: 12 s. The fifth request, at 11.5 s, is "
        "refused. The next window begins with the charge at 13 s and ends at 23 s. From 10.5 s to 14.2 s six requests are "
        "admitted: up to twice the quota around an edge.",
    )
    figure.text(20, 30, "fixed_window: quota 4, window 10s", "h")
    axis = Axis(figure, 40, 690, 25)
    for start in (2, 13):
        figure.rect(axis.x(start), 62, axis.x(10) - axis.x(0), 42, "own", rx=3)
        middle = axis.x(start + 5)
        figure.text(middle, 80, "begins with its first charge", "town", "middle")
        figure.text(middle, 97, f"reset_at = {start + 10} s, stored", "town b", "middle")
        figure.line(axis.x(start + 10), 56, axis.x(start + 10), 206, "lwait dash")
    counts = count_in_windows(FIXED_TIMES, verdicts, resets)
    for at, verdict, count in zip(FIXED_TIMES, verdicts, counts):
        axis.request(at, 190, verdict)
        if verdict and (at < 11 or at in (13, 14.2)):
            figure.text(axis.x(at), 176, str(count), "s", "middle")
    figure.line(axis.x(10.5), 140, axis.x(14.2), 140, "lno")
    figure.text(axis.x(12.35), 132, "6 in 3.7 s", "tno b", "middle")
    axis.draw(216, [0, 2, 5, 10, 12, 15, 20, 23])
    key(figure, 272)
    figure.text(262, 272, "no window runs from 12 s to 13 s: nothing was charged", "s")
    return figure


def count_in_windows(times, verdicts, resets):
    """The count of its window after each request."""
    counts = []
    for index, _ in enumerate(times):
        counts.append(sum(v and r == resets[index] for v, r in zip(verdicts[: index + 1], resets[: index + 1])))
    return counts


FIGURES = [sliding_window, sliding_log, fixed_window]
