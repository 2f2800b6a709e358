"""How the ranks of a start meet: which board there is, and when MPI is initialised."""

from collections.abc import Mapping

from unilaunch.addresses import is_loopback
from unilaunch.backend import Collectives, Peers
from unilaunch.monitor.connection import read_where
from unilaunch.rank import mpi, tcp
from unilaunch.rank.alone import Alone
from unilaunch.rank.board import Board, PublicBoard
from unilaunch.start_variables import KEY, MONITOR, attempt_of
from unilaunch.world import LauncherInfo, Store


def join(
    found: LauncherInfo, environ: Mapping[str, str], patience: float, *, insecure: bool, thread_level: str
) -> Peers:
    """Meet the other ranks, over sockets; through MPI only where the launcher's store cannot be used.

    Args:
        found: What the launcher says.
        environ: The process's environment.
        patience: Seconds to wait for the others, from this rank's start; where the ranks meet through the launcher's
            own store, which waits without a limit, from the moment at which rank 0 listens.
        insecure: Under a launcher without a store, meet without a secret.
        thread_level: MPI's, where the ranks meet through MPI; as `mpi4py.rc.thread_level`.

    Raises:
        UnilaunchError: They do not meet.
    """
    if found.size == 1:
        return Alone()
    board = find_board(found, environ, insecure=insecure)
    return tcp.join(found, patience, board) if board else mpi.join(found, thread_level)


def join_mpi(found: LauncherInfo, peers: Peers) -> Peers:
    """Return the ranks' table through MPI, where the launcher has wired MPI up: for a model's data path."""
    if isinstance(peers, tcp.TcpPeers) and found.mpi:
        peers.disconnect()
        return mpi.join(found, board=peers.board)
    return peers


def data_path(found: LauncherInfo, peers: Peers) -> Collectives:
    """Return a script's collectives on host arrays: MPI's where the launcher has wired MPI up, else over sockets.

    All ranks must call this. *peers* stays in use beside it.
    """
    if isinstance(peers, tcp.TcpPeers) and found.mpi and all(peers.share(mpi.can_be_used())):
        return mpi.join(found, "multiple").collectives()
    return peers.collectives()


def find_board(found: LauncherInfo, environ: Mapping[str, str], *, insecure: bool) -> Board | None:
    """Return where the ranks of a start meet; None if only MPI is left. Arguments as of `join`."""
    if MONITOR in environ and _is_reachable(environ[MONITOR], found):
        from unilaunch.rank.launch_board import LaunchBoard

        return LaunchBoard(found, environ[MONITOR], attempt_of(environ))
    if found.mpi and found.store is Store.PMIX and (libmpi := mpi.find_libmpi(environ)):
        from unilaunch.rank.pmix import PmixBoard, find_library

        library = find_library(libmpi)
        return PmixBoard(found, library) if library else None
    if found.mpi and found.store is Store.PMI and "PMI_FD" in environ:
        from unilaunch.rank.pmi import PmiBoard

        return PmiBoard(found, environ)
    if found.mpi and not (found.store is Store.FILE and mpi.find_libmpi(environ)):
        return None
    if insecure or KEY in environ:
        return PublicBoard(found, environ.get(KEY, ""))
    from unilaunch.rank.secret_file import FileBoard

    return FileBoard(found, environ)


def _is_reachable(where: str, found: LauncherInfo) -> bool:
    """Return whether all ranks can call `launch`; it listens for this host only if it was told of no other one."""
    places, _, _ = read_where(where)
    return found.one_host or not is_loopback(places[0][0])
