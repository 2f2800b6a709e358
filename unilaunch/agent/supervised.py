"""A rank, as its agent supervises it, and the output streams of all its ranks."""

import time
from functools import partial

from unilaunch.agent.loop import Loop
from unilaunch.agent.output import Stream
from unilaunch.agent.rank_process import RankProcess
from unilaunch.agent.stack_reader import NEVER, read_native
from unilaunch.folder.failure import Cause, Failure
from unilaunch.monitor import messages

#: Seconds until `launch` has passed on a signal that a scheduler has sent to every process of the job.
_SAME = 1.0


class Supervised:
    """A rank, as its agent follows it.

    Attributes:
        rank: The rank.
        abandoned: Whether the launcher has exited.
        closed: Whether the connections to the rank are closed.
        waits_until: Until when the agent waits for an order of the monitor, once the rank has ended.
    """

    def __init__(self, rank: RankProcess) -> None:
        self.rank = rank
        self.abandoned = False
        self.closed = False
        self.waits_until = NEVER

    def lose_launcher(self) -> None:
        """End the rank, since its launcher has exited."""
        self.abandoned = self.rank.abandoned = True
        if self.rank.is_running:
            self.rank.end(Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has exited", 1))


def order_rank(rank: RankProcess, order: messages.Message, loop: Loop) -> None:
    """Apply an order of the monitor to one rank; work that takes time is done in the agent's loop."""
    match order:
        case messages.ShowStacks(native=True) if rank.is_running:
            read_native(rank.pid, loop, lambda text: rank.tell(rank, messages.Stack(text, rank.progress.doing)))
        case messages.ShowStacks():
            rank.ask_stack()
        case messages.PassSignal(number):
            _pass_signal(rank, number)
        case messages.Stop():
            rank.stop_patiently(order)
        case messages.Release():
            rank.release()
        case messages.Leave():
            rank.ordered = True
        case messages.End(_, grace):
            rank.ordered = True
            rank.end(grace=grace)
        case _:
            pass


def _pass_signal(rank: RankProcess, number: int) -> None:
    """Send a rank a signal that `launch` has got, unless the rank has got it from outside too."""
    if time.monotonic() - rank.passed_on.get(number, -_SAME) >= _SAME:
        rank.signal(number)


class Streams:
    """The streams in the agent's loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.full: list[tuple[RankProcess, Stream]] = []  # streams that wait for the launcher

    def add(self, rank: RankProcess) -> None:
        """Read a rank's output from now on."""
        for stream in rank.output.streams:
            self._watch(rank, stream)

    def resume(self) -> None:
        """Read again from the streams for which there is room again."""
        for rank, stream in [one for one in self.full if not _must_wait(*one)]:
            self.full.remove((rank, stream))
            self._watch(rank, stream)

    def clear(self) -> None:
        """Remove the streams of ranks that have ended."""
        self.full.clear()

    def _watch(self, rank: RankProcess, stream: Stream) -> None:
        self.loop.watch(stream.source, partial(self._move, rank, stream))

    def _move(self, rank: RankProcess, stream: Stream) -> bool:
        rank.hear_place()
        if _must_wait(rank, stream):
            self.full.append((rank, stream))
            return False
        return rank.output.move(stream)


def _must_wait(rank: RankProcess, stream: Stream) -> bool:
    return stream.is_full and rank.is_running
