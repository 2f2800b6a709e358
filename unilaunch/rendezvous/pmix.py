"""Open MPI 4's store as a board: PMIx, called through ctypes, without MPI_Init.

So MPI is in the same state for a program as under `mpirun python program.py`: not initialised, with every thread level
available.

A rank that initialises MPI after it became a PMIx client must stay a client until its end, otherwise MPI_Init fails
(4.1.4). Under Open MPI 5 a rank cannot be a client: MPI_Finalize aborts after a client in the same process, and after a
client in another process MPI_Init sometimes fails (5.0.11).

MPI_Finalize unloads the component through which Open MPI hears of PMIx's events, and does not wait for pending ones.
Where a client outlives MPI they still arrive: a rank whose MPI ended right after its start then jumped into memory that
was gone (4.1.4, the event of `ompi_interlib_declare`; 3 of 670 starts on a busy machine). So it stays in memory.

API: the PMIx Standard 3.1, chapters 4 and 5.
"""

import ctypes
from contextlib import suppress
from pathlib import Path

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.overriding import override
from unilaunch.rendezvous.board import StoreBoard

_LIBRARY = "libpmix.so.2"
_KEY = b"unilaunch.meeting"
_GLOBAL = 3  # PMIX_GLOBAL: for ranks of this host and of others
_BOOL, _STRING = 1, 3


class _Proc(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint16), ("data", ctypes.c_uint64 * 3)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class PmixBoard(StoreBoard):
    """The PMIx namespace of one attempt."""

    advice = "at the addresses that mpirun's store gives: can the hosts of the job reach each other?"

    def __init__(self, found: LauncherInfo, library: ctypes.CDLL) -> None:
        self.found, self.library = found, library

    @override
    def finish(self) -> None:
        self.library.PMIx_Finalize(None, ctypes.c_size_t(0))  # otherwise mpirun takes the exit for a crash

    @override
    def exchange(self, text: str) -> str:
        try:
            return _exchange(self.library, self.found.rank, text)
        except ValueError as error:
            raise EnvironmentMismatchError(
                f"{self.found.launcher} says rank {self.found.rank} of {self.found.size}, and {error}: are the "
                "variables left over from an earlier run (unset OMPI_COMM_WORLD_* and PMIX_*), or does the libpmix "
                "that is found not belong to this mpirun?"
            ) from None


def _exchange(library: ctypes.CDLL, rank: int, text: str) -> str:
    """Exchange *text* as a PMIx client; raise ValueError with the fault."""
    process = _Proc()
    _check(library.PMIx_Init(ctypes.byref(process), None, ctypes.c_size_t(0)), "PMIx_Init")
    if process.rank != rank:
        raise ValueError(f"PMIx says rank {process.rank}")
    if rank == 0:
        written = ctypes.create_string_buffer(text.encode())
        value = _Value(_STRING)
        value.data[0] = ctypes.addressof(written)
        _check(library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(value)), "PMIx_Put")
        _check(library.PMIx_Commit(), "PMIx_Commit")
    collect = _Info(b"pmix.collect", 0, _Value(_BOOL))
    collect.value.data[0] = 1
    _check(library.PMIx_Fence(None, ctypes.c_size_t(0), ctypes.byref(collect), ctypes.c_size_t(1)), "PMIx_Fence")
    if rank != 0:
        found = ctypes.POINTER(_Value)()
        first = ctypes.byref(_Proc(process.namespace, 0))
        _check(library.PMIx_Get(first, _KEY, None, ctypes.c_size_t(0), ctypes.byref(found)), "PMIx_Get")
        text = (ctypes.cast(ctypes.c_void_p(found.contents.data[0]), ctypes.c_char_p).value or b"").decode()
    return text


def _check(status: int, function: str) -> None:
    if status != 0:
        raise ValueError(f"{function} fails with {status}")


def find_library(libmpi: Path) -> ctypes.CDLL | None:
    """Return the libpmix that an Open MPI 4 uses; None if that is unknown, or if libmpi contains its own PMIx.

    Args:
        libmpi: The MPI library that belongs to the mpirun that started this process.
    """
    components = list((libmpi.parent / "openmpi").rglob("mca_pmix_ext*.so"))
    if not components:
        return None
    try:
        ctypes.CDLL(str(libmpi))  # this also loads the libpmix that it is linked to, from any path
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    for component in components:
        with suppress(OSError):
            ctypes.CDLL(str(component))  # stays in memory: see above
    return library
