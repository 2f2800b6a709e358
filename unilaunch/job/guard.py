"""The process of a direct start that forks the agents of all attempts; it may be started before the job is planned."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from unilaunch.errors import LauncherError
from unilaunch.spec.variables import MAX_RESTARTS, MONITOR, RESTARTS, SECRET, SPEC

#: Seconds for the process to exit, once its connection is closed.
_PATIENCE = 5.0
#: Variables that matter to no import before the process is told them.
_TOLD = {MONITOR, SPEC, RESTARTS, MAX_RESTARTS}


class Guard:
    """A process that imports what every rank needs, the framework once it is told the ranks' environment.

    Args:
        target: What the ranks run, for lists of processes.
        environ: The environment of the process.
        folder: Its folder; None for this process's.

    Attributes:
        process: The process.
        connection: The connection to it.

    Raises:
        LauncherError: No process can be started.
    """

    def __init__(self, target: str, environ: Mapping[str, str], folder: Path | None = None) -> None:
        self._environ, self._folder, self._is_told = _fixed(environ), folder, False
        self.connection, other = socket.socketpair()
        line = [sys.executable, "-m", "unilaunch", "agent", str(other.fileno()), target]
        with other:
            try:
                self.process = subprocess.Popen(
                    line, env=self._environ, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True,
                    pass_fds=[other.fileno()],
                )  # fmt: skip
            except OSError as error:
                self.connection.close()
                raise LauncherError(f"{sys.executable}: cannot be started: {error.strerror}") from None

    def serves(self, environ: Mapping[str, str], folder: Path | None) -> bool:
        """Return whether it still runs, and is as one that is started now for ranks with *environ* in *folder*."""
        as_now = (self._environ, self._folder) == (_fixed(environ), folder)
        return self.process.poll() is None and (self._is_told or as_now)

    def tell(self, environ: Mapping[str, str]) -> None:
        """Tell it the environment of the first attempt's ranks: it decides what is imported only once."""
        if not self._is_told:
            self._is_told = True
            with suppress(OSError):  # killed: its end says so
                self.connection.sendall(json.dumps({"environ": dict(environ)}).encode() + b"\n")

    def close(self) -> None:
        """End the process: it has no agent any more, unless `launch` fails."""
        self.connection.close()
        if not self._is_told:
            self.process.kill()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _fixed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*_TOLD, SECRET}}
