"""The throttle's rotating Bloom filters, and how gateways exchange them."""

from kit import Figure

SLOTS, CURRENT = 32, 11
LIVE = 31
CELL = 17
# The minutes ago in which the token was recorded, and in the rows further bits of other tokens.
OWN = (0, 3, 4, 17)
OTHERS = ((1, 8, 9, 14, 22, 30), (2, 8, 13, 21, 22, 28), (1, 7, 14, 20, 25, 29))


def slot(minutes_ago):
    return (CURRENT - minutes_ago) % SLOTS


def rotation():
    figure = Figure(
        "bloom-rotation", (740, 412), "The rotating filter: 32 Bloom filters in one array of words",
        "Each position is a word of 32 bits, and each bit belongs to one minute. The words at the token's positions are "
        "combined by AND with the mask of the 31 live minutes. A bit that is left means that the token was recorded in that "
        "minute: the user is active. Recording sets the bit of the current minute at each position. The slot after the current "
        "one is cleared before its minute begins.",
    )
    figure.text(20, 30, "One lookup: is this token active?", "h")
    figure.box(20, 50, 150, 46, ["token", "keyed hash, 64 bits"], "other")
    left, top = 176, 140
    figure.lines(190, 68, ["its positions in the filter; each has a word of 32 bits,", "one bit for each minute of memory: 30m"], "s")
    rows = [set(own) | set(OWN) for own in OTHERS]
    for index, bits in enumerate(rows):
        y = top + 30 * index
        figure.bend([(60, 96), (60, y + 10), (left - 8, y + 10)])
        figure.text(84, y + 5, f"position {'1 2 k'.split()[index]}", "s")
        word(figure, left, y, bits)
    y = top + 92
    figure.text(20, y + 14, "live minutes", "b")
    mask = set(range(LIVE))
    word(figure, left, y, mask, "own")
    common = set.intersection(*rows) & mask
    assert common == set(OWN), common
    y = top + 130
    figure.text(20, y + 14, "AND of all", "b")
    word(figure, left, y, common, "fullok")
    figure.text(left, y + 42, "A bit is left: the token is active. No bit is left: it is unknown.", "tok b")
    label(figure, left, top - 10, 0, "now", "town b")
    label(figure, left, top - 10, 30, "oldest", "s")
    figure.lines(20, y + 84, [
        "A good response sets the bit of the current minute at each position. A lookup takes no lock.",
        "Each minute the current slot moves on by one and the oldest minute ends; the slot between them is",
        "cleared before its turn. A share of unknown tokens passes by chance: false_positive, 0.1 % by default.",
    ], "s")
    return figure


def word(figure, left, y, minutes, css="own"):
    """A word whose bits are set for these minutes ago."""
    bits = {slot(ago) for ago in minutes}
    spare = slot(31)
    for index in range(SLOTS):
        kind = css if index in bits else "plain"
        figure.rect(left + CELL * index, y, CELL - 2, 20, kind, rx=2)
    figure.line(left + CELL * spare + 2, y + 18, left + CELL * spare + CELL - 4, y + 2, "l")


def label(figure, left, y, ago, words, css):
    x = left + CELL * slot(ago) + CELL / 2
    if ago:
        figure.text(x - 4, y, words, css)
    else:
        figure.text(x + 6, y, words, css, "end")


def exchange():
    figure = Figure(
        "bloom-exchange", (740, 470), "How gateways exchange the throttle's filters",
        "Redis holds a log of new tokens for the current minutes and one filter for each minute, the union of all gateways. Once a "
        "second each gateway reads what others appended to the logs and appends its own new tokens. It merges filters of minutes "
        "one after the other, and writes the union back unless another gateway wrote first. A gateway that starts loads all "
        "filters before it is ready.",
    )
    figure.text(20, 30, "Once a second, whatever the traffic", "h")
    for left, name in ((20, "Gateway A"), (560, "Gateway B")):
        figure.rect(left, 48, 160, 250, "fill", rx=6)
        figure.text(left + 80, 70, name, "b", "middle")
        figure.box(left + 14, 84, 132, 58, ["new tokens", "of this second"], "other")
        figure.box(left + 14, 164, 132, 74, ["its own filters", "31 minutes", "in memory"], "own")
        figure.text(left + 80, 270, "lookups: no call", "tok", "middle")
    figure.rect(270, 48, 200, 250, "fill", rx=6)
    figure.text(370, 70, "Redis", "b", "middle")
    figure.box(284, 84, 172, 58, ["log of new tokens", "appended, short-lived"], "other")
    figure.box(284, 164, 172, 74, ["one filter a minute", "all gateways together,", "with the time of its write"], "own")
    figure.text(370, 262, "keyed hashes only", "s", "middle")
    figure.text(370, 282, "no token in the clear", "s", "middle")
    for outer, inner, middle in ((182, 268, 225), (558, 472, 515)):
        figure.arrow(outer, 102, inner, 102)
        figure.text(middle, 94, "append", "tother", "middle")
        figure.arrow(inner, 128, outer, 128)
        figure.text(middle, 146, "read", "tother", "middle")
        figure.arrow(inner, 186, outer, 186)
        figure.text(middle, 178, "merge", "town", "middle")
        figure.arrow(outer, 216, inner, 216)
        figure.text(middle, 234, "write", "town", "middle")
    notes = [
        ("new tokens", "known to all gateways a second or two after the first good response"),
        ("filters", "read one after the other and merged by OR. If Redis lacks bits, the union is written"),
        ("", "back, unless another gateway wrote first: then again later. No bit is lost."),
        ("many", "with many gateways each writes less often, so that few writes conflict"),
        ("a start", "all filters and logs are loaded before /readyz; no user is refused before"),
        ("Redis is lost", "each gateway goes on with its own filters, and catches up later"),
    ]
    for index, (name, words) in enumerate(notes):
        figure.text(20, 328 + 24 * index, name, "b")
        figure.text(132, 328 + 24 * index, words, "s")
    return figure


FIGURES = [rotation, exchange]
