"""Find the ranks to which this one cannot connect, as where a firewall lets only some hosts connect to each other."""

import time
from functools import partial
from selectors import DefaultSelector
from socket import socket
from typing import cast

from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.world import LauncherInfo, host_identity
from unilaunch.machine.connections import Calls, Door
from unilaunch.machine.limits import allow_files
from unilaunch.rendezvous.boards import Contact, listen_for_ranks

#: Seconds for all connections; where each of them succeeds, no rank waits for that long.
_PATIENCE = 5.0
_TICK = 0.2
#: Open files for each other host: a connection to each of its addresses, and the one from it.
_FILES = 8


def find_unreached(peers: Peers, found: LauncherInfo) -> list[int]:
    """Return the ranks of other hosts to which this one cannot connect. All ranks must call it.

    The first rank of each host listens at a free port, and calls every other one at all its addresses at once.
    """
    listener, meeting = listen_for_ranks(found)
    told = cast("list[list[str]]", peers.share([host_identity(), meeting.text]))
    firsts = {host: rank for rank, (host, _) in reversed([*enumerate(told)])}.values()
    if found.rank not in firsts:
        listener.close()
        return []
    allow_files(_FILES * len(firsts))
    meetings = {rank: Contact.parse(told[rank][1]) for rank in firsts if rank != found.rank}
    unreached, awaited = set(meetings), set(meetings)

    def reach(rank: int, connection: socket) -> None:
        unreached.remove(rank)
        connection.close()

    def welcome(connection: socket, rank: int) -> None:
        awaited.remove(rank)
        connection.close()

    with DefaultSelector() as selector:
        door = Door(listener, meeting.secret, selector, welcome, awaited)
        calls = [
            Calls(other.places, other.secret, found.rank, selector, partial(reach, rank))
            for rank, other in meetings.items()
        ]
        until = time.monotonic() + _PATIENCE
        while (unreached or awaited) and time.monotonic() < until:
            for key, _ in selector.select(_TICK):
                key.data()
            door.tick()
        door.close()
        for one in calls:
            one.close()
    return sorted(unreached)
