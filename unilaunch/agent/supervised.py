"""A rank and the launcher's child that stands for it, as their agent sees the two."""

from unilaunch.agent.loop import Loop
from unilaunch.agent.native_stacks import tell_native_stacks
from unilaunch.agent.rank_process import RankProcess
from unilaunch.agent.shim import Shim
from unilaunch.agent.stack_reader import NEVER
from unilaunch.monitor import messages
from unilaunch.output.failure import Cause, Failure


class Supervised:
    """A rank, and the launcher's child that stands for it.

    Attributes:
        rank: The rank.
        shim: The launcher's child; None if this process is that itself.
        dismissed: The launcher's child has been told what to exit with, or has gone.
        closed: Nothing of the rank or its shim is open any more, but for the lock on the output folder.
        waits_until: When the wait for an order of the monitor is over, once the rank has ended.
    """

    def __init__(self, rank: RankProcess, shim: Shim | None) -> None:
        self.rank, self.shim = rank, shim
        self.dismissed = False
        self.closed = False
        self.waits_until = NEVER

    def lose_launcher(self) -> None:
        """End the rank: its launcher has gone, and nobody waits for it."""
        self.dismissed = self.rank.abandoned = True
        if self.rank.is_running:
            self.rank.end(Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has gone", 1))


def order_rank(rank: RankProcess, order: messages.Message, loop: Loop) -> None:
    """Do with one rank what the monitor has ordered; what that takes time for is done in the agent's loop."""
    match order:
        case messages.ShowStacks(native=True):
            tell_native_stacks(rank, loop)
        case messages.ShowStacks():
            rank.ask_stack()
        case messages.PassSignal(number):
            rank.signal(number)
        case messages.Stop():
            rank.stop_patiently(order)
        case messages.Release():
            rank.release()
        case messages.Leave():
            rank.ordered = True
        case messages.End():
            rank.ordered = True
            rank.end()
        case _:
            pass
