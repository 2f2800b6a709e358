"""Where is rank 0: two ranks that meet over the loopback."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import psutil
import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.backend import Rendezvous
from unilaunch.errors import RefusedTogetherError, RendezvousError
from unilaunch.rank.alone import Alone
from unilaunch.rank.rendezvous import meet
from unilaunch.spec import RunSpec
from unilaunch.world import World


class _Thread(Alone):
    """Peers that are threads of this process."""

    def __init__(self, rank: int, board: list[str], barrier: Barrier) -> None:
        self.rank, self.board, self.wall = rank, board, barrier

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.board[self.rank] = json.dumps(value)
        self.wall.wait(10)
        said = [json.loads(text) for text in self.board]
        self.wall.wait(10)
        return said


def _meet(spec: RunSpec, num_hosts: int = 1) -> list[Rendezvous | BaseException]:
    barrier, board = Barrier(2), ["", ""]

    def be(rank: int) -> Callable[[], Rendezvous]:
        world = World(rank, 2, rank, 2, 0, num_hosts, "here", "test")
        return lambda: meet(_Thread(rank, board, barrier), world, spec)

    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(be(rank)) for rank in (0, 1)]
    return [meeting.exception() or meeting.result() for meeting in meetings]


def test_ranks_of_one_host_meet_on_the_loopback() -> None:
    """Rank 0 holds the port: nobody else can bind it, and both know it."""
    first, second = _meet(RunSpec())
    assert isinstance(first, Rendezvous)
    assert isinstance(second, Rendezvous)
    assert (first.address, first.interface) == ("127.0.0.1", "lo")
    assert (first.address, first.port, first.interface) == (second.address, second.port, second.interface)
    assert second.listener is None
    assert first.listener is not None
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", first.port))
    first.listener.close()


def test_a_taken_port_is_refused_by_both() -> None:
    """The option is named."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcomes = _meet(RunSpec(master_port=port))
    assert all(isinstance(outcome, RefusedTogetherError) for outcome in outcomes)
    assert all(f"--master-port {port}" in str(outcome) for outcome in outcomes)


def test_an_address_that_nobody_reaches_is_refused_by_both() -> None:
    """With what was tried and what to do."""
    outcomes = _meet(RunSpec(master_addr="no-such-host.invalid"), num_hosts=2)
    for outcome in outcomes:
        assert isinstance(outcome, RendezvousError)
        assert "no-such-host.invalid" in str(outcome)
        assert "--master-addr" in str(outcome)


def test_the_port_of_a_run_that_has_just_ended_is_free_again() -> None:
    """Its closed connections linger for a minute; a job that is started again with --master-port does not wait."""
    first, _ = _meet(RunSpec())
    assert isinstance(first, Rendezvous)
    assert first.listener is not None
    with socket.create_connection(("127.0.0.1", first.port), timeout=10) as client:
        first.listener.accept()[0].close()  # the side that closes first is the one that lingers
        client.recv(1)
    first.listener.close()
    again, _ = _meet(RunSpec(master_port=first.port))
    assert isinstance(again, Rendezvous)
    assert again.port == first.port
    assert again.listener is not None
    again.listener.close()


def test_the_interface_that_was_asked_for_is_taken() -> None:
    """Rank 0 offers that interface's addresses, and every rank's variables name it."""
    for meeting in _meet(RunSpec(interface="lo"), num_hosts=2):
        assert isinstance(meeting, Rendezvous)
        assert (meeting.address, meeting.interface) == ("127.0.0.1", "lo")
        if meeting.listener:
            meeting.listener.close()


def test_the_interface_is_each_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has this rank's address on the way to rank 0; the one with rank 0's address is another host's."""
    addresses = {"eth0": "127.0.0.2", "eth1": "127.0.0.1"}
    entries = {name: [SimpleNamespace(family=socket.AF_INET, address=address)] for name, address in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
    for meeting in _meet(RunSpec(master_addr="127.0.0.2"), num_hosts=2):
        assert isinstance(meeting, Rendezvous)
        assert (meeting.address, meeting.interface) == ("127.0.0.2", "eth1")
        if meeting.listener:
            meeting.listener.close()


def test_an_interface_that_is_not_there_is_refused_by_both() -> None:
    """No rank is left waiting."""
    for outcome in _meet(RunSpec(interface="none0"), num_hosts=2):
        assert isinstance(outcome, RendezvousError)
        assert "--interface" in str(outcome)


def test_the_trials_connections_are_not_in_the_queue() -> None:
    """Who takes the listening socket over meets only its own clients."""
    first, _ = _meet(RunSpec())
    assert isinstance(first, Rendezvous)
    assert first.listener is not None
    with first.listener as listener:
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
