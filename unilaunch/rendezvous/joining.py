"""Connect the ranks of a start: choose the board, and when to initialise MPI."""

from collections.abc import Mapping
from socket import gethostname

from unilaunch.errors import RefusedTogetherError, RendezvousError
from unilaunch.interfaces.agreement import agree
from unilaunch.interfaces.backend import Collectives, Peers
from unilaunch.interfaces.world import LauncherInfo, Store
from unilaunch.machine.addresses import is_loopback
from unilaunch.monitor.connection import read_where
from unilaunch.rendezvous import mpi, tcp
from unilaunch.rendezvous.alone import Alone
from unilaunch.rendezvous.board import Board, PublicBoard
from unilaunch.spec.variables import KEY, MONITOR, attempt_of

#: Seconds for the ranks to reach each other over MPI, once it is initialised; as over sockets (`tcp`).
_PATIENCE = 60.0


def join(
    found: LauncherInfo, environ: Mapping[str, str], patience: float, *, insecure: bool, thread_level: str
) -> Peers:
    """Connect to the other ranks over sockets; over MPI only if the launcher's store cannot be used.

    Args:
        found: The launcher info.
        environ: The process's environment.
        patience: Seconds to wait for the other ranks. They count from this rank's start; with the launcher's store,
            which waits without a limit, they count from the moment at which rank 0 listens.
        insecure: Under a launcher without a store, connect without a secret.
        thread_level: MPI's thread level, if the ranks connect over MPI; as `mpi4py.rc.thread_level`.

    Raises:
        UnilaunchError: The ranks cannot connect.
    """
    if found.size == 1:
        return Alone()
    board = find_board(found, environ, insecure=insecure)
    return tcp.join(found, patience, board) if board else mpi.join(found, thread_level)


def join_mpi(found: LauncherInfo, peers: Peers) -> Peers:
    """Return the ranks' peers over MPI, if the launcher supports it: for a model's data path.

    Raises:
        UnilaunchError: MPI cannot be used, or the ranks do not reach each other over it.
    """
    if isinstance(peers, tcp.TcpPeers) and found.mpi:
        joined = _connect(found, peers, "serialized")
        peers.disconnect()
        return joined
    return peers


def data_path(found: LauncherInfo, peers: Peers) -> Collectives:
    """Return a script's collectives on host arrays: over MPI if the launcher supports it, otherwise over sockets.

    All ranks must call this. *peers* can still be used afterwards.
    """
    if isinstance(peers, tcp.TcpPeers) and found.mpi and all(peers.share(mpi.can_be_used())):
        return _connect(found, peers, "multiple").collectives()
    return peers.collectives()


def _connect(found: LauncherInfo, peers: tcp.TcpPeers, thread_level: str) -> mpi.MpiPeers:
    """Return the peers over MPI; if the ranks do not reach each other over it, raise an error with the reason."""
    joined = mpi.join(found, thread_level, peers.board)
    if found.one_host or all(peers.share(joined.reaches_all(_PATIENCE))):
        return joined
    from unilaunch.rendezvous.reaching import find_unreached

    hosts = peers.share(gethostname())
    others = ", ".join(dict.fromkeys(str(hosts[rank]) for rank in find_unreached(peers, found)))
    fix = "let every two hosts connect at every port of net.ipv4.ip_local_port_range (firewall, security group)"
    agree(peers, RendezvousError(f"no TCP connection to {others}: {fix}") if others else None)
    raise RefusedTogetherError(
        f"the ranks do not reach each other over MPI within {_PATIENCE:g} s: name the network between the hosts: "
        "--mca btl_tcp_if_include NETWORK/BITS",
        RendezvousError.exit_code,
    )


def find_board(found: LauncherInfo, environ: Mapping[str, str], *, insecure: bool) -> Board | None:
    """Return the board of this attempt; None if the ranks can only use MPI. The arguments are those of `join`."""
    if MONITOR in environ and _is_reachable(environ[MONITOR], found):
        from unilaunch.rendezvous.board import LaunchBoard

        return LaunchBoard(found, environ[MONITOR], attempt_of(environ))
    if found.mpi and found.store is Store.PMIX and (libmpi := mpi.find_libmpi(environ)):
        from unilaunch.rendezvous.pmix import PmixBoard, find_library

        library = find_library(libmpi)
        return PmixBoard(found, library) if library else None
    if found.mpi and found.store is Store.PMI and "PMI_FD" in environ:
        from unilaunch.rendezvous.pmi import PmiBoard

        return PmiBoard(found, environ)
    if found.mpi and not (found.store is Store.FILE and mpi.find_libmpi(environ)):
        return None
    if insecure or KEY in environ:
        return PublicBoard(found, environ.get(KEY, ""))
    from unilaunch.rendezvous.secret_file import FileBoard

    return FileBoard(found, environ)


def _is_reachable(where: str, found: LauncherInfo) -> bool:
    """Return whether all ranks can connect to `launch`: for a job on one host it accepts no other hosts."""
    places, _, _ = read_where(where)
    return found.one_host or not is_loopback(places[0][0])
