"""The first process of a throw-away host: sets the host up inside its namespaces, then holds them until its input ends.

Its standard input is a pipe from the process that made the host: one line of JSON, then the end of the input when the
host is to be removed. So a host ends with that process, also if the process has crashed.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def main() -> None:
    """Say "up", set the host up as told, say "ready", and stay."""
    say("up")
    if line := sys.stdin.readline():
        set_up(json.loads(line))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come here to be reaped; nobody asks how they ended
    say("ready")
    sys.stdin.read()


def set_up(host: dict[str, Any]) -> None:
    """Make the host what *host* describes: its name, its mounts, its interfaces, its sshd."""
    socket.sethostname(host["name"])
    for folder in host["memory"]:
        command("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder)
    for source, target in host["binds"]:
        command("mount", "--bind", source, target)
    for folder in host["folders"]:
        Path(folder).mkdir(mode=0o755)
    command("ip", "link", "set", "lo", "up")
    for interface, address in host["interfaces"]:
        command("ip", "address", "add", address, "dev", interface, *(["nodad"] if ":" in address else []))
        command("ip", "link", "set", interface, "up")
    subprocess.Popen(host["sshd"], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wait_for_port(host["address"], 22)


def command(*line: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def wait_for_port(address: str, port: int) -> None:
    """Return when somebody listens at *port*."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, port)):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens at {address}:{port}")


def say(word: str) -> None:
    """Tell the maker how far this host is."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
