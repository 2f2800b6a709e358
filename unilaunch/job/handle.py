"""The handle of a job that runs in the background of its caller."""

import atexit
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakSet

from unilaunch.folder.failure import split_phase
from unilaunch.folder.result import LaunchResult
from unilaunch.folder.values import unpack
from unilaunch.interfaces.step import Step
from unilaunch.job.plan import Plan
from unilaunch.job.restart import run
from unilaunch.job.start import Caller
from unilaunch.job.stop import Asked, noting_signals
from unilaunch.look import lines as log_lines
from unilaunch.look.lines import LogLine, Stream, find_streams
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.rank_seen import RankSeen, RankState
from unilaunch.record import Record, replace

_TICK = 0.1


class JobStatus(StrEnum):
    """The state of a job."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class RankStatus(Record):
    """The state of one rank.

    Attributes:
        rank: Its number.
        host: The host that it runs on; "?" before that is known, like the device.
        device: "cpu", "cuda:1".
        state: Its state, as far as the monitor knows.
        phase: What it is doing; None if it has not reported that.
        step: The step of its model or program; None if it has not reported one.
    """

    rank: int
    host: str
    device: str
    state: RankState
    phase: str | None
    step: Step | None


class Job:
    """A job that runs in the background of its caller. Every method may be called from any thread.

    When the interpreter exits, the jobs that still run are stopped as by `cancel`.

    Args:
        plan: The plan to start.
        environ: The environment of the job.
        files: The folder of its arguments; it is removed when the job has ended.
        attended: Whether the caller only waits for the job, at a terminal.
    """

    def __init__(
        self, plan: Plan, environ: Mapping[str, str], files: "TemporaryDirectory[str]", *, attended: bool
    ) -> None:
        self._plan, self._environ, self._files = plan, environ, files
        self._caller = Caller(Asked(), attended, self._note_start)
        self._inbox: Inbox | None = None
        self._end: Future[LaunchResult] = Future()
        self._thread = threading.Thread(target=self._run, name="unilaunch job", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def output_dir(self) -> Path:
        """The output folder."""
        return self._plan.task.spec.output_dir

    @property
    def status(self) -> JobStatus:
        """The state of the job."""
        if not self._end.done():
            if self._caller.asked.number:
                return JobStatus.STOPPING
            known = self._known().values()
            return JobStatus.RUNNING if any(seen.run for seen in known) else JobStatus.STARTING
        if self._end.exception():
            return JobStatus.FAILED
        if self._end.result().interrupted:
            return JobStatus.STOPPED
        return JobStatus.FAILED if self._end.result().returncode else JobStatus.DONE

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """The state of each rank, by rank."""
        known = self._known()
        return tuple(_status(row.rank, known.get(row.rank, RankSeen())) for row in self._plan.rows)

    def wait(self, timeout: float | None = None) -> LaunchResult:
        """Wait for the job's end, and return how it ended; a failure of the job raises no exception here.

        In the main thread Ctrl-C (and SIGTERM and SIGHUP) stops the job as `cancel` does. When the job has ended, the
        signal has its usual effect: Ctrl-C raises KeyboardInterrupt.

        Args:
            timeout: Seconds to wait; None: no limit.

        Raises:
            TimeoutError: The job still runs.
            UnilaunchError: The job could not be started, or a returned value cannot be read.
            KeyboardInterrupt: The user has pressed Ctrl-C, and the job has ended.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with noting_signals(self._caller.asked) as received:
            while self._thread.is_alive() and (received or time.monotonic() < deadline):
                self._thread.join(_TICK)
        if received:
            signal.raise_signal(received[0])
        if self._thread.is_alive():
            raise TimeoutError(f"the job in {self.output_dir} still runs after {timeout:g} s")
        return self._end.result()

    def cancel(self) -> None:
        """Stop the job as SIGTERM does: the ranks have `grace` seconds to end; a second call ends them at once."""
        asked = self._caller.asked
        asked.again |= bool(asked.number)  # also at once: unlike a signal, a call comes once
        asked.note(signal.SIGTERM)

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield what the ranks have written so far, in the order of time; `str(line)` is the text.

        Args:
            rank: Only the output of this rank; None: of all ranks.
            follow: Continue until the job has ended.
        """
        while follow and self.status is JobStatus.STARTING:
            time.sleep(_TICK)
        if not any(seen.run for seen in self._known().values()):
            return  # the output in the folder is of an earlier run
        if follow:
            lines = log_lines.follow(self._end.done, lambda: self._streams(rank))
            yield from (line for line in lines if line)
        else:
            yield from log_lines.read(self._streams(rank))

    def _streams(self, rank: int | None) -> list[Stream]:
        return [stream for stream in find_streams(self.output_dir) if rank in {None, stream.rank}]

    def _run(self) -> None:
        try:
            result = run(self._plan, self._environ, self._caller)
            ranks = tuple(replace(one, value=unpack(one.value, one.log_dir)) for one in result.ranks)
            self._end.set_result(replace(result, ranks=ranks))
        except BaseException as error:  # noqa: BLE001  (`wait` raises it)
            self._end.set_exception(error)
        finally:
            self._files.cleanup()

    def _note_start(self, plan: Plan, inbox: Inbox) -> None:
        self._plan, self._inbox = plan, inbox

    def _known(self) -> dict[int, RankSeen]:
        return dict(self._inbox.ranks) if self._inbox else {}


def _status(rank: int, seen: RankSeen) -> RankStatus:
    phase, _ = split_phase(seen.progress)
    return RankStatus(rank, seen.host, seen.device, seen.state, phase, Step.last_from_facts(seen.progress))


_running: WeakSet[Job] = WeakSet()


@atexit.register
def _stop_all() -> None:
    left = [job for job in _running if job._thread.is_alive()]  # noqa: SLF001  (the same module)
    for job in left:
        if job.status is not JobStatus.STOPPING:  # a second stop would end it at once
            job.cancel()
    for job in left:
        job._thread.join()  # noqa: SLF001
