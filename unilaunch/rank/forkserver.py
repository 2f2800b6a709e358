"""One import of the framework for all ranks of a host: they are forked from one process, the fork server.

A launcher's children on one host meet at a socket that is named after the launcher's process and the circumstances that
they share (folder, limits, cgroup). The first to come starts the server, and every one of them asks it to be forked in
its place: the new process has the asker's environment, processors and open files, and does all that the asker would
have done. The asker stays as its stand-in with the launcher: it passes signals on, and ends as the other one does.
Whoever finds no server does its work itself.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from unilaunch.environments import detect
from unilaunch.errors import UnilaunchError
from unilaunch.rank.circumstances import circumstances
from unilaunch.rank.processes import is_single, pass_signals_on
from unilaunch.rank.wake import wake_launcher

_CREDENTIALS = struct.Struct("3i")
_IMPORT = 60.0  # seconds that an asker waits for the server's import
_REQUEST = 10.0  # seconds for an asker's request, which it sends before it waits
_TICK = 0.2
_PIECE = 1 << 16
_MOST_FILES = 250  # the kernel passes no more of them at once
_YES = b"y"
#: Each of their ranks has other variables, which the framework reads.
_FRAMEWORKS_OWN = {"torchrun", "torch.distributed's variables", "msrun"}

#: See `take_place`.
WarmUp = Callable[[], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands that is to be a rank's guard.

    Attributes:
        started: When the launcher's child began to work, in seconds of `time.monotonic`.
        stand_in: The way to the launcher's child, if that is another process.
    """

    started: float
    stand_in: socket.socket | None = None


def take_place(environ: Mapping[str, str], started: float, warm_up: WarmUp) -> Place | int:
    """Return where to go on; or the exit code, in a process whose work another one has done.

    Args:
        environ: The process's environment.
        started: When this process began to work, in seconds of `time.monotonic`.
        warm_up: Imports what every rank would, and returns the variables that this has set; every rank is on its own if
            it returns None or raises.
    """
    launcher, size, own = os.getppid(), _local_size(environ), circumstances(environ)
    address = _address(launcher, own)
    if not (address and own) or size < 2 or os.isatty(0):  # noqa: PLR2004  (an only one has nobody to ask)
        return Place(started)
    request = {
        "started": started,
        "circumstances": own,
        "environ": dict(environ),
        "processors": sorted(os.sched_getaffinity(0)),
        "files": _open_files(),
    }
    server = _bind(address)
    if server and not os.fork():
        return _serve(server, own, size, warm_up)
    if server:
        server.close()
    line = _ask(address, request)
    if not line:
        return Place(started)
    code = _stand_in(line, launcher)
    wake_launcher(launcher, code, environ)
    return code


