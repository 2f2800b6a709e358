"""The first process of a throw-away host: sets the host up inside its namespaces, then holds them until its input ends.

Its input is a pipe from the process that made the host: a line of JSON, then the end when the host is to be removed. So
a host ends with that process, also if the process has crashed.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def _command(*line: str) -> None:
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


print("up", flush=True)  # noqa: T201
if description := sys.stdin.readline():
    host = json.loads(description)
    socket.sethostname(host["name"])
    for folder in ("/run", "/dev/shm"):  # noqa: S108  (mounted over, not written to)
        _command("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder)
    for source, target in host["binds"]:
        _command("mount", "--bind", source, target)
    for folder in host["folders"]:
        Path(folder).mkdir(mode=0o755)
    _command("ip", "link", "set", "lo", "up")
    for interface, address in host["interfaces"]:
        _command("ip", "address", "add", address, "dev", interface, *(["nodad"] if ":" in address else []))
        _command("ip", "link", "set", interface, "up")
    subprocess.Popen(host["sshd"], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((host["address"], 22)):
            break
        time.sleep(0.02)
    else:
        raise TimeoutError(f"nobody listens at port 22 of {host['address']}")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come here to be reaped; nobody asks how they ended
print("ready", flush=True)  # noqa: T201
sys.stdin.read()
