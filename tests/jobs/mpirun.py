"""Start a job under a real mpirun, with a deadline, and read what it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds after which a job counts as hung. It is no promise to a user (a test asserts `seconds` for that), so it is
#: far above what the slowest machine has needed: six times as long as an idle one.
DEADLINE = 600.0
#: Several jobs share the processors: who waits leaves them to the others, in MPI and in OpenMP.
SHARED = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_WAIT_POLICY": "PASSIVE"}
#: The folder of the backend "numpy", which is not installed; and the variable that makes it known to a job.
NUMPY_BACKEND = Path(__file__).parents[1] / "numpy_backend"
NUMPY = {"PYTHONPATH": str(NUMPY_BACKEND)}
PAUSE = "NUMPY_BACKEND_PAUSE"  # the seconds for which each of its epochs sleeps
BACKEND = "UNILAUNCH_BACKEND"  # see the fixture `by_numpy`
#: Root without the right to read what its mode forbids; others have no such right. The job is a real one.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
Variables = dict[str, str] | None
#: Runs several scripts in one start, as if each had been started by itself; see `one_start`.
ONE_START = str(Path(__file__).parent / "programs" / "run_examples.py")


@dataclass(frozen=True)
class Finished:
    """A job that has ended; its *console* is everything that a person saw."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path

    @property
    def console(self) -> str:
        return self.stdout + self.stderr

    @property
    def output(self) -> Path:
        return self.folder / "log_output"

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "result.json").read_text()))

    @property
    def report(self) -> dict[str, Any]:
        """What `launch`, or the agent of rank 0, tells of the job's failure."""
        return dict(json.loads((self.output / "report.json").read_text()))

    def said(self, rank: int, stream: str = "stdout") -> str:
        """Return what a rank has written, as its log has it."""
        return (self.output / f"rank.{rank}" / stream).read_text()

    def failure(self, rank: int) -> dict[str, Any]:
        return dict(json.loads((self.output / f"rank.{rank}" / "failure.json").read_text()))

    def check(self) -> "Finished":
        """Return this job if it ended well."""
        assert self.returncode == 0, self.console[-4000:]
        return self

    def refusals(self) -> list[str]:
        """Return what unilaunch said on the console, line by line."""
        return [line for line in self.console.splitlines() if line.startswith("unilaunch: ")]

    def refusal(self) -> str:
        """Return the one line with which this job was refused: its exit code is 2, and there is no traceback."""
        assert self.returncode == 2, self.console[-3000:]
        assert "Traceback" not in self.console
        (line,) = self.refusals()
        return line


@dataclass(frozen=True)
class Launcher:
    """One mpirun, of the version "4.1" or "5.0"."""

    path: Path
    version: str

    @property
    def options(self) -> list[str]:
        """The options with which `launch` takes this mpirun, as root too, on however few cores."""
        return ["--mpirun", str(self.path), "--allow-run-as-root", "--oversubscribe"]

    def run(
        self,
        ranks: int,
        program: list[str],
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        variables: Variables = None,
    ) -> Finished:
        """Run *program* on *ranks* ranks in *folder*."""
        line = [str(self.path), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *options]
        return finish([*line, sys.executable, *program], folder, variables)

    def unilaunch(self, ranks: int, arguments: list[str], folder: Path, **more: Any) -> Finished:
        """Run `python -m unilaunch` with *arguments*."""
        return self.run(ranks, ["-m", "unilaunch", *arguments], folder, **more)

    def launch(self, ranks: int, arguments: list[str], folder: Path, variables: Variables = None) -> Finished:
        """Run `unilaunch launch` with *arguments*, which starts the ranks by this mpirun."""
        return unilaunch(["launch", "-n", str(ranks), *self.options, *arguments], folder, variables)


def unilaunch(words: list[str], folder: Path, variables: Variables = None) -> Finished:
    """Run `python -m unilaunch` with *words* under no launcher."""
    return alone(["-m", "unilaunch", *words], folder, variables)


def alone(program: list[str], folder: Path, variables: Variables = None) -> Finished:
    """Run *program* under no launcher."""
    return finish([sys.executable, *program], folder, variables)


def one_start(lines: list[list[str]], folder: Path) -> list[str]:
    """Return the program that runs *lines*, each a script and its arguments, one after the other."""
    (folder / "lines.json").write_text(json.dumps(lines))
    return [ONE_START, "lines.json"]


def finish(line: list[str], folder: Path, variables: Variables) -> Finished:
    """Run a command line to its end; if it counts as hung, kill it and fail with what ran."""
    begin = time.monotonic()
    ours = ("UNILAUNCH_", "OMPI_")
    environ = {name: value for name, value in os.environ.items() if name == BACKEND or not name.startswith(ours)}  # noqa: TID251
    with subprocess.Popen(
        line, cwd=folder, env=environ | SHARED | (variables or {}), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            # The time of the processor tells a job that hangs from one that is slow.
            shown = subprocess.check_output(["ps", "-eo", "pid,ppid,stat,etimes,time,wchan:24,args"], text=True)
            os.killpg(process.pid, 9)
            stdout, stderr = process.communicate()
            raise AssertionError(f"still running after {DEADLINE} s: {line}\n{shown}\n{stdout}{stderr}") from None
    return Finished(process.returncode, stdout, stderr, time.monotonic() - begin, folder)


def wait_until(condition: Callable[[], Any], seconds: float = 100.0, pause: float = 0.05) -> Any:
    """Wait for a condition, and return what it then is; look at it each *pause* seconds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(pause)
    return found


def processes_in(folder: Path) -> Iterator[int]:
    """Return the processes that run in a folder or below it, but for this one."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cwd").readlink().is_relative_to(folder) and int(path.name) != os.getpid():
                yield int(path.name)


def kill_all(folder: Path) -> None:
    """Kill the processes that run in a folder."""
    for process in processes_in(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
