"""How the ranks of a start find each other: the path from the launcher info to peers, and to the framework's address.

`join` connects the ranks through a board, over TCP; over MPI only if the launcher has no store that can be used.
`join_mpi` and `data_path` initialise MPI for a model or a script. `find_unreached` finds hosts that cannot connect to
each other. `meet` finds the address for the framework itself.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, cast

from unilaunch.errors import RefusedTogetherError, RendezvousError
from unilaunch.interfaces.agreement import agree
from unilaunch.interfaces.backend import Collectives, Peers, Rendezvous
from unilaunch.interfaces.world import LauncherInfo, World, host_identity
from unilaunch.json_value import JsonValue
from unilaunch.machine import addresses
from unilaunch.machine.addresses import interface_of, plain
from unilaunch.machine.connections import Acceptor, Dials, open_socket
from unilaunch.machine.limits import allow_files
from unilaunch.rendezvous import mpi, tcp
from unilaunch.rendezvous.alone import Alone
from unilaunch.rendezvous.boards import Contact, find_board, listen_for_ranks

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec

#: Seconds for the ranks to reach each other over MPI, once it is initialised; as over sockets (`tcp`).
_MPI_PATIENCE = 60.0
#: Seconds for hosts to connect to each other; where each connection succeeds, no rank waits for that long.
_HOST_PATIENCE, _HOST_TICK = 5.0, 0.2
#: Open files for each other host: a connection to each of its addresses, and the one from it.
_FILES = 8
#: Seconds for a rank to try all addresses of rank 0, and for its tokens to arrive.
_TRIAL_PATIENCE = 2.0
_TRIAL_TICK = 0.01  # seconds until a rank 0 that hears nothing looks whether all have arrived
_TOKEN_SIZE = 16
#: By address that has answered a rank: the token that it sent there, and its host's interface towards that address.
_Trials = Mapping[str, tuple[str, str | None]]


def join(
    info: LauncherInfo, environ: Mapping[str, str], patience: float, *, insecure: bool, thread_level: str
) -> Peers:
    """Connect to the other ranks over sockets; over MPI only if the launcher's store cannot be used.

    Args:
        info: The launcher info.
        environ: The process's environment.
        patience: Seconds to wait for the other ranks. They count from this rank's start; with the launcher's store,
            which waits without a limit, they count from the moment at which rank 0 listens.
        insecure: Under a launcher without a store, connect without a secret.
        thread_level: MPI's thread level, if the ranks connect over MPI; as `mpi4py.rc.thread_level`.

    Raises:
        UnilaunchError: The ranks cannot connect.
    """
    if info.size == 1:
        return Alone()
    board = find_board(info, environ, insecure=insecure)
    return tcp.join(info, patience, board) if board else mpi.join(info, thread_level)


def join_mpi(info: LauncherInfo, peers: Peers) -> Peers:
    """Return the ranks' peers over MPI, if the launcher supports it: for a model's data path.

    Raises:
        UnilaunchError: MPI cannot be used, or the ranks do not reach each other over it.
    """
    if isinstance(peers, tcp.TcpPeers) and info.mpi:
        joined = _connect_mpi(info, peers, "serialized")
        peers.disconnect()
        return joined
    return peers


def data_path(info: LauncherInfo, peers: Peers) -> Collectives:
    """Return a script's collectives on host arrays: over MPI if the launcher supports it, otherwise over sockets.

    All ranks must call this. *peers* can still be used afterwards.
    """
    if isinstance(peers, tcp.TcpPeers) and info.mpi and all(peers.share(mpi.can_be_used())):
        return _connect_mpi(info, peers, "multiple").collectives()
    return peers.collectives()


def _connect_mpi(info: LauncherInfo, peers: tcp.TcpPeers, thread_level: str) -> mpi.MpiPeers:
    """Return the peers over MPI; if the ranks do not reach each other over it, raise an error with the reason."""
    joined = mpi.join(info, thread_level, peers.board)
    if info.one_host or all(peers.share(joined.reaches_all(_MPI_PATIENCE))):
        return joined
    hosts = peers.share(socket.gethostname())
    others = ", ".join(dict.fromkeys(str(hosts[rank]) for rank in find_unreached(peers, info)))
    fix = "let every two hosts connect at every port of net.ipv4.ip_local_port_range (firewall, security group)"
    agree(peers, RendezvousError(f"no TCP connection to {others}: {fix}") if others else None)
    raise RefusedTogetherError(
        f"the ranks do not reach each other over MPI within {_MPI_PATIENCE:g} s: name the network between the hosts: "
        "--mca btl_tcp_if_include NETWORK/BITS",
        RendezvousError.exit_code,
    )


def find_unreached(peers: Peers, info: LauncherInfo) -> list[int]:
    """Return the ranks of other hosts to which this one cannot connect: a firewall may let only some hosts connect.

    All ranks must call it. The first rank of each host listens at a free port, and calls every other one at all its
    addresses at once.
    """
    listener, contact = listen_for_ranks(info)
    answers = cast("list[list[str]]", peers.share([host_identity(), contact.text]))
    first_ranks = {host: rank for rank, (host, _) in reversed([*enumerate(answers)])}.values()
    if info.rank not in first_ranks:
        listener.close()
        return []
    allow_files(_FILES * len(first_ranks))
    contacts = {rank: Contact.parse(answers[rank][1]) for rank in first_ranks if rank != info.rank}
    unreached, awaited = set(contacts), set(contacts)

    def reach(rank: int, connection: socket.socket) -> None:
        unreached.remove(rank)
        connection.close()

    def accept(connection: socket.socket, rank: int) -> None:
        awaited.remove(rank)
        connection.close()

    with DefaultSelector() as selector:
        acceptor = Acceptor(listener, contact.secret, selector, accept, awaited)
        calls = [
            Dials(other.places, other.secret, info.rank, selector, partial(reach, rank))
            for rank, other in contacts.items()
        ]
        until = time.monotonic() + _HOST_PATIENCE
        while (unreached or awaited) and time.monotonic() < until:
            for key, _ in selector.select(_HOST_TICK):
                key.data()
            acceptor.tick()
        acceptor.close()
        for one in calls:
            one.close()
    return sorted(unreached)


def meet(peers: Peers, world: World, spec: "RunSpec") -> Rendezvous:
    """Agree on where rank 0 listens for the framework. All ranks must call it.

    Rank 0 binds its port and keeps it, so no other process can take it. Rank 0 lists its addresses; every rank connects
    to all of them and sends a token. The ranks use the first address at which rank 0 received the tokens of all ranks.
    So another host or program that answers at the same address and port is not mistaken for rank 0. (The proof of
    `connections` would refuse an address that is translated on the way, which --master-addr may name.) Each rank's
    network interface follows from its connection. On one host no address is tried.

    Raises:
        RefusedTogetherError: Rank 0 cannot listen, or a rank does not have the interface that the user has named.
        RendezvousError: No address is reached by every rank, or a rank has no interface towards the address.
    """
    listener = _listen_together(peers, world, spec)
    offer = peers.share([*_addresses(world, spec), listener.getsockname()[1]] if listener else None)[0]
    *offered, port = cast("list[Any]", offer)
    if world.num_hosts == 1 and not spec.master_addr:
        return Rendezvous(offered[0], port, spec.interface or str(interface_of(offered[0])), listener)
    with ExitStack() as stack:
        arrivals = stack.enter_context(_Arrivals(listener)) if listener else None
        trials = stack.enter_context(_trials(offered, port))
        reports = cast("list[_Trials]", peers.share(cast("JsonValue", trials)))
        choice = _choose(offered, port, reports, arrivals.wait(reports), spec.interface) if arrivals else None
        agreed = peers.share(cast("JsonValue", choice))[0]
    if isinstance(agreed, str):
        if listener:
            listener.close()
        raise RendezvousError(agreed)
    address, own_address, interface = cast("list[str]", agreed)
    if world.node_rank == 0:
        return Rendezvous(own_address, port, interface, listener)
    return Rendezvous(address, port, spec.interface or str(trials[address][1]), listener)


def _listen_together(peers: Peers, world: World, spec: "RunSpec") -> socket.socket | None:
    """Listen, on rank 0; if it cannot, or if a rank does not have the interface that was named, all ranks refuse."""
    listener, refused = None, _refuse_interface(spec.interface)
    if world.rank == 0 and not refused:
        port = spec.master_port or 0
        try:
            listener = addresses.listen(port, several=world.num_hosts > 1 or bool(spec.master_addr))
        except OSError as error:
            words = os.strerror(error.errno or 0)
            refused = RendezvousError(f"--master-port {port}: rank 0 cannot listen there: {words}")
    agree(peers, refused)
    return listener


def _refuse_interface(name: str | None) -> RendezvousError | None:
    """Return why this rank cannot use the interface that the user has named; None if it can."""
    known = list(dict.fromkeys(interface for interface, _ in addresses.interface_addresses())) if name else []
    if not name or name in known:
        return None
    return RendezvousError(f"--interface {name}: no such interface, or it has no address: there are {', '.join(known)}")


def _addresses(world: World, spec: "RunSpec") -> list[str]:
    """Return rank 0's addresses, the likeliest first."""
    if spec.master_addr:
        return [spec.master_addr]
    return addresses.own_addresses(several=world.num_hosts > 1, interface=spec.interface)


