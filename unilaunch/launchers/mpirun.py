"""An mpirun with which `launch` can start ranks, and the request that it translates into its options."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from unilaunch.errors import say
from unilaunch.launchers import own_prefixes
from unilaunch.launchers.allocation import is_allocated
from unilaunch.machine.variables import travelling
from unilaunch.overriding import override
from unilaunch.record import Record, replace
from unilaunch.spec.hostfile import Host
from unilaunch.spec.launch_spec import MpiSpec
from unilaunch.spec.redaction import redact_words, secret_arguments, secret_variables, without_secret_values

M = TypeVar("M", bound=MpiSpec)


def reference(name: str) -> str:
    """Return the text in a word that stands for the value of a variable; each job file writes it in its own way."""
    return f"\ue000{name}\ue001"


class Request(Record):
    """What to start.

    Attributes:
        nprocs: Number of ranks.
        hosts: The hosts; empty for this host, or what a resource manager has allocated.
        hostfile: The user's own file, if mpirun can read it as it is.
        several: Whether there is more than one host.
        host_timeout: Seconds for which a host may not answer before it counts as lost.
        cores_each: Cores for each rank on the host with most ranks, if it has as many as this one; None if not known.
        options: The user's options for what starts the ranks.
        program: The command line of each rank.
        environ: The environment in which mpirun is started; names that follow `-x` are taken from it.
    """

    nprocs: int
    hosts: tuple[Host, ...]
    hostfile: str | None
    several: bool
    host_timeout: float
    cores_each: int | None
    options: MpiSpec
    program: tuple[str, ...]
    environ: Mapping[str, str]

    def forwarded(self) -> list[str]:
        """Return the variables that ranks on other hosts are to find as they are here, beside the user's own `-x`."""
        named = {text.partition("=")[0] for text in self.options.export}
        return travelling(self.environ.keys() - named, own_prefixes()) if self.several else []

    @property
    def args(self) -> tuple[str, ...]:
        """The arguments of the ranks' program: the words behind `--`."""
        return self.program[self.program.index("--") + 1 :] if "--" in self.program else ()

    @property
    def secret_names(self) -> list[str]:
        """The variables that must hold the secret values of `-x` and of the arguments where a job file starts."""
        of_args = (name for _, name in secret_arguments(self.args).values())
        return list(dict.fromkeys([*secret_variables(self.options.export), *of_args]))

    def shown(self) -> "Request":
        """Return the same without secret values, for a line that is shown."""
        hidden = {
            "export": without_secret_values(self.options.export), "mpi_args": redact_words(self.options.mpi_args),
        }  # fmt: skip
        return replace(self, options=self.options.model_copy(update=hidden), program=redact_words(self.program))

    def referring(self) -> "Request":
        """Return the same for a job file: in place of each secret value the program has a `reference` to a variable."""
        args = list(self.args)
        for position, (before, name) in secret_arguments(args).items():
            args[position] = before + reference(name)
        program = (*self.program[: len(self.program) - len(args)], *args)
        return replace(self._with(without_secret_values(self.options.export)), program=program)

    def with_hidden_values(self) -> "Request":
        """Return the same with the values of `-x` in the environment: a command line is seen by all users of a host.

        Variables that mpirun itself reads stay where they are, unless they are secrets.
        """
        own = ("PATH", "LD_", *own_prefixes())
        hidden, given = secret_variables(self.options.export), (text.partition("=") for text in self.options.export)
        moved = {
            name: value for name, equals, value in given if equals and (name in hidden or not name.startswith(own))
        }
        x = dict.fromkeys(name if (name := text.partition("=")[0]) in moved else text for text in self.options.export)
        return replace(self._with(tuple(x)), environ={**self.environ, **moved})

    def _with(self, x: tuple[str, ...]) -> "Request":
        return replace(self, options=self.options.model_copy(update={"export": x}))


class Starter(Record, ABC):
    """What starts the ranks: an mpirun, or `launch` itself.

    Attributes:
        path: The program; absolute, so that Open MPI finds its daemon at the same place on the other hosts.
        launcher: The name for messages: "Open MPI", "MPICH", "unilaunch".
        version: Major and minor version.
    """

    path: Path
    launcher: str
    version: tuple[int, int]

    #: Whether it starts at most as many ranks on this host as there are cores, unless it may oversubscribe.
    counts_cores: ClassVar[bool] = False
    #: The name in the MPI Operator of Kubernetes; "" if the operator does not support it.
    operator_name: ClassVar[str] = ""

    @property
    @abstractmethod
    def process(self) -> str:
        """What runs while the job runs, for a message."""

    @property
    def begins_here(self) -> bool:
        """Whether the host on which it runs gets ranks first, wherever it stands in the list of hosts."""
        return False

    @property
    def fills_the_first_host(self) -> bool:
        """Whether all ranks go to the first host if it may oversubscribe and no slots are given."""
        return False

    def reads(self, hostfile: Path) -> bool:  # noqa: ARG002  (most do not)
        """Whether it reads the user's hostfile as it is, with slots."""
        return False

    def usable(self, spec: M) -> M:
        """Return the options without what would keep it from starting; log each of them."""
        return spec

    def check(self, request: Request, user: int) -> None:
        """Refuse options that it would refuse after its start.

        Args:
            request: What to start.
            user: The user's number.

        Raises:
            LauncherError: It would refuse the request.
        """

    def login_command(self, request: Request) -> list[str]:  # noqa: ARG002
        """Return the ssh command with which it logs in to other hosts; empty if it may use something else."""
        return []

    @abstractmethod
    def write(self, request: Request) -> list[str]:
        """Return the command line, as it can be pasted into a shell.

        Raises:
            LauncherError: It has no option for a part of the request.
        """


class Mpirun(Starter):
    """An mpirun that has been found."""

    @property
    @override
    def process(self) -> str:
        return str(self.path)

    def unusable(self, parameters: Collection[str]) -> dict[str, str]:  # noqa: ARG002  (most know none)
        """Return those of --mca's *parameters* with which this mpirun would not start, each with the reason."""
        return {}

    @override
    def usable(self, spec: M) -> M:
        reasons = self.unusable([name for name, _ in spec.mca])
        for name, reason in reasons.items():
            say(f"--mca {name} is left out: {reason}")
        kept = tuple((name, value) for name, value in spec.mca if name not in reasons)
        return spec.model_copy(update={"mca": kept}) if reasons else spec

    @override
    def login_command(self, request: Request) -> list[str]:
        """Return ssh; nothing in an allocation: mpirun may start its daemons through the resource manager there."""
        return [] if is_allocated(request.environ) else ["ssh"]

    def start_line(
        self,
        request: Request,
        told: Sequence[str],  # noqa: ARG002  (this and the next are Open MPI's)
        session: str,  # noqa: ARG002
    ) -> list[str]:
        """Return the command line with which `launch` starts the ranks; it may stay out of sight.

        Args:
            request: What to start, as `Request.started` returns it.
            told: Other variables of its environment that ranks on every host must find.
            session: A folder for files of mpirun's on this host; "" for its own choice.
        """
        return self.write(request)
