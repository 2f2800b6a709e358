"""A rank as its agent sees it. What a rank answers that is stopped, or stuck, is in the fault matrix."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jobs.mpirun import wait_until
from unilaunch.agent import rank_process
from unilaunch.agent.channel import STACKS, Channel
from unilaunch.agent.output import HiddenOutput, Output
from unilaunch.agent.processes import Loop, catches, state
from unilaunch.agent.progress import ProgressTeller
from unilaunch.agent.rank_process import RankProcess, State
from unilaunch.agent.stack_reader import StackReader
from unilaunch.folder.failure import Cause
from unilaunch.monitor.messages import Failed, Message, PassSignal, Progress
from unilaunch.rank.status import Pace, StatusPage


@contextmanager
def _rank() -> Iterator[tuple[RankProcess, list[Message]]]:
    """Give a rank, which is this process, and what its agent passes on."""
    channel, loop = Channel(), Loop()
    passed_on: list[Message] = []
    output = Output((channel.stdout, channel.stderr), (-1, -1), HiddenOutput())
    rank = RankProcess(os.getpid(), channel, output, loop, lambda _, message: passed_on.append(message))
    yield rank, passed_on
    loop.leave()
    rank.close_files()
    channel.be_agent()


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler signals every process of a job, `launch` too; a later one of the same number is another one."""
    monkeypatch.setattr(rank_process, "_ECHO", 60.0)
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    with _rank() as (rank, _):
        rank.channel.own_group = True
        rank.pass_on(signal.SIGUSR1)
        rank.pass_on(signal.SIGUSR1)
        rank.obey(PassSignal(signal.SIGUSR1))
        assert len(came) == 1
        rank.passed_on[signal.SIGUSR1] -= 100.0
        rank.pass_on(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert len(came) == 2


@pytest.mark.parametrize(("number", "age", "status", "cause"), [
    (signal.SIGTERM, 0.0, signal.SIGKILL, Cause.ENDED_FROM_OUTSIDE),  # a scheduler's way
    (signal.SIGTERM, 0.0, 3 << 8, Cause.ENDED_FROM_OUTSIDE),  # by its handler
    (signal.SIGTERM, 3600.0, signal.SIGSEGV, Cause.SIGNAL),  # it has handled the signal, and run on
    (signal.SIGUSR1, 0.0, signal.SIGSEGV, Cause.SIGNAL),
    (signal.SIGUSR1, 0.0, signal.SIGUSR1, Cause.ENDED_FROM_OUTSIDE),
])  # fmt: skip
def test_a_signal_from_outside_is_the_cause_of_an_end_that_follows_soon(
    number: int, age: float, status: int, cause: Cause
) -> None:
    with _rank() as (rank, passed_on):
        rank.passed_on[number], rank.number = time.monotonic() - age, 0
        rank.exited(status, resource.getrusage(resource.RUSAGE_SELF))
        rank.output.end()
        rank.abandoned = True
        rank.tick(time.monotonic() + 60.0)
    (failure,) = [message.failure for message in passed_on if isinstance(message, Failed)]
    assert failure.cause is cause


def test_the_last_output_is_read_however_late_the_agent_is() -> None:
    """It was held for seconds between the rank's exit and its look at what is due: nothing was read in between."""
    with _rank() as (rank, _):
        os.write(rank.channel._ranks_ends[0], b"the last line\n")
        rank.exited(0, resource.getrusage(resource.RUSAGE_SELF))
        late = time.monotonic() + 5.0
        rank.tick(late)
        assert rank.state.value == State.EXITED.value
        rank.tick(late + 5.0)
        assert rank.state.value == State.ENDED.value


def test_a_script_that_writes_nothing_makes_progress_by_its_steps() -> None:
    """Only its pace changes: it was ended as stalled."""
    with _rank() as (rank, _):
        page, told = StatusPage(), list[Progress]()
        teller = ProgressTeller(os.getpid(), page, rank.output, told.append)
        for step in range(20):
            page.note_pace(Pace(step))
            teller.tick(100.0 + step)
        assert [progress.age for progress in told] == [0.0] * 20
        teller.tick(200.0)
        assert told[-1].age == 81.0


def test_a_process_without_a_handler_is_not_killed() -> None:
    """A rank that has become another program, or whose Python has ended and whose libraries still clean up."""
    reading, writing = os.pipe()
    with subprocess.Popen(["sleep", "60"], stderr=writing) as process:
        wait_until(lambda: state(process.pid) == "S" and not catches(process.pid, STACKS))
        reader = StackReader(reading)
        reader.begin(process.pid)
        assert (reader.take(time.monotonic() + 1) or "").startswith("no Python stack: ")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
    os.close(reading)
    os.close(writing)
