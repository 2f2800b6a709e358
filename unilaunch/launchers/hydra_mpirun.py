"""mpiexec of MPICH and of Intel MPI (Hydra): its command line."""

import re
from pathlib import Path

from unilaunch.errors import LauncherError
from unilaunch.launchers.allocation import allocated_hosts, is_allocated
from unilaunch.launchers.mpirun import Mpirun, Request
from unilaunch.machine.addresses import own_names
from unilaunch.overriding import override

_VERSIONS = {
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library.*Version (\d+)\.(\d+)"),
    "MPICH": re.compile(r"HYDRA build details:\s*Version:\s+(\d+)\.(\d+)"),
}
#: Variables that choose how mpiexec logs in to hosts.
_LOGINS = ("HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP",
           "I_MPI_HYDRA_BOOTSTRAP_EXEC")  # fmt: skip
#: Options of Open MPI that Hydra does not have.
_FOREIGN = ("prefix", "map_by", "mca")


class MpichMpiexec(Mpirun):
    """MPICH's mpiexec, which forwards the exported variables of the launching host by itself."""

    operator_name = "MPICH"

    @override
    def login_command(self, request: Request) -> list[str]:
        return [] if any(name in request.environ for name in _LOGINS) else super().login_command(request)

    @override
    def write(self, request: Request) -> list[str]:
        self._refuse_users(request)
        hosts = ",".join(host.name + ("" if host.slots is None else f":{host.slots}") for host in request.hosts)
        where = ["-hosts", hosts] if hosts else []
        return [str(self.path), *where, "-n", str(request.nprocs), *self._options(request), *request.program]

    def _refuse_users(self, request: Request) -> None:
        for host in request.hosts:
            if host.user:
                raise LauncherError(
                    f"{host.entry}: {self.launcher} takes no user: write into ~/.ssh/config: Host {host.name}, and "
                    f"below it User {host.user}"
                )

    def _options(self, request: Request) -> list[str]:
        mpi = request.options
        foreign = [f"--{name.replace('_', '-')}" for name in _FOREIGN if getattr(mpi, name)]
        if foreign:
            raise LauncherError(f"{', '.join(foreign)}: Open MPI's option, and {self.launcher} has none like it")
        return [
            *(["-wdir", str(mpi.cwd.absolute())] if mpi.cwd else []),
            *(["-bind-to", mpi.bind_to] if mpi.bind_to else []),
            *(["-launcher", "fork"] if _is_alone(request) else []),
            *_variables(request),
            *mpi.mpi_args,
        ]


class IntelMpiexec(MpichMpiexec):
    """Intel MPI's mpiexec."""

    operator_name = "Intel"

    @property
    @override
    def fills_the_first_host(self) -> bool:
        return True

    @override
    def write(self, request: Request) -> list[str]:
        """Return the hosts as argument sets: Intel MPI's -hosts has no slots, it fills the cores of each host."""
        slots = {host.name: request.nprocs if len(request.hosts) == 1 else host.slots for host in request.hosts}
        if set(slots.values()) <= {None}:
            return super().write(request)
        self._refuse_users(request)
        words: list[str] = []
        left = request.nprocs
        for name, most in slots.items():
            if most is None:
                raise LauncherError(f"{name} has no slots, and other hosts have: {self.launcher} needs all, or none")
            if number := min(left, most):
                words += [*([":"] if words else []), "-host", name, "-n", str(number), *request.program]
            left -= number
        if left:
            raise LauncherError(f"-n {request.nprocs}: the hosts have max_slots for {request.nprocs - left} ranks")
        return [str(self.path), *self._options(request), *words]


def recognise(path: Path, said: str) -> Mpirun | None:
    """Return the mpiexec at *path* if *said*, its version, is Hydra's."""
    for launcher, kind in (("Intel MPI", IntelMpiexec), ("MPICH", MpichMpiexec)):
        if found := _VERSIONS[launcher].search(said):
            return kind(path, launcher, (int(found[1]), int(found[2])))
    return None


def _is_alone(request: Request) -> bool:
    """Return whether the resource manager has allocated this host alone: nothing need be started by its own commands.

    Hydra would start even this host's ranks with them; in a container srun may be absent or know no cluster, and Hydra
    then waits without an end.
    """
    if not is_allocated(request.environ) or any(name in request.environ for name in _LOGINS):
        return False
    if {"-launcher", "-bootstrap"} & set(request.options.mpi_args):
        return False
    names = {host.name for host in request.hosts or allocated_hosts(request.environ)}
    return bool(names) and names <= own_names(names)


def _variables(request: Request) -> list[str]:
    """Return the words for each `-x NAME=V`; Hydra forwards the variables that the launching host has exported.

    Names without a value are left out: with -genvlist ranks on other hosts would get these variables, and no other.
    """
    given = (text.partition("=") for text in request.options.export)
    return [word for name, equals, value in given if equals for word in ("-genv", name, value)]