@contextmanager
def _trials(offered: Sequence[str], port: int) -> Iterator[_Trials]:
    """Connect to all addresses at once, send a token to each that answers, and disconnect at the end of the block."""
    deadline = time.monotonic() + _TRIAL_PATIENCE
    trials: dict[str, tuple[str, str | None]] = {}
    with DefaultSelector() as selector, ExitStack() as stack:
        for address in offered:
            for place in addresses.resolve(address):
                if connection := open_socket(place):
                    stack.enter_context(connection).setblocking(False)
                    connection.connect_ex((place, port))
                    selector.register(connection, EVENT_WRITE, address)
        while selector.get_map():
            if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                break
            for key, _ in ready:
                selector.unregister(key.fileobj)
                if key.data not in trials and (trial := _send_token(cast("socket.socket", key.fileobj))):
                    trials[key.data] = trial
        yield trials


def _send_token(connection: socket.socket) -> tuple[str, str | None] | None:
    token = os.urandom(_TOKEN_SIZE)
    try:
        connection.send(token)
    except OSError:  # the address has not answered
        return None
    return token.hex(), interface_of(plain(connection.getsockname()[0]))


class _Arrivals:
    """Rank 0 notes at which address of this host each token arrives, while it tries the addresses itself.

    Some kernels keep only 128 connections that are not accepted yet; the next one must call again after a second.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.arrived: dict[str, str] = {}
        self.expected: set[str] | None = None  # None until the other ranks have sent their tokens
        self.until = float("inf")
        self.thread = Thread(target=self._listen, daemon=True)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.until = 0.0
        self.thread.join()
        self.listener.setblocking(True)

    def wait(self, sent: Sequence[_Trials]) -> dict[str, str]:
        """Wait for all tokens, but not without end; return the address at which each of them has arrived."""
        self.until = time.monotonic() + _TRIAL_PATIENCE
        self.expected = expected = {token for trials in sent for token, _ in trials.values()}
        self.thread.join()
        return {token: address for token, address in self.arrived.items() if token in expected}

    def _listen(self) -> None:
        self.listener.setblocking(False)
        with DefaultSelector() as selector, ExitStack() as stack:
            selector.register(self.listener, EVENT_READ)
            while time.monotonic() < self.until:  # strangers may call without end
                complete = self.expected is not None and self.expected <= self.arrived.keys()
                ready = selector.select(0 if complete else _TRIAL_TICK)
                if complete and not ready:
                    break
                for key, _ in ready:
                    connection = cast("socket.socket", key.fileobj)
                    with suppress(OSError):
                        if connection is self.listener:
                            selector.register(stack.enter_context(connection.accept()[0]), EVENT_READ)
                            continue
                        selector.unregister(connection)
                        with connection:
                            token = connection.recv(_TOKEN_SIZE, socket.MSG_DONTWAIT).hex()
                            self.arrived[token] = plain(connection.getsockname()[0])


def _choose(
    offered: Sequence[str], port: int, sent: Sequence[_Trials], arrived: Mapping[str, str], named: str | None
) -> list[str] | str:
    """Return the address to use, with the address and interface that it has on rank 0's host; or return the fault.

    On its own host, a host's name can resolve to a loopback address (127.0.1.1), unlike on other hosts. So rank 0's
    host uses the address at which the tokens of other hosts have arrived.
    """
    for address in offered:
        if all(address in trials and trials[address][0] in arrived for trials in sent):
            seen = [arrived[trials[address][0]] for trials in sent]
            at = next((one for one in seen if not addresses.is_loopback(one)), seen[0])
            interfaces = [named or trials[address][1] for trials in sent]
            interfaces[0] = named or interface_of(at)
            if None not in interfaces:
                return [address, at, str(interfaces[0])]
            return (
                f"rank {interfaces.index(None)} reaches rank 0 at {address}, and no network interface has its own "
                "address there: name the interface with --interface"
            )
    reached = [[address for address, (token, _) in trials.items() if token in arrived] for trials in sent]
    lost = ", ".join(f"rank {rank} reached {', '.join(others) or 'none'}" for rank, others in enumerate(reached))
    return (
        f"no address of rank 0 is reached by every rank (tried {', '.join(offered)}, port {port}; {lost}): "
        "name one with --master-addr, or the network's interface with --interface"
    )
