"""Plug-ins of another distribution, for test_outside.py. (Others: tests/numpy_backend, tests/outside_model.)"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

import unilaunch

RANK, SIZE, JOB = "MYMPI_RANK", "MYMPI_SIZE", "MYMPI_JOB"


class MyMpi(unilaunch.Launcher):
    """mympirun."""

    title = "My MPI"
    order = 5
    prefixes = ("MYMPI_",)
    sizes = (SIZE,)
    scripts = ("mympirun",)
    startable = "My MPI"

    @override
    def detect(self, environ: Mapping[str, str]) -> unilaunch.LauncherInfo | None:
        if RANK not in environ:
            return None
        # It starts all ranks on one host, so its ranks there are numbered as those of the job.
        return self.describe(environ, (RANK, SIZE, RANK, SIZE), [JOB], run_id=f"mympi-{environ.get(JOB)}", mpi=False)

    @override
    def recognise(self, path: Path, said: str) -> unilaunch.Mpirun | None:
        found = re.fullmatch(r"My MPI (\d+)\.(\d+)\n", said)
        return MyMpirun(path, self.title, (int(found[1]), int(found[2]))) if found else None


class MyMpirun(unilaunch.Mpirun):
    """Its command line."""

    @override
    def write(self, request: unilaunch.Request) -> list[str]:
        return [str(self.path), "-n", str(request.nprocs), *request.program]


class ListingSpec(unilaunch.Spec):
    """The options of the job file below."""

    indent: int = 0


class Listing(unilaunch.JobFile):
    """A line for each rank."""

    options = ListingSpec

    @override
    def lines(self, plan: unilaunch.Plan, options: ListingSpec) -> Iterator[str]:
        for row in plan.rows:
            yield f"{' ' * options.indent}rank {row.rank}: {row.host} {row.device}"


class Ledger(unilaunch.Observer):
    """Writes what it is told into a file."""

    @override
    def check(self, where: str) -> None:
        if Path(where).is_dir():
            raise unilaunch.SpecError("must be a file")

    @override
    @contextmanager
    def observing(self, where: str, job: unilaunch.Observed) -> Iterator[None]:
        with Path(where).open("w", encoding="utf-8") as file:
            file.write(f"{job.name}: {job.snapshot()['size']} ranks, {dict(job.options)}\n")
            yield
            file.write(f"exit codes {sorted(job.exit_codes(), key=str)}\n")
