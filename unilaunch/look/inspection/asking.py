"""Ask the monitor of a running job, over the socket in its output folder."""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError
from unilaunch.folder.claim import read_marker
from unilaunch.folder.files import refuse_unreadable
from unilaunch.folder.folder import SOCKET

_PATIENCE = 30.0  # seconds for an answer
_LARGEST = 1 << 28  # bytes of one


def ask(folder: Path, page: str) -> dict[str, Any] | None:
    """Return what the monitor answers; None if no monitor of a running job listens in *folder*.

    Args:
        folder: The output folder.
        page: "/status", "/stacks" or "/stacks/native".

    Raises:
        InputError: This user has no access, or there is no valid answer in time.
    """
    connection = _connect(folder)
    if connection is None:
        return None
    data = bytearray()
    try:
        with connection, suppress(ConnectionError):  # the job may end in the meantime
            connection.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
            while (piece := connection.recv(1 << 16)) and len(data) < _LARGEST:
                data += piece
    except TimeoutError:
        raise _unanswered(folder) from None
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    if not head:
        return None
    try:
        told = json.loads(body)
    except ValueError:
        raise InputError(f"{folder / SOCKET}: the answer is not whole: ask again") from None
    return told if isinstance(told, dict) else None


def _connect(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_PATIENCE)
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        connection.close()
        raise InputError(f"{folder}: no output folder: {error.strerror}") from None
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")  # the name of a Unix socket has at most 107 bytes
    except PermissionError:
        connection.close()
        raise InputError(f"{folder}: the job there belongs to another user: only its owner can look into it") from None
    except BlockingIOError:  # so many requests wait already that the kernel takes no more
        connection.close()
        raise _unanswered(folder) from None
    except OSError:  # no process listens, or the monitor runs on another host
        connection.close()
        return None
    finally:
        os.close(descriptor)
    return connection


def _unanswered(folder: Path) -> InputError:
    return InputError(
        f"{folder}: the job's monitor does not answer within {_PATIENCE:g} s: if launch is paused (Ctrl-Z), continue "
        "it with fg"
    )


def not_running(folder: Path) -> InputError:
    """Return why the job of *folder* cannot be inspected; raise it where this user may not read the folder."""
    refuse_unreadable(folder)
    marker = read_marker(folder)
    if marker is None:
        return InputError(f"{folder}: no output folder of a job: expected the folder that --output-dir names")
    where = f"look from {marker.host}, or from the host of `launch`"
    return InputError(
        f"{folder}: no job is running there that this host can reach; if one runs on other hosts, {where}"
    )
