"""The monitor of a job that has no `launch`: rank 0's agent is it."""

import socket

from unilaunch.agent.rank_process import RankProcess
from unilaunch.limits import allow_files
from unilaunch.monitor import messages
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.verdict import Verdict, show
from unilaunch.output.reports import write_report

_FILES = 4  # open files of each rank: its share of a connection, and a probe's


class OwnMonitor:
    """A monitor in an agent.

    Args:
        rank: Rank 0.
        how: What rank 0 has told.
    """

    def __init__(self, rank: RankProcess, how: messages.BeMonitor) -> None:
        allow_files(_FILES * how.size)
        self.rank = rank
        self.inbox = Inbox(socket.socket(fileno=rank.listener), bytes.fromhex(how.secret), how.host_timeout)
        self.monitor = Monitor(
            self.inbox,
            how.size,
            how.several,
            how.stall_timeout,
            how.abort,
            how.lost_patience,
            announce=self._give_verdict,
        )

    def turn(self) -> int | None:
        """Hear the agents and judge; return what the job is to end with, None while it goes on."""
        self.inbox.take(0)
        self.monitor.hurried = self.rank.from_outside or bool(self.rank.ended_by)
        self.monitor.look()
        return self.monitor.verdict.exit_code if self.monitor.ending and self.monitor.verdict else None

    @property
    def may_end(self) -> bool:
        """Nothing more is to be heard: the job is ended, or every rank has ended well."""
        return self.monitor.ending or (self.monitor.finished and not self.monitor.failures())

    def conclude(self) -> None:
        """Say how the job failed, if that has not been said."""
        if not self.monitor.ending and (verdict := self.monitor.conclude()):
            self._give_verdict(verdict)

    def _give_verdict(self, verdict: Verdict) -> None:
        """Show and keep what the whole job came to."""
        said = ""
        if (placed := self.rank.placed) and (folder := self.rank.output.folder):
            said = write_report(folder.parent, placed.run, verdict.as_json(), folder)
        text = "" if verdict.is_known else show(verdict, unseen=False)
        self.rank.output.streams[1].say(text + (f"unilaunch: {said}\n" if said else ""))
