"""Let the owner inspect a running job: by a Unix socket in the output folder, and by metrics over HTTP on request.

Only the user who started the job, and root, can connect to the socket: its mode is 0600, in a folder of that user.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_ISSOCK
from typing import Any

from unilaunch.errors import InputError
from unilaunch.folder.claim import is_ours
from unilaunch.folder.failure import split_phase
from unilaunch.folder.files import add_event
from unilaunch.folder.folder import SOCKET, rank_folder
from unilaunch.interfaces.step import Step
from unilaunch.machine.addresses import FAMILIES
from unilaunch.monitor.http_server import Answer, HttpServer
from unilaunch.monitor.inbox import RankSeen, RankState
from unilaunch.monitor.metrics import CONTENT_TYPE, write_metrics
from unilaunch.monitor.monitor import STACKS, Monitor
from unilaunch.monitor.stragglers import Stragglers

_JSON = "application/json"


class Inspection:
    """Answers the requests of the job's owner.

    Args:
        monitor: The monitor.
        root: The output folder.
        metrics: A listening socket for the metrics; None without --metrics-port.
    """

    def __init__(self, monitor: Monitor, root: Path, metrics: socket.socket | None) -> None:
        self.monitor, self.root = monitor, root.absolute()
        self.stragglers = Stragglers()
        self.opened = False  # the socket exists, or cannot be made
        self.own = 0  # the number of its file
        metrics_page: dict[str, Callable[[], Answer]] = {"/metrics": lambda: self._metrics}
        self.pages = {
            "/status": lambda: self._status,
            "/stacks": self._ask_stacks,
            **metrics_page,
        }
        self.servers = [HttpServer(metrics, monitor.inbox.selector, metrics_page)] if metrics else []

    def tick(self) -> None:
        """Open the socket once the ranks have an output folder, answer requests, and look for stragglers."""
        inbox = self.monitor.inbox
        if not self.opened and 0 in inbox.ranks and (run := inbox.ranks[0].run):
            self.opened = True
            if is_ours(self.root, run):
                self._open()
        for server in self.servers:
            server.tick()
        working = {rank: seen for rank, seen in inbox.ranks.items() if seen.is_working}
        paces = {rank: seen.pace for rank, seen in working.items()}
        hosts = {rank: seen.host for rank, seen in working.items()}
        if named := self.stragglers.look(paces, hosts, time.monotonic()):
            folder = rank_folder(self.root, named.rank, self.monitor.size)
            if is_ours(folder, inbox.ranks[named.rank].run):  # not on a host with another file system
                add_event(folder, **named.as_json())

    def close(self) -> None:
        """Close the sockets, and remove the one in the output folder."""
        with suppress(OSError):
            if self.own == (self.root / SOCKET).lstat().st_ino:  # not the socket of the next job
                (self.root / SOCKET).unlink()
        for server in self.servers:
            server.close()

    def _open(self) -> None:
        """Listen in the output folder; if that is not possible, continue without a socket."""
        path = self.root / SOCKET
        with suppress(OSError), ExitStack() as on_error:
            listener = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            folder = os.open(self.root, os.O_PATH | os.O_CLOEXEC)
            try:
                with suppress(FileNotFoundError):
                    if S_ISSOCK(path.lstat().st_mode):  # the socket of a monitor that was killed
                        path.unlink()
                listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")  # the name of a socket has at most 107 bytes
                self.own = path.lstat().st_ino
                path.chmod(0o600)  # before it listens, no process can connect
                listener.listen(16)
            finally:
                os.close(folder)
            self.servers.append(HttpServer(listener, self.monitor.inbox.selector, self.pages))
            on_error.pop_all()

    def _status(self) -> tuple[str, str]:
        return json.dumps(self.snapshot()), _JSON

    def _metrics(self) -> tuple[str, str]:
        return write_metrics(self.snapshot()), CONTENT_TYPE

    def snapshot(self) -> dict[str, Any]:
        """Return the job's state at this moment; times are in seconds, memory in bytes."""
        now, inbox, size = time.monotonic(), self.monitor.inbox, self.monitor.size
        slow, known = self.stragglers.current, list(inbox.ranks.values())  # another thread may ask while they change
        return {
            "state": "running",
            "run": next((seen.run for seen in known if seen.run), ""),
            "size": size,
            "restarts": inbox.attempt,
            "straggler": slow.as_json() if slow else None,
            "ranks": [_rank(rank, inbox.ranks.get(rank, RankSeen()), now) for rank in range(size)],
        }

    def _ask_stacks(self) -> Answer:
        """Request the stacks of every rank; return a function that gives the answer once all arrived or time is up."""
        inbox, until = self.monitor.inbox, time.monotonic() + STACKS
        inbox.request_stacks()

        def answer() -> tuple[str, str] | None:
            arrived, silent = inbox.stacks()
            if silent and time.monotonic() < until:
                return None
            stacks = {rank: {"text": stack.text, "facts": stack.facts} for rank, stack in arrived.items()}
            return json.dumps({"stacks": stacks, "silent": sorted(silent)}), _JSON

        return answer


def listen_for_metrics(address: str, port: int) -> socket.socket:
    """Return a listening socket for the metrics.

    Raises:
        InputError: The port is taken, or this host has no such address.
    """
    try:
        return socket.create_server((address, port), family=FAMILIES[":" in address])
    except OSError as error:
        raise InputError(
            f"--metrics-port {port}: cannot listen on {address}: {error.strerror}: choose another port or another "
            "--metrics-address"
        ) from None


def _rank(number: int, seen: RankSeen, now: float) -> dict[str, Any]:
    step = Step.last_from_facts(seen.progress)
    exited = seen.state is RankState.EXITED
    return {
        "rank": number,
        "host": seen.host,
        "device": seen.device,
        "state": seen.state.value,
        "phase": split_phase(seen.progress)[0],
        "step": {"kind": step.kind, "number": step.number, "total": step.total} if step else None,
        "values": dict(step.values) if step else {},
        "steps": seen.pace.steps,
        "busy_seconds": seen.pace.busy,
        "seconds_per_step": seen.step_seconds or None,
        "received_bytes": seen.pace.received or None,  # a program that does not count them
        "memory_bytes": 0 if exited else seen.pace.memory,
        "idle_seconds": max(0.0, now - seen.moved) if seen.moved and not exited else None,
        "exit_code": seen.exit_code,
    }
