"""The image by itself: how it is built, what is in it, and what a container of it does."""

import pathlib
import subprocess
import time

from engine import (
    FILE, IMAGE, container, docker, eventually, expect, has_quota_of_five, image, inspect, last_line, logs, wait_answer,
)

MAX_MIB = 40
# Programs with which an intruder could run commands or install others.
PROGRAMS = {"sh", "bash", "dash", "ash", "busybox", "apt-get", "dpkg", "apk"}
NO_RIGHTS = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]


def with_file(breakage, old, new):
    """The checked image; with a breakage, one whose own configuration has the second text in place of the first."""
    text = pathlib.Path("config/tidegate.yaml").read_text().replace("address: 127.0.0.1:8080", "address: 0.0.0.0:8080")
    expect(old in text, f"config/tidegate.yaml has no {old!r}")
    return image(breakage, f"COPY tidegate.yaml {FILE}", {"tidegate.yaml": text.replace(old, new)})


def build(breakage):
    text = pathlib.Path("Dockerfile").read_text()
    if breakage:
        text = text.replace("cargo build", "cargo build --no-such-option")
    began = time.monotonic()
    command = ["docker", "build", "--force-rm", "--tag", IMAGE, "--file", "-", "."]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    expect(done.returncode == 0, f"docker build: {last_line(done.stderr)}")
    return f"{time.monotonic() - began:.2f} s"


def size(breakage):
    mib = int(inspect(image(breakage, "COPY padding /", {"padding": "x" * (MAX_MIB << 20)}), "{{.Size}}")) >> 20
    expect(mib <= MAX_MIB, f"the image has {mib} MiB, more than {MAX_MIB}")
    return f"{mib} MiB, at most {MAX_MIB}"


def user(breakage):
    name = inspect(image(breakage, "USER root"), "{{.Config.User}}")
    expect(name == "65532:65532", f"it runs as {name}")
    return name


def shell(breakage):
    with container(image(breakage, "COPY sh /usr/bin/sh", {"sh": ""})) as name:
        exported = subprocess.Popen(["docker", "export", name], stdout=subprocess.PIPE)
        listed = subprocess.run(["tar", "--list"], stdin=exported.stdout, capture_output=True, text=True, check=True)
    paths = listed.stdout.splitlines()
    expect("usr/bin/tidegate" in paths, "the image has no /usr/bin/tidegate")
    found = [path for path in paths if "bin/" in path and path.rsplit("/", 1)[-1] in PROGRAMS]
    expect(not found, f"the image has {', '.join(found)}")
    return "none"


def start(breakage):
    began = time.monotonic()
    with container(with_file(breakage, "address: 0.0.0.0:8080", "address: 127.0.0.1:8080")) as name:
        wait_answer(name)
        return f"{time.monotonic() - began:.2f} s"


def rights(breakage):
    with container(with_file(breakage, "# Listeners", "access_log: /tmp/access.log\n#"), *NO_RIGHTS) as name:
        wait_answer(name)
        return "answers"


def quota(breakage):
    with container(with_file(breakage, "quota: 5\n", "quota: 50\n")) as name:
        return has_quota_of_five(wait_answer(name))


def health(breakage):
    with container(image(breakage, 'HEALTHCHECK --interval=2s CMD ["/usr/bin/tidegate", "health", "/etc/other.yaml"]')) as name:
        healthy = eventually(40, lambda: inspect(name, "{{.State.Health.Status}}") == "healthy")
        last = "{{range .State.Health.Log}}{{.Output}}{{end}}"
        expect(healthy, f"the gateway is not healthy: {last_line(inspect(name, last))}")
    return "healthy"


def log(breakage):
    with container(IMAGE, command=["serve", "--log", "off", FILE] if breakage else []) as name:
        wait_answer(name)
        text = logs(name)
    expect("8080" in text, f"the log does not name the listener: {last_line(text)}")
    return f"{len(text.splitlines())} lines on standard output and error"


def term(breakage):
    with container(image(breakage, "STOPSIGNAL SIGKILL")) as name:
        wait_answer(name)
        began = time.monotonic()
        docker("stop", "--time", "20", name)
        seconds = time.monotonic() - began
        code = inspect(name, "{{.State.ExitCode}}")
    expect(code == "0", f"exit code {code} after its stop signal")
    return f"exit code 0 after {seconds:.2f} s"
