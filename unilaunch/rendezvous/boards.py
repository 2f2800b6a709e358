"""Boards, on which ranks find each other: rank 0 posts its address and a secret, the other ranks read them there.

`find_board` chooses the board of a start: the process of `launch`, the launcher's key-value store or, where there is no
store that can be used, a file that only this user can read. With what they read there, `tcp` connects the ranks.
"""

import ctypes
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Self

from unilaunch.errors import EnvironmentMismatchError, RendezvousError
from unilaunch.interfaces.world import BOOT_ID, LauncherInfo, Store
from unilaunch.machine import addresses
from unilaunch.machine.connections import dial, new_secret
from unilaunch.monitor import messages
from unilaunch.monitor.connection import read_where
from unilaunch.monitor.messages import BadMessageError, decode, encode
from unilaunch.overriding import override
from unilaunch.record import Record
from unilaunch.rendezvous import mpi
from unilaunch.rendezvous.secret_file import PrivateFile, find_folder
from unilaunch.spec.variables import KEY, MONITOR, attempt_of

_PMI_DESCRIPTOR = "PMI_FD"
_KEY = "unilaunch"  # of the text in a launcher's store
_LARGEST = 4096  # bytes of an answer
#: Seconds for one try of a rank to reach `launch`, for all tries of rank 0, and between two tries.
_TRY, _PATIENCE, _PAUSE = 5.0, 30.0, 0.2
#: The ports of a board without a store: below the range from which Linux assigns free ports.
_PORTS = range(20000, 32768)
_NUM_PORTS = 16


class Contact(Record):
    """How a rank reaches another one, which listens.

    Attributes:
        places: Addresses and ports, the likeliest first.
        secret: The secret that both ends of a connection must know.
    """

    places: Sequence[tuple[str, int]]
    secret: bytes

    @property
    def text(self) -> str:
        """One word without spaces, for a launcher's store: "10.0.0.1;PORT,fd00::1;PORT/SECRET"."""
        return ",".join(f"{address};{port}" for address, port in self.places) + f"/{self.secret.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the contact that *text* describes.

        Raises:
            ValueError: The text does not describe a contact.
        """
        places, _, secret = text.partition("/")
        pairs = [place.split(";") for place in places.split(",")]
        return cls([(address, int(port)) for address, port in pairs], bytes.fromhex(secret))


def listen_for_ranks(info: LauncherInfo) -> tuple[socket.socket, Contact]:
    """Listen on a free port, with a new secret, at every address at which the job's hosts may reach this host."""
    several = not info.one_host
    listener = addresses.listen(0, several=several)
    port = int(listener.getsockname()[1])
    own = addresses.own_addresses(info.rank_0_hosts, several=several)
    return listener, Contact([(address, port) for address in own], new_secret())


class Board(ABC):
    """The place where the ranks of one attempt find rank 0, for one rank."""

    info: LauncherInfo
    #: Where a rank has looked for rank 0, and the question for the user if rank 0 was not there; ends with "?".
    advice: str

    @abstractmethod
    def post(self) -> tuple[socket.socket, bytes]:
        """Listen, and post the address for the other ranks; only rank 0 calls it. Return the socket and the secret.

        Raises:
            UnilaunchError: The address cannot be posted.
        """

    @abstractmethod
    def find(self) -> Contact | None:
        """Return what rank 0 has posted; None if it has posted nothing yet. The other ranks call it repeatedly.

        Raises:
            UnilaunchError: The board cannot be used.
        """

    def close(self) -> None:  # noqa: B027  (a launcher's store is removed with the job)
        """Remove what was posted. Every rank calls it when the ranks are connected, or when connecting has failed."""

    def finish(self) -> None:  # noqa: B027  (most boards need no such step)
        """End the connection to the launcher, at the end of the process."""


class TextBoard(Board):
    """A board on which rank 0 writes its contact as a text."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Write rank 0's text."""

    @abstractmethod
    def read(self) -> str | None:
        """Return rank 0's text; None if there is none yet."""

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        listener, contact = listen_for_ranks(self.info)
        try:
            self.write(contact.text)
        except BaseException:
            listener.close()
            raise
        return listener, contact.secret

    @override
    def find(self) -> Contact | None:
        text = self.read()
        with suppress(ValueError):  # it is no contact: another program or version has written it
            return Contact.parse(text) if text else None
        return None


