"""The monitor of a job without `launch`: it runs in rank 0's agent."""

import socket

from unilaunch.agent.rank_process import RankProcess
from unilaunch.errors import InputError
from unilaunch.machine.limits import allow_files
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Listening
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.inspection import Inspection, listen_for_metrics
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.reports import write_report
from unilaunch.monitor.verdict import Verdict, show

_FILES = 4  # open files of each rank: its share of a connection and of a probe
#: Seconds: Open MPI 4 hangs if its ranks end before it has noticed itself that a host is lost.
_LOST_PATIENCE = 3.0


class OwnMonitor:
    """A monitor that runs in an agent."""

    def __init__(self, rank: RankProcess, how: messages.BeMonitor) -> None:
        allow_files(_FILES * how.size)
        self.rank = rank
        listener = socket.socket(fileno=rank.listener)
        self.inbox = Inbox(Listening(listener, bytes.fromhex(how.secret), how.host_timeout))
        self.monitor = Monitor(
            self.inbox,
            how.size,
            how.several,
            how.stall_timeout,
            how.abort,
            lost_patience=_LOST_PATIENCE,
            announce=self._give_verdict,
        )
        self.how = how
        self.inspection: Inspection | None = None  # once rank 0 has an output folder

    def _inspect(self) -> None:
        """Let the job's owner inspect it. If the metrics' port is taken, the job continues without metrics."""
        folder, metrics = self.rank.output.folder, None
        if folder is None:
            return
        try:
            metrics = listen_for_metrics(self.how.metrics_address, self.how.metrics) if self.how.metrics else None
        except InputError as error:
            self.rank.output.say(f"unilaunch: no metrics: {error}\n")
        self.inspection = Inspection(self.monitor, folder.parent, metrics)

    def turn(self) -> int | None:
        """Read the agents' messages and judge; return the job's exit code, or None while the job runs."""
        self.inbox.take(0)
        self.monitor.hurried = self.rank.from_outside or bool(self.rank.ended_by)
        self.monitor.look()
        if self.inspection:
            self.inspection.tick()
        elif not self.monitor.ending:
            self._inspect()
        return self.monitor.verdict.exit_code if self.monitor.ending and self.monitor.verdict else None

    def conclude(self) -> None:
        """Show how the job failed, if that was not shown before, and end the inspection."""
        if self.inspection:
            self.inspection.close()
            self.inspection = None
        if not self.monitor.ending and (verdict := self.monitor.conclude()):
            self._give_verdict(verdict)

    def _give_verdict(self, verdict: Verdict) -> None:
        """Show the verdict on the job, and write it to the output folder."""
        said = ""
        if (placed := self.rank.placed) and (folder := self.rank.output.folder):
            said = write_report(folder.parent, placed.run, verdict.as_json(), folder)
        text = "" if verdict.was_shown else show(verdict, unseen=False)
        self.rank.output.say(text + (f"unilaunch: {said}\n" if said else ""))
