"""MPI: the agreements of the ranks, and the collectives on host arrays. Only this module imports mpi4py."""

import ctypes
import json
import math
import os
import signal
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilaunch import launchers
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.backend import Collectives, Exchange, Peers, groups
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override

if TYPE_CHECKING:
    from mpi4py import MPI

    from unilaunch.rendezvous.boards import Board

LIBRARY = "MPI4PY_LIBMPI"


def variables(info: LauncherInfo, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set before MPI is initialised, without those that the user exported.

    They are the launcher's variables, and the path of the libmpi of the mpirun that started this rank. Otherwise the
    libmpi of a wheel would be used under the system's mpirun.
    """
    daemon = launchers.find_daemon()
    library = daemon.find_library() if daemon and LIBRARY not in environ else None
    chosen = {LIBRARY: str(library)} if library else {}
    return chosen | launchers.known()[info.name].mpi_variables(info, daemon, environ)


def find_libmpi(environ: Mapping[str, str]) -> Path | None:
    """Return the libmpi that this process will load; None if that is unknown."""
    if LIBRARY in environ:
        return Path(environ[LIBRARY])
    daemon = launchers.find_daemon()
    return daemon.find_library() if daemon else None


def is_initialized() -> bool:
    """Return whether this process has initialised MPI, by any library; True also after MPI_Finalize."""
    return _ask_mpi("MPI_Initialized")


def is_finalized() -> bool:
    """Return whether this process has finalized MPI."""
    return _ask_mpi("MPI_Finalized")


def can_be_used() -> bool:
    """Return whether mpi4py is installed and this process has not finalized MPI."""
    return find_spec("mpi4py") is not None and not is_finalized()


def abort() -> None:
    """End all ranks of the job at once."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(1)


def _ask_mpi(function: str) -> bool:
    """Return whether a library of MPI that this process has loaded answers yes."""
    for name in {name for launcher in launchers.known().values() for name in launcher.libraries}:
        flag = ctypes.c_int(0)
        with suppress(OSError, AttributeError):  # not loaded, or no library of MPI
            getattr(ctypes.CDLL(name, mode=os.RTLD_NOLOAD), function)(ctypes.byref(flag))
        if flag.value:
            return True
    return False


def check(info: LauncherInfo) -> None:
    """Raise an error if mpi4py is missing, before MPI is loaded.

    Raises:
        EnvironmentMismatchError: mpi4py is missing.
    """
    try:
        import mpi4py  # noqa: F401  (the package itself does not load MPI)
    except ImportError as error:
        raise _cannot_be_loaded(info, error) from None


def _cannot_be_loaded(info: LauncherInfo, error: Exception) -> EnvironmentMismatchError:
    usual = "pip install mpi4py, and an MPI: pip install 'unilaunch[mpi]' or the system's"
    return EnvironmentMismatchError(
        f"{info.launcher} started {info.size} ranks, and MPI cannot be loaded: {' '.join(str(error).split())}; "
        + "; ".join(filter(None, (usual, _advice(info))))
    )


def _advice(info: LauncherInfo) -> str:
    launcher = launchers.known().get(info.name)
    return launcher.without_mpi if launcher else ""


def join(info: LauncherInfo, thread_level: str = "serialized", board: "Board | None" = None) -> "MpiPeers":
    """Initialise MPI and return the peers over it.

    Args:
        info: The launcher info.
        thread_level: As `mpi4py.rc.thread_level`.
        board: The board on which the ranks found each other before, if any.

    Raises:
        EnvironmentMismatchError: mpi4py or libmpi is missing, or MPI's ranks differ from the launcher's variables.
    """
    try:
        import mpi4py

        mpi4py.rc.thread_level = thread_level
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _cannot_be_loaded(info, error) from None
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGHUP))  # Open MPI 5 has replaced the handler
    comm = MPI.COMM_WORLD
    if (comm.rank, comm.size) != (info.rank, info.size or comm.size):
        usual = (
            "either the variables are left over from an earlier run (unset OMPI_COMM_WORLD_*), or mpirun and libmpi do "
            f"not belong together (set {LIBRARY} to the libmpi.so of this mpirun)"
        )
        raise EnvironmentMismatchError(
            f"{info.launcher} says rank {info.rank} of {info.size}, and MPI ({library()}) says rank {comm.rank} of "
            f"{comm.size}: {_advice(info) or usual}"
        )
    return MpiPeers(comm, board)