def find_board(info: LauncherInfo, environ: Mapping[str, str], *, insecure: bool) -> Board | None:
    """Return the board of this attempt; None if the ranks can only use MPI.

    Args:
        info: The launcher info.
        environ: The process's environment.
        insecure: Under a launcher without a store, connect without a secret.

    Raises:
        EnvironmentMismatchError: The launcher's store does not answer, or there is no folder for a secret file.
    """
    if MONITOR in environ and _all_reach_launch(environ[MONITOR], info):
        return LaunchBoard(info, environ[MONITOR], attempt_of(environ))
    if info.mpi and info.store is not Store.FILE:
        return _find_store(info, environ)
    if info.mpi and not mpi.find_libmpi(environ):
        return None
    if insecure or KEY in environ:
        return PublicBoard(info, environ.get(KEY, ""))
    return FileBoard(info, environ)  # torchrun, msrun; Open MPI 5 on one host


def _find_store(info: LauncherInfo, environ: Mapping[str, str]) -> Board | None:
    """Return the launcher's store as a board; None if it has none that can be used here."""
    match info.store:
        case Store.PMIX:  # Open MPI 4
            libmpi = mpi.find_libmpi(environ)
            library = _find_libpmix(libmpi) if libmpi else None
            return PmixBoard(info, library) if library else None
        case Store.PMI if _PMI_DESCRIPTOR in environ:  # MPICH, Intel MPI
            return PmiBoard(info, environ)
        case _:  # PMIx, PALS, Flux; Open MPI 5 on several hosts
            return None


def _all_reach_launch(where: str, info: LauncherInfo) -> bool:
    """Return whether all ranks can connect to `launch`: for a job on one host it accepts no other hosts."""
    places, _, _ = read_where(where)
    return info.one_host or not addresses.is_loopback(places[0][0])


