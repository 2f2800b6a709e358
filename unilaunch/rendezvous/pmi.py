"""Hydra's store as a board: PMI version 1 over a file descriptor that MPICH's and Intel MPI's mpiexec passes to ranks.

A request is one line, and so is its answer ("cmd=get kvsname=K key=K"). The MPI library that a program loads later uses
the same descriptor and starts the protocol again. So this module ends the protocol only if the program did not use MPI.
Protocol: "PMI v1 Wire Protocol", MPICH documentation.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.overriding import override
from unilaunch.rendezvous.board import StoreBoard
from unilaunch.rendezvous.mpi import is_initialized

DESCRIPTOR = "PMI_FD"
_KEY = "unilaunch"
_LINE = 4096  # bytes of an answer


class PmiBoard(StoreBoard):
    """The key-value space of one attempt."""

    advice = "at the address that mpiexec's store gives: can the hosts of the job reach each other?"

    def __init__(self, found: LauncherInfo, environ: Mapping[str, str]) -> None:
        self.found = found
        try:
            self.line = socket.socket(fileno=os.dup(int(environ[DESCRIPTOR])))
        except (OSError, ValueError) as error:
            raise EnvironmentMismatchError(
                f"{DESCRIPTOR}={environ[DESCRIPTOR]}: mpiexec does not answer there ({error}): was the variable "
                "left over from another process? unset PMI_*"
            ) from None
        self._ask("init pmi_version=1 pmi_subversion=1")
        self.space = self._ask("get_my_kvsname")["kvsname"]

    @override
    def exchange(self, text: str) -> str:
        if text:
            self._ask(f"put kvsname={self.space} key={_KEY} value={text}")
        self._ask("barrier_in")
        return text or self._ask(f"get kvsname={self.space} key={_KEY}")["value"]

    @override
    def finish(self) -> None:
        if not is_initialized():  # otherwise MPI_Finalize ends the protocol
            with suppress(EnvironmentMismatchError):  # the job has succeeded, even if mpiexec does not answer
                self._ask("finalize")

    def _ask(self, command: str) -> dict[str, str]:
        """Return the values in the answer, by key.

        Raises:
            EnvironmentMismatchError: There is no answer, or it is not an answer of Hydra.
        """
        answer = b""
        try:
            self.line.sendall(f"cmd={command}\n".encode())
            answer = self.line.makefile("rb", buffering=0).readline(_LINE)
            reason = answer.decode(errors="replace").strip() or "it hangs up"
        except OSError as error:
            reason = error.strerror or str(error)
        words = dict(word.split("=", 1) for word in answer.decode(errors="replace").split() if "=" in word)
        if words.get("rc", "0") != "0" or "cmd" not in words:
            raise EnvironmentMismatchError(
                f"{self.found.launcher} says {self.found.size} ranks, and its mpiexec does not answer at {DESCRIPTOR} "
                f"({command.partition(' ')[0]}: {reason}): are the variables left over from an earlier run? unset PMI_*"
            )
        return words
