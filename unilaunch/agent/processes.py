"""What a process needs that supervises other processes: functions of Linux, and an event loop."""

import ctypes
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from types import FrameType
from typing import Any

from unilaunch.errors import LauncherError
from unilaunch.launchers.ancestry import stat_of

#: Signals from outside that a supervising process passes on to its child.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _group_of(process: int) -> int:
    with suppress(OSError):
        return os.getpgid(process)
    return 0


def fork(what: str) -> int:
    """Fork; return the new process's number, 0 in it.

    Args:
        what: What the new process is, for the message.

    Raises:
        LauncherError: The system allows no further process.
    """
    try:
        return os.fork()
    except OSError as error:
        raise no_more(what, error) from None


def no_more(what: str, error: OSError) -> LauncherError:
    """Return the error of a process that cannot be started for want of something."""
    return LauncherError(
        f"{what} cannot be started: {error.strerror}: ulimit -u (processes), ulimit -n (open files) or the memory of "
        "this cgroup allows no more"
    )


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent exits; exit at once if the parent has already exited."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def wake_at_end_of(parent: int) -> None:
    """Let the kernel send this process SIGCHLD, which wakes its event loop, when its parent exits."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCHLD)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGCHLD)


def adopt_orphans() -> None:
    """Become the parent of the orphans of this process's children, so that this process can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def pass_signals_on(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Install *handler* for signals from outside; a signal that was ignored at the start (nohup) stays ignored.

    Returns:
        The previous handlers.
    """
    heard = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


def hear_signals_again(before: Mapping[signal.Signals, Any]) -> None:
    """Undo `pass_signals_on`, in a process that was forked with `PASSED_ON` blocked."""
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def state(process: int) -> str:
    """Return a process's state as in proc(5): "T" is stopped, "Z" has ended; "" if there is no such process."""
    with suppress(OSError):
        return stat_of(process)[1][0]
    return ""


def catches(process: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    return False


def processor_wait(process: int) -> float:
    """Return the seconds for which a process's main thread has waited for a processor; 0.0 if that is unknown."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def children(process: int | None = None) -> list[int]:
    """Return a process's children (None: of this process); empty where the kernel does not list them."""
    found = []
    for thread in Path("/proc").glob(f"{process or os.getpid()}/task/*"):
        with suppress(OSError):  # this thread has ended
            found += [int(child) for child in (thread / "children").read_text(encoding="ascii").split()]
    return found


def kill_children(group: int | None = None) -> None:
    """Kill this process's children, and the grandchildren that it then inherits.

    Args:
        group: Kill only the processes of this process group.
    """
    for _ in range(20):
        living = [child for child in children() if group in {None, _group_of(child)}]
        if not living:
            return
        for child in living:
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or belongs to another user (setuid)
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)


def wait_for(agent: int, above: int) -> int:
    """Wait until an agent has ended, end what it has left if it failed, and return its exit code: 128 + N for signal N.

    What the ranks of a job that ended well have left running stays. If the process above has exited, this process exits
    at once: the agent notices that, and ends its ranks. The signals that are passed on stay blocked: once the agent has
    ended, its number may be that of another process.

    Args:
        agent: The agent's process number.
        above: That of the process above this one, whose end is noticed.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *PASSED_ON])
    ended = status = 0
    while ended != agent:
        ended, status = os.waitpid(-1, os.WNOHANG)  # also orphans of the agent's ranks
        if ended:
            continue
        if os.getppid() != above:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        signal.sigwaitinfo([signal.SIGCHLD])
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    code = os.waitstatus_to_exitcode(status)
    if code:
        kill_children()
    return code if code >= 0 else 128 - code


def can_be_read(source: Any) -> bool:
    """Return whether reading from an open file would not wait, also at its end."""
    waiting = select.poll()  # select.select takes no descriptor above 1023
    waiting.register(source, select.POLLIN)
    return bool(waiting.poll(0))


def release_code() -> None:
    """Give back the pages of this process that are the same as in their files; they are read again when needed.

    The OOM killer ends the process with most pages in memory. A process that was forked does not have those of the
    libraries: without this the one that has imported a framework counts as larger than a rank that takes the memory.
    """
    advise, pages = ctypes.CDLL(None).madvise, None
    with suppress(OSError), Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                place, mode, inode = words[0], words[1], words[4]
                pages = place if inode != "0" and "w" not in mode else None
            elif words[0] == "Anonymous:" and words[1] == "0" and pages:  # no page of its own in it
                begin, end = (int(edge, 16) for edge in pages.split("-"))
                advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


class Loop:
    """Waits until a watched file can be read or written, a child exits, or a signal arrives."""

    def __init__(self) -> None:
        self.selector = DefaultSelector()
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.watch(reading, lambda: bool(os.read(reading, 512)))

    def watch(self, source: Any, act: Callable[[], object], event: int = EVENT_READ) -> None:
        """Call *act* when *source* can be read, or written if *event* says so, until *act* returns False."""

        def acted() -> None:
            if act() is False:
                self.selector.unregister(source)

        self.selector.register(source, event, acted)

    def forget(self, sources: Iterable[Any]) -> None:
        """Stop watching *sources*; those that are not watched are ignored."""
        for source in sources:
            with suppress(KeyError):
                self.selector.unregister(source)

    def turn(self, seconds: float) -> None:
        """Wait for the next events, at most *seconds*, and handle them.

        Handling one may read what another has announced, for instance the rest of a rank's output when it tells of its
        failure: then reading that once more would wait for the rank.
        """
        for number, (key, events) in enumerate(self.selector.select(seconds)):
            if not number or events & EVENT_WRITE or can_be_read(key.fd):
                key.data()

    def leave(self) -> None:
        """Close the agent's selector and pipes, in a rank that has been forked from it."""
        self.selector.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
