"""MPI: the agreements of the ranks, and the collectives on host arrays. Only this module imports mpi4py."""

import ctypes
import json
import math
import os
import signal
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilaunch import launchers
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.backend import Collectives, Exchange, Peers, groups
from unilaunch.interfaces.calls import OWN, Operation
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

    calls = OWN

    def __init__(self, comm: "MPI.Intracomm", board: "Board | None") -> None:
        self.comm = comm
        self.board = board

    @override
    def leave(self) -> None:
        if self.board:
            self.board.finish()

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        word = self.calls.begin(Operation.AGREE)
        message = json.dumps([word, value]).encode()
        sizes = array("i", [0] * self.comm.size)
        _settle(self.comm.Iallgather(array("i", [len(message)]), sizes))
        received = bytearray(sum(sizes))
        _settle(self.comm.Iallgatherv(message, [received, list(sizes)]))
        answers = [json.loads(received[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        return self.calls.agreed(self.comm.rank, word, answers)

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


#: A larger sum is checked by a message of its own: to copy it would take longer.
_SMALL = 1 << 18
#: Kinds of array for whose sums memory is kept.
_KEPT = 32
#: Most bytes of one message: MPI counts up to 2^31 - 1 elements, and some transports no more bytes.
_MOST = 1 << 30
#: Bytes of a number that holds a checked word: up to 2^24, which float32 holds exactly.
_LEAST_ITEM = 4
_SIZES = 251


class MpiCollectives(Collectives):
    """Collectives on contiguous host arrays, sent from and received into the arrays themselves.

    A message of an exchange has the word of its call (`CallLog.begin`) as its tag. A sum begins with one number for
    each rank: the word, and the array's size modulo 251 above it; the others add 0 to it.
    """

    calls = OWN

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.comm = comm
        self.mpi = MPI
        self.rank, self.size = comm.rank, comm.size
        self.words = array("q", [0] * self.size)
        self.headed: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}

    @override
    def all_reduce(self, buffer: Any) -> None:
        word = self.calls.begin(Operation.ALL_REDUCE)
        flat = _flat("all_reduce", buffer)
        checked = flat.size % _SIZES << 15 | word
        if flat.nbytes > _SMALL or flat.itemsize < _LEAST_ITEM:
            self._check(word, checked)
            for piece in _pieces(flat):
                self.comm.Allreduce(self.mpi.IN_PLACE, piece)
            return
        whole, head, body = self.headed.get((flat.size, flat.dtype)) or self._make_headed(flat)
        head.fill(0)
        head[self.rank] = checked
        body[...] = flat
        self._sum(word, whole)
        self._compare(word, checked, head.tolist())
        flat[...] = body

    def _make_headed(self, flat: Any) -> tuple[Any, Any, Any]:
        """Return an array for a sum of arrays like *flat*: the whole, the numbers at its beginning, and the rest."""
        whole = flat.copy()
        whole.resize(self.size + flat.size, refcheck=False)
        if len(self.headed) == _KEPT:
            self.headed.clear()
        return self.headed.setdefault((flat.size, flat.dtype), (whole, whole[: self.size], whole[self.size :]))

    def _check(self, word: int, checked: int) -> None:
        """Wait until all ranks are in the call with this word."""
        for rank in range(self.size):
            self.words[rank] = checked * (rank == self.rank)
        self._sum(word, self.words)
        self._compare(word, checked, self.words.tolist())

    def _sum(self, word: int, numbers: Any) -> None:
        try:
            self.comm.Allreduce(self.mpi.IN_PLACE, numbers)
        except self.mpi.Exception as error:
            if error.Get_error_class() != self.mpi.ERR_TRUNCATE:
                raise
            raise self.calls.mixed_up(self.rank, word, self.rank, None) from None

    def _compare(self, word: int, checked: int, theirs: "list[Any]") -> None:
        if theirs == [checked] * self.size:
            return
        other = next(rank for rank, one in enumerate(theirs) if one != checked)
        one = theirs[other].real
        is_word = theirs[self.rank] == checked and 0 < one < 1 << 23 and one == int(one)  # not of other dtypes
        raise self.calls.mixed_up(self.rank, word, other, int(one) & 0x7FFF if is_word else None)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        word = self.calls.begin(Operation.EXCHANGE)
        if send.dtype == receive.dtype == "float16":  # which is no type of MPI's; rows only travel
            send, receive = send.view("int16"), receive.view("int16")
        arriving, leaving = list(groups(receive, receive_counts)), list(groups(send, send_counts))
        if max(send.nbytes, receive.nbytes) > _MOST:
            arriving, leaving = _in_pieces(arriving), _in_pieces(leaving)
        requests = [self.comm.Irecv(rows, rank, self.mpi.ANY_TAG) for rank, rows in arriving]
        requests += [self.comm.Isend(rows, rank, word) for rank, rows in leaving]
        return _MpiExchange(self, word, arriving, requests)

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        word = self.calls.begin(Operation.BROADCAST)
        flat = _flat("broadcast", buffer)  # before the others hear of the call
        self._check(word, flat.size % _SIZES << 15 | word)
        for piece in _pieces(flat):
            self.comm.Bcast(piece, root=root)

    @override
    def barrier(self) -> None:
        word = self.calls.begin(Operation.BARRIER)
        self._check(word, word)


def _flat(name: str, buffer: Any) -> Any:
    """Return the array with one axis, in its own memory.

    Raises:
        ValueError: It is not contiguous.
    """
    if not buffer.flags.forc:
        raise ValueError(f"{name}: the array is not contiguous")
    return buffer.ravel("K")


def _pieces(rows: Any) -> "list[Any]":
    """Return the rows in pieces that one message can hold."""
    if rows.nbytes <= _MOST:
        return [rows]
    flat = rows.reshape(-1)
    step = _MOST // flat.itemsize
    return [flat[begin : begin + step] for begin in range(0, flat.size, step)]


def _in_pieces(messages: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(rank, piece) for rank, rows in messages for piece in _pieces(rows)]


class _MpiExchange(Exchange):
    """Messages that travel.

    Args:
        collectives: The collectives of which it is one.
        word: The word of the call.
        arriving: Of each message that arrives, its sender and where its rows are written.
        requests: Those of the messages that arrive, then those of the messages that this rank sends.
    """

    def __init__(
        self,
        collectives: MpiCollectives,
        word: int,
        arriving: list[tuple[int, Any]],
        requests: "list[MPI.Request]",
    ) -> None:
        self.collectives, self.word, self.arriving, self.requests = collectives, word, arriving, requests
        self.statuses = [collectives.mpi.Status() for _ in requests]
        self.is_over = False

    @override
    def progress(self) -> None:
        if not self.is_over:
            self.is_over = self._complete(self.collectives.mpi.Request.Testall)

    @override
    def wait(self) -> None:
        if not self.is_over:
            self.is_over = self._complete(self.collectives.mpi.Request.Waitall)
        self._compare()

    def _complete(self, complete: "Callable[..., bool]") -> bool:
        mpi = self.collectives.mpi
        try:
            return complete(self.requests, self.statuses)
        except mpi.Exception as error:
            if error.Get_error_class() in {mpi.ERR_TRUNCATE, mpi.ERR_IN_STATUS}:
                self._compare()
            raise

    def _compare(self) -> None:
        word = self.word
        for (rank, rows), status in zip(self.arriving, self.statuses, strict=False):
            if status.tag < 0:  # it is still on its way, where another message has failed
                continue
            if status.tag != word or status.count != rows.nbytes:
                raise self.collectives.calls.mixed_up(self.collectives.rank, word, rank, status.tag)
