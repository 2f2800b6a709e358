"""The rendezvous: an address of rank 0 that every rank reached, a port that rank 0 holds, and each rank's interface."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, cast

from unilaunch.errors import RendezvousError
from unilaunch.interfaces.agreement import agree
from unilaunch.interfaces.backend import Peers, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.json_value import JsonValue
from unilaunch.machine.addresses import (
    interface_addresses,
    interface_of,
    is_loopback,
    listen,
    own_addresses,
    plain,
    resolve,
)
from unilaunch.machine.connections import open_socket
from unilaunch.record import Record

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec

PATIENCE = 2.0  # seconds for a rank to try all addresses, and for its tokens to arrive
_TOKEN_SIZE = 16
_TICK = 0.01  # seconds until a rank that hears nothing looks whether all have arrived
#: What a rank reports for each address that has answered: the token, and this host's interface towards it.
_Sent = Mapping[str, tuple[str, str | None]]


def meet(peers: Peers, world: World, spec: "RunSpec") -> Rendezvous:
    """Agree on where rank 0 listens. All ranks must call it.

    Rank 0 binds its port and keeps it, so no other process can take it. Rank 0 lists its addresses; every rank connects
    to all of them and sends a token. The ranks use the first address at which rank 0 received the tokens of all ranks.
    So another host or program that answers at the same address and port is not mistaken for rank 0. Each rank's network
    interface follows from its connection. On one host no address is tried.

    Raises:
        RefusedTogetherError: Rank 0 cannot listen, or a rank does not have the interface that the user has named.
        RendezvousError: No address is reached by every rank, or a rank has no interface towards the address.
    """
    listener = _listen_together(peers, world, spec)
    offer = peers.share([*_addresses(world, spec), listener.getsockname()[1]] if listener else None)[0]
    *addresses, port = cast("list[Any]", offer)
    if world.num_hosts == 1 and not spec.master_addr:
        return Rendezvous(addresses[0], port, spec.interface or str(interface_of(addresses[0])), listener)
    with ExitStack() as kept:
        ear = kept.enter_context(_Ear(listener)) if listener else None
        trials = kept.enter_context(_trials(addresses, port))
        told = peers.share({address: [trial.token, trial.interface] for address, trial in trials.items()})
        choice = None
        if ear:
            sent = cast("list[_Sent]", told)
            choice = _choose(addresses, port, sent, ear.hear(sent), spec.interface)
        agreed = peers.share(cast("JsonValue", choice))[0]
    if isinstance(agreed, str):
        if listener:
            listener.close()
        raise RendezvousError(agreed)
    address, own_address, interface = cast("list[str]", agreed)
    if world.node_rank == 0:
        return Rendezvous(own_address, port, interface, listener)
    return Rendezvous(address, port, spec.interface or str(trials[address].interface), listener)


def _listen_together(peers: Peers, world: World, spec: "RunSpec") -> socket.socket | None:
    listener, refused = None, _refuse_interface(spec.interface)
    if world.rank == 0 and not refused:
        port = spec.master_port or 0
        try:
            listener = listen(port, several=world.num_hosts > 1 or bool(spec.master_addr))
        except OSError as error:
            words = os.strerror(error.errno or 0)
            refused = RendezvousError(f"--master-port {port}: rank 0 cannot listen there: {words}")
    agree(peers, refused)
    return listener


def _refuse_interface(name: str | None) -> RendezvousError | None:
    """Return why this rank cannot use the interface that the user has named; None if it can."""
    known = list(dict.fromkeys(interface for interface, _ in interface_addresses())) if name else []
    if not name or name in known:
        return None
    return RendezvousError(f"--interface {name}: no such interface, or it has no address: there are {', '.join(known)}")


def _addresses(world: World, spec: "RunSpec") -> list[str]:
    """Return rank 0's addresses, the likeliest first."""
    if spec.master_addr:
        return [spec.master_addr]
    return own_addresses(several=world.num_hosts > 1, interface=spec.interface)


class _Trial(Record):
    """A connection of this rank to one of rank 0's addresses.

    Attributes:
        connection: The connection.
        token: The token that this rank has sent over it.
        interface: This host's interface towards the address; None if it is unknown.
    """

    connection: socket.socket
    token: str
    interface: str | None


@contextmanager
def _trials(addresses: Sequence[str], port: int) -> Iterator[dict[str, _Trial]]:
    """Connect to all addresses at once, send a token to each that answers, and disconnect at the end of the block."""
    deadline = time.monotonic() + PATIENCE
    trials: dict[str, _Trial] = {}
    with DefaultSelector() as selector, ExitStack() as kept:
        for called in addresses:
            for place in resolve(called):
                if connection := open_socket(place):
                    kept.enter_context(connection).setblocking(False)
                    connection.connect_ex((place, port))
                    selector.register(connection, EVENT_WRITE, called)
        while selector.get_map():
            if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                break
            for key, _ in ready:
                selector.unregister(key.fileobj)
                if key.data not in trials and (trial := _send_token(cast("socket.socket", key.fileobj))):
                    trials[key.data] = trial
        yield trials


def _send_token(connection: socket.socket) -> _Trial | None:
    token = os.urandom(_TOKEN_SIZE)
    try:
        connection.send(token)
    except OSError:  # the address has not answered
        return None
    return _Trial(connection, token.hex(), interface_of(plain(connection.getsockname()[0])))


class _Ear:
    """Rank 0 notes at which address of this host each token arrives, while it tries the addresses itself.

    Some kernels keep only 128 connections that are not accepted yet; the next one must call again after a second.

    Args:
        listener: The socket.
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

    def hear(self, sent: Sequence[_Sent]) -> dict[str, str]:
        """Wait at most `PATIENCE` seconds for all tokens; return the address at which each of them has arrived."""
        self.until = time.monotonic() + PATIENCE
        self.expected = expected = {token for trials in sent for token, _ in trials.values()}
        self.thread.join()
        return {token: address for token, address in self.arrived.items() if token in expected}

    def _listen(self) -> None:
        self.listener.setblocking(False)
        with DefaultSelector() as selector, ExitStack() as kept:
            selector.register(self.listener, EVENT_READ)
            while time.monotonic() < self.until:  # strangers may call without end
                complete = self.expected is not None and self.expected <= self.arrived.keys()
                ready = selector.select(0 if complete else _TICK)
                if complete and not ready:
                    break
                for key, _ in ready:
                    connection = cast("socket.socket", key.fileobj)
                    with suppress(OSError):
                        if connection is self.listener:
                            selector.register(kept.enter_context(connection.accept()[0]), EVENT_READ)
                            continue
                        selector.unregister(connection)
                        with connection:
                            token = connection.recv(_TOKEN_SIZE, socket.MSG_DONTWAIT).hex()
                            self.arrived[token] = plain(connection.getsockname()[0])


def _choose(
    addresses: Sequence[str], port: int, sent: Sequence[_Sent], arrived: Mapping[str, str], named: str | None
) -> list[str] | str:
    """Return the address to use, with the address and interface that it has on rank 0's host; or return the fault.

    On its own host, a host's name can resolve to a loopback address (127.0.1.1), unlike on other hosts. So rank 0's
    host uses the address at which the tokens of other hosts have arrived.
    """
    for address in addresses:
        if all(address in trials and trials[address][0] in arrived for trials in sent):
            seen = [arrived[trials[address][0]] for trials in sent]
            at = next((one for one in seen if not is_loopback(one)), seen[0])
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
        f"no address of rank 0 is reached by every rank (tried {', '.join(addresses)}, port {port}; {lost}): "
        "name one with --master-addr, or the network's interface with --interface"
    )
