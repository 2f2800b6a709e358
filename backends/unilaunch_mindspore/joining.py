"""MindSpore's `init()` for a user's program, under launchers and on devices that MindSpore does not support.

MindSpore supports mpirun on Ascend and on GPU, and msrun with its scheduler process. The ranks can also meet at a
store, without a scheduler; in MindSpore 2.10 that is public for HCCL only, so `_init_with_store` is called as
`mint.distributed.init_process_group` calls it.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from unilaunch.errors import RendezvousError
from unilaunch.interfaces.backend import Peers, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.machine.addresses import resolve

PATIENCE = timedelta(seconds=300)


def join_through_store(
    native: Callable[..., None], rendezvous: Rendezvous, world: World, peers: Peers
) -> Callable[..., None]:
    """Return an `init` that uses the store where the *native* `init` would not find the other ranks."""

    def init(backend_name: str | None = None) -> None:
        import mindspore as ms
        from mindspore.communication import management

        target = ms.get_context("device_target")
        if target == "GPU" or (target == "Ascend" and world.launcher.startswith("Open MPI")):
            native(backend_name)
            return
        if management.GlobalComm.INITED:
            return
        own = "hccl" if target == "Ascend" else "mccl"
        if backend_name not in {None, own, "mccl"}:  # before the store: a second `init` would not find the others there
            raise RuntimeError(f"MindSpore's backend on {target} is {own!r}, not {backend_name!r}: call init()")
        store = _store(resolve(rendezvous.address)[0], world, peers)
        peers.share(None)  # MindSpore looks 20 times for each rank's address, then it fails: all ranks begin together
        with _short_sleeps():
            management._init_with_store(backend_name or own, PATIENCE, world.size, world.rank, store)  # noqa: SLF001

    return init


def _store(address: str, world: World, peers: Peers) -> Any:
    """Return the ranks' store. Rank 0 serves it, and sends its port to the others once it listens."""
    from mindspore.mint.distributed import TCPStore

    store, mine = None, None
    if world.rank == 0:
        store, mine = _serve(address, world.size, TCPStore)
    port = peers.share(mine)[0]
    if port is None:
        raise RendezvousError(f"MindSpore's store cannot listen at {address}")
    return store or TCPStore(address, port, world_size=world.size, is_master=False)


def _serve(address: str, size: int, kind: Any) -> tuple[Any, int | None]:
    for _ in range(5):  # it accepts no bound socket: another process may bind the port in between
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        try:
            return kind(address, port, world_size=size, is_master=True, wait_for_workers=False), port
        except (RuntimeError, ValueError):
            continue
    return None, None


@contextmanager
def _short_sleeps() -> Iterator[None]:
    """Shorten MindSpore's sleeps of 3 s between two checks for the other ranks; a signal ends a sleep early.

    The first sleep ends after 0.1 s, each further one after 0.5 s: MindSpore counts its checks, so that a rank that is
    late by 20 sleeps fails the job. A script that has set an alarm of its own keeps it: then the sleeps stay as they
    are.
    """
    is_free = signal.getsignal(signal.SIGALRM) is not None and not any(signal.getitimer(signal.ITIMER_REAL))
    if threading.current_thread() is not threading.main_thread() or not is_free:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
