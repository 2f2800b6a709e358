"""Start a job under a real mpirun, with a deadline, and read what it leaves."""

import json
import os
import subprocess
import sys
import time
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
#: The variable with the seconds for which each of its epochs sleeps.
PAUSE = "NUMPY_BACKEND_PAUSE"
#: See the fixture `by_numpy`.
BACKEND = "UNILAUNCH_BACKEND"
#: Root without the right to read what its mode forbids; others have no such right. The job is a real one.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
#: Runs several scripts in one start, as if each had been started by itself; see `one_start`.
ONE_START = str(Path(__file__).parent / "programs" / "run_examples.py")


@dataclass(frozen=True)
class Finished:
    """A job that has ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path

    @property
    def console(self) -> str:
        """Everything that a person saw."""
        return self.stdout + self.stderr

    @property
    def output(self) -> Path:
        """The output folder."""
        return self.folder / "log_output"

    @property
    def result(self) -> dict[str, Any]:
        """The job's result."""
        result: dict[str, Any] = json.loads((self.output / "result.json").read_text())
        return result

    def check(self) -> "Finished":
        """Return this job if it ended well."""
        assert self.returncode == 0, self.console[-4000:]
        return self

    def refusals(self) -> list[str]:
        """Return what unilaunch said on the console, line by line."""
        return [line for line in self.console.splitlines() if line.startswith("unilaunch: ")]


@dataclass(frozen=True)
class Launcher:
    """One mpirun.

    Attributes:
        path: Where it is.
        version: "4.1" or "5.0".
    """

    path: Path
    version: str

    def run(
        self, ranks: int, program: list[str], folder: Path, *, options: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> Finished:  # fmt: skip
        """Run *program* on *ranks* ranks in *folder*."""
        line = [str(self.path), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *options]
        return finish([*line, sys.executable, *program], folder, variables)

    def unilaunch(self, ranks: int, arguments: list[str], folder: Path, **more: Any) -> Finished:
        """Run `python -m unilaunch` with *arguments*."""
        return self.run(ranks, ["-m", "unilaunch", *arguments], folder, **more)


def alone(program: list[str], folder: Path, variables: dict[str, str] | None = None) -> Finished:
    """Run *program* under no launcher."""
    return finish([sys.executable, *program], folder, variables)


def one_start(lines: list[list[str]], folder: Path) -> list[str]:
    """Return the program that runs *lines*, each a script and its arguments, one after the other."""
    (folder / "lines.json").write_text(json.dumps(lines))
    return [ONE_START, "lines.json"]


def finish(line: list[str], folder: Path, variables: dict[str, str] | None) -> Finished:
    """Run a command line to its end; if it counts as hung, kill it and fail with what ran."""
    begin = time.monotonic()
    environ = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251
        if name == BACKEND or not name.startswith(("UNILAUNCH_", "OMPI_"))
    }
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
