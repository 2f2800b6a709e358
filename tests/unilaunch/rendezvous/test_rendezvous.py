"""Where is rank 0: ranks that meet over the loopback. A real firewall between hosts is in tests/cluster."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.errors import RefusedTogetherError, RendezvousError
from unilaunch.interfaces.backend import Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch.rendezvous.rendezvous import _choose, meet
from unilaunch.spec.run_spec import RunSpec


class _Thread(Alone):
    """Peers that are threads of this process."""

    def __init__(self, rank: int, board: list[str], barrier: Barrier) -> None:
        self.rank, self.board, self.wall = rank, board, barrier

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.board[self.rank] = json.dumps(value)
        self.wall.wait(60)
        said = [json.loads(text) for text in self.board]
        self.wall.wait(60)
        return said


def _meet(spec: RunSpec, num_hosts: int = 1, size: int = 2) -> list[Rendezvous | BaseException]:
    barrier, board = Barrier(size), [""] * size

    def be(rank: int) -> Callable[[], Rendezvous]:
        world = World(rank, size, rank, size, 0, num_hosts, "here", "test")
        return lambda: meet(_Thread(rank, board, barrier), world, spec)

    with ThreadPoolExecutor(size) as pool:
        meetings = [pool.submit(be(rank)) for rank in range(size)]
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
    with first.listener as listener:  # who takes it over meets only its own clients
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


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


@pytest.mark.parametrize(("arrived", "named", "expected"), [
        ({"a0": "10.0.0.1", "a1": "10.0.0.1", "b0": "fd00::1", "b1": "fd00::1"}, "ib0", ["A", "10.0.0.1", "ib0"]),
        ({"a0": "10.0.0.1", "b0": "fd00::1", "b1": "fd00::1"}, "ib0", ["B", "fd00::1", "ib0"]),
        ({"a0": "127.0.1.1", "a1": "127.0.0.1"}, None, ["A", "127.0.1.1", "lo"]),
        ({"b0": "127.0.1.1", "b1": "fd00::1"}, "eth0", ["B", "fd00::1", "eth0"]),
], ids=["the first", "another program answers at the first", "one host", "loopback there"])  # fmt: skip
def test_the_address_at_which_all_tokens_arrived_is_taken(
    arrived: dict[str, str], named: str | None, expected: list[str]
) -> None:
    """And on rank 0's host it is the one at which other hosts arrived."""
    sent = [{"A": (f"a{rank}", "eth0"), "B": (f"b{rank}", "eth0")} for rank in range(2)]
    assert _choose(["A", "B"], 1, sent, arrived, named) == expected


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_an_interface_that_is_not_there_is_refused_by_both(num_hosts: int) -> None:
    """No rank is left waiting, nor is a framework left to fail with it; the interfaces of this host are named."""
    for outcome in _meet(RunSpec(interface="none0"), num_hosts):
        assert isinstance(outcome, RefusedTogetherError)
        assert str(outcome).startswith("--interface none0: no such interface, or it has no address: there are ")
