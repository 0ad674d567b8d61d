"""The waiting room: tickets, the frontier, and places that become free."""

from kit import Figure


def waiting_room():
    figure = Figure(
        "waiting-room", (740, 494), "The waiting room",
        "Tickets wait in the order of their arrival, which each client carries in its signed ticket. Once a second the frontier "
        "moves over as many tickets as fill the free places: max_active, less the active users, less the places taken lately. "
        "A user up to the frontier takes a place when it asks; users who have left take none. A ticket whose user has not asked "
        "for ticket_ttl is not counted any more.",
    )
    figure.text(20, 30, "While the throttle admits only active users", "h")
    figure.box(20, 54, 190, 118, ["active users", "at most max_active"], "ok")
    for index in range(9):
        figure.circle(44 + 18 * index, 150, 5, "fullok")
    figure.rect(262, 54, 458, 118, "wait", rx=6)
    figure.text(276, 76, "the queue, by the time of arrival", "b")
    figure.text(706, 76, "newcomers join here", "s", "end")
    figure.line(276, 120, 706, 120)
    for index in range(15):
        x = 292 + 28 * index
        if index in (5, 9):
            figure.path(f"M{x - 5},115l10,10m0,-10l-10,10", "lno")
        else:
            figure.circle(x, 120, 7, "fullown" if index > 2 else "fullok")
    figure.line(362, 88, 362, 150, "lno")
    figure.text(368, 102, "frontier", "tno b")
    figure.arrow(362, 150, 410, 150, "lno")
    figure.text(416, 154, "moves once a second, never back", "s")
    figure.arrow(262, 120, 212, 120, "lok")
    figure.text(237, 108, "enter", "tok b", "middle")
    figure.text(20, 202, "free places = max_active − active users − places taken by users not active yet", "b")
    figure.text(20, 224, "the frontier moves over as many tickets as fill them; a red cross is a user who has left", "s")
    figure.line(20, 242, 720, 242)
    figure.text(20, 268, "One new user", "h")
    steps = [
        ("1  asks", ["429 with place 120", "and a signed ticket:", "its time of arrival"], "no"),
        ("2  asks again", ["with its ticket, once", "in each half of", "ticket_ttl: place 60"], "wait"),
        ("3  its turn", ["up to the frontier, it", "takes a free place and", "is forwarded"], "own"),
        ("4  is active", ["a good response", "makes its token active", "at all gateways"], "ok"),
    ]
    for index, (name, words, colour) in enumerate(steps):
        x = 20 + 178 * index
        figure.rect(x, 284, 166, 92, colour, rx=6)
        figure.text(x + 12, 306, name, "b")
        figure.lines(x + 12, 328, words, "s")
        if index < 3:
            figure.arrow(x + 166, 330, x + 177, 330)
    figure.lines(20, 406, [
        "stays away for ticket_ttl: the ticket is worth nothing, and the next one is at the end of the queue",
        "has left when its turn comes: takes no place; the frontier moves further by the share of users who come",
        "finds no place free when its turn has come: keeps its turn, and asks again within 3 s",
        "another token, or a made-up ticket: a new ticket, at the end of the queue",
    ], "s")
    figure.text(20, 480, "Gateways add up counts of tickets in Redis once a second. Nothing is stored for a user who waits.", "s")
    return figure


FIGURES = [waiting_room]
