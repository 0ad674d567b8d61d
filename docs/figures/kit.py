"""What all figures share: colours, text sizes, boxes, arrows and time axes.

A figure has its own background and two sets of colours. As an `<img>` it follows the colour scheme of the page where the
browser hands it down, and is legible on any page where it does not.
"""

from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src" / "images"

LIGHT = {
    "bg": "#fbfcfd", "edge": "#d0d7de", "fg": "#1f2933", "soft": "#52606d", "line": "#8a97a4", "fill": "#eef1f4",
    "ok": "#1a7f37", "okfill": "#d8f3df", "no": "#b42318", "nofill": "#fbe1de", "own": "#0b62c4", "ownfill": "#dcebfc",
    "wait": "#8a5a00", "waitfill": "#faedc4", "other": "#6d3fc0", "otherfill": "#ebe2fb",
}
DARK = {
    "bg": "#161b22", "edge": "#30363d", "fg": "#e6edf3", "soft": "#a7b3bf", "line": "#7d8894", "fill": "#232a33",
    "ok": "#56d364", "okfill": "#173a22", "no": "#ff8a80", "nofill": "#4a1f1d", "own": "#79b8ff", "ownfill": "#16324f",
    "wait": "#e3b341", "waitfill": "#41330f", "other": "#c4a5ff", "otherfill": "#34245a",
}
KINDS = ("fill", "ok", "no", "own", "wait", "other")


def _variables(colours):
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def _style():
    rules = [
        f":root{{{_variables(LIGHT)}}}",
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}",
        "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--fg)}",
        ".b{font-weight:600}.h{font-size:15px;font-weight:600}.s{fill:var(--soft)}",
        ".m{font-family:ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace;font-size:12.5px}",
        ".bg{fill:var(--bg);stroke:var(--edge)}.fill{fill:var(--fill);stroke:var(--line)}",
        ".l{stroke:var(--line);fill:none}.a{stroke:var(--soft);stroke-width:1.5;fill:none}.dash{stroke-dasharray:4 4}",
        ".head{fill:var(--soft)}.plain{fill:var(--bg);stroke:var(--line)}",
    ]
    for kind in KINDS[1:]:
        rules.append(f".{kind}{{fill:var(--{kind}fill);stroke:var(--{kind})}}")
        rules.append(f".t{kind}{{fill:var(--{kind})}}.full{kind}{{fill:var(--{kind})}}")
        rules.append(f".l{kind}{{stroke:var(--{kind});stroke-width:2;fill:none}}")
    return "<style>" + "\n".join(rules) + "</style>"


def number(value):
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class Figure:
    """A picture that is written as one SVG file. Coordinates are in pixels at full size."""

    def __init__(self, name, size, title, description):
        self.name, (self.width, self.height) = name, size
        self.title, self.description = title, description
        self.parts = []

    def add(self, tag, content=None, **attributes):
        """An element. `css` is its class; other names are attributes, with `-` for `_`."""
        attributes["class"] = attributes.pop("css", None)
        words = [tag]
        for name, value in attributes.items():
            if value is not None:
                shown = number(value) if isinstance(value, (int, float)) else escape(value)
                words.append(f'{name.replace("_", "-")}="{shown}"')
        end = "/>" if content is None else f">{content}</{tag}>"
        self.parts.append("<" + " ".join(words) + end)

    def text(self, x, y, words, css="", anchor=None):
        if words:
            self.add("text", escape(words, quote=False), x=x, y=y, css=css or None, text_anchor=anchor)

    def lines(self, x, y, texts, css="", anchor=None):
        """Texts below each other, 18 px apart; the baseline of the first is at `y`."""
        for index, words in enumerate(texts):
            self.text(x, y + 18 * index, words, css, anchor)

    def rect(self, x, y, width, height, css="fill", rx=4):
        self.add("rect", x=x, y=y, width=width, height=height, rx=rx, css=css)

    def box(self, x, y, width, height, texts, css="fill"):
        """A box with centred lines, the first in bold."""
        self.rect(x, y, width, height, css, rx=6)
        top = y + height / 2 - 9 * (len(texts) - 1) + 4.5
        for index, words in enumerate(texts):
            style = "b" if index == 0 else "s"
            self.text(x + width / 2, top + 18 * index, words, style, "middle")

    def line(self, x1, y1, x2, y2, css="l"):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, css=css)

    def path(self, d, css="l"):
        self.add("path", d=d, css=css)

    def circle(self, x, y, radius, css):
        self.add("circle", cx=x, cy=y, r=radius, css=css)

    def arrow(self, x1, y1, x2, y2, css="a"):
        """A line with its head at the second point."""
        self.line(x1, y1, x2, y2, css)
        self._head(x1, y1, x2, y2)

    def bend(self, points, css="a"):
        """A line through points, with its head at the last one."""
        self.path("M" + "L".join(f"{number(x)},{number(y)}" for x, y in points), css)
        (x1, y1), (x2, y2) = points[-2:]
        self._head(x1, y1, x2, y2)

    def _head(self, x1, y1, x2, y2):
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        corners = [(x2, y2)]
        for side in (4, -4):
            corners.append((x2 - 8 * ux - side * uy, y2 - 8 * uy + side * ux))
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self.add("polygon", points=points, css="head")

    def svg(self):
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(self.title)}</title>',
            f'<desc id="d">{escape(self.description)}</desc>',
            _style(),
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" class="bg"/>',
        ]
        return "\n".join(head + self.parts + ["</svg>"]) + "\n"


class Axis:
    """A time axis: seconds become pixels."""

    def __init__(self, figure, left, right, seconds):
        self.figure, self.left, self.right, self.seconds = figure, left, right, seconds

    def x(self, second):
        return self.left + (self.right - self.left) * second / self.seconds

    def draw(self, y, ticks, unit=" s"):
        """The line at `y` with its labels below."""
        self.figure.arrow(self.left, y, self.right + 14, y)
        for tick in ticks:
            self.figure.line(self.x(tick), y - 4, self.x(tick), y + 4)
            self.figure.text(self.x(tick), y + 19, f"{tick:g}{unit}", "s", "middle")

    def request(self, second, y, verdict):
        """A request at its time: a green dot if it is admitted, a red cross if it is refused."""
        x = self.x(second)
        if verdict:
            self.figure.circle(x, y, 5, "fullok")
        else:
            cross = f"M{number(x - 4)},{number(y - 4)}l8,8m0,-8l-8,8"
            self.figure.path(cross, "lno")
