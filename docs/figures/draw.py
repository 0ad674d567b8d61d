#!/usr/bin/env python3
"""Draws the figures of the book into docs/src/images.

    docs/figures/draw.py           writes them
    docs/figures/draw.py --check   fails if a file differs from what would be written

Needs Python alone. The limits' figures are computed by models.py, which decides as the gateway does.
"""

import sys

import around, buckets, client, filters, kit, leases, request, room, topologies, windows

FIGURES = [
    *request.FIGURES, *windows.FIGURES, *buckets.FIGURES, *leases.FIGURES, *filters.FIGURES, *topologies.FIGURES,
    *around.FIGURES, *client.FIGURES, *room.FIGURES,
]


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(f"unknown arguments {arguments}; usage: docs/figures/draw.py [--check]")
    stale = []
    for draw in FIGURES:
        figure = draw()
        path = kit.FOLDER / f"{figure.name}.svg"
        if not arguments:
            path.write_text(figure.svg(), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != figure.svg():
            stale.append(path.name)
    if stale:
        sys.exit(f"docs/src/images: {', '.join(stale)} differ from docs/figures: run docs/figures/draw.py")
    print(f"{len(FIGURES)} figures")


if __name__ == "__main__":
    main(sys.argv[1:])
