"""Where is rank 0: two ranks that meet over the loopback."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.backend import Peers, Rendezvous
from unilaunch.errors import RefusedTogetherError, RendezvousError
from unilaunch.rank.rendezvous import meet
from unilaunch.spec import RunSpec
from unilaunch.world import World


class _Thread(Peers):
    """Peers that are threads of this process."""

    def __init__(self, rank: int, board: list[str], barrier: Barrier) -> None:
        self.rank, self.board, self.barrier = rank, board, barrier

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.board[self.rank] = json.dumps(value)
        self.barrier.wait(10)
        said = [json.loads(text) for text in self.board]
        self.barrier.wait(10)
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
