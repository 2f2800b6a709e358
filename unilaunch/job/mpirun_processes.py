"""The processes of a running mpirun: its children, its process group and its session."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb

from unilaunch.errors import MonitorError


@contextmanager
def killed_at_an_error(group: int) -> Iterator[None]:
    """Kill mpirun's process group if the block fails: the job would run on, and no process would watch it.

    Raises:
        MonitorError: The block has raised an exception.
    """
    try:
        yield
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        if isinstance(error, Exception):
            where = extract_tb(error.__traceback__)[-1]
            raise MonitorError(
                f"launch failed and has ended the job: {error!r} in {Path(where.filename).name}, line {where.lineno}: "
                "please report this line"
            ) from error
        raise


def has_children(pid: int) -> bool:
    """Return whether a process has children; True if the kernel does not tell."""
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").strip())
    except OSError:
        return True


def end_session(leader: int) -> None:
    """Kill the processes that still run in mpirun's session: its ssh to a lost host would wait for minutes."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):  # the process has exited
                if os.getsid(int(path.name)) == leader:
                    os.kill(int(path.name), signal.SIGKILL)
