"""How the ranks of a start meet: which board there is, and when MPI is initialised."""

from collections.abc import Mapping

from unilaunch.backend import Peers
from unilaunch.rank import mpi, tcp
from unilaunch.rank.alone import Alone
from unilaunch.rank.board import Board, PublicBoard
from unilaunch.world import Found

_HYDRA = {"MPICH", "Intel MPI"}


def join(found: Found, environ: Mapping[str, str], patience: float, *, insecure: bool, thread_level: str) -> Peers:
    """Meet the other ranks, over sockets; through MPI only where the launcher's store cannot be used.

    Args:
        found: What the launcher says.
        environ: The process's environment.
        patience: Seconds to wait for the others once rank 0 listens. (A launcher's own store waits without a limit.)
        insecure: Under a launcher without a store, meet without a secret.
        thread_level: MPI's, where the ranks meet through MPI; as `mpi4py.rc.thread_level`.

    Raises:
        UnilaunchError: They do not meet.
    """
    if found.size == 1:
        return Alone()
    board = _find_board(found, environ, insecure=insecure)
    return tcp.join(found, patience, board) if board else mpi.join(found, thread_level)


def join_mpi(found: Found, peers: Peers) -> Peers:
    """Return the ranks' table through MPI, where the launcher has wired MPI up: for a model's data path."""
    if isinstance(peers, tcp.TcpPeers) and found.mpi:
        peers.disconnect()
        return mpi.join(found, board=peers.board)
    return peers


def _find_board(found: Found, environ: Mapping[str, str], *, insecure: bool) -> Board | None:
    if not found.mpi and insecure:
        return PublicBoard(found)
    if not found.mpi:
        from unilaunch.rank.secret_file import FileBoard

        return FileBoard(found, environ)
    if found.launcher == "Open MPI 5" and found.local_size != found.size:
        return None  # MPI_Init then waits for ever, in one start of two (5.0.11): its store does not bear two clients
    if found.launcher.startswith("Open MPI") and (libmpi := mpi.find_libmpi(environ)):
        from unilaunch.rank.pmix import PmixBoard, find_library

        library = find_library(libmpi, found.launcher)
        return PmixBoard(found, library, lasts=found.launcher == "Open MPI 4") if library else None
    if found.launcher in _HYDRA and "PMI_FD" in environ:
        from unilaunch.rank.pmi import PmiBoard

        return PmiBoard(found, environ)
    return None
