"""One rank, as its agent supervises it: the process, its output and messages, the orders for it, and how it ends."""

import os
import signal
import socket
import time
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from resource import struct_rusage

from unilaunch.agent.channel import Channel, InputPipe
from unilaunch.agent.evidence import find_evidence
from unilaunch.agent.output import Output, Stream
from unilaunch.agent.processes import Loop, can_be_read, kill_children, processor_wait
from unilaunch.agent.progress import ProgressTeller, Usage
from unilaunch.agent.stack_reader import NEVER, StackReader
from unilaunch.errors import REQUEUE
from unilaunch.folder.failure import Cause, Failure, describe_exit, split_phase
from unilaunch.folder.files import add_event, write_failure
from unilaunch.machine.cgroups import oom_kills
from unilaunch.monitor import messages
from unilaunch.monitor.messages import NO_RANK, BadMessageError, OfAgent, OfRank
from unilaunch.record import replace

_OF_A_PROGRAM = {signal.SIGUSR1, signal.SIGUSR2}  # they end no program that handles them
_OF_A_TERMINAL = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}  # a terminal also sends these to the rank itself
#: Causes of the end of a rank that the user has stopped; they are not failures.
_ENDS_OF_A_STOP = {Cause.ENDED_FROM_OUTSIDE, Cause.EXIT}
_LAST_OUTPUT = 1.0  # seconds for output that a child of the rank may still hold open
FAREWELL = 1.0  # seconds from SIGTERM to SIGKILL, and from a failure to the rank's own end
_ECHO = 0.2  # seconds in which a signal of the same number counts as the same one
#: The same for one that `launch` passes on: a scheduler has sent it to every process of the job.
_ECHO_OF_LAUNCH = 1.0
_MISSED = 0.05  # least seconds of waiting for a processor that are given back
#: Most seconds from a signal that asks for the end to the end. Schedulers send SIGKILL sooner; a program that runs on
#: has handled the signal.
_FOLLOWED = 300.0
_LINES = 20


class State(Enum):
    """The state of a rank.

    RUNNING until its process exits; then EXITED, until its output is read and shown and its end is reported: ENDED.
    """

    RUNNING = "running"
    EXITED = "exited"
    ENDED = "ended"


