"""This process as a rank, for a script and for a library that the script uses."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import cast

from unilaunch import launchers
from unilaunch.errors import PlacementError
from unilaunch.interfaces.backend import Collectives, Peers, Placement
from unilaunch.interfaces.world import LauncherInfo, World
from unilaunch.machine.devices import DEVICES
from unilaunch.machine.limits import allow_files
from unilaunch.rank.identity import complete, count, own_facts
from unilaunch.rank.placement import Facts, place
from unilaunch.record import Record, replace
from unilaunch.rendezvous import group, mpi, rendezvous, tcp
from unilaunch.rendezvous.boards import GroupBoard

#: Seconds to wait for the other ranks of a script that unilaunch has not started.
_PATIENCE = 300.0
#: Seconds in which mpirun reads a rank's last lines: of a job that aborts it shows no more than it has read.
_READING = 0.1
#: Open files for each other rank.
_FILES = 4


class Member(Record):
    """This process as one of the ranks.

    Attributes:
        world: Its rank, the world size and its host.
        placement: Its device and threads.
        peers: Small messages between the ranks.
        environ: The environment that its launcher gave it.
        supervised: Whether unilaunch started this process and supervises it.
        facts: What each rank has told of itself, by rank, if unilaunch did not start this process.
        launcher_info: The launcher info, if the program's own group gives the ranks; otherwise *environ* does.
    """

    world: World
    placement: Placement
    peers: Peers
    environ: Mapping[str, str]
    supervised: bool
    facts: Sequence[Facts] = ()
    launcher_info: LauncherInfo | None = None

    def collectives(self) -> Collectives:
        """Return collectives on host arrays, over MPI if the launcher supports it, otherwise over sockets.

        All ranks must call this. MPI is initialised here, unless the script has initialised it before. Where the
        script has finalized MPI, or a rank has no mpi4py, the ranks use sockets.

        Raises:
            EnvironmentMismatchError: libmpi cannot be loaded, or its ranks differ from the launcher's.
        """
        found = replace(self.launcher_info or launchers.detect(self.environ), size=self.world.size)
        try:
            return rendezvous.data_path(found, self.peers)
        finally:
            if not self.supervised and mpi.is_initialized():
                _abort_when_failed()


#: `run` sets it before the first line of a script; otherwise `join` does.
member: Member | None = None
_aborts = False  # whether an uncaught exception ends all ranks
#: What libraries know of the exception that ends this process.
_remedies: list[Callable[[BaseException], str]] = []


def init(device: str = "auto") -> World:
    """Return the identity of this rank: rank, size, local rank, device, ...

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank).
    All ranks must call this.

    Args:
        device: "auto", "cpu", "cuda" or "npu"; under unilaunch its `--device` decides, and this is not looked at.

    Raises:
        UnilaunchError: The launcher's variables are not valid, the ranks do not find each other, or a rank has no
            device of that kind.
    """
    return join(device).world


def join(device: str = "auto") -> Member:
    """Return this process as one of the ranks. All ranks must call this; the first call meets the other ranks.

    Where the program itself has connected more ranks than its launcher has started (`mp.spawn` and
    `init_process_group`), these are the ranks.

    Args:
        device: "cpu", "cuda", "npu" or "auto" (at the first call the best, later the same as before), for a script that
            unilaunch has not started.

    Raises:
        UnilaunchError: The launcher's variables are not valid, the ranks do not find each other, a rank has no device
            of that kind, or the program has connected more ranks after the first call.
    """
    global member  # noqa: PLW0603  (a process is one rank)
    if member is None:
        member = _new_member(dict(os.environ), device)  # noqa: TID251  (of a script that unilaunch has not started)
        return member
    group.refuse_larger_group(member.world.rank, member.world.size)
    if device not in {"auto", member.placement.device} and not member.supervised:
        placement = _place(device, member.facts)[member.world.rank]
        member = replace(member, placement=placement, world=replace(member.world, device=str(placement)))
    return member


def add_remedy(remedy: Callable[[BaseException], str]) -> None:
    """Let *remedy* say what to do about the exception that ends this process: one line, or "" where it does not know.

    The line stands below the traceback.
    """
    _remedies.append(remedy)
    if len(_remedies) > 1 or (member and member.supervised):
        return
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        note_remedies(error)
        show(kind, error, traceback)

    sys.excepthook = hook


def note_remedies(error: BaseException) -> None:
    """Add to the exception that ends this process what libraries say to do about it."""
    for remedy in _remedies:
        with suppress(Exception):  # the user's own error is what matters
            if line := remedy(error):
                error.add_note(line)


def _new_member(environ: Mapping[str, str], device: str) -> Member:
    found, broadcast = group.detect(environ)
    allow_files(_FILES * (found.size or 1))
    peers = _connect(found, environ, broadcast)
    atexit.register(peers.leave)
    found = complete(found, peers)
    facts = cast("list[Facts]", peers.share(own_facts(environ, found.run_id, "")))
    placement = _place(device, facts)[found.rank]
    world = replace(count(found, facts), device=str(placement))
    info = found if broadcast else None
    return Member(world, placement, peers, environ, supervised=False, facts=facts, launcher_info=info)


def _place(device: str, facts: Sequence[Facts]) -> list[Placement]:
    if device not in {"auto", *DEVICES, "cpu"}:
        raise PlacementError(f"device={device!r}: expected 'auto', 'cpu', {', '.join(map(repr, DEVICES))}")
    return place(device, [*DEVICES, "cpu"], None, facts)


def _connect(found: LauncherInfo, environ: Mapping[str, str], broadcast: group.Broadcast | None) -> Peers:
    """Connect to the other ranks; over MPI if the script has initialised it already."""
    if broadcast:
        return tcp.join(found, _PATIENCE, GroupBoard(found, broadcast, _PATIENCE))
    if found.mpi and found.size != 1:
        if mpi.is_initialized() and not mpi.is_finalized():
            return mpi.join(found, "multiple")
        os.environ.update(mpi.variables(found, environ))  # noqa: TID251  (written once, before MPI reads it)
    return rendezvous.join(found, environ, _PATIENCE, insecure=False, thread_level="multiple")


def _abort_when_failed() -> None:
    """Let an uncaught exception end all ranks. Otherwise this rank's MPI_Finalize and the other ranks wait forever."""
    global _aborts
    if _aborts:
        return
    _aborts, show = True, sys.excepthook

    def abort(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        show(kind, error, traceback)
        sys.stderr.flush()
        time.sleep(_READING)
        mpi.abort()

    sys.excepthook = abort
