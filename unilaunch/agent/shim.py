"""The shim: the launcher's child, which represents a rank that the agent of its host has forked.

A launcher's children on one host connect to an abstract socket. Its name contains their job and their fingerprint
(folder, limits, cgroup). The first child starts the agent, and each child requests a rank from it. The agent forks a
process with the child's environment, CPUs and open files. The child stays as the rank's shim: it passes signals on, and
exits with the rank's exit code. A child that finds no agent supervises its rank itself.
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
from unilaunch.launchers.ancestry import stat_of
from unilaunch.start_variables import MONITOR, attempt_of, may_start_again

_CREDENTIALS = struct.Struct("iII")  # process, user, group
PATIENCE = 60.0  # seconds that a shim waits for the agent's import
_TICK = 0.2
_PIECE = 1 << 16
_LARGEST = 1 << 26  # bytes of a request
_MOST_FILES = 250  # the most that the kernel passes in one message
READY = b"y"


def address_of(own: Mapping[str, Any] | None, environ: Mapping[str, str]) -> str:
    """Return the socket's name for children with this fingerprint; "" if this child gets its own agent.

    A single rank shares its agent with the rank that follows it after a restart, which then need not import again.
    """
    followed = may_start_again(environ) or attempt_of(environ) > 0
    if not own or os.isatty(0) or (local_size(environ) == 1 and not followed):
        return ""
    job = _job(environ)
    alike = crc32(repr(own).encode(errors="backslashreplace"))
    return f"\0unilaunch-{os.getuid()}-{job}-{alike}" if job else ""


def _job(environ: Mapping[str, str]) -> str:
    """Return a text that only the ranks of one job on this host share, and that no other user can guess.

    A user who guesses it could bind the socket before the first rank. Under `launch` the text is the same at each
    attempt. It is a hash, so it does not reveal the monitor's secret.
    """
    if MONITOR in environ:
        return _digest(environ[MONITOR].encode())
    with suppress(OSError, IndexError):
        parent = os.getppid()
        began = stat_of(parent)[1][19]  # with the start time, since the kernel reuses process numbers
        return f"{parent}-{_digest(began.encode() + _secret_of(parent))}"
    return ""


def _secret_of(process: int) -> bytes:
    """Return the random addresses that the kernel gave a process of this user; other users cannot read them.

    For a process of another user, such as Slurm's daemon, return b"". Then another user can guess the socket's name. If
    that user binds it, each rank gets its own agent.
    """
    with suppress(OSError):
        return Path(f"/proc/{process}/auxv").read_bytes()
    return b""


def _digest(secret: bytes) -> str:
    return sha256(b"agent " + secret).hexdigest()[:24]


def local_size(environ: Mapping[str, str]) -> int:
    """Return how many ranks of this host can share an agent; 1 if that is unknown."""
    try:
        found = detect(environ)
    except UnilaunchError:  # the rank reports it
        return 1
    return (found.local_size or 1) if found.alike else 1


def bind(address: str) -> socket.socket | None:
    """Return a socket that listens at *address*; None if another process uses the address."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(address)
    except OSError:
        door.close()
        return None
    door.listen(4096)
    return door


def open_files() -> list[int]:
    """Return the inherited open files of this process: a launcher may use one to communicate (Hydra's PMI_FD)."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing, which is closed by now
            if os.get_inheritable(int(path.name)):
                found.append(int(path.name))
    return sorted(found)


def ask(address: str, started: float, own: Mapping[str, Any], environ: Mapping[str, str]) -> socket.socket | None:
    """Request a rank from the agent; return the connection to the agent, or None if the agent does not offer a rank.

    The agent forks the rank only after this process has acknowledged the offer. Without an offer, this process
    supervises its rank itself.

    Args:
        address: The agent's address.
        started: When this process started, in seconds of `time.monotonic`.
        own: This process's fingerprint.
        environ: This process's environment.
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
    """Pass signals on, and return the rank's exit code; -SIGKILL if the agent was killed, and the rank with it.

    The kernel kills this process when the launcher exits; the agent notices that.
    """

    def pass_on(number: int, _: object) -> None:
        with suppress(OSError):
            connection.send(bytes([number]))

    pass_signals_on(pass_on)
    with connection:
        while os.getppid() == launcher:
            if select.select([connection], [], [], _TICK)[0]:
                code = b""
                with suppress(OSError):
                    code = connection.recv(1)
                return code[0] if code else -signal.SIGKILL
        return 1


class Shim:
    """The agent's connection to a shim; the agent never blocks on it.

    Args:
        connection: The socket to the shim.

    Attributes:
        request: The shim's request, with "started", "environ", "processors", "launcher", "files" and
            "circumstances".
        files: Its open files, in the order of their numbers in the request.
        offered: Whether the agent has offered it a rank.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.request: dict[str, Any] = {}
        self.files: list[int] = []
        self.offered = False
        self._text = bytearray()
        connection.setblocking(False)

    def hear_request(self) -> bool:
        """Read from the request; return whether it is complete.

        Raises:
            OSError: The shim has exited; BlockingIOError: there is nothing to read.
            ValueError: This is not a request; TypeError and RecursionError mean the same.
        """
        piece, files, _, _ = socket.recv_fds(self.connection, _PIECE, _MOST_FILES)
        for file in files:
            os.set_inheritable(file, False)  # py-spy, which the agent starts, must not keep the launcher's pipes open
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
        """Offer the shim a rank.

        Raises:
            OSError: The shim has exited.
        """
        self.connection.send(READY)
        self.offered = True

    def hear_acknowledgement(self) -> bool:
        """Read the acknowledgement, and return True: the shim still waits, and takes the rank.

        Raises:
            OSError: The shim has closed the connection; BlockingIOError: there is nothing to read.
        """
        if self.connection.recv(1) != READY:
            raise ConnectionResetError
        self.connection.setblocking(True)
        return True

    @property
    def consoles(self) -> Sequence[int]:
        """The shim's standard output and standard error."""
        files = dict(zip(self.request["files"], self.files, strict=False))
        return [files.get(number, -1) for number in (1, 2)]

    def hear(self) -> bytes:
        """Return the numbers of the signals that the shim received; empty if it has exited."""
        with suppress(OSError):
            return self.connection.recv(64)
        return b""

    def dismiss(self, code: int) -> None:
        """Let the shim exit with *code*, after the launcher can read the end of the rank's output."""
        self._close_files()
        with suppress(OSError):  # the shim may have exited
            self.connection.send(bytes([code & 0xFF]))

    def close(self) -> None:
        """Close the connection and the shim's files."""
        self._close_files()
        self.connection.close()

    def _close_files(self) -> None:
        for file in self.files:
            os.close(file)
        self.files.clear()
