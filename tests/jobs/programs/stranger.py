"""Another user of the machine, who knows every public name and number of a job: stranger.py SECONDS FOLDER RUN_ID...

He listens wherever rank 0 might be looked for, and pretends to be rank 0. He calls every new listening socket, and
pretends to be rank 1, or is rude, or says nothing. He tries to read FOLDER. SECONDS after the first such socket, or
when his standard input ends, he writes down what he has achieved, as JSON. He has the standard library only.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

SILENT = 25  # connections to each socket that say nothing
RUDE = (b"[" * 100_000 + b"\n", struct.pack("!Q", 3 << 30) + b"x" * 1000)  # more nesting, and bytes, than one can hold


def listening() -> set[tuple[str, int]]:
    found = set()
    for file, host in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and int(words[7]) != os.getuid():
                found.add((host, int(words[1].rpartition(":")[2], 16)))
    return found


def pretend_rank_0(connection: socket.socket, token: bytes) -> bool:
    with connection, suppress(OSError):
        connection.settimeout(1)
        connection.recv(100)
        connection.sendall(token + token)
        return bool(connection.recv(100))  # more than the greeting
    return False


def pretend_rank_1(place: tuple[str, int], token: bytes) -> bool:
    with suppress(OSError), socket.create_connection(place, 0.5) as connection:
        connection.settimeout(1)
        connection.sendall(struct.pack("!8sI32s", b"unilnch1", 1, token))
        answer = connection.recv(64)
        if answer.startswith(token) or len(answer) < 64:
            return answer.startswith(token)
        connection.sendall(token)
        with suppress(TimeoutError):
            return bool(connection.recv(1))
    return False


seconds, folder, *runs = sys.argv[1:]
achieved = {"called": 0, "believed": 0, "let in": 0, "read": 0}
traps = selectors.DefaultSelector()
tokens = [sha256(f"unilaunch {run}".encode()).digest() for run in runs]
for token in tokens:
    for word in struct.unpack("!16H", token):  # where ranks met when the ports followed from the run's name
        with suppress(OSError):
            traps.register(socket.create_server(("", 20000 + word % 12768)), selectors.EVENT_READ, token)
traps.register(sys.stdin, selectors.EVENT_READ, None)
known, held = listening(), list[socket.socket]()
sys.stdout.write("ready\n")
sys.stdout.flush()
deadline = float("inf")
while time.monotonic() < deadline:
    for key, _ in traps.select(0.02):
        if key.data is None:  # the job has ended
            deadline = 0.0
        else:
            achieved["believed"] += pretend_rank_0(key.fileobj.accept()[0], key.data)  # type: ignore[union-attr]
    for place in listening() - known:
        known.add(place)
        deadline = min(deadline, time.monotonic() + float(seconds))
        achieved["called"] += 1
        achieved["let in"] += any(pretend_rank_1(place, token) for token in tokens)
        for words in (*RUDE, *[b""] * SILENT):
            with suppress(OSError):
                held.append(socket.create_connection(place, 0.5))
                held[-1].sendall(words)
    with suppress(OSError):
        achieved["read"] += len([(file, file.read_bytes()) for file in Path(folder).rglob("*") if file.is_file()])
sys.stdout.write(json.dumps(achieved) + "\n")
