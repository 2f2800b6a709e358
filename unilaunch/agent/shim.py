"""The launcher's child, which stands for a rank that the agent of its host has forked: the shim.

A launcher's children on one host meet at an abstract socket that is named after their job and the circumstances that
they share (folder, limits, cgroup). The first to come starts the agent, and each asks it to fork a rank: the new
process has the asker's environment, processors and open files. The asker stays as the rank's shim: it passes signals
on, and exits as the rank does. Whoever finds no agent supervises its rank itself.
"""

import json
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from unilaunch.agent.processes import pass_signals_on
from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect
from unilaunch.start_variables import MONITOR

_CREDENTIALS = struct.Struct("3i")
PATIENCE = 60.0  # seconds that an asker waits for the agent's import
_TICK = 0.2
_PIECE = 1 << 16
_LARGEST = 1 << 26  # bytes of a request
_MOST_FILES = 250  # the kernel passes no more of them at once
READY = b"y"


def address_of(own: Mapping[str, Any] | None, environ: Mapping[str, str]) -> str:
    """Return where a launcher's children in equal circumstances meet; "" if this one is to be on its own."""
    if not own or os.isatty(0) or local_size(environ) == 1:
        return ""
    job = _job(environ)
    alike = crc32(repr(own).encode(errors="backslashreplace"))
    return f"\0unilaunch-{os.getuid()}-{job}-{alike}" if job else ""


def _job(environ: Mapping[str, str]) -> str:
    """Return what is the same in all ranks of a job on this host, in no other job, and what no other user can guess.

    He would take the socket before the first rank comes. Under `launch` it is the same at each start, and its public
    hash tells nothing of the secret.
    """
    if MONITOR in environ:
        return _digest(environ[MONITOR].encode())
    with suppress(OSError, IndexError):
        parent = os.getppid()
        stat = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        began = stat.rpartition(")")[2].split()[19]  # a process number is given again, at another time
        return f"{parent}-{_digest(began.encode() + _secret_of(parent))}"
    return ""


def _secret_of(process: int) -> bytes:
    """Return what the kernel has chosen at random for a process of this user, its addresses, and shows to no other one.

    b"" for another user's, such as Slurm's daemon: then another user can guess the name, and if he takes it each rank
    has an agent of its own.
    """
    with suppress(OSError):
        return Path(f"/proc/{process}/auxv").read_bytes()
    return b""


def _digest(secret: bytes) -> str:
    return sha256(b"agent " + secret).hexdigest()[:24]


def local_size(environ: Mapping[str, str]) -> int:
    """Return how many ranks of this host can be alike; 1 if that cannot be told."""
    try:
        found = detect(environ)
    except UnilaunchError:  # the rank says so
        return 1
    return (found.local_size or 1) if found.alike else 1


def bind(address: str) -> socket.socket | None:
    """Return the listening socket; None if another process has it."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(address)
    except OSError:
        door.close()
        return None
    door.listen(4096)
    return door


def open_files() -> list[int]:
    """Return the files that this process was started with: a launcher may speak over one (Hydra's PMI_FD)."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            if os.get_inheritable(int(path.name)):
                found.append(int(path.name))
    return sorted(found)


def ask(address: str, started: float, own: Mapping[str, Any], environ: Mapping[str, str]) -> socket.socket | None:
    """Ask for a rank in this process's place; return the connection to the agent, None if there is none.

    The agent forks it when this process has acknowledged the answer: if it has given up, it is the rank itself.

    Args:
        address: The agent's.
        started: When this process began to work, in seconds of `time.monotonic`.
        own: This process's circumstances.
        environ: Its environment.
    """
    files = open_files()
    request = {
        "started": started, "circumstances": own, "environ": dict(environ), "files": files,
        "processors": sorted(os.sched_getaffinity(0)), "launcher": os.getppid(),
    }  # fmt: skip
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    with suppress(OSError):
        connection.connect(address)
        if is_same_user(connection) and len(files) <= _MOST_FILES:
            text = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(connection, [text], files)
            connection.sendall(text[sent:])
            if connection.recv(1) == READY:
                connection.sendall(READY)
                connection.settimeout(None)
                return connection
    connection.close()
    return None


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this process's user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def stand_for(connection: socket.socket, launcher: int) -> int:
    """Pass signals on, and return what the rank exits with; -SIGKILL if the agent was killed, and with it the rank.

    When the launcher has gone this process goes, and the agent sees it.
    """

    def pass_on(number: int, _: object) -> None:
        with suppress(OSError):
            connection.send(bytes([number]))

    pass_signals_on(pass_on)
    while os.getppid() == launcher:
        if select.select([connection], [], [], _TICK)[0]:
            code = b""
            with suppress(OSError):
                code = connection.recv(1)
            return code[0] if code else -signal.SIGKILL
    return 1


class Shim:
    """A shim as its agent sees it; the agent never waits for it.

    Args:
        connection: The way to it.

    Attributes:
        request: What it has asked for: "started", "environ", "processors", "launcher", "files" and
            "circumstances".
        files: Its open files, in the order of their numbers in the request.
        offered: It has been told that it can have its rank.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.request: dict[str, Any] = {}
        self.files: list[int] = []
        self.offered = False
        self._text = bytearray()
        connection.setblocking(False)

    def hear_request(self) -> bool:
        """Take what has come of the request; return whether that was all of it.

        Raises:
            OSError: The shim has gone; BlockingIOError: nothing has come.
            ValueError: This is no request; so may TypeError and RecursionError say.
        """
        piece, files, _, _ = socket.recv_fds(self.connection, _PIECE, _MOST_FILES)
        self.files += files
        self._text += piece
        if not piece or len(self._text) > _LARGEST:
            raise ValueError("no request")
        if not piece.endswith(b"\n"):
            return False
        request = json.loads(self._text)
        if not isinstance(request, dict):
            raise TypeError("no request")
        self.request = request
        self._text.clear()
        return True

    def offer(self) -> None:
        """Tell it that it can have its rank.

        Raises:
            OSError: It has gone.
        """
        self.connection.send(READY)
        self.offered = True

    def hear_acknowledgement(self) -> bool:
        """Return True: it still waits, and takes the rank.

        Raises:
            OSError: It has given up; BlockingIOError: nothing has come.
        """
        if self.connection.recv(1) != READY:
            raise ConnectionResetError
        self.connection.setblocking(True)
        return True

    @property
    def consoles(self) -> Sequence[int]:
        """Its standard output and standard error."""
        files = dict(zip(self.request["files"], self.files, strict=False))
        return [files.get(number, -1) for number in (1, 2)]

    def hear(self) -> bytes:
        """Return the numbers of the signals that it got; nothing if it has gone."""
        with suppress(OSError):
            return self.connection.recv(64)
        return b""

    def dismiss(self, code: int) -> None:
        """Let it exit, when the launcher can see the end of the rank's output."""
        self._close_files()
        with suppress(OSError):  # it may have gone
            self.connection.send(bytes([code & 0xFF]))

    def close(self) -> None:
        """Close everything of it."""
        self._close_files()
        self.connection.close()

    def _close_files(self) -> None:
        for file in self.files:
            os.close(file)
        self.files.clear()
