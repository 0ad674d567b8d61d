"""Mounted configurations: a folder of the host, and one as Kubernetes mounts a ConfigMap."""

import contextlib
import os
import pathlib
import tempfile
import time

from engine import FILE, IMAGE, answers, container, docker, eventually, expect, last_line, logs, wait_answer

FOLDER, NAME = FILE.rsplit("/", 1)


def configuration(text):
    """A configuration whose response is this text."""
    return f"""listen: [{{address: '0.0.0.0:8080'}}]
admin: {{address: '127.0.0.1:9900'}}
upstreams: {{text: {{respond: {{body: {text}}}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: text}}]
"""


def mount(source, target):
    return ["--volume", f"{source}:{target}:ro"]


@contextlib.contextmanager
def folder():
    """A folder of the host that the container's user can read, with a configuration."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        (pathlib.Path(path) / NAME).write_text(configuration("one"))
        yield pathlib.Path(path)


def hang_up(breakage):
    with folder() as path, container(IMAGE, *mount(path, FOLDER)) as name:
        wait_answer(name, "one")
        if breakage:
            (path / NAME).write_text("listen: 7\n")
        docker("kill", "--signal", "HUP", name)
        expect(eventually(5, lambda: "the configuration was reloaded" in logs(name)), "no reload after SIGHUP")
    return "reloads"


def changed(breakage):
    # A mounted file is the inode that had the name once: the container does not see that another one takes its place.
    with folder() as path, container(IMAGE, *(mount(path / NAME, FILE) if breakage else mount(path, FOLDER))) as name:
        address = wait_answer(name, "one")
        (path / "new").write_text(configuration("two"))
        (path / "new").rename(path / NAME)
        expect(eventually(10, lambda: answers(address, "two")), "a change in a mounted folder was not noticed")
    return "reloaded"


def faulty(breakage):
    with folder() as path, container(IMAGE, *mount(path, FOLDER)) as name:
        address = wait_answer(name, "one")
        (path / NAME).write_text("listen: 7\n")
        if breakage:
            docker("restart", "--time", "5", name)
        time.sleep(3)
        expect(answers(address, "one"), f"a faulty file ended the service: {last_line(logs(name))}")
    return "the old one stays"


def fault(breakage):
    with folder() as path, container(IMAGE, *mount(path, FOLDER)) as name:
        wait_answer(name, "one")
        (path / NAME).write_text(configuration("two") if breakage else "listen: 7\n")
        expect(eventually(5, lambda: f"{NAME}:1:" in logs(name)), "the log does not name the fault")
    return "named with its line"


def swapped(breakage):
    """Kubernetes mounts a folder in which links are swapped together."""
    with folder() as path:
        (path / NAME).unlink()
        for version, text in (("..first", "one"), ("..second", "two")):
            (path / version).mkdir()
            (path / version / NAME).write_text(configuration(text))
        (path / "..data").symlink_to("..first")
        (path / NAME).symlink_to(f"..data/{NAME}")
        # As with `subPath`: the file that the link leads to when the container starts.
        with container(IMAGE, *(mount((path / NAME).resolve(), FILE) if breakage else mount(path, FOLDER))) as name:
            address = wait_answer(name, "one")
            (path / "..new").symlink_to("..second")
            (path / "..new").rename(path / "..data")
            expect(eventually(10, lambda: answers(address, "two")), "a swapped link was not noticed")
    return "reloaded"


def volume(breakage):
    """An order fails because the authority cannot be reached, and not because of its storage, which comes first."""
    acme = "tls: {acme: {domains: [www.example.com], directory: 'https://127.0.0.1:1/dir'}}"
    place = "/var/lib/tidegate/acme"
    storage = ["--tmpfs", f"{place}:mode=755"] if breakage else ["--volume", place]
    with folder() as path:
        text = configuration("one").replace("listen: [", f"listen: [{{address: '0.0.0.0:8443', {acme}}}, ")
        (path / NAME).write_text(text)
        with container(IMAGE, "--read-only", *mount(path, FOLDER), *storage) as name:
            expect(eventually(20, lambda: "no certificate was issued" in logs(name)), "no order was made")
            expect("https://127.0.0.1:1/dir cannot be used" in logs(name), f"the storage was refused: {last_line(logs(name))}")
    return "is written"
