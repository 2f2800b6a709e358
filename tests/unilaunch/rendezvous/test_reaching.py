"""Which ranks cannot connect to each other, over real sockets; with a real firewall in tests/cluster."""

import threading
from concurrent.futures import ThreadPoolExecutor
from socket import socket

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.rendezvous import rendezvous
from unilaunch.rendezvous.alone import Alone
from unilaunch.rendezvous.boards import Contact, listen_for_ranks

HOSTS = ["node 1", "node 1", "node 2"]  # a name and the number of a boot, of three ranks


class _Together(Alone):
    """The ranks' peers, as threads of one process."""

    told: list[JsonValue] = [None] * len(HOSTS)
    met = threading.Barrier(len(HOSTS), timeout=20)

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.told[self.rank] = value
        self.met.wait()
        return [*self.told]


def test_hosts_of_the_same_name_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one listens where nobody can call it. Of a host with two ranks the first one looks."""
    own = threading.local()

    def open_here(found: LauncherInfo) -> tuple[socket, Contact]:
        listener, contact = listen_for_ranks(found)
        return listener, Contact([("127.0.0.1", 1)], contact.secret) if found.rank == 2 else contact

    def look(rank: int) -> list[int]:
        own.rank = rank
        found = LauncherInfo("test", rank, 3, None, None, "run", {}, mpi=False, rank_0_hosts=("127.0.0.1",))
        return rendezvous.find_unreached(_Together(rank), found)

    monkeypatch.setattr(rendezvous, "_HOST_PATIENCE", 1.0)
    monkeypatch.setattr(rendezvous, "listen_for_ranks", open_here)
    monkeypatch.setattr(rendezvous, "host_identity", lambda: HOSTS[own.rank])
    with ThreadPoolExecutor(3) as ranks:
        assert [*ranks.map(look, range(3))] == [[2], [], []]
