"""Containers and images of the Docker engine, and requests to them. Everything made here is removed at the end."""

import contextlib
import pathlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

IMAGE = "tidegate"
# The image with a fault, for `--break`.
BROKEN = "tidegate-check-broken"
LABEL = "tidegate.check"
FILE = "/etc/tidegate/tidegate.yaml"


class Failed(Exception):
    """A check that does not hold, or a command that failed."""


def expect(holds, fault):
    if not holds:
        raise Failed(fault)


def docker(*arguments, text=None, timeout=120):
    """Runs a command of docker and returns its standard output."""
    done = subprocess.run(["docker", *arguments], input=text, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise Failed(f"docker {' '.join(arguments[:4])} ...: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def image(breakage, instructions, files=None):
    """The checked image; with a breakage, one built from it and these instructions of a Dockerfile, which can copy the files."""
    if not breakage:
        return IMAGE
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (files or {}).items():
            pathlib.Path(folder, name).write_text(text)
        pathlib.Path(folder, "Dockerfile").write_text(f"FROM {IMAGE}\nLABEL {LABEL}=yes\n{instructions}\n")
        docker("build", "--tag", BROKEN, folder)
    return BROKEN


@contextlib.contextmanager
def container(name, *options, command=()):
    """A running container of an image, with these options and this command of `docker run`. Its port 8080 is published."""
    identity = docker("run", "--detach", "--label", LABEL, "--publish", "127.0.0.1::8080", *options, name, *command).strip()
    try:
        yield identity
    finally:
        docker("rm", "--force", "--volumes", identity)


def url(name):
    """The address of port 8080 of a container."""
    return f"http://{docker('port', name, '8080/tcp').split()[0]}/"


def is_running(name):
    return inspect(name, "{{.State.Running}}") == "true"


def inspect(name, template):
    return docker("inspect", "--format", template, name).strip()


def logs(name):
    """Both outputs of a container."""
    done = subprocess.run(["docker", "logs", name], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def eventually(seconds, holds, pause=0.05):
    """Waits until this holds. Returns False if it does not within the seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def get(address, token=None, timeout=5):
    """The status and the body of a response; status 0 and the reason if there is none."""
    request = urllib.request.Request(address)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except OSError as fault:
        return 0, str(fault)


def answers(address, text):
    """True if the response's body contains the text. The request counts as one of another caller than those without a token."""
    return text in get(address, "answers")[1]


def has_quota_of_five(address):
    """Fails unless five of six requests are admitted. Returns their statuses."""
    seen = " ".join(str(get(address)[0]) for _ in range(6))
    expect(seen == "200 200 200 200 200 429", f"the quota is 5, and six requests are answered with {seen}")
    return f"six requests: {seen}"


def wait_answer(name, text="hello"):
    """Waits until a container answers with the text. Returns its address."""
    def answered():
        try:
            return answers(url(name), text)
        except Failed:
            # A container that has ended has no port.
            return False

    if not eventually(10, lambda: answered() or not is_running(name)) or not is_running(name):
        raise Failed(f"no response: {last_line(logs(name))}")
    return url(name)


def last_line(text):
    return (text.strip().splitlines() or ["nothing was printed"])[-1]


def remove_all():
    """Removes every container and image with the label, also those of an earlier run that was killed."""
    for kind, remove in (("ps --all", "rm"), ("images", "rmi")):
        names = docker(*kind.split(), "--quiet", "--filter", f"label={LABEL}").split()
        if names:
            docker(remove, "--force", *dict.fromkeys(names))
