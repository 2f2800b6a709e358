"""The output streams of an agent's ranks. A rank waits if the launcher reads its output too slowly."""

from functools import partial

from unilaunch.agent.loop import Loop
from unilaunch.agent.output import Stream
from unilaunch.agent.rank_process import RankProcess


class Streams:
    """The streams in the agent's loop.

    Args:
        loop: The loop.
    """

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
        if _must_wait(rank, stream):
            self.full.append((rank, stream))
            return False
        return rank.output.move(stream)


def _must_wait(rank: RankProcess, stream: Stream) -> bool:
    return stream.is_full and rank.is_running
