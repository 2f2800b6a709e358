"""Pass frames between two interfaces, each so many seconds later: a long cable. Run by `Cluster.delay`.

    python delay.py port0 line0 0.001

The kernel's netem would do it, which not every machine has. Headers of `struct virtio_net_hdr` go with the frames, so
that what one end has left to the hardware (checksums, cutting into packets) is still to be done at the other one.
"""

import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress

# From linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h.
_PACKET, _WITH_HEADER, _IGNORE_OUTGOING, _MEMORY_BY_FORCE, _EVERY_PROTOCOL = 263, 15, 23, 33, 3

ends = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in range(2)]
for own, interface in zip(ends, sys.argv[1:3], strict=True):
    own.setsockopt(_PACKET, _WITH_HEADER, 1)
    own.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)
    own.setsockopt(socket.SOL_SOCKET, _MEMORY_BY_FORCE, 1 << 24)
    own.bind((interface, _EVERY_PROTOCOL))
    own.setblocking(False)
on_the_way: deque[tuple[float, socket.socket, bytes]] = deque()
while True:
    left = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
    for end in select.select(ends, [], [], left)[0]:
        with suppress(BlockingIOError):
            while True:
                on_the_way.append((time.monotonic() + float(sys.argv[3]), ends[end is ends[0]], end.recv(1 << 17)))
    while on_the_way and on_the_way[0][0] <= time.monotonic():
        _, end, frame = on_the_way.popleft()
        with suppress(OSError):  # a full queue, or a port that is down: the frame is lost, as on a cable
            end.send(frame)
