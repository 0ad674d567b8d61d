#!/usr/bin/env python3
"""A preprocessor of mdBook: makes every link lead to a page of the book.

It adds the files outside of docs/src that pages link to, whose links would lead out of the book: Markdown files become
chapters of the part "For developers", others become sections of the chapter "Files". mdBook runs it, by docs/book.toml; it
needs Python alone.
"""

import json
import posixpath
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "docs/src/"
FILES = "repository-files.md"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*```")


def anchor(heading):
    """As mdBook makes it."""
    kept = (letter.lower() for letter in heading.replace(" ", "-") if letter.isalnum() or letter in "-_")
    return "".join(kept)


class Book:
    """The pages that are added, by their path in the repository."""

    def __init__(self):
        self.chapters = {}
        self.files = {}

    def rewrite(self, text, path):
        """The text of the file at `path`, with links that lead into the book. `path` is from the repository's root."""
        is_code, lines = False, []
        for line in text.split("\n"):
            if FENCE.match(line):
                is_code = not is_code
            if not is_code:
                line = LINK.sub(lambda link: self.replace(link, path), line)
            lines.append(line)
        return "\n".join(lines)

    def replace(self, link, path):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        if target.startswith(SOURCE):
            # mdBook renames the first page of a folder, and does not follow links to it.
            own = re.sub(r"README\.md$", "index.md", target.removeprefix(SOURCE))
        else:
            own = self.add(target)
        heading = link[2] or ""
        if own == FILES:
            heading = "#" + anchor(target)
        return f"]({relative(own, path)}{heading})"

    def add(self, target):
        """Adds a file, and returns its page in the book."""
        file = ROOT / target
        if not file.is_file():
            sys.exit(f"docs: a page links to {target}, which is no file")
        if not target.endswith(".md"):
            self.files.setdefault(target, file.read_text(encoding="utf-8"))
            return FILES
        if target not in self.chapters:
            self.chapters[target] = None
            self.chapters[target] = self.rewrite(file.read_text(encoding="utf-8"), target)
        return page_of(target)

    def items(self):
        """The added part."""
        chapters = [chapter(title(text), text, page_of(path)) for path, text in sorted(self.chapters.items())]
        sections = ["# Files\n\nThe files of the repository that pages of this book link to.\n"]
        for path, text in sorted(self.files.items()):
            sections.append(f"## {path}\n\n````{path.rsplit('.')[-1]}\n{text.rstrip()}\n````\n")
        if self.files:
            chapters.append(chapter("Files", "\n".join(sections), FILES))
        return [{"PartTitle": "For developers"}, *chapters] if chapters else []


def title(text):
    return text.split("\n", 1)[0].removeprefix("# ")


def page_of(target):
    return f"repository-{posixpath.basename(target)}"


def relative(page, path):
    """The page as seen from the file at `path`."""
    folder = posixpath.dirname(path.removeprefix(SOURCE)) if path.startswith(SOURCE) else ""
    return posixpath.relpath(page, folder or ".")


def chapter(name, content, path):
    return {"Chapter": {
        "name": name, "content": content, "number": None, "sub_items": [], "path": path, "source_path": None,
        "parent_names": [],
    }}


def walk(items, book):
    for item in items:
        own = item.get("Chapter") if isinstance(item, dict) else None
        if own:
            own["content"] = book.rewrite(own["content"], SOURCE + own["source_path"])
            walk(own["sub_items"], book)


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0 if sys.argv[2:] == ["html"] else 1)
    _, read = json.load(sys.stdin)
    if "items" not in read:
        sys.exit("docs: expected mdBook 0.5 or newer, which lists the chapters of a book as `items`")
    book = Book()
    walk(read["items"], book)
    read["items"] += book.items()
    json.dump(read, sys.stdout)


if __name__ == "__main__":
    main()
