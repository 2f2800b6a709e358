"""Hydra's store as a board: PMI version 1 over the file descriptor that MPICH's and Intel MPI's mpiexec hands down.

One line asks, one line answers ("cmd=get kvsname=K key=K"). The MPI library that a program loads later speaks over the
same descriptor, from the same beginning; so nothing is ended here unless the program has not used MPI at all.
Protocol: "PMI v1 Wire Protocol", MPICH documentation.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from typing_extensions import override

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.rank.board import Board, Meeting, open_meeting
from unilaunch.rank.mpi import is_initialized
from unilaunch.world import LauncherInfo

DESCRIPTOR = "PMI_FD"
_KEY = "unilaunch"
_LINE = 4096  # bytes of an answer


class PmiBoard(Board):
    """One start's key-value space.

    Args:
        found: What the launcher says.
        environ: The process's environment.
    """

    def __init__(self, found: LauncherInfo, environ: Mapping[str, str]) -> None:
        self.found = found
        try:
            self.line = socket.socket(fileno=os.dup(int(environ[DESCRIPTOR])))
        except (OSError, ValueError) as error:
            raise EnvironmentMismatchError(
                f"{DESCRIPTOR}={environ[DESCRIPTOR]}: mpiexec does not answer there ({error}): was the variable "
                "left over from another process? unset PMI_*"
            ) from None
        self.meeting: Meeting | None = None
        self._ask("init pmi_version=1 pmi_subversion=1")
        self.space = self._ask("get_my_kvsname")["kvsname"]

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        listener, meeting = open_meeting(self.found)
        self._ask(f"put kvsname={self.space} key={_KEY} value={meeting.text}")
        self._ask("barrier_in")
        return listener, meeting.secret

    @override
    def read(self) -> Meeting | None:
        if self.meeting is None:
            self._ask("barrier_in")
            self.meeting = Meeting.read(self._ask(f"get kvsname={self.space} key={_KEY}")["value"])
        return self.meeting

    @override
    def close(self) -> None:
        """Nothing: the store goes with the job."""

    @override
    def finish(self) -> None:
        if not is_initialized():  # MPI's own finalisation says it
            with suppress(EnvironmentMismatchError):  # the job has ended well, whatever mpiexec makes of it
                self._ask("finalize")

    @property
    @override
    def advice(self) -> str:
        return "at the address that mpiexec's store gives: can the hosts of the job reach each other?"

    def _ask(self, command: str) -> dict[str, str]:
        """Return the answer's words.

        Raises:
            EnvironmentMismatchError: Nobody answers, or not as Hydra does.
        """
        answer = b""
        try:
            self.line.sendall(f"cmd={command}\n".encode())
            while not answer.endswith(b"\n") and len(answer) < _LINE:
                piece = self.line.recv(_LINE)
                if not piece:
                    break
                answer += piece
        except OSError as error:
            answer = b""
            reason = error.strerror
        else:
            reason = answer.decode(errors="replace").strip() or "it hangs up"
        words = dict(word.split("=", 1) for word in answer.decode(errors="replace").split() if "=" in word)
        if words.get("rc", "0") != "0" or "cmd" not in words:
            raise EnvironmentMismatchError(
                f"{self.found.launcher} says {self.found.size} ranks, and its mpiexec does not answer at {DESCRIPTOR} "
                f"({command.partition(' ')[0]}: {reason}): are the variables left over from an earlier run? unset PMI_*"
            )
        return words