def _address(parent: int, own: object) -> str:
    """Return the abstract address where a process's children in equal circumstances meet; "" if it cannot be told."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        began = stat.rpartition(")")[2].split()[19]  # a process number is given again, at another time
        return f"\0unilaunch-{os.getuid()}-{parent}-{began}-{crc32(repr(own).encode(errors='backslashreplace'))}"
    return ""


def _local_size(environ: Mapping[str, str]) -> int:
    """Return how many ranks of this host can be alike; 1 if that cannot be told."""
    try:
        found = detect(environ)
    except UnilaunchError:  # the rank says so
        return 1
    return 1 if found.launcher in _FRAMEWORKS_OWN else found.local_size or 1


def _open_files() -> list[int]:
    """Return the files that this process was started with: a launcher may speak over one (Hydra's PMI_FD)."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            if os.get_inheritable(int(path.name)):
                found.append(int(path.name))
    return sorted(found)


def _bind(address: str) -> socket.socket | None:
    """Return the listening socket; None if another process has it."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(address)
    except OSError:
        server.close()
        return None
    server.listen(4096)
    return server


def _same_user(line: socket.socket) -> bool:
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


# The asker


def _ask(address: str, request: Mapping[str, Any]) -> socket.socket | None:
    """Return the line to the process that has been forked in this one's place; None if there is none."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(_IMPORT)
    with suppress(OSError):
        line.connect(address)
        if _same_user(line) and len(request["files"]) <= _MOST_FILES:
            text = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(line, [text], request["files"])
            line.sendall(text[sent:])
            if line.recv(1) == _YES:
                line.settimeout(None)
                return line
    line.close()
    return None


def _stand_in(line: socket.socket, launcher: int) -> int:
    """Pass signals on, and return what the other process ends with; if it was killed, be killed too.

    When the launcher has gone this process goes, and the other one sees it.
    """

    def pass_on(number: int, _: object) -> None:
        with suppress(OSError):
            line.send(bytes([number]))

    pass_signals_on(pass_on)
    while os.getppid() == launcher:
        if select.select([line], [], [], _TICK)[0]:
            code = b""
            with suppress(OSError):
                code = line.recv(1)
                line.recv(1)  # its end
            if code:
                return code[0]
            os.kill(os.getpid(), signal.SIGKILL)
    return 1


# The server


def _serve(server: socket.socket, own: Mapping[str, Any], size: int, warm_up: WarmUp) -> Place:
    """Serve *size* askers, wait for the forked ones' end, and end; return in a process that was forked for one."""
    first = os.getppid()
    try:
        os.setpgid(0, 0)  # what a launcher sends to its child's group comes through the stand-in
        _let_go_of_files()
        variables = warm_up()
        if variables is None or not is_single():
            os._exit(0)
        _point_nowhere(1, 2)
        for _ in range(size):
            line = _accept(server, first)
            if not line:
                break
            if place := _fork(server, own, line, variables):
                return place
        server.close()
        while True:
            os.wait()
    except BaseException:  # noqa: BLE001  (what goes wrong here goes wrong in the ranks too, which say so)
        os._exit(0)


def _accept(server: socket.socket, first: int) -> socket.socket | None:
    """Return the next asker's line; None if the *first* one has gone, and others may never come."""
    while not select.select([server], [], [], _TICK)[0]:
        if os.getppid() != first:
            return None
    return server.accept()[0]


def _fork(
    server: socket.socket, own: Mapping[str, Any], line: socket.socket, variables: Mapping[str, str]
) -> Place | None:
    """Fork a process in an asker's place if it is in our circumstances; return where it stands, in that process."""
    request, files = _read_request(line)
    if request.get("circumstances") == own and not os.fork():
        server.close()
        request["environ"] |= variables
        return _become(request, files, line)
    for file in files:
        os.close(file)
    line.close()
    return None


def _read_request(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what an asker sent, and its open files; nothing of another user, or if it has gone."""
    text, files = b"", list[int]()
    line.settimeout(_REQUEST)
    with suppress(OSError, ValueError):
        if _same_user(line):
            text, files, _, _ = socket.recv_fds(line, _PIECE, _MOST_FILES)
            while not text.endswith(b"\n") and (piece := line.recv(_PIECE)):
                text += piece
            return json.loads(text), files
    return {}, files


def _become(request: Mapping[str, Any], files: Sequence[int], line: socket.socket) -> Place:
    """Be what the asker would be: its environment, processors and open files."""
    os.environ.clear()  # noqa: TID251  (another process's takes its place)
    os.environ.update(request["environ"])  # noqa: TID251
    os.setpgid(0, 0)
    os.sched_setaffinity(0, request["processors"])
    above = max([2, *request["files"]]) + 1  # no number that is to be taken
    stand_in = socket.socket(fileno=fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, above))
    line.close()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    stand_in.settimeout(None)
    stand_in.send(_YES)
    return Place(request["started"], stand_in)


def _let_go_of_files() -> None:
    """Close what the first asker was started with, but for where an import may say something."""
    _point_nowhere(0)
    for file in _open_files():
        if file > 2:  # noqa: PLR2004  (standard error)
            os.close(file)


def _point_nowhere(*files: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in files:
        os.dup2(nowhere, file)
    os.close(nowhere)