class LaunchBoard(TextBoard):
    """The process of `launch`, over a connection of this rank.

    Args:
        info: The launcher info.
        where: Where the launching process listens, as in `variables.MONITOR`.
        attempt: How often the job was started before.
    """

    def __init__(self, info: LauncherInfo, where: str, attempt: int = 0) -> None:
        self.info, self.attempt = info, attempt
        self.places, self.secret, _ = read_where(where)
        self.connection: socket.socket | None = None
        self.where = ", ".join(f"{address} port {port}" for address, port in self.places)
        how = "was rank 0 started, and does that process still run?"
        self.advice = f"through `unilaunch launch` at {self.where}: {how}"

    @override
    def write(self, text: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self._send(text):
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank 0 does not reach the launching process at {self.where}: does it still run, and can this "
                    "host reach that one?"
                )
            time.sleep(_PAUSE)

    @override
    def read(self) -> str | None:
        if not (connection := self._send(None)):
            return None
        with suppress(OSError, BadMessageError), connection.makefile("rb") as answer:
            match decode(answer.readline(_LARGEST)):
                case _, messages.Meeting(text):
                    return text
        return None

    @override
    def close(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def _send(self, text: str | None) -> socket.socket | None:
        """Send where rank 0 listens, or request it with None; return the connection, or None if there is none."""
        self.close()
        self.connection = dial(self.places, self.secret, self.info.rank, _TRY)
        if self.connection:
            self.connection.settimeout(_TRY)
            with suppress(OSError):
                self.connection.sendall(encode(messages.Meeting(text), self.attempt))
                return self.connection
        return None


class FileBoard(TextBoard):
    """A file that only this user can read, for launchers without a store.

    Args:
        info: The launcher info; the file's name contains the run's name.
        environ: The process's environment.

    Raises:
        EnvironmentMismatchError: There is no folder in which only this user can write, or the run has no name.
    """

    def __init__(self, info: LauncherInfo, environ: Mapping[str, str]) -> None:
        self.info = info
        if not info.run_id:
            raise EnvironmentMismatchError(
                f"{info.launcher}: it gives this run no name (LauncherInfo.run_id), by which the ranks find each other "
                "in a file: two jobs could meet"
            )
        # Jobs on different hosts can have the same name (torchrun-none-127.0.0.1-29500), and so can jobs in different
        # containers with their own process numbers (prterun-box-7@1). Hosts and containers can share a home folder.
        servers = sorted(value for name, value in environ.items() if name.startswith("PMIX_SERVER_URI"))
        start = " ".join([info.run_id, *([BOOT_ID.read_text(encoding="ascii"), *servers] if info.one_host else [])])
        self.name = sha256(f"unilaunch {start}".encode()).hexdigest()[:32]
        self._file = PrivateFile(find_folder(environ, one_host=info.one_host), self.name)
        self.advice = (
            f"through a file in {self._file.folder}: was rank 0 started, and do all hosts of the job share that "
            "folder (XDG_CACHE_HOME names another one)?"
        )

    @override
    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise RendezvousError(
                f"{self._file.folder}: rank 0 cannot write there what the other ranks need to find it: "
                f"{error.strerror}: make room, or set XDG_CACHE_HOME to a folder that all hosts see"
            ) from None

    @override
    def read(self) -> str | None:
        return self._file.read()

    @override
    def close(self) -> None:
        self._file.remove()


class PublicBoard(Board):
    """No board at all: the ports are computed from the run's name, the secret from that name and a key.

    Rank 0 binds the first free port of a few. Without a key other users can guess the secret, so it is used only if the
    user asks for it.

    Args:
        info: The launcher info.
        key: A secret that only the ranks of the job have; "" for none.
    """

    def __init__(self, info: LauncherInfo, key: str = "") -> None:
        self.info = info
        self.hosts = (addresses.loopback(),) if info.one_host else info.rank_0_hosts
        name = sha256(f"unilaunch {info.run_id}".encode()).digest()
        self.secret = sha256(name + key.encode()).digest()
        #: The ports at which rank 0 may listen, the likeliest first.
        self.ports = [_PORTS[word % len(_PORTS)] for word in struct.unpack(f"!{_NUM_PORTS}H", name[: 2 * _NUM_PORTS])]
        self.advice = f"at {' or '.join(self.hosts)}, ports {self.ports}: was rank 0 started, and is that its host?"

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        for port in self.ports:
            with suppress(OSError):
                return addresses.listen(port, several=not self.info.one_host), self.secret
        raise RendezvousError(f"rank 0 cannot listen on any of the ports {self.ports}: all of them are taken")

    @override
    def find(self) -> Contact:
        found = [address for host in self.hosts for address in addresses.resolve(host)]
        return Contact(list(product(found, self.ports)), self.secret)


class StoreBoard(TextBoard):
    """A key-value store: rank 0's text reaches the other ranks in one exchange of all ranks."""

    _text: str | None = None

    @abstractmethod
    def exchange(self, text: str) -> str:
        """Return rank 0's *text*; that of other ranks is "". All ranks must call it, once."""

    @override
    def write(self, text: str) -> None:
        self.exchange(text)

    @override
    def read(self) -> str:
        if self._text is None:
            self._text = self.exchange("")
        return self._text


class GroupBoard(StoreBoard):
    """The store of a group of ranks that a program has connected itself, with its framework.

    Args:
        info: The launcher info, as `group.detect` returns it.
        broadcast: That of the group.
        patience: Seconds to wait for rank 0.
    """

    def __init__(self, info: LauncherInfo, broadcast: Callable[[str, float], str], patience: float) -> None:
        self.info, self.broadcast, self.patience = info, broadcast, patience
        self.advice = f"through the store of {info.launcher}: has rank 0 ended?"

    @override
    def exchange(self, text: str) -> str:
        return self.broadcast(text, self.patience)


class PmiBoard(StoreBoard):
    """Hydra's store: PMI version 1 over a file descriptor that MPICH's and Intel MPI's mpiexec passes to ranks.

    A request is one line, and so is its answer ("cmd=get kvsname=K key=K"). The MPI library that a program loads later
    uses the same descriptor and starts the protocol again. So the protocol is ended here only if the program did not
    use MPI. Protocol: "PMI v1 Wire Protocol", MPICH documentation.
    """

    advice = "at the address that mpiexec's store gives: can the hosts of the job reach each other?"

    def __init__(self, info: LauncherInfo, environ: Mapping[str, str]) -> None:
        self.info = info
        descriptor = environ[_PMI_DESCRIPTOR]
        try:
            self.line = socket.socket(fileno=os.dup(int(descriptor)))
        except (OSError, ValueError) as error:
            raise EnvironmentMismatchError(
                f"{_PMI_DESCRIPTOR}={descriptor}: mpiexec does not answer there ({error}): was the variable "
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
        if not mpi.is_initialized():  # otherwise MPI_Finalize ends the protocol
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
            answer = self.line.makefile("rb", buffering=0).readline(_LARGEST)
            reason = answer.decode(errors="replace").strip() or "it hangs up"
        except OSError as error:
            reason = error.strerror or str(error)
        words = dict(word.split("=", 1) for word in answer.decode(errors="replace").split() if "=" in word)
        if words.get("rc", "0") != "0" or "cmd" not in words:
            raise EnvironmentMismatchError(
                f"{self.info.launcher} says {self.info.size} ranks, and its mpiexec does not answer at "
                f"{_PMI_DESCRIPTOR} ({command.partition(' ')[0]}: {reason}): are the variables left over from an "
                "earlier run? unset PMI_*"
            )
        return words


_LIBPMIX = "libpmix.so.2"
_PMIX_GLOBAL = 3  # for ranks of this host and of others
_PMIX_BOOL, _PMIX_STRING = 1, 3


class _Proc(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint16), ("data", ctypes.c_uint64 * 3)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class PmixBoard(StoreBoard):
    """Open MPI 4's store: PMIx, called through ctypes, without MPI_Init.

    So MPI is in the same state for a program as under `mpirun python program.py`: not initialised, with every thread
    level available.

    A rank that initialises MPI after it became a PMIx client must stay a client until its end, otherwise MPI_Init fails
    (4.1.4). Under Open MPI 5 a rank cannot be a client: MPI_Finalize aborts after a client in the same process, and
    after a client in another process MPI_Init sometimes fails (5.0.11).

    API: the PMIx Standard 3.1, chapters 4 and 5.
    """

    advice = "at the addresses that mpirun's store gives: can the hosts of the job reach each other?"

    def __init__(self, info: LauncherInfo, library: ctypes.CDLL) -> None:
        self.info, self.library = info, library

    @override
    def finish(self) -> None:
        self.library.PMIx_Finalize(None, ctypes.c_size_t(0))  # otherwise mpirun takes the exit for a crash

    @override
    def exchange(self, text: str) -> str:
        own, key, nothing = _Proc(), _KEY.encode(), ctypes.c_size_t(0)
        self._call("PMIx_Init", ctypes.byref(own), None, nothing)
        if own.rank != self.info.rank:
            raise self._mismatch(f"PMIx says rank {own.rank}")
        if text:
            written = ctypes.create_string_buffer(text.encode())
            value = _Value(_PMIX_STRING)
            value.data[0] = ctypes.addressof(written)
            self._call("PMIx_Put", ctypes.c_uint8(_PMIX_GLOBAL), key, ctypes.byref(value))
            self._call("PMIx_Commit")
        collect = _Info(b"pmix.collect", 0, _Value(_PMIX_BOOL))
        collect.value.data[0] = 1
        self._call("PMIx_Fence", None, nothing, ctypes.byref(collect), ctypes.c_size_t(1))
        if text:
            return text
        found = ctypes.POINTER(_Value)()
        self._call("PMIx_Get", ctypes.byref(_Proc(own.namespace, 0)), key, None, nothing, ctypes.byref(found))
        return (ctypes.cast(ctypes.c_void_p(found.contents.data[0]), ctypes.c_char_p).value or b"").decode()

    def _call(self, function: str, *arguments: Any) -> None:
        if status := getattr(self.library, function)(*arguments):
            raise self._mismatch(f"{function} fails with {status}")

    def _mismatch(self, fault: str) -> EnvironmentMismatchError:
        return EnvironmentMismatchError(
            f"{self.info.launcher} says rank {self.info.rank} of {self.info.size}, and {fault}: are the variables left "
            "over from an earlier run (unset OMPI_COMM_WORLD_* and PMIX_*), or does the libpmix that is found not "
            "belong to this mpirun?"
        )


def _find_libpmix(libmpi: Path) -> ctypes.CDLL | None:
    """Return the libpmix that an Open MPI 4 uses; None if that is unknown, or if libmpi contains its own PMIx.

    MPI_Finalize unloads the component through which Open MPI hears of PMIx's events, and does not wait for pending
    ones. Where a client outlives MPI they still arrive: a rank whose MPI ended right after its start then jumped into
    memory that was gone (4.1.4, the event of `ompi_interlib_declare`; 3 of 670 starts on a busy machine). So the
    component is loaded once more here, and MPI_Finalize cannot remove it from memory.

    Args:
        libmpi: The MPI library that belongs to the mpirun that started this process.
    """
    components = list((libmpi.parent / "openmpi").rglob("mca_pmix_ext*.so"))
    if not components:
        return None
    try:
        ctypes.CDLL(str(libmpi))  # this also loads the libpmix that it is linked to, from any path
        library = ctypes.CDLL(_LIBPMIX)
    except OSError:
        return None
    for component in components:
        with suppress(OSError):
            ctypes.CDLL(str(component))
    return library
