"""The base class of launchers, and how they read their variables.

An entry point in the group "unilaunch.launchers" names a subclass of `Launcher`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.ancestry import Ancestor, Daemon

if TYPE_CHECKING:
    from unilaunch.launchers.mpirun import Mpirun

_YIELD = "OMPI_MCA_mpi_yield_when_idle"
#: Seconds: mpirun can hang when many ranks end sooner after their start (Open MPI 4 and 5).
SHORTEST_LIFE = 0.5


class Launcher(ABC):
    """One launcher. Its module must import nothing heavy: every rank loads it."""

    #: The name for messages; "" is that of the entry point.
    title: str = ""
    #: Of several launchers whose variables are seen the lowest number counts, where no ancestor tells which: a launcher
    #: that is usually started inside of others has a low one. Those of unilaunch: MPIs 10 to 60, PET_* variables 65,
    #: torchrun 70, msrun 80, Slurm 90.
    order: int = 50
    #: How the names of its variables begin. `launch` passes none of them on to another host. `-x NAME=VALUE` of such a
    #: variable stays on mpirun's command line, since mpirun itself may read it; the values of others go into mpirun's
    #: environment, which other users do not see.
    prefixes: tuple[str, ...] = ()
    #: Variables that hold the number of ranks: a process that has one of them and nothing else is not run alone.
    sizes: tuple[str, ...] = ()
    #: The names of its programs, as they stand above a rank; and of Python scripts and modules.
    programs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    #: File names of its MPI library, which lies in the installation of those programs; and other names of the same.
    libraries: tuple[str, ...] = ()
    #: No process of it stands above a rank: each pod of a job runs the user's command.
    is_unseen: bool = False
    #: What to do if its ranks cannot use MPI, or MPI counts other ranks; "" for the usual advice.
    without_mpi: str = ""
    #: The versions that `launch` can start, for a message: "MPICH or Intel MPI"; "" if it can start none.
    startable: str = ""

    @abstractmethod
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Return what its variables say about this process; None if it did not start this process. Pure.

        Raises:
            EnvironmentMismatchError: Some of its variables are missing, or one has an invalid value.
        """

    def describe(
        self,
        environ: Mapping[str, str],
        names: Sequence[str],
        used: Sequence[str] = (),
        *,
        title: str = "",
        **more: Any,
    ) -> LauncherInfo:
        """Return what variables with the numbers of this process say; for `detect`.

        Args:
            environ: The process's environment.
            names: The variables that hold the rank, the size and, if the launcher gives them, the local rank and the
                local size, in that order. A variable may stand twice.
            used: Other variables that were read, as evidence for the user.
            title: The name for messages; default: that of the launcher.
            more: Other fields of `LauncherInfo`. An empty address in `rank_0_hosts` is left out.

        Raises:
            EnvironmentMismatchError: One of *names* is missing, is no number, or is a rank not below its size.
        """
        title = title or self.title
        rank, size, *local = read_numbers(environ, title, names)
        local_rank, local_size = [*local, None, None][:2]
        fields: dict[str, Any] = {"launcher": title, "run_id": "", "evidence": evidence(environ, *names, *used)} | more
        fields["rank_0_hosts"] = tuple(filter(None, more.get("rank_0_hosts", ())))
        return LauncherInfo(rank=rank, size=size, local_rank=local_rank, local_size=local_size, **fields)

    def is_protocol_only(self, environ: Mapping[str, str]) -> bool:  # noqa: ARG002  (most have a protocol of their own)
        """Whether these variables may be another launcher's, which speaks with its ranks in the same way."""
        return False

    def copies(self, environ: Mapping[str, str]) -> int:  # noqa: ARG002
        """Return how often it has started the user's command; only of a launcher that `is_unseen`."""
        return 1

    def is_helper(self, environ: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether the launcher started this process for itself: it is no rank."""
        return False

    def exports(self, environ: Mapping[str, str]) -> Collection[str]:  # noqa: ARG002
        """Return the variables that it has set in *environ*, and that could be taken for the user's choice."""
        return ()

    def nodes(self, environ: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """Return what it says of the nodes to the one `launch` that it starts on each, as fields of `LaunchSpec`.

        `nnodes` is their number, "1" if there is one only. What the user gives wins.
        """
        return {}

    def mpirun_variables(self, environ: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """Return what an mpirun must find in the environment to start where this launcher has started its shell."""
        return {}

    def mpi_variables(
        self, info: LauncherInfo, daemon: Daemon | None, environ: Mapping[str, str]  # noqa: ARG002
    ) -> dict[str, str]:  # fmt: skip
        """Return what MPI is to find in the environment before it is initialised; nothing that the user exported.

        With more ranks than processors a rank of Open MPI that waits gives its processor to one that computes; other
        MPIs do not read the variable.

        Args:
            info: What `detect` returned.
            daemon: The launcher's process above this one, if it can be told.
            environ: The process's environment.
        """
        crowded = (info.local_size or 1) > (os.cpu_count() or 1)
        return {_YIELD: "1"} if crowded and _YIELD not in environ else {}

    def hidden_output(self, environ: Mapping[str, str], line: Sequence[str]) -> str:  # noqa: ARG002
        """Return the pattern of the files to which it writes the ranks' output; "" if it shows that output too.

        Args:
            environ: A rank's environment.
            line: The command line of the process above the rank, without the program that it starts.
        """
        return ""

    def recognise(self, path: Path, said: str) -> "Mpirun | None":  # noqa: ARG002  (most cannot be started)
        """Return the mpirun at *path* if it is this launcher's, and `launch` can start it.

        Args:
            path: A program.
            said: What it answers to --version.

        Raises:
            LauncherError: It is this launcher's, and too old.
        """
        return None

    def assume(self) -> "Mpirun | None":
        """Return the mpirun for which `--emit` writes where none is installed; None if it is never this launcher's."""
        return None

    def is_program(self, ancestor: Ancestor) -> bool:
        """Return whether *ancestor* is a process of this launcher."""
        return any(name in self.programs for name in ancestor.names) or any(
            word in self.scripts for word in ancestor.scripts
        )


def read_numbers(environ: Mapping[str, str], launcher: str, names: Sequence[str]) -> list[int]:
    """Return the numbers of *names*: the rank, the world size and, if they are set, both for this host.

    Raises:
        EnvironmentMismatchError: Some are missing, one is no number, or a rank is not below its size.
    """
    missing = [name for name in names if name not in environ]
    if missing:
        there = [f"{name}={environ[name]}" for name in names if name in environ]
        raise EnvironmentMismatchError(
            f"only some of {launcher}'s variables are set: {', '.join(there) or 'none'}; missing: "
            f"{', '.join(missing)}; start the ranks with it, or unset what an earlier run left in this shell"
        )
    wrong = [f"{name}={environ[name]}" for name in dict.fromkeys(names) if not is_number(environ[name])] or [
        f"{rank}={environ[rank]} is not below {size}={environ[size]}"
        for rank, size in zip(names[::2], names[1::2], strict=False)
        if int(environ[rank]) >= int(environ[size])
    ]
    if wrong:
        raise EnvironmentMismatchError(
            f"{launcher}'s environment is not valid: {', '.join(wrong)}; do not set these by hand"
        )
    return [int(environ[name]) for name in names]


def is_number(text: str, digits: int = 9) -> bool:
    """Return whether *text* is a number as launchers write it: at most nine digits."""
    return text.isascii() and text.isdecimal() and len(text) <= digits


def evidence(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return those of *names* that are set, with their values."""
    return {name: environ[name] for name in names if name in environ}
