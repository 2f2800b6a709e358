"""What many agents cost the monitor on the head node: simulated agents, one rank each, speak to one real monitor.

    python benchmarks/agents.py [--agents 1000 3000 10000]

The agents are a few processes that hold all connections over loopback and send the real messages; they share the
machine with the monitor, so the bound is on the monitor's own processor time, which must grow in proportion.
"""

import argparse
import gc
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from selectors import DefaultSelector

from mpirun import verdict
from unilaunch.folder.failure import Cause, Failure
from unilaunch.machine.limits import allow_files, files_for_strangers
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Connection, listen
from unilaunch.monitor.inbox import Inbox, RankSeen
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.verdict import judge, show

PROCESSES = 4
#: Open files for each agent, as a job's monitor asks for them.
FILES = 4
DEADLINE = 300.0
#: The monitor's processor time may grow by so much more than the number of agents.
GROWTH = 1.6


@dataclass(frozen=True)
class Step:
    """One step of a job, as the monitor sees it.

    Attributes:
        name: What happens.
        seconds: Until it has happened for all.
        processor: Seconds of the monitor's processor time in it.
    """

    name: str
    seconds: float
    processor: float


class Agents:
    """Some of the agents, in a process of their own: each connection is as an agent's is."""

    def __init__(self, where: str, ranks: range, pipe: Pipe) -> None:
        self.where, self.ranks, self.pipe = where, ranks, pipe
        self.selector = DefaultSelector()
        self.selector.register(pipe, 1)
        self.agents: dict[int, Connection] = {}

    def run(self) -> None:
        """Do what the pipe says, until it says nothing more."""
        while True:
            for key, _ in self.selector.select(1.0):
                if key.fileobj is not self.pipe:
                    key.data()
                elif (word := self.pipe.recv()) == "end":
                    return
                else:
                    getattr(self, word)()

    def connect(self) -> None:
        """Call the monitor, and say that a rank has come so far that it works."""
        for rank in self.ranks:
            self.agents[rank] = Connection(self.where, self.selector, partial(self._obey, rank), lambda _: None)
            host = f"node{rank:05d}"
            self.agents[rank].send(messages.Named(rank, host), rank)
            self.agents[rank].send(
                messages.Placed(host, "cuda:0", "run", "log_output", messages.Shown.LINES, abort=True), rank
            )

    def progress(self) -> None:
        """Send what a rank of a GCN tells twice a second."""
        self._send(lambda _: messages.Progress({"phase": "train", "epoch": 7, "epochs": 200, "loss": 0.4321}, 0.1))

    def fail(self) -> None:
        """Let every rank fail, as when the first one that did takes the others along."""
        self._send(lambda rank: messages.Failed(Failure(Cause.LOST_PEER, "a peer has gone", 1, rank=rank, host="node")))

    def finish(self) -> None:
        """Let every rank end well."""
        self._send(lambda _: messages.Done(leaving=True))
        self._send(lambda _: messages.Exited(0))

    def _send(self, message: Callable[[int], messages.OfRank | messages.OfAgent]) -> None:
        for rank, agent in self.agents.items():
            agent.send(message(rank), rank)

    def _obey(self, rank: int, _: int, order: messages.Message) -> None:
        if isinstance(order, messages.ShowStacks):
            self.agents[rank].send(messages.Stack('  File "train.py", line 3 in wait\n', {"phase": "train"}), rank)