def lend() -> None:
    """Let a program initialise MPI through mpi4py, although this process has already done so to connect the ranks.

    With `mpi4py.rc.initialize = False` MPI looks uninitialised until the program calls `Init` or `Init_thread`.
    """
    import mpi4py
    from mpi4py import MPI

    own_init, own_init_thread, initialised = MPI.Init, MPI.Init_thread, False

    def is_initialized() -> bool:
        return initialised or mpi4py.rc.initialize

    def init() -> None:
        nonlocal initialised
        if is_initialized():
            own_init()  # a second time: MPI raises its error
        initialised = True

    def init_thread(required: int = MPI.THREAD_MULTIPLE) -> int:
        nonlocal initialised
        if is_initialized():
            return own_init_thread(required)
        initialised = True
        return MPI.Query_thread()

    MPI.Init, MPI.Init_thread, MPI.Is_initialized = init, init_thread, is_initialized


def library() -> str:
    """Return the name and version of the MPI that was loaded: "Open MPI v5.0.11"."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].splitlines()[0].strip()


class MpiPeers(Peers):
    """Agreements over MPI. The messages are JSON, never a pickle."""

    def __init__(self, comm: "MPI.Intracomm", board: "Board | None") -> None:
        self.comm = comm
        self.board = board

    @override
    def leave(self) -> None:
        if self.board:
            self.board.finish()

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        message = json.dumps(value).encode()
        sizes = array("i", [0] * self.comm.size)
        _settle(self.comm.Iallgather(array("i", [len(message)]), sizes))
        received = bytearray(sum(sizes))
        _settle(self.comm.Iallgatherv(message, [received, list(sizes)]))
        return [json.loads(received[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]

    def reaches_all(self, patience: float) -> bool:
        """Return whether the ranks reach each other within so many seconds; MPI itself would wait for ever."""
        return _settle(self.comm.Ibarrier(), patience)

    @override
    def collectives(self) -> Collectives:
        return MpiCollectives(self.comm.Dup())  # a separate communicator: its messages cannot be mixed with others


def _settle(request: "MPI.Request", patience: float = math.inf) -> bool:
    """Return whether *request* has ended in time; wait without spinning: other ranks may compute on the same CPUs."""
    pause, until = 0.0, time.monotonic() + patience
    while not request.Test():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(pause + 0.0002, 0.01)
    return True


class MpiCollectives(Collectives):
    """Collectives on contiguous host arrays, sent from and received into the arrays themselves."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.comm = comm
        self.mpi = MPI

    @override
    def all_reduce(self, buffer: Any) -> None:
        self.comm.Allreduce(self.mpi.IN_PLACE, buffer)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        if send.dtype == receive.dtype == "float16":  # which is no type of MPI's; rows only travel
            send, receive = send.view("int16"), receive.view("int16")
        requests = [self.comm.Irecv(rows, source=rank) for rank, rows in groups(receive, receive_counts)]
        requests += [self.comm.Isend(rows, dest=rank) for rank, rows in groups(send, send_counts)]
        return _MpiExchange(self.mpi.Request, requests)

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        self.comm.Bcast(buffer, root=root)

    @override
    def barrier(self) -> None:
        self.comm.Barrier()


class _MpiExchange(Exchange):
    def __init__(self, kind: "type[MPI.Request]", requests: "list[MPI.Request]") -> None:
        self.kind = kind
        self.requests = requests

    @override
    def progress(self) -> None:
        self.kind.Testall(self.requests)

    @override
    def wait(self) -> None:
        self.kind.Waitall(self.requests)
