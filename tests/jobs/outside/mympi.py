"""A plug-in of each kind, of another distribution, for test_outside.py."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import JsonValue
from typing_extensions import override

from unilaunch import (
    Backend,
    Collectives,
    Framework,
    JobFile,
    Launcher,
    LauncherInfo,
    Model,
    Mpirun,
    Observed,
    Observer,
    Peers,
    Placement,
    Plan,
    Rendezvous,
    Request,
    Session,
    Spec,
    SpecError,
    World,
)  # fmt: skip

RANK, SIZE, JOB = "MYMPI_RANK", "MYMPI_SIZE", "MYMPI_JOB"


class MyMpi(Launcher):
    """mympirun."""

    title = "My MPI"
    order = 5
    prefixes = ("MYMPI_",)
    sizes = (SIZE,)
    scripts = ("mympirun",)
    startable = "My MPI"

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        if RANK not in environ:
            return None
        # It starts all ranks on one host, so its ranks there are numbered as those of the job.
        return self.describe(environ, (RANK, SIZE, RANK, SIZE), [JOB], run_id=f"mympi-{environ.get(JOB)}", mpi=False)

    @override
    def recognise(self, path: Path, said: str) -> Mpirun | None:
        found = re.fullmatch(r"My MPI (\d+)\.(\d+)\n", said)
        return MyMpirun(path, self.title, (int(found[1]), int(found[2]))) if found else None


class MyMpirun(Mpirun):
    """Its command line."""

    @override
    def write(self, request: Request) -> list[str]:
        return [str(self.path), "-n", str(request.nprocs), *request.program]


class ListingSpec(Spec):
    """The options of the job file below."""

    indent: int = 0


class Listing(JobFile):
    """A line for each rank."""

    options = ListingSpec

    @override
    def lines(self, plan: Plan, options: ListingSpec) -> Iterator[str]:
        for row in plan.rows:
            yield f"{' ' * options.indent}rank {row.rank}: {row.host} {row.device}"


class PlainBackend(Backend):
    """Python itself, which is always installed."""

    name = "plain"
    framework = "json"
    devices = ("cpu",)
    launcher = "mympirun"

    @override
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        return {}

    @override
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        return {}

    @override
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        return {}

    @override
    def after_fork(self, threads: int) -> None:
        """Do nothing."""

    @override
    def start(self, world: World, placement: Placement) -> None:
        """Do nothing."""

    @override
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        raise NotImplementedError

    @override
    def stop(self) -> None:
        """Do nothing."""

    @override
    def versions(self) -> Mapping[str, str]:
        return {}


class CountingSpec(Spec):
    """The options of the model below."""

    step: int = 1


class CountingModel(Model):
    """The ranks add up what they have counted."""

    name = "counting"

    @property
    @override
    def spec(self) -> type[Spec]:
        return CountingSpec

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Fit any number of ranks; a step of 13 meets a mistake in this method."""
        if options.step == 13:
            raise ValueError("thirteen")

    @override
    def prepare(self, options: Any, session: Session) -> None:
        """Read nothing."""

    @override
    def run(self, options: Any, prepared: Any, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        return {"counted": session.peers.share(options.step * (session.world.rank + 1))}


class Ledger(Observer):
    """Writes what it is told into a file."""

    @override
    def check(self, where: str) -> None:
        if Path(where).is_dir():
            raise SpecError("must be a file")

    @override
    @contextmanager
    def observing(self, where: str, job: Observed) -> Iterator[None]:
        with Path(where).open("w", encoding="utf-8") as file:
            file.write(f"{job.name}: {job.snapshot()['size']} ranks, {dict(job.options)}\n")
            yield
            file.write(f"exit codes {sorted(job.exit_codes(), key=str)}\n")