@contextmanager
def simulated(where: str, number: int) -> Iterator[Callable[[str], None]]:
    """Start the processes of *number* agents; give what tells all of them what to do."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for index in range(PROCESSES):
        ranks = range(index * number // PROCESSES, (index + 1) * number // PROCESSES)
        ours, theirs = context.Pipe()
        process = context.Process(target=lambda ranks=ranks, theirs=theirs: Agents(where, ranks, theirs).run())
        process.start()
        pipes.append(ours)
        processes.append(process)

    def tell(word: str) -> None:
        for pipe in pipes:
            pipe.send(word)

    try:
        yield tell
    finally:
        tell("end")
        for process in processes:
            process.join()


def measure(number: int, *, failing: bool) -> tuple[list[Step], float]:
    """Return the steps of a job of *number* agents, and the monitor's memory for each of them. KiB

    Args:
        number: Of agents.
        failing: It ends with every rank's failure.
    """
    listening = listen([], several=False, host_timeout=15)
    steps: list[Step] = []
    with simulated(listening.where, number) as tell, Inbox(listening) as inbox:
        gc.collect()
        memory = resident()
        monitor = Monitor(inbox, number, several=True, stall_timeout=DEADLINE, abort=True)

        def step(name: str, act: Callable[[], None], done: Callable[[], object]) -> None:
            began, used = time.monotonic(), time.process_time()
            act()
            while not done():
                if time.monotonic() > began + DEADLINE:
                    raise TimeoutError(f"{name}: not within {DEADLINE:.0f} s")
                inbox.take(0.2)
                monitor.look()
            steps.append(Step(name, time.monotonic() - began, time.process_time() - used))

        ranks = inbox.ranks
        heard = Counter(number)
        step("all connected and placed", lambda: tell("connect"), lambda: len(inbox.working) == number == len(ranks))
        step("one progress of each", lambda: tell("progress"), lambda: heard.all(ranks, lambda seen: seen.progress))
        memory = resident() - memory
        step(
            "an order to all, and its answer", lambda: inbox.tell_all(messages.ShowStacks()),
            lambda: heard.all(ranks, lambda seen: seen.stack),
        )  # fmt: skip
        if failing:
            step("the failure of each", lambda: tell("fail"), lambda: monitor.ending and len(inbox.failed) == number)
            step("the verdict", lambda: _conclude(monitor), lambda: True)
        else:
            step("the end of each", lambda: tell("finish"), lambda: monitor.finished)
    return steps, memory / number / 1024


class Counter:
    """Counts ranks once each: the benchmark must not be what is quadratic."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.next = 0

    def all(self, ranks: Mapping[int, RankSeen], has: Callable[[RankSeen], object]) -> bool:
        """Return whether *has* is true of all ranks; begins where it stopped the last time."""
        while self.next < self.number and has(ranks[self.next]):
            self.next += 1
        if self.next < self.number:
            return False
        self.next = 0
        return True


def _conclude(monitor: Monitor) -> None:
    show(judge(monitor.failures()), unseen=False)


def resident() -> int:
    """Return this process's memory. bytes"""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(number: int) -> tuple[list[Step], float]:
    """Measure in a process of its own, whose memory no earlier measurement has touched."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def work() -> None:
        ended, memory = measure(number, failing=False)
        failed, _ = measure(number, failing=True)
        theirs.send((ended + failed[-2:], memory))

    process = context.Process(target=work)
    process.start()
    theirs.close()
    try:
        found: tuple[list[Step], float] = ours.recv()
    finally:
        process.join()
    return found


def main() -> int:
    """Measure, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 3000, 10_000])
    numbers: Sequence[int] = parser.parse_args().agents
    allow_files(FILES * max(numbers))
    if files_for_strangers(max(numbers)) < max(numbers):  # all call at once; who finds no room is sent away
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        print(f"ulimit -Hn allows {allowed} open files, and {2 * max(numbers)} are needed")
        return 2
    found = {number: run(number) for number in numbers}
    print(f"{'agents':34}" + "".join(f"{number:>18}" for number in numbers))
    for index, first in enumerate(found[numbers[0]][0]):
        cells = [steps[index] for steps, _ in found.values()]
        print(f"{first.name:34}" + "".join(f"{cell.seconds:9.2f} ({cell.processor:4.2f}) s" for cell in cells))
    totals = {number: sum(step.processor for step in steps) for number, (steps, _) in found.items()}
    print(f"{'processor time of each agent':34}" + "".join(f"{1e6 * totals[one] / one:15.0f} us" for one in numbers))
    print(f"{'memory of each agent':34}" + "".join(f"{memory:14.1f} KiB" for _, memory in found.values()))
    least, most = min(numbers), max(numbers)
    growth = (totals[most] / most) / (totals[least] / least)
    return 0 if verdict(f"growth of it from {least} to {most} agents", growth, GROWTH) else 1


if __name__ == "__main__":
    sys.exit(main())
