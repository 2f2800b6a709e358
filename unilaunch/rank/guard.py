"""The process above a rank: it keeps the rank's output, sees how the rank ends, and lets nothing outlive it.

The launcher's child is the guard, and the rank is the guard's. So a rank leaves a record whatever ends it (an
exception, os._exit, SIGKILL, the OOM killer); it ends when its launcher has gone; and its stacks can be asked for while
it hangs. Across the hosts the guards speak with whoever watches the job: `unilaunch launch`, or without it the guard
of rank 0.
"""

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import FrameType
from typing import TYPE_CHECKING, Any

from unilaunch.limits import allow_files
from unilaunch.output.failure import complete_failure, describe_exit
from unilaunch.output.files import write_json
from unilaunch.output.folder import write_report
from unilaunch.rank.evidence import Memory, find_evidence
from unilaunch.rank.processes import adopt_orphans, kill_children, pass_signals_on, state
from unilaunch.rank.pump import Output, Stream
from unilaunch.rank.report import Report
from unilaunch.rank.ties import STACKS, Ties
from unilaunch.rank.wake import wake_launcher
from unilaunch.watch.line import VARIABLE, Line

if TYPE_CHECKING:
    from unilaunch.watch.verdict import Verdict

#: A terminal sends these to the rank as well.
_OF_A_TERMINAL = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
#: How a script ends that the user has stopped: no failure.
_ENDS_OF_A_STOP = {"KeyboardInterrupt", "SystemExit"}
_TICK = 0.2
_TELL = 0.5  # seconds between two words on progress
_LAST_OUTPUT = 1.0  # seconds for output that a child of the rank may still hold open
_FAREWELL = 1.0  # seconds from SIGTERM to SIGKILL, and from a failure to the rank's own end
_ORDER = 15.0  # seconds in which whoever watches the job has ended it, if he can, once he knows that no host is lost
_DAEMONS_OWN = 1.5  # seconds in which a daemon of the launcher notices too that the other hosts do not answer
_WRITTEN = 0.3  # seconds in which a rank has written its stacks
_LINES = 20
_FILES = 2  # of each rank: its line, and a probe
_NEVER = float("inf")
_ORPHANED = "its launcher has gone"


def guarded(work: Callable[[Report], int], environ: Mapping[str, str], stand_in: socket.socket | None = None) -> int:
    """Do *work* in a process of its own, the rank, and return what it ends with; 128 + N for signal N.

    In the rank itself this returns what *work* returns; with a stand-in the guard itself ends here.

    Args:
        work: Is the rank, given its line to the guard.
        environ: The process's environment.
        stand_in: The way to the launcher's child, if that is another process: it sends signals, and gets the exit code.
    """
    ties, launcher = Ties(), os.getppid()
    rank = os.fork()
    if rank == 0:
        if stand_in:
            stand_in.close()
        return _live(work, ties.be_rank())
    guard = _Guard(rank, ties.be_guard(), environ, stand_in)
    code = guard.run()
    if stand_in:
        with suppress(OSError):  # it may have gone
            stand_in.send(bytes([code & 0xFF]))
        os._exit(code & 0xFF)  # what the fork server has imported is not to be taken down
    if not guard.is_cut_off:
        wake_launcher(launcher, code, environ)
    return code


