"""The life of a request, from its head to its last byte."""

from kit import Figure

LEFT, WIDTH, RIGHT = 20, 430, 478

# A step: its name, what it does, its colour, and what leaves it at the right: (text, colour).
STEPS = [
    ("1  The head is read strictly", "a message that could be read in two ways is refused", "fill",
     ("400, 408, 414, 431, 505", "no")),
    ("2  Route, caller, keys and costs", "path in normal form, host, allow and deny", "fill",
     ("403, 404, 405, 421; redirects", "no")),
    ("3  Authentication", "requests in flight of the address; credentials with auth", "fill",
     ("503 overloaded, 401", "no")),
    ("4  The throttle", "above max_active only active users pass; others wait", "other",
     ("429; after it 401, 403, 413", "no")),
    ("5  All limits, or none", "one decision, in memory or by one script call to Redis", "own",
     ("429; 503 if Redis is lost", "no")),
    ("6  The slot of a leaky bucket", "the request waits; its body is not read yet", "wait",
     ("503 if its time ends before", "no")),
    ("7  The upstream, or a fixed response", "choice of a server, pooled connection, safe retries", "fill",
     ("502, 503, 504", "no")),
    ("8  The response corrects the charge", "refund, cost by the response; the user is active now", "own",
     ("the rate headers show it", "ok")),
    ("9  The last byte is written", "permits and places are given back; a line is logged", "ok", None),
]


def life():
    figure = Figure(
        "request-life", (740, 92 + 62 * len(STEPS)), "The life of a request",
        "Nine steps from the head to the last byte. Up to step 4 nothing is charged; step 5 charges all limits or none; "
        "each step but the last two may end the request with a status.",
    )
    figure.text(LEFT, 30, "What happens", "h")
    figure.text(RIGHT + 8, 30, "What may end it", "h")
    for index, (name, what, colour, leaves) in enumerate(STEPS):
        top = 46 + 62 * index
        figure.rect(LEFT, top, WIDTH, 48, colour, rx=6)
        figure.text(LEFT + 14, top + 20, name, "b")
        figure.text(LEFT + 14, top + 38, what, "s")
        if index + 1 < len(STEPS):
            figure.arrow(LEFT + 30, top + 48, LEFT + 30, top + 61)
        if leaves:
            figure.arrow(LEFT + WIDTH, top + 24, RIGHT, top + 24)
            figure.text(RIGHT + 8, top + 28, leaves[0], f"t{leaves[1]}")
    bottom = 46 + 62 * 4
    figure.line(LEFT, bottom - 7, 720, bottom - 7, "l dash")
    figure.text(720, bottom - 13, "above: nothing is charged", "s", "end")
    figure.text(LEFT, 80 + 62 * len(STEPS) - 8, "Every response has X-Request-Id. After step 5 it has the rate headers.", "s")
    return figure


FIGURES = [life]