class RankProcess:
    """A rank.

    Args:
        pid: Its process number.
        channel: Its connections to the agent.
        output: Its standard output and error.
        loop: The agent's loop, which reads from the rank from now on.
        tell: Called with each message of the rank and its agent; the rank is NO_RANK before its number is known.

    Attributes:
        state: See `State`.
        failure: How it failed, once that is known.
    """

    def __init__(
        self,
        pid: int,
        channel: Channel,
        output: Output,
        loop: Loop,
        tell: Callable[["RankProcess", OfRank | OfAgent], None],
    ) -> None:
        self.pid, self.channel, self.output, self.loop = pid, channel, output, loop
        self.tell = partial(tell, self)
        self.progress = ProgressTeller(pid, channel.page, output, self.tell)
        self.stacks = StackReader(channel.stacks)
        self.input: InputPipe | None = None  # if its agent passes it on
        if channel.stdin >= 0:
            self.input = InputPipe(channel.stdin, loop, lambda: self.tell(messages.NeedsInput()))
        self.full: list[Stream] = []  # those that are not read until the launcher has read more
        self.kills = oom_kills()
        self.usage = Usage(pid)
        self.state = State.RUNNING
        self.number = NO_RANK
        self.placed: messages.Placed | None = None
        self.host = "?"
        self.named: messages.Named | None = None
        self.unread = bytearray()
        self.listener = -1  # the monitor's socket, if the monitor is to run in this agent
        self.lock = -1  # holds the output folder for the job as long as the agent lives
        self.returncode = self.peak = 0
        self.exited_at = NEVER
        self.reported: Failure | None = None  # the failure as the rank reported it
        self.failure: Failure | None = None
        self.done: messages.Done | None = None
        self.ended_by: Failure | None = None  # the agent's reason for ending it
        self.passed_on: dict[int, float] = {}  # when each signal from outside came
        self.stop: messages.Stop | None = None  # the user's stop, with time to end
        self.ordered = False  # the monitor has ordered the end of the job
        self.abandoned = False  # its launcher has exited: its output is not shown
        self.overdue = False  # it did not end in the time of --grace
        self.saving = False  # its program uses the time that it has to end
        self.saves_until = 0.0  # how long it may, if it does
        self.kill_at = self.grace_until = self.drained_at = NEVER  # when each is due, in seconds of time.monotonic
        self.starved = 0.0  # seconds for which it had waited for a processor when `kill_at` was set
        loop.watch(channel.control, self.hear)
        loop.watch(channel.stacks, self.stacks.hear)
        for stream in output.streams:
            self._watch(stream)

    # Output of the rank

    def _watch(self, stream: Stream) -> None:
        self.loop.watch(stream.source, partial(self._move, stream))

    def _move(self, stream: Stream) -> bool:
        """Read a piece of a stream; False at its end, or if the rank must wait until the launcher has read more."""
        self._hear_place()
        if self._must_wait(stream):
            self.full.append(stream)
            return False
        return stream.move()

    def _must_wait(self, stream: Stream) -> bool:
        return stream.is_full and self.is_running

    def resume_output(self) -> None:
        """Read again from the streams for which there is room again."""
        for stream in [stream for stream in self.full if not self._must_wait(stream)]:
            self.full.remove(stream)
            self._watch(stream)

    # Messages of the rank

    def hear(self) -> bool:
        """Read a message of the rank; False at the end of the channel."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel.control, 1 << 16, 1)
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        for line in messages.take_lines(self.unread, data):
            with suppress(BadMessageError, IndexError):  # the program has written to unilaunch's socket
                self._understand(messages.decode(line)[1], descriptors)
        return bool(data)

    def _hear_place(self) -> None:
        """Read the messages that the rank has sent before its output: they say how the output is shown."""
        while self.placed is None and self.is_running and can_be_read(self.channel.control) and self.hear():
            pass

    def _understand(self, message: messages.Message, descriptors: list[int]) -> None:
        match message:
            case messages.Named():
                self._take_name(message)
                return
            case messages.Placed():
                self._take_place(message)
            case messages.HoldLock():
                self.lock = descriptors.pop()
                return
            case messages.BeMonitor():
                self.listener = descriptors.pop()
            case messages.Failed(failure, log):
                self.output.keep_last_words(log)
                self._take_failure(failure)
                return
            case messages.Done():
                self.done = message
            case messages.Saving():
                self.saving = True
                self._give_time_to_save()
            case _:
                pass
        self.tell(message)  # type: ignore[arg-type]  # a rank sends no other messages

    def _take_name(self, named: messages.Named) -> None:
        self.number, self.host, self.named = named.rank, named.host, named
        self.tell(named)
        if self.input:
            self.input.begin(named.rank)

    def _take_place(self, placed: messages.Placed) -> None:
        self.placed, self.host = placed, placed.host
        self.output.open(Path(placed.folder))
        number = self.named.rank if self.named else 0
        self.output.show(placed.shown, f"[{number}] " if placed.shown is messages.Shown.LABELLED else "")
        self.usage.open(Path(placed.folder))

    def _take_failure(self, failure: Failure) -> None:
        self.reported = failure
        if not self.stop and (self.placed is None or self.placed.abort):
            self._kill_after_farewell()
        saved = self.passed_on and failure.exit_code == REQUEUE
        if not saved and not (self.stop and failure.cause in _ENDS_OF_A_STOP):
            self._record(failure)

    # Orders

    def obey(self, order: messages.Message) -> None:
        """Apply an order of the monitor; work that takes time is done in the agent's loop."""
        match order:
            case messages.ShowStacks() if self.is_running:
                self.stacks.begin(self.pid)
            case messages.Input(data) if self.input:
                self.input.take(a2b_base64(data))
            case messages.PassSignal(number) if not self._has_just_got(number, _ECHO_OF_LAUNCH):
                self.signal(number)
            case messages.Resize():
                self._resize(order)
            case messages.Stop():
                self._stop_patiently(order)
            case messages.Release():
                self._release()
            case messages.Leave() | messages.End():
                self._leave(order)

    def _leave(self, order: messages.Leave | messages.End) -> None:
        self.ordered = True
        if isinstance(order, messages.End):
            self.end(grace=order.grace)

    def _resize(self, order: messages.Resize) -> None:
        if self.is_running and self.channel.resize(order.windows):
            self.signal(signal.SIGWINCH)  # a terminal tells only the session whose own it is

    def end(self, why: Failure | None = None, grace: float = 0.0) -> None:
        """End the rank: SIGTERM, then SIGKILL if it still runs; SIGKILL at once if it has no handlers.

        *why* is the reason, if the agent itself decides that. A rank that is saving has *grace* seconds.
        """
        self.saves_until = time.monotonic() + grace
        self.ended_by = self.ended_by or why
        if self.placed and not self.placed.has_handlers:
            self.signal(signal.SIGKILL)
            return
        if not self.reported:  # after its own report it runs its exit functions
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        self._kill_after_farewell()
        self._give_time_to_save()

    def _give_time_to_save(self) -> None:
        if self.saving and self.saves_until > self.kill_at:
            self.kill_at = self.saves_until

    def _kill_after_farewell(self) -> None:
        self.kill_at = min(self.kill_at, time.monotonic() + FAREWELL)
        self.starved = processor_wait(self.pid)

    def _is_starved(self, now: float) -> bool:
        """Give a rank that should have ended the time for which it has waited for a processor; return whether it has.

        On a machine with more processes than processors it still writes its files.
        """
        waited = processor_wait(self.pid)
        missed, self.starved = waited - self.starved, waited
        if now > self.grace_until or missed < _MISSED:
            return False
        self.kill_at = now + missed
        return True

    def _stop_patiently(self, stop: messages.Stop) -> None:
        """Send the rank the user's signal, unless its program has ended, and give it time to end."""
        self.stop, self.grace_until = stop, time.monotonic() + stop.grace
        self.kill_at = min(self.kill_at, self.grace_until)
        self.channel.tell_stop()
        if self.output.folder:
            add_event(self.output.folder, phase="stopping")
        if not self.done:
            self.signal(stop.number)
            self.signal(signal.SIGCONT)

    def _release(self) -> None:
        """Let the rank exit: every rank of the job has ended, or the program of every rank."""
        self.channel.release()
        if self._waits_for_others:
            self._kill_after_farewell()

    def abandon(self) -> None:
        """End the rank, since its launcher has exited."""
        self.abandoned = True
        if self.is_running:
            self.end(Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has exited", 1))

    def pass_on(self, number: int) -> None:
        """Pass on a signal from outside, once if several processes have it."""
        if not self._has_just_got(number, _ECHO):
            self.passed_on[number] = time.monotonic()
            if self.channel.own_group or number not in _OF_A_TERMINAL:
                self.signal(number)

    def _has_just_got(self, number: int, seconds: float) -> bool:
        return time.monotonic() - self.passed_on.get(number, -NEVER) < seconds

    def signal(self, number: int) -> None:
        """Send the rank a signal."""
        if self.is_running:
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or runs a program of another user
                os.kill(self.pid, number)

    @property
    def is_running(self) -> bool:
        """Whether the process has not exited yet."""
        return self.state is State.RUNNING

    @property
    def _waits_for_others(self) -> bool:
        """Whether the rank's program has ended and the rank waits for others: it has nothing left to save."""
        return bool(self.done and not self.done.leaving)

    def exited(self, status: int, usage: struct_rusage) -> None:
        """Record that the process has exited, with its status and its usage, as wait4(2) returns them."""
        self.channel.control.setblocking(False)  # a process that the rank has started may keep the other end open
        for _ in iter(self.hear, False):  # its last messages: without them the monitor would miss its end
            pass
        self.returncode, self.peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        self.usage.conclude(usage)
        self.state, self.exited_at = State.EXITED, time.monotonic()
        self.output.add_error(self.stacks.take_last_crash())

    def tick(self, now: float) -> None:
        """Do the actions whose time has come; of a rank that has ended only the rest of its output may wait."""
        self.output.tick()
        if self.state is State.ENDED:
            return
        if self.is_running:
            self._kill_or_measure(now)
        if self.number != NO_RANK:
            self.progress.tick(now)
        self.output.add_error(self.stacks.take_crash(now))
        if (text := self.stacks.take(now)) is not None:
            self.tell(messages.Stack(text, self.progress.doing))
        if self.state is State.EXITED:
            self._end_after_output(now)

    def _kill_or_measure(self, now: float) -> None:
        """Kill a rank that should have ended, and record what another one uses."""
        if now <= self.kill_at or self._is_starved(now):
            self.usage.tick(now)
            return
        cut_off = self.saving and self.saves_until == self.kill_at
        self.overdue |= (now > self.grace_until or cut_off) and not self._waits_for_others
        self.signal(signal.SIGKILL)

    def _end_after_output(self, now: float) -> None:
        """End a rank whose process has exited, as soon as its output is read and shown."""
        self.drained_at = min(self.drained_at, now + _LAST_OUTPUT)  # not sooner: the output is read once more
        if now > self.drained_at:
            self.output.end(follow=not self.exit_code)  # what a failed rank has left is ended
        if not self.output.is_open and (self.output.is_shown or self.ordered or self.abandoned):
            self.output.tick(last=True)
            self._disconnect()
            self.state = State.ENDED
            self._conclude(now)

    def _disconnect(self) -> None:
        """Close the connections to the rank; its consoles stay, and the lock on the output folder."""
        if self.input:
            self.input.close()
        self.loop.forget([self.channel.control, self.channel.stacks, self.channel.stdout, self.channel.stderr])
        self.channel.close()
        self.full.clear()
        self.stacks.due = NEVER

    def close_files(self) -> None:
        """Close all files, at the agent's end, or in a rank that has been forked from it."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1
        if self.state is not State.ENDED:
            self._disconnect()
        self.output.close()

    def _conclude(self, now: float) -> None:
        """Record how the rank ended, and send that to the monitor, with its last step."""
        if self.number != NO_RANK:
            self.progress.tick(now, last=True)
        stopped = self.overdue or (self.stop is not None and self.returncode == -self.stop.number)
        if self.exit_code and not (self.ordered or stopped or self.reported):
            self._record(self._seen())
        self.tell(messages.Exited(None if self.ordered and not self.failure else self.exit_code, self.overdue))
        if self.exit_code and self.channel.own_group:  # what a failed rank has started
            kill_children(self.pid)

    @property
    def exit_code(self) -> int:
        """The rank's exit code: 0, or that of its failure."""
        if self.reported:
            return self.reported.exit_code
        if self.ended_by:
            return self.ended_by.exit_code
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    def _seen(self) -> Failure:
        """Return how it failed, as far as its agent knows."""
        seen = self.ended_by or describe_exit(self.returncode, oom_kills=oom_kills() - self.kills)
        if self.from_outside and not self.ended_by:
            seen = replace(seen, cause=Cause.ENDED_FROM_OUTSIDE)
        phase, progress = split_phase(self.progress.doing)
        return replace(seen, phase=phase, progress=progress)

    @property
    def from_outside(self) -> bool:
        """Whether a signal from outside has ended it, or has asked for its end within the last minutes."""
        since = time.monotonic() - _FOLLOWED
        recent = {number for number, at in list(self.passed_on.items()) if at > since}
        return -self.returncode in recent or bool(recent - _OF_A_PROGRAM)

    def _record(self, known: Failure) -> None:
        """Write how the rank failed to `failure.json`, and send it to the monitor."""
        folder = self.output.folder
        failure = replace(
            known,
            rank=None if self.number == NO_RANK else self.number,
            host=self.host,
            device=self.placed.device if self.placed else "?",
            last_lines=tuple(self.output.last_lines(_LINES)),
            log=str(folder / "stderr") if folder else "",
        )
        self.failure = replace(failure, evidence=tuple(find_evidence(failure, oom_kills() - self.kills, self.peak)))
        if folder:
            write_failure(folder, self.failure)
        self.tell(messages.Failed(self.failure))