def _live(work: Callable[[Report], int], report: Report) -> int:
    """Do the rank's work; one that ends without the others leaves at once, for MPI_Finalize would wait for them."""
    code = work(report)
    if report.released:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (threads that save come to their end)
    if report.failed or report.released:
        atexit._run_exitfuncs()  # noqa: SLF001  (the program's own; there is no public name)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class _Guard:
    """One rank's guard, an event loop.

    Args:
        process: The rank's process number.
        ties: To the rank.
        environ: The process's environment.
        stand_in: The way to the launcher's child, if that is another process.
    """

    def __init__(
        self, process: int, ties: Ties, environ: Mapping[str, str], stand_in: socket.socket | None = None
    ) -> None:
        self.process, self.ties, self.stand_in = process, ties, stand_in
        self.output = Output(ties.stdout, ties.stderr)
        self.launcher = os.getppid()
        self.memory = Memory()
        self.selector = DefaultSelector()
        self.line = Line(environ[VARIABLE], self.selector, self._obey, self._lose_line) if VARIABLE in environ else None
        self.watch: Any = None
        self.lock = -1  # holds the output folder for the job as long as this process lives
        # What the rank has said: who it is, and how it failed.
        self.unread = b""
        self.who: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.stack = b""
        # How it ended.
        self.returncode: int | None = None
        self.peak = 0
        self.failure: dict[str, Any] | None = None
        self.ended = ""  # why its guard ended it
        self.outside = False  # a signal came from outside
        self.order: int | None = None  # the job's exit code, once the job is to end
        self.orphaned = False  # the launcher has gone
        self.stopping = False  # the user stops the job, patiently
        self.stop_signal = 0  # with this signal
        self.overdue = False  # it did not end in the time that the user gave it
        self.concluded = False
        # When what is due, in seconds of time.monotonic.
        self.grace_until = self.kill_at = self.leave_at = self.give_up_at = self.drained_at = self.stack_at = _NEVER
        self.told_at = self.seen_at = self.linger_until = 0.0
        self.told: object = None  # the newest state of the rank that was sent
        self.seen: object = None  # the newest state of the rank

    def run(self) -> int:
        """Guard the rank to its end, and return what this process exits with."""
        adopt_orphans()
        with self._signals():
            self.selector.register(self.ties.control, EVENT_READ, self._hear)
            self.selector.register(self.ties.stacks, EVENT_READ, self._hear_stack)
            if self.stand_in:
                self.selector.register(self.stand_in, EVENT_READ, self._hear_stand_in)
            for stream in self.output.streams:
                self.selector.register(stream.source, EVENT_READ, self._mover(stream))
            while not self._may_leave():
                self._turn()
            return self._leave()

    def _turn(self) -> None:
        for key, events in self.selector.select(min(_TICK, max(0.0, self.stack_at - time.monotonic()))):
            if isinstance(key.data, Line):
                key.data.ready(key.fileobj, events)
            else:
                key.data()
        now = time.monotonic()
        self._look_at_rank(now)
        self.output.tick()
        self._tell_progress(now)
        if self.line:
            self.line.look()
        if now > self.stack_at:
            self._tell_stack()
        if self.watch:
            self.watch.inbox.take(0)
            self.watch.hurried = self.outside or bool(self.ended)
            self.watch.look()
            if self.watch.ending and self.order is None:
                self._obey({"end": self.watch.verdict.exit_code})

    def _look_at_rank(self, now: float) -> None:
        """See whether it has ended, and end it when that is due."""
        if self.returncode is not None:
            return
        process, status, usage = os.wait4(self.process, os.WNOHANG)
        if process:
            self.returncode = os.waitstatus_to_exitcode(status)
            self.peak = usage.ru_maxrss * 1024
            self.drained_at = now + _LAST_OUTPUT
            self.give_up_at = now + _ORDER + (self.line.host_timeout if self.line else 0.0)
        elif self._is_orphan and not self.orphaned:
            self.orphaned = True
            self._end(_ORPHANED)
        elif now > self.kill_at:
            self.overdue |= now > self.grace_until and not self._waits_for_others
            self._signal(signal.SIGKILL)

    @property
    def is_cut_off(self) -> bool:
        """The host of whoever watches the job does not answer."""
        return bool(self.line and self.line.host_lost)

    @property
    def _is_orphan(self) -> bool:
        """The launcher has exited; where a stand-in is its child, the stand-in notices that."""
        return self.orphaned or (not self.stand_in and os.getppid() != self.launcher)

    def _may_leave(self) -> bool:
        """Return whether all is done: the rank has ended, its output is kept, and the job needs this guard no more."""
        now = time.monotonic()
        if self.returncode is None or (self.output.flowing and now < self.drained_at):
            return False
        self._conclude()
        if self.watch:
            return bool(self.watch.ending or (self.watch.finished and not self.watch.failures()))
        if now < self.linger_until and not self._is_orphan:
            return False
        if self.order is not None or self.ended:
            return True
        if self.stopping:
            return now > self.leave_at or not (self.line and self.line.open)
        waits = self.failure and self.line and self.line.open
        return not waits or (bool(self.who.get("abort", True)) and now > self.give_up_at)

    # What the rank says

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.ties.control, 1 << 16, 1)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.selector.unregister(self.ties.control)
        *messages, self.unread = (self.unread + data).split(b"\n")
        for message in messages:
            self._understand(json.loads(message), descriptors)

    def _understand(self, said: dict[str, Any], descriptors: list[int]) -> None:
        if "watch" in said:
            listener, secret = socket.socket(fileno=descriptors.pop()), bytes.fromhex(said.pop("secret"))
            self._be_watch(listener, secret, said.pop("watch"))
        if said.pop("lock", False):
            self.lock = descriptors.pop()
        if "call" in said and not self.line:
            self.line = Line(said.pop("call"), self.selector, self._obey, self._lose_line)
            self.line.send(**self.who)
        if "folder" in said:
            self.output.open(Path(said["folder"]))
            self.output.show(shown=said["shown"])
        if "failure" in said:
            self._take_failure(said.pop("failure"))
        self.who |= {name: value for name, value in said.items() if name not in {"value", "result"}}
        if self.line and said:
            self.line.send(**said)

    def _take_failure(self, known: dict[str, Any]) -> None:
        self.known = known
        doing = known.pop("doing")
        if not self.stopping:
            self.kill_at = min(self.kill_at, time.monotonic() + _FAREWELL)
        if not (self.stopping and known["error"] in _ENDS_OF_A_STOP):
            self._record(known, doing)

    def _mover(self, stream: Stream) -> Callable[[], None]:
        def move() -> None:
            if not self.output.move(stream):
                self.selector.unregister(stream.source)

        return move

    # The line to whoever watches the job

    def _be_watch(self, listener: socket.socket, secret: bytes, how: dict[str, Any]) -> None:
        """Watch the job: this is rank 0, and there is no `launch`."""
        from unilaunch.watch.inbox import Inbox
        from unilaunch.watch.watch import Watch

        allow_files(_FILES * how["size"])
        inbox = Inbox(listener, secret, how.pop("host_timeout"))
        self.watch = Watch(inbox, **how, announce=self._give_verdict)
        self.selector.register(inbox.selector.fileno(), EVENT_READ, lambda: inbox.take(0))

    def _obey(self, order: Mapping[str, Any]) -> None:
        if order.get("stacks") and self.returncode is None:
            self._ask_stack()
        if "signal" in order:
            self._signal(int(order["signal"]))
        if "stop" in order:
            self._stop(int(order["stop"]), float(order["grace"]))
        if "release" in order:
            self._release()
        if "leave" in order:
            self.order = int(order["leave"])
        if "end" in order:
            self.order = int(order["end"])
            self._end("")

    def _lose_line(self, reason: str) -> None:
        """End the rank; if the other hosts do not answer, be there until the launcher's daemon has noticed too.

        It would tell them of our end, and as long as it waits for their answer it does not look whether they are there.
        """
        if self.is_cut_off:
            self.linger_until = time.monotonic() + _DAEMONS_OWN
        if self.order is None and self.returncode is None:
            self._end(f"the line to who watches the job broke: {reason}")

    def _tell_progress(self, now: float) -> None:
        """Send what the rank is doing, if it has changed, and how long ago that was noticed."""
        if not self.line or "rank" not in self.who:
            return
        state = (self.ties.page.read()[0], *self.output.sizes())
        if state != self.seen:
            self.seen_at, self.seen = now, state
        if self.seen != self.told and now - self.told_at >= _TELL:
            self.told_at, self.told = now, state
            self.line.send(progress=self.ties.page.read()[1], age=round(now - self.seen_at, 3))

    def _ask_stack(self) -> None:
        self.stack = b"stopped (SIGSTOP)" if state(self.process) in {"T", "t"} else b""
        self._signal(STACKS)
        self.stack_at = time.monotonic() + _WRITTEN

    def _hear_stack(self) -> None:
        data = os.read(self.ties.stacks, 1 << 16)
        if not data:
            self.selector.unregister(self.ties.stacks)
            return
        self.stack += data
        self.stack_at = time.monotonic() + _WRITTEN

    def _tell_stack(self) -> None:
        self.stack_at = _NEVER
        if self.line:
            self.line.send(stack=self.stack.decode(errors="replace"), progress=self.ties.page.read()[1])

    # The end

    def _hear_stand_in(self) -> None:
        """Pass on the signals that the launcher's child got; if it has gone, the launcher has, or has killed it."""
        if not self.stand_in:
            return
        numbers = b""
        with suppress(OSError):
            numbers = self.stand_in.recv(64)
        for number in numbers:
            self._pass_on(number)
        if not numbers:
            self.selector.unregister(self.stand_in)
            self.orphaned = True
            if self.returncode is None:
                self._end(_ORPHANED)

    def _end(self, why: str) -> None:
        """End the rank: with SIGTERM, and if it does not go, with SIGKILL."""
        self.ended = self.ended or why
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        self.kill_at = min(self.kill_at, time.monotonic() + _FAREWELL)

    def _stop(self, number: int, grace: float) -> None:
        """Give the rank the user's signal, and time to end; a rank whose program has ended needs neither.

        The guard's own end waits for the other ranks': mpirun ends them all when one of its processes has ended.
        """
        now = time.monotonic()
        self.stopping, self.stop_signal, self.grace_until = True, number, now + grace
        self.kill_at, self.leave_at = min(self.kill_at, now + grace), now + grace + _FAREWELL
        self.ties.tell_stop()
        if not self.who.get("done"):
            self._signal(number)
            self._signal(signal.SIGCONT)

    @property
    def _waits_for_others(self) -> bool:
        """The rank's program has ended, and it waits for ranks that may have gone; there is nothing left to save."""
        return bool(self.who.get("done") and not self.who.get("leaving"))

    def _release(self) -> None:
        """Let the rank go: every rank of the job has ended, or its program has."""
        self.ties.release()
        if self._waits_for_others:
            self.kill_at = min(self.kill_at, time.monotonic() + _FAREWELL)

    def _pass_on(self, number: int, _: FrameType | None = None) -> None:
        self.outside = True
        if self.ties.own_group or number not in _OF_A_TERMINAL:
            self._signal(number)

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process, number)

    def _conclude(self) -> None:
        """Record and tell how the rank ended, once."""
        if self.concluded:
            return
        self.concluded = True
        own = self._own_exit_code()
        by_order = self.order is not None or self.overdue or self.returncode == -self.stop_signal
        if own and not by_order and not self.known and "refused" not in self.who:
            self._record(self._seen(), self.ties.page.read()[1])
        if self.line:
            ordered = self.order is not None and not self.failure
            self.line.send(exit_code=None if ordered else own, overdue=self.overdue)

    def _own_exit_code(self) -> int:
        if self.known:
            return int(self.known["exit_code"])
        if self.ended:
            return 1
        code = self.returncode or 0
        return 128 - code if code < 0 else code

    def _seen(self) -> dict[str, Any]:
        seen = describe_exit(self.returncode or 0)
        if not self.ended:
            return seen | {"outside": self.outside}
        return seen | {"error": "Ended", "message": f"unilaunch ended it: {self.ended}", "signal": None, "exit_code": 1}

    def _record(self, known: Mapping[str, Any], doing: Mapping[str, Any]) -> None:
        """Write how the rank failed, and tell it."""
        folder = self.output.folder
        log = str(folder / "stderr") if folder else ""
        failure = complete_failure(known, self.who, doing, self.output.last_lines(_LINES), log)
        failure["evidence"] = find_evidence(failure, self.memory, self.peak)
        self.failure = failure
        if folder:
            with suppress(OSError):  # told all the same
                write_json(folder / "failure.json", failure)
        if self.line and "rank" in self.who:
            self.line.send(failure=failure)

    def _leave(self) -> int:
        """End what the rank has left behind, say the last word, and return the exit code."""
        code = self._own_exit_code() if self.order is None else self.order
        if code or self.stopping:
            kill_children()
        self.output.tick(last=True)
        until = time.monotonic() + _FAREWELL
        while self.line and self.line.open and self.line.outgoing and time.monotonic() < until:
            self._turn()
        if self.watch and not self.watch.ending and (verdict := self.watch.conclude()):
            self._give_verdict(verdict)
        elif not self.watch and self.failure and not self.known and not (self.line and self.line.connection):
            self._say_last()
        return code

    def _give_verdict(self, verdict: "Verdict") -> None:
        """Show and keep what the whole job came to."""
        from unilaunch.watch.verdict import show

        if folder := self.output.folder:
            write_report(folder.parent, str(self.who["run"]), verdict.as_json(), folder)
        if not verdict.first.get("together"):
            _say(show(verdict, traceback=False))

    def _say_last(self) -> None:
        from unilaunch.watch.verdict import Verdict, show

        _say(show(Verdict(self.failure or {}, 1), traceback=False))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on to the rank, and wake up when it ends."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        pass_signals_on(self._pass_on)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.selector.register(reading, EVENT_READ, lambda: os.read(reading, 512))
        yield
        signal.set_wakeup_fd(-1)


def _say(text: str) -> None:
    with suppress(OSError):  # the console may have gone with the launcher
        sys.stderr.write(text)
        sys.stderr.flush()
