"""Where a gateway stands: in front of servers, or asked by another proxy."""

from kit import Figure


def around():
    figure = Figure(
        "places", (740, 500), "Three places for a gateway",
        "In front of your servers: clients connect to gateways, which forward requests and share counters in Redis. As Envoy's "
        "rate limit service: Envoy asks by gRPC, with descriptors, and forwards or answers 429 itself. As a decide route: nginx, "
        "Traefik, Caddy, HAProxy or Envoy asks by HTTP, and forwards if the answer is 2xx.",
    )
    top = 40
    figure.text(20, top - 10, "In front of your servers", "h")
    figure.box(20, top + 16, 96, 44, ["clients"], "fill")
    for index in range(2):
        y = top + 4 + 40 * index
        figure.box(220, y, 150, 32, [f"Tidegate {index + 1}"], "ok")
        figure.arrow(116, top + 38, 218, y + 16)
        figure.arrow(370, y + 16, 558, top + 38)
        figure.arrow(370, y + 22, 418, top + 106, "a dash")
    figure.box(560, top + 16, 160, 44, ["your servers"], "fill")
    figure.box(390, top + 108, 120, 30, ["Redis"], "own")
    figure.text(20, top + 122, "It forwards what its limits admit.", "s")
    figure.line(20, 194, 720, 194)
    asked(figure, 216, "As Envoy's rate limit service", "Envoy", ["by gRPC, with the", "descriptors of a request"],
          "OK or OVER_LIMIT", ["Envoy answers the 429.", "Limits and overrides are", "the same as for requests."])
    figure.line(20, 340, 720, 340)
    asked(figure, 362, "As a decide route, asked by nginx, Traefik, Caddy, HAProxy or Envoy", "your proxy",
          ["by HTTP, with the", "head of a request"], "2xx, or 429, 401, 403 …",
          ["It forwards after a 2xx.", "Tidegate sees the head,", "neither body nor response."])
    return figure


def asked(figure, top, title, proxy, question, answer, notes):
    """A proxy that asks a gateway, then forwards."""
    figure.text(20, top, title, "h")
    y = top + 18
    figure.box(20, y, 96, 40, ["clients"], "fill")
    figure.box(220, y, 150, 40, [proxy], "wait")
    figure.box(560, y, 160, 40, ["your servers"], "fill")
    figure.arrow(116, y + 20, 218, y + 20)
    figure.arrow(370, y + 20, 558, y + 20)
    figure.box(220, y + 62, 150, 32, ["Tidegate"], "ok")
    figure.arrow(280, y + 40, 280, y + 60)
    figure.arrow(310, y + 62, 310, y + 42)
    figure.arrow(370, y + 78, 388, y + 78, "a dash")
    figure.box(390, y + 62, 120, 32, ["Redis"], "own")
    figure.text(270, y + 56, "asks", "s", "end")
    figure.text(320, y + 56, answer, "s")
    figure.lines(530, y + 62, notes, "s")
    figure.lines(20, y + 66, question, "s")


FIGURES = [around]
